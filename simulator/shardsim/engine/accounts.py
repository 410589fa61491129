"""Where each stage's time went: seconds by category that sum to the iteration time.

Busy seconds follow from the plan, however often each block runs; waiting is what an engine finds out. A wait counts
as what was waited for: ``pp`` while the message was under way, the category of a side stream's task while that was
running, ``bubble`` otherwise. What blocking work takes longer because of what runs behind it counts as
``interference``, whatever the work is. What the device waits for its host to issue work counts as ``host``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias, TypeVar

import numpy as np

from shardsim.engine.steps import BlockPlan, Plan, StagePlan
from shardsim.program.coalesce import total
from shardsim.values.lanes import Lane
from shardsim.values.num import Num
from shardsim.values.results import Execution, StageAccount, Timeline

BUBBLE = "bubble"
PIPELINE = "pp"
HOST = "host"
STRAGGLERS = "stragglers"
"""Waiting for slower ranks of the same group."""
JITTER = "jitter"
"""What passes take longer at random."""

COMMUNICATION = ("tp", "pp", "dp", "cp", "ep")
"""Axes whose exposed communication is reported (-)."""

Larger: TypeAlias = Callable[[Num, Num], Num]
"""The larger of two numbers: ``max`` for scalars, ``numpy.maximum`` for arrays."""

End = TypeVar("End")


def enqueue(queued: list[tuple[str, End]], category: str, end: End) -> None:
    """Note the end of a task on a side stream, one entry for each run of tasks of one category.

    Tasks on a stream follow one another, so the last end of such a run is all that a drain has to look at.

    Parameters
    ----------
    queued : list of (str, End)
        Category and end of what is on the stream, in order; changed in place.
    category : str
    end : End
        A time [s], or the event that marks it.
    """
    if queued and queued[-1][0] == category:
        queued[-1] = (category, end)
    else:
        queued.append((category, end))


def computing_seconds(block: BlockPlan) -> float:
    """Seconds of a block's blocking tasks that are no communication [s]."""
    return float(total(value for category, value in block.busy.items() if category not in COMMUNICATION))


def busy_seconds(stage: StagePlan) -> dict[str, Num]:
    """Seconds of a stage's blocking tasks in the whole iteration.

    Parameters
    ----------
    stage : StagePlan

    Returns
    -------
    dict of str to Num
        By category [s].
    """
    seconds: dict[str, Num] = {}
    for block, count in stage.uses:
        for category, value in block.busy.items():
            seconds[category] = seconds.get(category, 0.0) + count * value
    return seconds


def executed_flop(stage: StagePlan) -> Num:
    """Floating point operations of a stage in the whole iteration (-)."""
    return total(count * block.flop for block, count in stage.uses)


def execution(
    engine: str,
    plan: Plan,
    waits: Sequence[Mapping[str, Num]],
    ends: Sequence[Num],
    larger: Larger,
    *,
    each: Sequence[Sequence[Num]] = (),
    events: int | None = None,
    timeline: Timeline | None = None,
) -> Execution:
    """Make the result of an engine from what its stages waited for.

    Parameters
    ----------
    engine : str
        ``closed``, ``listing`` or ``des``.
    plan : Plan
    waits : sequence of mapping of str to Num
        For each stage, seconds by what was waited for, up to the stage's own end, and those lost to interference
        [s].
    ends : sequence of Num
        For each stage, the latest end of anything on it [s].
    larger : callable
        ``max`` for scalars, ``numpy.maximum`` for arrays.
    each : sequence of sequence of Num
        For each stage, when it ended each of several iterations [s].
    events : int, optional
        Events processed (-).
    timeline : Timeline, optional

    Returns
    -------
    Execution
        Whose accounts sum to the iteration time, stage by stage; scalars are floats, arrays have one shape. Of several
        iterations it is the mean.
    """
    makespan, count = _latest(ends, larger), plan.iterations
    accounts = []
    for index, stage in enumerate(plan.stages):
        seconds = busy_seconds(stage)
        for category, wait in (*waits[index].items(), (BUBBLE, makespan - ends[index])):
            seconds[category] = seconds.get(category, 0.0) + wait
        shaped = {category: _shaped(_each(value, count), plan.shape) for category, value in seconds.items()}
        accounts.append(StageAccount(index, shaped, _shaped(_each(executed_flop(stage), count), plan.shape)))
    mean = _shaped(_each(makespan, count), plan.shape)
    finished = [_latest([stage[iteration] for stage in each], larger) for iteration in range(count)] if each else []
    several = tuple(_shaped(end, plan.shape) for end in finished) if count > 1 else ()
    return Execution(engine, mean, tuple(accounts), events, timeline, ends=several)


def _latest(ends: Sequence[Num], larger: Larger) -> Num:
    latest: Num = 0.0
    for end in ends:
        latest = larger(latest, end)
    return latest


def _each(whole: Num, iterations: int) -> Num:
    return whole if iterations == 1 else whole / iterations


def merged_accounts(accounts: Sequence[StageAccount], lanes: Sequence[Lane]) -> tuple[StageAccount, ...]:
    """Join the accounts of lanes stage by stage: the mean over ranks.

    Parameters
    ----------
    accounts : sequence of StageAccount
        One a lane.
    lanes : sequence of Lane

    Returns
    -------
    tuple of StageAccount
    """
    found = []
    for stage in sorted({lane.stage for lane in lanes}):
        mine = [(lane.ranks, one) for lane, one in zip(lanes, accounts, strict=True) if lane.stage == stage]
        if len(mine) == 1:
            found.append(replace(mine[0][1], stage=stage))
            continue
        ranks = sum(count for count, _ in mine)
        names = dict.fromkeys(name for _, one in mine for name in one.seconds)
        seconds = {name: total(count * one.seconds.get(name, 0.0) for count, one in mine) / ranks for name in names}
        found.append(StageAccount(stage, seconds, total(count * one.flop for count, one in mine) / ranks))
    return tuple(found)


def _shaped(value: Num, shape: tuple[int, ...] | None) -> Num:
    if shape is None:
        return float(value)
    return np.broadcast_to(np.asarray(value, dtype=np.float64), shape)
