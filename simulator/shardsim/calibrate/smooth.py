"""Smoothed residual grids: what measurements say beyond the algorithms' equations, and no more than they say twice.

A grid is fitted with a penalty on its curvature and its size, robustly, and never falls faster along the size than
the modelled time rises, so that more bytes never take less time.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.optimize import lsq_linear

from shardsim.calibrate.points import Array
from shardsim.values.hardware import Correction
from shardsim.values.provenance import Provenance

CURVATURE = 0.15
"""Weight of a row's second differences against one measurement (-)."""
RIDGE = 0.02
"""Weight of a knot's size against one measurement (-): knots that no measurement touches stay near their neighbours."""
SCALE = 0.03
"""Log ratio at which the soft-L1 loss turns from squares to sizes (-)."""
_ROUNDS = 12


def smooth_grid(
    size: Array,
    members: Array,
    log_ratio: Array,
    knots: Array,
    rows: Array,
    rises: Array,
    provenance: Provenance,
    weights: Array | None = None,
    curvature: float = CURVATURE,
) -> Correction:
    """Fit a residual grid.

    Parameters
    ----------
    size, members : ndarray of float
        Of the measured points: buffer [bytes] and ranks or domains (-), shape (points,).
    log_ratio : ndarray of float
        Measured over modelled time, logarithm (-), shape (points,).
    knots : ndarray of float
        Binary logarithms of the sizes, rising (-), shape (sizes,).
    rows : ndarray of float
        Binary logarithms of the numbers of members, rising (-), shape (members,).
    rises : ndarray of float
        How much the logarithm of the modelled time rises at least from a knot to the next (-), shape
        (members, sizes - 1).
    provenance : Provenance
    weights : ndarray of float or None
        Of the points (-), shape (points,).
    curvature : float
        Weight of the second differences (-).

    Returns
    -------
    Correction
    """
    design = _basis(np.log2(size), knots)[:, None, :] * _basis(np.log2(members), rows)[:, :, None]
    design = design.reshape(len(size), -1)
    count = (len(rows), len(knots))
    penalty = np.concatenate([curvature * _curvature(count), RIDGE * np.eye(count[0] * count[1])])
    to_grid, lower = _increments(count, rises)
    own = np.ones(len(size)) if weights is None else weights
    robust = np.ones(len(size))
    target = np.concatenate([log_ratio, np.zeros(len(penalty))])
    found = np.zeros(count[0] * count[1])
    for _ in range(_ROUNDS):
        root = np.concatenate([np.sqrt(own * robust), np.ones(len(penalty))])
        matrix = np.concatenate([design, penalty]) @ to_grid
        solved = lsq_linear(matrix * root[:, None], target * root, bounds=(lower, np.inf))
        found = to_grid @ solved.x
        off = (design @ found - log_ratio) / SCALE
        robust = 1.0 / np.sqrt(1.0 + off**2)
    grid = found.reshape(count)
    return Correction(
        log2_bytes=tuple(knots.tolist()),
        log2_members=tuple(rows.tolist()),
        log_ratio=tuple(tuple(row) for row in grid.tolist()),
        provenance=provenance,
    )


def _basis(x: Array, knots: Array) -> Array:
    """Weights of the knots in linear interpolation, constant beyond the ends, shape (points, knots)."""
    return np.stack([np.interp(x, knots, unit) for unit in np.eye(len(knots))], axis=-1)


def _curvature(count: tuple[int, int]) -> Array:
    """Second differences along the sizes of each row, first ones between rows a tenth as heavy."""
    rows, sizes = count
    along = np.diff(np.eye(sizes), n=2, axis=0) if sizes > 2 else np.zeros((0, sizes))
    between = np.diff(np.eye(rows), axis=0) if rows > 1 else np.zeros((0, rows))
    return np.concatenate([np.kron(np.eye(rows), along), 0.1 * np.kron(between, np.eye(sizes))])


def _increments(count: tuple[int, int], rises: Array) -> tuple[Array, Array]:
    """Grid as a sum of increments along the sizes, and the least that each increment may be."""
    rows, sizes = count
    to_grid = np.asarray(np.kron(np.eye(rows), np.tril(np.ones((sizes, sizes)))), dtype=np.float64)
    least = np.concatenate([np.full((rows, 1), -np.inf), -rises], axis=1)
    return to_grid, least.reshape(-1)


def knots_between(least: float, most: float, step: float) -> Array:
    """Evenly spaced knots that end at the larger bound (-)."""
    count = int(np.floor((most - least) / step + 1e-9))
    return most - step * np.arange(count, -1.0, -1.0)


def knots_around(x: Array, knots: Array) -> Array:
    """Those of at least two knots that measurements lie between: a trend of theirs does not go on beyond them (-)."""
    first = max(int(np.searchsorted(knots, x.min(), side="right")) - 1, 0)
    last = min(max(int(np.searchsorted(knots, x.max(), side="left")), first + 1), len(knots) - 1)
    return knots[min(first, last - 1) : last + 1]


def spread_rows(members: Array, most: int) -> Array:
    """Binary logarithms of at most so many of the numbers of members that occur, the ends among them (-)."""
    found = np.unique(np.log2(members))
    if len(found) <= most:
        return found
    wanted: Sequence[float] = np.linspace(found[0], found[-1], most).tolist()
    return np.unique([found[np.argmin(np.abs(found - one))] for one in wanted])
