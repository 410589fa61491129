"""Measured matrix products, drawn: predicted over measured times, and a fit over the size of products."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from shardsim.cost.gemm import PEAK_OF
from shardsim.report.plots import (
    BAND,
    BLUE,
    GREY,
    GROUP_COLOURS,
    GROUP_MARKERS,
    ORANGE,
    STYLE,
    image_bytes,
    log_ticks,
    new_figure,
    plain_log_ticks,
    write_errors,
)
from shardsim.units import format_time, tflops

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from shardsim.calibrate.usergemm import UserGemmFit
    from shardsim.report.gemm_fit import GemmCalibration
    from shardsim.validate.gemms import GemmValidation

Array = NDArray[np.float64]
Codes = NDArray[np.int64]
_MOST_POINTS = 20_000
"""Points that are drawn of one group: beyond that they cover each other."""


def gemm_scatter(found: GemmValidation, file_format: str) -> bytes:
    """Draw predicted against measured times, by GPU and data type, with a band of 10 % about the diagonal.

    Parameters
    ----------
    found : GemmValidation
        With at least one predicted row.
    file_format : {"png", "svg"}

    Returns
    -------
    bytes
        The file.
    """
    from matplotlib import style  # noqa: PLC0415  # costs half a second: only where something is drawn

    with style.context(["default", STYLE]):
        figure = new_figure(6.4, 5.9)
        _scatter(figure.subplots(), found)
        figure.tight_layout()
        return image_bytes(figure, file_format)


def _scatter(axes: Axes, found: GemmValidation) -> None:
    known = np.isfinite(found.error)
    measured, predicted, kind = found.table.seconds[known], found.predicted[known], found.kind[known]
    low = float(min(measured.min(), predicted.min())) / 1.4
    high = float(max(measured.max(), predicted.max())) * 1.4
    line = np.array([low, high])
    label = f"±{100 * BAND:.0f} %"
    axes.fill_between(line, line * (1 - BAND), line * (1 + BAND), color="#dddddd", linewidth=0, label=label, zorder=1)
    axes.plot(line, line, color=GREY, linestyle="--", linewidth=1.2, label="predicted = measured", zorder=2)
    counts = np.bincount(kind, minlength=len(found.kinds))
    order = np.argsort(-counts, kind="stable")[: int((counts > 0).sum())].tolist()
    named = order[: len(GROUP_COLOURS) - (len(order) > len(GROUP_COLOURS))]
    groups = [([number], found.kinds[number]) for number in named]
    if len(order) > len(named):
        groups.append((order[len(named) :], f"{len(order) - len(named)} other kinds"))
    for (numbers, name), colour, marker in zip(groups, GROUP_COLOURS, GROUP_MARKERS, strict=False):
        members = np.flatnonzero(np.isin(kind, numbers))
        shown = members[:: math.ceil(len(members) / _MOST_POINTS)]
        axes.plot(
            measured[shown],
            predicted[shown],
            linestyle="none",
            marker=marker,
            color=colour,
            markersize=5.5 if len(shown) < 200 else 3.0,
            markeredgecolor="white",
            markeredgewidth=0.4 if len(shown) < 200 else 0.0,
            alpha=0.9 if len(shown) < 200 else 0.5,
            label=f"{name} ({len(members):,})",
            zorder=3,
            rasterized=len(shown) > 2000,
        )
    axes.set_xscale("log", base=10)
    axes.set_yscale("log", base=10)
    axes.set_xlim(low, high)
    axes.set_ylim(low, high)
    axes.set_aspect("equal")
    axes.set_xlabel("measured time")
    axes.set_ylabel("predicted time")
    log_ticks(axes, low, high, format_time, 12)
    axes.legend(loc="upper left", fontsize=8, handletextpad=0.4)
    overall = found.overall
    axes.set_title(f"{overall.predicted:,} of {overall.rows:,} measured products predicted")
    write_errors(axes, overall)


def gemm_fit_plot(found: GemmCalibration, file_format: str) -> bytes:
    """Draw a fit: measured and fitted rates over the work of a product, and the errors before and after.

    Parameters
    ----------
    found : GemmCalibration
    file_format : {"png", "svg"}

    Returns
    -------
    bytes
        The file; one row of panels for each data type.
    """
    from matplotlib import style  # noqa: PLC0415

    rows = len(found.fits)
    height = 0.7 + 4.0 * rows
    with style.context(["default", STYLE]):
        figure = new_figure(10.4, height)
        panels = figure.subplots(rows, 2, squeeze=False)
        title = f"Matrix products on {found.device.name}: {found.file}"
        figure.suptitle(title, x=0.012, ha="left", fontsize=11.5, fontweight="bold")
        for fit, (left, right) in zip(found.fits, panels.tolist(), strict=True):
            peak = found.device.peak_flops[PEAK_OF.get(fit.dtype, fit.dtype)]
            _rates(left, fit, peak)
            _errors(right, fit)
        figure.tight_layout(rect=(0, 0, 1, 1 - 0.12 / height), w_pad=2.2)
        return image_bytes(figure, file_format)


def _rates(axes: Axes, fit: UserGemmFit, peak: float) -> None:
    samples, shown = fit.samples, _thin(len(fit.samples))
    work, look = samples.flop[shown], _look(len(shown))
    for share, style, name in ((1.0, "-", "dense peak"), (fit.constants.sustained, "--", "sustained")):
        axes.axhline(tflops(peak * share), color=GREY, linestyle=style, linewidth=1.2, label=name, zorder=1)
    axes.plot(work, _tflops(work, samples.seconds[shown]), marker="o", color=GREY, label="measured", **look)
    axes.plot(work, _tflops(work, fit.after[shown]), marker="x", color=BLUE, label="fitted", **look)
    axes.set_xscale("log", base=10)
    axes.set_yscale("log", base=10)
    axes.set_title(f"{fit.dtype}: {len(samples):,} products")
    axes.set_ylabel("TFLOP/s")
    _work_axis(axes)
    plain_log_ticks(axes)
    axes.legend(loc="lower right", fontsize=8, handletextpad=0.4, markerscale=1.0 if len(shown) < 200 else 2.2)


def _errors(axes: Axes, fit: UserGemmFit) -> None:
    samples, shown = fit.samples, _thin(len(fit.samples))
    work, look = samples.flop[shown], _look(len(shown))
    errors = [100.0 * (times / samples.seconds - 1.0) for times in (fit.before, fit.after)]
    axes.axhspan(-100 * BAND, 100 * BAND, color="#e9e9e9", linewidth=0, zorder=0, label=f"±{100 * BAND:.0f} %")
    for error, colour, name in zip(errors, (ORANGE, BLUE), ("shipped", "fitted"), strict=True):
        median, p90 = np.percentile(np.abs(error), [50, 90])
        label = f"{name}: median {median:.1f} %, p90 {p90:.1f} %"
        axes.plot(work, error[shown], marker="o" if name == "fitted" else "s", color=colour, label=label, **look)
    edge = max(15.0, 1.15 * float(np.percentile(np.abs(np.concatenate(errors)), 99)))
    axes.set_ylim(-edge, edge)
    axes.set_xscale("log", base=10)
    axes.set_title("Error of the predicted time")
    axes.set_ylabel("predicted / measured - 1 [%]")
    _work_axis(axes)
    legend = axes.legend(loc="upper right", fontsize=8, handletextpad=0.4, markerscale=1.0 if len(shown) < 200 else 2.2)
    legend.set_frame_on(True)
    legend.get_frame().set(facecolor="white", edgecolor="none", alpha=0.9)


def _thin(count: int) -> Codes:
    """Which of so many points are drawn."""
    return np.arange(0, count, math.ceil(count / _MOST_POINTS))


def _look(count: int) -> dict[str, Any]:
    few = count < 200
    look = {"linestyle": "none", "markersize": 4.5 if few else 2.2, "alpha": 0.9 if few else 0.4}
    return look | {"zorder": 3, "rasterized": count > 2000}


def _tflops(work: Array, seconds: Array) -> list[float]:
    return [tflops(rate) for rate in (work / seconds).tolist()]


def _work_axis(axes: Axes) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter  # noqa: PLC0415

    axes.xaxis.set_major_locator(LogLocator(base=10, numticks=9))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / 1e9:,.7f}".rstrip("0").rstrip(".")))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("work of a product [GFLOP]")
