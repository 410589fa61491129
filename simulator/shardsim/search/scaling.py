"""Scaling studies: one run at several GPU counts, one axis taking the additional GPUs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from shardsim.engine.predict import EngineName
from shardsim.errors import InputError, Problem
from shardsim.schema.run import RunRequest
from shardsim.units import tflops
from shardsim.validate.evaluate import Evaluate, Priced, Refused, evaluate_run
from shardsim.values.scaling import Grow, MeasuredPoint, Mode, ScalingPoint, ScalingTable

__all__ = ["Grow", "Mode", "scaling_study"]


@dataclass(frozen=True, slots=True)
class _Plan:
    """One point before it is priced: its run, or why there is none."""

    gpus: int
    model: str
    run: dict[str, Any] | None
    reason: str = ""


def scaling_study(
    request: RunRequest,
    gpus: Sequence[int],
    grow: Grow = "dp",
    mode: Mode = "weak",
    models: Sequence[str] | None = None,
    measured: Sequence[MeasuredPoint] = (),
    executor: Executor | None = None,
    *,
    baseline_flops: float | None = None,
    engine: EngineName = "listing",
    data: Sequence[Path] = (),
    evaluate: Evaluate = evaluate_run,
) -> ScalingTable:
    """Predict one run at several GPU counts.

    Parameters
    ----------
    request : RunRequest
        The run whose work per GPU (weak) or work (strong) is kept; its layout gives the degrees of the axes that do
        not grow, data parallelism included. Its global batch belongs to its ``gpus``, or to the first of the list.
    gpus : sequence of int
        GPU counts (-), ascending.
    grow : {"tp", "pp", "dp", "cp", "ep"}
        Axis that takes the additional GPUs. Expert parallelism lies within the other axes: data parallelism takes them,
        and as many ranks hold the same experts as in the request, one where it does not say.
    mode : {"weak", "strong"}
        Weak: the global batch grows with the GPUs, unless ``models`` grow in its place. Strong: nothing grows.
    models : sequence of str, optional
        One model for each GPU count (Megatron-LM 2019's weak scaling: 1.2B, 2.5B, 4.2B, 8.3B on 1, 2, 4, 8).
    measured : sequence of MeasuredPoint
        Points to compare with.
    executor : concurrent.futures.Executor, optional
        Where points are priced; the result does not depend on it.
    baseline_flops : float, optional
        FLOP/s per GPU at which efficiency is 1 [FLOP/s]; by default that of the first point that can be predicted.
    engine : {"listing", "closed", "des"}
    data : sequence of Path
        A user's own data folders.
    evaluate : callable
        Prices one run.

    Returns
    -------
    ScalingTable
        One point for each GPU count, those without a valid layout with the reason.

    Raises
    ------
    InputError
        The study itself makes no sense: every reason.
    """
    _check(request, gpus, grow, mode, models, baseline_flops)
    before = request.gpus or gpus[0]
    chosen = [None] * len(gpus) if models is None else models
    plans = [_plan(request, n, before, grow, mode, model) for n, model in zip(gpus, chosen, strict=True)]
    outcomes = _outcomes(plans, partial(evaluate, engine=engine, data=tuple(data)), executor)
    first = next((outcome for outcome in outcomes if isinstance(outcome, Priced)), None)
    reference = baseline_flops or (first.flops_per_gpu if first else None)
    points = tuple(_point(plan, outcome, reference) for plan, outcome in zip(plans, outcomes, strict=True))
    compared = _with_efficiency(measured, plans, outcomes)
    warnings = dict.fromkeys(w for outcome in outcomes if isinstance(outcome, Priced) for w in outcome.warnings)
    if measured and not compared:
        warnings["none of the measured points is at a GPU count of this study"] = None
    return ScalingTable(
        grow=grow,
        mode=mode,
        cluster=first.cluster if first else "",
        reference_flops=reference,
        definition=_definition(points, reference, given=baseline_flops is not None),
        points=points,
        measured=compared,
        warnings=tuple(warnings),
    )


def request_mapping(request: RunRequest) -> dict[str, Any]:
    """Write a request as the mapping that a run file holds, without what was left out.

    Parameters
    ----------
    request : RunRequest

    Returns
    -------
    dict
    """
    return request.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_unset=True)


def _fixed_degrees(request: RunRequest, grow: Grow) -> dict[str, int]:
    """Degrees of the axes that do not grow; data parallelism is given, or what the request's GPUs leave, or 1."""
    layout = request.layout
    degrees = {"tp": layout.tp, "pp": layout.pp, "cp": layout.cp}
    degrees["dp"] = layout.dp or max((request.gpus or 1) // math.prod(degrees.values()), 1)
    del degrees["dp" if grow == "ep" else grow]
    return degrees


def _sharing_experts(request: RunRequest) -> int:
    """Ranks of a pipeline stage for each place in its expert-parallel groups: parts of experts, and copies."""
    layout, etp = request.layout, request.layout.etp or 1
    if layout.ep == 1 or request.gpus is None:
        return etp
    return etp * max(request.gpus // (layout.pp * layout.ep * etp), 1)


def _check(
    request: RunRequest,
    gpus: Sequence[int],
    grow: str,
    mode: str,
    models: Sequence[str] | None,
    baseline_flops: float | None,
) -> None:
    problems: list[Problem] = []
    if not gpus or any(n < 1 for n in gpus) or list(gpus) != sorted(set(gpus)):
        text = ",".join(str(n) for n in gpus)
        problems.append(Problem(f"{text!r} is not a list of GPU counts", "gpus", "ascending and positive: 1,2,4,8"))
    if grow not in ("tp", "pp", "dp", "cp", "ep"):
        problems.append(Problem(f"{grow!r} is not an axis that can grow", "grow", "tp, pp, dp, cp or ep"))
    if grow == "ep" and request.layout.etp is None and request.layout.tp > 1:
        what = f"experts may be split over {request.layout.tp} tensor-parallel ranks or not"
        problems.append(Problem(what, "layout.etp", f"give it: 1, or {request.layout.tp}"))
    if mode not in ("weak", "strong"):
        problems.append(Problem(f"{mode!r} is not a kind of scaling", "mode", "weak or strong"))
    if models is not None:
        if len(models) != len(gpus):
            problems.append(
                Problem(f"{len(models)} models for {len(gpus)} GPU counts", "model", "one model, or one for each count")
            )
        if mode == "strong":
            problems.append(Problem("several models do not scale strongly", "model", "one model, or weak scaling"))
        if grow in ("dp", "ep"):
            right = "one model, or grow tp, pp or cp"
            problems.append(Problem(f"several models do not go with a growing {grow}", "model", right))
    taken = request.layout.tp * request.layout.pp * request.layout.cp
    if grow not in ("dp", "ep") and request.layout.dp is None and request.gpus is not None and request.gpus % taken:
        problems.append(
            Problem(
                f"{request.gpus} GPUs are not a multiple of tp x pp x cp = {taken}",
                "gpus",
                f"give dp, or a multiple of {taken}",
            )
        )
    if baseline_flops is not None and not baseline_flops > 0:
        problems.append(Problem(f"a baseline of {baseline_flops:g} FLOP/s", "baseline", "a positive rate"))
    if problems:
        raise InputError(problems)


def _plan(request: RunRequest, gpus: int, before: int, grow: Grow, mode: Mode, model: str | None) -> _Plan:
    """Lay one point out; ``before`` is the GPU count to which the request's global batch belongs."""
    run = request_mapping(request)
    if model is not None:
        run["model"] = model
    name = _model_name(run["model"])
    fixed = _fixed_degrees(request, grow)
    others = math.prod(fixed.values())
    if gpus % others:
        product = " x ".join(f"{axis} {degree}" for axis, degree in fixed.items() if degree > 1)
        return _Plan(gpus, name, None, f"{gpus} GPUs are not a multiple of {product} = {others}")
    run["gpus"] = gpus
    layout = run.setdefault("layout", {})
    layout.pop("dp", None)
    if grow == "ep":
        layout["ep"] = gpus // (request.layout.pp * _sharing_experts(request))
    elif grow != "dp":
        layout[grow] = gpus // others
    if mode == "weak" and model is None:
        sequences = request.batch.global_ * gpus
        if sequences % before:
            needed = sequences / before
            return _Plan(gpus, name, None, f"equal work per GPU would need a global batch of {needed:g} sequences")
        run["batch"]["global"] = sequences // before
    return _Plan(gpus, name, run)


def _model_name(model: object) -> str:
    return str(model.get("name", "inline model")) if isinstance(model, Mapping) else str(model)


def _outcomes(
    plans: Sequence[_Plan], evaluate: partial[Priced | Refused], executor: Executor | None
) -> list[Priced | Refused]:
    """Price every plan that has a run, in order, here or elsewhere."""
    runs = [plan.run for plan in plans if plan.run is not None]
    priced = iter(map(evaluate, runs) if executor is None else executor.map(evaluate, runs))
    return [Refused(plan.reason) if plan.run is None else next(priced) for plan in plans]


def _point(plan: _Plan, outcome: Priced | Refused, reference: float | None) -> ScalingPoint:
    if isinstance(outcome, Refused):
        return ScalingPoint(plan.gpus, plan.model, reason=outcome.reason)
    efficiency = None if reference is None else outcome.flops_per_gpu / reference
    return ScalingPoint(
        gpus=plan.gpus,
        model=outcome.model,
        tp=outcome.tp,
        pp=outcome.pp,
        dp=outcome.dp,
        cp=outcome.cp,
        ep=outcome.ep,
        vpp=outcome.vpp,
        global_batch=outcome.global_batch,
        micro_batch=outcome.micro_batch,
        iteration_s=outcome.iteration_s,
        flops_per_gpu=outcome.flops_per_gpu,
        tokens_per_s=outcome.tokens_per_s,
        mfu=outcome.mfu,
        efficiency=efficiency,
        ideal_iteration_s=None if efficiency is None else outcome.iteration_s * efficiency,
        fits=outcome.fits,
    )


def _definition(points: Sequence[ScalingPoint], reference: float | None, *, given: bool) -> str:
    if reference is None:
        return "no point could be predicted"
    rate = f"{tflops(reference):.4g} TFLOP/s"
    if given:
        return f"model FLOP/s per GPU relative to the given baseline of {rate}"
    first = next(point.gpus for point in points if point.efficiency is not None)
    return f"model FLOP/s per GPU relative to {first} GPU{'s' if first > 1 else ''} ({rate})"


def _with_efficiency(
    measured: Sequence[MeasuredPoint], plans: Sequence[_Plan], outcomes: Sequence[Priced | Refused]
) -> tuple[MeasuredPoint, ...]:
    """Keep the points at the study's GPU counts; where a source gives times or rates only, derive the efficiency.

    Times become rates with the FLOP of our own counting, and the first measured point is the reference, as the
    source's first point would be.
    """
    order = [plan.gpus for plan in plans]
    kept = sorted((point for point in measured if point.gpus in order), key=lambda point: point.gpus)
    rates = {point.gpus: _rate(point, outcomes[order.index(point.gpus)]) for point in kept}
    reference = next((rate for rate in rates.values() if rate is not None), None)
    result = []
    for point in kept:
        rate = rates[point.gpus]
        if point.efficiency is None and rate is not None and reference is not None:
            result.append(replace(point, efficiency=rate / reference))
        else:
            result.append(point)
    return tuple(result)


def _rate(point: MeasuredPoint, outcome: Priced | Refused) -> float | None:
    if point.flops_per_gpu is not None:
        return point.flops_per_gpu
    if point.iteration_s is None or isinstance(outcome, Refused):
        return None
    return outcome.model_flop / (point.iteration_s * point.gpus)
