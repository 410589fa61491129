"""From what was asked for to a complete, checked training run; every problem at once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from shardsim.cost.attention import library_of
from shardsim.cost.exchange import exchange_constants
from shardsim.errors import InputError, Problem
from shardsim.program.misaligned import misaligned
from shardsim.program.provenance import fabric_here
from shardsim.program.routed import busiest, expert_choices, loads_of, remarks
from shardsim.schema.bands import load_bands
from shardsim.schema.catalog import is_path
from shardsim.schema.changes import unknown_changes
from shardsim.schema.conditions import conditions_of
from shardsim.schema.framework import load_framework
from shardsim.schema.hardware import load_cluster, load_fabric_profile
from shardsim.schema.hosts import load_host_profile
from shardsim.schema.iterations import checkpoint_of, loading_of
from shardsim.schema.kernels import load_kernel_profile
from shardsim.schema.model import load_model
from shardsim.schema.rules import load_rules
from shardsim.schema.run import LayoutRequest, RunRequest
from shardsim.schema.schedules import load_schedule
from shardsim.schema.stacks import load_stack_profile, with_launches
from shardsim.topology.placement import GroupAxis
from shardsim.topology.shape import group_shape
from shardsim.values.hardware import Cluster, Profile
from shardsim.values.num import Num
from shardsim.values.program import PipelineSchedule
from shardsim.values.training import (
    DEFAULT_ORDER,
    NARROW_TYPE,
    TWO_LEVEL,
    Batch,
    Framework,
    Layout,
    LowPrecision,
    Model,
    Recompute,
    TrainingRun,
)
from shardsim.workload.activations import layer_activations
from shardsim.workload.allocations import stage_allocations
from shardsim.workload.attention import softmax_warning
from shardsim.workload.kinds import is_expert_layer
from shardsim.workload.occupancy import peak_bytes
from shardsim.workload.pipeline_split import SplitRequest, prediction_stage, spread, stage_split
from shardsim.workload.schedules import RULES, schedule_of
from shardsim.workload.validity import check

T = TypeVar("T")


def resolve(request: RunRequest, data: Sequence[Path] = (), *, priced: bool = True) -> TrainingRun:
    """Look up what a request names, fill in what follows, and check it all together.

    Parameters
    ----------
    request : RunRequest
    data : sequence of Path
        A user's own data folders, searched first.
    priced : bool
        Whether the run is to be priced in time. Without, what is valid but has no price in this version passes, which
        is enough to count memory.

    Returns
    -------
    TrainingRun

    Raises
    ------
    InputError
        Every problem found, together.
    """
    problems = unknown_changes(request.set)
    model = _model(request, data, problems)
    cluster = _try(problems, lambda: load_cluster(request.cluster, data, changes=request.set))
    framework = _framework(request, cluster, data, problems)
    if cluster is None or model is None or framework is None:
        raise InputError(problems)
    kernels = _try(problems, lambda: load_kernel_profile(cluster.device.compute_profile, data, changes=request.set))
    fabric = _try(problems, lambda: load_fabric_profile(cluster.fabric_profile, data, changes=request.set))
    launching = dict(request.set)
    named = str(launching.pop("host", framework.host_profile))
    host = _try(problems, lambda: load_host_profile(named, data, changes=launching))
    running = dict(request.set)
    marks = (cluster.device.compute_profile, "dense" if model.moe is None else "experts")
    of = str(running.pop("stack", framework.stack_profile))
    stack = _try(problems, lambda: load_stack_profile(of, data, changes=running, marks=marks))
    if kernels is None or fabric is None or host is None or stack is None:
        raise InputError(problems)
    profile = Profile(kernels, fabric_here(cluster, fabric), with_launches(host, stack, request.set), stack)
    precision = _precision(request, cluster, framework, profile, problems)
    framework = replace(framework, low_precision=next((name for name in NARROW_TYPE if name == precision), None))
    gpus = _gpus(request, problems)
    layout, batch = _layout(request, model, framework, gpus, problems), _batch(request)
    loads = _try(problems, lambda: loads_of(request.routing, model))
    layout = replace(layout, imbalance=busiest(loads, layout))
    rules = _try(problems, lambda: load_rules(framework.rules, data))
    found, warnings = check(model, layout, batch, gpus, framework, rules=rules, precision=precision, priced=priced)
    problems += found
    if priced and model.moe is not None and layout.ep > 1 and layout.dispatcher in TWO_LEVEL:
        _try(problems, lambda: exchange_constants(layout.dispatcher, profile.fabric))
    if framework.attention != "unfused":
        _try(problems, lambda: library_of(framework.attention, kernels.attention))
    if problems:
        raise InputError(problems)
    layout = replace(layout, dp=round(float(layout.dp)), sp=layout.sp and request.layout.tp > 1)
    warnings = (*warnings, *_assumptions(request, cluster, framework, precision, gpus))
    warnings = (*warnings, *remarks(request, model, layout, loads, profile.fabric))
    apart = softmax_warning(model, layout, batch, framework)
    warnings = warnings if apart is None else (*warnings, apart)
    run = TrainingRun(model, cluster, layout, batch, framework, profile, precision, warnings)
    run = replace(
        run,
        conditions=conditions_of(request.conditions),
        loading=loading_of(request.loading),
        checkpoint=checkpoint_of(request.checkpoint),
        validated=load_bands(data),
    )
    run = replace(run, warnings=(*warnings, *_recomputed_in_vain(run), *misaligned(run), *_straddling(run)))
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
    zero = framework.default_zero if request.layout.zero is None else request.layout.zero
    if request.layout.reshard is not None and zero < 3:
        yield f"reshard changes nothing under ZeRO {zero}: parameters are whole on every rank"
    for name in request.set:
        if name.startswith(_UNPRICED) and not (name.startswith("cluster.pcie") and request.checkpoint is not None):
            yield f"{name} changes no price in this version"


def _recomputed_in_vain(run: TrainingRun) -> Iterator[str]:
    """Modules of selective recompute without which a layer keeps no byte more."""
    kinds = {is_expert_layer(run.model, index): None for index in range(run.model.layers)}

    def kept(modules: tuple[str, ...]) -> list[Num]:
        layout = replace(run.layout, recompute_modules=modules)
        return [layer_activations(run.model, layout, run.batch, run.framework, moe=moe).kept for moe in kinds]

    asked = run.layout.recompute_modules if run.layout.recompute == "selective" else ()
    idle = [module for module in asked if kept((module,)) == kept(())]
    if idle:
        yield f"recompute of {' and '.join(idle)} saves nothing here: a layer keeps as many bytes without it"


def _straddling(run: TrainingRun) -> Iterator[str]:
    """Groups that would fit into an NVLink domain, and lie over several because the domain is no multiple of them."""
    cluster, gpus = run.cluster, int(run.layout.gpus)
    axes: tuple[GroupAxis, ...] = ("tp", "ep")
    for axis in axes:
        shape = group_shape(cluster, run.layout, axis)
        ranks = int(shape.ranks)
        if shape.domains <= 1 or ranks > cluster.gpus_per_domain:
            continue
        sizes = range(cluster.gpus_per_node, cluster.gpus_per_domain, cluster.gpus_per_node)
        fit = max((size for size in sizes if size % ranks == 0 and gpus % size == 0), default=0)
        if fit:
            yield (
                f"some {axis.upper()} groups of {ranks} lie over two NVLink domains of {cluster.gpus_per_domain} GPUs: "
                f"--set cluster.gpus_per_domain={fit} deals the job out in parts of {fit}, as schedulers do on request"
            )


_SIXTEEN_BIT = ("fp16", "bf16")
_UNPRICED = (
    "cluster.pcie",
    "cluster.rail_optimized",
    "cluster.nvlink.latency",
)
"""Figures of a cluster that describe it (drawings, who talks to whom) and enter no price."""


def _layout(request: RunRequest, model: Model, framework: Framework, gpus: int, problems: list[Problem]) -> Layout:
    asked = request.layout
    custom = _custom_schedule(asked, problems)
    named = None if asked.schedule is None or _is_file(asked.schedule) else asked.schedule
    request_of_stages = _split_request(asked, model, custom, named)
    vpp, split, found = stage_split(request_of_stages)
    problems += found
    if found:  # any split that adds up, so that nobody asks for an even one besides
        split = spread(model.layers, max(1, asked.pp * vpp // request_of_stages.copies))
    recompute = asked.recompute or framework.default_recompute
    problems += _recompute_problems(asked, recompute)
    etp, dispatcher = expert_choices(asked, model, framework)
    return Layout(
        tp=asked.tp,
        pp=asked.pp,
        dp=gpus / (asked.tp * asked.pp * asked.cp),
        cp=asked.cp,
        ep=asked.ep,
        vpp=vpp,
        sp=framework.sequence_parallel if asked.sp is None else asked.sp,
        zero=framework.default_zero if asked.zero is None else asked.zero,
        schedule="custom" if custom is not None else named or ("interleaved" if vpp > 1 else "1f1b"),
        recompute=recompute,
        order=asked.order or DEFAULT_ORDER,
        group=asked.group or 0,
        split=split,
        custom=custom,
        recompute_modules=asked.recompute_modules or _usual_modules(model, framework),
        recompute_method=asked.recompute_method or "uniform",
        recompute_layers=asked.recompute_layers or 0,
        shard=asked.shard or 0,
        reshard=framework.reshards_in_pipeline or asked.pp == 1 if asked.reshard is None else asked.reshard,
        etp=etp,
        cp_comm=asked.cp_comm or framework.cp_comm,
        cp_inner=asked.cp_inner or 0,
        cp_zigzag=asked.cp_zigzag,
        dispatcher=dispatcher,
        capacity_factor=asked.capacity_factor or 0.0,
        pads_capacity=asked.pads_capacity,
        overlap_experts=asked.overlap_experts,
        mtp_stage=prediction_stage(asked.pp_layout) if model.mtp else None,
    )


def _model(request: RunRequest, data: Sequence[Path], problems: list[Problem]) -> Model | None:
    model = _try(problems, lambda: load_model(request.model, data))
    return model if model is None or request.mtp is None else replace(model, mtp=request.mtp)


def _usual_modules(model: Model, framework: Framework) -> tuple[str, ...]:
    """What a framework repeats under selective recompute, of that which the model has."""
    absent = {"mla_up_proj"} if model.mla is None else set()
    absent |= {"moe_act", "moe"} if model.moe is None else set()
    return tuple(name for name in framework.recompute_modules if name not in absent)


def _recompute_problems(asked: LayoutRequest, recompute: Recompute) -> Iterator[Problem]:
    """How something is recomputed that is not recomputed."""
    if asked.recompute_method is not None and recompute != "full":
        what = f"recompute_method says how full recompute is done, and recompute is {recompute}"
        yield Problem(what, "layout.recompute_method", "leave it out, or recompute full")
    if asked.recompute_modules is not None and recompute != "selective":
        what = f"recompute_modules says what selective recompute repeats, and recompute is {recompute}"
        yield Problem(what, "layout.recompute_modules", "leave it out, or recompute selective")


def _is_file(schedule: str) -> bool:
    return is_path(schedule) or schedule in (os.curdir, os.pardir)


def _custom_schedule(asked: LayoutRequest, problems: list[Problem]) -> PipelineSchedule | None:
    """Read a user's own schedule, and hold it against the degrees that were asked for."""
    if asked.schedule is None or not _is_file(asked.schedule):
        return None
    path = Path(asked.schedule)
    custom = _try(problems, lambda: load_schedule(path))
    if custom is not None and custom.stages != asked.pp:
        what = f"{path.name} is a schedule of {custom.stages} stages, pp is {asked.pp}"
        problems.append(Problem(what, "layout.pp", str(custom.stages)))
    return custom


