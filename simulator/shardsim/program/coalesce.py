"""Coalescing: runs of operators that touch nothing shared become one task each.

A blocking task that waits for nothing but its turn, and uses no link that others may use, only moves its stage's
clocks, that of its device and that of its host. A run of such tasks moves them as one task would (`run_lag`), so the
engines need one step for the whole run, and the result is the same. Coalesced throughout, a program is the price list:
seconds by stage, pass and chunk, as scalars or as arrays over layouts.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from itertools import groupby
from typing import TypeVar

from shardsim.errors import ProgramError
from shardsim.values.lanes import ALONE, Sharing
from shardsim.values.num import Num, any_of, larger
from shardsim.values.program import Block, Program, Task

_Key = TypeVar("_Key", tuple[int, str, int], tuple[int, int, int])

MIXED = "mixed"
"""Category of a coalesced task whose seconds belong to several; ``parts`` has them apart."""


def coalesce(program: Program, sharing: Sharing = ALONE) -> Program:
    """Merge the runs of tasks that touch nothing shared.

    Parameters
    ----------
    program : Program
        Operator by operator; scalar or array seconds.
    sharing : Sharing
        Links and groups that are shared besides.

    Returns
    -------
    Program
        The same iteration with one task for every run: summed ``seconds`` and ``flop``, and ``parts`` by category.
        Tasks that wait, drain, meet or do not block stay as they are. Coalescing twice changes nothing.

    Raises
    ------
    ProgramError
        A task waits for one that is not an earlier, non-blocking task of its block.
    """
    side = side_streams(program)
    done: dict[tuple[int, frozenset[str], frozenset[str]], Block] = {}

    def of_stage(stage: int, block: Block) -> Block:
        contested = sharing.contested.get(stage, frozenset())
        key = (id(block), side[stage], contested)
        if key not in done:
            done[key] = _coalesce_block(block, side[stage], contested, sharing.axes)
        return done[key]

    def merged(blocks: Mapping[_Key, Block]) -> dict[_Key, Block]:
        return {key: of_stage(key[0], block) for key, block in blocks.items()}

    return replace(
        program,
        blocks=merged(program.blocks),
        last_blocks=merged(program.last_blocks),
        epilogues=tuple(of_stage(stage, block) for stage, block in enumerate(program.epilogues)),
        first_blocks=merged(program.first_blocks),
        pairs=merged(program.pairs),
        prologues=tuple(of_stage(stage, block) for stage, block in enumerate(program.prologues)),
    )


def blocks_by_stage(program: Program) -> Iterator[tuple[int, Block]]:
    """Every block of a program, with its stage.

    Parameters
    ----------
    program : Program

    Yields
    ------
    stage : int
    block : Block
        Some may be the same object.
    """
    for blocks in (program.blocks, program.last_blocks, program.first_blocks):
        yield from ((key[0], block) for key, block in blocks.items())
    yield from ((key[0], block) for key, block in program.pairs.items())
    yield from enumerate(program.epilogues)
    yield from enumerate(program.prologues)


def side_streams(program: Program) -> Mapping[int, frozenset[str]]:
    """Streams, by stage, on which tasks are queued that do not block.

    Parameters
    ----------
    program : Program

    Returns
    -------
    mapping of int to frozenset of str
        For every stage of the schedule. A blocking task on one of them has to wait for those queued before it.
    """
    found: dict[int, set[str]] = {stage: set() for stage in range(program.schedule.stages)}
    for stage, block in blocks_by_stage(program):
        found.setdefault(stage, set()).update(task.stream for task in block.tasks if not task.blocking)
    return {stage: frozenset(streams) for stage, streams in found.items()}


def free_runs(
    tasks: Sequence[Task],
    side: frozenset[str],
    contested: frozenset[str] = frozenset(),
    axes: frozenset[str] = frozenset(),
) -> Iterator[tuple[bool, tuple[int, ...]]]:
    """Split a block into runs that touch nothing shared and the tasks between them.

    Parameters
    ----------
    tasks : sequence of Task
        A block, in order of issue.
    side : frozenset of str
        The stage's side streams, from `side_streams`.
    contested : frozenset of str
        Link classes of the stage on which transfers may meet.
    axes : frozenset of str
        Axes whose collectives are meetings of several lanes.

    Yields
    ------
    free : bool
        Whether the run touches nothing shared.
    indices : tuple of int
        Positions in ``tasks``; always a single one when not ``free``.
    """
    for free, group in groupby(range(len(tasks)), key=lambda index: _is_free(tasks[index], side, contested, axes)):
        if free:
            yield True, tuple(group)
        else:
            yield from ((False, (index,)) for index in group)


def waiting_problems(block: Block) -> list[str]:
    """What is wrong with the ``waits`` of a block's tasks.

    Parameters
    ----------
    block : Block

    Returns
    -------
    list of str
        One sentence for every wait that is not for an earlier, non-blocking task of the same block.
    """
    return [
        f"task {task.name!r} (number {index}) of block {block.name!r} waits for task number {wanted}, "
        "which is not an earlier task of that block that does not block"
        for index, task in enumerate(block.tasks)
        for wanted in task.waits
        if not 0 <= wanted < index or block.tasks[wanted].blocking
    ]


def total(values: Iterable[Num]) -> Num:
    """Sum from left to right.

    The built-in ``sum`` compensates rounding of floats from Python 3.12 on, and so would differ from the sum of the
    same numbers held in arrays.

    Parameters
    ----------
    values : iterable of Num

    Returns
    -------
    Num
        0.0 for none.
    """
    return reduce(operator.add, values, 0.0)


def seconds_by_category(tasks: Iterable[Task]) -> dict[str, Num]:
    """Durations of tasks, by category.

    Parameters
    ----------
    tasks : iterable of Task

    Returns
    -------
    dict of str to Num
        [s], in order of first appearance.
    """
    seconds: dict[str, Num] = {}
    for task in tasks:
        for category, part in (task.parts or {task.category: task.seconds}).items():
            seconds[category] = seconds[category] + part if category in seconds else part
    return seconds


def run_lag(tasks: Sequence[Task]) -> Num:
    """How long after the host turns to a run of blocking tasks it starts at the earliest, then without a break.

    Parameters
    ----------
    tasks : sequence of Task

    Returns
    -------
    Num
        [s].

    Notes
    -----
    Task i starts at the latest of the end of the one before and of ``H + l_1 + .. + l_(i-1) + lag_i``, with ``H`` the
    host's clock before the run and ``l`` the times to issue each. So a run of work ``s_1 .. s_n`` that finds the device
    free at ``C`` ends at ``max(C, H + lag) + s_1 + .. + s_n`` with
    ``lag = max_i (l_1 + .. + l_(i-1) + lag_i - s_1 - .. - s_(i-1))``: two such runs in a row are one again.
    """
    lag: Num = 0.0
    ahead: Num = 0.0
    for task in tasks:
        lag = larger(lag, ahead + task.earliest)
        ahead = ahead + (task.host - task.seconds)
    return lag


def has_host(task: Task) -> bool:
    """Whether issuing a task takes time, as far as is known.

    Parameters
    ----------
    task : Task

    Returns
    -------
    bool
    """
    takes_time = task.host != 0.0
    return task.lag is not None or (takes_time if isinstance(takes_time, bool) else any_of(takes_time))


def _is_free(task: Task, side: frozenset[str], contested: frozenset[str], axes: frozenset[str]) -> bool:
    shared = task.waits or task.drains or task.rendezvous or task.stream in side
    return task.blocking and not shared and not task.synchronises and not _meets_others(task, contested, axes)


def _meets_others(task: Task, contested: frozenset[str], axes: frozenset[str]) -> bool:
    """Whether a transfer crosses links that other groups or stages use as well, or its group has several lanes.

    Those of tensor parallelism cross such links where they leave their NVLink domain, or where something else may be
    under way inside it. The others count as if they always did: how many events a program has must not depend on the
    number of replicas.
    """
    transfer = task.transfer
    if transfer is None:
        return False
    if task.stream != "tp" or any_of(transfer.wire.get("nic", 0.0) > 0):
        return True
    if task.moves is not None and task.moves[0] in axes:
        return True
    return any(any_of(transfer.uses(link)) for link in contested)


def _coalesce_block(block: Block, side: frozenset[str], contested: frozenset[str], axes: frozenset[str]) -> Block:
    problems = waiting_problems(block)
    if problems:
        raise ProgramError("\n".join(problems))
    merged: list[Task] = []
    moved: dict[int, int] = {}
    for free, indices in free_runs(block.tasks, side, contested, axes):
        if free:
            merged.append(_merge([block.tasks[index] for index in indices]))
            continue
        moved[indices[0]] = len(merged)
        task = block.tasks[indices[0]]
        merged.append(replace(task, waits=tuple(moved[index] for index in task.waits)) if task.waits else task)
    return replace(block, tasks=tuple(merged))


def _merge(tasks: Sequence[Task]) -> Task:
    first = tasks[0]
    if len(tasks) == 1:
        return first
    parts = seconds_by_category(tasks)
    return Task(
        name=f"{first.name} .. {tasks[-1].name}",
        stream=first.stream,
        category=next(iter(parts)) if len(parts) == 1 else MIXED,
        seconds=total(task.seconds for task in tasks),
        flop=total(task.flop for task in tasks),
        parts=parts if len(parts) > 1 else {},
        host=total(task.host for task in tasks),
        lag=run_lag(tasks) if any(has_host(task) for task in tasks) else None,
    )
