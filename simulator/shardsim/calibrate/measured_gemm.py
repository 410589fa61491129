"""Measured matrix products and mixtures of experts of the optional extra ``shardsim[measured]``.

As :mod:`shardsim.calibrate.measured`: files are searched by name, what a path says is read from its right end
(``DEVICE/gemm/FRAMEWORK/VERSION/gemm_perf...``), and columns are checked.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from shardsim.calibrate.gemm import GemmTable, MoeTable
from shardsim.calibrate.measured import measured_folder, read_table
from shardsim.errors import InputError, Problem
from shardsim.schema.catalog import near

if TYPE_CHECKING:
    import pandas as pd

SUFFIXES = (".parquet", ".csv", ".txt")
GEMM_COLUMNS = ("gemm_dtype", "m", "n", "k", "latency")
MOE_COLUMNS = (
    "moe_dtype", "num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size",
    "distribution", "kernel_source", "latency",
)  # fmt: skip
DATA_TYPES = {"bfloat16": "bf16", "fp8": "fp8", "fp8_block": "fp8_block", "nvfp4": "fp4"}
"""Their names here."""
_MILLISECONDS = 1e-3


def gemm_tables(name: str, folder: Path | None = None) -> dict[str, GemmTable]:
    """Read a table of matrix products.

    Parameters
    ----------
    name : str
        Such as ``h100_sxm/trtllm/1.3.0rc20``: device, framework, version.
    folder : Path or None
        Where to look; by default the installed package.

    Returns
    -------
    dict of str to GemmTable
        By data type, ordered by shape.

    Raises
    ------
    InputError
        No such table, or one that lacks columns.
    """
    table = _table("gemm", GEMM_COLUMNS, name, folder)
    found = {}
    for dtype, rows in table[table["latency"] > 0].groupby("gemm_dtype"):
        if dtype in DATA_TYPES:
            # Repeats of one measurement weigh no more than one that was made once.
            once = rows.groupby(["m", "n", "k"])["latency"].median().reset_index()
            m, n, k, latency = (once[side].to_numpy(dtype=np.float64) for side in ("m", "n", "k", "latency"))
            found[DATA_TYPES[str(dtype)]] = GemmTable(m, n, k, latency * _MILLISECONDS)
    return found


def mean_of(tables: Sequence[GemmTable]) -> GemmTable:
    """Geometric mean of the times on the shapes that all tables have."""
    keys = [list(zip(table.m, table.n, table.k, strict=True)) for table in tables]
    logs = [dict(zip(key, np.log(table.seconds), strict=True)) for key, table in zip(keys, tables, strict=True)]
    shapes = [shape for shape in keys[0] if all(shape in log for log in logs)]
    m, n, k = (np.array(side, dtype=np.float64) for side in zip(*shapes, strict=True))
    seconds = np.exp([np.mean([log[shape] for log in logs]) for shape in shapes])
    return GemmTable(m, n, k, seconds)


def moe_table(name: str, kernels: Sequence[str], folder: Path | None = None, data_type: str = "bf16") -> MoeTable:
    """Read the balanced rows of one data type from a table of expert layers.

    Parameters
    ----------
    name : str
        Device, framework and version.
    kernels : sequence of str
        The kernel sources that count.
    folder : Path or None
    data_type : str

    Returns
    -------
    MoeTable

    Raises
    ------
    InputError
        No such table, or one that lacks columns.
    """
    table = _table("moe", MOE_COLUMNS, name, folder)
    rows = table[
        (table["moe_dtype"].map(DATA_TYPES) == data_type)
        & (table["distribution"] == "balanced")
        & table["kernel_source"].isin(kernels)
        & (table["latency"] > 0)
    ]
    column = {key: rows[key].to_numpy(dtype=np.float64) for key in MOE_COLUMNS[1:8]}
    return MoeTable(
        tokens=column["num_tokens"],
        hidden=column["hidden_size"],
        inter=column["inter_size"] / column["moe_tp_size"],
        topk=column["topk"],
        experts=column["num_experts"] / column["moe_ep_size"],
        share=1.0 / column["moe_ep_size"],
        seconds=rows["latency"].to_numpy(dtype=np.float64) * _MILLISECONDS,
    )


def _table(family: str, wanted: Sequence[str], name: str, folder: Path | None) -> pd.DataFrame:
    folder = measured_folder() if folder is None else folder
    paths = {_meaning(path.relative_to(folder), family): path for path in _files(folder, f"{family}_perf")}
    if name not in paths:
        raise InputError(Problem(f"no {family} table {name}", str(folder), near(name, sorted(paths))))
    table = read_table(paths[name])
    lacking = [column for column in wanted if column not in table.columns]
    if lacking:
        raise InputError(Problem(f"no column {', '.join(lacking)}", str(paths[name])))
    return table


def _files(folder: Path, stem: str) -> list[Path]:
    return sorted(path for suffix in SUFFIXES for path in folder.rglob(stem + suffix))


def _meaning(path: Path, family: str) -> str:
    """Device, framework and version from the right end of a path."""
    folders = [part for part in path.parts[:-1] if part not in (family, "data", "systems")]
    return "/".join(folders[-3:])
