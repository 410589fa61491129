"""A profile fitted to a user's logs, drawn: measured and fitted bus bandwidth against size."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from shardsim.calibrate.userfit import UserFit, curve
from shardsim.report.calibration import Series, bus_bandwidth, series_of
from shardsim.report.plots import GREY, GROUP_COLOURS, GROUP_MARKERS, STYLE, image_bytes, new_figure
from shardsim.units import format_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

    from shardsim.calibrate.points import Array

_FINE = 8
"""Points of a line for each doubling of the size."""
_MOST_COLUMNS = 3


def calibration_plot(fit: UserFit, file_format: str) -> bytes:
    """Draw measured (points), fitted (lines) and shipped (dashed) bus bandwidth, a panel for each collective.

    Parameters
    ----------
    fit : UserFit
    file_format : {"png", "svg"}

    Returns
    -------
    bytes
        The file.
    """
    from matplotlib import style  # noqa: PLC0415  # costs half a second: only where something is drawn

    by_kind: dict[str, list[Series]] = {}
    for series in series_of(fit):
        by_kind.setdefault(series.kind, []).append(series)
    columns = min(len(by_kind), _MOST_COLUMNS)
    rows = math.ceil(len(by_kind) / columns)
    width, height = 1.2 + 4.4 * columns, 1.2 + 3.7 * rows
    with style.context(["default", STYLE]):
        figure = new_figure(max(width, 7.0), height)
        panels = figure.subplots(rows, columns, squeeze=False).ravel().tolist()
        title = f"Bus bandwidth on {fit.cluster.name}, {len(fit.samples.points):,} rows of nccl-tests"
        figure.suptitle(title, x=0.012, ha="left", fontsize=11.5, fontweight="bold")
        for axes, (kind, group) in zip(panels, by_kind.items(), strict=False):
            _panel(axes, fit, kind, group)
        for axes in panels[len(by_kind) :]:
            axes.set_visible(False)
        note = f"Points: measured; lines: fitted; dashed: shipped profile {fit.base.name}; crosses: left aside."
        figure.text(0.012, 0.1 / height, note, fontsize=8, color="#555555")
        figure.tight_layout(rect=(0, 0.25 / height, 1, 1 - 0.1 / height), w_pad=2.0, h_pad=1.6)
        return image_bytes(figure, file_format)


def _panel(axes: Axes, fit: UserFit, kind: str, group: Sequence[Series]) -> None:
    points = fit.samples.points
    shown = spread(sorted(group, key=lambda series: (series.ranks, series.nodes)), len(GROUP_COLOURS))
    several = len({series.dtype for series in group}) > 1
    for colour, marker, series in zip(GROUP_COLOURS, GROUP_MARKERS, shown, strict=False):
        sizes = points.size[series.mask]
        doublings = np.log2(sizes.max() / sizes.min())
        fine = sizes.min() * 2.0 ** np.linspace(0.0, doublings, int(_FINE * doublings) + 1)
        before, after = curve(fit, kind, series.dtype, series.nodes, series.gpus_per_node, fine)
        label = f"{series.label} {series.dtype}" if several else series.label
        axes.plot(fine, _rate(series, fine, before), color=colour, linewidth=1.1, linestyle=(0, (4, 2)), alpha=0.75)
        axes.plot(fine, _rate(series, fine, after), color=colour, linewidth=1.6)
        measured = _rate(series, sizes, points.seconds[series.mask])
        axes.plot(sizes, measured, linestyle="none", marker=marker, color=colour, markersize=4.5, label=label)
    _aside(axes, fit, kind, shown)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=10)
    more = f", {len(group) - len(shown)} more not drawn" if len(shown) < len(group) else ""
    axes.set_title(f"{kind.replace('_', '-')}{more}")
    axes.set_xlabel("size of the buffer [bytes]")
    axes.set_ylabel("bus bandwidth [GB/s]")
    _ticks(axes)
    legend = axes.legend(loc="best", fontsize=8, title="ranks (nodes x GPUs)", title_fontsize=8, handletextpad=0.3)
    legend.set_frame_on(True)
    legend.get_frame().set(facecolor="white", edgecolor="none", alpha=0.85)


def _aside(axes: Axes, fit: UserFit, kind: str, shown: Sequence[Series]) -> None:
    """Rows that no fit uses, of the groups that are drawn."""
    aside = fit.samples.aside
    for series in shown:
        some = (aside.kind == kind) & (aside.dtype == series.dtype)
        some &= (aside.nodes == series.nodes) & (aside.gpus_per_node == series.gpus_per_node)
        sizes = aside.size[some]
        axes.plot(sizes, _rate(series, sizes, aside.seconds[some]), linestyle="none", marker="x", color=GREY)


def spread(items: Sequence[Series], most: int) -> list[Series]:
    """At most so many of the items, evenly, the ends among them.

    Parameters
    ----------
    items : sequence of Series
    most : int
        (-).
    """
    if len(items) <= most:
        return list(items)
    return [items[round(index * (len(items) - 1) / (most - 1))] for index in range(most)]


def _rate(series: Series, size: Array, seconds: Array) -> Array:
    return bus_bandwidth(series.kind, series.ranks, size, seconds)


def _ticks(axes: Axes) -> None:
    """Sizes in binary units, bandwidths as plain numbers."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter  # noqa: PLC0415

    low, high = axes.get_xlim()
    step = max(1, math.ceil(math.log2(high / low) / 6))
    axes.xaxis.set_major_locator(LogLocator(base=2.0**step, numticks=12))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: format_size(value)))
    axes.xaxis.set_minor_formatter(NullFormatter())
    bottom, top = axes.get_ylim()
    subs = (1.0, 2.0, 5.0) if math.log10(top / bottom) < 2.0 else (1.0,)
    axes.yaxis.set_major_locator(LogLocator(base=10, subs=subs, numticks=10))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.4g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
