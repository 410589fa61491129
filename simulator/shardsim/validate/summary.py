"""Error statistics of validation rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

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
    return ValidationTable(
        file=file,
        rows=tuple(rows),
        overall=error_summary("all", rows),
        groups=tuple((grouping, group_summaries((key(row), row) for row in rows)) for grouping, key in _GROUPINGS),
        skipped=skip_reasons(rows),
    )


def group_summaries(rows: Iterable[tuple[str, ValidationRow]]) -> tuple[ErrorSummary, ...]:
    """Summarise the errors of rows, group by group.

    Parameters
    ----------
    rows : iterable of (str, ValidationRow)
        Each with the name of its group; empty where it has none.

    Returns
    -------
    tuple of ErrorSummary
        In the order of their first row.
    """
    members: dict[str, list[ValidationRow]] = {}
    for name, row in rows:
        members.setdefault(name or "not stated", []).append(row)
    return tuple(error_summary(name, group) for name, group in members.items())


def skip_reasons(rows: Iterable[ValidationRow]) -> tuple[tuple[str, int], ...]:
    """Count why rows were skipped.

    Parameters
    ----------
    rows : iterable of ValidationRow

    Returns
    -------
    tuple of (str, int)
        As :func:`most_frequent`.
    """
    return most_frequent(row.reason for row in rows if row.status == "skipped")


def most_frequent(words: Iterable[str]) -> tuple[tuple[str, int], ...]:
    """Count words, the most frequent first, those as frequent in the order of the alphabet.

    Parameters
    ----------
    words : iterable of str

    Returns
    -------
    tuple of (str, int)

    Examples
    --------
    >>> most_frequent(["b", "c", "a", "c"])
    (('c', 2), ('a', 1), ('b', 1))
    """
    return tuple(sorted(Counter(words).items(), key=lambda item: (-item[1], item[0])))


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
