"""From validated rows to bands: groups of runs that are alike, and how predictions of them erred."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from shardsim.engine.band import RANGES
from shardsim.errors import Problem
from shardsim.validate.csvfile import number, raise_all, read_csv
from shardsim.validate.table import ValidationRow
from shardsim.values.bands import ValidatedGroup
from shardsim.values.features import RunFeatures

LEAST_ROWS = 10
"""Of a group (-)."""

_ALIKE = (("framework", "generation", "kind"), ("generation", "kind"), ("kind",), ())
"""In what runs of a group are alike: the most alike first."""


def validated_groups(
    rows: Iterable[ValidationRow], held_out: Mapping[str, float] | None = None
) -> tuple[ValidatedGroup, ...]:
    """Sort validated runs into groups that are alike, coarser and coarser.

    Parameters
    ----------
    rows : iterable of ValidationRow
        Those whose own words say that their machine was sick are left out.
    held_out : mapping of str to float, optional
        Errors by id, of predictions by constants that were fitted without the row (-): they take the place of the rows'
        own, which are too small where constants were fitted to them.

    Returns
    -------
    tuple of ValidatedGroup
        Of at least ten runs.
    """
    known = [
        (row, (held_out or {}).get(row.id, row.error), row.facts.features)
        for row in rows
        if row.error is not None and row.facts is not None and row.condition in ("", "healthy")
    ]
    found = []
    for alike in _ALIKE:
        members: dict[tuple[str, ...], list[tuple[ValidationRow, float, RunFeatures]]] = {}
        for row, error, features in known:
            if error is not None:
                key = tuple(str(getattr(features, name)) for name in alike)
                members.setdefault(key, []).append((row, error, features))
        found += [_group(dict(zip(alike, key, strict=True)), group) for key, group in sorted(members.items())]
    return tuple(group for group in found if group.rows >= LEAST_ROWS)


def read_errors(path: Path) -> dict[str, float]:
    """Read errors by id from rows as ``shardsim calibrate stack --errors`` writes them.

    Parameters
    ----------
    path : Path
        CSV with columns ``id``, ``measured`` and ``predicted`` [s]; rows without a prediction are left out.

    Returns
    -------
    dict of str to float

    Raises
    ------
    InputError
        Every problem of the file.
    """
    table = read_csv(path, ("id", "measured", "predicted"))
    problems: list[Problem] = []
    times = {
        row.cells["id"]: tuple(number(row, column, table, problems) for column in ("predicted", "measured"))
        for row in table.rows
    }
    raise_all(problems)
    return {name: predicted / measured - 1.0 for name, (predicted, measured) in times.items() if predicted and measured}


def _group(common: Mapping[str, str], members: Sequence[tuple[ValidationRow, float, RunFeatures]]) -> ValidatedGroup:
    errors = np.array([error for _, error, _ in members])
    # Of n runs the next one lies below the k-th with probability k / (n + 1), whatever their distribution.
    low, high = np.quantile(1.0 / (1.0 + errors), [0.1, 0.9], method="weibull")
    median, p90 = np.quantile(np.abs(errors), [0.5, 0.9])
    figures = {name: [int(getattr(features, name)) for _, _, features in members] for name in RANGES}
    return ValidatedGroup(
        framework=common.get("framework", ""),
        generation=common.get("generation", ""),
        kind=common.get("kind", ""),
        rows=len(members),
        models=len({row.model for row, _, _ in members}),
        sources=len({row.source for row, _, _ in members}),
        # A run that came out as predicted lies inside, however a small group erred.
        low=min(float(low), 1.0),
        high=max(float(high), 1.0),
        median=float(median),
        p90=float(p90),
        ranges={name: (min(values), max(values)) for name, values in figures.items()},
        precisions=tuple(sorted({features.precision for _, _, features in members})),
    )


def bands_yaml(groups: Sequence[ValidatedGroup], source: str) -> str:
    """Write groups as the YAML that predictions read.

    Parameters
    ----------
    groups : sequence of ValidatedGroup
    source : str
        What they were made from.

    Returns
    -------
    str
    """
    lines = [
        "# Written by shardsim validate runs --bands: how predictions erred on validated runs.",
        f"source: {json.dumps(source, ensure_ascii=False)}",
        "groups:",
    ]
    for group in groups:
        lines += _lines(group)
    return "\n".join(lines) + "\n"


def _lines(group: ValidatedGroup) -> Iterator[str]:
    named = [(key, getattr(group, key)) for key in ("framework", "generation", "kind")]
    keys = ", ".join(f"{key}: {value}" for key, value in named if value)
    yield f"  - {{{keys + ', ' if keys else ''}rows: {group.rows}, models: {group.models}, sources: {group.sources},"
    yield f"     low: {group.low:.4f}, high: {group.high:.4f}, median: {group.median:.4f}, p90: {group.p90:.4f},"
    ranges = ", ".join(f"{name}: [{least}, {most}]" for name, (least, most) in group.ranges.items())
    yield f"     ranges: {{{ranges}}},"
    yield f"     precisions: [{', '.join(group.precisions)}]}}"
