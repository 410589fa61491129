"""Where each stage's time went: seconds by category that sum to the iteration time.

Busy seconds follow from the plan, however often each block runs; waiting is what an engine finds out. A wait counts
as what was waited for: ``pp`` while the message was under way, the category of a side stream's task while that was
running, ``bubble`` otherwise. What blocking work takes longer because of what runs behind it counts as
``interference``, whatever the work is. What the device waits for its host to issue work counts as ``host``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias, TypeVar

import numpy as np

from shardsim.engine.steps import Plan, StagePlan
from shardsim.program.coalesce import total
from shardsim.values.num import Num
from shardsim.values.results import Execution, StageAccount, Timeline

BUBBLE = "bubble"
PIPELINE = "pp"
HOST = "host"

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
    events : int, optional
        Events processed (-).
    timeline : Timeline, optional

    Returns
    -------
    Execution
        Whose accounts sum to the iteration time, stage by stage; scalars are floats, arrays have one shape.
    """
    iteration: Num = 0.0
    for end in ends:
        iteration = larger(iteration, end)
    accounts = []
    for index, stage in enumerate(plan.stages):
        seconds = busy_seconds(stage)
        for category, wait in (*waits[index].items(), (BUBBLE, iteration - ends[index])):
            seconds[category] = seconds.get(category, 0.0) + wait
        shaped = {category: _shaped(value, plan.shape) for category, value in seconds.items()}
        accounts.append(StageAccount(index, shaped, _shaped(executed_flop(stage), plan.shape)))
    return Execution(engine, _shaped(iteration, plan.shape), tuple(accounts), events, timeline)


def _shaped(value: Num, shape: tuple[int, ...] | None) -> Num:
    if shape is None:
        return float(value)
    return np.broadcast_to(np.asarray(value, dtype=np.float64), shape)
