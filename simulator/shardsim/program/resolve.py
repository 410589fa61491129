"""From what was asked for to a complete, checked training run; every problem at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from shardsim.cost.attention import library_of
from shardsim.errors import InputError, Problem
from shardsim.program.misaligned import misaligned
from shardsim.program.provenance import fabric_here
from shardsim.schema.changes import unknown_changes
from shardsim.schema.framework import load_framework
from shardsim.schema.hardware import load_cluster, load_fabric_profile
from shardsim.schema.hosts import load_host_profile
from shardsim.schema.kernels import load_kernel_profile
from shardsim.schema.model import load_model
from shardsim.schema.run import RunRequest
from shardsim.values.hardware import Cluster, Profile
from shardsim.values.training import DEFAULT_ORDER, NARROW_TYPE, Batch, Framework, Layout, LowPrecision, TrainingRun
from shardsim.workload.allocations import stage_allocations
from shardsim.workload.attention import softmax_warning
from shardsim.workload.schedules import make_schedule, peak_in_flight
from shardsim.workload.validity import check

T = TypeVar("T")


def resolve(request: RunRequest, data: Sequence[Path] = ()) -> TrainingRun:
    """Look up what a request names, fill in what follows, and check it all together.

    Parameters
    ----------
    request : RunRequest
    data : sequence of Path
        A user's own data folders, searched first.

    Returns
    -------
    TrainingRun

    Raises
    ------
    InputError
        Every problem found, together.
    """
    problems = unknown_changes(request.set)
    model = _try(problems, lambda: load_model(request.model, data))
    cluster = _try(problems, lambda: load_cluster(request.cluster, data, changes=request.set))
    framework = _framework(request, cluster, data, problems)
    if cluster is None or model is None or framework is None:
        raise InputError(problems)
    kernels = _try(problems, lambda: load_kernel_profile(cluster.device.compute_profile, data, changes=request.set))
    fabric = _try(problems, lambda: load_fabric_profile(cluster.fabric_profile, data, changes=request.set))
    launching = dict(request.set)
    named = str(launching.pop("host", framework.host_profile))
    host = _try(problems, lambda: load_host_profile(named, data, changes=launching))
    if kernels is None or fabric is None or host is None:
        raise InputError(problems)
    profile = Profile(kernels, fabric_here(cluster, fabric), host)
    precision = _precision(request, cluster, framework, profile, problems)
    framework = replace(framework, low_precision=next((name for name in NARROW_TYPE if name == precision), None))
    gpus = _gpus(request, problems)
    layout, batch = _layout(request, framework, gpus), _batch(request)
    found, warnings = check(model, layout, batch, gpus, framework)
    problems += found
    if framework.attention != "unfused":
        _try(problems, lambda: library_of(framework.attention, kernels.attention))
    if problems:
        raise InputError(problems)
    layout = replace(layout, dp=round(float(layout.dp)), sp=layout.sp and request.layout.tp > 1)
    warnings = (*warnings, *_assumptions(request, cluster, framework, precision, gpus))
    apart = softmax_warning(model, layout, batch, framework)
    warnings = warnings if apart is None else (*warnings, apart)
    run = TrainingRun(model, cluster, layout, batch, framework, profile, precision, warnings)
    run = replace(run, warnings=(*warnings, *misaligned(run)))
    return replace(run, framework=_settle_overlap(run, asked=request.layout.overlap_grad_reduce))


def _try(problems: list[Problem], load: Callable[[], T]) -> T | None:
    try:
        return load()
    except InputError as error:
        problems += error.problems
        return None


def _framework(
    request: RunRequest, cluster: Cluster | None, data: Sequence[Path], problems: list[Problem]
) -> Framework | None:
    name = request.framework or (cluster.default_framework if cluster is not None else None)
    return None if name is None else _try(problems, lambda: load_framework(name, data))


def _precision(
    request: RunRequest, cluster: Cluster, framework: Framework, profile: Profile, problems: list[Problem]
) -> str:
    asked = request.precision or framework.default_precision
    has_low = framework.fp8_recipe != "none"
    precision = framework.fp8_recipe if asked == "fp8" and has_low else asked
    types = set(profile.kernels.gemm) & set(cluster.device.peak_flops)
    low = [name for name in NARROW_TYPE if has_low and _runs(name, types, set(profile.kernels.gemm))]
    usable = [*sorted(types - {"fp8", "fp4"}), *low]
    if precision in (*NARROW_TYPE, "fp8") and not has_low:
        problems.append(Problem(f"{framework.name} has no {asked}", "precision", f"one of {', '.join(usable)}"))
    elif precision not in usable:
        what = f"no measured matrix-product rate for precision {asked!r} on {cluster.device.name}"
        problems.append(Problem(what, "precision", f"one of {', '.join(usable)}"))
    return precision


def _runs(low_precision: LowPrecision, types: set[str], priced: set[str]) -> bool:
    """Whether a device has what a recipe needs: scales of blocks of 32 and 16 are Blackwell's, which brought FP4."""
    blackwell = low_precision not in ("mxfp8", "nvfp4") or "fp4" in types
    return "fp8" in types and blackwell and NARROW_TYPE[low_precision] in priced


