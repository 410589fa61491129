"""From a training run to a prediction, with the engine and the detail asked for."""

from __future__ import annotations

from typing import Literal

from shardsim.engine.closed import closed_form
from shardsim.engine.des import simulate
from shardsim.engine.listing import listing
from shardsim.engine.memory import memory_of
from shardsim.engine.waterfall import COMMUNICATION, mean_seconds, waterfall
from shardsim.program.build import build
from shardsim.program.coalesce import coalesce
from shardsim.program.provenance import cost_notes
from shardsim.units import format_size
from shardsim.values.program import Program
from shardsim.values.results import Execution, MemoryProfile, Prediction
from shardsim.values.training import TrainingRun
from shardsim.workload.flops import attention_flop, hardware_flop, model_flop

EngineName = Literal["closed", "listing", "des"]
Detail = Literal["operators", "stages"]


def predict(
    run: TrainingRun, *, engine: EngineName = "des", detail: Detail = "stages", timeline: bool = False
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

    Returns
    -------
    Prediction
    """
    program = build(run)
    execution = execute(coalesce(program) if detail == "stages" else program, engine, timeline=timeline)
    return _prediction(run, execution)


def execute(program: Program, engine: EngineName, *, timeline: bool = False) -> Execution:
    """Run a program on one of the engines."""
    if engine == "closed":
        return closed_form(program)
    if engine == "listing":
        return listing(program, timeline=timeline)
    return simulate(program, timeline=timeline)


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
    )


def _does_not_fit(memory: MemoryProfile) -> tuple[str, ...]:
    if memory.fits:
        return ()
    needed, capacity = format_size(memory.peak), format_size(memory.capacity)
    what = f"does not fit: stage {memory.worst_stage} needs {needed} of {capacity}"
    return (f"{what}; `shardsim memory` with the same arguments says what would make it fit",)
