"""What if something were quicker, or free: the iteration walked again, as the critical path moves when it is shortened.

All changes are one program of arrays, with an element for each, that is walked once. Durations are only ever added, and
the later of two moments taken, so the iteration never grows when something gets quicker. And the path as it was is
still there, shorter by what was taken from it: so a change gains at most what it takes from the critical path, or where
overlapped communication slows computation, that and the interference on the path.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import isfinite
from typing import TypeVar

import numpy as np

from shardsim.engine.accounts import COMMUNICATION, HOST, PIPELINE
from shardsim.engine.closed import closed_form
from shardsim.engine.critical import critical_path, kind_of
from shardsim.engine.interference import INTERFERENCE
from shardsim.errors import InputError, Problem
from shardsim.program.build import build
from shardsim.program.coalesce import blocks_by_stage, has_host
from shardsim.schema.catalog import near
from shardsim.values.critical import Adjustment, CriticalAnswer, CriticalPath, WhatIf
from shardsim.values.num import Num, any_of, where
from shardsim.values.program import Block, Program, Task
from shardsim.values.training import TrainingRun

_Key = TypeVar("_Key", tuple[int, str, int], tuple[int, int, int])


def critical_answer(run: TrainingRun, what_ifs: Sequence[str] = ()) -> CriticalAnswer:
    """Find the critical path of a run, and what would make it shorter.

    Parameters
    ----------
    run : TrainingRun
        From :func:`shardsim.program.resolve.resolve`.
    what_ifs : sequence of str
        See :func:`read_change`; by default everything that the program has, made free.

    Returns
    -------
    CriticalAnswer
        The what-ifs in the order asked; by default those that gain most first.

    Raises
    ------
    InputError
        A what-if that is none, or is of what the run does not do; conditions that only the event engine knows.
    """
    if not run.conditions.uniform:
        what = "the critical path is that of a machine on which all ranks are alike, and conditions are set"
        raise InputError(Problem(what, "conditions", "leave them out; `shardsim simulate` says who waits for whom"))
    program = build(run)
    names = changeable(program)
    changes = _read(what_ifs, names)
    path = critical_path(program)
    found = what_if(program, changes or _everything(names), path)
    if not changes:
        found = tuple(sorted(found, key=lambda one: one.iteration_s))
    return CriticalAnswer(run, path, found)


def what_if(program: Program, changes: Sequence[Adjustment], path: CriticalPath) -> tuple[WhatIf, ...]:
    """Find what the iteration would be with each of several changes.

    Parameters
    ----------
    program : Program
        Operator by operator; scalars only.
    changes : sequence of Adjustment
    path : CriticalPath
        Of the program.

    Returns
    -------
    tuple of WhatIf
        In the order of the changes.
    """
    if not changes:
        return ()
    seconds = np.broadcast_to(closed_form(changed(program, changes)).iteration_s, len(changes))
    spent = path.seconds_by(lambda segment: (segment.category, segment.kind))
    return tuple(
        WhatIf(
            change,
            sum(on_path for names, on_path in spent.items() if not set(names).isdisjoint(change.names)),
            float(iteration),
        )
        for change, iteration in zip(changes, seconds, strict=True)
    )


def changed(program: Program, changes: Sequence[Adjustment]) -> Program:
    """Make a program of arrays, with one element for each change.

    Parameters
    ----------
    program : Program
        Operator by operator; scalars only.
    changes : sequence of Adjustment

    Returns
    -------
    Program
    """
    done: dict[int, Block] = {}

    def factors(*names: str) -> Num:
        found = [change.factor if not set(names).isdisjoint(change.names) else 1.0 for change in changes]
        return 1.0 if set(found) == {1.0} else np.array(found)

    def task_of(task: Task) -> Task:
        seconds, host = factors(task.category, kind_of(task)), factors(HOST)
        lag = None if task.lag is None else task.lag * host
        return replace(task, seconds=task.seconds * seconds, host=task.host * host, lag=lag)

    def block_of(block: Block) -> Block:
        if id(block) not in done:
            done[id(block)] = replace(block, tasks=tuple(map(task_of, block.tasks)))
        return done[id(block)]

    def every(blocks: Mapping[_Key, Block]) -> dict[_Key, Block]:
        return {key: block_of(block) for key, block in blocks.items()}

    messages = factors(PIPELINE)
    return replace(
        program,
        blocks=every(program.blocks),
        last_blocks=every(program.last_blocks),
        first_blocks=every(program.first_blocks),
        pairs=every(program.pairs),
        epilogues=tuple(map(block_of, program.epilogues)),
        prologues=tuple(map(block_of, program.prologues)),
        messages={
            key: replace(
                one,
                latency=one.latency * messages,
                wire={link: size * messages for link, size in one.wire.items()},
            )
            for key, one in program.messages.items()
        },
        overlap_slowdown=_slowdown(program.overlap_slowdown, factors(INTERFERENCE)),
    )


def changeable(program: Program) -> tuple[str, ...]:
    """Name what a program spends time on: categories, then kinds of communication inside a stage.

    Parameters
    ----------
    program : Program

    Returns
    -------
    tuple of str
        In order of their names.
    """
    blocks = {id(block): block for _, block in blocks_by_stage(program)}.values()
    tasks = [task for block in blocks for task in block.tasks]
    names = {task.category for task in tasks if any_of(task.seconds > 0.0)}
    kinds = {kind_of(task) for task in tasks if any_of(task.seconds > 0.0)} - {""}
    if any(has_host(task) for task in tasks):
        names.add(HOST)
    if any(any_of(one.seconds > 0.0) for one in program.messages.values()):
        names.add(PIPELINE)
    if any_of(program.overlap_slowdown > 0.0):
        names.add(INTERFERENCE)
    return (*sorted(names), *sorted(kinds))


def read_change(text: str) -> Adjustment:
    """Read a what-if: names joined by ``+``, and after ``=`` how many times as long they take, 0 for free.

    Parameters
    ----------
    text : str

    Returns
    -------
    Adjustment

    Raises
    ------
    InputError
        The factor is not a number of at least 0.

    Examples
    --------
    >>> read_change("tp:all-reduce+pp=0.5")
    Adjustment(names=('tp:all-reduce', 'pp'), factor=0.5)
    """
    names, equals, factor = text.partition("=")
    try:
        number = float(factor) if equals else 0.0
    except ValueError:
        number = -1.0
    if not (number >= 0.0 and isfinite(number)):
        what = f"{factor!r} is not a number of at least 0"
        raise InputError(Problem(what, f"--what-if {text}", "0 for free, 0.5 for twice as fast"))
    return Adjustment(tuple(dict.fromkeys(name.strip().replace("_", "-") for name in names.split("+"))), number)


def _slowdown(share: Num, factor: Num) -> Num:
    """Share of its rate that slowed work loses when it is held up ``factor`` times as long (-)."""
    return where(factor == 1.0, share, factor * share / (1.0 - share + factor * share))


def _read(texts: Iterable[str], names: Sequence[str]) -> list[Adjustment]:
    """Read what-ifs of what a program has; every problem at once."""
    changes: list[Adjustment] = []
    problems: list[Problem] = []
    for text in texts:
        try:
            change = read_change(text)
        except InputError as error:
            problems += error.problems
            continue
        changes.append(change)
        where = f"--what-if {text}"
        problems += [
            Problem(f"the run spends no time on {name!r}", where, near(name, names))
            for name in change.names
            if name not in names
        ]
    if problems:
        raise InputError(problems)
    return changes


def _everything(names: Sequence[str]) -> list[Adjustment]:
    """Everything made free: categories, kinds where a category has several, and all communication at once."""
    kinds = [name for name in names if ":" in name]
    several = [kind for kind in kinds if sum(other.split(":")[0] == kind.split(":")[0] for other in kinds) > 1]
    changes = [Adjustment((name,)) for name in names if name not in kinds or name in several]
    axes = tuple(axis for axis in COMMUNICATION if axis in names)
    return changes + ([Adjustment(axes)] if len(axes) > 1 else [])
