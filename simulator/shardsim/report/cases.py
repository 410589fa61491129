"""Cases for people and programs: what was stated beside our answer on the screen, the rows as CSV, JSON."""

from __future__ import annotations

import csv
import io

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from shardsim.report.records import record_json
from shardsim.report.validation import ROW_COLUMNS
from shardsim.validate.cases import CLOSE, CaseRow, CaseTable
from shardsim.validate.summary import most_frequent

SCHEMA = "shardsim.cases/1"
"""Name of the JSON schema; the number grows when a key changes its meaning or goes, not when one is added."""


def case_rows_csv(table: CaseTable) -> str:
    """Write one row for every input row, in order.

    Parameters
    ----------
    table : CaseTable

    Returns
    -------
    str
        Columns as in :data:`shardsim.report.validation.ROW_COLUMNS`: ``measured`` is the stated outcome, ``predicted``
        ours, ``error`` 0 where they agree.
    """
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(ROW_COLUMNS)
    writer.writerows([getattr(row, column) for column in ROW_COLUMNS] for row in table.rows)
    return buffer.getvalue()


def cases_json(table: CaseTable) -> str:
    """Write the summary and every row as JSON.

    Parameters
    ----------
    table : CaseTable

    Returns
    -------
    str
    """
    record = {
        "schema": SCHEMA,
        "file": table.file,
        "summary": {"rows": len(table.rows), "decided": len(table.decided), "right": len(table.right)},
        "skipped": [{"reason": reason, "rows": rows} for reason, rows in _skipped(table)],
        "rows": [{name: getattr(row, name) for name in (*ROW_COLUMNS, "kind", "framework")} for row in table.rows],
    }
    return record_json(record)


def cases_text(table: CaseTable) -> RenderableType:
    """Lay the cases out for the screen, within 100 columns.

    Parameters
    ----------
    table : CaseTable

    Returns
    -------
    RenderableType
    """
    right, decided = set(table.right), table.decided
    head = (
        f": {len(right)} of {len(decided)} cases right, {len(table.rows) - len(decided)} of {len(table.rows)} skipped"
    )
    parts: list[RenderableType] = [Text.assemble((table.file, "bold"), head)]
    if decided:
        parts += [Text(), _grid(decided, right)]
    skipped = _skipped(table)
    if skipped:
        grid = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
        grid.add_column(justify="right")
        grid.add_column()
        for reason, rows in skipped:
            grid.add_row(str(rows), reason)
        parts += [Text(), Text("Skipped", "bold"), grid]
    parts += [Text(), Text(f"right: the same outcome, or figures within {CLOSE:.1%}", "dim")]
    return Group(*parts)


def _grid(rows: tuple[CaseRow, ...], right: set[CaseRow]) -> Table:
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("case", "stated", "ours", "", "because"):
        grid.add_column(name, overflow="fold")
    for row in rows:
        grid.add_row(row.id, row.measured, row.predicted, "" if row in right else "wrong", row.reason)
    return grid


def _skipped(table: CaseTable) -> tuple[tuple[str, int], ...]:
    return most_frequent(row.reason for row in table.rows if row.status == "skipped")
