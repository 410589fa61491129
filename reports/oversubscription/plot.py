"""Draws what fewer up-links add to an iteration."""

from __future__ import annotations

import csv
from pathlib import Path

from matplotlib import rcParams
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

rcParams.update(
    {
        "font.size": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.axisbelow": True,
        "legend.frameon": False,
        "svg.hashsalt": "shardsim",
    }
)
COLOURS = ("#0072B2", "#E69F00", "#009E73")
SHOWN = ("dense, replicas side by side", "dense, stages side by side", "MoE, 8 nodes of experts")

with Path("iterations.csv").open(newline="") as stream:
    ROWS = list(csv.DictReader(stream))

figure = Figure(figsize=(7.6, 3.8), layout="constrained")
FigureCanvasAgg(figure)
axes = figure.add_subplot()
for run, colour in zip(SHOWN, COLOURS, strict=True):
    for fabric, line in (("rails, 32 nodes", "--"), ("plain, 4 nodes", "-")):
        own = [row for row in ROWS if (row["run"], row["fabric"]) == (run, fabric)]
        first = float(own[0]["iteration_s"])
        slower = [float(row["iteration_s"]) / first for row in own]
        times = [int(row["oversubscription"]) for row in own]
        axes.plot(times, slower, line, color=colour, marker="o", ms=3.5, lw=1.2, label=f"{run}; {fabric} a leaf")
axes.set(xlabel="oversubscription of the up-links, 1:n", ylabel="iteration over that at 1:1", ylim=(0.9, None))
axes.legend(fontsize=8)
for kind in ("png", "svg"):
    figure.savefig(f"slower.{kind}", dpi=150, metadata={"Software": None} if kind == "png" else {"Date": None})
