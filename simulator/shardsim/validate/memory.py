"""Measured memory against predictions: how full, and whether it fits."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from shardsim.engine.memory import memory_of
from shardsim.errors import ShardsimError
from shardsim.program.resolve import resolve
from shardsim.schema.run import request_from_mapping
from shardsim.schema.validation import measured_names
from shardsim.validate.evaluate import Refused
from shardsim.validate.memory_rows import MemoryRow, Outcome, read_memory_rows
from shardsim.validate.summary import error_summary, group_summaries, most_frequent, skip_reasons
from shardsim.validate.table import ValidationRow, ValidationTable

GIB = 2.0**30

_GROUPINGS: tuple[tuple[str, Callable[[MemoryRow], str]], ...] = (
    ("source", lambda row: row.run.source),
    ("model", lambda row: row.run.model or _shape(row)),
    ("framework", lambda row: row.run.framework),
    ("schedule", lambda row: row.run.schedule),
    ("tp", lambda row: f"tp {row.run.tp or 1}"),
    ("pp", lambda row: f"pp {row.run.pp or 1}"),
)


@dataclass(frozen=True, slots=True)
class MemoryValidationRow(ValidationRow):
    """One measured layout against its prediction; ``measured`` and ``predicted`` in GiB.

    Parameters
    ----------
    predicted_allocated : float or None
        What tensors take at the peak [GiB].
    verdict : {"fits", "oom", ""}
        Whether it is predicted to fit; empty for a skipped row.
    outcome : {"fits", "oom", ""}
        Whether it did; empty where the table does not say.
    """

    predicted_allocated: float | None = None
    verdict: Outcome = ""
    outcome: Outcome = ""


@dataclass(frozen=True, slots=True)
class Confusion:
    """Verdicts on the layouts of one outcome.

    Parameters
    ----------
    name : str
        The outcome, or ``all``.
    rows, right : int
        Rows with a prediction, and those on the right side (-).
    """

    name: str
    rows: int
    right: int

    @property
    def share(self) -> float | None:
        """Right ones (-)."""
        return self.right / self.rows if self.rows else None


@dataclass(frozen=True, slots=True)
class MemoryValidation:
    """A table of measured memory against predictions.

    Parameters
    ----------
    table : ValidationTable
        Its rows are ``MemoryValidationRow``; figures in GiB.
    verdicts : tuple of Confusion
        All outcomes together, then one by one.
    misses : tuple of (str, int)
        Groups of layouts on the wrong side, and how many rows each, the most first.
    """

    table: ValidationTable
    verdicts: tuple[Confusion, ...]
    misses: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Counted:
    """What a table keeps of a memory profile, for the rank that a framework reports.

    Parameters
    ----------
    reserved, allocated : float
        By the caching allocator, and by tensors [bytes].
    fits : bool
        Whether every stage does.
    """

    reserved: float
    allocated: float
    fits: bool


def validate_memory(
    path: Path,
    data: Sequence[Path] = (),
    *,
    progress: Callable[[float, float], None] | None = None,
) -> MemoryValidation:
    """Predict the memory of every layout of a measured table.

    Parameters
    ----------
    path : Path
        CSV file; see :func:`shardsim.validate.memory_rows.read_memory_rows`.
    data : sequence of Path
        A user's own data folders.
    progress : callable, optional
        Called with the number of layouts predicted so far and in all.

    Returns
    -------
    MemoryValidation
        One row for every row of the file, in order.

    Raises
    ------
    InputError
        Every problem of the file.
    """
    rows = read_memory_rows(path, measured_names(data), data)
    found: dict[tuple[str, str], Counted | Refused] = {}
    table: list[MemoryValidationRow] = []
    for done, row in enumerate(rows, start=1):
        table.append(_row(row, _outcome(row, found, data)))
        if progress is not None:
            progress(done, len(rows))
    return MemoryValidation(_table(path.name, rows, table), _verdicts(table), _misses(rows, table))


def count_memory(
    run: Mapping[str, Any], stage: Literal["fullest", "first"] = "fullest", data: Sequence[Path] = ()
) -> Counted | Refused:
    """Predict the memory of one run.

    Parameters
    ----------
    run : mapping
        As a run file holds it; its time need not be priced.
    stage : {"fullest", "first"}
        Pipeline stage whose memory is wanted.
    data : sequence of Path
        A user's own data folders.

    Returns
    -------
    Counted or Refused
        Refused where the run is not valid or this version cannot express it.
    """
    try:
        memory = memory_of(resolve(request_from_mapping(run, "run"), data, priced=False))
    except ShardsimError as error:
        return Refused("; ".join(str(error).splitlines()))
    index = 0 if stage == "first" else memory.worst_stage
    reserved = memory.reserved[index] - memory.stages[index]["context"]
    return Counted(reserved, memory.allocated[index], memory.fits)


def _outcome(
    row: MemoryRow, found: dict[tuple[str, str], Counted | Refused], data: Sequence[Path]
) -> Counted | Refused:
    if row.request.run is None:
        return Refused(row.request.reason)
    key = (row.rule.stage, json.dumps(row.request.run, sort_keys=True))
    if key not in found:
        found[key] = count_memory(row.request.run, row.rule.stage, data)
    return found[key]


def _row(row: MemoryRow, counted: Counted | Refused) -> MemoryValidationRow:
    measured = row.reserved if row.reserved is not None else row.allocated
    named: dict[str, Any] = {
        "id": row.run.id,
        "source": row.run.source,
        "gpu": row.run.gpu,
        "framework": row.run.framework,
        "model": row.run.model or _shape(row),
        "measured": None if measured is None else measured / GIB,
        "outcome": row.outcome,
    }
    if isinstance(counted, Refused):
        return MemoryValidationRow(**named, predicted=None, error=None, status="skipped", reason=counted.reason)
    alike = counted.reserved if row.reserved is not None else counted.allocated
    allocated_only = row.reserved is None and row.allocated is not None
    compared = ("measured and error are of allocated memory: no reserved memory stated",) if allocated_only else ()
    return MemoryValidationRow(
        **named,
        predicted=counted.reserved / GIB,
        error=None if measured is None else alike / measured - 1,
        status="ok",
        reason="",
        notes=(*row.request.notes, *compared),
        predicted_allocated=counted.allocated / GIB,
        verdict="fits" if counted.fits else "oom",
    )


def _shape(row: MemoryRow) -> str:
    return f"{row.run.layers} layers of {row.run.hidden}"


def _table(file: str, rows: Sequence[MemoryRow], table: Sequence[MemoryValidationRow]) -> ValidationTable:
    # Rows that only say what happened are judged by their verdict and have no error.
    compared = [(row, found) for row, found in zip(rows, table, strict=True) if _has_error(found)]
    return ValidationTable(
        file=file,
        rows=tuple(table),
        overall=error_summary("all", [found for _, found in compared]),
        groups=tuple(
            (grouping, group_summaries((key(row), found) for row, found in compared)) for grouping, key in _GROUPINGS
        ),
        skipped=skip_reasons(table),
        noun="layouts",
        quantity="memory",
        unit="GiB",
    )


def _has_error(row: MemoryValidationRow) -> bool:
    return row.measured is not None or row.status == "skipped"


def _verdicts(table: Sequence[MemoryValidationRow]) -> tuple[Confusion, ...]:
    judged = [row for row in table if row.outcome and row.verdict]
    kinds = [("all", judged)] + [(kind, [row for row in judged if row.outcome == kind]) for kind in ("fits", "oom")]
    return tuple(Confusion(name, len(rows), sum(row.verdict == row.outcome for row in rows)) for name, rows in kinds)


def _misses(rows: Sequence[MemoryRow], table: Sequence[MemoryValidationRow]) -> tuple[tuple[str, int], ...]:
    return most_frequent(
        f"{found.outcome} called {found.verdict}: {_shape(row)}, pp {row.run.pp or 1}"
        for row, found in zip(rows, table, strict=True)
        if found.outcome and found.verdict and found.outcome != found.verdict
    )
