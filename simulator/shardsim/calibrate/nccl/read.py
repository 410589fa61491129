"""Logs in, tests out: the way into this package."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TextIO

from shardsim.calibrate.nccl.conclude import Wanted, conclude
from shardsim.calibrate.nccl.jsonfile import documents, json_segment
from shardsim.calibrate.nccl.lines import MOST_JSON, Cleaner, numbered, open_text
from shardsim.calibrate.nccl.lookalikes import LookAlike, recognise
from shardsim.calibrate.nccl.overlap import merged
from shardsim.calibrate.nccl.rows import DTYPE_BYTES
from shardsim.calibrate.nccl.segments import COLLECTIVES, MEMBERS, Segment, Segmenter, collective_name
from shardsim.calibrate.nccl.table import NcclLog, NcclTest, Refusal
from shardsim.errors import InputError, Problem

MOST_REFUSALS = 1000
"""Refusals of one log that are listed; the others are counted."""
_MOST_SIGNS = 20_000
"""Lines that are searched for signs of another tool."""
_ENOUGH = 1_000_000
"""Characters after which a file that shows signs of another tool, and none of nccl-tests, is not read further."""
_MAY_BELONG = re.compile(
    r"#|\{\"|nccl|NCCL|_perf|nThread|\b(?:size|bytes)\s+[cN]|Rank\s+\d|\d\s+\d+\s+(?:" + "|".join(DTYPE_BYTES) + ")"
)
"""What every first line of a test has some of: further down, and until one is found, other lines are passed over."""
_MOST_MARKS = 0.05
"""Share of characters that are none in a text (-)."""
_NOT_TEXT = LookAlike("not text", "give the output of nccl-tests as text or JSON")


def read_logs(
    paths: Iterable[Path],
    collective: str | None = None,
    ranks: int | None = None,
    dtype: str | None = None,
) -> tuple[NcclLog, ...]:
    """Read outputs of nccl-tests.

    Parameters
    ----------
    paths : iterable of Path
        Text of any vintage, with whatever a launcher, NCCL or a terminal put between, or the JSON of ``-J``.
    collective : str or None
        What the tests are where a log does not say; tests that are another are left out. Any name or spelling of it,
        such as ``all_to_all`` for nccl-tests' ``alltoall``.
    ranks : int or None
        Members of the group where a log does not say (-); tests whose busbw/algbw contradicts are left out.
    dtype : str or None
        Read only this data type, by its name in nccl-tests.

    Returns
    -------
    tuple of NcclLog
        One for each path, in order. Whatever was not read is in ``refused``, with its reason.

    Raises
    ------
    InputError
        A file that cannot be opened, an argument that names nothing, or not one row to read in all files together.
    """
    wanted = _wanted(collective, ranks, dtype)
    problems: list[Problem] = []
    logs: list[NcclLog] = []
    for path in paths:
        try:
            logs.append(_read(path, wanted))
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(problems)
    if logs and not any(log.tests for log in logs):
        raise InputError(
            [
                Problem(refusal.what, f"{log.file}:{refusal.line}" if refusal.line else log.file, refusal.right)
                for log in logs
                for refusal in log.refused[:20]
            ]
        )
    return tuple(logs)


def _wanted(collective: str | None, ranks: int | None, dtype: str | None) -> Wanted:
    problems = []
    name = None if collective is None else collective_name(collective)
    if collective is not None and name is None:
        problems.append(
            Problem(f"{collective!r} is no collective of nccl-tests", "collective", f"one of {', '.join(COLLECTIVES)}")
        )
    if ranks is not None and ranks < 1:
        problems.append(Problem(f"{ranks} is not a number of ranks", "ranks", "1 or more"))
    if dtype is not None and dtype not in DTYPE_BYTES:
        problems.append(
            Problem(f"{dtype!r} is no data type of nccl-tests", "dtype", f"one of {', '.join(DTYPE_BYTES)}")
        )
    if problems:
        raise InputError(problems)
    return Wanted(name, ranks, dtype)


def _read(path: Path, wanted: Wanted) -> NcclLog:
    file = str(path)
    with open_text(path) as stream:
        try:
            segments, looks = _segments(stream)
        except InputError as error:
            return NcclLog(file, (), tuple(Refusal(0, problem.what, problem.right) for problem in error.problems))
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise InputError(Problem(f"cannot be read: {reason}", file)) from None
    tests: list[NcclTest] = []
    refused: list[Refusal] = []
    for segment in segments:
        found, bad = conclude(segment, file, wanted)
        tests += found
        refused += bad
    if not tests and not refused:
        refused.append(_nothing(looks))
    elif not tests and looks is not None and not any(segment.rows or segment.has_preamble for segment in segments):
        refused = [_nothing(looks)]
    return NcclLog(file, tuple(tests), tuple(refused[:MOST_REFUSALS]), max(0, len(refused) - MOST_REFUSALS))


def _nothing(looks: LookAlike | None) -> Refusal:
    if looks is not None:
        return Refusal(0, f"is {looks.what}", looks.right)
    return Refusal(0, "holds no table of nccl-tests", "is it the file you meant?")


def _segments(stream: TextIO) -> tuple[Sequence[Segment], LookAlike | None]:
    """Cut a stream into segments; and what else it looks like."""
    start = stream.readline(64)
    if start.lstrip("\ufeff \t\r\n").startswith(("{", "[")):
        text = start + stream.read(MOST_JSON)
        if _claims_json(text):
            if len(text) >= MOST_JSON:
                raise InputError(Problem(f"is JSON of more than {MOST_JSON:,} characters"))
            return _json_segments(text.lstrip("\ufeff"), 1), None
        return _text_segments(numbered(io.StringIO(text)))
    if not start.endswith("\n"):
        start += stream.readline(1 << 16)
    return _text_segments(chain(numbered(io.StringIO(start)), ((n + 1, line) for n, line in numbered(stream))))


def _json_segments(text: str, line: int) -> list[Segment]:
    """Segments of JSON documents; what is damaged becomes one without rows, and ends the reading of this text."""
    found: list[Segment] = []
    try:
        for document in documents(text):
            found.append(json_segment(document, line))  # noqa: PERF401  # those before a damaged one are kept
    except InputError as error:
        refused = [Refusal(line if line > 1 else 0, problem.what, problem.right) for problem in error.problems]
        found.append(Segment(line, refused=refused))
    return found


def _claims_json(text: str) -> bool:
    """Whether a text that begins with a bracket is JSON, not a log with a launcher's prefix."""
    start = text.lstrip("\ufeff \t\r\n")[:200]
    return (start.startswith("{") and '"' in start[:40]) or start.lstrip("[ \t\r\n").startswith("{")


