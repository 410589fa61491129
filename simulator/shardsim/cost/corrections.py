"""Smoothed residuals: between their knots linear in the logarithms of size and members, beyond them constant."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shardsim.values.hardware import Correction
from shardsim.values.num import Num, Truth, log2, power_of_e, where

NARROW = frozenset({"int8", "uint8", "f8e4m3", "f8e5m2", "fp8"})
"""Data types that switches cannot add."""

WIDE = "wide"
"""Class of the data types that switches can add."""

_ADDING = ("all_reduce", "reduce_scatter")
_SLACK = 1e-6


def dtype_class(dtype: str) -> str:
    """``narrow`` for the 8-bit types, which switches cannot add, else ``wide``.

    >>> dtype_class("int8"), dtype_class("half")
    ('narrow', 'wide')
    """
    return "narrow" if dtype in NARROW else "wide"


def correction_family(kind: str, dtype: str) -> str:
    """Class of data types whose measurements hold for a collective: the type matters where something is added.

    >>> correction_family("all_reduce", "int8"), correction_family("all_gather", "int8")
    ('narrow', 'wide')
    """
    return dtype_class(dtype) if kind in _ADDING else WIDE


def is_extrapolated(correction: Correction, size: Num, members: Num) -> Truth:
    """Whether a group lies outside what was measured: fewer or more members, or a smaller buffer.

    Parameters
    ----------
    correction : Correction
    size : Num
        The whole buffer [bytes].
    members : Num
        As for :func:`correction_factor` (-).

    Returns
    -------
    bool or array of bool
        Larger buffers are none: bandwidth no longer depends on their size.

    Examples
    --------
    >>> from shardsim.values.provenance import Provenance
    >>> flat = Correction((10.0, 20.0), (1.0, 3.0), ((0.0, 0.0), (0.0, 0.0)), Provenance("fitted", "example"))
    >>> is_extrapolated(flat, 2e6, 8), is_extrapolated(flat, 2e6, 9), is_extrapolated(flat, 1000, 4)
    (False, True, True)
    """
    least, most = (2.0**end for end in (correction.log2_members[0] - _SLACK, correction.log2_members[-1] + _SLACK))
    outside: Truth = (members < least) | (members > most) | (size < 2.0 ** (correction.log2_bytes[0] - _SLACK))
    return outside


def correction_factor(correction: Correction, size: Num, members: Num) -> Num:
    """Measured over modelled time, by the smoothed residuals.

    Parameters
    ----------
    correction : Correction
    size : Num
        The whole buffer [bytes].
    members : Num
        Ranks of a group inside one domain, or domains of one across (-).

    Returns
    -------
    Num
        A factor on the time (-).

    Examples
    --------
    >>> from shardsim.values.provenance import Provenance
    >>> flat = Correction((10.0, 20.0), (1.0, 3.0), ((0.0, 0.0), (0.0, 0.0)), Provenance("fitted", "example"))
    >>> correction_factor(flat, 1e6, 4)
    1.0
    """
    grid = np.asarray(correction.log_ratio)
    row, part_row = _position(members, correction.log2_members)
    column, part_column = _position(size, correction.log2_bytes)
    # A grid of one row or column has no next one: its weight there is zero.
    next_row = np.minimum(row + 1, grid.shape[0] - 1)
    next_column = np.minimum(column + 1, grid.shape[1] - 1)
    low = grid[row, column] * (1.0 - part_column) + grid[row, next_column] * part_column
    high = grid[next_row, column] * (1.0 - part_column) + grid[next_row, next_column] * part_column
    log_ratio = low * (1.0 - part_row) + high * part_row
    return power_of_e(log_ratio if np.ndim(log_ratio) else float(log_ratio))


def _position(x: Num, knots: tuple[float, ...]) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """Index of the knot at or below the logarithm of ``x``, and how far it is to the next one (0 to 1)."""
    at = np.asarray(np.clip(log2(where(x > 0, x, 1.0)), knots[0], knots[-1]))
    index = np.asarray(np.clip(np.searchsorted(knots, at, side="right") - 1, 0, max(len(knots) - 2, 0)))
    if len(knots) == 1:
        return index, np.zeros_like(at)
    known = np.asarray(knots)
    return index, (at - known[index]) / (known[index + 1] - known[index])
