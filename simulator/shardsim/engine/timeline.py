"""Every task that ran, in columns: built from a plan and the times that an engine found.

Rows stand stage by stage in order of issue, which does not depend on rounding, so that the timelines of two engines
can be laid side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from shardsim.engine.steps import BlockPlan, Plan, Run, StagePlan, issue_offsets, offsets
from shardsim.values.program import Item, Pair
from shardsim.values.results import PAIR, PASS_KINDS, Timeline

if TYPE_CHECKING:
    from numpy.typing import NDArray


def timeline_from_steps(
    plan: Plan,
    starts: Sequence[NDArray[np.float64]],
    slowed_until: Sequence[NDArray[np.float64]],
    turned_to: Sequence[NDArray[np.float64]],
) -> Timeline:
    """Build a timeline from the start of every step, until when it is slowed, and when the host turned to it.

    Parameters
    ----------
    plan : Plan
    starts : sequence of ndarray of float
        For each stage, the start of each step in order [s], shape (steps,).
    slowed_until : sequence of ndarray of float
        For each stage, until when blocking work in each step is slowed [s], shape (steps,).
    turned_to : sequence of ndarray of float
        For each stage, when the host turned to each step [s], shape (steps,); minus infinity where it is waited for
        before the step starts.

    Returns
    -------
    Timeline
    """
    start, finish = [], []
    for stage, found, until, host in zip(plan.stages, starts, slowed_until, turned_to, strict=True):
        after = {id(block): _offsets(block) for block, _ in stage.uses}
        sizes = {id(block): _step_sizes(block) for block, _ in stage.uses}
        lasting = {id(block): _seconds(block) for block, _ in stage.uses}
        blocks = [id(item.block) for item in stage.passes]
        repeats = np.concatenate([sizes[block] for block in blocks])
        begin, busy = np.repeat(found, repeats), np.repeat(until, repeats)
        start.append(_later(plan, begin, _joined(after, blocks), busy))
        finish.append(_later(plan, start[-1], _joined(lasting, blocks), busy))
        if plan.hosted:
            # A task starts when the device is free and the host has issued it, whichever is later.
            lags = {id(block): _lags(block) for block, _ in stage.uses}
            issued = np.repeat(host, repeats) + _joined(lags, blocks)
            start[-1] = np.maximum(start[-1], issued)
            finish[-1] = np.maximum(finish[-1], issued + _joined(lasting, blocks))
    return _timeline(plan, np.concatenate(start), np.concatenate(finish))


def timeline_from_tasks(plan: Plan, start: Sequence[Sequence[float]], finish: Sequence[Sequence[float]]) -> Timeline:
    """Build a timeline from the start and the end of every task.

    Parameters
    ----------
    plan : Plan
    start, finish : sequence of sequence of float
        For each stage, of each task in order of issue [s].

    Returns
    -------
    Timeline
    """
    joined = [
        np.concatenate([np.asarray(column, dtype=np.float64) for column in columns]) for columns in (start, finish)
    ]
    return _timeline(plan, joined[0], joined[1])


def by_start(timeline: Timeline) -> Timeline:
    """Sort the rows of a timeline by start; equal starts by stage, then by order of issue.

    Parameters
    ----------
    timeline : Timeline

    Returns
    -------
    Timeline
        The same rows.
    """
    order = np.lexsort((np.arange(timeline.start.size), timeline.stage, timeline.start))
    return picked(timeline, order)


def picked(timeline: Timeline, rows: NDArray[np.int64] | NDArray[np.bool_]) -> Timeline:
    """Take some rows of a timeline.

    Parameters
    ----------
    timeline : Timeline
    rows : ndarray of int or bool
        Which, and in which order.

    Returns
    -------
    Timeline
    """
    return replace(
        timeline,
        start=timeline.start[rows],
        finish=timeline.finish[rows],
        stage=timeline.stage[rows],
        microbatch=timeline.microbatch[rows],
        chunk=timeline.chunk[rows],
        label=timeline.label[rows],
        kind=None if timeline.kind is None else timeline.kind[rows],
        paired=None if timeline.paired is None else timeline.paired[rows],
        lane=None if timeline.lane is None else timeline.lane[rows],
    )


def busy_seconds_by_stream(timeline: Timeline) -> dict[tuple[int, str], float]:
    """Add up how long each stream of each stage was busy.

    Parameters
    ----------
    timeline : Timeline

    Returns
    -------
    dict of (int, str) to float
        By stage and stream [s].
    """
    streams = sorted({stream for _, stream, _ in timeline.labels})
    number = {stream: index for index, stream in enumerate(streams)}
    of_label = np.array([number[stream] for _, stream, _ in timeline.labels], dtype=np.int64)
    key = timeline.stage * len(streams) + of_label[timeline.label]
    found, place = np.unique(key, return_inverse=True)
    seconds = np.bincount(place, weights=timeline.finish - timeline.start)
    return {
        (int(value) // len(streams), streams[int(value) % len(streams)]): float(busy)
        for value, busy in zip(found, seconds, strict=True)
    }


def stage_spans(timeline: Timeline) -> NDArray[np.float64]:
    """First start and last end of each stage.

    Parameters
    ----------
    timeline : Timeline

    Returns
    -------
    ndarray of float
        [s], shape (stages, 2), for the stages that ran anything.
    """
    stages = np.unique(timeline.stage)
    spans = [
        (timeline.start[timeline.stage == stage].min(), timeline.finish[timeline.stage == stage].max())
        for stage in stages
    ]
    return np.array(spans, dtype=np.float64).reshape(-1, 2)


def _timeline(plan: Plan, start: NDArray[np.float64], finish: NDArray[np.float64]) -> Timeline:
    labels: dict[tuple[str, str, str], int] = {}
    columns = [_columns(index, stage, labels) for index, stage in enumerate(plan.stages)]
    stage, kind, microbatch, chunk, *other = np.concatenate([rows for rows, _ in columns], axis=1)
    paired = np.stack(other, axis=1) if (other[0] >= 0).any() else None
    label = np.concatenate([column for _, column in columns])
    return Timeline(start, finish, stage, microbatch, chunk, label, tuple(labels), kind, paired, plan.chains)


def _columns(
    index: int, stage: StagePlan, labels: dict[tuple[str, str, str], int]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Of every task of a stage: rows of stage, kind, micro-batch, chunk and what it is paired with; and its label."""
    of_block = {
        id(block): np.array(
            [labels.setdefault((task.name, task.stream, task.category), len(labels)) for task in block.tasks],
            dtype=np.int64,
        )
        for block, _ in stage.uses
    }
    passes = np.array([(index, *identity(item.item)) for item in stage.passes], dtype=np.int64).T.copy()
    counts = [len(item.block.tasks) for item in stage.passes]
    return np.repeat(passes, counts, axis=1), np.concatenate([of_block[id(item.block)] for item in stage.passes])


