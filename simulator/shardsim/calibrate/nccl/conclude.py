"""A segment into tests: which collective, how many ranks on which nodes, and which rows stand up to that."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from shardsim.calibrate.nccl.infer import (
    INFORMATIVE,
    SHARED,
    SLACK,
    Bounds,
    algbw_is_rate,
    bus_factor,
    candidates,
    count_share,
    factor,
    fits_factor,
    fitting,
    is_milliseconds,
    likely_ranks,
    ranks_between,
    ratio_bounds,
)
from shardsim.calibrate.nccl.rows import DTYPE_BYTES, RawHalf, RawRow
from shardsim.calibrate.nccl.segments import (
    COLLECTIVES,
    RankLine,
    Segment,
    asked_sizes,
    collective_name,
    is_disordered,
)
from shardsim.calibrate.nccl.table import (
    CollectiveSource,
    NcclRow,
    NcclTest,
    RanksSource,
    Refusal,
    Timing,
)
from shardsim.units import parse

TOLERANCE = {"half": 1e-2, "bfloat16": 1e-2, "float": 1e-5, "double": 1e-12}
"""Largest deviation that nccl-tests up to 2.12 let pass (common.cu, ``deltaMaxValue``); 0 for whole numbers (-)."""
_NEAR = 1.25
"""Ratio up to which a rank number and busbw/algbw may disagree: it moves no time, and busbw by less than 1 %."""
_VENDOR = re.compile(r"^(?:NVIDIA|AMD)\s+")
_SHORT = {"ar": "all_reduce", "ag": "all_gather", "rs": "reduce_scatter", "a2a": "alltoall"}


class _NotReadableError(Exception):
    """A test that cannot be read; carries the refusal."""

    def __init__(self, what: str, right: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.right = right


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the caller says: the answer where a log does not say, and a choice where it does.

    Parameters
    ----------
    collective : str or None
    ranks : int or None
    dtype : str or None
    """

    collective: str | None = None
    ranks: int | None = None
    dtype: str | None = None


@dataclass(frozen=True, slots=True)
class _Placement:
    """What the list of ranks says."""

    ranks: int | None
    last: int | None
    nodes: int | None
    gpus_per_node: int | None
    device: str


def conclude(segment: Segment, file: str, wanted: Wanted) -> tuple[list[NcclTest], list[Refusal]]:
    """Turn one segment into tests.

    Parameters
    ----------
    segment : Segment
    file : str
        Its log.
    wanted : Wanted

    Returns
    -------
    tuple of (list of NcclTest, list of Refusal)
    """
    tests: list[NcclTest] = []
    refused = list(segment.refused)
    if not segment.rows:
        if segment.has_preamble and not segment.refused:
            refused.append(Refusal(segment.line, _without_rows(segment)))
        return tests, refused
    for part in _parts(segment):
        try:
            found, bad = _test(segment, part, file, wanted)
        except _NotReadableError as error:
            refused.append(Refusal(part[0].line, f"{_counted(len(part))} not read: {error.what}", error.right))
            continue
        tests += found
        refused += bad
    return tests, refused


def _counted(rows: int) -> str:
    return "1 row" if rows == 1 else f"{rows:,} rows"


def _without_rows(segment: Segment) -> str:
    failed = ": the test failed" if segment.failed else ""
    return f"a run that printed no row{failed}"


def _parts(segment: Segment) -> Iterator[list[RawRow]]:
    """Tables of a segment: without a rank list or a header, one that starts over may be another run."""
    if segment.ranks or segment.headers:
        yield segment.rows
        return
    part: list[RawRow] = []
    for row in segment.rows:
        if part and row.size == part[0].size and row.size < part[-1].size:
            yield part
            part = []
        part.append(row)
    yield part


