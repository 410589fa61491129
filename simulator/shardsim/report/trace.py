"""A timeline in the Chrome trace event format, which Perfetto and chrome://tracing load.

One process a stage. Its first thread shows whole passes, the pipeline diagram; then comes one thread for each
stream. Arrows are pipeline messages: from the end of a pass to the start of the pass that waited for it. Format:
"Trace Event Format", https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from shardsim.values.results import PASS_KINDS, Timeline

_PASS_NAMES = ("forward", "backward", "weight gradient")
_PASSES = "passes"
_FIRST_STREAMS = ("compute", "tp", "cp", "ep", "pp", "dp")
_BEHIND = frozenset({"dp"})
"""Streams whose tasks may outlast the pass that queued them."""


@dataclass(frozen=True, slots=True)
class _Pass:
    """One pass of one stage, times in whole nanoseconds."""

    stage: int
    kind: int
    microbatch: int
    chunk: int
    start: int
    finish: int


def write_trace(timeline: Timeline, stream: IO[bytes], virtual_stages: Sequence[tuple[int, int]] | None = None) -> None:
    """Write a trace.

    Times are rounded to whole nanoseconds, so that tasks that follow each other never overlap. The same timeline
    gives the same bytes.

    Parameters
    ----------
    timeline : Timeline
    stream : binary stream
    virtual_stages : sequence of (int, int), optional
        Stage and chunk of each virtual stage, first layers first; by default chunk 0 of every stage, then chunk 1 of
        every stage, and so on, as GPipe, 1F1B and interleaved 1F1B place them.
    """
    stream.write(b'{"displayTimeUnit": "ms", "traceEvents": [\n')
    separator = ""
    for event in trace_events(timeline, virtual_stages):
        stream.write(f"{separator}{event}".encode())
        separator = ",\n"
    stream.write(b"\n]}\n")


def trace_events(timeline: Timeline, virtual_stages: Sequence[tuple[int, int]] | None = None) -> Iterator[str]:
    """Make the events of a trace, one JSON object each.

    Parameters
    ----------
    timeline : Timeline
    virtual_stages : sequence of (int, int), optional
        As in :func:`write_trace`.

    Yields
    ------
    str
        Names of processes and threads, then passes and their messages, then tasks.
    """
    passes = _passes(timeline)
    threads = _threads(timeline, with_passes=bool(passes))
    stages = sorted({int(stage) for stage in np.unique(timeline.stage)})
    for stage in stages:
        yield _named("process_name", stage, 0, name=f"stage {stage}")
        yield _named("process_sort_index", stage, 0, sort_index=stage)
        for thread, tid in threads.items():
            yield _named("thread_name", stage, tid, name=thread)
            yield _named("thread_sort_index", stage, tid, sort_index=tid)
    for item in passes:
        yield _pass_event(item)
    yield from _flows(passes, virtual_stages or _looped(passes))
    yield from _tasks(timeline, threads)


def _threads(timeline: Timeline, *, with_passes: bool) -> dict[str, int]:
    """Number the threads of a process: passes, then the streams in a fixed order."""
    used = {stream for _, stream, _ in timeline.labels}
    ordered = [stream for stream in _FIRST_STREAMS if stream in used]
    names = [_PASSES] * with_passes + ordered + sorted(used - set(ordered))
    return {name: tid for tid, name in enumerate(names)}


def _tasks(timeline: Timeline, threads: dict[str, int]) -> Iterator[str]:
    # Everything that a label decides is rendered once: an operator-level trace has millions of events.
    heads = [
        f'{{"ph": "X", "name": {json.dumps(name)}, "cat": {json.dumps(category)}, "tid": {threads[stream]}'
        for name, stream, category in timeline.labels
    ]
    start, finish = _nanoseconds(timeline.start), _nanoseconds(timeline.finish)
    columns = (start, finish, timeline.stage, timeline.microbatch, timeline.chunk, timeline.label)
    for begin, end, stage, microbatch, chunk, label in zip(*(column.tolist() for column in columns), strict=True):
        where = f', "args": {{"microbatch": {microbatch}, "chunk": {chunk}}}' if microbatch >= 0 else ""
        yield f'{heads[label]}, "pid": {stage}, "ts": {begin / 1000}, "dur": {(end - begin) / 1000}{where}}}'


def _passes(timeline: Timeline) -> list[_Pass]:
    """Whole passes, in the order of their first task; none when the engine did not say which is which."""
    if timeline.kind is None:
        return []
    behind = np.array([stream in _BEHIND for _, stream, _ in timeline.labels], dtype=bool)
    inside = (timeline.kind >= 0) & ~behind[timeline.label]
    start, finish = _nanoseconds(timeline.start), _nanoseconds(timeline.finish)
    columns = (timeline.stage, timeline.kind, timeline.microbatch, timeline.chunk)
    keys = np.stack([column[inside] for column in columns], axis=1)
    found, first, place = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    begin = np.full(len(found), np.iinfo(np.int64).max)
    end = np.full(len(found), np.iinfo(np.int64).min)
    np.minimum.at(begin, place.reshape(-1), start[inside])
    np.maximum.at(end, place.reshape(-1), finish[inside])
    order = np.argsort(first, kind="stable").tolist()
    return [_Pass(*map(int, (*found[i], begin[i], end[i]))) for i in order]


def _pass_event(item: _Pass) -> str:
    event = {
        "ph": "X",
        "name": f"{PASS_KINDS[item.kind]}{item.microbatch}" + (f".{item.chunk}" if item.chunk else ""),
        "cat": _PASS_NAMES[item.kind],
        "pid": item.stage,
        "tid": 0,
        "ts": item.start / 1000,
        "dur": (item.finish - item.start) / 1000,
        "args": {"microbatch": item.microbatch, "chunk": item.chunk},
    }
    return json.dumps(event)


def _looped(passes: Sequence[_Pass]) -> list[tuple[int, int]]:
    stages = sorted({item.stage for item in passes})
    chunks = sorted({item.chunk for item in passes})
    return [(stage, chunk) for chunk in chunks for stage in stages]


def _flows(passes: Sequence[_Pass], virtual_stages: Sequence[tuple[int, int]]) -> Iterator[str]:
    """Arrows from each pass to the one on another stage that waited for its message."""
    by_key = {(item.stage, item.chunk, item.kind, item.microbatch): item for item in passes}
    place = {virtual: index for index, virtual in enumerate(virtual_stages)}
    forward, backward = PASS_KINDS.index("F"), PASS_KINDS.index("B")
    steps = {forward: 1, backward: -1}
    number = 0
    for item in passes:
        target = place[item.stage, item.chunk] + steps.get(item.kind, 0)
        if item.kind not in steps or not 0 <= target < len(virtual_stages):
            continue
        stage, chunk = virtual_stages[target]
        receiver = by_key.get((stage, chunk, item.kind, item.microbatch))
        if receiver is None or stage == item.stage:
            continue
        number += 1
        # A flow hangs on the slice that encloses its time, so it leaves a nanosecond before the end.
        leaves = max(item.start, item.finish - 1)
        arrow = {"name": "message", "cat": "message", "id": number}
        yield json.dumps({"ph": "s", **arrow, "pid": item.stage, "tid": 0, "ts": leaves / 1000})
        yield json.dumps({"ph": "f", "bp": "e", **arrow, "pid": stage, "tid": 0, "ts": receiver.start / 1000})


def _named(what: str, pid: int, tid: int, **args: Any) -> str:
    return json.dumps({"ph": "M", "name": what, "pid": pid, "tid": tid, "args": args})


def _nanoseconds(seconds: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.rint(seconds * 1e9).astype(np.int64)
