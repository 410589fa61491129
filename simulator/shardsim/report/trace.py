"""A timeline in the Chrome trace event format, which Perfetto and chrome://tracing load.

One process a class of ranks that do the same. Its first thread shows whole passes, the pipeline diagram; then comes one
thread for each stream, and what a GPU holds as a counter. Arrows are pipeline messages: from the end of a pass to the
start of the pass that waited for it. A pair is one slice, named after both of its passes, and its arrows are those of
both. A last process counts how much of each link is in use. Format:
"Trace Event Format", https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from shardsim.report.save import save_with
from shardsim.report.trace_counters import LINK_UNIT, MEMORY_UNIT, link_events, memory_events
from shardsim.report.trace_passes import (
    find_passes,
    lanes_of,
    message_events,
    nanoseconds,
    pass_args,
    pass_codes,
    pass_events,
    pass_name,
)
from shardsim.values.results import LaneName, MemoryHistory, Timeline

_Ints = NDArray[np.int64]

MOST_TASKS = 1_000_000
"""Tasks of which each is a slice of its own (-). So many take some 150 MB, about what a browser can still load: Chrome
reads a trace into one string, and those end at 512 MB."""

_PASSES = "passes"
_FIRST_STREAMS = ("compute", "tp", "cp", "ep", "dp", "pp")
_AT_ONCE = 8_192
"""Rows that are rendered at once (-), so that memory does not grow with the text."""


class Output(Protocol):
    """What takes bytes: an open file, or one that compresses."""

    def write(self, data: bytes, /) -> object:
        """Take some bytes."""


def save_trace(path: Path, timeline: Timeline, memory: Sequence[MemoryHistory] = ()) -> str:
    """Write a trace into a file, whole or not at all; compressed where its name ends in ``.gz``.

    Parameters
    ----------
    path : Path
    timeline, memory
        See :func:`write_trace`.

    Returns
    -------
    str
        What a reader of the trace should know, for the screen; empty for nothing.

    Raises
    ------
    OSError
        It cannot be written; nothing is left behind.
    """

    def write(stream: IO[bytes]) -> None:
        if path.suffix.lower() != ".gz":
            write_trace(timeline, stream, memory, MOST_TASKS)
            return
        # Neither name nor time go into the header: the same timeline gives the same bytes.
        with gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=stream, mtime=0) as packed:
            write_trace(timeline, packed, memory, MOST_TASKS)

    save_with(path, write)
    merged = _merged(timeline, MOST_TASKS)
    return f"{path}: {merged}" if merged else ""


def write_trace(
    timeline: Timeline, stream: Output, memory: Sequence[MemoryHistory] = (), most: int = MOST_TASKS
) -> None:
    """Write a trace, event by event.

    Times are rounded to whole nanoseconds, so that tasks that follow each other never overlap. The same timeline
    gives the same bytes.

    Parameters
    ----------
    timeline : Timeline
        Arrows follow its chains; there are none where it has none.
    stream : Output
    memory : sequence of MemoryHistory
        What a GPU of each lane holds, by lane, or by stage where every stage is one; empty for nothing.
    most : int
        With more tasks than that (-), those of a pass that follow each other on a stream are one slice.
    """
    told = {
        "producer": "shardsim",
        "times": "ts and dur are simulated time in microseconds, from the start of the iteration",
        "memory": f"{MEMORY_UNIT} that the tensors of one GPU take",
        "links": f"{LINK_UNIT} of the capacity of one link, all its transfers together",
        "tasks": _merged(timeline, most) or "each is a slice of its own",
    }
    stream.write(f'{{"displayTimeUnit": "ms", "otherData": {json.dumps(told)}, "traceEvents": [\n'.encode())
    separator = ""
    for event in trace_events(timeline, memory, most):
        stream.write(f"{separator}{event}".encode())
        separator = ",\n"
    stream.write(b"\n]}\n")


def trace_events(timeline: Timeline, memory: Sequence[MemoryHistory] = (), most: int = MOST_TASKS) -> Iterator[str]:
    """Make the events of a trace, one JSON object each.

    Parameters
    ----------
    timeline, memory, most
        See :func:`write_trace`.

    Yields
    ------
    str
        Names of processes and threads, then passes and their messages, then tasks in the order of each thread, then
        counters.
    """
    passes = find_passes(timeline)
    threads = _threads(timeline, with_passes=bool(passes.lane.size))
    names = lane_names(timeline)
    after = max(names, default=-1) + 1
    for pid, name in names.items():
        yield from _process(pid, name)
        for thread, tid in threads.items():
            yield _named("thread_name", pid, tid, name=thread)
            yield _named("thread_sort_index", pid, tid, sort_index=tid)
    if timeline.links:
        yield from _process(after, "links")
    yield from pass_events(passes)
    yield from message_events(passes, timeline.chains, timeline.lanes)
    del passes  # millions of them may be in the way of what comes next
    slices = _tasks if timeline.start.size <= most else _runs
    yield from slices(timeline, threads)
    yield from memory_events(memory)
    yield from link_events(timeline.links, after)


def lane_names(timeline: Timeline) -> dict[int, str]:
    """Name the lanes that ran anything.

    Parameters
    ----------
    timeline : Timeline

    Returns
    -------
    dict of int to str
        By lane, in ascending order: the stage, what sets the lane apart, and how many GPUs it stands for; of several
        that nothing else sets apart, the class of pipelines as well.
    """
    used = [int(lane) for lane in np.unique(lanes_of(timeline))]
    if not timeline.lanes:
        return {stage: f"stage {stage}" for stage in used}
    alike = Counter((timeline.lanes[lane].stage, timeline.lanes[lane].name) for lane in used)
    return {
        lane: _lane_name(timeline.lanes[lane], alone=alike[timeline.lanes[lane].stage, timeline.lanes[lane].name] == 1)
        for lane in used
    }


def _lane_name(lane: LaneName, *, alone: bool) -> str:
    parts = [f"stage {lane.stage}"] + ([lane.name] if lane.name else [])
    parts += [] if alone else [f"pipeline class {lane.column}"]
    return f"{', '.join(parts)} ({lane.ranks:,} GPU{'s' * (lane.ranks != 1)})"


def _merged(timeline: Timeline, most: int) -> str:
    """Say that tasks are merged; empty where they are not."""
    if timeline.start.size <= most:
        return ""
    return (
        f"{timeline.start.size:,} tasks are more than {most:,}: "
        "those of a pass that follow each other on a stream are one slice"
    )


def _threads(timeline: Timeline, *, with_passes: bool) -> dict[str, int]:
    """Number the threads of a process: passes, then the streams in a fixed order."""
    used = {stream for _, stream, _ in timeline.labels}
    ordered = [stream for stream in _FIRST_STREAMS if stream in used]
    names = [_PASSES] * with_passes + ordered + sorted(used - set(ordered))
    return {name: tid for tid, name in enumerate(names)}


def _in_order(timeline: Timeline, threads: Mapping[str, int]) -> tuple[_Ints, _Ints, _Ints]:
    """Rows thread by thread in the order of their times, with start and finish in whole nanoseconds."""
    tids = np.array([threads[stream] for _, stream, _ in timeline.labels], dtype=np.int64)[timeline.label]
    start, finish = nanoseconds(timeline.start), nanoseconds(timeline.finish)
    lane = lanes_of(timeline)
    order = np.lexsort((finish, start, tids, lane))
    start, finish = start[order], finish[order]
    # An end and the start that follows from it may differ in the last bit, and be rounded to different nanoseconds.
    together = (lane[order][1:] == lane[order][:-1]) & (tids[order][1:] == tids[order][:-1])
    finish[:-1] -= together & (finish[:-1] == start[1:] + 1) & (start[:-1] < finish[:-1])
    return order, start, finish


def _tasks(timeline: Timeline, threads: Mapping[str, int]) -> Iterator[str]:
    """One slice for each task."""
    # Everything that a label or a pass decides is rendered once: an operator-level trace has millions of events.
    heads = [
        f'{{"ph": "X", "name": {json.dumps(name)}, "cat": {json.dumps(category)}, "tid": {threads[stream]}'
        for name, stream, category in timeline.labels
    ]
    args = lru_cache(lambda *of: json.dumps(pass_args(*of)))
    lanes = lanes_of(timeline)
    rows, start, finish = _in_order(timeline, threads)
    for low in range(0, rows.size, _AT_ONCE):
        part = slice(low, low + _AT_ONCE)
        some = rows[part]
        times = (start[part], finish[part], lanes[some], timeline.label[some])
        items = zip(*(column.tolist() for column in _pass_of(timeline, some)), strict=True)
        for begin, end, pid, label, item in zip(*(column.tolist() for column in times), items, strict=True):
            where = f', "args": {args(*item)}' if item[0] >= 0 else ""
            yield f'{heads[label]}, "pid": {pid}, "ts": {begin / 1000}, "dur": {(end - begin) / 1000}{where}}}'


def _runs(timeline: Timeline, threads: Mapping[str, int]) -> Iterator[str]:
    """One slice for the tasks of a pass that follow each other on a stream."""
    rows, start, finish = _in_order(timeline, threads)
    stream = np.array([threads[stream] for _, stream, _ in timeline.labels], dtype=np.int64)[timeline.label[rows]]
    codes = pass_codes(timeline)[rows]
    first = np.flatnonzero(np.r_[True, (codes[1:] != codes[:-1]) | (stream[1:] != stream[:-1])][: rows.size])
    counts = np.diff(np.r_[first, rows.size])
    busy = np.add.reduceat(finish - start, first)
    start, finish = start[first], np.maximum.reduceat(finish, first)
    one, tid = rows[first], stream[first]
    kind = np.full(one.size, -1) if timeline.kind is None else timeline.kind[one]
    columns = (lanes_of(timeline)[one], tid, start, finish, busy, counts, kind, timeline.label[one])
    for row, item in zip(zip(*columns, strict=True), zip(*_pass_of(timeline, one), strict=True), strict=True):
        pid, tid_, begin, end, worked, count, of_kind, label = map(int, row)
        name, _, category = timeline.labels[label]
        which = tuple(map(int, item))
        if count > 1:
            name = f"{pass_name(of_kind, *which)}: {count:,} tasks" if of_kind >= 0 else f"{count:,} tasks"
            category = "merged"
        args = pass_args(*which) if which[0] >= 0 else {}
        event = {"ph": "X", "name": name, "cat": category, "tid": tid_, "pid": pid, "ts": begin / 1000}
        event |= {"dur": (end - begin) / 1000, "args": args | {"tasks": count, "busy in microseconds": worked / 1000}}
        yield json.dumps(event)


def _pass_of(timeline: Timeline, rows: _Ints) -> list[_Ints]:
    """Micro-batch and chunk of some rows, and those of the backward pass of a pair; -1 outside."""
    paired = np.full((rows.size, 2), -1) if timeline.paired is None else timeline.paired[rows]
    return [timeline.microbatch[rows], timeline.chunk[rows], *paired.T]


def _process(pid: int, name: str) -> Iterator[str]:
    yield _named("process_name", pid, 0, name=name)
    yield _named("process_sort_index", pid, 0, sort_index=pid)


def _named(what: str, pid: int, tid: int, **args: Any) -> str:
    return json.dumps({"ph": "M", "name": what, "pid": pid, "tid": tid, "args": args})
