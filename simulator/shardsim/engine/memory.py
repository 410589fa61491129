"""Memory of a run: what each stage holds at its fullest moment."""

from __future__ import annotations

from collections.abc import Sequence

from shardsim.errors import InputError, Problem
from shardsim.values.program import PipelineSchedule
from shardsim.values.results import MemoryProfile
from shardsim.values.training import TrainingRun
from shardsim.workload.allocations import StageAllocation, stage_allocations
from shardsim.workload.occupancy import fullest
from shardsim.workload.schedules import schedule_of


def memory_of(run: TrainingRun) -> MemoryProfile:
    """Count the memory of a run; its time need not be priced.

    Parameters
    ----------
    run : TrainingRun

    Returns
    -------
    MemoryProfile
    """
    schedule = schedule_of(run.layout, run.batch)
    allocations = stage_allocations(run.model, run.layout, run.batch, run.framework, schedule)
    return memory_profile(allocations, schedule, run.cluster.device.memory_bytes)


def memory_profile(
    allocations: Sequence[StageAllocation], schedule: PipelineSchedule, capacity: float
) -> MemoryProfile:
    """Find the fullest moment of every stage.

    A forward pass allocates the activations of its chunk, and the backward pass of the same micro-batch frees them
    when it ends; where it is split, the input-gradient pass frees what no weight gradient needs and the weight-gradient
    pass the rest. A pair does both at once. The optimizer step is a moment of its own.

    Parameters
    ----------
    allocations : sequence of StageAllocation
        One for each stage [bytes].
    schedule : PipelineSchedule
    capacity : float
        Device memory [bytes].

    Returns
    -------
    MemoryProfile

    Raises
    ------
    InputError
        The allocations are not those of the schedule's stages and chunks.
    """
    problems = [
        Problem(f"{len(allocation.chunks)} chunks allocated", f"stage {stage}", f"{schedule.chunks}")
        for stage, allocation in enumerate(allocations)
        if len(allocation.chunks) != schedule.chunks
    ]
    if len(allocations) != schedule.stages:
        problems.append(Problem(f"allocations of {len(allocations)} stages", right=f"{schedule.stages}"))
    if problems:
        raise InputError(problems)
    found = [fullest(allocation, order) for allocation, order in zip(allocations, schedule.orders, strict=True)]
    return MemoryProfile(
        stages=tuple(one.items for one in found),
        capacity=capacity,
        moments=tuple(one.item for one in found),
    )
