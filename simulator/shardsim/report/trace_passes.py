"""Whole passes of a timeline, and the messages between them, as events of a trace.

Everything is in columns: a trace may hold millions of passes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardsim.values.program import Place
from shardsim.values.results import PAIR, PASS_KINDS, LaneName, Timeline

_Ints = NDArray[np.int64]

_KIND_NAMES = ("forward", "backward", "input gradient", "weight gradient", "forward and backward")
_FORWARD = tuple(kind in ("F", PAIR) for kind in PASS_KINDS)
_BACKWARD = tuple(kind in ("B", "I", PAIR) for kind in PASS_KINDS)
"""Whether passes of a kind send a message up the chain, and down."""
_PAIRED = PASS_KINDS.index(PAIR)
_BEHIND = frozenset({"dp"})
"""Streams whose tasks may outlast the pass that queued them."""


@dataclass(frozen=True, slots=True)
class Passes:
    """Passes in columns, lane by lane by time; times in whole nanoseconds.

    Parameters
    ----------
    lane, stage, kind, microbatch, chunk, paired_microbatch, paired_chunk, start, finish : ndarray of int
        As in ``Timeline``, shape (passes,).
    """

    lane: _Ints
    stage: _Ints
    kind: _Ints
    microbatch: _Ints
    chunk: _Ints
    paired_microbatch: _Ints
    paired_chunk: _Ints
    start: _Ints
    finish: _Ints


def nanoseconds(seconds: NDArray[np.float64]) -> _Ints:
    """Round times [s] to whole nanoseconds."""
    return np.rint(seconds * 1e9).astype(np.int64)


def lanes_of(timeline: Timeline) -> _Ints:
    """The lane of every task; its stage where every stage is one lane."""
    return timeline.stage if timeline.lane is None else timeline.lane


def pass_codes(timeline: Timeline) -> _Ints:
    """One number for every task, the same for tasks of the same pass, and for those of a lane outside passes."""
    columns = [lanes_of(timeline), timeline.microbatch, timeline.chunk]
    columns += [] if timeline.kind is None else [timeline.kind]
    columns += [] if timeline.paired is None else list(timeline.paired.T)
    return _codes(columns, [_size(column) for column in columns])


def find_passes(timeline: Timeline) -> Passes:
    """Find whole passes.

    What runs on a side stream may outlast the pass that queued it: a pass ends at the latest when the next one of its
    lane starts.

    Parameters
    ----------
    timeline : Timeline

    Returns
    -------
    Passes
        Empty when the engine did not say which task belongs to which.
    """
    if timeline.kind is None:
        nothing = np.zeros(0, dtype=np.int64)
        return Passes(*(nothing,) * 9)
    behind = np.array([stream in _BEHIND for _, stream, _ in timeline.labels], dtype=bool)
    rows = np.flatnonzero((timeline.kind >= 0) & ~behind[timeline.label])
    _, first, place = np.unique(pass_codes(timeline)[rows], return_index=True, return_inverse=True)
    start = np.full(first.size, np.iinfo(np.int64).max)
    finish = np.full(first.size, np.iinfo(np.int64).min)
    np.minimum.at(start, place, nanoseconds(timeline.start[rows]))
    np.maximum.at(finish, place, nanoseconds(timeline.finish[rows]))
    one = rows[first]
    lane = lanes_of(timeline)[one]
    order = np.lexsort((one, finish, start, lane))
    one, lane, start, finish = one[order], lane[order], start[order], finish[order]
    follows = np.flatnonzero(lane[1:] == lane[:-1])
    finish[follows] = np.minimum(finish[follows], start[follows + 1])
    paired = np.full((one.size, 2), -1) if timeline.paired is None else timeline.paired[one]
    return Passes(
        lane,
        timeline.stage[one],
        timeline.kind[one],
        timeline.microbatch[one],
        timeline.chunk[one],
        paired[:, 0],
        paired[:, 1],
        start,
        finish,
    )


def pass_name(kind: int, microbatch: int, chunk: int, paired_microbatch: int, paired_chunk: int) -> str:
    """Name a pass as a pipeline diagram does.

    >>> pass_name(0, 3, 0, -1, -1), pass_name(4, 7, 0, 2, 1)
    ('F3', 'F7 & B2.1')
    """
    parts = [(PASS_KINDS[kind], microbatch, chunk)]
    if kind == _PAIRED:
        parts = [("F", microbatch, chunk), ("B", paired_microbatch, paired_chunk)]
    return " & ".join(f"{name}{number}" + (f".{piece}" if piece else "") for name, number, piece in parts)


def pass_args(microbatch: int, chunk: int, paired_microbatch: int, paired_chunk: int) -> dict[str, Any]:
    """To which pass a task belongs, or to which pair."""
    args = {"microbatch": microbatch, "chunk": chunk}
    if paired_microbatch >= 0:
        args |= {"backward microbatch": paired_microbatch, "backward chunk": paired_chunk}
    return args


def pass_events(passes: Passes) -> Iterator[str]:
    """One slice for each pass, on the first thread of its lane."""
    columns = (passes.lane, passes.start, passes.finish, passes.kind)
    which = (passes.microbatch, passes.chunk, passes.paired_microbatch, passes.paired_chunk)
    for lane, start, finish, kind, *item in zip(*columns, *which, strict=True):
        of_pass = tuple(map(int, item))
        event = {
            "ph": "X",
            "name": pass_name(int(kind), *of_pass),
            "cat": _KIND_NAMES[kind],
            "pid": int(lane),
            "tid": 0,
            "ts": int(start) / 1000,
            "dur": int(finish - start) / 1000,
            "args": pass_args(*of_pass),
        }
        yield json.dumps(event)


def message_events(passes: Passes, chains: Sequence[Sequence[Place]], lanes: Sequence[LaneName]) -> Iterator[str]:
    """Arrows from each pass to the one on another stage that waited for its message.

    Parameters
    ----------
    passes : Passes
    chains : sequence of sequence of (int, int)
        Ways through the stages, as in ``Timeline``.
    lanes : sequence of LaneName
        As in ``Timeline``: messages stay within a column.

    Yields
    ------
    str
        The start and the end of an arrow, one after the other.
    """
    for number, (sender, receiver) in enumerate(zip(*_messages(passes, chains, lanes), strict=True), start=1):
        # An arrow hangs on the slice that encloses its time, so it leaves a nanosecond before the end; and where work
        # on a side stream lasts longer than what was sent, no later than it arrives.
        arrives = int(passes.start[receiver])
        leaves = max(int(passes.start[sender]), min(int(passes.finish[sender]) - 1, arrives))
        arrow = {"name": "message", "cat": "message", "id": number}
        yield json.dumps({"ph": "s", **arrow, "pid": int(passes.lane[sender]), "tid": 0, "ts": leaves / 1000})
        receives = {"pid": int(passes.lane[receiver]), "tid": 0, "ts": arrives / 1000}
        yield json.dumps({"ph": "f", "bp": "e", **arrow, **receives})


def _messages(passes: Passes, chains: Sequence[Sequence[Place]], lanes: Sequence[LaneName]) -> tuple[_Ints, _Ints]:
    """Sender and receiver of every message: indices of passes, in the order of the senders."""
    nothing = np.zeros(0, dtype=np.int64)
    if not chains or not passes.lane.size:
        return nothing, nothing
    column = np.array([lane.column for lane in lanes], dtype=np.int64)[passes.lane] if lanes else 0 * passes.lane
    up, down = np.array(_FORWARD)[passes.kind], np.array(_BACKWARD)[passes.kind]
    pair = passes.kind == _PAIRED
    index = np.concatenate([np.flatnonzero(up), np.flatnonzero(down)])
    backward = np.repeat([0, 1], [up.sum(), down.sum()])
    microbatch = np.r_[passes.microbatch[up], np.where(pair, passes.paired_microbatch, passes.microbatch)[down]]
    chunk = np.r_[passes.chunk[up], np.where(pair, passes.paired_chunk, passes.chunk)[down]]
    stage = passes.stage[index]
    target = _next(chains, int(stage.max()) + 1, int(chunk.max()) + 1)[backward, stage, chunk]
    columns = [column[index], backward, microbatch, stage, chunk]
    sizes = [_size(part) for part in (*columns[:3], np.r_[stage, target[:, 0]], np.r_[chunk, target[:, 1]])]
    here, there = _codes(columns, sizes), _codes([*columns[:3], *target.T], sizes)
    order = np.argsort(here)
    at = order[np.minimum(np.searchsorted(here, there, sorter=order), order.size - 1)]
    lasting = (passes.finish > passes.start)[index]
    sent = np.flatnonzero((target[:, 0] >= 0) & (here[at] == there) & (target[:, 0] != stage) & lasting & lasting[at])
    sent = sent[np.lexsort((backward[sent], index[sent]))]
    return index[sent], index[at[sent]]


def _next(chains: Sequence[Sequence[Place]], stages: int, chunks: int) -> _Ints:
    """To which stage and chunk a pass sends, by whether it is a backward one, its stage and chunk; -1 for nowhere."""
    found = np.full((2, stages, chunks, 2), -1)
    for way in chains:
        for one, other in pairwise(way):
            for backward, (stage, chunk), target in ((0, one, other), (1, other, one)):
                if stage < stages and chunk < chunks:
                    found[backward, stage, chunk] = target
    return found


def _size(column: _Ints) -> int:
    """How many values a column has, from -1 on."""
    return int(column.max(initial=-1)) + 2


def _codes(columns: Sequence[_Ints], sizes: Sequence[int]) -> _Ints:
    """One number for each row of some columns with values from -1 on."""
    code = columns[0] + 1
    for column, size in zip(columns[1:], sizes[1:], strict=True):
        code = code * size + (column + 1)
    return code
