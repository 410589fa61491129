"""Error statistics of validation rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from shardsim.validate.table import ErrorSummary, ValidationRow, ValidationTable

_GROUPINGS: tuple[tuple[str, Callable[[ValidationRow], str]], ...] = (
    ("source", lambda row: row.source),
    ("gpu", lambda row: row.gpu),
    ("framework", lambda row: row.framework),
)


def summarise(file: str, rows: Sequence[ValidationRow]) -> ValidationTable:
    """Put rows and their statistics into a table.

    Parameters
    ----------
    file : str
        Name of the measured table.
    rows : sequence of ValidationRow

    Returns
    -------
    ValidationTable
        Groups in the order of their first row.
    """
    groups = []
    for grouping, key in _GROUPINGS:
        members: dict[str, list[ValidationRow]] = {}
        for row in rows:
            members.setdefault(key(row) or "not stated", []).append(row)
        groups.append((grouping, tuple(error_summary(name, group) for name, group in members.items())))
    reasons = Counter(row.reason for row in rows if row.status == "skipped")
    return ValidationTable(
        file=file,
        rows=tuple(rows),
        overall=error_summary("all", rows),
        groups=tuple(groups),
        skipped=tuple(sorted(reasons.items(), key=lambda item: (-item[1], item[0]))),
    )


def error_summary(name: str, rows: Sequence[ValidationRow]) -> ErrorSummary:
    """Summarise the errors of rows.

    Parameters
    ----------
    name : str
    rows : sequence of ValidationRow

    Returns
    -------
    ErrorSummary
        Percentiles interpolate linearly between order statistics.
    """
    errors = np.array([row.error for row in rows if row.error is not None])
    if errors.size == 0:
        return ErrorSummary(name, len(rows), 0, None, None, None)
    median, p90 = np.percentile(np.abs(errors), [50, 90])
    return ErrorSummary(name, len(rows), errors.size, float(median), float(p90), float(np.median(errors)))
