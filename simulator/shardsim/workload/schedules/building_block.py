"""Orders from a building block: the passes of one micro-batch, repeated at a fixed interval and then closed up.

Time here is counted in slots, one for each forward, input-gradient or weight-gradient pass of a chunk.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from shardsim.values.program import Pass, PassKind
from shardsim.workload.schedules.orders import Order

Block = tuple[int, int, int, int]
"""Slots of one micro-batch on one stage: F of chunk 0, F of chunk 1, I of chunk 1, I of chunk 0."""

Slots = list[list[list[int]]]
"""Slot of each pass, by stage, position in the block and micro-batch."""

_PASSES: tuple[tuple[PassKind, int], ...] = (("F", 0), ("F", 1), ("I", 1), ("I", 0))
_INTERVAL = 6  # three passes of each of two chunks
_IDLE = -1


def orders_from_blocks(blocks: Sequence[Block], microbatches: int) -> tuple[Order, ...]:
    """Repeat a building block for every micro-batch, close up what is idle at both ends, and fill in weight gradients.

    Parameters
    ----------
    blocks : sequence of Block
        By stage. No two of a stage's slots are the same modulo 6.
    microbatches : int
        m (-).

    Returns
    -------
    tuple of tuple of Pass

    Notes
    -----
    Qi et al. 2024, arXiv 2405.15362 §4 and its appendix: repeating, reordering, squeezing (the engines squeeze).
    """
    # The middle repeats itself: it is enough to reorder as many micro-batches as both ends need.
    few = min(microbatches, 2 * len(blocks) + 4)
    slots = [[[slot + _INTERVAL * one for one in range(few)] for slot in block] for block in blocks]
    _close_up(slots)
    stretched = [_stretched(stage, blocks[0][3], microbatches - few) for stage in slots]
    return tuple(tuple(_filled(stage)) for stage in stretched)


def _close_up(slots: Slots) -> None:
    """Move passes of the two ends to the earliest idle slot that their inputs and the steady state's memory allow."""
    stages, end = len(slots), max(stage[3][-1] for stage in slots) + 1
    rows = [np.full(end, _IDLE) for _ in slots]
    for row, stage in zip(rows, slots, strict=True):
        for kind, of_kind in enumerate(stage):
            row[of_kind] = kind
    most = max(int(_held(row).max()) for row in rows)
    warm, steady_end = slots[0][3][0], slots[0][0][-1]  # the first backward pass is back; no more forward passes enter
    by_slot = sorted(
        (slot, at, kind, one)
        for at, kinds in enumerate(slots)
        for kind, of_kind in enumerate(kinds)
        for one, slot in enumerate(of_kind)
        if not warm <= slot <= steady_end
    )
    for slot, at, kind, one in by_slot:
        before = at - 1 if kind in (0, 2) else at + 1
        needs = [slots[before][kind][one]] if 0 <= before < stages else []
        needs += [slots[at][kind - 1][one]] if kind else []
        needs += [slots[at][kind][one - 1]] if one else []
        slots[at][kind][one] = _moved(rows[at], slot, max(needs, default=_IDLE) + 1, most)


def _moved(row: NDArray[np.int_], slot: int, earliest: int, most: int) -> int:
    kind = row[slot]
    row[slot] = _IDLE
    for idle in np.flatnonzero(row[earliest:slot] == _IDLE) + earliest:
        row[idle] = kind
        if _held(row).max() <= most:
            return int(idle)
        row[idle] = _IDLE
    row[slot] = kind
    return slot


def _held(row: NDArray[np.int_]) -> NDArray[np.int_]:
    """Chunks whose activations are held after each slot, weight gradients filling idle slots as soon as they can."""
    forward = np.cumsum((row == 0) | (row == 1))
    backward, idle = np.cumsum(row >= 2), np.cumsum(row == _IDLE)
    # A queue that idle slots serve: what was served is the least of (arrivals until then + idle slots since).
    done: NDArray[np.int_] = np.minimum(np.minimum.accumulate(backward - idle), 0) + idle
    return forward - done


def _stretched(stage: list[list[int]], warm: int, more: int) -> list[list[int]]:
    """Put ``more`` micro-batches into the steady state that begins at the slot ``warm``."""
    shift = more * _INTERVAL
    result = []
    for of_kind in stage:
        cut = next((at for at, slot in enumerate(of_kind) if slot >= warm), len(of_kind)) if more else 0
        middle = [of_kind[cut] + _INTERVAL * one for one in range(more)]
        result.append([*of_kind[:cut], *middle, *(slot + shift for slot in of_kind[cut:])])
    return result


def _filled(stage: list[list[int]]) -> Iterator[Pass]:
    at = {slot: Pass(_PASSES[kind][0], one, _PASSES[kind][1]) for kind, of_kind in enumerate(stage)
          for one, slot in enumerate(of_kind)}  # fmt: skip
    owed: deque[Pass] = deque()
    for slot in range(max(at) + 1):
        one = at.get(slot)
        if one is not None:
            yield one
            if one.kind == "I":
                owed.append(one._replace(kind="W"))
        elif owed:
            yield owed.popleft()
    yield from owed
