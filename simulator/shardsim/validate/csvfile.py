"""Read a CSV of measurements: text cells with their line numbers, every structural problem at once."""

from __future__ import annotations

import csv
import difflib
import io
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from shardsim.errors import InputError, Problem
from shardsim.schema.textfile import encoding

MOST_PROBLEMS = 50
"""A wrong file has as many problems as rows: the rest are counted, not listed."""


_GROUPED = re.compile(r"\d{1,3}(,\d{3})+(\.\d+)?")

MAX_BYTES = 256_000_000
"""Size of the largest table that is read [bytes]."""


@dataclass(frozen=True, slots=True)
class CsvRow:
    """One row of a CSV file.

    Parameters
    ----------
    line : int
        Line of the file on which the row ends, from 1.
    cells : mapping of str to str
        By column, without surrounding blanks; empty where nothing was written.
    """

    line: int
    cells: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class CsvTable:
    """A CSV file.

    Parameters
    ----------
    path : Path
    columns : tuple of str
    rows : tuple of CsvRow
    decimal : {".", ","}
        What stands before the fraction of a number: a comma in files of spreadsheets that part cells by semicolons.
    """

    path: Path
    columns: tuple[str, ...]
    rows: tuple[CsvRow, ...]
    decimal: str = "."


def raise_all(problems: Sequence[Problem]) -> None:
    """Raise an InputError with the problems, the most of them listed and the others counted; nothing without any."""
    if not problems:
        return
    shown = list(problems[:MOST_PROBLEMS])
    if len(problems) > MOST_PROBLEMS:
        shown.append(Problem(f"and {len(problems) - MOST_PROBLEMS} more problems"))
    raise InputError(shown)


def read_csv(path: Path, required: Collection[str]) -> CsvTable:
    """Read a CSV file whose first row names the columns.

    Parameters
    ----------
    path : Path
    required : collection of str
        Columns that must be there; others are kept too.

    Returns
    -------
    CsvTable

    Raises
    ------
    InputError
        Not a readable file, neither UTF-8 nor UTF-16 text, empty, no rows, columns missing or named twice, a row with
        too few or too many cells, a quotation that never ends. All problems of one kind are listed together.
    """
    columns, records, separator = _records(path, required)
    rows = tuple(CsvRow(line, dict(zip(columns, cells, strict=True))) for line, cells in records)
    return CsvTable(path, tuple(columns), rows, "," if separator == ";" else ".")


def read_columns(path: Path, required: Collection[str]) -> tuple[list[int], dict[str, tuple[str, ...]]]:
    """Read a CSV file column by column, which large tables need; as :func:`read_csv`.

    Parameters
    ----------
    path : Path
    required : collection of str

    Returns
    -------
    lines : list of int
        Line of the file on which each row ends, from 1.
    columns : dict of str to tuple of str
        Cells of all rows, without surrounding blanks, by column.
    """
    columns, records, _ = _records(path, required)
    cells = zip(*(cells for _, cells in records), strict=True)
    return [line for line, _ in records], dict(zip(columns, cells, strict=True))


def _records(path: Path, required: Collection[str]) -> tuple[list[str], list[tuple[int, list[str]]], str]:
    """Columns, the cells of every row with its line, and what parts them."""
    text = _text(path)
    separator = _separator(text, required)
    lines = csv.reader(io.StringIO(text, newline=""), strict=True, delimiter=separator)
    records: list[tuple[int, list[str]]] = []
    try:
        # A list comprehension would lose what was read before the error, and with it the line number.
        for record in lines:
            if record:
                records.append((lines.line_num, [cell.strip() for cell in record]))  # noqa: PERF401
    except csv.Error as error:
        place = f"{path}:{lines.line_num}"
        raise InputError(Problem(f"is not valid CSV: {error}", place, "is the file cut off?")) from None
    if not records:
        raise InputError(Problem("is empty", str(path)))
    columns = records[0][1]
    raise_all(_header_problems(path, columns, required))
    if len(records) == 1:
        raise InputError(Problem("has a header but no rows", str(path)))
    raise_all(
        [
            Problem(
                f"{len(cells)} cells where the header has {len(columns)}",
                f"{path}:{line}",
                "is the file cut off?" if line == records[-1][0] else "quote cells that hold a comma",
            )
            for line, cells in records[1:]
            if len(cells) != len(columns)
        ]
    )
    return columns, records[1:], separator


