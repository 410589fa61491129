"""An executor of pipeline schedules that shares nothing with the engines, for tests of the schedules themselves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import NamedTuple

import pytest

from shardsim.values.program import Item, Pair, PipelineSchedule, passes_of


class Ran(NamedTuple):
    """One pass or pair, and when."""

    item: Item
    start: float
    end: float


Executor = Callable[..., list[list[Ran]]]


def execute(schedule: PipelineSchedule, seconds: Mapping[str, float], message: float = 0.0) -> list[list[Ran]]:
    """When each stage runs what: a stage follows its order, a message takes time but holds up nobody.

    ``seconds`` are by pass kind, and of a ``pair``.
    """
    before = {b: a for chain in schedule.chains for a, b in pairwise(chain)}
    after = {a: b for chain in schedule.chains for a, b in pairwise(chain)}
    done: dict[tuple[bool, int, tuple[int, int]], float] = {}
    ran: list[list[Ran]] = [[] for _ in schedule.orders]

    def ready(stage: int, item: Item) -> float:
        """When its inputs are there; KeyError while one is not."""
        latest = 0.0
        for kind, microbatch, chunk in passes_of([item]):
            source = None if kind == "W" else (before if kind == "F" else after).get((stage, chunk))
            if source is not None:
                delay = message if source[0] != stage else 0.0
                latest = max(latest, done[kind == "F", microbatch, source] + delay)
        return latest

    moved = True
    while moved:
        moved = False
        for stage, order in enumerate(schedule.orders):
            while len(ran[stage]) < len(order):
                item = order[len(ran[stage])]
                try:
                    start = max(ready(stage, item), ran[stage][-1].end if ran[stage] else 0.0)
                except KeyError:
                    break
                end = start + seconds["pair" if isinstance(item, Pair) else item.kind]
                ran[stage].append(Ran(item, start, end))
                for one in passes_of([item]):
                    if one.kind != "W":
                        done[one.kind == "F", one.microbatch, (stage, one.chunk)] = end
                moved = True
    assert [len(stage) for stage in ran] == [len(order) for order in schedule.orders], "deadlock"
    return ran


@pytest.fixture(scope="session", name="execute")
def _execute() -> Executor:
    return execute
