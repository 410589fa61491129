"""From the text of ``nvidia-smi topo -m`` to a node: rows fitted to columns, cells to pairs, affinities read."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from shardsim.errors import InputError, Problem
from shardsim.topology.imports.node import DISTANCES, MATRIX, Distance, Gpu, Nic, Node, Pair, switched_groups
from shardsim.topology.imports.table import CELL, GPU_NAME, Row, Table, find_tables, is_header, plain_lines

MOST_LINES = 50_000
"""Lines of one file: a log around a table may be long."""
_RANGES = re.compile(r"\d{1,6}(?:-\d{1,6})?(?:,\d{1,6}(?:-\d{1,6})?)*")
_LEGEND = re.compile(r"(?:^|\s)(NIC\d{1,4})\s*:\s+([A-Za-z][\w.+:-]*)\s*$")
_OLD_NAMES: dict[str, Distance] = {"SOC": "SYS"}
_MOST_NUMA = 4096


class NoTableError(InputError):
    """A text holds no table of ``nvidia-smi topo -m``, or no more than its header."""


def read_matrix(text: str, where: str) -> Node:
    r"""Read the output of ``nvidia-smi topo -m``.

    Parameters
    ----------
    text : str
        The output, and whatever is around it.
    where : str
        Name of the file, for messages.

    Returns
    -------
    Node

    Raises
    ------
    NoTableError
        No table, or a header alone.
    InputError
        Tables that differ, or a table with rows that do not fit it.

    Examples
    --------
    >>> node = read_matrix("     GPU0 GPU1 CPU Affinity\nGPU0 X NV4 0-7\nGPU1 NV4 X 0-7", "two.txt")
    >>> node.links(0, 1), node.gpus[0].cpus
    (4, ((0, 7),))
    """
    lines = tuple(plain_lines(text))
    if len(lines) > MOST_LINES:
        raise InputError(Problem(f"has more than {MOST_LINES:,} lines", where, "keep those of the table"))
    joined = _unwrapped(lines)
    try:
        node = _read(lines, where, ends=text.endswith(("\n", "\r")))
    except InputError:
        unwrapped = None if joined is None else _try(joined, where)
        if unwrapped is None:
            raise
        return unwrapped
    unwrapped = _try(joined, where) if joined is not None and node.notes else None
    return node if unwrapped is None or len(unwrapped.notes) > len(node.notes) else unwrapped


def _try(lines: tuple[str, ...], where: str) -> Node | None:
    try:
        node = _read(lines, where, ends=True)
    except InputError:
        return None
    return replace(node, notes=("lines that a terminal wrapped were joined", *node.notes))


def _unwrapped(lines: tuple[str, ...]) -> tuple[str, ...] | None:
    """Lines as they were before a terminal wrapped all of them at one column; None if it did not."""
    header = next((line for line in lines if is_header(line)), None)
    if header is None:
        return None
    joined: list[str] = []
    whole = True
    for line in lines:
        if whole:
            joined.append(line)
        else:
            joined[-1] += line
        whole = len(line) != len(header)
    return tuple(joined) if len(joined) < len(lines) else None


def _read(lines: tuple[str, ...], where: str, *, ends: bool) -> Node:
    """Read tables; ``ends`` tells whether the last line is whole."""
    tables = find_tables(lines)
    found = [table for table in tables if table.rows]
    if not found:
        raise NoTableError(_nothing(tables, where))
    strays = [(stray, table.line) for table in tables for stray in table.strays]
    if strays:
        raise InputError(
            Problem(f"a row of {stray.label}, which the header on line {line} has not", f"{where}:{stray.line}")
            for stray, line in strays
        )
    if not ends:
        _unsure_of_the_end(found[-1], len(lines))
    first, *others = found
    for other in others:
        if _content(other) != _content(first):
            what = f"holds different tables, on line {first.line} and on line {other.line}"
            raise InputError(Problem(what, where, "keep the lines of one node"))
    return _node(first, _legend(lines), len(lines), where)


def _unsure_of_the_end(table: Table, last_line: int) -> None:
    """Where a text ends within a row, its last word may have been longer: NV1 of NV18, 0-4 of 0-47."""
    row = table.rows[-1]
    if row.line != last_line:
        return
    cells, tail = row.cells, row.tail
    if not tail and cells[-1] != "X":
        cells = (*cells[:-1], "N/A")
    if len(tail.split()) < len(table.rows[0].tail.split()):
        tail = ""
    table.rows[-1] = replace(row, cells=cells, tail=tail)


def _nothing(tables: Sequence[Table], where: str) -> Problem:
    if tables:
        what = f"the header on line {tables[0].line} has no rows: is the file cut off?"
        return Problem(what, where, "paste the whole output of nvidia-smi topo -m")
    return Problem("holds no table of nvidia-smi topo -m", where, "paste its whole output, header and rows")


def _content(table: Table) -> tuple[object, ...]:
    return table.columns, {(row.label, row.cells) for row in table.rows}


def _legend(lines: Sequence[str]) -> dict[str, str]:
    """Device names by ``NIC#``."""
    found = (_LEGEND.search(line) for line in lines)
    return {match[1]: match[2] for match in found if match is not None}


