"""What a layout takes at the least: the work of its layers, and the time in which its pipeline fills and drains."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from typing import NamedTuple

from common import PAIRED, Case
from layouts import Layout, chains, variant

from shardsim.program.build import build
from shardsim.values.program import Block, Item, Pair, Program, Task
from shardsim.workload.schedules import make_schedule

COMPUTE = ("gemm", "attention", "memory-bound")
WAITING = ("tp", "recompute")


class Passes(NamedTuple):
    """Seconds of passes: what computes, and what communicates or repeats in line [s]."""

    forward: float
    backward: float
    forward_waits: float
    backward_waits: float


@cache
def work(case: Case, cluster: str, tp: int, cp: int, micro: int, recompute: str) -> tuple[Passes, Passes]:
    """Seconds of one micro-batch through a layer, and through the LM head and the loss."""
    alone = Layout(tp, 2, cp, "1f1b", 1, 0, recompute, micro)
    run = variant(replace(case, gpus=2 * tp * cp, global_batch=micro), cluster, alone, 1)
    even = replace(run, layout=replace(run.layout, split=()))
    four, six = (build(replace(even, model=replace(run.model, layers=layers))).blocks for layers in (4, 6))
    layer, end = {}, {}
    for kind in ("F", "B"):
        for counted in (COMPUTE, WAITING):
            first, longer, last = (
                _blocking(b.tasks, counted) for b in (four[0, kind, 0], six[0, kind, 0], four[1, kind, 0])
            )
            layer[kind, counted] = longer - first
            end[kind, counted] = last - 2 * (longer - first)
    again = layer["F", COMPUTE] if recompute == "full" else 0.0
    waiting = layer["F", WAITING], layer["B", WAITING]
    return (
        Passes(layer["F", COMPUTE], layer["B", COMPUTE] + again, waiting[0], waiting[1] - again),
        Passes(end["F", COMPUTE], end["B", COMPUTE], 0.0, 0.0),
    )


def _blocking(tasks: Iterable[Task], counted: tuple[str, ...]) -> float:
    return sum(float(task.seconds) for task in tasks if task.blocking and task.category in counted)


def bound(case: Case, cluster: str, layout: Layout) -> float:
    """The least that an iteration can take [s].

    A stage has to work through what it holds, but not before the first micro-batch has come to it; where backward
    passes are not split, the stages before it follow after its last one. Pairs hide communication behind each other,
    so that theirs counts for nothing.
    """
    layer, end = work(case, cluster, layout.tp, layout.cp, layout.micro, layout.recompute)
    whole = layout.schedule in ("1f1b", "interleaved")
    ways = chains(case, layout)
    each = layout.micro_batches(case) / len(ways)
    alone = unpaired(layout.schedule, layout.pp, layout.micro_batches(case)) if layout.schedule in PAIRED else None
    busy, idle = [0.0] * layout.pp, [float("inf")] * layout.pp
    through = layer.forward + layer.forward_waits + (layer.backward + layer.backward_waits if whole else 0.0)
    for way in ways:
        before = 0
        for stage, layers in way:
            busy[stage] += each * layers * (layer.forward + layer.backward)
            if alone is None:
                busy[stage] += each * layers * (layer.forward_waits + layer.backward_waits)
            idle[stage] = min(idle[stage], before * through)
            before += layers
        busy[way[-1][0]] += each * (end.forward + end.backward)
    if alone is not None:
        least = min(layers for way in ways for _, layers in way)
        for stage, (forward, backward) in enumerate(alone):
            busy[stage] += least * (forward * layer.forward_waits + backward * layer.backward_waits)
    return max(sum(pair) for pair in zip(busy, idle, strict=True))


@cache
def unpaired(schedule: str, stages: int, microbatches: int) -> tuple[tuple[int, int], ...]:
    """Forward and backward passes of each stage that run by themselves (-)."""
    orders = make_schedule(schedule, stages, microbatches, 2).orders
    return tuple(
        tuple(sum(not isinstance(item, Pair) and item.kind in kinds for item in order) for kinds in ("F", "BI"))
        for order in orders
    )


def busiest(program: Program) -> float:
    """The least that a program can take [s].

    That is all that one stage has on one stream, or waits for in line, besides the time in which the first micro-batch
    comes to it and, where backward passes are not split, the last one goes back from it.
    """
    schedule = program.schedule
    whole = schedule.name in ("1f1b", "interleaved")
    idle = [float("inf")] * schedule.stages
    for way in schedule.chains:
        before = 0.0
        for stage, chunk in way:
            idle[stage] = min(idle[stage], before)
            before += sum(_in_line(program.blocks[stage, kind, chunk]) for kind in ("FB" if whole else "F"))
    return max(idle[stage] + _stage(program, stage, order) for stage, order in enumerate(schedule.orders))


def _in_line(block: Block) -> float:
    return sum(float(task.seconds) for task in block.tasks if task.blocking)


def _stage(program: Program, stage: int, order: tuple[Item, ...]) -> float:
    counts = Counter(
        ("pair", item.forward.chunk, item.backward.chunk) if isinstance(item, Pair) else (item.kind, item.chunk)
        for item in order
    )
    streams: dict[str, float] = defaultdict(float)
    for key, count in counts.items():
        block = program.pairs[stage, *key[1:]] if key[0] == "pair" else program.blocks[stage, *key]
        for task in block.tasks:
            streams["blocking" if task.blocking else task.stream] += count * float(task.seconds)
    return max(streams.values())