def _separator(text: str, required: Collection[str]) -> str:
    """What parts the cells: of comma, semicolon and tab, the one by which the first line names most needed columns."""
    head = next((line for line in text.splitlines() if line.strip()), "")
    named = {mark: len(set(required) & {cell.strip(' "') for cell in head.split(mark)}) for mark in ",;\t"}
    return max(named, key=lambda mark: named[mark])


def number(row: CsvRow, column: str, table: CsvTable, problems: list[Problem]) -> float | None:
    """Read a positive number from a cell.

    Parameters
    ----------
    row : CsvRow
    column : str
        A column that need not be there.
    table : CsvTable
        Names the file in problems.
    problems : list of Problem
        Gets one more when the cell is not empty and holds no positive, finite number.

    Returns
    -------
    float or None
        None for an empty cell, a missing column, or after a problem.
    """
    text = row.cells.get(column, "")
    if not text:
        return None
    where = f"{table.path}:{row.line}: {column}"
    try:
        value = float(_plain(text, table.decimal))
    except ValueError:
        problems.append(Problem(f"{text[:40]!r} is not a number", where, "a positive number, or nothing"))
        return None
    if not math.isfinite(value) or value <= 0:
        problems.append(Problem(f"{text[:40]} is not a positive, finite number", where))
        return None
    return value


def _plain(text: str, decimal: str) -> str:
    """A number as Python reads it: ``1,024`` as 1024, or ``1,5`` as 1.5 where the comma comes before the fraction."""
    if decimal == ",":
        return text.replace(",", ".")
    return text.replace(",", "") if _GROUPED.fullmatch(text) else text


def whole(row: CsvRow, column: str, table: CsvTable, problems: list[Problem]) -> int | None:
    """Read a whole number of at least 1 from a cell; as :func:`number`. ``8.0`` is whole."""
    value = number(row, column, table, problems)
    if value is None:
        return None
    if not value.is_integer():
        where = f"{table.path}:{row.line}: {column}"
        problems.append(Problem(f"{row.cells[column][:40]} is not a whole number", where, "1, 2, 3 ..."))
        return None
    return int(value)


def _text(path: Path) -> str:
    file = str(path)
    try:
        if path.is_dir():
            raise InputError(Problem("is a directory", file, "name a CSV file"))
        with path.open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise InputError(Problem("no such file", file)) from None
    except OSError as error:
        raise InputError(Problem(f"cannot be read: {(error.strerror or str(error)).lower()}", file)) from None
    if len(raw) > MAX_BYTES:
        raise InputError(Problem(f"is larger than {MAX_BYTES / 1e6:g} MB", file, "is it the file you meant?"))
    try:
        text = raw.decode(encoding(raw))
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise InputError(
            Problem("is neither UTF-8 nor UTF-16 text", f"{file}:{line}", "is it the file you meant?")
        ) from None
    if "\0" in text:
        raise InputError(Problem("holds NUL bytes", file, "is it the file you meant?"))
    return text


def _header_problems(path: Path, columns: Sequence[str], required: Collection[str]) -> list[Problem]:
    twice = sorted({column for column in columns if column and columns.count(column) > 1})
    problems = [
        Problem(f"the column {column!r} is there twice", f"{path}:1", "name each column once") for column in twice
    ]
    for column in required:
        if column not in columns:
            close = difflib.get_close_matches(column, columns, n=2)
            right = f"did you mean {' or '.join(close)}?" if close else f"needed: {', '.join(required)}"
            problems.append(Problem(f"the column {column!r} is missing", f"{path}:1", right))
    return problems
