"""A layout drawn on its cluster: which GPUs talk to each other along each axis, and how much over which link."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

import numpy as np

from shardsim.program.traffic import Traffic, mean_of_stages
from shardsim.report.plots import STYLE, image_bytes, new_figure
from shardsim.report.text import layout_text
from shardsim.report.traffic import EXPOSED_AS, groups_of_traffic
from shardsim.topology.placement import Conversation, GroupAxis, axis_spans, group, groups
from shardsim.units import format_time, gib
from shardsim.values.results import Prediction
from shardsim.values.training import TrainingRun

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

_NAMES = {
    "tp": "TP, a layer's parts",
    "cp": "CP, a sequence's parts",
    "cp_inner": "CP, all-to-all",
    "cp_outer": "CP, ring",
    "etp": "ETP, an expert's parts",
    "ep": "EP, a layer's experts",
    "dp": "DP, the same parameters",
    "edp": "expert DP, the same experts",
    "pp": "PP, stages",
}
"""Axes that are drawn, in this order."""
_FIRST, _SECOND, _OTHERS, _NOBODY = range(4)
_COLOURS = ("#0072B2", "#7FC3EE", "#dde2e7", "#ffffff")
_INK = ("white", "#1a1a1a")
_LINKS = {
    "nvlink": ("#009E73", "NVLink"),
    "nic": ("#E69F00", "adapter, within a leaf"),
    "leaf": ("#D55E00", "adapter, across leaves"),
}
_OUTLINED = 160
"""Columns up to which GPUs are drawn apart (-)."""
_MOST_LEAVES = 40
_MOST_SHAPES = 256
"""GPUs of a strip up to which an SVG has a shape for each (-): beyond, it holds them as a picture."""
_ROW, _TITLE = 0.86, 1.35


def layout_drawing(prediction: Prediction, rows: Sequence[Traffic], file_format: str) -> bytes:
    """Draw a layout on its cluster: a strip of GPUs for each axis, and beside it what a GPU sends along it.

    Parameters
    ----------
    prediction : Prediction
        Of the same run.
    rows : sequence of Traffic
        Of every stage.
    file_format : {"png", "svg"}

    Returns
    -------
    bytes
        The file; the same bytes for the same run. A column is a node. Strips show the nodes of the first stage, the
        group of its first GPU in one colour and the next group in another; that of the pipeline shows all nodes, by
        stage.
    """
    import matplotlib as mpl  # noqa: PLC0415  # costs half a second: only where something is drawn

    run = prediction.run
    lies, sent, alone = groups_of_traffic(run), *_by_axis(rows)
    shown = [axis for axis in _NAMES if axis in lies and axis in sent]
    with mpl.rc_context(STYLE):
        figure = new_figure(10.5, _TITLE + _ROW * len(shown))
        figure.set_layout_engine("constrained", hspace=0.06)
        grid = figure.subplots(len(shown), 2, squeeze=False, width_ratios=(2.5, 1.0))
        most = max((sum(sizes.values()) for sizes in sent.values()), default=1.0)
        told: set[str] = set()
        for (left, right), axis in zip(grid, shown, strict=True):
            _stages(left, run) if axis == "pp" else _strip(left, run, cast(GroupAxis, axis))
            left.set_title(_title(axis, lies[axis]), fontsize=8.5, fontweight="normal", pad=3)
            _bar(right, sent[axis], most)
            right.set_title(_times(prediction, axis, alone, told), fontsize=8.5, fontweight="normal", pad=3)
        for _, right in grid[:-1]:
            right.tick_params(labelbottom=False)
        grid[-1][1].set_xlabel("GiB that the mean GPU sends an iteration", fontsize=8.5)
        _labels(figure, prediction)
        return image_bytes(figure, file_format)


def _by_axis(rows: Sequence[Traffic]) -> tuple[dict[str, dict[str, float]], dict[str, float]]:
    """GiB by axis and by how far it goes, and seconds by axis."""
    sent: dict[str, dict[str, float]] = {}
    alone: dict[str, float] = {}
    for row in mean_of_stages(rows):
        sizes = sent.setdefault(row.axis, dict.fromkeys(_LINKS, 0.0))
        sizes["nvlink"] += gib(row.sent["nvlink"])
        sizes["nic"] += gib(row.sent["nic"] - row.sent["leaf"])
        sizes["leaf"] += gib(row.sent["leaf"])
        alone[row.axis] = alone.get(row.axis, 0.0) + row.seconds
    return sent, alone


def _title(axis: str, lies: Sequence[Conversation]) -> str:
    lie = lies[0]
    nodes = f"{lie.nodes} node{'s' * (lie.nodes != 1)}, {lie.leaves} lea{'ves' if lie.leaves != 1 else 'f'}"
    return f"{_NAMES[axis]}: {sum(one.groups for one in lies):,} groups of {lie.ranks} on {nodes}"


def _times(prediction: Prediction, axis: str, alone: Mapping[str, float], told: set[str]) -> str:
    """Seconds of an axis; what is exposed of several axes together, with the first of them."""
    counted = EXPOSED_AS.get(axis, axis)
    text = f"{format_time(alone[axis])} of transfers"
    if counted in told:
        return f"{text}, counted with {counted.upper()}"
    text += f", {format_time(prediction.exposed_s[counted])} exposed"
    told.add(counted)
    return text


def _strip(axes: Axes, run: TrainingRun, axis: GroupAxis) -> None:
    from matplotlib.colors import ListedColormap  # noqa: PLC0415

    members, per_node = _members(run, "dp_cp" if axis == "dp" else axis), run.cluster.gpus_per_node
    columns = -(-len(members) // per_node)
    cells = np.full(columns * per_node, _NOBODY)
    cells[: len(members)] = members
    gap = 0.6 if columns <= _OUTLINED else 0.0
    axes.pcolormesh(
        cells.reshape(columns, per_node).T,
        cmap=ListedColormap(_COLOURS), vmin=-0.5, vmax=3.5, edgecolors="white", linewidth=gap,
        rasterized=cells.size > _MOST_SHAPES,
    )  # fmt: skip
    axes.set_ylim(per_node, 0)
    _frame(axes, run, columns)


def _members(run: TrainingRun, axis: GroupAxis) -> NDArray[np.int64]:
    """What each GPU of the first stage is: of the first group, of the second, of another."""
    span = axis_spans(run.layout)["pp"]
    ranks = np.arange(int(run.layout.gpus))
    shown = ranks[ranks // int(span.stride) % int(span.count) == 0]
    kind = np.full(len(shown), _OTHERS)
    kind[np.isin(shown, group(axis, 0, run.layout))] = _FIRST
    inside = set(shown.tolist())
    second = next((one for one in groups(axis, run.layout)[1:] if one[0] in inside), ())
    kind[np.isin(shown, second)] = _SECOND
    return kind


def _stages(axes: Axes, run: TrainingRun) -> None:
    """Nodes of all stages; of a stage whose ranks are not neighbours, the first of its stretches has its number."""
    span, per_node = axis_spans(run.layout)["pp"], run.cluster.gpus_per_node
    width, count = int(span.stride) / per_node, int(span.count)
    columns = -(-int(run.layout.gpus) // per_node)
    for index in range(round(columns / width)):
        stage = index % count
        axes.barh(0.5, width, left=index * width, height=1.0, color=_COLOURS[stage % 2], edgecolor="white", lw=0.6)
        if index < count:
            ink = _INK[stage % 2]
            axes.text((index + 0.5) * width, 0.5, str(stage), ha="center", va="center", fontsize=7, color=ink)
    axes.set_ylim(0, 1)
    _frame(axes, run, columns)


def _frame(axes: Axes, run: TrainingRun, columns: int) -> None:
    leaf = run.cluster.nodes_per_leaf
    if columns / leaf <= _MOST_LEAVES:
        for place in range(leaf, columns, leaf):
            axes.axvline(place, color="#333333", linewidth=0.9)
    axes.set(xticks=[], yticks=[], xlim=(0, columns))
    axes.set_ylabel(f"{columns:,}\nnode{'s' * (columns != 1)}", rotation=0, ha="right", va="center", fontsize=8.5)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)


def _bar(axes: Axes, sizes: Mapping[str, float], most: float) -> None:
    left = 0.0
    for link, size in sizes.items():
        axes.barh(0, size, left=left, height=0.6, color=_LINKS[link][0])
        left += size
    axes.annotate(f" {left:,.3g}", (left, 0), va="center", fontsize=8.5)
    axes.set(xlim=(0, most * 1.15), ylim=(-0.5, 0.5), yticks=[])
    axes.grid(visible=False)
    axes.tick_params(labelsize=8)
    axes.spines["left"].set_visible(False)


def _labels(figure: Figure, prediction: Prediction) -> None:
    from matplotlib.patches import Patch  # noqa: PLC0415

    run = prediction.run
    what = f"{run.model.name} on {run.layout.gpus:,} GPUs of {run.cluster.name}, {format_time(prediction.iteration_s)}"
    figure.suptitle(f"{what} an iteration\n{layout_text(run.layout)}", x=0.01, ha="left", fontsize=9.5)
    handles = [Patch(color=_COLOURS[_FIRST], label="a group"), Patch(color=_COLOURS[_SECOND], label="the next")]
    handles += [Patch(color=colour, label=name) for colour, name in _LINKS.values()]
    leaf = f"a line parts leaves of {run.cluster.nodes_per_leaf} nodes"
    title = f"A column is a node of {run.cluster.gpus_per_node} GPUs, of the first stage but for PP; {leaf}."
    figure.legend(handles=handles, loc="outside lower left", ncols=5, title=title, alignment="left", fontsize=8.5)
