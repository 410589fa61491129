"""Rows of a table of measured runs, as they stand: columns as the table has them, nothing interpreted."""

from __future__ import annotations

from dataclasses import dataclass
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
    year : int or None
    gpu_mem_gb : float or None
        [GB].
    num_gpus, layers, hidden, ffn_hidden, heads, kv_heads, vocab, experts, seq_len : int or None
        (-).
    tp, pp, vpp, dp, cp, ep, global_batch, micro_batch : int or None
        (-).
    iteration_s : float or None
        [s].
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
    seq_len: int | None
    tp: int | None
    pp: int | None
    vpp: int | None
    dp: int | None
    cp: int | None
    ep: int | None
    global_batch: int | None
    micro_batch: int | None
    iteration_s: float | None


_TEXTS = (
    "source",
    "gpu",
    "cluster",
    "model",
    "arch_class",
    "sp",
    "zero_stage",
    "schedule",
    "recompute",
    "precision",
    "framework",
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
    "seq_len",
    "tp",
    "pp",
    "vpp",
    "dp",
    "cp",
    "ep",
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
    table = read_csv(path, REQUIRED)
    problems: list[Problem] = []
    runs = tuple(_run(index, row, table, problems) for index, row in enumerate(table.rows, start=1))
    raise_all(problems)
    return runs


def _run(index: int, row: CsvRow, table: CsvTable, problems: list[Problem]) -> MeasuredRun:
    named: dict[str, Any] = {name: row.cells.get(name, "") for name in _TEXTS}
    named |= {name: whole(row, name, table, problems) for name in _COUNTS}
    links = [cell for name, cell in row.cells.items() if name.startswith("interconnect") and cell]
    return MeasuredRun(
        id=row.cells.get("id") or str(index),
        interconnect="; ".join(links),
        gpu_mem_gb=number(row, "gpu_mem_gb", table, problems),
        iteration_s=number(row, "iteration_time_s", table, problems),
        **named,
    )
