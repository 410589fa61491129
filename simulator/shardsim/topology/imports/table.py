"""Tables of ``nvidia-smi topo -m`` in any text: header, rows, and what a terminal or a paste did to them.

A table is found by its words, not by columns: a header is a run of ``GPU#`` and device names, a row is one of these
names followed by cells. So tabs, blanks, prompts, comment signs, launcher prefixes and Markdown bars do not matter,
and cells that lost the blank between them come apart because no cell is the beginning of another.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

MOST_DEVICES = 1024
"""Columns of one table: several times the largest node there is."""
_LONGEST_LINE = 20_000
_TERMINAL = re.compile(
    r"""
    \x1b\[[0-9;:?]*[ -/]*[@-~]      # colours and cursor movements
    | \x1b\][^\x07\x1b]*(?:\x07|\x1b\\)  # window titles
    | \x1b[@-_]
    | \^\[\[[0-9;]*m                # the same, made visible by cat -v
    | \[(?:[0-9]{1,2}(?:;[0-9]{1,2})*)?m  # what is left where a paste lost the escape character
    """,
    re.VERBOSE,
)
_BARS = str.maketrans({"|": " ", "│": " ", "┃": " ", "\x00": None, "\ufeff": None, "\u200b": None})
CELL = re.compile(r"NV(\d{1,2})|PIX|PXB|PHB|NODE|SYS|SOC|X")
_CELLS = re.compile(rf"(?:{CELL.pattern})+")
"""One cell, or several that a paste has glued."""
GPU_NAME = re.compile(r"GPU(\d{1,4})")
_NAME = re.compile(r"[A-Za-z][A-Za-z_.+-]*\d[\w.+-]*")
_GLUED_NAMES = re.compile(r"(?:(?:GPU|NIC|mlx[45]_)\d{1,4})+")
_PLAIN_NAME = re.compile(r"(?:GPU|NIC|mlx[45]_)\d{1,4}")
_AFFINITY = re.compile(r"(?:CPU|NUMA)\s*Affinity.*|GPU\s*NUMA\s*ID.*", re.IGNORECASE)
_TAIL = "CPU AFFINITY NUMA AFFINITY GPU NUMA ID"
_COLUMN = re.compile(r"CPU\s*Affinity|NUMA\s*Affinity|GPU\s*NUMA\s*ID", re.IGNORECASE)
_AFTER_TABLE = re.compile(r"\b(?:NIC\s+)?Legend\s*:", re.IGNORECASE)
_SOME_CELL = re.compile(r"\b(?:NV\d{1,2}|PIX|PXB|PHB|NODE|SYS|SOC|X)\b")
_MOST_PREFIXES = 12
_JUNK = "#>/*;!-%\"'`,"
_PREFIX_ENDS = "]:>)="
_STATUS = re.compile(r"(?:OK|CNS|GNS|TNS|NS|DR|U)(?:\s|$)")


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a table.

    Parameters
    ----------
    label : str
        The device.
    cells : tuple of str
        As printed.
    tail : str
        What follows them: affinities.
    line : int
        Number of the line, from 1.
    """

    label: str
    cells: tuple[str, ...]
    tail: str
    line: int


@dataclass(slots=True)
class Table:
    """A table while it is read.

    Parameters
    ----------
    columns : tuple of str
        Devices; empty where the header is missing.
    tail_columns : tuple of str
        Heads of what follows the cells.
    line : int
        Of the header, or of the first row.
    more : tuple of str
        Names on the lines after the header, which belong to it if a terminal wrapped it.
    rows : list of Row
    closed : bool
        Whether a legend follows.
    strays : list of Row
        Rows of devices that the table has not.
    """

    columns: tuple[str, ...]
    tail_columns: tuple[str, ...]
    line: int
    more: tuple[str, ...] = ()
    rows: list[Row] = field(default_factory=list)
    closed: bool = False
    strays: list[Row] = field(default_factory=list)


def plain_lines(text: str) -> Iterator[str]:
    """Split a text into lines, terminal codes and table bars taken off.

    Parameters
    ----------
    text : str

    Yields
    ------
    str

    Examples
    --------
    >>> list(plain_lines("| GPU0 | X |"))
    ['  GPU0   X  ']
    """
    for line in text.splitlines():
        yield _TERMINAL.sub("", line[:_LONGEST_LINE]).translate(_BARS)


def find_tables(lines: Sequence[str]) -> list[Table]:
    """Find every table, its header and rows joined where a terminal wrapped them.

    Parameters
    ----------
    lines : sequence of str
        From :func:`plain_lines`.

    Returns
    -------
    list of Table
        Also headers without rows. Whether rows fit their columns is not checked here.

    Examples
    --------
    >>> [table.columns for table in find_tables(["   GPU0 NIC0", "GPU0 X PIX", "NIC0 PIX X"])]
    [('GPU0', 'NIC0')]
    """
    tables: list[Table] = []
    table: Table | None = None
    for number, line in enumerate(lines, start=1):
        header = _header(line)
        if header is not None and table is not None and not table.rows and not _overlap(table, header[0]):
            _keep_other(table, line, number)
        elif header is not None:
            table = Table(*header, line=number)
            tables.append(table)
        elif _AFTER_TABLE.search(line):
            if table is not None:
                table.closed = True
        else:
            row = _row(line, number, (*table.columns, *table.more) if table is not None else ())
            if row is not None and table is None and GPU_NAME.fullmatch(row.label):
                table = Table((), (), line=number)
                tables.append(table)
            if row is not None and table is not None:
                table.rows.append(row)
            elif table is not None:
                _keep_other(table, line, number)
    return [_fitted(table, lines) for table in tables]


def _overlap(table: Table, names: tuple[str, ...]) -> bool:
    return bool(set(names) & {*table.columns, *table.more})


def _keep_other(table: Table, line: str, number: int) -> None:
    """Keep what a line that is no row of a table may be: more of its header, or a row of a device it has not."""
    stray = _row(line, number, ())
    if stray is not None and _PLAIN_NAME.fullmatch(stray.label) and len(stray.cells) > 1:
        table.strays.append(stray)
    if table.rows:
        return
    affinity = _AFFINITY.search(line)
    names = _names(_without_tail((line[: affinity.start()] if affinity else line).lstrip(_JUNK + " \t")))
    if names is not None and not _overlap(table, names):
        table.more = (*table.more, *names)
    table.tail_columns = (*table.tail_columns, *_tail_columns(line))


def is_header(line: str) -> bool:
    """Tell whether a line is the header of a table.

    Parameters
    ----------
    line : str
        From :func:`plain_lines`.

    Examples
    --------
    >>> is_header("     GPU0 GPU1 CPU Affinity"), is_header("GPU0 X NV4 0-7")
    (True, False)
    """
    return _header(line) is not None


def _header(line: str) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """Columns of a header line, and the names of those behind the matrix; None for any other line."""
    start = GPU_NAME.search(line)
    if start is None:
        return None
    body = line[start.start() :]
    affinity = _AFFINITY.search(body)
    names = _names(_without_tail(body[: affinity.start()] if affinity else body))
    if names is None or not (affinity or len(names) > 1):
        return None
    gpus = sum(1 for name in names if GPU_NAME.fullmatch(name))
    if not all(GPU_NAME.fullmatch(name) for name in names[:gpus]) or len(set(names)) < len(names):
        return None
    return names, _tail_columns(body)


def _without_tail(text: str) -> str:
    """Take off the beginning of the heads behind the matrix, where a terminal wrapped the line within them."""
    tokens = text.split()
    while tokens and tokens[-1].upper() in _TAIL and not GPU_NAME.fullmatch(tokens[-1]):
        tokens.pop()
    return " ".join(tokens)


def _tail_columns(text: str) -> tuple[str, ...]:
    return tuple(" ".join(match[0].split()).upper() for match in _COLUMN.finditer(text))


def _names(text: str) -> tuple[str, ...] | None:
    """Device names of a header, glued ones taken apart; None if anything else stands there."""
    names: list[str] = []
    for token in text.split():
        if _GLUED_NAMES.fullmatch(token):
            names += _PLAIN_NAME.findall(token)
        elif _NAME.fullmatch(token) and not _CELLS.fullmatch(token):
            names.append(token)
        else:
            return None
    return tuple(names) if 0 < len(names) <= MOST_DEVICES else None


def _row(line: str, number: int, columns: tuple[str, ...]) -> Row | None:
    """A row: the name of a device and cells; None for any other line."""
    for match in islice(re.finditer(r"\S+", line), _MOST_PREFIXES):
        label, glued = _label(_bare(match[0].rstrip(":")), columns)
        if not label:
            continue
        cells, tail = _cells(glued + line[match.end() :], len(columns) or MOST_DEVICES)
        if cells and not _STATUS.match(tail):
            return Row(label, cells, tail, number)
    return None


def _bare(text: str) -> str:
    """Take off a launcher's prefix and comment signs."""
    return text[max(text.rfind(end) for end in _PREFIX_ENDS) + 1 :].lstrip(_JUNK + " \t")


def _label(token: str, columns: tuple[str, ...]) -> tuple[str, str]:
    """Name of the device at the head of a token, and what is glued to it; empty where there is none."""
    if token in columns or (not columns and _NAME.fullmatch(token) and not CELL.fullmatch(token)):
        return token, ""
    for name in sorted(columns, key=len, reverse=True) or _PLAIN_NAME.findall(token)[:1]:
        glued = token.removeprefix(name)
        if glued != token and CELL.match(glued):
            return name, glued
    return "", ""


def _cells(text: str, most: int) -> tuple[tuple[str, ...], str]:
    """Cells at the beginning of a text, at most so many, and what follows them."""
    cells: list[str] = []
    end = 0
    for token in re.finditer(r"\S+", text):
        found, glued = _split(token[0])
        if token[0] == "N/A" and _SOME_CELL.search(text, token.end()):
            found, glued = ["N/A"], ""
        if not found or len(cells) >= most:
            break
        cells += found
        end = token.end() - len(glued)
        if glued:
            break
    return tuple(cells), text[end:].strip()


def _split(token: str) -> tuple[list[str], str]:
    """Take glued cells apart; an affinity may be glued to the last."""
    cells: list[str] = []
    position = 0
    while (match := CELL.match(token, position)) is not None:
        cells.append(match[0])
        position = match.end()
    rest = token[position:]
    return (cells, rest) if not rest or rest[0].isdigit() or rest.startswith("N/A") else ([], token)


# Fitting rows to columns.


def _fitted(table: Table, lines: Sequence[str]) -> Table:
    """Join what a terminal wrapped: a header, or rows, whose rest stands on the next lines."""
    if not table.columns or not table.rows:
        return table
    for columns in dict.fromkeys(((*table.columns, *table.more), table.columns)):
        rows = [row for row in table.rows if row.label in columns]
        joined = _joined(rows, len(columns), lines)
        # The last row may be cut off; the others decide what the header is.
        if all(len(row.cells) == len(columns) for row in joined[:-1] or joined):
            return replace(table, columns=columns, more=(), rows=joined)
    return replace(table, more=())


def _joined(rows: Sequence[Row], width: int, lines: Sequence[str]) -> list[Row]:
    """Rows with the cells that stand on the lines after them."""
    joined: list[Row] = []
    for row, following in zip(rows, [*(row.line for row in rows[1:]), len(lines) + 1], strict=True):
        cells, tail = row.cells, row.tail
        for line in lines[row.line : following - 1]:
            more, rest = _cells(_bare(line), width - len(cells))
            if tail or len(cells) >= width or not more:
                break
            cells, tail = (*cells, *more), rest
        joined.append(replace(row, cells=cells, tail=tail))
    return joined
