"""Fit fused attention, tile by tile, to measured times: published curves, and the measured database.

The tables of the database time a prefill: causal, forward only, and with the copy of keys and values into a cache,
which training does not make. That copy gets constants of its own, which are fitted beside and left out of the result.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from shardsim.calibrate.fit import Array, Constant, Fit, fit_times
from shardsim.cost.attention import HEAD_DIMS, tiled_attention_seconds
from shardsim.errors import InputError, Problem
from shardsim.values.hardware import Device
from shardsim.values.kernels import AttentionLibrary, AttentionPass
from shardsim.values.operators import Attention, GradientRole

if TYPE_CHECKING:
    import pandas as pd

LIBRARIES = {
    "FlashAttention-1": "flash1",
    "FlashAttention-2": "flash2",
    "FlashAttention-3": "flash3",
    "FlashAttention-4": "flash4",
    "cuDNN": "cudnn",
}
"""Libraries by the names under which measurements are published."""

TABLE = "context_attention_perf.parquet"
SHORTEST = 1024
"""Prefills of fewer tokens are left out (-): serving, not training."""

SHARED = (
    Constant("tile", 1e-6, 1e-8, 5e-5),
    Constant("tail", 0.5, 0.02, 1.5),
    Constant("memory_efficiency", 1.0, 0.3, 20.0),
    Constant("overhead", 3e-6, 1e-6, 3e-5),
)
BACKWARD = (Constant("backward_ratio", 0.85, 0.4, 1.3), Constant("backward_tile", 2e-6, 1e-8, 1e-4))
CACHE = (Constant("cache_efficiency", 0.7, 0.1, 5.0), Constant("cache_overhead", 3e-6, 1e-7, 3e-5))
EFFICIENCY = Constant("efficiency", 0.6, 0.1, 1.3)
LEVEL = Constant("level", 1.0, 0.5, 1.5)


@dataclass(frozen=True, slots=True)
class AttentionPoints:
    """Measured times of attention, one for each entry of all arrays, shape (points,).

    Parameters
    ----------
    passes : ndarray of str
        ``fwd``, ``bwd`` or ``fwd+bwd``.
    head_dim, v_head_dim, window : ndarray of int
        (-).
    causal, cached : ndarray of bool
        Whether scores are masked; whether the time includes the copy of keys and values into a cache.
    batch, heads, kv_heads, seq : ndarray of float
        (-).
    seconds : ndarray of float
        [s].
    level : ndarray of str
        Points that stand for the same kernel under another product or software have a level of their own, by this
        name: a factor on their efficiency. Empty for points of the very kernel.
    """

    passes: NDArray[np.str_]
    head_dim: NDArray[np.int64]
    v_head_dim: NDArray[np.int64]
    window: NDArray[np.int64]
    causal: NDArray[np.bool_]
    cached: NDArray[np.bool_]
    batch: Array
    heads: Array
    kv_heads: Array
    seq: Array
    seconds: Array
    level: NDArray[np.str_]

    def __len__(self) -> int:
        """Points."""
        return len(self.seconds)

    def where(self, mask: NDArray[Any]) -> AttentionPoints:
        """Take some of the points."""
        return AttentionPoints(*(getattr(self, column.name)[mask] for column in fields(self)))

    def at_level(self, name: str) -> AttentionPoints:
        """The same points with a level of their own."""
        return replace(self, level=np.full(len(self), name))


@dataclass(frozen=True, slots=True)
class AttentionFit:
    """Constants of one library on one device, and how they were found.

    Parameters
    ----------
    library : AttentionLibrary
    fit : Fit
        Constants by name, those of levels and of the cache among them.
    own : ndarray of bool
        Points of the very kernel, shape (points,).
    """

    library: AttentionLibrary
    fit: Fit
    own: NDArray[np.bool_]


def joined(parts: Sequence[AttentionPoints]) -> AttentionPoints:
    """All points of several sets."""
    return AttentionPoints(
        *(np.concatenate([getattr(part, one.name) for part in parts]) for one in fields(AttentionPoints))
    )


def read_published(paths: Sequence[Path]) -> Mapping[tuple[str, str], AttentionPoints]:
    """Read figures of attention kernels.

    Parameters
    ----------
    paths : sequence of Path
        CSV files with the columns gpu, library, pass, head_dim, causal, seqlen, batch, num_heads, and tflops (causal
        FLOP halved, 5 products backward for 2 forward) or ms; v_head_dim and num_kv_heads where they differ.

    Returns
    -------
    mapping of (str, str) to AttentionPoints
        By GPU and library, as they are named there.

    Raises
    ------
    InputError
        A file that cannot be read, or rows that lack a column.
    """
    rows: dict[tuple[str, str], list[dict[str, Any]]] = {}
    problems: list[Problem] = []
    for path in paths:
        try:
            with path.open(newline="", encoding="utf-8") as stream:
                for number, row in enumerate(csv.DictReader(stream), start=2):
                    try:
                        rows.setdefault((row["gpu"], row["library"]), []).append(_published(row))
                    except (KeyError, TypeError, ValueError) as error:
                        problems.append(Problem(f"not a row of attention figures: {error}", f"{path}, line {number}"))
        except OSError as error:
            problems.append(Problem(f"cannot be read: {error}", str(path)))
    if problems:
        raise InputError(problems)
    return {key: _points(found) for key, found in rows.items()}


def _published(row: Mapping[str, str]) -> dict[str, Any]:
    head_dim, heads = int(row["head_dim"]), int(row["num_heads"])
    found: dict[str, Any] = {
        "passes": row["pass"],
        "head_dim": head_dim,
        "v_head_dim": int(row.get("v_head_dim") or head_dim),
        "window": 0,
        "causal": row["causal"] == "1",
        "cached": False,
        "batch": float(row["batch"]),
        "heads": float(heads),
        "kv_heads": float(row.get("num_kv_heads") or heads),
        "seq": float(row["seqlen"]),
        "level": "",
    }
    if row.get("ms"):
        return {**found, "seconds": float(row["ms"]) * 1e-3}
    forward = 4.0 * found["batch"] * heads * found["seq"] ** 2 * head_dim * (0.5 if found["causal"] else 1.0)
    times = {"fwd": 1.0, "bwd": 2.5, "fwd+bwd": 3.5}[row["pass"]]
    return {**found, "seconds": times * forward / (float(row["tflops"]) * 1e12)}


def read_table(folder: Path, system: str, kernel: str, shortest: int = SHORTEST) -> AttentionPoints:
    """Read the prefills of one kernel on one system from the measured database, in 16 bits.

    Parameters
    ----------
    folder : Path
        Of the database.
    system : str
        Folder name, such as ``h100_sxm``.
    kernel : str
        As the column ``kernel_source`` has it.
    shortest : int
        Least tokens (-).

    Returns
    -------
    AttentionPoints
        Windows among them.

    Raises
    ------
    InputError
        Nothing of that kind.
    """
    parts = [
        table
        for path in sorted(folder.rglob(f"{system}/**/{TABLE}"))
        if len(table := _prefills(path, kernel, shortest))
    ]
    if not parts:
        raise InputError(Problem(f"no prefills by {kernel} on {system}", str(folder), f"files named {TABLE}"))
    rows: list[dict[str, Any]] = []
    for table in parts:
        rows += ({str(name): value for name, value in row.items()} for row in table.to_dict("records"))
    return _points(rows)


def _prefills(path: Path, kernel: str, shortest: int) -> pd.DataFrame:
    import pandas as pd  # noqa: PLC0415  # heavy, and only the fits need it

    table = pd.read_parquet(path)
    keep = (table["kernel_source"] == kernel) & (table["isl"] >= shortest)
    for column in ("attn_dtype", "kv_cache_dtype"):
        keep &= table[column] == "bfloat16"
    table = table[keep]
    window = table["window_size"] if "window_size" in table.columns else 0
    return pd.DataFrame(
        {
            "passes": "fwd",
            "head_dim": table["head_dim"],
            "v_head_dim": table["head_dim"],
            "window": window,
            "causal": True,
            "cached": True,
            "batch": table["batch_size"].astype(float),
            "heads": table["num_heads"].astype(float),
            "kv_heads": table["num_key_value_heads"].where(table["num_key_value_heads"] > 0, table["num_heads"]),
            "seq": table["isl"].astype(float),
            "seconds": table["latency"] * 1e-3,
            "level": "",
        }
    )


def _points(rows: Sequence[Mapping[str, Any]]) -> AttentionPoints:
    kinds = {"passes": str, "level": str, "causal": bool, "cached": bool}
    kinds |= dict.fromkeys(("head_dim", "v_head_dim", "window"), int)
    return AttentionPoints(
        *(np.array([row[c.name] for row in rows], dtype=kinds.get(c.name, float)) for c in fields(AttentionPoints))
    )


def predict(points: AttentionPoints, device: Device, library: str, constants: Mapping[str, float]) -> Array:
    """Times of points under fitted constants, with their levels and caches.

    Parameters
    ----------
    points : AttentionPoints
    device : Device
    library : str
        Whose head dimensions count.
    constants : mapping of str to float
        Of a :class:`AttentionFit`.

    Returns
    -------
    ndarray of float
        [s], shape (points,).
    """
    seconds = np.zeros(len(points))
    for some in _alike(points):
        seconds[some] = _times(points.where(some), device, library, constants)
    return seconds


_KEYS = ("passes", "level", "head_dim", "v_head_dim", "window", "causal", "cached")


def _alike(points: AttentionPoints) -> list[NDArray[np.int64]]:
    """Points that differ in nothing but their sizes."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    for index, key in enumerate(zip(*(getattr(points, name).tolist() for name in _KEYS), strict=True)):
        groups.setdefault(key, []).append(index)
    return [np.array(group) for group in groups.values()]