def _gpus(request: RunRequest, problems: list[Problem]) -> int:
    layout = request.layout
    replica = layout.tp * layout.pp * layout.cp
    if request.gpus is None and layout.dp is None:
        problems.append(Problem("neither gpus nor layout.dp is given", "gpus", "give one: the other follows"))
        return replica
    gpus = request.gpus if request.gpus is not None else replica * (layout.dp or 1)
    if layout.dp is not None and gpus != replica * layout.dp:
        what = f"gpus {gpus} is not tp x pp x cp x dp = {replica * layout.dp}"
        problems.append(Problem(what, "gpus", "leave layout.dp out: it is derived"))
    return gpus


def _assumptions(
    request: RunRequest, cluster: Cluster, framework: Framework, precision: str, gpus: int
) -> Iterator[str]:
    """What was taken by default, and what was said that changes nothing: in words, so that nobody has to guess."""
    if request.framework is None:
        yield (
            f"framework {framework.name} taken, the usual one on {cluster.name}: {framework.attention} attention, "
            f"recompute {framework.default_recompute}, ZeRO {framework.default_zero}; compare clusters under one"
        )
    if cluster.max_gpus is not None and gpus > cluster.max_gpus:
        yield f"{cluster.name} has {cluster.max_gpus:,} GPUs; {gpus:,} are priced as if it were built larger"
    if precision in _SIXTEEN_BIT and framework.recipe in _SIXTEEN_BIT and precision != framework.recipe:
        yield (
            f"matrix products in {precision}; gradients, optimizer and memory stay those of the {framework.recipe} "
            f"recipe of {framework.name}"
        )
    for name in request.set:
        if name.startswith(_UNPRICED):
            yield f"{name} changes no price in this version"


_SIXTEEN_BIT = ("fp16", "bf16")
_UNPRICED = (
    "cluster.pcie",
    "cluster.rail_optimized",
    "cluster.nvlink.latency",
)
"""Figures of a cluster that describe it (drawings, who talks to whom) and enter no price."""


def _layout(request: RunRequest, framework: Framework, gpus: int) -> Layout:
    asked = request.layout
    schedule = asked.schedule or ("interleaved" if asked.vpp > 1 else "1f1b")
    return Layout(
        tp=asked.tp,
        pp=asked.pp,
        dp=gpus / (asked.tp * asked.pp * asked.cp),
        cp=asked.cp,
        ep=asked.ep,
        vpp=asked.vpp,
        sp=framework.sequence_parallel if asked.sp is None else asked.sp,
        zero=framework.default_zero if asked.zero is None else asked.zero,
        schedule=schedule,
        recompute=asked.recompute or framework.default_recompute,
        order=asked.order or DEFAULT_ORDER,
    )


def _batch(request: RunRequest) -> Batch:
    return Batch(request.batch.global_, request.batch.micro, request.batch.seq)


def _settle_overlap(run: TrainingRun, *, asked: bool | None) -> Framework:
    """Decide whether gradients are reduced behind the backward pass, once and for all engines.

    ``when_it_fits`` needs room for the buckets, which are a second copy of the gradients (PyTorch's
    DistributedDataParallel): where the fullest stage has none, the framework reduces them at the end.
    """
    framework = run.framework
    if asked is not None:
        return replace(framework, overlap_grad_reduce="always" if asked else "never")
    if framework.overlap_grad_reduce != "when_it_fits":
        return framework
    overlapped = replace(framework, overlap_grad_reduce="always")
    layout = run.layout
    microbatches = round(float(run.batch.micro_batches(layout)))
    schedule = make_schedule(layout.schedule, int(layout.pp), microbatches, int(layout.vpp))
    capacity = run.cluster.device.memory_bytes
    fits = all(
        stage_allocations(run.model, layout, run.batch, overlapped, stage).total_at(held) <= capacity
        for stage, held in enumerate(peak_in_flight(schedule))
    )
    return overlapped if fits else replace(framework, overlap_grad_reduce="never")
