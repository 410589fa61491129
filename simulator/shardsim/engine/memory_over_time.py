"""Memory over time: what each stage holds while a simulated iteration runs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from shardsim.engine.predict import EngineName, execute
from shardsim.engine.timeline import identity
from shardsim.errors import InputError, Problem
from shardsim.program.build import build
from shardsim.program.coalesce import coalesce
from shardsim.values.program import Item, PipelineSchedule
from shardsim.values.results import MemoryHistory, Timeline
from shardsim.values.training import TrainingRun
from shardsim.workload.allocations import StageAllocation, stage_allocations
from shardsim.workload.occupancy import Held, moments_of, tensors_between, tensors_during, tensors_stepping
from shardsim.workload.schedules import schedule_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

_BESIDE = ("dp", "pp")
"""Streams whose work may outlast the pass that queued it."""


def memory_over_time(run: TrainingRun, engine: EngineName = "listing") -> tuple[MemoryHistory, ...]:
    """Simulate a run and follow what each stage holds.

    Parameters
    ----------
    run : TrainingRun
    engine : {"listing", "des"}

    Returns
    -------
    tuple of MemoryHistory
        One for each stage.

    Raises
    ------
    InputError
        The closed form has no timeline.
    """
    if engine == "closed":
        raise InputError(Problem("the closed form has no timeline", "engine", "use 'listing' or 'des'"))
    program = build(run)
    timeline = execute(coalesce(program), engine, timeline=True).timeline
    if timeline is None:
        raise InputError(Problem(f"engine {engine} has no timeline", "engine", "use 'listing' or 'des'"))
    return histories(_allocations(run, program.schedule), program.schedule, timeline)


def histories(
    allocations: Sequence[StageAllocation], schedule: PipelineSchedule, timeline: Timeline
) -> tuple[MemoryHistory, ...]:
    """Lay what passes allocate and free over the times at which they ran.

    A pass takes what it needs when its first task starts, and gives back what nobody needs any more when its last one
    ends. What every stage holds before and after the iteration is the same.

    Parameters
    ----------
    allocations : sequence of StageAllocation
        One for each stage [bytes].
    schedule : PipelineSchedule
    timeline : Timeline
        Of that schedule.

    Returns
    -------
    tuple of MemoryHistory
        One for each stage.
    """
    rows = [np.flatnonzero(timeline.stage == stage) for stage in range(len(allocations))]
    return _histories(allocations, schedule, timeline, list(enumerate(rows)))


def histories_of_lanes(run: TrainingRun, timeline: Timeline) -> tuple[MemoryHistory, ...]:
    """Follow what a rank of each lane holds, at the times of a timeline that is already there.

    Parameters
    ----------
    run : TrainingRun
    timeline : Timeline
        Of that run, from its first task to its last.

    Returns
    -------
    tuple of MemoryHistory
        One for each lane, or for each stage where every stage is one.
    """
    schedule = schedule_of(run.layout, run.batch)
    allocations = _allocations(run, schedule)
    if timeline.lane is None:
        return histories(allocations, schedule, timeline)
    by_lane = np.argsort(timeline.lane, kind="stable")
    rows = np.split(by_lane, np.searchsorted(timeline.lane[by_lane], range(1, len(timeline.lanes))))
    stages = [lane.stage for lane in timeline.lanes]
    return _histories(allocations, schedule, timeline, list(zip(stages, rows, strict=True)))


def _histories(
    allocations: Sequence[StageAllocation],
    schedule: PipelineSchedule,
    timeline: Timeline,
    parts: Sequence[tuple[int, NDArray[np.int64]]],
) -> tuple[MemoryHistory, ...]:
    """One for each stage and the rows of it that ranks alike ran."""
    end = float(timeline.finish.max())
    return tuple(
        _history(stage, allocations[stage], schedule, _spans(timeline, rows, schedule.orders[stage]), end)
        for stage, rows in parts
    )


def _history(
    stage: int,
    allocation: StageAllocation,
    schedule: PipelineSchedule,
    spans: Sequence[tuple[float, float]],
    end: float,
) -> MemoryHistory:
    nothing = (0,) * len(allocation.chunks)
    static = tensors_between(allocation, Held(nothing, nothing))
    moments = moments_of(schedule.orders[stage], len(allocation.chunks))
    during = [tensors_during(allocation, one) for one in moments] + [tensors_stepping(allocation)]
    after = [tensors_between(allocation, one.after) for one in moments] + [static]
    seconds, held = [0.0], [static]
    for (start, finish), busy, idle in zip(spans, during, after, strict=True):
        for moment, items in ((start, busy), (finish, idle)):
            if seconds[-1] == moment:
                held[-1] = items  # nothing was held for no time
            else:
                seconds.append(moment)
                held.append(items)
    if seconds[-1] < end:
        seconds.append(end)
        held.append(static)
    columns = {name: np.array([items[name] for items in held], dtype=np.float64) for name in static}
    return MemoryHistory(stage, np.array(seconds, dtype=np.float64), columns)


def _spans(timeline: Timeline, rows: NDArray[np.int64], order: Sequence[Item]) -> list[tuple[float, float]]:
    """When each pass in some rows of a stage starts and ends, and the step after them.

    One without tasks takes no time, where the one before it ends.
    """
    beside = np.array([stream in _BESIDE for _, stream, _ in timeline.labels], dtype=bool)[timeline.label[rows]]
    found: dict[tuple[int, ...], tuple[float, float]] = {}
    keys = _keys(timeline, rows)
    edges = [0, *(1 + np.flatnonzero((keys[1:] != keys[:-1]).any(axis=1))), rows.size]
    start = np.where(beside, np.inf, timeline.start[rows])
    finish = np.where(beside, -np.inf, timeline.finish[rows])
    for low, high in pairwise(edges):
        if not beside[low:high].all():
            key = tuple(int(part) for part in keys[low])
            found[key] = (float(start[low:high].min()), float(finish[low:high].max()))
    spans: list[tuple[float, float]] = []
    for item in (*order, None):
        before = spans[-1][1] if spans else 0.0
        spans.append(found.get(identity(item), (before, before)))
    return spans


def _keys(timeline: Timeline, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Kind, micro-batch, chunk, and those of the backward pass of a pair, of each task, shape (tasks, 5)."""
    kind = np.full(rows.size, -1) if timeline.kind is None else timeline.kind[rows]
    paired = np.full((rows.size, 2), -1) if timeline.paired is None else timeline.paired[rows]
    return np.column_stack([kind, timeline.microbatch[rows], timeline.chunk[rows], paired])


def _allocations(run: TrainingRun, schedule: PipelineSchedule) -> tuple[StageAllocation, ...]:
    return stage_allocations(run.model, run.layout, run.batch, run.framework, schedule)
