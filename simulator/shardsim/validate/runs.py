"""Measured training runs against their predictions."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from shardsim.engine.predict import EngineName
from shardsim.errors import InputError, Problem
from shardsim.schema.locate import data_roots
from shardsim.schema.validation import measured_names
from shardsim.validate.csvfile import read_csv
from shardsim.validate.evaluate import Evaluate, Priced, Refused, evaluate_run
from shardsim.validate.requests import RowRequest, row_request
from shardsim.validate.rows import REQUIRED, MeasuredRun, measured_runs, unused_columns
from shardsim.validate.summary import summarise
from shardsim.validate.table import ValidationRow, ValidationTable

SHIPPED = "workloads/measured/narayanan-2021-table1.csv"
_CHUNK = 16


def validate_runs(
    path: Path,
    data: Sequence[Path] = (),
    *,
    engine: EngineName = "listing",
    executor: Executor | None = None,
    progress: Callable[[float, float], None] | None = None,
    evaluate: Evaluate = evaluate_run,
) -> ValidationTable:
    """Predict every run of a measured table.

    Parameters
    ----------
    path : Path
        CSV file; see :func:`shardsim.validate.rows.read_measured_runs`.
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
        One row for every row of the file, in order.

    Raises
    ------
    InputError
        Every problem of the file.
    """
    csv = read_csv(path, REQUIRED)
    rows = measured_runs(csv)
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
    table = [_row(row, request, found.get(key)) for row, request, key in zip(rows, requests, keys, strict=True)]
    unused = unused_columns(csv)
    remarks = (f"Columns not used: {', '.join(unused)}",) if unused else ()
    return replace(summarise(path.name, table), remarks=remarks)


def _row(row: MeasuredRun, request: RowRequest, outcome: Priced | Refused | None) -> ValidationRow:
    named: dict[str, Any] = {
        "id": row.id,
        "source": row.source,
        "gpu": row.gpu,
        "framework": row.framework,
        "model": row.model,
        "measured": row.iteration_s,
    }
    if isinstance(outcome, Priced) and row.iteration_s is not None:
        return ValidationRow(
            **named,
            predicted=outcome.iteration_s,
            error=outcome.iteration_s / row.iteration_s - 1,
            status="ok",
            reason="",
            notes=request.notes,
        )
    reason = outcome.reason if isinstance(outcome, Refused) else request.reason
    return ValidationRow(**named, predicted=None, error=None, status="skipped", reason=reason)


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
