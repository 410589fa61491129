"""A profile fitted to a user's logs: residuals by collective and size on the screen and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from shardsim.calibrate.fabric import FEWEST
from shardsim.calibrate.points import Array, Mask
from shardsim.calibrate.userfit import PLACES, Error, UserFit, Verdict, error_of
from shardsim.cost.algorithms import bus_factor
from shardsim.units import format_size, gigabytes_per_second

_BANDS = (0.0, 65536.0, 1048576.0, 67108864.0, np.inf)
"""Sizes from which a line of the table begins [bytes]."""
_WIDTHS = (22, 6, 9, 9, 9, 8, 8, 8, 8)
_LEGEND = (
    "error = predicted / measured - 1: median of |error|; p90: 90 % of |error| are below",
    "held out: fitted to every other size and tested on the rest: what to expect of sizes not measured",
)
_NAMES = {"near": "inside", "far": "across"}


@dataclass(frozen=True, slots=True)
class Series:
    """One collective of one data type over one group of ranks, over sizes.

    Parameters
    ----------
    kind, dtype : str
    nodes, gpus_per_node : int
        (-).
    mask : ndarray of bool
        Its points among those of the fit, shape (points,).
    """

    kind: str
    dtype: str
    nodes: int
    gpus_per_node: int
    mask: Mask

    @property
    def ranks(self) -> int:
        """Members of the group (-)."""
        return self.nodes * self.gpus_per_node

    @property
    def label(self) -> str:
        """Ranks, and how they lie on nodes."""
        return f"{self.ranks} ({self.nodes} x {self.gpus_per_node})"


def series_of(fit: UserFit) -> tuple[Series, ...]:
    """Give the groups that were measured, in the order of the logs.

    Parameters
    ----------
    fit : UserFit
    """
    points = fit.samples.points
    keys = list(
        zip(
            points.kind.tolist(),
            points.dtype.tolist(),
            points.nodes.tolist(),
            points.gpus_per_node.tolist(),
            strict=True,
        )
    )
    order = np.array([keys.index(key) for key in keys])
    return tuple(
        Series(kind, dtype, int(nodes), int(per_node), order == keys.index((kind, dtype, nodes, per_node)))
        for kind, dtype, nodes, per_node in dict.fromkeys(keys)
    )


def bus_bandwidth(kind: str, ranks: float, size: Array, seconds: Array) -> Array:
    """Bus bandwidth as nccl-tests prints it [GB/s], shape (points,).

    Parameters
    ----------
    kind : str
    ranks : float
        (-).
    size : ndarray of float
        [bytes], shape (points,).
    seconds : ndarray of float
        [s], shape (points,).
    """
    return np.array([gigabytes_per_second(rate) for rate in (size / seconds * bus_factor(kind, ranks)).tolist()])


def calibration_text(fit: UserFit) -> RenderableType:
    """Lay out a fit for the screen, within 100 columns.

    Parameters
    ----------
    fit : UserFit

    Returns
    -------
    RenderableType
    """
    count = len(fit.samples.points)
    parts: list[RenderableType] = [
        Text(f"{count:,} points on {fit.cluster.name}; shipped: profile {fit.base.name}", "bold"),
        Text(),
        _lines(
            [("", "", "busbw at the largest, GB/s", "", "", "|error| shipped", "", "|error| fitted", "")], heading=True
        ),
        _lines(
            [("  sizes", "points", "measured", "shipped", "fitted", "median", "p90", "median", "p90")], style="bold"
        ),
    ]
    for series in series_of(fit):
        parts += [Text(f"{series.kind} of {series.label} ranks, {series.dtype}"), _lines(list(_bands(fit, series)))]
    parts += [
        Text(),
        Text("By collective, inside an NVLink domain or across: |error|", "bold"),
        _verdicts(fit.verdicts),
    ]
    for title, items in (
        ("Not fitted", _too_few(fit)),
        ("Left aside", [f"{count:,}  {reason}" for reason, count in fit.samples.left.items()]),
        ("Noted", fit.notes),
    ):
        if items:
            parts += [Text(), Text(title, "bold"), *(Text(item) for item in items)]
    parts += [Text(), *(Text(line) for line in _LEGEND)]
    return Group(*parts)


def _bands(fit: UserFit, series: Series) -> Iterator[tuple[str, ...]]:
    points = fit.samples.points
    for least, most in pairwise(_BANDS):
        some = series.mask & (points.size >= least) & (points.size < most)
        if not some.any():
            continue
        sizes = points.size[some]
        largest = some & (points.size == sizes.max())
        rates = [
            float(np.median(bus_bandwidth(series.kind, series.ranks, points.size[largest], times[largest])))
            for times in (points.seconds, fit.before, fit.after)
        ]
        errors = [error_of(times[some], points.seconds[some]) for times in (fit.before, fit.after)]
        low, high = format_size(float(sizes.min())), format_size(float(sizes.max()))
        span = low if low == high else f"{low} .. {high}"
        figures = [figure for error in errors for figure in (_percent(error.median), _percent(error.p90))]
        yield (f"  {span}", f"{some.sum():,}", *(f"{rate:.4g}" for rate in rates), *figures)


def _lines(lines: Sequence[Sequence[str]], style: str = "", *, heading: bool = False) -> Table:
    grid = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), show_header=False)
    if heading:
        for width in (29, 30, 17, 17):
            grid.add_column(width=width, no_wrap=True, justify="right")
        for line in lines:
            grid.add_row(*(line[index] for index in (0, 2, 5, 7)))
        return grid
    for index, width in enumerate(_WIDTHS):
        grid.add_column(width=width, justify="right" if index else "left", no_wrap=True, style=style)
    for line in lines:
        grid.add_row(*line)
    return grid


def _verdicts(verdicts: Sequence[Verdict]) -> Table:
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("collective", "place", "points", "shipped", "fitted", "held out"):
        grid.add_column(name, justify="left" if name in ("collective", "place") else "right", no_wrap=True)
    for verdict in verdicts:
        held_out = "too few sizes" if verdict.held_out is None else _both(verdict.held_out)
        fitted = _both(verdict.after) if verdict.fitted else "not fitted"
        grid.add_row(
            verdict.kind, _NAMES[verdict.place], f"{verdict.before.points:,}", _both(verdict.before), fitted, held_out
        )
    return grid


def _both(error: Error) -> str:
    return f"{_percent(error.median)}, p90 {_percent(error.p90)}"


def _percent(share: float) -> str:
    return f"{100.0 * share:.1f} %"


def _too_few(fit: UserFit) -> list[str]:
    return [
        f"{verdict.kind} {PLACES[verdict.place]}: {verdict.before.points} of the {FEWEST} points that a fit needs; "
        f"as in {fit.base.name} ({verdict.basis})"
        for verdict in fit.verdicts
        if not verdict.fitted
    ]


def calibration_record(fit: UserFit) -> dict[str, Any]:
    """Give a fit as a record for JSON.

    Parameters
    ----------
    fit : UserFit

    Returns
    -------
    dict
    """
    points = fit.samples.points
    return {
        "cluster": fit.cluster.name,
        "base": fit.base.name,
        "points": len(points),
        "left_aside": dict(fit.samples.left),
        "notes": list(fit.notes),
        "collectives": [
            {
                "collective": verdict.kind,
                "place": verdict.place,
                "points": verdict.before.points,
                "is_fitted": verdict.fitted,
                "basis": verdict.basis,
                "shipped_median": _short(verdict.before.median),
                "shipped_p90": _short(verdict.before.p90),
                "fitted_median": _short(verdict.after.median),
                "fitted_p90": _short(verdict.after.p90),
                "held_out_median": None if verdict.held_out is None else _short(verdict.held_out.median),
                "held_out_p90": None if verdict.held_out is None else _short(verdict.held_out.p90),
            }
            for verdict in fit.verdicts
        ],
        "residuals": [
            {
                "log": str(points.origin[index]),
                "collective": str(points.kind[index]),
                "dtype": str(points.dtype[index]),
                "nodes": int(points.nodes[index]),
                "gpus_per_node": int(points.gpus_per_node[index]),
                "bytes": int(points.size[index]),
                "measured_s": _short(points.seconds[index]),
                "shipped_s": _short(fit.before[index]),
                "fitted_s": _short(fit.after[index]),
            }
            for index in range(len(points))
        ],
    }


def _short(value: float) -> float:
    return float(f"{value:.6g}")
