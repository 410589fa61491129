"""Measured points of a scaling curve, from CSV."""

from __future__ import annotations

from pathlib import Path

from shardsim.errors import Problem
from shardsim.validate.csvfile import CsvRow, CsvTable, number, raise_all, read_csv, whole
from shardsim.values.scaling import MeasuredPoint

_QUANTITIES = ("iteration_s", "tflops_per_gpu", "efficiency")
_MOST_EFFICIENCY = 2.0


def read_measured(path: Path) -> tuple[MeasuredPoint, ...]:
    """Read measured points.

    Parameters
    ----------
    path : Path
        CSV with a column ``gpus`` and at least one of ``iteration_s`` [s], ``tflops_per_gpu`` [TFLOP/s] and
        ``efficiency`` (-, a share: 0.77); ``source`` is kept, other columns are ignored.

    Returns
    -------
    tuple of MeasuredPoint
        In the order of the file.

    Raises
    ------
    InputError
        Every problem of the file.
    """
    table = read_csv(path, ["gpus"])
    if not any(quantity in table.columns for quantity in _QUANTITIES):
        raise_all([Problem("has no measured column", f"{path}:1", f"one or more of {', '.join(_QUANTITIES)}")])
    problems: list[Problem] = []
    points = [point for row in table.rows if (point := _point(row, table, problems)) is not None]
    lines: dict[int, int] = {}
    for row, gpus in [(row, whole(row, "gpus", table, [])) for row in table.rows]:
        if gpus is not None and lines.setdefault(gpus, row.line) != row.line:
            problems.append(Problem(f"{gpus} GPUs stand here again", f"{path}:{row.line}", f"first on {lines[gpus]}"))
    raise_all(problems)
    return tuple(points)


def _point(row: CsvRow, table: CsvTable, problems: list[Problem]) -> MeasuredPoint | None:
    gpus = whole(row, "gpus", table, problems)
    iteration, rate, efficiency = (number(row, quantity, table, problems) for quantity in _QUANTITIES)
    where = f"{table.path}:{row.line}"
    if not row.cells["gpus"]:
        problems.append(Problem("gpus is empty", where, "a whole number"))
    if not any(row.cells.get(quantity) for quantity in _QUANTITIES):
        problems.append(Problem("nothing measured", where, f"one or more of {', '.join(_QUANTITIES)}"))
    if efficiency is not None and efficiency > _MOST_EFFICIENCY:
        problems.append(Problem(f"{efficiency:g} is not a share", f"{where}: efficiency", "0.77 for 77 %"))
    if gpus is None:
        return None
    flops = None if rate is None else rate * 1e12
    return MeasuredPoint(gpus, iteration, flops, efficiency, row.cells.get("source", ""))