def _times(points: AttentionPoints, device: Device, library: str, constants: Mapping[str, float]) -> Array:
    passes, level, head_dim, v_head_dim, window, causal, cached = (getattr(points, name)[0].item() for name in _KEYS)
    own = library_constants(constants, constants.get(f"level {level}", 1.0))
    operator = Attention(
        "attention",
        points.batch,
        points.heads,
        points.kv_heads,
        points.seq,
        head_dim,
        causal,
        v_head_dim=v_head_dim,
        window=window,
    )
    total = np.zeros(len(points))
    directions: tuple[tuple[str, GradientRole, AttentionPass], ...] = (
        ("fwd", "forward", own.forward),
        ("bwd", "dgrad", own.backward),
    )
    for name, role, one in directions:
        if name in passes:
            total = total + tiled_attention_seconds(
                replace(operator, role=role),
                one,
                head_dims=HEAD_DIMS.get(library, HEAD_DIMS["flash3"]),
                peak=device.peak_flops["bf16"],
                multiprocessors=device.multiprocessors,
                bandwidth=device.memory_bandwidth,
            )
    if cached:
        copied = 2.0 * 2.0 * points.batch * points.seq * points.kv_heads * (head_dim + v_head_dim)
        total = total + constants["cache_overhead"]
        total = total + copied / (constants["cache_efficiency"] * device.memory_bandwidth)
    return total


