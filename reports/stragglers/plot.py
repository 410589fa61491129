"""Draws what chance costs as the machine grows."""

from __future__ import annotations

import csv
from pathlib import Path

from matplotlib import rcParams
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "svg.hashsalt": "shardsim"})
STYLES = {"speed_spread": ("-", "o", "devices differ"), "jitter": ("--", "s", "passes jitter")}
COLOURS = {0.005: "#56B4E9", 0.01: "#0072B2", 0.02: "#D55E00"}

with Path("chance.csv").open(newline="") as stream:
    rows = list(csv.DictReader(stream))
figure = Figure(figsize=(6.4, 3.8), layout="constrained")
FigureCanvasAgg(figure)
axes = figure.add_subplot()
for name, value in dict.fromkeys((row["what"], float(row["value"])) for row in rows):
    line, marker, words = STYLES[name]
    own = [row for row in rows if row["what"] == name and float(row["value"]) == value]
    gpus, cost = [int(row["gpus"]) for row in own], [100 * float(row["cost"]) for row in own]
    axes.plot(gpus, cost, line, marker=marker, ms=4, color=COLOURS[value], label=f"{words}, {value:.1%}")
axes.set_xscale("log", base=2)
ticks = sorted({int(row["gpus"]) for row in rows})
axes.set_xticks(ticks, [f"{gpus:,}" for gpus in ticks])
axes.set(xlabel="GPUs", ylabel="iteration longer by, %", ylim=(0, None))
axes.legend(frameon=False, fontsize=8)
for kind in ("png", "svg"):
    figure.savefig(f"chance.{kind}", dpi=150, metadata={"Software": None} if kind == "png" else {"Date": None})
