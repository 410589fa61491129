"""A timeline in the Chrome trace event format, which Perfetto and chrome://tracing load.

One process a stage. Its first thread shows whole passes, the pipeline diagram; then comes one thread for each
stream. Arrows are pipeline messages: from the end of a pass to the start of the pass that waited for it. A pair is one
slice, named after both of its passes, and its arrows are those of both. Format:
"Trace Event Format", https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from shardsim.values.program import Place
from shardsim.values.results import PAIR, PASS_KINDS, Timeline

_PASS_NAMES = ("forward", "backward", "input gradient", "weight gradient", "forward and backward")
_DIRECTIONS = {"F": 1, "B": -1, "I": -1}
"""Which way along its chain a pass of a kind sends."""
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
    paired_microbatch: int
    paired_chunk: int
    start: int
    finish: int

    @property
    def parts(self) -> tuple[tuple[str, int, int], ...]:
        """Kind, micro-batch and chunk; of a pair, those of both passes."""
        if PASS_KINDS[self.kind] == PAIR:
            return ("F", self.microbatch, self.chunk), ("B", self.paired_microbatch, self.paired_chunk)
        return ((PASS_KINDS[self.kind], self.microbatch, self.chunk),)


def write_trace(timeline: Timeline, stream: IO[bytes]) -> None:
    """Write a trace.

    Times are rounded to whole nanoseconds, so that tasks that follow each other never overlap. The same timeline
    gives the same bytes.

    Parameters
    ----------
    timeline : Timeline
        Arrows follow its chains; there are none where it has none.
    stream : binary stream
    """
    stream.write(b'{"displayTimeUnit": "ms", "traceEvents": [\n')
    separator = ""
    for event in trace_events(timeline):
        stream.write(f"{separator}{event}".encode())
        separator = ",\n"
    stream.write(b"\n]}\n")


def trace_events(timeline: Timeline) -> Iterator[str]:
    """Make the events of a trace, one JSON object each.

    Parameters
    ----------
    timeline : Timeline

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
    yield from _flows(passes, timeline.chains)
    yield from _tasks(timeline, threads)


def _threads(timeline: Timeline, *, with_passes: bool) -> dict[str, int]:
    """Number the threads of a process: passes, then the streams in a fixed order."""
    used = {stream for _, stream, _ in timeline.labels}
    ordered = [stream for stream in _FIRST_STREAMS if stream in used]
    names = [_PASSES] * with_passes + ordered + sorted(used - set(ordered))
    return {name: tid for tid, name in enumerate(names)}


def _tasks(timeline: Timeline, threads: dict[str, int]) -> Iterator[str]:
    # Everything that a label or a pass decides is rendered once: an operator-level trace has millions of events.
    heads = [
        f'{{"ph": "X", "name": {json.dumps(name)}, "cat": {json.dumps(category)}, "tid": {threads[stream]}'
        for name, stream, category in timeline.labels
    ]
    args = lru_cache(lambda *of: json.dumps(_where(*of)))
    start, finish = _nanoseconds(timeline.start), _nanoseconds(timeline.finish)
    columns = (start, finish, timeline.stage, timeline.microbatch, timeline.chunk, _paired(timeline), timeline.label)
    for begin, end, stage, microbatch, chunk, paired, label in zip(*(c.tolist() for c in columns), strict=True):
        where = f', "args": {args(microbatch, chunk, *paired)}' if microbatch >= 0 else ""
        yield f'{heads[label]}, "pid": {stage}, "ts": {begin / 1000}, "dur": {(end - begin) / 1000}{where}}}'


def _where(microbatch: int, chunk: int, paired_microbatch: int, paired_chunk: int) -> dict[str, int]:
    """To which pass a task belongs, or to which pair."""
    where = {"microbatch": microbatch, "chunk": chunk}
    if paired_microbatch >= 0:
        where |= {"backward microbatch": paired_microbatch, "backward chunk": paired_chunk}
    return where


def _paired(timeline: Timeline) -> NDArray[np.int64]:
    """Micro-batch and chunk of the backward pass of a pair, for every task; -1 outside pairs."""
    return np.full((timeline.start.size, 2), -1) if timeline.paired is None else timeline.paired


def _passes(timeline: Timeline) -> list[_Pass]:
    """Whole passes, in the order of their first task; none when the engine did not say which is which."""
    if timeline.kind is None:
        return []
    behind = np.array([stream in _BEHIND for _, stream, _ in timeline.labels], dtype=bool)
    inside = (timeline.kind >= 0) & ~behind[timeline.label]
    start, finish = _nanoseconds(timeline.start), _nanoseconds(timeline.finish)
    columns = (timeline.stage, timeline.kind, timeline.microbatch, timeline.chunk, _paired(timeline))
    keys = np.column_stack(columns)[inside]
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
        "name": " & ".join(f"{kind}{mb}" + (f".{chunk}" if chunk else "") for kind, mb, chunk in item.parts),
        "cat": _PASS_NAMES[item.kind],
        "pid": item.stage,
        "tid": 0,
        "ts": item.start / 1000,
        "dur": (item.finish - item.start) / 1000,
        "args": _where(item.microbatch, item.chunk, item.paired_microbatch, item.paired_chunk),
    }
    return json.dumps(event)


def _flows(passes: Sequence[_Pass], chains: Sequence[Sequence[Place]]) -> Iterator[str]:
    """Arrows from each pass to the one on another stage that waited for its message."""
    at = {place: (way, index) for way in chains for index, place in enumerate(way)}
    found = {
        (item.stage, chunk, _DIRECTIONS[kind], microbatch): item
        for item in passes
        for kind, microbatch, chunk in item.parts
        if kind in _DIRECTIONS
    }
    number = 0
    for (sender, chunk, direction, microbatch), item in found.items():
        way, index = at.get((sender, chunk), ((), 0))
        if not 0 <= index + direction < len(way):
            continue
        stage, other = way[index + direction]
        receiver = found.get((stage, other, direction, microbatch))
        if receiver is None or stage == sender:
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