def identity(item: Item | None) -> tuple[int, int, int, int, int]:
    """Name an item of a schedule as the columns of a timeline do.

    Parameters
    ----------
    item : Pass, Pair or None
        None for what comes before or after all passes.

    Returns
    -------
    tuple of int
        Kind, micro-batch and chunk of a pass, then micro-batch and chunk of the backward pass of a pair; -1 for none.
    """
    if item is None:
        return -1, -1, -1, -1, -1
    if isinstance(item, Pair):
        return PASS_KINDS.index(PAIR), *item.forward[1:], *item.backward[1:]
    return PASS_KINDS.index(item.kind), item.microbatch, item.chunk, -1, -1


def _later(
    plan: Plan, begin: NDArray[np.float64], work: NDArray[np.float64], until: NDArray[np.float64]
) -> NDArray[np.float64]:
    """When work that begins at ``begin`` is done, slowed until ``until``."""
    done = begin + work
    return done if plan.slowdown is None else done + plan.slowdown.delay(work, begin, until)


def _joined(columns: dict[int, NDArray[np.float64]], blocks: Sequence[int]) -> NDArray[np.float64]:
    return np.concatenate([columns[block] for block in blocks])


def _step_sizes(block: BlockPlan) -> NDArray[np.int64]:
    return np.array([len(step.seconds) if isinstance(step, Run) else 1 for step in block.steps], dtype=np.int64)


def _offsets(block: BlockPlan) -> NDArray[np.float64]:
    values: list[float] = []
    for step in block.steps:
        values += offsets(step.seconds) if isinstance(step, Run) else [0.0]
    return np.array(values, dtype=np.float64)


def _lags(block: BlockPlan) -> NDArray[np.float64]:
    """How long after the host turned to its step each task starts at the earliest [s]."""
    values: list[float] = []
    for step in block.steps:
        values += issue_offsets(step) if isinstance(step, Run) else [0.0]
    return np.array(values, dtype=np.float64)


def _seconds(block: BlockPlan) -> NDArray[np.float64]:
    return np.array([float(task.seconds) for task in block.tasks], dtype=np.float64)
