"""Rows of a table of measured runs, as they stand: columns as the table has them, nothing interpreted."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from shardsim.errors import Problem
from shardsim.validate.csvfile import CsvRow, CsvTable, number, raise_all, read_csv, whole

REQUIRED = (
    "gpu",
    "num_gpus",
    "layers",
    "hidden",
    "heads",
    "vocab",
    "seq_len",
    "global_batch",
    "micro_batch",
    "iteration_time_s",
)
"""Columns a table must have; every other one may be left out, and any cell may be empty."""


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """One row. None and empty text mean that the table does not say.

    Parameters
    ----------
    id : str
        The ``id`` cell, else the row's number from 1.
    source, gpu, cluster, interconnect, model, arch_class, sp, zero_stage, schedule, recompute, precision, framework
        As the table has them; ``interconnect`` joins the columns that begin so. ``cluster`` names a catalog entry.
    notes : str
        What the table says in words.
    year : int or None
    gpu_mem_gb : float or None
        [GB].
    num_gpus, layers, hidden, ffn_hidden, heads, kv_heads, vocab, seq_len : int or None
        (-).
    experts, top_k, moe_ffn_hidden, shared_expert_ffn : int or None
        (-).
    tp, pp, vpp, dp, cp, ep, etp, global_batch, micro_batch : int or None
        (-).
    iteration_s : float or None
        [s].
    peak_allocated_gb, peak_reserved_gb : float or None
        Of the fullest rank [GB].
    """

    id: str
    source: str
    gpu: str
    cluster: str
    interconnect: str
    model: str
    arch_class: str
    sp: str
    zero_stage: str
    schedule: str
    recompute: str
    precision: str
    framework: str
    notes: str
    year: int | None
    gpu_mem_gb: float | None
    num_gpus: int | None
    layers: int | None
    hidden: int | None
    ffn_hidden: int | None
    heads: int | None
    kv_heads: int | None
    vocab: int | None
    experts: int | None
    top_k: int | None
    moe_ffn_hidden: int | None
    shared_expert_ffn: int | None
    seq_len: int | None
    tp: int | None
    pp: int | None
    vpp: int | None
    dp: int | None
    cp: int | None
    ep: int | None
    etp: int | None
    global_batch: int | None
    micro_batch: int | None
    iteration_s: float | None
    peak_allocated_gb: float | None
    peak_reserved_gb: float | None


_COLUMNS = {"iteration_s": "iteration_time_s"}
"""Columns that are not named as their field."""
_COLUMNS = {"iteration_s": "iteration_time_s"}
_SHARDING = {"0", "1", "2", "3"}
_TEXTS = (
    "source",
    "gpu",
    "cluster",
    "model",
    "arch_class",
    "sp",
    "schedule",
    "recompute",
    "precision",
    "framework",
    "notes",
)
_COUNTS = (
    "year",
    "num_gpus",
    "layers",
    "hidden",
    "ffn_hidden",
    "heads",
    "kv_heads",
    "vocab",
    "experts",
    "top_k",
    "moe_ffn_hidden",
    "shared_expert_ffn",
    "seq_len",
    "tp",
    "pp",
    "vpp",
    "dp",
    "cp",
    "ep",
    "etp",
    "global_batch",
    "micro_batch",
)


def read_measured_runs(path: Path) -> tuple[MeasuredRun, ...]:
    """Read a table of measured runs.

    Parameters
    ----------
    path : Path
        CSV with at least the columns of ``REQUIRED``.

    Returns
    -------
    tuple of MeasuredRun
        One for each row, in order.

    Raises
    ------
    InputError
        Every problem of the file: columns missing, ragged rows, cells that are not the numbers they should be.
    """
    return measured_runs(read_csv(path, REQUIRED))


def measured_runs(table: CsvTable) -> tuple[MeasuredRun, ...]:
    """Read the rows of a table; as :func:`read_measured_runs`."""
    problems: list[Problem] = []
    runs = tuple(measured_run(index, row, table, problems) for index, row in enumerate(table.rows, start=1))
    raise_all(problems)
    return runs


def measured_run(index: int, row: CsvRow, table: CsvTable, problems: list[Problem]) -> MeasuredRun:
    """Read one row.

    Parameters
    ----------
    index : int
        The row's number from 1, its name where it has no ``id``.
    row : CsvRow
    table : CsvTable
        Names the file in problems.
    problems : list of Problem
        Gets what is wrong with the row's cells.

    Returns
    -------
    MeasuredRun
    """
    named: dict[str, Any] = {name: row.cells.get(name, "") for name in _TEXTS}
    named |= {name: whole(row, name, table, problems) for name in _COUNTS}
    links = [cell for name, cell in row.cells.items() if name.startswith("interconnect") and cell]
    return MeasuredRun(
        id=row.cells.get("id") or str(index),
        zero_stage=_sharding(row, table, problems),
        interconnect="; ".join(links),
        gpu_mem_gb=number(row, "gpu_mem_gb", table, problems),
        iteration_s=number(row, "iteration_time_s", table, problems),
        peak_allocated_gb=number(row, "peak_allocated_gb", table, problems),
        peak_reserved_gb=number(row, "peak_reserved_gb", table, problems),
        **named,
    )


def unused_columns(table: CsvTable) -> tuple[str, ...]:
    """Name the columns of a table that nothing reads, each with what it may have been meant as.

    Parameters
    ----------
    table : CsvTable

    Returns
    -------
    tuple of str
        Such as ``note (notes?)``, in the table's order.
    """
    known = {_COLUMNS.get(item.name, item.name) for item in fields(MeasuredRun)} - {"interconnect"}
    missing = sorted(known - set(table.columns))
    found = []
    for column in table.columns:
        if column and column not in known and not column.startswith("interconnect"):
            close = difflib.get_close_matches(column, missing, n=1, cutoff=0.75)
            found.append(f"{column} ({close[0]}?)" if close else column)
    return tuple(found)


def _sharding(row: CsvRow, table: CsvTable, problems: list[Problem]) -> str:
    """A ZeRO stage as 0 to 3, also where a spreadsheet wrote 1.0; words stand as they are."""
    cell = row.cells.get("zero_stage", "")
    try:
        value = float(cell)
    except ValueError:
        return cell
    stage = f"{value:g}"
    if stage not in _SHARDING and stage != "nan":
        where = f"{table.path}:{row.line}: zero_stage"
        problems.append(Problem(f"{cell[:40]} is no ZeRO stage", where, "0, 1, 2, 3, or words such as FULL_SHARD"))
    return stage
