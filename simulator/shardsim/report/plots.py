"""Plots as PNG or SVG: the same table gives the same bytes."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardsim.errors import InputError, Problem
from shardsim.report.collective import collectives_title, ring_bandwidth, ring_seconds
from shardsim.units import gigabytes_per_second, tflops
from shardsim.values.scaling import ScalingTable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from shardsim.program.ask import CollectiveAnswer
    from shardsim.validate.table import ErrorSummary, ValidationRow, ValidationTable

BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#8a8a8a"
"""From the palette of Okabe and Ito (2008), which readers with any colour vision can tell apart."""
GROUP_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
GROUP_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_FORMATS = {".png": "png", ".svg": "svg"}
STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#444444",
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.grid": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.7,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "lines.markersize": 6,
    "svg.hashsalt": "shardsim",
    "svg.fonttype": "path",
}
_PNG_DPI = 160
BAND = 0.10


def plot_format(path: Path, option: str = "--plot") -> str:
    """Tell the format from a file's name.

    Parameters
    ----------
    path : Path
    option : str
        Name for the message.

    Returns
    -------
    str
        ``png`` or ``svg``.

    Raises
    ------
    InputError
        Neither of the two.

    Examples
    --------
    >>> plot_format(Path("scaling.svg"))
    'svg'
    """
    found = _FORMATS.get(path.suffix.lower())
    if found is None:
        what = f"{path.name or str(path)!r} does not end in .png or .svg"
        raise InputError(Problem(what, option, "such as scaling.png"))
    return found


def scaling_plot(table: ScalingTable, file_format: str) -> bytes:
    """Draw a scaling study: aggregate FLOP/s against the ideal line, and efficiency, with measured points overlaid.

    Parameters
    ----------
    table : ScalingTable
        With at least one predicted point.
    file_format : {"png", "svg"}

    Returns
    -------
    bytes
        The file.
    """
    from matplotlib import style  # noqa: PLC0415  # costs half a second: only where something is drawn

    with style.context(["default", STYLE]):
        figure = new_figure(9.0, 4.1)
        left, right = figure.subplots(1, 2)
        figure.suptitle(f"{table.title}{_model_title(table)}", x=0.012, ha="left", fontsize=11.5, fontweight="bold")
        _throughput(left, table)
        _efficiency(right, table)
        figure.text(0.012, 0.012, f"Efficiency: {table.definition}.", fontsize=8, color="#555555")
        figure.tight_layout(rect=(0, 0.035, 1, 0.97), w_pad=2.5)
        return image_bytes(figure, file_format)


def validation_scatter(table: ValidationTable, file_format: str) -> bytes:
    """Draw predicted against measured figures, by source or else model, with a band of 10 % about the diagonal.

    Parameters
    ----------
    table : ValidationTable
        With at least one predicted row.
    file_format : {"png", "svg"}

    Returns
    -------
    bytes
        The file.
    """
    from matplotlib import style  # noqa: PLC0415

    with style.context(["default", STYLE]):
        figure = new_figure(6.4, 5.9)
        axes = figure.subplots()
        _scatter(axes, table)
        figure.tight_layout()
        return image_bytes(figure, file_format)


def collectives_plot(answers: Sequence[CollectiveAnswer], repeat: int, file_format: str) -> bytes:
    """Draw time and bus bandwidth of collectives over the size of the group, one colour for each cluster.

    Parameters
    ----------
    answers : sequence of CollectiveAnswer
        Of the same collective and size; at least one group has more than one member.
    repeat : int
        How many in a row (-).
    file_format : {"png", "svg"}

    Returns
    -------
    bytes
        The file.
    """
    from matplotlib import style  # noqa: PLC0415

    by_cluster: dict[str, list[CollectiveAnswer]] = {}
    for answer in sorted(answers, key=lambda answer: answer.shape.ranks):
        if answer.shape.ranks > 1:
            by_cluster.setdefault(answer.cluster.name, []).append(answer)
    with style.context(["default", STYLE]):
        figure = new_figure(9.6, 5.4)
        left, right = figure.subplots(1, 2)
        figure.suptitle(collectives_title(answers, repeat), x=0.012, ha="left", fontsize=11.5, fontweight="bold")
        for index, group in enumerate(by_cluster.values()):
            _collective_lines(left, right, group, repeat, index % len(GROUP_COLOURS))
        for axes in (left, right):
            _ranks_axis(axes, sorted({int(answer.shape.ranks) for group in by_cluster.values() for answer in group}))
            plain_log_ticks(axes, fine=3.0)
        left.set_title("Time")
        left.set_ylabel("ms, all in a row" if repeat > 1 else "ms")
        right.set_title("Bus bandwidth")
        right.set_ylabel("GB/s")
        handles, names = left.get_legend_handles_labels()
        figure.legend(handles, names, loc="lower left", ncols=2, fontsize=8, bbox_to_anchor=(0, 0.045))
        note = "Filled: inside one NVLink domain; hollow: beyond. Thin: a ring at the datasheet bandwidth, no latency."
        figure.text(0.012, 0.012, note, fontsize=8, color="#555555")
        rows = (len(by_cluster) + 1) // 2
        figure.tight_layout(rect=(0, 0.06 + 0.036 * rows, 1, 0.99), w_pad=2.5)
        return image_bytes(figure, file_format)


def _collective_lines(left: Axes, right: Axes, group: Sequence[CollectiveAnswer], repeat: int, style: int) -> None:
    """Draw one cluster into both panels."""
    colour, ranks = GROUP_COLOURS[style], [int(answer.shape.ranks) for answer in group]
    rings = [ring_seconds(answer) for answer in group]
    panels = (
        (left, [1e3 * repeat * answer.seconds for answer in group], [1e3 * repeat * (ring or 0.0) for ring in rings]),
        (
            right,
            [gigabytes_per_second(answer.bus_bandwidth) for answer in group],
            [gigabytes_per_second(ring_bandwidth(answer)) for answer in group],
        ),
    )
    beyond = [index for index, answer in enumerate(group) if answer.shape.domains > 1]
    for axes, values, limits in panels:
        look: dict[str, Any] = {"color": colour, "marker": GROUP_MARKERS[style], "markersize": 5.5}
        axes.plot(ranks, values, label=_link_label(group[0]), **look)
        axes.plot(
            [ranks[index] for index in beyond],
            [values[index] for index in beyond],
            linestyle="none",
            markerfacecolor="white",
            **look,
        )
        if None not in rings:
            axes.plot(ranks, limits, color=colour, linewidth=0.7, linestyle=(0, (4, 2)))


def _link_label(answer: CollectiveAnswer) -> str:
    """Name a cluster with its bandwidths; NVLink as its makers count it, both directions."""
    cluster = answer.cluster
    node = f"{gigabytes_per_second(cluster.nic.bandwidth * cluster.nics_per_node):,.4g} GB/s a node"
    if cluster.gpus_per_domain == 1:
        return f"{cluster.name}: no NVLink, {node} of one GPU"
    nvlink = f"NVLink 2 x {gigabytes_per_second(cluster.nvlink.bandwidth):,.4g} GB/s among {cluster.gpus_per_domain}"
    return f"{cluster.name}: {nvlink}, {node}"


def _ranks_axis(axes: Axes, ranks: Sequence[int]) -> None:
    from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator  # noqa: PLC0415

    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=10)
    axes.xaxis.set_major_locator(FixedLocator(ranks))
    axes.xaxis.set_major_formatter(FixedFormatter([f"{count:,}" for count in ranks]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("ranks")


def new_figure(width: float, height: float) -> Figure:
    """Make a figure that belongs to no window and no global state."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    return figure


