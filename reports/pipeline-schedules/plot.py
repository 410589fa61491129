"""Draws time against memory (budgets), and each schedule on four stages pass by pass (timelines)."""

from __future__ import annotations

import csv
from pathlib import Path

from common import RUN, SCHEDULES
from matplotlib import rcParams
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch

import shardsim
from shardsim.values.results import PAIR, PASS_KINDS

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
GIB = 2.0**30
STYLES = {
    "gpipe": ("#999999", "o"),
    "1f1b": ("#000000", "s"),
    "interleaved, v = 4": ("#E69F00", "D"),
    "zb-h1": ("#56B4E9", "^"),
    "zb-h2": ("#56B4E9", "v"),
    "zb-v": ("#0072B2", "P"),
    "v-half": ("#0072B2", "X"),
    "v-min": ("#0072B2", "*"),
    "dualpipe": ("#D55E00", "<"),
    "dualpipev": ("#CC79A7", ">"),
}
KINDS = {"F": ("forward", "#0072B2"), "B": ("backward", "#E69F00"), "I": ("input gradient", "#D55E00")}
KINDS["W"] = ("weight gradient", "#009E73")
SMALL = RUN | {"pp": 4, "gpus": 32, "global_batch": 8, "model": "narayanan-39.1b", "seq": 2048}
SMALL |= {"embedding_as_layer": False, "loss_as_layer": False}


def save(figure: Figure, name: str) -> None:
    """Write both formats, without a date."""
    for kind in ("png", "svg"):
        metadata = {"Software": None} if kind == "png" else {"Date": None}
        figure.savefig(f"{name}.{kind}", dpi=150, metadata=metadata)


def budgets() -> None:
    """Draw the iteration time of every variant against the memory it needs."""
    with Path("schedules.csv").open(newline="") as stream:
        rows = [{k: v if k == "schedule" else float(v) for k, v in row.items()} for row in csv.DictReader(stream)]
    figure = Figure(figsize=(8.2, 5.0), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for name, (colour, marker) in STYLES.items():
        own = [row for row in rows if row["schedule"] == name]
        memory, seconds = [row["peak"] / GIB for row in own], [row["iteration_s"] for row in own]
        line = "--" if name in ("zb-h2", "dualpipe", "gpipe") else "-"
        axes.plot(memory, seconds, line, color=colour, marker=marker, lw=1.1, ms=5, label=name)
    capacity = rows[0]["capacity"] / GIB
    axes.axvline(capacity, color="#666666", lw=1)
    axes.annotate(" fits", (capacity, 0.98), xycoords=("data", "axes fraction"), ha="right", va="top", color="#666666")
    axes.set(xlabel="memory of the fullest stage, GiB", ylabel="iteration, s")
    axes.set_title("Each line: from everything recomputed (left) to nothing (right)")
    axes.legend(ncols=2)
    save(figure, "budgets")


def timelines() -> None:
    """Draw every schedule on four stages with eight micro-batches, to one scale."""
    figure = Figure(figsize=(10.0, 11.5), layout="constrained")
    FigureCanvasAgg(figure)
    all_axes = figure.subplots(len(SCHEDULES), 1, sharex=True)
    for axes, (name, keys) in zip(all_axes, SCHEDULES.items(), strict=True):
        prediction = shardsim.simulate(**(SMALL | keys), engine="listing", timeline=True)
        draw(axes, prediction)
        axes.set_title(f"{name}: {prediction.iteration_s * 1e3:.0f} ms, bubble {prediction.bubble_fraction:.0%}")
        axes.set(yticks=range(4), ylim=(3.5, -0.5))
    all_axes[-1].set_xlabel("ms")
    shown = [Patch(color=colour, label=label) for label, colour in KINDS.values()]
    shown.append(Patch(color="#BBBBBB", label="gradients, optimizer, parameters"))
    figure.legend(handles=shown, loc="outside upper center", ncols=5)
    figure.supylabel("stage")
    save(figure, "timelines")


def draw(axes, prediction) -> None:
    """Draw the passes of one timeline; of a pair the forward pass above, the backward pass below."""
    timeline = prediction.execution.timeline
    spans: dict[tuple, list[float]] = {}
    for row in range(len(timeline.start)):
        if timeline.labels[timeline.label[row]][1] == "dp" and timeline.kind[row] >= 0:
            continue
        kind = PASS_KINDS[timeline.kind[row]] if timeline.kind[row] >= 0 else "end"
        key = (timeline.stage[row], kind, timeline.microbatch[row], timeline.chunk[row])
        span = spans.setdefault(key, [timeline.start[row], timeline.finish[row]])
        span[0], span[1] = min(span[0], timeline.start[row]), max(span[1], timeline.finish[row])
    for (stage, kind, _, chunk), (start, finish) in spans.items():
        box = {"left": start * 1e3, "edgecolor": "white", "lw": 0.3, "alpha": 1.0 if chunk <= 0 else 0.62}
        width = (finish - start) * 1e3
        if kind == PAIR:
            axes.barh(stage - 0.2, width, height=0.4, color=KINDS["F"][1], **box)
            axes.barh(stage + 0.2, width, height=0.4, color=KINDS["B"][1], **box)
        else:
            axes.barh(stage, width, height=0.8, color=KINDS[kind][1] if kind in KINDS else "#BBBBBB", **box)


budgets()
timelines()
