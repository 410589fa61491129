"""A validation for people and programs: summary on the screen, the rows as CSV, JSON, DataFrame."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from shardsim.report.records import record_json
from shardsim.units import format_size
from shardsim.validate.summary import most_frequent
from shardsim.validate.table import ErrorSummary, RankingSummary, ValidationRow, ValidationTable
from shardsim.values.features import RunFeatures

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
_COMPARED_WIDTH = 36
_FEWEST = 10
_LINE = 100
_JSON_ONLY = ("framework",)
"""Groupings of training runs that the screen leaves to another one: how tables spell what a profile is named."""


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
    record: dict[str, Any] = {
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
    if table.overall.baselines:
        record["views"] = [{"name": view.name} | _summary(view) for view in table.views]
        record["worst"] = [_worst(row) for row in table.worst]
        record["ranking"] = _ranked(table)
    return record_json(record)


def _ranked(table: ValidationTable) -> dict[str, Any] | None:
    if not table.ranking:
        return None
    first, *others = table.ranking
    views = [{"name": view.name} | _ranking(view) for view in others]
    return _ranking(first) | {"views": views, "of": [asdict(group) for group in table.ranked]}


def _ranking(summary: RankingSummary) -> dict[str, Any]:
    return {
        "groups": summary.groups,
        "best_within_3_percent": summary.best_within,
        "spearman_median": summary.spearman_median,
    }


def _worst(row: ValidationRow) -> dict[str, Any]:
    facts = row.facts
    known = {} if facts is None else {"features": asdict(facts.features), "seconds": dict(facts.seconds)}
    name, share = ("", None) if facts is None else facts.largest_term
    return {
        "id": row.id,
        "source": row.source,
        "model": row.model,
        "layout": "" if facts is None else layout_words(facts.features),
        "measured_s": row.measured,
        "predicted_s": row.predicted,
        "error": row.error,
        "condition": row.condition,
        "largest_term": name,
        "largest_term_share": share,
        **known,
    }


def layout_words(features: RunFeatures) -> str:
    """Put a layout into words.

    Parameters
    ----------
    features : RunFeatures

    Returns
    -------
    str
        Such as ``8 x h100-sxm-80gb, TP8 PP4 DP2, ZeRO 1, 32 micro-batches of 1 x 4,096``.
    """
    axes = ("tp", "pp", "vpp", "cp", "ep", "dp")
    degrees = [f"{axis.upper()}{getattr(features, axis)}" for axis in axes if getattr(features, axis) > 1]
    parts = [f"{features.gpus:,} x {features.device}", " ".join(degrees)]
    parts += [f"ZeRO {features.zero}"] if features.zero else []
    parts.append(f"{features.microbatches:,} micro-batches of {features.micro_batch:,} x {features.seq:,}")
    return ", ".join(part for part in parts if part)


def _baselines(group: ErrorSummary) -> dict[str, Any]:
    return {
        baseline.name: {
            "share_of_peak": baseline.share,
            "median_abs_error": baseline.median,
            "p90_abs_error": baseline.p90,
            "bias": baseline.bias,
        }
        for baseline in group.baselines
    }


def _summary(group: ErrorSummary) -> dict[str, Any]:
    compared = {"baselines": _baselines(group)} if group.baselines else {}
    sizes = {} if group.sizes is None else {"smallest_bytes": group.sizes[0], "largest_bytes": group.sizes[1]}
    return sizes | {
        "rows": group.rows,
        "predicted": group.predicted,
        "skipped": group.rows - group.predicted,
        "median_abs_error": group.median,
        "p90_abs_error": group.p90,
        "bias": group.bias,
        **compared,
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
    parts += _beaten(table)
    if table.ranking:
        parts += [Text(), _ranking_table(table.ranking)]
    if table.worst and len(table.rows) > _MOST_ROWS:
        parts += [Text(), *_worst_lines(table.worst)]
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
    compared = bool(table.overall.baselines)
    columns = ["group", table.noun, "median |error|", "p90", "bias"]
    most: int | None = _MOST_GROUPS
    width = _NAME_WIDTH
    if sized:
        columns, most, width = ["group", table.noun, "bytes", "median", "p90", "bias"], None, _SIZED_WIDTH
    elif compared:
        columns = ["group", table.noun, "median", "p90", "bias", "at 45 %", "best constant"]
        width = _COMPARED_WIDTH
    grid = _grid(*columns)
    tops = [table.overall if table.headline is None else table.headline, *table.views]
    for top in tops:
        grid.add_row(_cut(top.name, width + 2), *_figures(top, sized=sized), end_section=top is tops[-1])
    for grouping, groups in table.groups:
        known = [group for group in groups if group.predicted]
        if len(known) < 2 or (compared and grouping in _JSON_ONLY):
            continue
        grid.add_row(Text(f"by {grouping}", "bold"))
        for group in (known if sized else sorted(known, key=lambda group: -group.predicted))[:most]:
            grid.add_row(f"  {_cut(group.name, width)}", *_figures(group, sized=sized))
        if most is not None and len(known) > most:
            grid.add_row(f"  and {len(known) - most} more (--json)")
    return grid


def _beaten(table: ValidationTable) -> list[RenderableType]:
    """Say what the baselines are, and where one of them is at least as good."""
    if not table.overall.baselines:
        return []
    share = table.overall.baselines[-1].share
    lines = [
        "Beside ours, median / p90 of runs at a constant share of dense peak on counted FLOP: 45 %, and the",
        f"share with the least median fitted on the same rows ({100 * share:.1f} % on all).",
    ]
    groups = [("", group) for group in (table.overall, *table.views)]
    groups += [(f"{grouping} ", group) for grouping, found in table.groups for group in found]
    lost = [
        f"{grouping}{group.name} ({_percent(group.median)} against {_percent(least)})"
        for grouping, group in groups
        if group.predicted >= _FEWEST
        and group.median is not None
        and (least := min(baseline.median for baseline in group.baselines)) <= group.median
    ]
    if lost:
        lines.append(f"Not better than a constant, by median, in groups of {_FEWEST} rows or more: {'; '.join(lost)}.")
    else:
        lines.append(f"Ours is better, by median, in every group of {_FEWEST} rows or more.")
    return [Text(), Text(" ".join(lines))]


def _ranking_table(summaries: Sequence[RankingSummary]) -> Table:
    grid = _grid("ranking of 5 layouts or more of one job", "jobs", "best within 3 %", "median Spearman")
    for summary in summaries:
        name = _cut(summary.name, _SIZED_WIDTH)
        grid.add_row(name, f"{summary.groups:,}", _percent(summary.best_within), f"{summary.spearman_median:.2f}")
    return grid


def _worst_lines(rows: Sequence[ValidationRow]) -> list[RenderableType]:
    """Three lines a row, written by hand: a grid would cut what is longer than its columns."""
    heads = ("measured", "predicted", "error")
    lines = [Text(f"{'worst rows':<{_NAME_WIDTH}}" + "".join(f"{head:>12}" for head in heads), "bold")]
    for row in rows:
        figures = (f"{row.measured:.4g} s", f"{row.predicted:.4g} s", _signed(row.error))
        lines.append(Text(f"{_cut(row.id):<{_NAME_WIDTH}}" + "".join(f"{figure:>12}" for figure in figures)))
        if row.facts is not None:
            name, share = row.facts.largest_term
            lines.append(Text(_cut(f"  {row.model or 'model'}, {layout_words(row.facts.features)}", _LINE)))
            said = f"; {row.source}" if row.source else ""
            lines.append(Text(_cut(f"  largest term: {name}, {100 * share:.0f} %{said}", _LINE)))
    return list(lines)


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
    baselines = [f"{100 * found.median:.0f} / {100 * found.p90:,.0f} %" for found in group.baselines]
    return [f"{group.predicted:,}", *([_sizes(group.sizes)] if sized else []), *errors, *baselines]


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