def image_bytes(figure: Figure, file_format: str) -> bytes:
    """Write a figure as a file of the given format, the same figure always as the same bytes."""
    buffer = io.BytesIO()
    # Neither date nor version of the drawing library, so that the same table gives the same file.
    metadata: dict[str, Any] = {"Software": None} if file_format == "png" else {"Date": None, "Creator": "shardsim"}
    figure.savefig(buffer, format=file_format, dpi=_PNG_DPI, metadata=metadata)
    return buffer.getvalue()


def _model_title(table: ScalingTable) -> str:
    models = list(dict.fromkeys(point.model for point in table.points))
    return f": {models[0]}" if len(models) == 1 else f": {models[0]} to {models[-1]}"


def _throughput(axes: Axes, table: ScalingTable) -> None:
    reference = table.reference_flops or 0.0
    points = [point for point in table.points if point.flops_per_gpu is not None]
    rates = [tflops((point.flops_per_gpu or 0.0) * point.gpus) for point in points]
    ideal = [tflops(reference * point.gpus) for point in points]
    measured = [
        (point.gpus, tflops(reference * point.gpus * point.efficiency))
        for point in table.measured
        if point.efficiency is not None
    ]
    scale, unit = _rate_unit(max(rates + ideal))
    counts = [point.gpus for point in points]
    axes.plot(counts, [rate * scale for rate in ideal], color=GREY, linestyle="--", linewidth=1.3, label="ideal")
    axes.plot(counts, [rate * scale for rate in rates], color=BLUE, marker="o", label="predicted")
    if measured:
        axes.plot(
            [gpus for gpus, _ in measured],
            [rate * scale for _, rate in measured],
            color=ORANGE,
            marker="D",
            linestyle="none",
            markerfacecolor="none",
            markeredgewidth=1.6,
            label="measured efficiency × reference",
        )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=10)
    axes.set_title("Throughput")
    axes.set_ylabel(f"model {unit}, all GPUs")
    _count_axis(axes, table)
    plain_log_ticks(axes)
    axes.legend(loc="upper left")


