"""Draws one layer under four designs to one scale (timeline) and where the time goes at TP 8 (designs)."""

from __future__ import annotations

from common import CLUSTERS, DESIGNS, MODELS, SHOWN, case, executed, read, tasks_of
from matplotlib import rcParams
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch

rcParams.update(
    {
        "font.size": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.titlesize": 9.5,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "axes.axisbelow": True,
        "legend.frameon": False,
        "svg.hashsalt": "shardsim",
    }
)
COLOURS = {
    "gemm": ("product", "#0072B2", ""),
    "attention": ("attention", "#56B4E9", ""),
    "memory-bound": ("norm, residual, activation", "#BBBBBB", ""),
    "reduce": ("all-reduce", "#D55E00", ""),
    "gather": ("all-gather", "#E69F00", ""),
    "again": ("all-gather of the input again", "#E69F00", "////"),
    "scatter": ("reduce-scatter", "#009E73", ""),
}
DRAWN = ("ar-behind", "sp-behind", "sp-ring", "block-ring")
STACK = (
    ("work", "kernels, whole", "#0072B2"),
    ("divided_s", "products in parts", "#56B4E9"),
    ("interference_s", "slowed by collectives", "#BBBBBB"),
    ("exposed_s", "waiting for the network", "#D55E00"),
)


def save(figure: Figure, name: str) -> None:
    """Write both formats, without a date."""
    for kind in ("png", "svg"):
        metadata = {"Software": None} if kind == "png" else {"Date": None}
        figure.savefig(f"{name}.{kind}", dpi=150, metadata=metadata)


def kind_of(name: str, category: str) -> str:
    """What a task is drawn as."""
    if category != "tp":
        return category
    if name.endswith("input gather"):
        return "again"
    return name.replace("-", " ").rsplit(maxsplit=1)[-1]


def timeline() -> None:
    """Draw the two streams of a layer under each design, backward pass behind forward pass."""
    one = case(*SHOWN)
    figure = Figure(figsize=(11.0, 6.6), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, name in zip(figure.subplots(len(DRAWN), 1, sharex=True), DRAWN, strict=True):
        ends = []
        for kind in ("F", "B"):
            begin = sum(ends)
            execution = executed(one, {kind: tasks_of(one, DESIGNS[name], kind)}, timeline=True)
            spans = execution.timeline
            for label, start, finish in zip(spans.label, spans.start, spans.finish, strict=True):
                what, stream, category = spans.labels[label]
                _, colour, hatch = COLOURS[kind_of(what, category)]
                axes.barh(
                    0 if stream == "compute" else 1,
                    1e3 * (finish - start),
                    left=1e3 * (begin + start),
                    height=0.8,
                    color=colour,
                    hatch=hatch,
                    edgecolor="white",
                    lw=0.4,
                )
            ends.append(float(execution.iteration_s))
            axes.text(1e3 * begin, -0.62, {"F": " forward", "B": " backward"}[kind], fontsize=8, color="#666666")
        axes.axvline(1e3 * ends[0], color="black", lw=1.0)
        axes.set_title(f"{DESIGNS[name].title}: {1e3 * ends[0]:.2f} + {1e3 * ends[1]:.2f} ms")
        axes.set(yticks=(0, 1), yticklabels=("compute", "tp"), ylim=(1.5, -1.1))
    axes.set_xlabel("ms")
    shown = [Patch(facecolor=c, hatch=hatch, edgecolor="white", label=label) for label, c, hatch in COLOURS.values()]
    figure.legend(handles=shown, loc="outside upper center", ncols=4)
    save(figure, "timeline")


def designs() -> None:
    """Draw where the time of a layer goes at TP 8."""
    rows = [row for row in read("layers.csv") if row["tp"] == 8]
    figure = Figure(figsize=(11.0, 9.0), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(len(CLUSTERS), len(MODELS), sharey=True)
    for cluster, line in zip(CLUSTERS, grid, strict=True):
        for model, axes in zip(MODELS, line, strict=True):
            for place, name in enumerate(DESIGNS):
                own = [row for row in rows if (row["model"], row["cluster"], row["design"]) == (model, cluster, name)]
                spent = {key: 1e3 * sum(row[key] for row in own) for key, _, _ in STACK[1:]}
                spent["divided_s"] = max(spent["divided_s"], 0.0)  # parts may have the better waves
                spent["work"] = 1e3 * sum(row["layer_s"] for row in own) - sum(spent.values())
                left = 0.0
                for key, _, colour in STACK:
                    axes.barh(place, spent[key], left=left, height=0.75, color=colour)
                    left += spent[key]
            axes.set_title(f"{model}, {cluster}")
            axes.set(yticks=range(len(DESIGNS)), yticklabels=[design.title for design in DESIGNS.values()])
            axes.set_ylim(len(DESIGNS) - 0.5, -0.5)
            axes.set_xlabel("ms a layer, forward and backward")
    figure.legend(handles=[Patch(color=c, label=label) for _, label, c in STACK], loc="outside upper center", ncols=4)
    save(figure, "designs")


timeline()
designs()
