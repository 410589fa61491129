"""Measured NCCL tables of the optional extra ``shardsim[measured]`` (PyPI ``aiconfigurator-core``, Apache-2.0).

Folders move between releases and columns do not, so files are searched by name, what a path says is read from its
right end, and columns are checked. The package is found without importing it. One GPU node: 2, 4 or 8 ranks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from shardsim.calibrate.points import Points, joined
from shardsim.errors import InputError, Problem

if TYPE_CHECKING:
    import pandas as pd

PACKAGES = ("aiconfigurator_core", "aisimulate_core", "aiconfigurator")
"""Import names under which the tables have been published, newest scheme first."""
FILE_NAMES = ("nccl_perf.parquet", "nccl_perf.csv", "nccl_perf.txt")
COLUMNS = ("nccl_dtype", "num_gpus", "op_name", "message_size", "latency")
_KINDS = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "all_to_all": "all_to_all",
    "broadcast": "broadcast",
}
_ELEMENT_BYTES = {"half": 2, "fp16": 2, "bfloat16": 2, "bf16": 2, "float": 4, "int8": 1, "fp8": 1}
_MILLISECONDS = 1e-3


@dataclass(frozen=True, slots=True)
class MeasuredFile:
    """One table that was found.

    Parameters
    ----------
    path : Path
    device : str
        Folder name of the system, such as ``h100_sxm``.
    version : str
        NCCL version, as the folder has it.
    rows, used : int
        Rows of the table, and those that are measurements of a known collective (-).
    """

    path: Path
    device: str
    version: str
    rows: int
    used: int


@dataclass(frozen=True, slots=True)
class MeasuredTables:
    """All NCCL tables of the package.

    Parameters
    ----------
    folder : Path
        Where they were found.
    files : tuple of MeasuredFile
    points : Points
        ``device`` is the folder name, ``origin`` device and NCCL version.
    passed_over : tuple of str
        Files that are no such tables, with the reason.
    """

    folder: Path
    files: tuple[MeasuredFile, ...]
    points: Points
    passed_over: tuple[str, ...] = ()

    def summary(self) -> str:
        """What was found, in a line for each device."""
        rows: Counter[str] = Counter()
        versions: dict[str, list[str]] = {}
        for file in self.files:
            rows[file.device] += file.used
            versions.setdefault(file.device, []).append(file.version)
        lines = [f"{len(self.files)} NCCL tables in {self.folder}"]
        lines += [f"  {device}: {rows[device]} rows, NCCL {', '.join(versions[device])}" for device in sorted(rows)]
        lines += [f"  passed over: {reason}" for reason in self.passed_over]
        return "\n".join(lines)


def measured_folder() -> Path:
    """Folder of the installed package, found without importing it.

    Raises
    ------
    InputError
        The extra is not installed.
    """
    for name in PACKAGES:
        spec = find_spec(name)
        if spec is not None and spec.submodule_search_locations:
            return Path(next(iter(spec.submodule_search_locations)))
    what = "the measured tables are not installed"
    raise InputError(Problem(what, right='pip install "shardsim[measured]", or name a folder that holds them'))


def read_measured(folder: Path | None = None) -> MeasuredTables:
    """Read every NCCL table.

    Parameters
    ----------
    folder : Path or None
        Where to look; by default the installed package.

    Returns
    -------
    MeasuredTables

    Raises
    ------
    InputError
        Nothing found, or nothing usable.
    """
    folder = measured_folder() if folder is None else folder
    paths = sorted(path for name in FILE_NAMES for path in folder.rglob(name))
    if not paths:
        raise InputError(Problem("no NCCL table found", str(folder), f"files named {' or '.join(FILE_NAMES)}"))
    files, parts, passed_over = [], [], []
    for path in paths:
        device, version, family = _meaning(path.relative_to(folder))
        if family != "nccl":
            passed_over.append(f"{path.relative_to(folder)}: of {family or 'unknown origin'}, not NCCL")
            continue
        table = read_table(path)
        lacking = [name for name in COLUMNS if name not in table.columns]
        if lacking:
            passed_over.append(f"{path.relative_to(folder)}: no column {', '.join(lacking)}")
            continue
        found = _points(table, device, version)
        files.append(MeasuredFile(path, device, version, len(table), len(found)))
        parts.append(found)
    if not parts:
        raise InputError(Problem(reason, str(folder)) for reason in passed_over)
    return MeasuredTables(folder, tuple(files), joined(parts), tuple(passed_over))


def _meaning(path: Path) -> tuple[str, str, str]:
    """Device, NCCL version and family from the right end of a path: ``DEVICE/[comm/]nccl/VERSION/nccl_perf...``."""
    folders = path.parts[:-1]
    version = folders[-1] if folders else ""
    family = folders[-2] if len(folders) > 1 else ""
    above = [folder for folder in folders[:-2] if folder not in ("comm", "data", "systems", "nccl")]
    return (above[-1] if above else "", version, family)


def read_table(path: Path) -> pd.DataFrame:
    """Read one table of the package, Parquet or CSV.

    Raises
    ------
    InputError
        No such table, or Parquet cannot be read.
    """
    import pandas as pd  # noqa: PLC0415  # heavy, and only the fits need it

    try:
        if path.suffix == ".parquet":
            return pd.read_parquet(path)
        return pd.read_csv(path)
    except ImportError as error:
        right = 'pip install "shardsim[measured]"'
        raise InputError(Problem(f"cannot read Parquet: {error}", str(path), right)) from None
    except (OSError, ValueError) as error:
        raise InputError(Problem(f"not a readable table: {error}", str(path))) from None


def _points(table: pd.DataFrame, device: str, version: str) -> Points:
    """``message_size`` counts elements of the whole buffer, and ``latency`` milliseconds."""
    operations = table["op_name"].astype(str).to_numpy()
    dtypes = table["nccl_dtype"].astype(str).to_numpy()
    elements = table["message_size"].to_numpy(dtype=np.float64)
    latency = table["latency"].to_numpy(dtype=np.float64)
    ranks = table["num_gpus"].to_numpy(dtype=np.float64)
    known = np.isin(operations, list(_KINDS)) & np.isin(dtypes, list(_ELEMENT_BYTES))
    known &= np.isfinite(latency) & (latency > 0) & (elements > 0) & (ranks > 1)
    operations, dtypes = operations[known], dtypes[known]
    element_bytes = np.array([_ELEMENT_BYTES[dtype] for dtype in dtypes], dtype=np.float64)
    count = len(operations)
    return Points(
        kind=np.array([_KINDS[operation] for operation in operations], dtype=str),
        size=elements[known] * element_bytes,
        seconds=latency[known] * _MILLISECONDS,
        dtype=dtypes.astype(str),
        nodes=np.ones(count),
        gpus_per_node=ranks[known],
        nic_per_gpu=np.full(count, np.nan),
        device=np.full(count, device or "unknown"),
        origin=np.array([f"{device} NCCL {found}" for found in _versions(table, version)[known]], dtype=str),
    )


def _versions(table: pd.DataFrame, version: str) -> NDArray[np.str_]:
    """NCCL version of each row: the column, where there is one, since folders were seen to hold other versions."""
    if "version" in table.columns:
        return table["version"].astype(str).to_numpy(dtype=str)
    return np.full(len(table), version)


def medians(points: Points) -> Points:
    """One point, the median, for all that differ in their times only.

    Repeats of one measurement weigh no more than one that was made once.
    """
    keys: dict[tuple[object, ...], list[int]] = {}
    columns: Sequence[object] = (
        points.kind, points.size, points.dtype, points.nodes, points.gpus_per_node, points.device, points.origin,
    )  # fmt: skip
    for index, key in enumerate(zip(*columns, strict=True)):
        keys.setdefault(key, []).append(index)
    first = points.where(np.array([group[0] for group in keys.values()], dtype=np.int64))
    seconds = np.array([float(np.median(points.seconds[group])) for group in keys.values()])
    return Points(*(seconds if name == "seconds" else getattr(first, name) for name in Points.__slots__))