def _split_request(
    asked: LayoutRequest, model: Model, custom: PipelineSchedule | None, named: str | None
) -> SplitRequest:
    rule = None if named is None else RULES.get(named)
    chunks = custom.chunks if custom is not None else 0 if rule is None else rule.chunks
    copies = custom.copies if custom is not None else 1 if rule is None else rule.copies
    folded = chunks == 2 * copies if custom is None else any(chain[0][0] == chain[-1][0] for chain in custom.chains)
    return SplitRequest(
        layers=model.layers,
        pp=asked.pp,
        vpp=asked.vpp,
        # A schedule that holds one chunk a stage is told so by its own rule, which knows the right one.
        schedule_chunks=chunks if chunks > 1 else 0,
        schedule=named or "the schedule",
        copies=copies,
        folded=folded,
        stage_layers=asked.stage_layers,
        first_layers=asked.first_layers,
        last_layers=asked.last_layers,
        embedding_as_layer=asked.embedding_as_layer,
        loss_as_layer=asked.loss_as_layer,
        pp_layout=asked.pp_layout,
        virtual_stage_layers=asked.virtual_stage_layers,
        mtp=model.mtp,
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
    schedule = schedule_of(run.layout, run.batch)
    allocations = stage_allocations(run.model, run.layout, run.batch, overlapped, schedule)
    fits = peak_bytes(allocations, schedule) <= run.cluster.device.memory_bytes
    return overlapped if fits else replace(framework, overlap_grad_reduce="never")
