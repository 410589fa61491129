"""Where virtual stages lie, and what makes a pipeline schedule sound."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from shardsim.values.program import Item, Pair, Pass, PipelineSchedule, Place, passes_of

_SHOWN = 4
_COURSES = ("FB", "FIW")
_CHAINS = ("chains",)


def looped(stages: int, chunks: int = 1) -> tuple[Place, ...]:
    """Places of virtual stages that go round the stages, once for each chunk.

    >>> looped(2, 2)
    ((0, 0), (1, 0), (0, 1), (1, 1))
    """
    return tuple((stage, chunk) for chunk in range(chunks) for stage in range(stages))


def v_shaped(stages: int) -> tuple[Place, ...]:
    """Places of virtual stages that go down the stages with chunk 0 and back up with chunk 1.

    >>> v_shaped(2)
    ((0, 0), (1, 0), (1, 1), (0, 1))
    """
    return (*looped(stages), *((stage, 1) for stage in reversed(range(stages))))


def pass_text(one: Pass, chunks: int = 1) -> str:
    """Write a pass: its kind and micro-batch, and its chunk where stages hold several.

    >>> pass_text(Pass("F", 3)), pass_text(Pass("I", 3, 1), chunks=2)
    ('F3', 'I3.1')
    """
    return f"{one.kind}{one.microbatch}" + (f".{one.chunk}" if chunks > 1 else "")


def order_text(order: Sequence[Item], chunks: int = 1) -> str:
    """Write an order, a pair in brackets.

    >>> order_text((Pass("F", 0), Pair(Pass("F", 1), Pass("B", 0)), Pass("B", 1)))
    'F0 [F1&B0] B1'
    """
    return " ".join(
        f"[{pass_text(one.forward, chunks)}&{pass_text(one.backward, chunks)}]"
        if isinstance(one, Pair)
        else pass_text(one, chunks)
        for one in order
    )


@dataclass(frozen=True, slots=True)
class Unsound:
    """One reason why a schedule cannot be run.

    Parameters
    ----------
    what : str
    where : tuple of str and int
        ``("chains",)``, ``("stages",)``, or ``("stages", 2)`` for the order of one stage.
    """

    what: str
    where: tuple[str | int, ...]

    def __str__(self) -> str:
        return f"stage {self.where[1]}: {self.what}" if len(self.where) > 1 else self.what


def unsound(schedule: PipelineSchedule, unread: Collection[int] = ()) -> list[Unsound]:
    """List everything that keeps a schedule from being run to its end.

    Parameters
    ----------
    schedule : PipelineSchedule
        A named one, or a user's own.
    unread : collection of int
        Stages whose order is not known in full: nothing is said of it, nor of what takes every order to tell.

    Returns
    -------
    list of Unsound
        Empty if the chains hold every chunk of every stage once and are equally long; each micro-batch runs through
        one chain, on each of whose places it has one forward pass and after it either one backward pass or one
        input-gradient and then one weight-gradient pass, so that memory returns to its start; and the orders do not
        wait for each other in a circle.
    """
    found = list(_chain_problems(schedule))
    if not found:
        for stage, order in enumerate(schedule.orders):
            if stage not in unread:
                found += [Unsound(what, ("stages", stage)) for what in _order_problems(schedule, order)]
        found += [] if unread else _membership_problems(schedule)
    return found if found or unread else list(_deadlock(schedule))


def _chain_problems(schedule: PipelineSchedule) -> Iterator[Unsound]:
    if not schedule.orders or schedule.microbatches < 1:
        yield Unsound("it has no stages or no micro-batches", ("stages",))
        return
    if not all(schedule.chains or [()]):
        what = "chains is empty, or holds an empty list: each chain lists its places, such as [[0, 0], [1, 0]]"
        yield Unsound(what, _CHAINS)
        return
    lengths = {len(chain) for chain in schedule.chains}
    if len(lengths) > 1:
        found = " and ".join(map(str, sorted(lengths)))
        yield Unsound(f"chains of {found} places: each runs the whole model", _CHAINS)
    held = Counter(schedule.places)
    chunks = min(max((chunk for _, chunk in held), default=0) + 1, len(held))  # whatever number a slip has made of it
    wanted = set(looped(schedule.stages, chunks))
    for stage, chunk in sorted(set(held) - wanted):
        yield Unsound(f"a chain goes through stage {stage}, chunk {chunk}, which there is not", _CHAINS)
    for (stage, chunk), times in held.items():
        if times > 1:
            yield Unsound(f"chains go through stage {stage}, chunk {chunk} {times} times", _CHAINS)
    for stage, chunk in sorted(wanted - set(held)):
        yield Unsound(f"no chain goes through stage {stage}, chunk {chunk}", _CHAINS)


def _order_problems(schedule: PipelineSchedule, order: Sequence[Item]) -> Iterator[str]:
    for item in order:
        if isinstance(item, Pair) and (item.forward.kind != "F" or item.backward.kind != "B"):
            yield f"{order_text([item], schedule.chunks)} pairs other than a forward and a whole backward pass"
        elif isinstance(item, Pair) and item.forward[1:] == item.backward[1:]:
            yield f"{order_text([item], schedule.chunks)} pairs passes of the same micro-batch"
    courses: defaultdict[tuple[int, int], str] = defaultdict(str)
    for kind, microbatch, chunk in passes_of(order):
        courses[microbatch, chunk] += kind
    for (microbatch, chunk), kinds in sorted(courses.items()):
        dot = f"{microbatch}.{chunk}" if schedule.chunks > 1 else f"{microbatch}"
        if not (0 <= microbatch < schedule.microbatches and 0 <= chunk < schedule.chunks):
            yield (
                f"{kinds[0]}{microbatch}.{chunk}, counted from 0: there are {schedule.microbatches} micro-batches "
                f"and {schedule.chunks} chunks"
            )
        elif kinds not in _COURSES:
            runs = " ".join(kind + dot for kind in kinds)
            yield f"runs {runs}; right would be F{dot} B{dot}, or F{dot} I{dot} W{dot}, others between them"


def _membership_problems(schedule: PipelineSchedule) -> Iterator[Unsound]:
    """Each micro-batch runs through all places of one chain and through no place of another."""
    runs: defaultdict[Place, set[int]] = defaultdict(set)
    for stage, order in enumerate(schedule.orders):
        for _, microbatch, chunk in passes_of(order):
            runs[stage, chunk].add(microbatch)
    of_chain = [set[int]().union(*(runs[place] for place in places)) for places in schedule.chains]
    for places, members in zip(schedule.chains, of_chain, strict=True):
        for stage, chunk in places:
            if missing := sorted(members - runs[stage, chunk]):
                yield Unsound(f"micro-batches {_few(missing)} do not run through chunk {chunk}", ("stages", stage))
    times = Counter(microbatch for members in of_chain for microbatch in members)
    if missing := [one for one in range(schedule.microbatches) if not times[one]]:
        yield Unsound(f"micro-batches {_few(missing)} do not run at all", ("stages",))
    if twice := sorted(one for one, count in times.items() if count > 1):
        yield Unsound(f"micro-batches {_few(twice)} run through more than one chain", ("stages",))


def _few(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:_SHOWN]))
    return shown if len(numbers) <= _SHOWN else f"{shown} and {len(numbers) - _SHOWN} more"


def _deadlock(schedule: PipelineSchedule) -> Iterator[Unsound]:
    """Run every order as far as its inputs allow; each step wakes the stages that waited for it."""
    needs = _Needs(schedule)
    done: set[tuple[bool, int, Place]] = set()
    position = [0] * schedule.stages
    waiting: defaultdict[tuple[bool, int, Place], list[int]] = defaultdict(list)
    ready = list(range(schedule.stages))
    while ready:
        stage = ready.pop()
        order = schedule.orders[stage]
        while position[stage] < len(order):
            passes = tuple(passes_of((order[position[stage]],)))
            missing = next((key for one in passes if (key := needs.of(stage, one)) and key not in done), None)
            if missing is not None:
                waiting[missing].append(stage)
                break
            position[stage] += 1
            for one in passes:
                key = (one.kind == "F", one.microbatch, (stage, one.chunk))
                done.add(key)
                ready += waiting.pop(key, ())
    for stages in waiting.values():
        for stage in stages:
            item = order_text((schedule.orders[stage][position[stage]],), schedule.chunks)
            what = f"{item} waits for ever for its input: the orders wait for each other in a circle"
            yield Unsound(what, ("stages", stage))


class _Needs:
    """What a pass waits for besides its place in the order: forward or backward, micro-batch, place."""

    def __init__(self, schedule: PipelineSchedule) -> None:
        self._before = {b: a for chain in schedule.chains for a, b in pairwise(chain)}
        self._after = {a: b for b, a in self._before.items()}

    def of(self, stage: int, one: Pass) -> tuple[bool, int, Place] | None:
        if one.kind == "W":
            return None
        other = (self._before if one.kind == "F" else self._after).get((stage, one.chunk))
        return None if other is None else (one.kind == "F", one.microbatch, other)
