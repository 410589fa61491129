"""The operators of a layer, drawn: under the device's roofs, and as shares of bandwidth where they have no FLOP."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from shardsim.program.roofline import LayerCosts, OperatorCost
from shardsim.report.plots import BLUE, GREY, ORANGE, STYLE, image_bytes, new_figure, plain_log_ticks
from shardsim.report.roofline import layout_words
from shardsim.units import format_bandwidth, tflops

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PHASES = {"forward": BLUE, "recompute": "#009E73", "backward": ORANGE}
_MARKERS = {"gemm": "o", "attention": "D"}
_EDGE: dict[str, Any] = {"edgecolor": "white", "linewidth": 0.6}
_LINE = 0.185
"""Height of a line of labels [inches]."""
_WIDTH = 13.6
_PANELS = ((0.75, 6.1), (10.9, 2.5))
"""Left edge and width of both panels; the names of their operators stand between them [inches]."""


def roofline_plot(costs: LayerCosts, file_format: str) -> bytes:
    """Draw operators with FLOP over their intensity under the roofs, and the others by the bandwidth they reach.

    Parameters
    ----------
    costs : LayerCosts
    file_format : {"png", "svg"}

    Returns
    -------
    bytes
        The file.
    """
    from matplotlib import style  # noqa: PLC0415  # costs half a second: only where something is drawn

    working = [one for one in costs.operators if one.flop]
    moving = _joined([one for one in costs.operators if not one.flop])
    height = max(5.4, 2.1 + _LINE * max(len(working), len(moving)))
    with style.context(["default", STYLE]):
        figure = new_figure(_WIDTH, height)
        bottom, top = 1.15 / height, 1.0 - 0.75 / height
        left, right = (
            figure.add_axes((start / _WIDTH, bottom, width / _WIDTH, top - bottom)) for start, width in _PANELS
        )
        device = costs.run.cluster.device.name
        title = f"One layer of {costs.run.model.name} on {device}: {layout_words(costs)}"
        figure.suptitle(title, x=0.012, ha="left", fontsize=11.5, fontweight="bold")
        note = "Area of a marker: time of the operator. Right: round for memory, square for a link."
        figure.text(0.012, 0.1 / height, note, fontsize=8, color="#555555")
        _roofs(left, costs, working)
        _labels(left, working, _LINE / (height * (top - bottom)))
        _bars(right, moving, costs)
        handles, names = left.get_legend_handles_labels()
        look: dict[str, Any] = {"fontsize": 8, "handletextpad": 0.6, "ncols": 3, "columnspacing": 1.6}
        figure.legend(handles, names, loc="lower left", bbox_to_anchor=(0.5 / _WIDTH, 0.24 / height), **look)
        return image_bytes(figure, file_format)


def _joined(operators: Sequence[OperatorCost]) -> list[tuple[str, str, float, float, str]]:
    """Name, phase, time and achieved share of operators; those that are alike in all of that as one with its number."""
    found: dict[tuple[str, str, float, str], tuple[int, float]] = {}
    for one in operators:
        key = (one.name, one.phase, round(one.achieved, 6), "link" if one.bound in ("network", "latency") else "memory")
        count, seconds = found.get(key, (0, 0.0))
        found[key] = (count + 1, seconds + one.seconds)
    return [
        (name if count == 1 else f"{name} (x {count})", phase, seconds, share, link)
        for (name, phase, share, link), (count, seconds) in found.items()
    ]


def _area(seconds: float, costs: LayerCosts) -> float:
    """Area of a marker [points squared], the longest operator's the largest."""
    longest = max(one.seconds for one in costs.operators)
    return 18.0 + 260.0 * seconds / longest


