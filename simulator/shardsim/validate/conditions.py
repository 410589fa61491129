"""What a row's own words say of the machine that it was measured on. The measured time says nothing here."""

from __future__ import annotations

from shardsim.schema.validation import MeasuredNames
from shardsim.validate.rows import MeasuredRun

HEALTHY = "healthy"
"""Rows of tables that say something of their machines, and nothing bad of this one's."""


def condition_of(row: MeasuredRun, names: MeasuredNames) -> str:
    """Name the condition of a row's machine.

    Parameters
    ----------
    row : MeasuredRun
    names : MeasuredNames

    Returns
    -------
    str
        The name of the first rule that applies; empty for none.
    """
    return next((rule.name for rule in names.conditions if rule.tells(row.notes, row.interconnect)), "")
