"""Draws the fastest layouts with and without tensor parallelism, relative to the best of each case."""

from __future__ import annotations

from itertools import groupby

from matplotlib import rcParams
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from tables import read

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
    "no TP, any schedule": "#0072B2",
    "no TP, DualPipe or DualPipeV": "#D55E00",
    "TP, any schedule": "#009E73",
    "TP, DualPipe or DualPipeV": "#E69F00",
}
BAND = 0.06
"""Differences below this are within the error of the model (-)."""


def save(figure: Figure, name: str) -> None:
    """Write both formats, without a date."""
    for kind in ("png", "svg"):
        metadata = {"Software": None} if kind == "png" else {"Date": None}
        figure.savefig(f"{name}.{kind}", dpi=150, metadata=metadata)


def main() -> None:
    """Draw a panel for each case."""
    cases = [
        (key, list(rows))
        for key, rows in groupby(read("study.csv"), key=lambda row: (row["model"], row["gpus"], row["global_batch"]))
    ]
    figure = Figure(figsize=(9.5, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(cases), sharey=True, squeeze=False)[0]
    for axes, ((model, gpus, sequences), rows) in zip(panels, cases, strict=True):
        for place, nvlink in enumerate((300, 900)):
            found = {row["question"]: row["iteration_s"] for row in rows if row["nvlink"] == nvlink}
            best = min(found.values())
            for step, (question, colour) in enumerate(COLOURS.items()):
                if question in found:
                    axes.bar(place + 0.2 * (step - 1.5), found[question] / best, width=0.18, color=colour)
        axes.axhspan(1.0, 1.0 + BAND, color="#000000", alpha=0.12, lw=0)
        axes.set_xticks((0, 1), ("NVLink 300", "NVLink 900"))
        axes.set_title(f"{model}\n{gpus:,.0f} GPUs, {sequences:,.0f} sequences")
    panels[0].set(ylabel="iteration, over the best of each", ylim=(0.8, None))
    figure.legend(
        [figure.axes[0].patches[0].__class__((0, 0), 1, 1, color=colour) for colour in COLOURS.values()],
        COLOURS,
        loc="outside lower center",
        ncols=4,
    )
    save(figure, "fastest")


if __name__ == "__main__":
    main()
