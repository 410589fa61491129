"""Text into segments: what stands around each table and the rows in it, before anything is concluded from them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from shardsim.calibrate.nccl.rows import Columns, RawRow, TornRow, parse_columns, parse_row
from shardsim.calibrate.nccl.table import Refusal

_ARGUMENTS = re.compile(
    r"nThread:?\s+\d+\s+nGpus:?\s+\d+\s+minBytes:?\s+(\d{1,18})\s+maxBytes:?\s+(\d{1,18})"
    r"\s+step:\s+(\d{1,18})\s*\((factor|bytes)\)"
)
_RANK = re.compile(
    r"Rank\s+(\d{1,7})\s+(?:Group\s+(\d{1,7})\s+)?(?:Pid\s+(\d+)\s+)?on\s+(\S+)\s+device\s+(\d{1,4})\s+"
    r"\[([^\]]*)\]\s*(.*)"
)
_FIRST_DEVICE = re.compile(r"Device\s+(\d{1,4})\s+->\s+(\d{1,4})\s+\[[^\]]*\]\s*(.*)")
_BANNER = re.compile(r"(?:nccl|rccl)-tests:?\s+version:?\s*\S+(?:.*nccl-library=(\d{4,6}))?", re.IGNORECASE)
_TEST = re.compile(r"Collective test (starting|concluded):\s*(\S+)")
_PROGRAM = re.compile(r"(?:^|[^A-Za-z0-9_])([a-z_]{4,24})_perf(?:_mpi)?\b")
_BOUNDS = re.compile(r"Out of bounds values\s*:\s*(\d+)\s*(OK|FAILED)")
_AVERAGE = re.compile(r"Avg bus bandwidth\s*:\s*\d")
_REDUCED = re.compile(r"Reducing maxBytes to (\d{1,18})")
_VERSION = re.compile(r"^(?:NCCL|RCCL) version\s*:?\s*(\d+\.\d+(?:\.\d+)?)")
MEMBERS = re.compile(r"\bnranks (\d{1,7})\b")
"""The size of a communicator, in a message of NCCL."""
_FAILURE = re.compile(r"Test (?:NCCL |CUDA )?failure")

COLLECTIVES = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "alltoall",
    "broadcast",
    "reduce",
    "sendrecv",
    "gather",
    "scatter",
    "hypercube",
    "alltoallv",
)
"""Collectives of nccl-tests, by its names."""
ALIASES = {
    "all_to_all": "alltoall",
    "a2a": "alltoall",
    "all_to_allv": "alltoallv",
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "send_recv": "sendrecv",
    "bcast": "broadcast",
}
MOST_ROWS = 100_000
"""Rows of one segment; more is no table."""


def collective_name(text: str) -> str | None:
    """Find the collective that a program or a user names.

    Parameters
    ----------
    text : str
        Such as ``./build/all_reduce_perf_mpi``, ``all-to-all`` or ``bcast``.

    Returns
    -------
    str or None
        nccl-tests' name.

    Examples
    --------
    >>> collective_name("/opt/all_reduce_perf_mpi")
    'all_reduce'
    """
    name = text.replace("\\", "/").rsplit("/", 1)[-1].lower().replace("-", "_")
    name = name.removesuffix(".exe").removesuffix("_mpi").removesuffix("_perf")
    name = ALIASES.get(name, name)
    return name if name in COLLECTIVES else None


def printable(text: str) -> str:
    """Keep what may be shown of a name from a log: no control characters, at most 80 characters."""
    return "".join(character for character in text[:200] if character.isprintable())[:80]


@dataclass(frozen=True, slots=True)
class RankLine:
    """One line of the list of ranks."""

    rank: int
    group: int
    host: str
    device: int
    name: str


Event = tuple[int, Literal["start", "footer", "failure"]]
"""A line and what it is: a run starts with its line of arguments, or with its header where that is lost."""


@dataclass(frozen=True, slots=True)
class Arguments:
    """Sizes that a run was asked for [bytes]; ``by_factor``: the step multiplies."""

    smallest: int
    largest: int
    step: int
    by_factor: bool


@dataclass(slots=True)
class Segment:
    """One table with what stands around it."""

    line: int
    named: str | None = None
    """By ``Collective test starting`` or the program in a JSON file."""
    command: str | None = None
    """By a command or a marker in front."""
    is_contradictory: bool = False
    """Different tests are named, or different columns announced."""
    unknown_name: str | None = None
    """A test that is not a collective known here."""
    arguments: Arguments | None = None
    ranks: list[RankLine] = field(default_factory=list)
    has_gap: bool = False
    """The list of ranks is cut."""
    columns: Columns | None = None
    headers: int = 0
    rows: list[RawRow] = field(default_factory=list)
    refused: list[Refusal] = field(default_factory=list)
    members: set[int] = field(default_factory=set)
    nccl_version: str = ""
    has_banner: bool = False
    has_test_lines: bool = False
    footers: int = 0
    failed: bool = False
    form: str | None = None
    """Vintage, where it is known at once; else the widths of the rows tell."""
    largest: int | None = None

    @property
    def has_body(self) -> bool:
        """Whether its table has begun or is over."""
        return bool(self.rows or self.footers)

    @property
    def has_preamble(self) -> bool:
        """Whether a run announced itself."""
        return bool(self.headers or self.ranks or self.arguments)

    @property
    def jobs(self) -> int:
        """Jobs that announced themselves here (-)."""
        zeros = sum(line.rank == 0 and line.group == 0 for line in self.ranks)
        return max(1, zeros, self.headers)


def library_version(code: int) -> str:
    """Write NCCL's version number with dots.

    Parameters
    ----------
    code : int
        Such as 22902; before 2.9 such as 2803.

    Returns
    -------
    str

    Examples
    --------
    >>> library_version(22902)
    '2.29.2'
    """
    major, rest = divmod(code, 10_000 if code >= 10_000 else 1_000)
    minor, patch = divmod(rest, 100)
    return f"{major}.{minor}.{patch}"


class Segmenter:
    """Takes cleaned lines one by one and cuts them into segments.

    A new segment begins where a run announces itself again after rows, after a footer, or after a header that no row
    followed.

    Parameters
    ----------
    early : set of int
        Sizes of communicators that NCCL told of before anything else was printed.
    """

    def __init__(self, early: set[int]) -> None:
        self._early = early
        self.segments: list[Segment] = []
        self.events: list[Event] = []
        self._opened = 0
        """Lines of arguments whose header has not come."""
        self._now: Segment | None = None
        self._pending: str | None = None

    @property
    def has_found(self) -> bool:
        """Whether a row or the lines before a table were among those fed."""
        return any(segment.rows or segment.has_preamble for segment in self.segments)

    def feed(self, text: str, message: str, line: int) -> bool:
        """Take one line.

        Parameters
        ----------
        text : str
            Without prefixes and messages.
        message : str
            The NCCL message on it.
        line : int

        Returns
        -------
        bool
            Whether it is a line of nccl-tests, or empty.
        """
        body = text.strip()
        if not body:
            return True
        bare = body.lstrip("#").strip()
        if self._row(text, line) or self._preamble(bare, line) or self._footer(bare, line):
            return True
        self._aside(body, bare, message, line)
        return False

    def members(self, ranks: int) -> None:
        """Take the size of a communicator that NCCL told of, by whichever process.

        Parameters
        ----------
        ranks : int
            (-)
        """
        if self._now is not None and not self._now.footers and len(self._now.members) < 8:
            self._now.members.add(ranks)

    def _row(self, text: str, line: int) -> bool:
        columns = self._now.columns if self._now is not None else None
        row = parse_row(text, line, columns)
        if row is None:
            return False
        if isinstance(row, TornRow):
            if self._now is not None and (self._now.headers or self._now.rows):
                self._refuse(self._now, line, row.reason)
                return True
            if row.reason.startswith("has the numbers"):
                return False  # any table of numbers looks like that
            self._refuse(self._body(line), line, row.reason)
            return True
        segment = self._body(line)
        if self._pending is not None and segment.rows and row.size < segment.rows[-1].size:
            segment = self._begin(line)  # a marker, and sizes from the start: another test without a header
            segment.columns = columns
        if len(segment.rows) < MOST_ROWS:
            segment.rows.append(row)
        else:
            self._refuse(segment, line, f"is one of more than {MOST_ROWS:,} rows")
        return True

    @staticmethod
    def _refuse(segment: Segment, line: int, reason: str) -> None:
        if len(segment.refused) < MOST_ROWS:
            segment.refused.append(Refusal(line, f"row {reason}"))

    def _body(self, line: int) -> Segment:
        """The segment that a row belongs to: after the last footer a new one with the same columns."""
        now = self._now
        if now is None:
            return self._begin(line)
        if now.footers and now.footers >= now.jobs:
            fresh = self._begin(line)
            fresh.columns = now.columns
            return fresh
        return now

    def _begin(self, line: int) -> Segment:
        members = set() if self.segments else set(self._early)
        self._now = Segment(line, command=self._pending, members=members)
        self._pending = None
        self.segments.append(self._now)
        return self._now

    def _announced(self, line: int, *, by_header: bool = False) -> Segment:
        """The segment that a line of a preamble belongs to."""
        now = self._now
        if now is None or now.has_body or (now.headers and not by_header):
            return self._begin(line)
        if self._pending is not None:
            now.command, self._pending = self._pending, None
        return now

    def _preamble(self, bare: str, line: int) -> bool:
        words = bare.split(None, 3)
        if len(words) > 2 and words[0] in ("size", "bytes") and (columns := parse_columns(bare.split())):
            segment = self._announced(line, by_header=True)
            segment.is_contradictory |= segment.columns not in (None, columns)
            segment.columns = columns
            segment.headers += 1
            if self._opened:
                self._opened -= 1
            else:
                self.events.append((line, "start"))
            return True
        if "Rank" in bare or "Device" in bare:
            return self._rank(bare, line)
        if bare.startswith("Using devices"):
            self._announced(line)
            return True
        if found := _TEST.search(bare):
            return self._test_line(found, line)
        return self._about_the_run(bare, line)

    def _about_the_run(self, bare: str, line: int) -> bool:
        if found := _ARGUMENTS.search(bare):
            smallest, largest, step = (int(found[number]) for number in (1, 2, 3))
            self._opened += 1
            self.events.append((line, "start"))
            self._announced(line).arguments = Arguments(smallest, largest, step, by_factor=found[4] == "factor")
            return True
        if found := _BANNER.match(bare):
            segment = self._announced(line)
            segment.has_banner = True
            if found[1]:
                segment.nccl_version = library_version(int(found[1]))
            return True
        if found := _VERSION.match(bare):
            now = self._now
            if now is None or not now.has_body:
                now = now or self._begin(line)
                now.nccl_version = now.nccl_version or found[1]
            return True
        return False

    def _rank(self, bare: str, line: int) -> bool:
        if found := _RANK.search(bare):
            rank, group, host, device = int(found[1]), int(found[2] or 0), found[4], int(found[5])
            name = found[7].strip()
        elif found := _FIRST_DEVICE.match(bare):
            rank, group, host, device, name = int(found[1]), 0, "", int(found[2]), found[3].strip()
        else:
            return False
        segment = self._announced(line)
        if len(segment.ranks) < MOST_ROWS:
            segment.ranks.append(RankLine(rank, group, host, device, printable(name)))
        return True

    def _test_line(self, found: re.Match[str], line: int) -> bool:
        name = collective_name(found[2])
        if found[1] == "starting":
            segment = self._announced(line)
        elif self._now is not None:
            segment = self._now
        else:
            return True
        segment.has_test_lines = True
        segment.is_contradictory |= None not in (name, segment.named) and name != segment.named
        segment.named = segment.named or name
        if name is None:
            segment.unknown_name = found[2][:40]
        return True

    def _footer(self, bare: str, line: int) -> bool:
        if _BOUNDS.search(bare):
            return True
        if _AVERAGE.search(bare):
            self.events.append((line, "footer"))
            if self._now is not None:
                self._now.footers += 1
            return True
        if found := _REDUCED.search(bare):
            self._announced(line, by_header=True).largest = int(found[1])
            return True
        return False

    def _aside(self, body: str, bare: str, message: str, line: int) -> None:
        now = self._now
        if now is not None and body.startswith("...") and now.ranks and not now.headers:
            now.has_gap = True
        if now is not None and not now.failed and _FAILURE.search(bare):
            now.failed = True
            self.events.append((line, "failure"))
            self._opened = 0
        if not message and "_perf" in bare and (found := _PROGRAM.search(bare)) and (name := collective_name(found[1])):
            if now is not None and not now.has_body and not now.headers:
                now.command = name
            else:
                self._pending = name


def asked_sizes(segment: Segment) -> int | None:
    """Count the sizes that a run was asked for.

    Parameters
    ----------
    segment : Segment

    Returns
    -------
    int or None
        Sizes (-); None where the log does not say.
    """
    asked = segment.arguments
    if asked is None or asked.step < (2 if asked.by_factor else 1):
        return None
    largest = asked.largest if segment.largest is None else min(asked.largest, segment.largest)
    if not asked.by_factor:
        return max(0, (largest - asked.smallest) // asked.step + 1)
    count, size = 0, max(asked.smallest, 1)
    while size <= largest:
        count, size = count + 1, size * asked.step
    return count


def is_disordered(sizes: Sequence[int]) -> bool:
    """Whether sizes go back to anything but where they began.

    Parameters
    ----------
    sizes : sequence of int

    Returns
    -------
    bool
    """
    return any(after < before and after != sizes[0] for before, after in pairwise(sizes))
