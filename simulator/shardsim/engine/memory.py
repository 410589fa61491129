"""Memory over the order: what each stage holds, pass by pass, and its fullest moment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shardsim.errors import InputError, Problem
from shardsim.values.program import PipelineSchedule
from shardsim.values.results import MemoryProfile
from shardsim.workload.allocations import StageAllocation


def memory_profile(
    allocations: Sequence[StageAllocation], schedule: PipelineSchedule, capacity: float
) -> MemoryProfile:
    """Find the fullest moment of every stage.

    A forward pass allocates the activations of its chunk and the backward pass of the same micro-batch frees them when
    it ends; the order of a stage alone decides what it holds, not how long passes take. The loss needs its logits
    during the forward pass of the last chunk, and a backward pass its recompute working set (counted with the
    activations).

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
        Problem(f"{len(allocation.activation_per_chunk)} chunks allocated", f"stage {stage}", f"{schedule.chunks}")
        for stage, allocation in enumerate(allocations)
        if len(allocation.activation_per_chunk) != schedule.chunks
    ]
    if len(allocations) != schedule.stages:
        problems.append(Problem(f"allocations of {len(allocations)} stages", right=f"{schedule.stages}"))
    if problems:
        raise InputError(problems)
    return MemoryProfile(
        stages=tuple(_fullest(stage, allocation, schedule) for stage, allocation in enumerate(allocations)),
        capacity=capacity,
    )


def _fullest(stage: int, allocation: StageAllocation, schedule: PipelineSchedule) -> dict[str, float]:
    # The first of equal moments, so that the result does not depend on how many follow.
    activations, logits = max(_moments(stage, allocation, schedule), key=sum, default=(0.0, 0.0))
    tensors = {
        "weights": float(allocation.weights),
        "gradients": float(allocation.gradients),
        "optimizer": float(allocation.optimizer),
        "activations": activations,
        "logits": logits,
        "buffers": float(allocation.buffers),
    }
    unused = sum(tensors.values()) * (1.0 / allocation.allocated_share - 1.0)
    return {**tensors, "fragmentation": unused, "context": float(allocation.context)}


def _moments(stage: int, allocation: StageAllocation, schedule: PipelineSchedule) -> Iterator[tuple[float, float]]:
    """Activations and logits held during each pass [bytes]."""
    size = [float(value) for value in allocation.activation_per_chunk]
    logits, working_set = float(allocation.logits), float(allocation.recompute_working_set)
    # Counts times sizes rather than a running sum, whose rounding would not cancel when the last one is freed.
    in_flight = [0] * len(size)
    for item in schedule.orders[stage]:
        if item.kind == "F":
            in_flight[item.chunk] += 1
        held = sum(count * each for count, each in zip(in_flight, size, strict=True))
        if item.kind == "F":
            yield held, logits if schedule.virtual_stages[-1] == (stage, item.chunk) else 0.0
        elif item.kind == "B":
            yield held + working_set, 0.0
            in_flight[item.chunk] -= 1
