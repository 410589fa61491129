"""What a rank holds when: its allocations walked over the order of its passes.

The order of a stage alone decides what it holds, not how long passes take.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from shardsim.values.num import Num
from shardsim.values.program import Item, Pass, PipelineSchedule, passes_of
from shardsim.workload.allocations import ChunkAllocation, StageAllocation

ITEMS = ("weights", "gradients", "optimizer", "activations", "logits", "gathered", "buffers")
"""What tensors are for, in the order in which reports show it."""


class Held(NamedTuple):
    """Micro-batches whose tensors a stage holds, by chunk (-).

    ``kept`` from the forward pass on; ``waiting`` from the input-gradient to the weight-gradient pass.
    """

    kept: tuple[int, ...]
    waiting: tuple[int, ...]


class Moment(NamedTuple):
    """One item of a stage's order, and what is held while it runs and when it has ended."""

    item: Item
    during: Held
    after: Held


class Fullest(NamedTuple):
    """The fullest moment of a stage: the item that runs, None for the optimizer step, and the bytes held by item."""

    item: Item | None
    items: Mapping[str, float]


def moments_of(order: tuple[Item, ...], chunks: int) -> tuple[Moment, ...]:
    """Follow the micro-batches that a stage holds through its order.

    Parameters
    ----------
    order : tuple of (Pass or Pair)
    chunks : int
        That the stage holds (-).

    Returns
    -------
    tuple of Moment
        One for each item, in order.
    """
    kept, waiting = [0] * chunks, [0] * chunks
    moments: list[Moment] = []
    for item in order:
        passes = tuple(passes_of((item,)))
        for one in passes:
            kept[one.chunk] += one.kind == "F"
        during = Held(tuple(kept), tuple(waiting))
        for one in passes:
            kept[one.chunk] -= one.kind in ("B", "I")
            waiting[one.chunk] += (one.kind == "I") - (one.kind == "W")
        moments.append(Moment(item, during, Held(tuple(kept), tuple(waiting))))
    return tuple(moments)


def tensors_between(allocation: StageAllocation, held: Held) -> dict[str, float]:
    """Bytes of tensors while no pass runs.

    Parameters
    ----------
    allocation : StageAllocation
    held : Held

    Returns
    -------
    dict of str to float
        By the names of ``ITEMS`` [bytes].
    """
    return {
        "weights": float(allocation.weights),
        "gradients": float(allocation.gradients),
        "optimizer": float(allocation.optimizer),
        # Counts times sizes rather than a running sum, whose rounding would not cancel when the last one is freed.
        "activations": _sum(held.kept, [chunk.kept for chunk in allocation.chunks])
        + _sum(held.waiting, [chunk.weight_gradient for chunk in allocation.chunks]),
        "logits": _sum(held.kept, [chunk.loss for chunk in allocation.chunks]),
        "gathered": float(allocation.gathered),
        "buffers": float(allocation.buffers + allocation.passing),
    }


def tensors_during(allocation: StageAllocation, moment: Moment) -> dict[str, float]:
    """Bytes of tensors at the fullest point of a pass, or of a pair.

    Parameters
    ----------
    allocation : StageAllocation
    moment : Moment

    Returns
    -------
    dict of str to float
        By the names of ``ITEMS`` [bytes].
    """
    items = tensors_between(allocation, moment.during)
    for one in passes_of((moment.item,)):
        for name, extra in _beside(one, allocation.chunks[one.chunk]).items():
            items[name] += extra
    return items


def tensors_stepping(allocation: StageAllocation) -> dict[str, float]:
    """Bytes of tensors in the optimizer step.

    Parameters
    ----------
    allocation : StageAllocation

    Returns
    -------
    dict of str to float
        By the names of ``ITEMS`` [bytes].
    """
    nothing = (0,) * len(allocation.chunks)
    items = tensors_between(allocation, Held(nothing, nothing))
    return {**items, "gathered": 0.0, "buffers": float(allocation.buffers + allocation.stepping)}


def reserved_items(allocation: StageAllocation, tensors: Mapping[str, float]) -> dict[str, float]:
    """Add to tensors what is reserved and unused, and the context.

    Parameters
    ----------
    allocation : StageAllocation
    tensors : mapping of str to float
        By the names of ``ITEMS`` [bytes].

    Returns
    -------
    dict of str to float
        With ``fragmentation`` and ``context`` [bytes].
    """
    whole = sum(tensors.values())
    moving = tensors["activations"] + tensors["logits"]
    reserved = (whole + moving * (1.0 / allocation.activation_share - 1.0)) / allocation.allocated_share
    return {**tensors, "fragmentation": reserved - whole, "context": float(allocation.context)}


def fullest(allocation: StageAllocation, order: tuple[Item, ...]) -> Fullest:
    """Find the fullest moment of a stage, as reserved.

    Parameters
    ----------
    allocation : StageAllocation
    order : tuple of (Pass or Pair)
        Of the stage.

    Returns
    -------
    Fullest
        The first of equal moments, so that it does not depend on how many follow.
    """
    best = Fullest(None, reserved_items(allocation, tensors_stepping(allocation)))
    most = sum(best.items.values()) if allocation.stepping else 0.0
    for moment in _distinct(order, len(allocation.chunks)):
        items = reserved_items(allocation, tensors_during(allocation, moment))
        total = sum(items.values())
        if total > most:
            best, most = Fullest(moment.item, items), total
    return best


def peak_bytes(allocations: Sequence[StageAllocation], schedule: PipelineSchedule) -> float:
    """Memory that the fullest stage takes of its device [bytes].

    Parameters
    ----------
    allocations : sequence of StageAllocation
        One for each stage.
    schedule : PipelineSchedule

    Returns
    -------
    float
        [bytes].
    """
    pairs = zip(allocations, schedule.orders, strict=True)
    return max(sum(fullest(allocation, order).items.values()) for allocation, order in pairs)


@lru_cache(maxsize=512)
def _distinct(order: tuple[Item, ...], chunks: int) -> tuple[Moment, ...]:
    """The first of moments that are alike but for their micro-batches: a few of thousands."""
    found: dict[tuple[object, ...], Moment] = {}
    for moment in moments_of(order, chunks):
        kinds = tuple((one.kind, one.chunk) for one in passes_of((moment.item,)))
        found.setdefault((kinds, moment.during), moment)
    return tuple(found.values())


def _beside(one: Pass, chunk: ChunkAllocation) -> dict[str, float]:
    """What a pass needs beside what it keeps, at its fullest point: beginning, end, or where it rebuilds most."""
    way, over = float(chunk.under_way), {"logits": -float(chunk.loss)}
    if one.kind == "F":
        return max({"logits": float(chunk.logits)}, {"activations": way, **over}, key=_extra)
    if one.kind == "W":
        return {}
    left = chunk.weight_gradient if one.kind == "I" else 0.0
    end = {"activations": float(left - chunk.kept), "logits": -float(chunk.loss), "gradients": float(chunk.gradients)}
    start = {"activations": float(chunk.working_set)}
    rebuilt = chunk.input_working_set if one.kind == "I" else chunk.working_set
    middle = {"activations": float(rebuilt) + way, **over}
    return max(start, end, middle, key=_extra)


def _extra(items: Mapping[str, float]) -> float:
    return sum(items.values())


def _sum(counts: Sequence[int], sizes: Sequence[Num]) -> float:
    return sum(count * float(size) for count, size in zip(counts, sizes, strict=True))