def _test(segment: Segment, rows: Sequence[RawRow], file: str, wanted: Wanted) -> tuple[list[NcclTest], list[Refusal]]:
    milliseconds = segment.columns.is_first_format if segment.columns is not None else is_milliseconds(rows)
    unit = 1e-3 if milliseconds else 1e-6
    place = _placement(segment)
    bounds = bus_factor(rows, unit)
    share = None if milliseconds else count_share(rows)
    possible = _possible(segment, rows, wanted, bounds, share, place, unit)
    collective, told = _collective(segment, possible, file, wanted, bounds, place)
    ranks, counted, notes = _ranks(segment, collective, wanted, bounds, share, place)
    mixed = _mixed(segment, rows, place, ranks)
    notes = [*mixed, *notes]
    nodes, gpus_per_node = _nodes(place, ranks)
    good: dict[str, list[NcclRow]] = {}
    redops: dict[str, set[str]] = {}
    refused: list[Refusal] = []
    reader = _RowReader(collective, ranks, "ms" if milliseconds else "us", counts_wrong=_counts_wrong(segment, rows))
    for row in rows:
        reason = reader.problem(row)
        if reason:
            refused.append(Refusal(row.line, f"row {reason}"))
        elif wanted.dtype in (None, row.dtype):
            good.setdefault(row.dtype, []).append(reader.read(row))
            redops.setdefault(row.dtype, set()).add("" if row.redop in (None, "none") else str(row.redop))
    if not good and wanted.dtype is not None and len(refused) < len(rows):
        raise _NotReadableError(f"its data type is {rows[0].dtype}, not {wanted.dtype}")
    notes += reader.notes
    if segment.failed:
        notes.append("the run failed before its end")
    tests = [
        NcclTest(
            file=file,
            collective=collective,
            collective_from=told,
            ranks=ranks,
            ranks_from=counted,
            nodes=nodes,
            gpus_per_node=gpus_per_node,
            dtype=dtype,
            redop=", ".join(sorted(redops[dtype])),
            device=place.device,
            nccl_version=segment.nccl_version,
            form=segment.form or _form(segment, rows, milliseconds=milliseconds),
            rows=tuple(found),
            sizes_asked=asked_sizes(segment),
            is_mixed=bool(mixed),
            notes=tuple(notes),
        )
        for dtype, found in good.items()
    ]
    return tests, refused


# --- which collective ------------------------------------------------------------------------------------------------


def _possible(
    segment: Segment,
    rows: Sequence[RawRow],
    wanted: Wanted,
    bounds: Bounds | None,
    share: int | None,
    place: _Placement,
    unit: float,
) -> tuple[str, ...]:
    """Collectives that print such rows."""
    known = place.ranks if place.ranks is not None else wanted.ranks
    columns = segment.columns
    printed = candidates(
        rows,
        announces_redop=columns is not None and columns.has_redop,
        is_first_format=columns is not None and columns.is_first_format,
    )
    is_rate = algbw_is_rate(rows, unit)
    # An edited count column must not leave nothing.
    return fitting(printed, rows, bounds, share, known, is_rate=is_rate) or fitting(
        printed, rows, bounds, None, known, is_rate=is_rate
    )


def _collective(
    segment: Segment,
    possible: Sequence[str],
    file: str,
    wanted: Wanted,
    bounds: Bounds | None,
    place: _Placement,
) -> tuple[str, CollectiveSource]:
    known = place.ranks if place.ranks is not None else wanted.ranks
    name, told = _known_collective(segment, possible, bounds, known)
    if name is None:
        name, told = _chosen_collective(possible, file, wanted, place)
    if wanted.collective is not None and wanted.collective != name:
        raise _NotReadableError(f"it is {name}, not {wanted.collective}")
    return name, told


def _known_collective(
    segment: Segment, possible: Sequence[str], bounds: Bounds | None, ranks: int | None
) -> tuple[str | None, CollectiveSource]:
    if segment.unknown_name is not None and segment.named is None:
        right = f"one of {', '.join(COLLECTIVES)}"
        raise _NotReadableError(f"{segment.unknown_name!r} is not a collective known here", right)
    if segment.named is not None:
        if not fits_factor(segment.named, bounds, ranks):
            raise _NotReadableError(f"its busbw/algbw is not that of {segment.named}")
        return segment.named, "log"
    if not possible:
        raise _NotReadableError("its busbw/algbw is that of no collective", "were its numbers edited?")
    if len(possible) == 1:
        return possible[0], "rows"
    if segment.command in possible:
        return segment.command, "command"
    return None, "caller"


