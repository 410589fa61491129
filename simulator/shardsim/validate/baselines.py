"""Two predictions that need no model: every run at a constant share of peak."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from shardsim.validate.table import BaselineErrors, ValidationRow

USUAL_SHARE = 0.45
"""Share of dense peak that runs are commonly taken to reach (-)."""

_ROUNDING = 1e-12

FIXED, FITTED = "constant_45_percent", "best_constant"


def baseline_errors(
    rows: Sequence[ValidationRow], weights: Sequence[float] | None = None
) -> tuple[BaselineErrors, ...]:
    """Errors of the two baselines on rows that have a prediction.

    Parameters
    ----------
    rows : sequence of ValidationRow
    weights : sequence of float, optional
        Of each row (-); without, all weigh alike.

    Returns
    -------
    tuple of BaselineErrors
        At 45 % of dense peak on counted FLOP, and at the share of peak that fits these very rows best; empty where
        rows are no training runs.
    """
    kept = [index for index, row in enumerate(rows) if row.error is not None and row.facts is not None]
    shares = np.array(
        [row.facts.at_peak_s / row.measured for row in (rows[i] for i in kept) if row.facts and row.measured]
    )
    if shares.size == 0:
        return ()
    weighed = None if weights is None else np.array([weights[index] for index in kept])
    found = []
    for name, share in ((FIXED, USUAL_SHARE), (FITTED, best_share(shares, weighed))):
        errors = shares / share - 1
        found.append(BaselineErrors(name, share, *error_figures(errors, weighed)))
    return tuple(found)


def best_share(shares: NDArray[np.float64], weights: NDArray[np.float64] | None = None) -> float:
    """The constant share of peak under which half of the rows have the smallest largest |error|.

    Parameters
    ----------
    shares : ndarray of shape (rows,)
        Share of peak that each run reached (-).
    weights : ndarray of shape (rows,), optional
        (-).

    Returns
    -------
    float
        It minimises the median of the absolute errors, exactly: among all runs of neighbours that hold half
        of the weight, the ratio of the largest to the smallest is least; errors at both ends are then equal.

    Examples
    --------
    >>> import numpy as np
    >>> round(best_share(np.array([0.1, 0.39, 0.40, 0.41, 0.9])), 3)
    0.4
    """
    order = np.argsort(shares, kind="stable")
    ordered = shares[order]
    weighed = (np.ones_like(shares) if weights is None else weights)[order]
    before = np.concatenate([[0.0], np.cumsum(weighed)])
    half = before[-1] / 2
    last = np.searchsorted(before[1:], before[:-1] + half * (1 - _ROUNDING))
    first = np.flatnonzero(last < len(ordered))
    low, high = ordered[first], ordered[last[first]]
    best = int(np.argmin(high / low))
    return float((low[best] + high[best]) / 2)


def error_figures(
    errors: NDArray[np.float64], weights: NDArray[np.float64] | None = None
) -> tuple[float, float, float]:
    """Median and 90th percentile of absolute errors, and the median of the signed ones.

    Parameters
    ----------
    errors : ndarray of shape (rows,)
        At least one (-).
    weights : ndarray of shape (rows,), optional
        (-).

    Returns
    -------
    tuple of float
        Without weights, interpolated linearly between order statistics; with weights, the smallest error at or below
        which there is so much of the weight.
    """
    if weights is None:
        median, p90 = np.percentile(np.abs(errors), [50, 90])
        return float(median), float(p90), float(np.median(errors))
    median, p90 = _weighted(np.abs(errors), weights, (0.5, 0.9))
    (bias,) = _weighted(errors, weights, (0.5,))
    return median, p90, bias


def _weighted(
    values: NDArray[np.float64], weights: NDArray[np.float64], quantiles: Sequence[float]
) -> tuple[float, ...]:
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order])
    # Weights such as 99 times 1/99 do not sum to 1 exactly: half of two is reached all the same.
    wanted = np.array(quantiles) * reached[-1] * (1 - _ROUNDING)
    return tuple(values[order][np.searchsorted(reached, wanted)].tolist())
