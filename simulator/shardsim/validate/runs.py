"""Measured training runs against their predictions."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from shardsim.engine.predict import EngineName
from shardsim.errors import InputError, Problem
from shardsim.schema.locate import data_roots
from shardsim.schema.validation import MeasuredNames, measured_names
from shardsim.validate.conditions import HEALTHY, condition_of
from shardsim.validate.csvfile import read_csv
from shardsim.validate.evaluate import Evaluate, Priced, Refused, evaluate_run
from shardsim.validate.requests import RowRequest, row_request
from shardsim.validate.rows import REQUIRED, MeasuredRun, measured_runs, unused_columns
from shardsim.validate.summary import summarise
from shardsim.validate.table import ValidationRow, ValidationTable

SHIPPED = "workloads/measured/narayanan-2021-table1.csv"
_CHUNK = 16


def validate_runs(
    paths: Path | Sequence[Path],
    data: Sequence[Path] = (),
    *,
    engine: EngineName = "listing",
    executor: Executor | None = None,
    progress: Callable[[float, float], None] | None = None,
    evaluate: Evaluate = evaluate_run,
) -> ValidationTable:
    """Predict every run of measured tables.

    Parameters
    ----------
    paths : Path or sequence of Path
        CSV files; see :func:`shardsim.validate.rows.read_measured_runs`.
    data : sequence of Path
        A user's own data folders.
    engine : {"listing", "closed", "des"}
    executor : concurrent.futures.Executor, optional
        Where rows are predicted; the result does not depend on it.
    progress : callable, optional
        Called with the number of runs predicted so far and in all.
    evaluate : callable
        Predicts one run.

    Returns
    -------
    ValidationTable
        One row for every row of the files, in order. An id that several files have gets the name of its file.

    Raises
    ------
    InputError
        Every problem of a file, or a file named twice.
    """
    files = [paths] if isinstance(paths, Path) else list(paths)
    twice = sorted({str(file) for file in files if files.count(file) > 1})
    if twice:
        raise InputError([Problem("is named twice", file, "name each table once") for file in twice])
    tables = [read_csv(file, REQUIRED) for file in files]
    rows = _distinct(files, [measured_runs(table) for table in tables])
    names = measured_names(data)
    requests = [row_request(row, names, data) for row in rows]
    # Tables hold several reports of one configuration: each is predicted once.
    keys = [None if request.run is None else json.dumps(request.run, sort_keys=True) for request in requests]
    distinct = {key: request.run for key, request in zip(keys, requests, strict=True) if key and request.run}
    work = partial(evaluate, engine=engine, data=tuple(data))
    outcomes: Iterable[Priced | Refused]
    if executor is None:
        outcomes = map(work, distinct.values())
    else:
        outcomes = executor.map(work, distinct.values(), chunksize=_CHUNK)
    found: dict[str | None, Priced | Refused] = {}
    for key, outcome in zip(distinct, outcomes, strict=True):
        found[key] = outcome
        if progress is not None:
            progress(len(found), len(distinct))
    conditions = _conditions(rows, names)
    compared = [
        _row(row, request, found.get(key), condition)
        for row, request, key, condition in zip(rows, requests, keys, conditions, strict=True)
    ]
    unused = tuple(dict.fromkeys(column for table in tables for column in unused_columns(table)))
    remarks = (f"Columns not used: {', '.join(unused)}",) if unused else ()
    return replace(summarise(", ".join(file.name for file in files), compared), remarks=remarks)


def _distinct(files: Sequence[Path], tables: Sequence[Sequence[MeasuredRun]]) -> list[MeasuredRun]:
    """Rows of all files; those of which the id is also in another file are called by both."""
    of: dict[str, set[int]] = {}
    for index, rows in enumerate(tables):
        for row in rows:
            of.setdefault(row.id, set()).add(index)
    return [
        replace(row, id=f"{file.name}:{row.id}") if len(of[row.id]) > 1 else row
        for file, rows in zip(files, tables, strict=True)
        for row in rows
    ]


def _conditions(rows: Sequence[MeasuredRun], names: MeasuredNames) -> list[str]:
    """Condition of each row's machine: healthy where other rows of its source say what is wrong and it does not."""
    said = [condition_of(row, names) for row in rows]
    telling = {row.source for row, condition in zip(rows, said, strict=True) if condition}
    return [condition or (HEALTHY if row.source in telling else "") for row, condition in zip(rows, said, strict=True)]


def _row(row: MeasuredRun, request: RowRequest, outcome: Priced | Refused | None, condition: str = "") -> ValidationRow:
    named: dict[str, Any] = {
        "id": row.id,
        "source": row.source,
        "gpu": row.gpu,
        "framework": row.framework,
        "model": row.model,
        "measured": row.iteration_s,
        "condition": condition,
    }
    if isinstance(outcome, Priced) and row.iteration_s is not None:
        return ValidationRow(
            **named,
            predicted=outcome.iteration_s,
            error=outcome.iteration_s / row.iteration_s - 1,
            status="ok",
            reason="",
            notes=request.notes,
            facts=outcome.facts,
            **_identity(request.run or {}),
        )
    reason = outcome.reason if isinstance(outcome, Refused) else request.reason
    return ValidationRow(**named, predicted=None, error=None, status="skipped", reason=reason)


def _identity(run: Mapping[str, Any]) -> dict[str, Any]:
    """What of a run is the job, and what is its layout."""
    batch = dict(run["batch"])
    layout = {"layout": run.get("layout"), "micro": batch.pop("micro", None)}
    job = {key: value for key, value in run.items() if key not in ("layout", "batch")} | {"batch": batch}
    return {"job": json.dumps(job, sort_keys=True), "layout": json.dumps(layout, sort_keys=True)}


def shipped_runs(data: Sequence[Path] = ()) -> Path:
    """Find the measured runs that come with shardsim.

    Parameters
    ----------
    data : sequence of Path
        A user's own data folders, searched first.

    Returns
    -------
    Path

    Raises
    ------
    InputError
        There are none: the installation is incomplete.
    """
    for root in data_roots(data):
        if (root / SHIPPED).is_file():
            return root / SHIPPED
    raise InputError(Problem("the measured runs that come with shardsim are missing", SHIPPED, "install it again"))