@dataclass(slots=True)
class _Start:
    """The first lines of a file: characters, and how many of them are none."""

    seen: int = 0
    marks: int = 0

    @property
    def is_over(self) -> bool:
        return self.seen >= _ENOUGH

    @property
    def is_no_text(self) -> bool:
        return self.marks > _MOST_MARKS * self.seen

    def ends_with(self, line: str) -> bool:
        """Take a line; whether it is the last one."""
        self.seen += len(line) + 1
        self.marks += line.count("\ufffd") + line.count("\0")
        return self.is_over


def _text_segments(lines: Iterator[tuple[int, str]]) -> tuple[Sequence[Segment], LookAlike | None]:
    cleaner = Cleaner()
    streams: dict[str, Segmenter] = {}
    order: list[Segment] = []
    looks: LookAlike | None = None
    messages = 0
    early: set[int] = set()
    start = _Start()
    is_known = False  # whether anything of nccl-tests was seen
    for searched, (number, line) in enumerate(lines):
        if not start.is_over:
            if start.ends_with(line) and not (order or messages or is_known) and (start.is_no_text or looks):
                return [], _NOT_TEXT if start.is_no_text else looks
        elif not is_known and not _MAY_BELONG.search(line):
            continue
        stream, text, message = cleaner.clean(line)
        if text.lstrip().startswith('{"version"'):
            order += _json_segments(text, number)
            continue
        if "nranks" in message and (told := MEMBERS.search(message)):
            early.update([int(told[1])] if len(early) < 8 else [])
            for segmenter in streams.values():
                segmenter.members(int(told[1]))
        messages += bool(message)
        if not text:
            continue
        segmenter = streams.setdefault(stream, Segmenter(early))
        belongs = segmenter.feed(text, message, number)
        is_known = is_known or (belongs and segmenter.has_found)
        if looks is None and not belongs and not message and searched < _MOST_SIGNS:
            looks = recognise(text)
    if looks is None and messages:
        looks = LookAlike("NCCL's own messages without a table of nccl-tests", "give the output of the test as well")
    segments = order + [segment for each in streams.values() for segment in merged(each.segments, each.events)]
    return sorted(segments, key=lambda segment: segment.line), looks