def _roofs(axes: Axes, costs: LayerCosts, working: Sequence[OperatorCost]) -> None:
    ridge = costs.peak / costs.bandwidth
    low = min([ridge / 4.0, *(one.intensity / 1.6 for one in working)])
    high = max([ridge * 4.0, *(one.intensity * 1.6 for one in working)])
    for rate, bandwidth, line, colour, name in (
        (costs.peak, costs.bandwidth, "-", "#444444", "datasheet"),
        (costs.sustained, costs.reached, "--", GREY, "in training"),
    ):
        rates = [tflops(low * bandwidth), tflops(rate), tflops(rate)]
        label = f"{name}: {tflops(rate):,.4g} TFLOP/s, {format_bandwidth(bandwidth)}"
        axes.plot([low, rate / bandwidth, high], rates, color=colour, linestyle=line, linewidth=1.5, label=label)
    for kind, marker in _MARKERS.items():
        for phase, colour in _PHASES.items():
            some = [one for one in working if (one.phase, one.kind) == (phase, kind)]
            if not some:
                continue
            x, y = [one.intensity for one in some], [tflops(one.rate) for one in some]
            look: dict[str, Any] = {"marker": marker, "color": colour, "alpha": 0.75}
            axes.scatter(x, y, s=[_area(one.seconds, costs) for one in some], zorder=4, **look, **_EDGE)
            named = "products" if kind == "gemm" else kind
            axes.scatter([], [], s=45, label=f"{named}, {phase}", **look, **_EDGE)
    axes.set_xscale("log", base=10)
    axes.set_yscale("log", base=10)
    slowest = min([tflops(costs.peak) / 4.0, *(tflops(one.rate) / 1.6 for one in working)])
    axes.set_ylim(slowest, tflops(costs.peak) * 1.2)
    axes.set_xlim(low, high)
    axes.set_title("Operators with arithmetic")
    axes.set_xlabel("arithmetic intensity [FLOP/byte]")
    axes.set_ylabel("TFLOP/s")
    plain_log_ticks(axes)
    _plain_x(axes)


def _plain_x(axes: Axes) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter  # noqa: PLC0415

    low, high = axes.get_xlim()
    subs = (1.0, 2.0, 5.0) if math.log10(high / low) < 2.5 else (1.0,)
    axes.xaxis.set_major_locator(LogLocator(base=10, subs=subs, numticks=10))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())


def _labels(axes: Axes, working: Sequence[OperatorCost], step: float) -> None:
    """Names in a column right of the axes, in the order of the rates, each with a thin line to its marker."""
    bottom, top = axes.get_ylim()
    heights = [math.log(tflops(one.rate) / bottom) / math.log(top / bottom) for one in working]
    order = sorted(range(len(working)), key=lambda index: (-round(heights[index], 3), -working[index].intensity))
    for index, place in zip(order, _spread([heights[index] for index in order], step), strict=True):
        one = working[index]
        axes.annotate(
            one.name,
            xy=(one.intensity, tflops(one.rate)),
            xytext=(1.05, place),
            textcoords="axes fraction",
            fontsize=8,
            va="center",
            color=_PHASES[one.phase],
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": "#b5b5b5", "linewidth": 0.6, "relpos": (0.0, 0.5), "shrinkB": 0},
            zorder=3,
        )


def _spread(wanted: Sequence[float], step: float) -> list[float]:
    """Places, falling, at least a step apart and as near to the wanted ones as that allows; within 0 and 1.

    >>> [round(place, 2) for place in _spread([0.9, 0.9, 0.2], 0.1)]
    [0.95, 0.85, 0.2]
    """
    # Neighbours that are too near become one block about their mean (pool adjacent violators).
    blocks: list[tuple[float, int]] = []
    for index, place in enumerate(wanted):
        blocks.append((place + index * step, 1))
        while len(blocks) > 1 and blocks[-1][0] > blocks[-2][0]:
            (last, n), (before, m) = blocks.pop(), blocks.pop()
            blocks.append(((last * n + before * m) / (n + m), n + m))
    shifted = [mean for mean, count in blocks for _ in range(count)]
    top, bottom = 1.0, (len(wanted) - 1) * step
    return [min(max(place, bottom), top) - index * step for index, place in enumerate(shifted)]


def _bars(axes: Axes, moving: Sequence[tuple[str, str, float, float, str]], costs: LayerCosts) -> None:
    """A line for each operator, forward on top; the marker at the share it reaches."""
    for row, (_, phase, seconds, share, link) in enumerate(moving):
        axes.plot([0, 100 * share], [row, row], color="#c9c9c9", linewidth=1.0, zorder=2)
        look: dict[str, Any] = {"marker": "s" if link == "link" else "o", "color": _PHASES[phase], "alpha": 0.8}
        axes.scatter([100 * share], [row], s=_area(seconds, costs), zorder=3, **look, **_EDGE)
    axes.axvline(100, color="#444444", linewidth=1.2)
    axes.set_yticks(range(len(moving)), [name for name, *_ in moving], fontsize=8)
    for label, (_, phase, *_rest) in zip(axes.get_yticklabels(), moving, strict=True):
        label.set_color(_PHASES[phase])
    axes.set_ylim(len(moving) - 0.4, -0.9)
    axes.set_xlim(0, max([105.0, *(112.0 * share for _, _, _, share, _ in moving)]))
    axes.grid(visible=False, axis="y")
    axes.set_title("Operators bound by bandwidth")
    axes.set_xlabel("share of datasheet bandwidth [%]")
