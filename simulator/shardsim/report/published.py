"""Published runs against their predictions: on the screen and as JSON."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from shardsim.report.records import record_json
from shardsim.report.validation import _grid
from shardsim.validate.published import PublishedErrors

SCHEMA = "shardsim.published/1"
"""Name of the JSON schema; the number grows when a key changes its meaning or goes, not when one is added."""


def published_text(found: Sequence[PublishedErrors], *, rows: bool = False) -> RenderableType:
    """Lay the errors out for the screen, within 100 columns.

    Parameters
    ----------
    found : sequence of PublishedErrors
    rows : bool
        Whether to show every run.

    Returns
    -------
    RenderableType
    """
    grid = _grid("published", "runs", "mean |error|", "worst", "bias", "bound")
    for table in found:
        bound = "-" if table.bound is None else f"{table.bound[0]:.1%}, {table.bound[1]:.1%}"
        figures = (f"{table.mean:.1%}", f"{table.worst:.1%}", f"{table.bias:+.1%}")
        grid.add_row(table.name, f"{len(table.rows)}", *figures, bound)
        if rows:
            for row in table.rows:
                grid.add_row(f"  {row.id}", "", f"{row.measured:.4g} s", f"{row.predicted:.4g} s", f"{row.error:+.1%}")
    parts: list[RenderableType] = [grid, Text()]
    parts += [Text(f"{table.name} is not within its bound", "bold red") for table in found if not table.within]
    note = "error = predicted / measured - 1; bias: its mean; bound: recorded for mean and worst"
    return Group(*parts, Text(note, "dim"))


def published_json(found: Sequence[PublishedErrors]) -> str:
    """Write the errors as JSON.

    Parameters
    ----------
    found : sequence of PublishedErrors

    Returns
    -------
    str
    """
    return record_json(
        {
            "schema": SCHEMA,
            "tables": [
                {
                    "name": table.name,
                    "title": table.title,
                    "source": table.source,
                    "mean_abs_error": table.mean,
                    "worst_abs_error": table.worst,
                    "bias": table.bias,
                    "bound_mean": None if table.bound is None else table.bound[0],
                    "bound_worst": None if table.bound is None else table.bound[1],
                    "within": table.within,
                    "runs": [
                        {"id": row.id, "measured_s": row.measured, "predicted_s": row.predicted, "error": row.error}
                        for row in table.rows
                    ],
                }
                for table in found
            ],
        }
    )
