"""A robust fit of positive constants to measured times, and how well it fits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Constant:
    """A constant to be fitted: where the search starts, and between which bounds it stays.

    Parameters
    ----------
    name : str
    start, least, most : float
        In SI units, all above zero.
    """

    name: str
    start: float
    least: float
    most: float


@dataclass(frozen=True, slots=True)
class Fit:
    """Fitted constants and their residuals.

    Parameters
    ----------
    constants : mapping of str to float
        SI units.
    predicted : ndarray of float
        Times by the fitted model, in the order of the measurements [s], shape (points,).
    median_error, p90_error, bias : float
        Of predicted / measured - 1: median and 90th percentile of its size, and its median (-).
    points : int
    at_bounds : tuple of str
        Constants that ended on a bound: the data does not determine them.
    """

    constants: Mapping[str, float]
    predicted: Array
    median_error: float
    p90_error: float
    bias: float
    points: int
    at_bounds: tuple[str, ...]


def fit_times(
    model: Callable[[Mapping[str, float]], Array],
    measured: Array,
    constants: Sequence[Constant],
    tether: float = 0.0,
) -> Fit:
    """Fit constants so that modelled times agree with measured ones in ratio.

    Residuals are log ratios under a soft-L1 loss, so that an outlier by a factor of ten pulls like a few points and
    a microsecond weighs as much as a second.

    Parameters
    ----------
    model : callable
        From constants (SI) to times [s], shape (points,).
    measured : ndarray of float
        [s], shape (points,), all above zero.
    constants : sequence of Constant
    tether : float
        Share of the measurements' weight with which constants are drawn to their start (-): those that the data does
        not determine stay there, the others hardly notice.

    Returns
    -------
    Fit

    Raises
    ------
    ValueError
        Fewer points than constants.
    """
    if len(measured) < len(constants):
        raise ValueError(f"{len(measured)} measurements cannot determine {len(constants)} constants")
    names = [constant.name for constant in constants]
    least, most = (np.log([getattr(c, side) for c in constants]) for side in ("least", "most"))

    def times(logs: Array) -> Array:
        return model(dict(zip(names, np.exp(logs).tolist(), strict=True)))

    start = np.log([constant.start for constant in constants])
    pull = np.sqrt(tether * len(measured))

    def residuals(logs: Array) -> Array:
        ratios: Array = np.log(times(logs) / measured)
        return ratios if tether == 0.0 else np.concatenate([ratios, pull * (logs - start)])

    found = least_squares(
        residuals,
        start,
        bounds=(least, most),
        loss="soft_l1",
        f_scale=0.05,
    )
    predicted = times(found.x)
    error = predicted / measured - 1.0
    edge = 1e-3 * (most - least)
    pinned = (found.x - least < edge) | (most - found.x < edge)
    return Fit(
        constants=dict(zip(names, np.exp(found.x).tolist(), strict=True)),
        predicted=predicted,
        median_error=float(np.median(np.abs(error))),
        p90_error=float(np.quantile(np.abs(error), 0.9)),
        bias=float(np.median(error)),
        points=len(measured),
        at_bounds=tuple(name for name, at_edge in zip(names, pinned, strict=True) if at_edge),
    )
