"""Error statistics of validation rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from shardsim.validate.baselines import baseline_errors, error_figures
from shardsim.validate.conditions import HEALTHY
from shardsim.validate.ranking import ranked_groups, ranking_summaries
from shardsim.validate.table import ErrorSummary, ValidationRow, ValidationTable
from shardsim.values.features import RunFeatures

MOST_WORST = 10
"""Rows that are named as worst (-)."""

EQUAL_SOURCES = "every source weighted equally"

_GROUPINGS: tuple[tuple[str, Callable[[ValidationRow], str]], ...] = (
    ("source", lambda row: row.source),
    ("gpu", lambda row: row.gpu),
    ("framework", lambda row: row.framework),
)

_FEATURES: tuple[tuple[str, Callable[[RunFeatures], str]], ...] = (
    ("profile", lambda features: features.framework),
    ("model kind", lambda features: features.kind),
    ("parallelism", lambda features: features.parallelism),
    ("precision", lambda features: features.precision),
    ("sequence length", lambda features: f"{features.seq:,}"),
    (
        "profile, device and model kind",
        lambda features: f"{features.framework}, {features.device}, {features.kind}",
    ),
)
"""Of rows with a prediction; profile: what the framework is priced by."""


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
        Groups in the order of their first row. Those by what a prediction knows of a run are of rows with one.
    """
    groups = [(grouping, group_summaries((key(row), row) for row in rows)) for grouping, key in _GROUPINGS]
    known = [(row.facts.features, row) for row in rows if row.facts is not None and row.status == "ok"]
    if known:
        groups += [
            (grouping, group_summaries((key(features), row) for features, row in known)) for grouping, key in _FEATURES
        ]
    conditioned = [row for row in rows if row.condition]
    if conditioned:
        groups.append(("condition", group_summaries((row.condition, row) for row in conditioned)))
    ranked = ranked_groups(rows)
    worst = sorted((row for _, row in known), key=lambda row: -abs(row.error or 0.0))
    return ValidationTable(
        file=file,
        rows=tuple(rows),
        overall=error_summary("all", rows),
        groups=tuple(groups),
        skipped=skip_reasons(rows),
        views=_views(rows) if known else (),
        worst=tuple(worst[:MOST_WORST]),
        ranked=ranked,
        ranking=ranking_summaries(ranked),
    )


def _views(rows: Sequence[ValidationRow]) -> tuple[ErrorSummary, ...]:
    """All rows with every source weighted equally; the same without rows of machines that something is wrong with."""
    several = len({row.source for row in rows if row.error is not None}) > 1
    found = [equal_sources(EQUAL_SOURCES, rows)] if several else []
    wrong = list(dict.fromkeys(row.condition for row in rows if row.condition not in ("", HEALTHY)))
    if wrong:
        sound = [row for row in rows if row.condition not in wrong]
        name = f"without {' and '.join(wrong)}"
        found.append(error_summary(name, sound))
        found += [equal_sources(f"{name}, sources equally", sound)] if several else []
    return tuple(found)


def equal_sources(name: str, rows: Sequence[ValidationRow]) -> ErrorSummary:
    """Summarise the errors of rows of which those of one source weigh as much as those of any other.

    Parameters
    ----------
    name : str
    rows : sequence of ValidationRow

    Returns
    -------
    ErrorSummary
    """
    kept = [row for row in rows if row.error is not None]
    if not kept:
        return error_summary(name, rows)
    of = Counter(row.source for row in kept)
    weights = [1 / of[row.source] for row in kept]
    figures = error_figures(np.array([row.error for row in kept], dtype=float), np.array(weights))
    return ErrorSummary(name, len(rows), len(kept), *figures, baselines=baseline_errors(kept, weights))


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
    return ErrorSummary(name, len(rows), errors.size, *error_figures(errors), baselines=baseline_errors(rows))