def _efficiency(axes: Axes, table: ScalingTable) -> None:
    points = [point for point in table.points if point.efficiency is not None]
    measured = [point for point in table.measured if point.efficiency is not None]
    predicted = [100 * (point.efficiency or 0.0) for point in points]
    published = [100 * (point.efficiency or 0.0) for point in measured]
    counts = [point.gpus for point in points]
    axes.axhline(100, color=GREY, linestyle="--", linewidth=1.3, label="ideal")
    axes.plot(counts, predicted, color=BLUE, marker="o", label="predicted")
    if measured:
        axes.plot(
            [point.gpus for point in measured],
            published,
            color=ORANGE,
            marker="D",
            linestyle="none",
            markerfacecolor="none",
            markeredgewidth=1.6,
            label="measured",
        )
    axes.set_xscale("log", base=2)
    axes.set_ylim(0, max(112.0, 1.12 * max(predicted + published)))
    axes.set_title("Efficiency")
    axes.set_ylabel("model FLOP/s per GPU, % of reference")
    _count_axis(axes, table)
    at = {point.gpus: 100 * (point.efficiency or 0.0) for point in measured}
    for gpus, value in zip(counts, predicted, strict=True):
        _label(axes, gpus, value, BLUE, above=value >= at.get(gpus, -math.inf))
    for gpus, value in at.items():
        own = dict(zip(counts, predicted, strict=True)).get(gpus, math.inf)
        _label(axes, gpus, value, ORANGE, above=value > own)
    axes.legend(loc="lower left")


def _label(axes: Axes, gpus: int, value: float, colour: str, *, above: bool) -> None:
    axes.annotate(
        f"{value:.0f}",
        (gpus, value),
        xytext=(0, 7 if above else -7),
        textcoords="offset points",
        ha="center",
        va="bottom" if above else "top",
        fontsize=8.5,
        color=colour,
    )


def _count_axis(axes: Axes, table: ScalingTable) -> None:
    """Mark every GPU count, with the model below it where models differ."""
    from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator  # noqa: PLC0415

    counts = [point.gpus for point in table.points]
    models = _without_common_start([point.model for point in table.points])
    axes.xaxis.set_major_locator(FixedLocator(counts))
    axes.xaxis.set_major_formatter(
        FixedFormatter([f"{count:,}\n{model}".rstrip() for count, model in zip(counts, models, strict=True)])
    )
    axes.xaxis.set_minor_locator(NullLocator())
    if len(counts) == 1 or counts[-1] == counts[0]:
        axes.set_xlim(counts[0] / 2, counts[0] * 2)
    else:
        margin = (counts[-1] / counts[0]) ** 0.06
        axes.set_xlim(counts[0] / margin, counts[-1] * margin)
    axes.set_xlabel("GPUs")


def _without_common_start(names: Sequence[str]) -> list[str]:
    """Names without the words they all begin with; empty text where all are the same.

    >>> _without_common_start(["megatron-1.2b", "megatron-2.5b"])
    ['1.2b', '2.5b']
    """
    if len(set(names)) == 1:
        return [""] * len(names)
    words = [name.split("-") for name in names]
    same = 0
    while all(len(parts) > same + 1 and parts[same] == words[0][same] for parts in words):
        same += 1
    return ["-".join(parts[same:]) for parts in words]


