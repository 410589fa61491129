"""Rows of a table of measured memory: layouts that ran, and how full they were, or went out of memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from shardsim.errors import Problem
from shardsim.schema.validation import MeasuredNames, MemoryRule
from shardsim.validate.csvfile import CsvRow, CsvTable, raise_all, read_csv, whole
from shardsim.validate.requests import RowRequest, row_request
from shardsim.validate.rows import MeasuredRun, measured_run

Outcome = Literal["fits", "oom", ""]

REQUIRED = ("gpu", "layers", "hidden", "heads", "vocab", "seq_len", "micro_batch")
"""Columns a table must have, besides GPUs and the global batch."""
_RULELESS = MemoryRule()
_OUTCOMES: Mapping[str, Outcome] = {"": "", "fits": "fits", "ok": "fits", "oom": "oom"}
_TRUTHS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
_SHAPE = ("ffn_hidden", "kv_heads", "tie_word_embeddings")
"""Cells that another row of the same layers, hidden and heads may fill."""


@dataclass(frozen=True, slots=True)
class MemoryRow:
    """One measured layout.

    Parameters
    ----------
    run : MeasuredRun
    outcome : {"fits", "oom", ""}
        What the table says happened; empty where it does not say.
    reserved, allocated : float or None
        At the peak, of the rank that the framework reports [bytes]; None where the table has none.
    rule : MemoryRule
        How the framework reports memory.
    request : RowRequest
        The run, or why it cannot be expressed; with what had to be assumed.
    """

    run: MeasuredRun
    outcome: Outcome
    reserved: float | None
    allocated: float | None
    rule: MemoryRule
    request: RowRequest


def read_memory_rows(path: Path, names: MeasuredNames, data: Sequence[Path] = ()) -> tuple[MemoryRow, ...]:
    """Read a table of measured memory.

    Parameters
    ----------
    path : Path
        CSV with the columns of ``REQUIRED``; GPUs as ``num_gpus`` or ``gpus``; the global batch as ``global_batch``,
        or as ``micro_batches`` of each of ``dp`` replicas; ``peak_reserved_gb``, ``peak_allocated_gb``, ``outcome``
        (``fits``, ``oom``) where they are.
    names : MeasuredNames
        Rules for the words of the table.
    data : sequence of Path
        A user's own data folders.

    Returns
    -------
    tuple of MemoryRow
        One for each row, in order.

    Raises
    ------
    InputError
        Every problem of the file.
    """
    table = read_csv(path, REQUIRED)
    problems: list[Problem] = []
    fillings = _fillings(table)
    rows: list[MemoryRow] = []
    for index, row in enumerate(table.rows, start=1):
        filled, notes = _filled(row, fillings)
        told = (
            None if row.cells.get("framework") else next((rule for rule in names.memory if rule.tells(row.cells)), None)
        )
        cells = _canonical(filled, told, table, problems)
        run = measured_run(index, cells, table, problems)
        rule = next((rule for rule in names.memory if rule.matches(run.framework)), _RULELESS)
        outcome = _OUTCOMES.get(cells.cells.get("outcome", "").lower())
        if outcome is None:
            where = f"{path}:{row.line}: outcome"
            problems.append(Problem(f"{cells.cells['outcome'][:40]!r} is no outcome", where, "fits, oom, or nothing"))
        rows.append(
            MemoryRow(
                run=run,
                outcome=outcome or "",
                reserved=_bytes(run.peak_reserved_gb, rule),
                allocated=_bytes(run.peak_allocated_gb, rule),
                rule=rule,
                request=_request(run, cells, rule, names, notes, data),
            )
        )
    raise_all(problems)
    return tuple(rows)


def _fillings(table: CsvTable) -> Mapping[tuple[str, ...], Mapping[str, str]]:
    """What most rows of one shape say, for those of that shape that leave it out."""
    counts: dict[tuple[str, ...], dict[str, Counter[str]]] = {}
    for row in table.rows:
        said = counts.setdefault(_shape(row), {name: Counter() for name in _SHAPE})
        for name in _SHAPE:
            if row.cells.get(name):
                said[name][row.cells[name]] += 1
    return {
        shape: {name: count.most_common(1)[0][0] for name, count in said.items() if count}
        for shape, said in counts.items()
    }


def _shape(row: CsvRow) -> tuple[str, ...]:
    return tuple(row.cells.get(name, "") for name in ("layers", "hidden", "heads"))


def _filled(row: CsvRow, fillings: Mapping[tuple[str, ...], Mapping[str, str]]) -> tuple[CsvRow, tuple[str, ...]]:
    missing = {
        name: value for name, value in fillings[_shape(row)].items() if name in row.cells and not row.cells[name]
    }
    notes = tuple(
        f"{name} not stated: {value.removesuffix('.0')} taken, as most rows of this shape say"
        for name, value in missing.items()
    )
    return CsvRow(row.line, {**row.cells, **missing}), notes


def _canonical(row: CsvRow, told: MemoryRule | None, table: CsvTable, problems: list[Problem]) -> CsvRow:
    """Fill in the columns of a table of runs from those of a table of outcomes."""
    cells = dict(row.cells)
    cells["num_gpus"] = cells.get("num_gpus") or cells.get("gpus", "")
    if not cells.get("global_batch"):
        each = [whole(row, name, table, problems) for name in ("dp", "micro_batch", "micro_batches")]
        if None not in each:
            dp, micro, count = cast("list[int]", each)
            cells["global_batch"] = str(dp * micro * count)
    if told is not None:
        cells["framework"] = told.framework or ""
        cells["arch_class"] = cells.get("arch_class") or told.arch_class or ""
    return CsvRow(row.line, cells)


def _bytes(count: float | None, rule: MemoryRule) -> float | None:
    return None if count is None else count * rule.bytes


def _request(
    run: MeasuredRun,
    row: CsvRow,
    rule: MemoryRule,
    names: MeasuredNames,
    notes: tuple[str, ...],
    data: Sequence[Path],
) -> RowRequest:
    request = row_request(run, names, data, priced=False)
    if request.run is None:
        return request
    made: dict[str, Any] = {**request.run, "model": dict(request.run["model"])}
    tied = _TRUTHS.get(row.cells.get("tie_word_embeddings", "").lower())
    if tied is not None:
        made["model"]["tied_embeddings"] = tied
    if run.kv_heads is None and run.heads is not None:
        notes = (*notes, "kv_heads not stated: as many as heads taken")
    noted = (rule.note,) if rule.note else ()
    return RowRequest(made, "", (*request.notes, *noted, *notes))