def _chosen_collective(
    possible: Sequence[str], file: str, wanted: Wanted, place: _Placement
) -> tuple[str, CollectiveSource]:
    if wanted.collective in possible:
        return wanted.collective or "", "caller"
    hints = _hints(file) & set(possible)
    if len(hints) == 1:
        return hints.pop(), "file name"
    if place.ranks == 1:
        what = "every process ran alone and nothing was communicated"
        raise _NotReadableError(what, "build nccl-tests with MPI=1 and start it with mpirun or srun")
    names = " or ".join(possible)
    if wanted.collective is not None:
        raise _NotReadableError(f"its rows are those of {names}, not of {wanted.collective}")
    raise _NotReadableError(
        f"it does not say which collective it is, and its rows fit {names}",
        " or ".join(f"--collective {name}" for name in possible),
    )


def _hints(file: str) -> set[str]:
    """Collectives that a file name names."""
    name = PurePath(file).name.lower()
    words = [word for word in re.split(r"[^a-z0-9]+", name) if word]
    runs = ["_".join(words[start:end]) for start in range(len(words)) for end in range(start + 1, start + 4)]
    found = {collective_name(run) or _SHORT.get(run) for run in runs}
    named = {item for item in found if item is not None}
    # "all_gather" holds "gather", "all_reduce" holds "reduce" and "reduce_scatter" holds both of its words.
    return {item for item in named if not any(item != other and item in other for other in named)}


# --- how many ranks, and where ---------------------------------------------------------------------------------------


def _placement(segment: Segment) -> _Placement:
    """Read the list of ranks; a group of a split test counts alone."""
    groups = Counter(line.group for line in segment.ranks)
    members = [line for line in segment.ranks if line.group == min(groups, default=0)]
    if not members:
        return _Placement(None, None, None, None, "")
    device = _VENDOR.sub("", members[0].name)
    last = max(members, key=lambda line: line.rank)
    numbers = Counter(line.rank for line in members)
    complete = set(numbers) == set(range(last.rank + 1)) and not segment.has_gap
    if len(groups) > 1 and len(set(groups.values())) == 1 and not complete:
        # Ranks of a split job are numbered over all groups.
        complete, last_rank = not segment.has_gap, groups[members[0].group] - 1
    else:
        last_rank = last.rank
    hosts = Counter(line.host for line in members)
    nodes, per_node = _hosts(members, hosts, last, complete=complete)
    return _Placement(last_rank + 1 if complete else None, last_rank, nodes, per_node, device)