def plain_log_ticks(axes: Axes, fine: float = 2.5) -> None:
    """Write 20, 50, 100 in place of powers of ten, over at most so many decades; beyond them only 10, 100."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter  # noqa: PLC0415

    low, high = axes.get_ylim()
    subs = (1.0, 2.0, 5.0) if math.log10(high / low) < fine else (1.0,)
    axes.yaxis.set_major_locator(LogLocator(base=10, subs=subs, numticks=8))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _rate_unit(largest_tflops: float) -> tuple[float, str]:
    for factor, unit in ((1e-6, "EFLOP/s"), (1e-3, "PFLOP/s")):
        if largest_tflops * factor >= 1:
            return factor, unit
    return 1.0, "TFLOP/s"


def _scatter(axes: Axes, table: ValidationTable) -> None:
    rows = [row for row in table.rows if row.predicted is not None and row.measured is not None]
    times = [time for row in rows for time in (row.measured or 1.0, row.predicted or 1.0)]
    low, high = min(times) / 1.4, max(times) * 1.4
    line = [low, high]
    axes.fill_between(
        line,
        [x * (1 - BAND) for x in line],
        [x * (1 + BAND) for x in line],
        color="#dddddd",
        linewidth=0,
        label=f"±{100 * BAND:.0f} %",
        zorder=1,
    )
    axes.plot(line, line, color=GREY, linestyle="--", linewidth=1.2, label="predicted = measured", zorder=2)
    sources = _largest([_origin(row) for row in rows], len(GROUP_COLOURS) - 1)
    for index, source in enumerate([*sources, None]):
        members = [row for row in rows if _in_group(_origin(row), source, sources)]
        if not members:
            continue
        name = "other sources" if source is None else source
        axes.plot(
            [row.measured or 0.0 for row in members],
            [row.predicted or 0.0 for row in members],
            linestyle="none",
            marker=GROUP_MARKERS[index],
            color=GROUP_COLOURS[index],
            markersize=5.5,
            markeredgecolor="white",
            markeredgewidth=0.5,
            alpha=0.9,
            label=f"{_shortened(name)} ({len(members)})",
            zorder=3,
        )
    axes.set_xscale("log", base=10)
    axes.set_yscale("log", base=10)
    axes.set_xlim(low, high)
    axes.set_ylim(low, high)
    axes.set_aspect("equal")
    axes.set_xlabel(f"measured {table.quantity} [{table.unit}]")
    axes.set_ylabel(f"predicted {table.quantity} [{table.unit}]")
    log_ticks(axes, low, high, lambda value: f"{value:,.10g}", 8)
    axes.legend(loc="upper left", fontsize=8, handletextpad=0.4)
    overall = table.overall
    axes.set_title(f"{overall.predicted} of {overall.rows} measured {table.noun} predicted")
    write_errors(axes, overall)


def _origin(row: ValidationRow) -> str:
    return row.source or row.model or "not stated"


def write_errors(axes: Axes, overall: ErrorSummary) -> None:
    """Write median, p90 and bias into the lower right corner."""
    axes.text(
        0.985,
        0.02,
        f"error: median {100 * (overall.median or 0):.1f} %, p90 {100 * (overall.p90 or 0):.1f} %, "
        f"bias {100 * (overall.bias or 0):+.1f} %",
        transform=axes.transAxes,
        ha="right",
        fontsize=8.5,
        color="#333333",
    )


def log_ticks(axes: Axes, low: float, high: float, text: Callable[[float], str], most: int) -> None:
    """Give both axes, logarithmic from ``low`` to ``high``, at most so many labels each."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter  # noqa: PLC0415

    subs = (1.0, 2.0, 5.0) if math.log10(high / low) < 2.5 else (1.0,)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(base=10, subs=subs, numticks=most))
        axis.set_major_formatter(FuncFormatter(lambda value, _: text(value)))
        axis.set_minor_formatter(NullFormatter())


def _largest(names: Iterable[str], most: int) -> list[str]:
    """The names that occur most often, at most so many, in order of frequency and then of name."""
    counts: dict[str, int] = {}
    for name in names:
        counts[name] = counts.get(name, 0) + 1
    return sorted(counts, key=lambda name: (-counts[name], name))[:most]


def _in_group(source: str, group: str | None, named: Sequence[str]) -> bool:
    return source not in named if group is None else source == group


def _shortened(name: str, most: int = 56) -> str:
    return name if len(name) <= most else f"{name[: most - 1].rstrip()}…"
