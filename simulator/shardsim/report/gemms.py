"""Measured matrix products for people and programs: summary on the screen, rows as CSV, JSON."""

from __future__ import annotations

import csv
import io

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from shardsim.report.records import record_json
from shardsim.report.validation import ROW_COLUMNS, SCHEMA, _counted, _grid, _signed, _summary, _summary_table
from shardsim.units import format_time
from shardsim.validate.gemms import GemmValidation
from shardsim.validate.table import ValidationTable

_MOST_ROWS = 12
_LEGEND = (
    "predicted as short bursts, as microbenchmarks run them: training runs long and hot, and is slower",
    "error = predicted / measured - 1; bias: its median; p90: 90 % of |error| are below",
)


def gemm_rows_csv(found: GemmValidation) -> str:
    """Write one row for every input row, in order, figures in full.

    Parameters
    ----------
    found : GemmValidation

    Returns
    -------
    str
        Columns as in :data:`shardsim.report.validation.ROW_COLUMNS`, times in seconds.
    """
    measured, predicted, error = (
        [value if value == value else "" for value in column.tolist()]  # noqa: PLR0124  # NaN alone differs from itself
        for column in (found.table.seconds, found.predicted, found.error)
    )
    reasons = [found.reasons[number] for number in found.reason.tolist()]
    status = ["skipped" if reason else "ok" for reason in reasons]
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(ROW_COLUMNS)
    writer.writerows(zip(found.table.ids, measured, predicted, error, status, reasons, strict=True))
    return buffer.getvalue()


def gemm_validation_json(found: GemmValidation) -> str:
    """Write the summary, its groups and the reasons for skipping as JSON, as other validations do.

    Parameters
    ----------
    found : GemmValidation

    Returns
    -------
    str
    """
    record = {
        "schema": SCHEMA,
        "file": found.table.file,
        "bias": "median of predicted / measured - 1",
        "summary": _summary(found.overall),
        "groups": {
            grouping: [{"name": group.name} | _summary(group) for group in groups] for grouping, groups in found.groups
        },
        "skipped": [{"reason": reason, "rows": rows} for reason, rows in found.skipped],
        "notes": [{"note": note, "rows": rows} for note, rows in found.notes],
    }
    return record_json(record)


def gemm_validation_text(found: GemmValidation) -> RenderableType:
    """Lay a validation out for the screen, within 100 columns.

    Parameters
    ----------
    found : GemmValidation

    Returns
    -------
    RenderableType
    """
    overall = found.overall
    said = f": {overall.predicted:,} of {overall.rows:,} products predicted"
    parts: list[RenderableType] = [Text.assemble((found.table.file, "bold"), said), Text()]
    if overall.predicted and overall.rows <= _MOST_ROWS:
        parts += [_rows(found), Text()]
    parts.append(_summary_table(ValidationTable(found.table.file, (), overall, found.groups, (), "products")))
    if found.skipped:
        parts += [Text(), Text(f"Skipped: {overall.rows - overall.predicted:,} rows", "bold"), _counted(found.skipped)]
    if found.notes:
        parts += [Text(), Text("Assumed", "bold"), _counted(found.notes)]
    parts += [Text(), *(Text(line, "dim") for line in _LEGEND)]
    return Group(*parts)


def _rows(found: GemmValidation) -> Table:
    table = found.table
    grid = _grid("product", "m x n x k", "measured", "predicted", "error")
    for index, identity in enumerate(table.ids):
        shape = " x ".join("?" if size != size else f"{size:.0f}" for size in _shape(found, index))  # noqa: PLR0124
        grid.add_row(
            f"{identity}  {found.kinds[found.kind[index]]}"[:44],
            shape,
            *(_time(float(column[index])) for column in (table.seconds, found.predicted)),
            _signed(_known(float(found.error[index]))),
        )
    return grid


def _shape(found: GemmValidation, index: int) -> tuple[float, float, float]:
    table = found.table
    return float(table.m[index]), float(table.n[index]), float(table.k[index])


def _known(value: float) -> float | None:
    return None if value != value else value  # noqa: PLR0124


def _time(seconds: float) -> str:
    return "-" if seconds != seconds else format_time(seconds)  # noqa: PLR0124
