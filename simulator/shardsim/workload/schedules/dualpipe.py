"""DualPipe and DualPipeV: forward and backward passes of different micro-batches run as pairs."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from shardsim.values.pipeline import looped, v_shaped
from shardsim.values.program import Item, Pair, Pass, PipelineSchedule
from shardsim.workload.schedules.orders import Chunk, Order


def dualpipe(stages: int, microbatches: int) -> PipelineSchedule:
    """Half of the micro-batches enter at either end; every rank holds a stage of both directions.

    Parameters
    ----------
    stages, microbatches : int
        R, even, and M, even and at least 2 R (-). The chunk of a pass is its direction: 0 from the first rank on,
        with micro-batches 0 to M / 2 - 1, and 1 from the last rank back, with the others.

    Returns
    -------
    PipelineSchedule

    Notes
    -----
    DeepSeek-AI 2024, arXiv 2412.19437 §3.2.1; order as in github deepseek-ai/DualPipe, ``dualpipe/dualpipe.py``.
    """
    half = microbatches // 2
    near = [_order(stages // 2, half, rank, (0, 1), (0, half)) for rank in range(stages // 2)]
    far = [_order(stages // 2, half, rank, (1, 0), (half, 0)) for rank in reversed(range(stages // 2))]
    back = tuple((stage, 1) for stage in reversed(range(stages)))
    return PipelineSchedule("dualpipe", (*near, *far), (looped(stages), back), microbatches)


def dualpipev(stages: int, microbatches: int) -> PipelineSchedule:
    """DualPipe cut in half: one way down the ranks with chunk 0 and back up with chunk 1.

    Parameters
    ----------
    stages, microbatches : int
        R, and M of at least 2 R (-).

    Returns
    -------
    PipelineSchedule

    Notes
    -----
    github deepseek-ai/DualPipe, ``dualpipe/dualpipev.py``: what the first half of 2 R ranks does under DualPipe.
    """
    orders = tuple(_order(stages, microbatches, rank, (0, 1), (0, 0)) for rank in range(stages))
    return PipelineSchedule("dualpipev", orders, (v_shaped(stages),), microbatches)


def _order(depth: int, microbatches: int, rank: int, chunks: tuple[int, int], first: tuple[int, int]) -> Order:
    """Order of the rank that is ``rank`` places from the outside.

    Parameters
    ----------
    depth : int
        Ranks from the outside to the middle (-).
    microbatches : int
        That pass through each of the rank's two stages (-).
    rank : int
        0 for the outermost rank.
    chunks, first : tuple of int
        Chunk, and its first micro-batch, of the stage nearer to the inputs and of the other.
    """
    return tuple(_steps(depth, microbatches, rank, Chunk(chunks[0], first[0]), Chunk(chunks[1], first[1])))


def _steps(depth: int, microbatches: int, rank: int, near: Chunk, far: Chunk) -> Iterator[Item]:
    """Yield the eight steps of the source; ``near`` and ``far`` are its phases 0 and 1."""
    outside, inside = depth - rank - 1, rank + 1
    for _ in range(2 * outside):
        yield near.next("F")
    for _ in range(inside):
        yield near.next("F")
        yield far.next("F")
    for _ in range(outside):
        split = far.next("I")
        yield from (split, split._replace(kind="W"), far.next("F"))
    for step in range(microbatches - 2 * depth + inside):
        if step == 0 and not outside:  # on the middle rank this pair would hold up the far stage's message
            yield from (near.next("F"), far.next("B"))
        else:
            yield Pair(near.next("F"), far.next("B"))
        yield Pair(far.next("F"), near.next("B"))
    for _ in range(outside):
        yield far.next("B")
        yield Pair(far.next("F"), near.next("B"))
    owed: deque[Pass] = deque()
    for turn in range(2 * inside):
        one = (near if turn % 2 else far).next("I" if turn >= inside else "B")
        yield one
        if one.kind == "I":
            owed.append(one._replace(kind="W"))
    for _ in range(outside):
        yield owed.popleft()
        last = near.next("I")
        owed.append(last._replace(kind="W"))
        yield last
    yield from owed
