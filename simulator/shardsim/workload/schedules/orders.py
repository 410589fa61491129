"""Runs of passes that several schedules are made of."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, count

from shardsim.values.program import Item, Pair, Pass, PassKind

Order = tuple[Item, ...]


class Chunk:
    """Hands out the passes of one chunk of one stage, each kind in the order of its micro-batches.

    Parameters
    ----------
    number : int
        The chunk.
    first : int
        Its first micro-batch.
    """

    def __init__(self, number: int, first: int = 0) -> None:
        self._number = number
        backwards = count(first)
        counts: dict[PassKind, Iterator[int]]
        counts = {"F": count(first), "B": backwards, "I": backwards, "W": count(first)}
        self._counts = counts

    def next(self, kind: PassKind) -> Pass:
        """Give the next pass of a kind; whole backward passes and input gradients count together."""
        return Pass(kind, next(self._counts[kind]), self._number)

    def run(self, times: int, *kinds: PassKind) -> Iterator[Pass]:
        """Give the next pass of each kind, and all of that several times."""
        return (self.next(kind) for _ in range(times) for kind in kinds)


def passes(kind: PassKind, microbatches: int, chunk: int = 0) -> tuple[Pass, ...]:
    """List the passes of one kind through one chunk, by micro-batch."""
    return tuple(Pass(kind, microbatch, chunk) for microbatch in range(microbatches))


def warm_up_then_alternate(forward: Sequence[Pass], backward: Sequence[Pass], warm_up: int) -> tuple[Pass, ...]:
    """Put ``warm_up`` forward passes first, then one forward and one backward pass in turn, then what is left."""
    pairs = zip(forward[warm_up:], backward, strict=False)
    rest = max(len(forward) - warm_up, 0)
    return (*forward[:warm_up], *chain.from_iterable(pairs), *backward[rest:])


def warm_up_then_pair(forward: Sequence[Pass], backward: Sequence[Pass], warm_up: int) -> Order:
    """As :func:`warm_up_then_alternate`, a forward and a backward pass at a time as one."""
    rest = max(len(forward) - warm_up, 0)
    return (*forward[:warm_up], *map(Pair, forward[warm_up:], backward), *backward[rest:])


def with_weight_gradients(order: Iterable[Pass], delayed: int) -> Iterator[Pass]:
    """Add weight-gradient passes to an order that has input gradients only, first in first out.

    Parameters
    ----------
    order : iterable of Pass
    delayed : int
        Weight gradients that may be owed (-): one follows each input gradient once more are, the others come last.
    """
    owed: deque[Pass] = deque()
    for one in order:
        yield one
        if one.kind == "I":
            owed.append(one._replace(kind="W"))
            if len(owed) > delayed:
                yield owed.popleft()
    yield from owed
