"""Pipeline schedules as data: for each stage, the order of its passes.

A schedule is a function in the file of its idea and a line in ``rules.RULES``; every schedule, a user's own too, must
pass :func:`schedule_problems_of`. No seconds here: when a pass runs is the engines' business.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

from shardsim.errors import InputError
from shardsim.values.num import first_of
from shardsim.values.pipeline import unsound
from shardsim.values.program import Item, PipelineSchedule, passes_of
from shardsim.values.training import Batch, Layout
from shardsim.workload.schedules.rules import NAMES, RULES, Rule, schedule_problems

__all__ = [
    "NAMES",
    "RULES",
    "Rule",
    "make_schedule",
    "peak_in_flight",
    "schedule_of",
    "schedule_problems",
    "schedule_problems_of",
]


@lru_cache(maxsize=64)
def make_schedule(
    name: str, stages: int, microbatches: int, chunks: int = 1, group: int = 0, *, paired: bool = False
) -> PipelineSchedule:
    """Make a schedule by its name; the same arguments give the same object.

    Parameters
    ----------
    name : str
        One of :data:`NAMES`.
    stages, microbatches, chunks : int
        p, m and v (-). With two chains, m counts the micro-batches of both.
    group : int
        Micro-batches that the interleaved schedule runs through a chunk before the next (-); 0 for p of them.
    paired : bool
        Whether forward and backward passes of the steady state run as pairs, each computing while the tokens of the
        other travel.

    Returns
    -------
    PipelineSchedule

    Raises
    ------
    InputError
        Everything that :func:`schedule_problems` finds.
    """
    problems = schedule_problems(name, stages, microbatches, chunks, group, paired=paired)
    if problems:
        raise InputError(problems)
    rule = RULES[name]
    make = rule.paired if paired and rule.paired else rule.make
    return make(stages, microbatches, chunks, group or stages) if name == "interleaved" else make(stages, microbatches)


def schedule_of(layout: Layout, batch: Batch) -> PipelineSchedule:
    """Make the schedule of a layout.

    Parameters
    ----------
    layout : Layout
        Its pipeline's shape is the same over all layouts where degrees are arrays.
    batch : Batch

    Returns
    -------
    PipelineSchedule
        With pairs where the layout says ``overlap_experts``; a schedule of the user's own as it is.

    Raises
    ------
    InputError
        As :func:`make_schedule`.
    """
    if layout.custom is not None:
        return layout.custom
    microbatches = round(float(first_of(batch.micro_batches(layout))))
    stages, chunks = int(first_of(layout.pp)), int(first_of(layout.vpp))
    pairs = {"paired": True} if layout.overlap_experts else {}
    return make_schedule(layout.schedule, stages, microbatches, chunks, layout.group, **pairs)


def schedule_problems_of(schedule: PipelineSchedule) -> list[str]:
    """List everything that keeps a schedule, named or a user's own, from being run to its end.

    Parameters
    ----------
    schedule : PipelineSchedule

    Returns
    -------
    list of str
        As :func:`shardsim.values.pipeline.unsound` finds it.
    """
    return [str(one) for one in unsound(schedule)]


def peak_in_flight(schedule: PipelineSchedule) -> tuple[tuple[int, ...], ...]:
    """Count the micro-batches whose activations a stage holds at its fullest moment.

    Parameters
    ----------
    schedule : PipelineSchedule

    Returns
    -------
    tuple of tuple of int
        For each stage, by chunk (-), at the first moment at which their sum is largest. A micro-batch is in flight
        from its forward to its backward or input-gradient pass; what waits for a weight gradient is not counted.
    """
    return tuple(_peak(order, schedule.chunks) for order in schedule.orders)


def _peak(order: Sequence[Item], chunks: int) -> tuple[int, ...]:
    held: Counter[int] = Counter()
    total = fullest = 0
    peak = (0,) * chunks
    for kind, _, chunk in passes_of(order):
        if kind == "F":
            held[chunk] += 1
            total += 1
            if total > fullest:
                fullest = total
                peak = tuple(held[index] for index in range(chunks))
        elif kind in "BI":
            held[chunk] -= 1
            total -= 1
    return peak
