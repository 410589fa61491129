"""From a training run to a prediction, with the engine and the detail asked for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from shardsim.engine.accounts import COMMUNICATION
from shardsim.engine.band import error_band
from shardsim.engine.closed import closed_form
from shardsim.engine.des import simulate
from shardsim.engine.listing import listing
from shardsim.engine.memory import memory_of
from shardsim.engine.waterfall import mean_seconds, waterfall
from shardsim.errors import InputError, Problem
from shardsim.program.build import build
from shardsim.program.coalesce import coalesce
from shardsim.program.conditions import stutters
from shardsim.program.folding import fold
from shardsim.program.provenance import cost_notes
from shardsim.units import format_size
from shardsim.values.conditions import NORMAL
from shardsim.values.program import Program
from shardsim.values.results import Execution, MemoryProfile, Prediction
from shardsim.values.training import TrainingRun
from shardsim.workload.flops import attention_flop, hardware_flop, model_flop

EngineName = Literal["closed", "listing", "des"]
Detail = Literal["operators", "stages"]


@dataclass(frozen=True, slots=True)
class EventOptions:
    """What the event engine is asked besides.

    Parameters
    ----------
    unfold : bool
        Whether every rank is simulated for itself.
    contend : bool
        Whether transfers share links.
    max_events : int or None
        Events after which to give up (-).
    max_seconds : float or None
        Simulated time after which to give up [s].
    """

    unfold: bool = False
    contend: bool = True
    max_events: int | None = None
    max_seconds: float | None = None


DEFAULT = EventOptions()


def predict(
    run: TrainingRun,
    *,
    engine: EngineName = "des",
    detail: Detail = "stages",
    timeline: bool = False,
    options: EventOptions = DEFAULT,
    iterations: int = 1,
) -> Prediction:
    """Predict one training run.

    Parameters
    ----------
    run : TrainingRun
        From :func:`shardsim.program.resolve.resolve`.
    engine : {"des", "listing", "closed"}
        Event simulation, longest path, or closed form. They agree where nothing is shared.
    detail : {"stages", "operators"}
        Whether runs of operators that touch nothing shared are one task.
    timeline : bool
        Whether to record every task (not with the closed form).
    options : EventOptions
        For the event engine only.
    iterations : int
        How many follow each other (-); times are then their mean.

    Returns
    -------
    Prediction

    Raises
    ------
    InputError
        Conditions that the machine cannot have, or that only the event engine knows.
    EventLimitError
        The event engine reached a bound.
    """
    if engine == "des":
        found = _prediction(
            run, simulate_run(run, detail=detail, timeline=timeline, options=options, iterations=iterations)
        )
        if run.conditions == NORMAL:
            return found
        normal, plain = replace(run, conditions=NORMAL), EventOptions(contend=options.contend)
        usual = simulate_run(normal, options=plain, iterations=iterations)
        return replace(found, usual_s=float(usual.iteration_s))
    if run.conditions != NORMAL:
        what = f"the engine {engine} prices a machine on which all ranks are alike, and conditions are set"
        raise InputError(Problem(what, "--engine", "use --engine des"))
    program = build(run)
    program = coalesce(program) if detail == "stages" else program
    return _prediction(run, execute(program, engine, timeline=timeline, iterations=iterations))


def simulate_run(
    run: TrainingRun,
    *,
    detail: Detail = "stages",
    timeline: bool = False,
    options: EventOptions = DEFAULT,
    iterations: int = 1,
) -> Execution:
    """Simulate a run event by event, with what its transfers share and the conditions of its machine.

    Parameters
    ----------
    run, detail, timeline, options, iterations
        See :func:`predict`.

    Returns
    -------
    Execution
    """
    folded = fold(run, unfold=options.unfold, contend=options.contend)
    first, *others = folded.programs
    if detail == "stages":
        first, *others = (coalesce(program, folded.folding.sharing) for program in folded.programs)
    return simulate(
        first,
        timeline=timeline,
        max_events=options.max_events,
        max_seconds=options.max_seconds,
        folding=folded.folding,
        variants=others,
        whole_passes=detail == "stages",
        jitter=stutters(run, folded, iterations),
        iterations=iterations,
    )


def execute(program: Program, engine: EngineName, *, timeline: bool = False, iterations: int = 1) -> Execution:
    """Run a program on one of the engines."""
    if engine == "closed":
        return closed_form(program, iterations=iterations)
    if engine == "listing":
        return listing(program, timeline=timeline, iterations=iterations)
    return simulate(program, timeline=timeline, iterations=iterations)


def _prediction(run: TrainingRun, execution: Execution) -> Prediction:
    iteration_s = float(execution.iteration_s)
    gpus = int(run.layout.gpus)
    peak = run.cluster.device.peak_flops[run.peak_type]
    counted = float(model_flop(run.model, run.batch))
    executed = float(hardware_flop(run.model, run.batch, run.layout))
    attention = float(attention_flop(run.model, run.batch))
    seconds = mean_seconds(execution.stages)
    tokens_per_s = float(run.batch.tokens) / iteration_s
    achieved = counted / iteration_s / gpus
    memory = memory_of(run)
    return Prediction(
        run=run,
        execution=execution,
        memory=memory,
        iteration_s=iteration_s,
        tokens_per_s=tokens_per_s,
        tokens_per_s_per_gpu=tokens_per_s / gpus,
        model_flop=counted,
        hardware_flop=executed,
        flops_per_gpu=achieved,
        peak_flops=peak,
        mfu=achieved / peak,
        hfu=executed / iteration_s / gpus / peak,
        bubble_fraction=seconds.get("bubble", 0.0) / iteration_s,
        exposed_s={axis: seconds.get(axis, 0.0) for axis in COMMUNICATION},
        waterfall=waterfall(
            seconds,
            gemm_flop=(counted - attention) / gpus,
            attention_flop=attention / gpus,
            peak=peak,
            iteration_s=iteration_s,
        ),
        costs=cost_notes(run),
        warnings=(*run.warnings, *_does_not_fit(memory)),
        band=error_band(run, iteration_s),
    )


def _does_not_fit(memory: MemoryProfile) -> tuple[str, ...]:
    if memory.fits:
        return ()
    needed, capacity = format_size(memory.peak), format_size(memory.capacity)
    what = f"does not fit: stage {memory.worst_stage} needs {needed} of {capacity}"
    return (f"{what}; `shardsim memory` with the same arguments says what would make it fit",)
