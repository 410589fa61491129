"""A validation of memory for people and programs: summary on the screen, the rows as CSV, JSON."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from shardsim.report.records import record_json
from shardsim.report.validation import ROW_COLUMNS, validation_json, validation_text
from shardsim.validate.memory import Confusion, MemoryValidation, MemoryValidationRow

MEMORY_COLUMNS = (*ROW_COLUMNS, "predicted_allocated", "verdict", "outcome")
"""Columns of the rows file: figures in GiB, as reserved unless they say allocated."""

SCHEMA = "shardsim.memory-validation/1"
"""Name of the JSON schema; the number grows when a key changes its meaning or goes, not when one is added."""


def memory_rows_csv(found: MemoryValidation) -> str:
    """Write one row for every input row, in order, figures in full.

    Parameters
    ----------
    found : MemoryValidation

    Returns
    -------
    str
        The reason of a row that was predicted is what had to be assumed.
    """
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(MEMORY_COLUMNS)
    for row in found.table.rows:
        cells = {name: getattr(row, name) for name in ROW_COLUMNS} | {"reason": row.reason or "; ".join(row.notes)}
        if isinstance(row, MemoryValidationRow):
            cells |= {name: getattr(row, name) for name in MEMORY_COLUMNS[len(ROW_COLUMNS) :]}
        writer.writerow([cells[name] for name in MEMORY_COLUMNS])
    return buffer.getvalue()


def memory_validation_json(found: MemoryValidation) -> str:
    """Write the summary, its groups, verdicts and reasons as JSON.

    Parameters
    ----------
    found : MemoryValidation

    Returns
    -------
    str
    """
    record: dict[str, Any] = json.loads(validation_json(found.table)) | {"schema": SCHEMA}
    record["verdicts"] = {
        one.name: {"rows": one.rows, "right": one.right, "share": one.share} for one in found.verdicts
    }
    record["misses"] = [{"group": group, "rows": rows} for group, rows in found.misses]
    return record_json(record)


def memory_validation_text(found: MemoryValidation) -> RenderableType:
    """Lay a validation of memory out for the screen.

    Parameters
    ----------
    found : MemoryValidation

    Returns
    -------
    RenderableType
    """
    if not found.verdicts or not found.verdicts[0].rows:
        return validation_text(found.table)
    return validation_text(found.table, [Text("Fits or goes out of memory", "bold"), _verdicts(found.verdicts)])


def _verdicts(verdicts: tuple[Confusion, ...]) -> Table:
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for index, name in enumerate(("outcome", "layouts", "called right", "share")):
        grid.add_column(name, justify="right" if index else "left", no_wrap=True)
    for one in verdicts:
        share = "-" if one.share is None else f"{100 * one.share:.1f} %"
        grid.add_row(one.name, f"{one.rows:,}", f"{one.right:,}", share)
    return grid
