"""One transformer layer of a rank, forward and backward, under designs of its tensor-parallel communication."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from shardsim.engine.listing import listing
from shardsim.program.build import build
from shardsim.program.machine import Machine
from shardsim.program.passes import Passes
from shardsim.program.resolve import resolve
from shardsim.schema.run import request_from_mapping
from shardsim.values.program import Block, PassKind, Program, Task
from shardsim.values.results import Execution
from shardsim.values.training import TrainingRun
from shardsim.workload.stages import ChunkContent

MODELS = {
    "megatron-22b": {"micro": 4, "global": 4, "seq": 2048},
    "llama-3-70b": {"micro": 1, "global": 1, "seq": 8192},
    "gpt3-175b": {"micro": 1, "global": 1, "seq": 2048},
}
BATCHES = {**MODELS, "megascale-175b": {"micro": 1, "global": 1, "seq": 2048}}
CLUSTERS = ("dgx-a100", "dgx-h100", "gb200-nvl72")
DEGREES = (2, 4, 8)
SHOWN = ("gpt3-175b", "dgx-h100", 8)
"""The layer that is shown collective by collective and as a timeline."""


class Design(NamedTuple):
    """How a layer communicates: flags of the layout and of the framework profile.

    In line, everything waits for each collective; that is no flag, since framework profiles always let the inputs that
    SP gathers again arrive behind the input gradient. Filled, parts of a product take no longer than the whole of it:
    several run at once and fill each other's waves, where the program has them run one by one.
    """

    title: str
    sp: bool
    in_line: bool = False
    flags: Mapping[str, object] = {}
    filled: bool = False


ASYNC = {"overlap_dgrad": True}
BLOCK = {**ASYNC, "parallel_block": True}
RING, USERBUFFERS = {"tp_overlap": "ring"}, {"tp_overlap": "userbuffers"}
DESIGNS = {
    "ar-in-line": Design("all-reduce in line", sp=False, in_line=True),
    "ar-behind": Design("all-reduce behind wgrad", sp=False, flags=ASYNC),
    "sp-in-line": Design("SP in line", sp=True, in_line=True),
    "sp-regather": Design("SP, re-gather behind dgrad", sp=True, flags={"overlap_dgrad": False}),
    "sp-behind": Design("SP, also scatter behind wgrad", sp=True, flags=ASYNC),
    "sp-own-shard": Design("SP, own shard first", sp=True, flags={**ASYNC, "tp_overlap": "own_shard"}),
    "sp-userbuffers": Design("SP, userbuffers", sp=True, flags={**ASYNC, **USERBUFFERS}),
    "sp-userbuffers-filled": Design("SP, userbuffers, filled", sp=True, flags={**ASYNC, **USERBUFFERS}, filled=True),
    "sp-ring": Design("SP, ring", sp=True, flags={**ASYNC, **RING}),
    "sp-ring-filled": Design("SP, ring, filled", sp=True, flags={**ASYNC, **RING}, filled=True),
    "block": Design("parallel block, SP behind", sp=True, flags=BLOCK),
    "block-ring": Design("parallel block, SP ring", sp=True, flags={**BLOCK, **RING}),
    "block-ring-filled": Design("parallel block, ring, filled", sp=True, flags={**BLOCK, **RING}, filled=True),
}


class Case(NamedTuple):
    """One layer of a model on TP ranks, with what all designs of it share: prices, and a device to run tasks on."""

    run: TrainingRun
    machine: Machine
    device: Program


def case(
    model: str, cluster: str, tp: int, framework: str = "megatron-core", precision: str = "bf16", **layout: object
) -> Case:
    """One layer of one replica, without a pipeline."""
    keys = {"model": model, "cluster": cluster, "gpus": tp, "batch": BATCHES[model], "framework": framework}
    own = {"tp": tp, "sp": True, "recompute": "none", **layout}
    run = resolve(request_from_mapping({**keys, "layout": own, "precision": precision}))
    run = replace(run, model=replace(run.model, layers=1))
    return Case(run, Machine(run), build(run))


def tasks_of(one: Case, design: Design, kind: PassKind) -> tuple[Task, ...]:
    """Tasks of a layer's pass under a design, for a host that is never late."""
    tasks = _layer(one, design, kind)
    if design.in_line:
        return tuple(replace(task, blocking=True, waits=()) for task in tasks)
    return _filled(tasks, _layer(one, undivided(design), kind)) if design.filled else tasks


def undivided(design: Design) -> Design:
    """A design that takes no product apart."""
    return design._replace(flags={**design.flags, "tp_overlap": "none"}, filled=False)


def _layer(one: Case, design: Design, kind: PassKind) -> tuple[Task, ...]:
    run = one.run
    own = replace(run, layout=replace(run.layout, sp=design.sp), framework=replace(run.framework, **design.flags))
    segments = Passes(own, one.machine).segments(kind, ChunkContent(1, embedding=False, head=False))
    tasks = next(segment.tasks for segment in segments if segment.part == "layer")
    return tuple(replace(task, host=0.0, lag=None) for task in tasks)


def _filled(tasks: Sequence[Task], whole: Iterable[Task]) -> tuple[Task, ...]:
    """Tasks whose parts of a product take together no longer than the whole product."""
    own = Counter[str]()
    for task in tasks:
        own[task.name] += task.seconds
    longer = {task.name: max(own[task.name] / task.seconds, 1.0) for task in whole if task.transfer is None}
    return tuple(replace(task, seconds=task.seconds / longer.get(task.name, 1.0)) for task in tasks)


def executed(one: Case, tasks: Mapping[str, Iterable[Task]], *, timeline: bool = False) -> Execution:
    """Run the tasks of some passes, and nothing else, on the device of a case."""
    blocks = {(0, kind, 0): Block(kind, tuple(tasks.get(kind, ()))) for kind in ("F", "B")}
    nothing = {"last_blocks": {}, "first_blocks": {}, "prologues": (), "epilogues": (Block("end", ()),)}
    return listing(replace(one.device, blocks=blocks, **nothing), timeline=timeline)


def write(name: str, rows: Sequence[Mapping[str, object]]) -> None:
    """Write a table."""
    with Path(name).open("w", newline="") as stream:
        writer = csv.DictWriter(stream, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def read(name: str) -> list[dict]:
    """Read a table; what looks like a number is one."""
    with Path(name).open(newline="") as stream:
        return [{key: number(cell) for key, cell in row.items()} for row in csv.DictReader(stream)]


def number(cell: str) -> float | str:
    """A cell as a number, or as it is."""
    try:
        return float(cell)
    except ValueError:
        return cell
