"""Fit the ways of a collective, algorithm by protocol, to measured times.

The search starts at NCCL's own constants and is drawn back to them where measurements say nothing: what is fitted
are factors on latencies and bandwidths, not curves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from scipy.optimize import least_squares

from shardsim.calibrate.points import Array, Points
from shardsim.cost.collectives import collective_transfer
from shardsim.values.hardware import Cluster, FabricConstants, WayConstants
from shardsim.values.num import Num

Place = Literal["near", "far"]

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
    kind: str,
    points: Points,
    cluster: Cluster,
    fabric: FabricConstants,
    place: Place,
    weights: Array | None = None,
) -> tuple[WayConstants, ...]:
    """Fit the constants of all ways of a collective, inside a domain or across.

    Parameters
    ----------
    kind : str
        Collective.
    points : Points
        Inside one domain (near) or across (far).
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
    tuple of WayConstants
    """
    ways = tuple(fabric.ways[kind])
    names = list(FREEDOMS[place])
    moving = [(index, name) for index, way in enumerate(ways) for name in names if _moves(way, name, place)]
    freedoms = [FREEDOMS[place][name] for _, name in moving]
    most = np.array([freedom.most for freedom in freedoms])
    start = np.array([getattr(ways[i], name) or f.start for (i, name), f in zip(moving, freedoms, strict=True)])
    start = np.log(np.minimum(start, most))
    shared = np.array([names.index(name) for _, name in moving])
    spread = np.array([FREEDOMS[place][name].together for name in names] + [freedom.alone for freedom in freedoms])
    root = np.ones(len(points)) if weights is None else np.sqrt(weights)
    measured = np.log(points.seconds)

    def constants(offsets: Array) -> Array:
        together, alone = offsets[: len(names)], offsets[len(names) :]
        moved: Array = np.minimum(np.exp(start + together[shared] + alone), most)
        return moved

    def residuals(offsets: Array) -> Array:
        moved = with_constants(ways, moving, constants(offsets))
        trial = replace(fabric, ways={kind: moved}, corrections={})
        off = root * (np.log(way_times(kind, points, cluster, trial)) - measured)
        return np.concatenate([off, SCALE * offsets / spread])

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
    ways: Sequence[WayConstants], moving: Sequence[tuple[int, str]], values: Array
) -> tuple[WayConstants, ...]:
    """Put values into some constants of some ways.

    Parameters
    ----------
    ways : sequence of WayConstants
    moving : sequence of (int, str)
        Index of the way and name of the constant.
    values : ndarray of float
        SI units, in the order of ``moving``.
    """
    changes: list[dict[str, Num]] = [{} for _ in ways]
    for (index, name), value in zip(moving, values.tolist(), strict=True):
        changes[index][name] = value
    return tuple(replace(way, **change) for way, change in zip(ways, changes, strict=True))  # type: ignore[arg-type]


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