# From a table to a node.


def _node(table: Table, legend: dict[str, str], last_line: int, where: str) -> Node:
    problems: list[Problem] = []
    notes: list[str] = []
    columns = table.columns or _missing_header(table, problems, notes, where)
    rows = _whole_rows(table, columns, last_line, problems, notes, where)
    if problems:
        raise InputError(problems)
    cells = _symmetric(columns, rows, notes)
    gpus = sum(1 for name in columns if GPU_NAME.fullmatch(name))
    devices = [name for name in columns if name not in rows]
    if devices:
        notes.append(f"the rows of {_few(devices)} are missing; their cells were taken from the columns")
    pairs = [(a, b) for a in range(len(columns)) for b in range(a + 1, len(columns))]
    untold = [pair for pair in pairs if pair not in cells]
    if untold:
        notes.append(f"{len(untold)} of {len(pairs)} pairs of devices are not in the file")
    printed = {pair: int(cell[2:]) for pair, cell in cells.items() if cell.startswith("NV") and pair[1] < gpus}
    switched, direct = switched_groups(gpus, printed, frozenset(untold))
    links = {member: count for group, count in switched.items() for member in group}
    affinities = _affinities(columns[:gpus], rows, table.tail_columns, notes)
    return Node(
        kind=MATRIX,
        gpus=tuple(
            Gpu(name, switch_links=links.get(number, 0), **affinities.get(name, _Affinity())._asdict())
            for number, name in enumerate(columns[:gpus])
        ),
        nics=tuple(Nic(name, device=legend.get(name, "")) for name in columns[gpus:]),
        distances={pair: _distance(cell) for pair, cell in cells.items() if _OLD_NAMES.get(cell, cell) in DISTANCES},
        nvlinks=direct,
        switches=tuple(switched),
        notes=tuple(notes),
    )


def _distance(cell: str) -> Distance:
    return next(distance for distance in DISTANCES if distance == _OLD_NAMES.get(cell, cell))


def _missing_header(table: Table, problems: list[Problem], notes: list[str], where: str) -> tuple[str, ...]:
    """Columns where the header is missing: the labels of the rows, which a whole table has in the same order."""
    labels = tuple(dict.fromkeys(row.label for row in table.rows))
    gpus = tuple(label for label in labels if GPU_NAME.fullmatch(label))
    width = Counter(len(row.cells) for row in table.rows).most_common(1)[0][0]
    count = _gpu_columns(table, labels, gpus, width)
    if not gpus or labels[: len(gpus)] != gpus or count is None:
        what = f"the header is missing, and {len(labels)} rows cannot say what {width} columns are"
        problems.append(Problem(what, f"{where}:{table.line}", "paste the header line as well"))
        return labels
    others = labels[len(gpus) :]
    unnamed = [f"NIC{number}" for number in range(len(others), width - count)]
    notes.append("the header is missing: columns were named after the rows")
    if unnamed:
        notes.append(f"{len(unnamed)} columns behind the GPUs have no name and were taken for adapters")
    more = [f"GPU{number}" for number in range(len(gpus), count)]
    return tuple(dict.fromkeys((*gpus, *more, *others, *unnamed)))


def _gpu_columns(table: Table, labels: tuple[str, ...], gpus: tuple[str, ...], width: int) -> int | None:
    """How many columns are GPUs; None where rows alone cannot tell.

    All GPU rows are there if the table is whole, an adapter's row follows, or a legend. Else NVLinks tell, where every
    row has them to all columns up to some one: adapters have none.
    """
    if len(labels) == width or len(labels) > len(gpus) or table.closed:
        return len(gpus)
    if gpus != tuple(f"GPU{number}" for number in range(len(gpus))):
        return None
    linked = max((n for row in table.rows for n, cell in enumerate(row.cells) if cell.startswith("NV")), default=-1)
    meshed = all(
        cell == "X" or cell.startswith("NV") for row in table.rows for cell in row.cells[: linked + 1] if linked > 0
    )
    return linked + 1 if linked > 0 and meshed and linked + 1 >= len(gpus) else None


