"""Fit the ways of collectives, algorithm by protocol, to measured times.

The search starts at NCCL's own constants and is drawn back to them where measurements say nothing: what is fitted
are factors on latencies and bandwidths, not curves. A constant that no measurement sees keeps the library's ratio to
those that are seen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from scipy.optimize import least_squares

from shardsim.calibrate.points import Array, Points
from shardsim.cost.collectives import candidate_transfers, collective_transfer
from shardsim.values.hardware import Cluster, FabricConstants, WayConstants
from shardsim.values.num import Num

Place = Literal["near", "far"]

SEEN = 3
"""Fewest measurements that must see a constant of a way before it leaves the library's ratio to the others' (-)."""
LATENCY_SEEN, SHARE_SEEN = 0.5, 0.25
"""Shares of the time that the library expects of a way at which a measurement sees its latencies and its share (-)."""

SCALE = 0.05
"""Log ratio at which the soft-L1 loss turns from squares to sizes (-)."""


@dataclass(frozen=True, slots=True)
class Freedom:
    """How far one constant may go from where it starts.

    Parameters
    ----------
    start : float
        Where the search starts if the constant is zero (SI).
    together : float
        Standard deviation of the logarithm of a factor that all ways share, before any measurement is seen (-): what
        a link achieves shows in every way that uses it.
    alone : float
        The same of each way's own factor (-).
    most : float
        Upper bound (SI).
    """

    start: float
    together: float
    alone: float
    most: float


FREEDOMS: dict[Place, dict[str, Freedom]] = {
    "near": {
        "base_latency": Freedom(1e-6, 0.4, 0.4, 1e-3),
        "near_step": Freedom(1e-7, 0.5, 0.5, 1e-3),
        "near_share": Freedom(0.5, 0.3, 0.15, 0.98),
        "near_half": Freedom(2e4, 2.0, 1.5, 1e8),
    },
    "far": {
        "far_base": Freedom(3e-6, 1.0, 1.5, 1e-2),
        "far_step": Freedom(1e-6, 0.7, 0.8, 1e-2),
        "far_share": Freedom(0.5, 0.4, 0.15, 0.99),
        "far_half": Freedom(2e4, 2.0, 2.5, 1e9),
        # Of the ways that only groups across domains use.
        "near_share": Freedom(0.5, 0.2, 0.15, 0.98),
    },
}


def way_times(kind: str, points: Points, cluster: Cluster, fabric: FabricConstants) -> Array:
    """Modelled times of measured points [s], shape (points,).

    Parameters
    ----------
    kind : str
        Collective that all points are of.
    points : Points
    cluster : Cluster
    fabric : FabricConstants
    """
    times = np.empty(len(points))
    for dtype in np.unique(points.dtype):
        some = points.dtype == dtype
        part = points.where(some)
        transfer = collective_transfer(kind, part.size, part.shape(cluster), cluster, fabric, dtype=str(dtype))  # type: ignore[arg-type]
        times[some] = transfer.seconds
    return times


def fit_ways(
    kinds: Sequence[str],
    points: Points,
    cluster: Cluster,
    fabric: FabricConstants,
    place: Place,
    weights: Array | None = None,
) -> dict[str, tuple[WayConstants, ...]]:
    """Fit the constants of all ways of some collectives, inside a domain or across.

    Parameters
    ----------
    kinds : sequence of str
        Collectives. A ring has the same constants in all of them.
    points : Points
        Of these collectives, inside one domain (near) or across (far).
    cluster : Cluster
        Datasheet bandwidths.
    fabric : FabricConstants
        Where the search starts. Corrections play no part.
    place : {"near", "far"}
        Which constants move.
    weights : ndarray of float or None
        Of the points (-), shape (points,).

    Returns
    -------
    dict of str to tuple of WayConstants
        By collective.
    """
    ways = {kind: tuple(fabric.ways[kind]) for kind in kinds}
    groups = [(points.kind == kind, points.where(points.kind == kind)) for kind in kinds]
    seen, excess = _seen({kind: part for kind, (_, part) in zip(kinds, groups, strict=True)}, cluster, fabric)
    firsts = {_key(kind, way.name): way for kind in reversed(kinds) for way in ways[kind]}
    names = [name for name in FREEDOMS[place] if any((key, _sort(name)) in seen for key in firsts)]
    moving = [(key, name) for key, way in firsts.items() for name in names if _moves(way, name, place)]
    freedoms = [FREEDOMS[place][name] for _, name in moving]
    most = np.array([freedom.most for freedom in freedoms])
    # What leaving a domain costs at all, the library's plug-in for the network decides, and no way of it avoids.
    begin = [
        max(f.start, excess) if name == "far_base" else f.start for (_, name), f in zip(moving, freedoms, strict=True)
    ]
    start = np.array([getattr(firsts[key], name) or first for (key, name), first in zip(moving, begin, strict=True)])
    start = np.log(np.minimum(start, most))
    shared = np.array([names.index(name) for _, name in moving], dtype=int)
    alone = np.array([at for at, (key, name) in enumerate(moving) if (key, _sort(name)) in seen], dtype=int)
    spread = np.array([FREEDOMS[place][n].together for n in names] + [freedoms[at].alone for at in alone.tolist()])
    root = np.ones(len(points)) if weights is None else np.sqrt(weights)
    measured = np.log(points.seconds)
    if not len(spread):
        return ways

    def constants(offsets: Array) -> Array:
        moved = start + offsets[: len(names)][shared]
        moved[alone] += offsets[len(names) :]
        return np.asarray(np.minimum(np.exp(moved), most))

    def residuals(offsets: Array) -> Array:
        moved = with_constants(ways, moving, constants(offsets))
        trial = replace(fabric, ways=moved, corrections={})
        off = np.empty(len(points))
        for kind, (some, part) in zip(kinds, groups, strict=True):
            off[some] = np.log(way_times(kind, part, cluster, trial))
        return np.concatenate([root * (off - measured), SCALE * offsets / spread])

    found = least_squares(
        residuals,
        np.zeros(len(spread)),
        bounds=(-6.0 * spread, 6.0 * spread),
        loss="soft_l1",
        f_scale=SCALE,
        diff_step=[1e-4],
        x_scale=spread,
        max_nfev=60,
    )
    return with_constants(ways, moving, constants(found.x))


def with_constants(
    ways: Mapping[str, Sequence[WayConstants]], moving: Sequence[tuple[str, str]], values: Array
) -> dict[str, tuple[WayConstants, ...]]:
    """Put values into some constants of some ways.

    Parameters
    ----------
    ways : mapping of str to sequence of WayConstants
        By collective.
    moving : sequence of (str, str)
        The way, as :func:`_key` tells them apart, and the name of the constant.
    values : ndarray of float
        SI units, in the order of ``moving``.
    """
    changes: dict[str, dict[str, Num]] = {key: {} for key, _ in moving}
    for (key, name), value in zip(moving, values.tolist(), strict=True):
        changes[key][name] = value
    return {
        kind: tuple(replace(way, **changes.get(_key(kind, way.name), {})) for way in each)  # type: ignore[arg-type]
        for kind, each in ways.items()
    }


def _key(kind: str, way: str) -> str:
    """What tells ways apart: a ring is the same whatever it does."""
    return way if way.startswith("ring") else f"{kind} {way}"


def _sort(name: str) -> str:
    """Whether a constant is a latency or says how much of a link is used."""
    return "share" if name.endswith(("_share", "_half")) else "latency"


def _seen(parts: Mapping[str, Points], cluster: Cluster, fabric: FabricConstants) -> tuple[set[tuple[str, str]], float]:
    """Ways and the sorts of their constants that measurements of some collectives see.

    Besides, what measurements that see latencies take beyond the library's expectation, by their median [s].

    The library's expectation tells which way each measurement went, and how much of its time was latency.
    """
    latencies: dict[str, list[Array]] = {}
    beyond: list[Array] = [np.zeros(0)]
    for kind, points in parts.items():
        plain = replace(fabric, ways={kind: fabric.tuning.get(kind) or fabric.ways[kind]})
        for dtype in np.unique(points.dtype).tolist():
            part = points.where(points.dtype == dtype)
            every = candidate_transfers(kind, part.size, part.shape(cluster), cluster, plain, dtype=dtype)  # type: ignore[arg-type]
            least = np.asarray([candidate.believed for candidate in every], dtype=np.float64).min(axis=0)
            for candidate in every:
                latency = np.asarray(candidate.transfer.latency / candidate.transfer.seconds)
                key = _key(kind, candidate.transfer.algorithm)
                mine = np.asarray(candidate.believed == least)
                latencies.setdefault(key, []).append(latency[mine])
                beyond.append((part.seconds - least)[mine & (latency >= LATENCY_SEEN)])
    found: set[tuple[str, str]] = set()
    for key, several in latencies.items():
        latency = np.concatenate(several)
        found |= {(key, "latency")} if np.sum(latency >= LATENCY_SEEN) >= SEEN else set()
        found |= {(key, "share")} if np.sum(latency <= 1.0 - SHARE_SEEN) >= SEEN else set()
    excess = np.concatenate(beyond)
    return found, float(np.median(excess)) if len(excess) else 0.0


_ACROSS_ONLY = ("tree", "nvls_tree", "sharp", "pat")


def _moves(way: WayConstants, name: str, place: Place) -> bool:
    """Whether measurements can say anything about a constant."""
    if name in ("near_half", "far_half"):
        return way.protocol != "LL"
    if name == "near_step":
        return not way.algorithm.startswith("nvls")
    if name == "near_share" and place == "far":
        return way.algorithm in _ACROSS_ONLY
    return True
