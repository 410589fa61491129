"""A scaling study for people and programs: table on the screen, CSV, JSON, DataFrame."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from shardsim.report.records import record_json
from shardsim.units import format_time, tflops
from shardsim.values.scaling import MeasuredPoint, ScalingPoint, ScalingTable

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = "shardsim.scaling/1"
"""Name of the JSON schema; the number grows when a key changes its meaning or goes, not when one is added."""

COLUMNS = (
    "gpus",
    "model",
    "tp",
    "pp",
    "dp",
    "cp",
    "ep",
    "vpp",
    "global_batch",
    "micro_batch",
    "iteration_s",
    "tflops_per_gpu",
    "tokens_per_s",
    "mfu",
    "efficiency",
    "ideal_iteration_s",
    "fits",
    "measured_iteration_s",
    "measured_tflops_per_gpu",
    "measured_efficiency",
    "iteration_error",
    "efficiency_difference",
    "reason",
)
"""Columns of the CSV file, in order. The last of the measured ones is predicted minus measured, as shares."""


def scaling_records(table: ScalingTable) -> list[dict[str, Any]]:
    """Lay a study out as one record for each GPU count, with the keys of ``COLUMNS``; None where there is no value.

    Parameters
    ----------
    table : ScalingTable

    Returns
    -------
    list of dict
    """
    return [_record(point, table.measured_at(point.gpus)) for point in table.points]


def _record(point: ScalingPoint, measured: MeasuredPoint | None) -> dict[str, Any]:
    own = {name: getattr(point, name, None) for name in COLUMNS}
    own["tflops_per_gpu"] = None if point.flops_per_gpu is None else tflops(point.flops_per_gpu)
    if measured is None:
        return own
    rate = None if measured.flops_per_gpu is None else tflops(measured.flops_per_gpu)
    time_error = difference = None
    if point.iteration_s is not None and measured.iteration_s is not None:
        time_error = point.iteration_s / measured.iteration_s - 1
    if point.efficiency is not None and measured.efficiency is not None:
        difference = point.efficiency - measured.efficiency
    return own | {
        "measured_iteration_s": measured.iteration_s,
        "measured_tflops_per_gpu": rate,
        "measured_efficiency": measured.efficiency,
        "iteration_error": time_error,
        "efficiency_difference": difference,
    }


def scaling_csv(table: ScalingTable) -> str:
    """Write a study as CSV: figures in full, empty cells where there is no value.

    Parameters
    ----------
    table : ScalingTable

    Returns
    -------
    str
    """
    buffer = io.StringIO(newline="")
    writer = csv.DictWriter(buffer, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for record in scaling_records(table):
        writer.writerow({key: _cell(value) for key, value in record.items()})
    return buffer.getvalue()


def _cell(value: object) -> object:
    return str(value).lower() if isinstance(value, bool) else value


def scaling_json(table: ScalingTable) -> str:
    """Write a study as JSON.

    Parameters
    ----------
    table : ScalingTable

    Returns
    -------
    str
    """
    record = {
        "schema": SCHEMA,
        "mode": table.mode,
        "grow": table.grow,
        "cluster": table.cluster,
        "efficiency": table.definition,
        "reference_tflops": None if table.reference_flops is None else tflops(table.reference_flops),
        "points": scaling_records(table),
        "warnings": list(table.warnings),
    }
    return record_json(record)


def scaling_frame(table: ScalingTable) -> pd.DataFrame:
    """Give a study as a DataFrame with the columns of ``COLUMNS``.

    Parameters
    ----------
    table : ScalingTable

    Returns
    -------
    pandas.DataFrame
    """
    import pandas as pd  # noqa: PLC0415  # loading pandas takes longer than a whole study

    return pd.DataFrame(scaling_records(table), columns=list(COLUMNS))


def scaling_text(table: ScalingTable) -> RenderableType:
    """Lay a study out for the screen, within 100 columns.

    Parameters
    ----------
    table : ScalingTable

    Returns
    -------
    RenderableType
    """
    models = {point.model for point in table.points}
    head = Text(table.title, "bold")
    if len(models) == 1:
        head.append(f": {next(iter(models))}")
    grid = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for name in _headings(table, with_model=len(models) > 1):
        text = name == "model"
        grid.add_column(name, justify="left" if text else "right", no_wrap=not text, overflow="fold", vertical="bottom")
    for point in table.points:
        grid.add_row(*_row(point, table.measured_at(point.gpus), table, with_model=len(models) > 1))
    parts: list[RenderableType] = [head, Text(), grid]
    skipped = [point for point in table.points if point.reason]
    if skipped:
        parts.append(Text())
        parts += [Text(f"{point.gpus:,} GPUs, {point.model}: {point.reason}", "yellow") for point in skipped]
    parts += [Text(), Text(f"efficiency: {table.definition}", "dim")]
    parts += [Text(f"warning: {warning}", "yellow") for warning in table.warnings]
    return Group(*parts)


def _axes(table: ScalingTable) -> list[str]:
    """Axes whose degrees are shown: the three that everybody looks for, and the others where they are used."""
    axes = ("tp", "cp", "ep", "pp", "dp")
    return [axis for axis in axes if axis not in ("cp", "ep") or any((getattr(p, axis) or 1) > 1 for p in table.points)]


def _headings(table: ScalingTable, *, with_model: bool) -> list[str]:
    return [
        "GPUs",
        *(["model"] if with_model else []),
        "·".join(axis.upper() for axis in _axes(table)),
        "batch",
        "iteration",
        "TFLOP/s\nper GPU",
        "tokens/s",
        "MFU\n%",
        "efficiency\n%",
        *(["measured\n%", "diff.\npoints"] if table.measured else []),
        "fits",
    ]


def _row(point: ScalingPoint, measured: MeasuredPoint | None, table: ScalingTable, *, with_model: bool) -> list[str]:
    record = _record(point, measured)
    if point.iteration_s is None:
        figures = ["-", "-", "no layout", "-", "-", "-", "-"]
    else:
        figures = [
            "·".join(str(getattr(point, axis)) for axis in _axes(table)),
            f"{point.global_batch:,}",
            format_time(point.iteration_s),
            f"{record['tflops_per_gpu']:.1f}",
            f"{point.tokens_per_s:,.0f}",
            _percent(point.mfu),
            _percent(point.efficiency),
        ]
    compared = [_percent(record["measured_efficiency"]), _percent(record["efficiency_difference"], "+")]
    fits = "-" if point.fits is None else "yes" if point.fits else "no"
    return [
        f"{point.gpus:,}",
        *([point.model] if with_model else []),
        *figures,
        *(compared if table.measured else []),
        fits,
    ]


def _percent(share: float | None, sign: str = "") -> str:
    return "-" if share is None else f"{100 * share:{sign}.1f}"