def _whole_rows(
    table: Table, columns: tuple[str, ...], last_line: int, problems: list[Problem], notes: list[str], where: str
) -> dict[str, Row]:
    """Rows by label; a last row that was cut off is left out, any other that does not fit is a problem."""
    rows: dict[str, Row] = {}
    for row in table.rows:
        at = f"{where}:{row.line}"
        own = columns.index(row.label) if row.label in columns else -1
        if len(row.cells) < len(columns) and row is table.rows[-1] and (not row.tail or row.line == last_line):
            notes.append(f"the row of {row.label} is cut off and was left out")
            continue
        if len(row.cells) != len(columns) or CELL.match(row.tail):
            what = f"the row of {row.label} has {len(row.cells)} cells for {len(columns)} columns"
            problems.append(Problem(what, at, "paste the table again"))
        elif [number for number, cell in enumerate(row.cells) if cell == "X"] != [own]:
            what = f"the row of {row.label} does not meet itself (X) in column {row.label}"
            problems.append(Problem(what, at, "paste the table again"))
        elif row.label in rows and rows[row.label].cells != row.cells:
            problems.append(Problem(f"two rows of {row.label} differ", at, "keep the lines of one node"))
        else:
            rows.setdefault(row.label, row)
    return rows


def _symmetric(columns: tuple[str, ...], rows: dict[str, Row], notes: list[str]) -> dict[Pair, str]:
    """Cells of every pair, each from whichever half of the matrix has it."""
    cells: dict[Pair, str] = {}
    odd: list[str] = []
    for a, name in enumerate(columns):
        if name not in rows:
            continue
        for b, raw in enumerate(rows[name].cells):
            cell = _OLD_NAMES.get(raw, raw)
            pair = (min(a, b), max(a, b))
            if a == b or raw == "N/A":
                continue
            before = cells.setdefault(pair, cell)
            if before != cell:
                cells[pair] = max(before, cell, key=_farness)
                odd.append(f"{columns[pair[0]]}-{columns[pair[1]]} {before} and {cell}")
    if odd:
        notes.append(f"the two halves of the matrix differ, the farther was taken: {_few(odd)}")
    return cells


def _farness(cell: str) -> tuple[int, int]:
    """Order of cells: more NVLinks are nearer, NVLink is nearer than any PCIe distance."""
    return (0, -int(cell[2:])) if cell.startswith("NV") else (1 + DISTANCES.index(_distance(cell)), 0)


def _few(names: Sequence[str]) -> str:
    most = 6
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


# Affinities.


class _Affinity(NamedTuple):
    """What stands behind the cells of a row."""

    cpus: tuple[Pair, ...] | None = None
    numa: tuple[int, ...] | None = None
    memory_numa: int | None = None


def _affinities(
    gpus: Sequence[str], rows: dict[str, Row], columns: tuple[str, ...], notes: list[str]
) -> dict[str, _Affinity]:
    """Affinities by GPU."""
    found: dict[str, _Affinity] = {}
    unread: list[str] = []
    for name in gpus:
        if name not in rows or not rows[name].tail:
            continue
        fields = re.sub(r",\s+", ",", rows[name].tail).split()
        if len(fields) > max(len(columns), 3) or not all(_RANGES.fullmatch(text) or text == "N/A" for text in fields):
            unread.append(name)
            continue
        # With a field fewer than there are columns, only the first is sure: the NUMA affinity may be blank.
        whole = len(fields) >= len(columns)
        cpus, numa, memory = (_ranges(text) for text in (*fields, "N/A", "N/A")[:3])
        own = _numbers(memory) if whole else None
        found[name] = _Affinity(cpus, _numbers(numa) if whole else None, own[0] if own else None)
    if unread:
        notes.append(f"the affinities of {_few(unread)} could not be read")
    return found


def _numbers(ranges: tuple[Pair, ...] | None) -> tuple[int, ...] | None:
    """NUMA nodes one by one; None where there are more than any machine has."""
    if ranges is None or sum(high - low for low, high in ranges) > _MOST_NUMA:
        return None
    return tuple(node for low, high in ranges for node in range(low, high + 1))


def _ranges(text: str) -> tuple[Pair, ...] | None:
    """Number ranges such as ``0-19,40-59``; None for ``N/A`` or what cannot be one."""
    if not _RANGES.fullmatch(text):
        return None
    ranges = []
    for part in text.split(","):
        low, _, high = part.partition("-")
        ranges.append((int(low), int(high or low)))
    return tuple(ranges) if all(low <= high for low, high in ranges) else None
