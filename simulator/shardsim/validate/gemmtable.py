"""A table of measured matrix products, column by column: what a million rows need."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from shardsim.errors import InputError, Problem
from shardsim.validate.csvfile import raise_all, read_columns
from shardsim.values.measured import MeasuredGemms

Array = NDArray[np.float64]

NAMES: Mapping[str, tuple[str, ...]] = {
    "id": ("id",),
    "gpu": ("gpu", "device", "gpu_name"),
    "dtype": ("dtype", "precision", "data_type", "gemm_dtype"),
    "layout": ("layout", "trans"),
    "m": ("m",),
    "n": ("n",),
    "k": ("k",),
    "batch": ("batch", "batch_count"),
}
"""Columns, and the names that each may have, whatever their case."""
TIMES: Mapping[str, float] = {
    f"{word}_{unit}": factor
    for unit, factor in (("us", 1e6), ("ms", 1e3), ("s", 1.0), ("ns", 1e9))
    for word in ("time", "latency", "duration")
}
"""Names of the column of times, and how many of its unit make a second [1/s]."""
SHAPE = ("m", "n", "k")
REQUIRED = ("gpu", "dtype", *SHAPE)
"""Columns of a table of several GPUs and data types, besides that of times."""


def read_gemms(path: Path, required: Sequence[str] = REQUIRED) -> MeasuredGemms:
    """Read a table of measured matrix products.

    Parameters
    ----------
    path : Path
        CSV with the columns of ``required`` and one of times, such as ``time_us``.
    required : sequence of str
        What must be there; ``gpu`` or ``dtype`` may be told otherwise.

    Returns
    -------
    MeasuredGemms

    Raises
    ------
    InputError
        Every problem of the file: columns missing or there twice, ragged rows, cells that are not the numbers they
        should be.
    """
    lines, columns = read_columns(path, ())
    names = _named(path, list(columns), required)
    rows, nothing = len(lines), ("",) * len(lines)
    problems: list[Problem] = []

    def texts(name: str) -> Sequence[str]:
        return columns[names[name]] if name in names else nothing

    def numbers(name: str, *, whole: bool = True) -> Array:
        if name not in names:
            return np.full(rows, math.nan)
        return _numbers(columns[names[name]], f"{names[name]}", lines, path, problems, whole=whole)

    shape = [numbers(name) for name in SHAPE]
    batch = numbers("batch")
    seconds = numbers("time", whole=False) / TIMES[names["time"].casefold()]
    raise_all(problems)
    ids = texts("id")
    return MeasuredGemms(
        file=path.name,
        ids=[own or str(number) for number, own in enumerate(ids, 1)],
        gpu=texts("gpu"),
        dtype=texts("dtype"),
        layout=texts("layout"),
        m=shape[0],
        n=shape[1],
        k=shape[2],
        batch=np.where(np.isnan(batch), 1.0, batch),
        seconds=seconds,
    )


def _named(path: Path, columns: Sequence[str], required: Sequence[str]) -> dict[str, str]:
    """For each of our names, that of the table."""
    folded = {column.casefold(): column for column in columns}
    where = f"{path}:1"
    problems: list[Problem] = []
    found: dict[str, str] = {}
    for name, aliases in {**NAMES, "time": tuple(TIMES)}.items():
        present = [folded[alias] for alias in aliases if alias in folded]
        if len(present) > 1:
            problems.append(Problem(f"the columns {' and '.join(present)} say the same", where, "keep one"))
        if present:
            found[name] = present[0]
        elif name == "time":
            right = "name its unit: time_us, time_ms or time_s"
            problems.append(Problem("there is no column of times", where, right))
        elif name in required:
            close = difflib.get_close_matches(name, columns, n=2)
            right = f"did you mean {' or '.join(close)}?" if close else f"needed: {', '.join(required)}, time_us"
            problems.append(Problem(f"the column {name!r} is missing", where, right))
    if problems:
        raise InputError(problems)
    return found


def _numbers(
    cells: Sequence[str], column: str, lines: Sequence[int], path: Path, problems: list[Problem], *, whole: bool
) -> Array:
    """Positive numbers; NaN where a cell is empty, or after a problem."""
    try:
        values = np.array([float(cell) if cell else math.nan for cell in cells])
    except ValueError:
        values = np.array([_number(cell) for cell in cells])
    filled = np.array([bool(cell) for cell in cells])
    bad = filled & ~(np.isfinite(values) & (values > 0))
    if whole:
        bad |= filled & (values != np.floor(values))
    right = "1, 2, 3 ..." if whole else "a positive number, or nothing"
    kind = "whole number, 1 or more" if whole else "positive, finite number"
    for index in np.flatnonzero(bad).tolist():
        where = f"{path}:{lines[index]}: {column}"
        problems.append(Problem(f"{cells[index][:40]!r} is not a {kind}", where, right))
    values[bad] = math.nan
    return values


def _number(cell: str) -> float:
    try:
        return float(cell) if cell else math.nan
    except ValueError:
        return math.nan