def _hosts(
    members: Sequence[RankLine], hosts: Counter[str], last: RankLine, *, complete: bool
) -> tuple[int | None, int | None]:
    """Nodes and GPUs a node: counted in a complete list, else from the first node or the number of the last device."""
    jobs = max(1, sum(line.rank == 0 for line in members))
    sizes = {count // jobs for count in hosts.values()}
    first = hosts[members[0].host]
    if complete:
        return len(hosts), sizes.pop() if len(sizes) == 1 else first // jobs
    listed = [line.rank for line in members[: first + 1]]
    if len(hosts) > 1 and listed == list(range(len(listed))):
        return None, first
    return None, last.device + 1


def _ranks(
    segment: Segment,
    collective: str,
    wanted: Wanted,
    bounds: Bounds | None,
    share: int | None,
    place: _Placement,
) -> tuple[int, RanksSource, list[str]]:
    def fits(ranks: int) -> bool:
        return bounds is None or bounds.holds(factor(collective, ranks))

    between = ranks_between(bounds, collective) if bounds is not None else None
    if wanted.ranks is not None:
        if not fits(wanted.ranks):
            raise _NotReadableError(f"its busbw/algbw is not that of {wanted.ranks} ranks", _range(between))
        return wanted.ranks, "caller", []
    evidence: list[tuple[int | None, RanksSource]] = [
        (place.ranks, "rank list"),
        (share if collective in SHARED and share is not None and share > 1 else None, "count column"),
        (next(iter(segment.members)) if len(segment.members) == 1 else None, "NCCL log"),
        (place.last + 1 if place.last is not None and place.ranks is None else None, "last rank"),
    ]
    notes: list[str] = []
    for ranks, source in evidence:
        if ranks is None:
            continue
        if fits(ranks):
            return ranks, source, notes
        if source in ("rank list", "last rank"):
            said = f"the list of ranks shows {ranks}" if source == "rank list" else f"there is a rank {ranks - 1}"
            notes.append(f"{said}, busbw/algbw fits {_range(between)}")
            # A list that is too short was cut. One that is too long cannot have been, whatever busbw/algbw says.
            if between is None or ranks > _NEAR * between[1]:
                raise _NotReadableError(notes[-1], "--ranks N")
            if ranks > between[1]:
                return ranks, source, notes
    chosen = likely_ranks(*between, place.gpus_per_node) if between is not None else None
    if chosen is None:
        why = f"busbw/algbw fits {_range(between)}" if between is not None else f"{collective} rows do not tell"
        raise _NotReadableError(f"it does not say how many ranks there were, and {why}", "--ranks N")
    if between is not None and between[0] != between[1]:
        notes.append(f"busbw/algbw fits {_range(between)}")
    return chosen, "busbw/algbw", notes


def _range(between: tuple[int, float] | None) -> str:
    if between is None:
        return "no number of ranks"
    fewest, most = between
    if fewest == most:
        return f"{fewest} ranks"
    return f"{fewest} ranks or more" if most == float("inf") else f"{fewest} to {most:.0f} ranks"


def _nodes(place: _Placement, ranks: int) -> tuple[int | None, int | None]:
    if place.ranks == ranks and place.nodes:
        even = place.gpus_per_node and place.nodes * place.gpus_per_node == ranks
        return place.nodes, place.gpus_per_node if even else None
    if place.gpus_per_node and ranks % place.gpus_per_node == 0:
        return ranks // place.gpus_per_node, place.gpus_per_node
    return None, None


def _mixed(segment: Segment, rows: Sequence[RawRow], place: _Placement, ranks: int) -> list[str]:
    """Refuse rows of several jobs that cannot be told apart; a note where the jobs are equal."""
    groups: dict[tuple[str, str | None, int | None], list[int]] = {}
    for row in rows:
        groups.setdefault((row.dtype, row.redop, row.root), []).append(row.size)
    disordered = any(is_disordered(sizes) for sizes in groups.values())
    if segment.jobs == 1 and not disordered and not segment.is_contradictory:
        return []
    if _are_equal_jobs(segment, rows) and place.ranks == ranks:
        each = "1 rank" if ranks == 1 else f"{ranks} ranks"
        return [f"rows of {segment.jobs} jobs of {each} stand interleaved"]
    if segment.footers <= 1 and not disordered and len(rows) <= (asked_sizes(segment) or len(rows)):
        return []  # a header was repeated, or a run before this one printed nothing else
    raise _NotReadableError("rows of several jobs stand interleaved", "give each job its own log")


def _are_equal_jobs(segment: Segment, rows: Sequence[RawRow]) -> bool:
    """Whether a row may belong to any of the jobs: the same test, as many ranks, every one listed by each."""
    listed = Counter((line.group, line.rank) for line in segment.ranks)
    kinds = {
        (row.redop, row.root, *(half is not None and half.wrong is None for half in (row.out_of_place, row.in_place)))
        for row in rows
    }
    share = count_share(rows)
    return (
        segment.jobs > 1
        and set(listed.values()) == {segment.jobs}
        and not segment.is_contradictory
        and len(kinds) == 1
        and share is not None
    )


# --- the rows --------------------------------------------------------------------------------------------------------


class _RowReader:
    """Checks rows against what the test was found to be, and brings them to SI."""

    def __init__(self, collective: str, ranks: int, unit: str, *, counts_wrong: bool) -> None:
        self._collective = collective
        self._ranks = ranks
        self._factor = factor(collective, ranks)
        self._unit = unit
        self._seconds = 1e-3 if unit == "ms" else 1e-6
        self._counts_wrong = counts_wrong
        self._edited_counts = 0
        self._old_algbw = 0

    @property
    def notes(self) -> list[str]:
        """What was seen in more than one row, for the user."""
        notes = []
        if self._edited_counts:
            notes.append("the count column does not belong to the sizes")
        if self._old_algbw:
            notes.append("algbw was printed as (n-1)/n of size/time, as before June 2020; given here as size/time")
        return notes

    def problem(self, row: RawRow) -> str:
        """Why a whole row cannot be a row of this test; empty when it can."""
        if not row.size:
            return ""
        count_fits = row.size in self._sizes(row)
        tells = False
        for half in row.halves:
            algbw, busbw = ratio_bounds(half, row.size, self._seconds)
            if not any(algbw.holds(ratio, SLACK) for ratio in self._ratios()):
                return f"has an algbw of {half.algbw.value:g} GB/s where size over time is {self._rate(row, half):.4g}"
            if not busbw.holds(self._factor, SLACK):
                return f"has a busbw of {half.busbw.value:g} GB/s where {self._ranks} ranks would give another"
            tells = tells or algbw.width <= INFORMATIVE
        if not tells and not count_fits:
            return "has a count that does not belong to its size, and bandwidths too small to tell which is right"
        self._edited_counts += not count_fits
        return ""

    def _sizes(self, row: RawRow) -> tuple[int, ...]:
        """Sizes that belong to a count; the first format is not sure to count one rank's part."""
        part = row.count * DTYPE_BYTES[row.dtype]
        total = part * self._ranks if self._collective in SHARED else part
        return (part, total) if self._unit == "ms" else (total,)

    def _ratios(self) -> tuple[float, ...]:
        """Algbw in units of size / time: 1, and (n-1)/n in old versions."""
        return (1.0,) if self._collective not in SHARED else (1.0, self._factor)

    def _rate(self, row: RawRow, half: RawHalf) -> float:
        return row.size / (half.time.value * self._seconds) / 1e9

    def read(self, row: RawRow) -> NcclRow:
        """Bring a row to SI."""
        return NcclRow(
            row.size,
            self._timing(row, row.out_of_place),
            self._timing(row, row.in_place),
            row.line,
        )

    def _timing(self, row: RawRow, half: RawHalf | None) -> Timing | None:
        if half is None:
            return None
        seconds = parse(f"{half.time.value!r} {self._unit}", "time")
        algbw = parse(f"{half.algbw.value!r} GB/s", "bandwidth")
        if row.size and not ratio_bounds(half, row.size, self._seconds)[0].holds(1.0, SLACK):
            self._old_algbw += 1
            algbw = row.size / seconds
        busbw = parse(f"{half.busbw.value!r} GB/s", "bandwidth")
        return Timing(seconds, algbw, busbw, half.wrong, self._is_wrong(row.dtype, half.wrong))

    def _is_wrong(self, dtype: str, wrong: float | None) -> bool:
        if wrong is None:
            return False
        return wrong > (0.0 if self._counts_wrong else TOLERANCE.get(dtype, 0.0))


def _counts_wrong(segment: Segment, rows: Sequence[RawRow]) -> bool:
    if segment.columns is not None:
        return segment.columns.counts_wrong
    return all(row.redop is not None and row.root is not None for row in rows)


def _form(segment: Segment, rows: Sequence[RawRow], *, milliseconds: bool) -> str:
    """Vintage of a text, from its header, its rows, and the widths of its fields."""
    if milliseconds:
        return "text 1.x"
    if not _counts_wrong(segment, rows):
        width = Counter(row.type_width for row in rows).most_common(1)[0][0]
        return {6: "text 2.0-2.9", 8: "text 2.10-2.12"}.get(width, "text 2.0-2.12")
    if segment.has_banner:
        return "text 2.17.4 or newer"
    width = Counter(row.wrong_width for row in rows).most_common(1)[0][0]
    if width == 6:
        return "text 2.17.4 or newer"
    if segment.has_test_lines:
        return "text 2.16.5-2.17.3"
    return "text 2.13-2.17.3" if width == 5 else "text 2.13 or newer"