def library_constants(constants: Mapping[str, float], level: float = 1.0) -> AttentionLibrary:
    """Constants of both directions: the backward pass has its own efficiency, by one ratio, and its own tile time."""
    forward = {
        int(name.removeprefix("efficiency ")): value * level
        for name, value in constants.items()
        if name.startswith("efficiency ")
    }
    shared = tuple(constants[one.name] for one in SHARED)
    backward = {dim: value * constants.get("backward_ratio", 1.0) for dim, value in forward.items()}
    return AttentionLibrary(
        AttentionPass(dict(sorted(forward.items())), *shared),
        AttentionPass(dict(sorted(backward.items())), constants.get("backward_tile", shared[0]), *shared[1:]),
    )


def fit_attention(
    points: AttentionPoints, device: Device, library: str, fixed: Mapping[str, float] | None = None
) -> AttentionFit:
    """Fit the constants of one library on one device.

    Parameters
    ----------
    points : AttentionPoints
        Those of the very kernel have no level. Head dimensions that they or leveled points have get an efficiency.
    device : Device
    library : str
    fixed : mapping of str to float or None
        Constants that are taken from elsewhere.

    Returns
    -------
    AttentionFit

    Raises
    ------
    ValueError
        Fewer points than constants.
    """
    fixed = {} if fixed is None else fixed
    widths = sorted({int(d) for d, v in zip(points.head_dim, points.v_head_dim, strict=True) if d == v})
    wanted = [replace(EFFICIENCY, name=f"efficiency {width}") for width in widths]
    wanted += SHARED
    if np.any(points.passes != "fwd"):
        wanted += BACKWARD
    if points.cached.any():
        wanted += CACHE
    wanted += [replace(LEVEL, name=f"level {name}") for name in sorted(set(points.level.tolist())) if name]
    groups = [(some, points.where(some)) for some in _alike(points)]

    def times(constants: Mapping[str, float]) -> Array:
        seconds = np.zeros(len(points))
        for some, part in groups:
            seconds[some] = _times(part, device, library, {**constants, **fixed})
        return seconds

    fit = fit_times(times, points.seconds, [constant for constant in wanted if constant.name not in fixed])
    fit = replace(fit, constants={**fit.constants, **fixed})
    return AttentionFit(library_constants(fit.constants), fit, points.level == "")
