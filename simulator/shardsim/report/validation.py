"""A validation for people and programs: summary on the screen, the rows as CSV, JSON, DataFrame."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from shardsim.report.records import record_json
from shardsim.units import format_size
from shardsim.validate.summary import most_frequent
from shardsim.validate.table import ErrorSummary, ValidationRow, ValidationTable

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = "shardsim.validation/1"
"""Name of the JSON schema; the number grows when a key changes its meaning or goes, not when one is added."""

ROW_COLUMNS = ("id", "measured", "predicted", "error", "status", "reason")
"""Columns of the rows file: times in seconds, error = predicted / measured - 1."""

_MOST_GROUPS = 12
_MOST_ROWS = 12
_NAME_WIDTH = 58
_SIZED_WIDTH = 49


def rows_csv(table: ValidationTable) -> str:
    """Write one row for every input row, in order, figures in full.

    Parameters
    ----------
    table : ValidationTable

    Returns
    -------
    str
    """
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(ROW_COLUMNS)
    writer.writerows(_row_cells(row) for row in table.rows)
    return buffer.getvalue()


def _row_cells(row: ValidationRow) -> list[object]:
    return [getattr(row, column) for column in ROW_COLUMNS]


def validation_frame(table: ValidationTable) -> pd.DataFrame:
    """Give the rows as a DataFrame, with source, GPU, framework and model beside the columns of the rows file.

    Parameters
    ----------
    table : ValidationTable

    Returns
    -------
    pandas.DataFrame
    """
    import pandas as pd  # noqa: PLC0415  # loading pandas takes longer than most validations

    columns = [*ROW_COLUMNS, "source", "gpu", "framework", "model"]
    return pd.DataFrame([{name: getattr(row, name) for name in columns} for row in table.rows], columns=columns)


def validation_json(table: ValidationTable) -> str:
    """Write the summary, its groups and the reasons for skipping as JSON.

    Parameters
    ----------
    table : ValidationTable

    Returns
    -------
    str
    """
    record = {
        "schema": SCHEMA,
        "file": table.file,
        "bias": "median of predicted / measured - 1",
        "summary": _summary(table.overall),
        "groups": {
            grouping: [{"name": group.name} | _summary(group) for group in groups] for grouping, groups in table.groups
        },
        "remarks": list(table.remarks),
        "skipped": [{"reason": reason, "rows": rows} for reason, rows in table.skipped],
        "notes": [{"note": note, "rows": rows} for note, rows in _notes(table)],
    }
    return record_json(record)


def _summary(group: ErrorSummary) -> dict[str, Any]:
    sizes = {} if group.sizes is None else {"smallest_bytes": group.sizes[0], "largest_bytes": group.sizes[1]}
    return sizes | {
        "rows": group.rows,
        "predicted": group.predicted,
        "skipped": group.rows - group.predicted,
        "median_abs_error": group.median,
        "p90_abs_error": group.p90,
        "bias": group.bias,
    }


def _notes(table: ValidationTable) -> tuple[tuple[str, int], ...]:
    return most_frequent(note for row in table.rows for note in row.notes)


def validation_text(table: ValidationTable, first: Sequence[RenderableType] = ()) -> RenderableType:
    """Lay a validation out for the screen, within 100 columns.

    Parameters
    ----------
    table : ValidationTable
    first : sequence of RenderableType
        What stands between the heading and the errors.

    Returns
    -------
    RenderableType
    """
    overall = table.overall
    predicted = sum(row.status == "ok" for row in table.rows)
    parts: list[RenderableType] = [
        Text.assemble((table.file, "bold"), f": {predicted:,} of {len(table.rows):,} {table.noun} predicted"),
    ]
    if first:
        parts += [Text(), *first]
    if overall.predicted and len(table.rows) <= _MOST_ROWS:
        parts += [Text(), _row_table(table.rows, table.unit)]
    if overall.predicted:
        parts += [Text(), _summary_table(table)]
    if table.skipped:
        parts += [Text(), Text(f"Skipped: {overall.rows - overall.predicted:,} rows", "bold")]
        parts.append(_counted(table.skipped))
    notes = _notes(table)
    if notes:
        parts += [Text(), Text("Assumed", "bold"), _counted(notes)]
    if table.remarks:
        parts += [Text(), *(Text(remark) for remark in table.remarks)]
    if overall.predicted:
        note = "error = predicted / measured - 1; bias: its median; p90: 90 % of |error| are below"
        parts += [Text(), Text(note, "dim")]
    return Group(*parts)


def _row_table(rows: Sequence[ValidationRow], unit: str) -> Table:
    grid = _grid("run", "measured", "predicted", "error")
    for row in rows:
        times = [f"{time:.4g} {unit}" if time is not None else "-" for time in (row.measured, row.predicted)]
        grid.add_row(_cut(row.id), *times, _signed(row.error))
    return grid


def _summary_table(table: ValidationTable) -> Table:
    sized = any(group.sizes is not None for _, groups in table.groups for group in groups)
    columns = ("group", table.noun, "bytes", "median", "p90", "bias")
    grid = _grid(*(columns if sized else ("group", table.noun, "median |error|", "p90", "bias")))
    top = table.overall if table.headline is None else table.headline
    most, width = (None, _SIZED_WIDTH) if sized else (_MOST_GROUPS, _NAME_WIDTH)
    grid.add_row(top.name, *_figures(top, sized=sized), end_section=True)
    for grouping, groups in table.groups:
        known = [group for group in groups if group.predicted]
        if len(known) < 2:
            continue
        grid.add_row(Text(f"by {grouping}", "bold"))
        for group in (known if sized else sorted(known, key=lambda group: -group.predicted))[:most]:
            grid.add_row(f"  {_cut(group.name, width)}", *_figures(group, sized=sized))
        if most is not None and len(known) > most:
            grid.add_row(f"  and {len(known) - most} more (--json)")
    return grid


def _counted(items: Sequence[tuple[str, int]]) -> RenderableType:
    grid = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    grid.add_column(justify="right")
    grid.add_column()
    for text, rows in items[:_MOST_GROUPS]:
        grid.add_row(f"{rows:,}", text)
    if len(items) > _MOST_GROUPS:
        rest = items[_MOST_GROUPS:]
        grid.add_row(f"{sum(rows for _, rows in rest):,}", f"for {len(rest)} more reasons (--json)")
    return grid


def _grid(*columns: str) -> Table:
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for index, name in enumerate(columns):
        grid.add_column(name, justify="right" if index else "left", no_wrap=True)
    return grid


def _figures(group: ErrorSummary, *, sized: bool) -> list[str]:
    errors = [_percent(group.median), _percent(group.p90), _signed(group.bias)]
    return [f"{group.predicted:,}", *([_sizes(group.sizes)] if sized else []), *errors]


def _sizes(sizes: tuple[float, float] | None) -> str:
    """Smallest and largest: ``64Ki..16Gi``."""
    if sizes is None:
        return "-"
    return "..".join(dict.fromkeys(format_size(size).removesuffix("B").replace(" ", "") for size in sizes))


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def _signed(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:+.1f} %"


def _cut(name: str, width: int = _NAME_WIDTH) -> str:
    return name if len(name) <= width else f"{name[: width - 1].rstrip()}…"
