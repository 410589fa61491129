"""Draws slices.csv: where the time of a layer goes (slices), and when TP inside an NVL72 pays (nvl72)."""

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
        "axes.titlesize": 9.5,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "axes.axisbelow": True,
        "legend.frameon": False,
        "svg.hashsalt": "shardsim",
    }
)
NVL72 = "gb200-nvl72"
CLUSTERS = {"dgx-a100": "A100, 8 in NVLink", "dgx-h100": "H100, 8 in NVLink", NVL72: "GB200, 72 in NVLink"}
PARTS = (
    ("work that TP 1 has too", "#d9d9d9"),
    ("smaller products", "#D55E00"),
    ("attention, memory-bound kernels", "#E69F00"),
    ("network: latency", "#0072B2"),
    ("network: bandwidth", "#56B4E9"),
)
COLOURS = ("#000000", "#E69F00", "#56B4E9", "#CC79A7", "#009E73", "#0072B2")

with Path("slices.csv").open(newline="") as stream:
    ROWS = [{k: v if k == "cluster" else float(v) for k, v in row.items()} for row in csv.DictReader(stream)]
SP = [row for row in ROWS if row["sp"]]
ONE = [row for row in SP if row["micro_batch"] == 1]


def save(figure: Figure, name: str) -> None:
    """Write both formats, without a date."""
    for kind in ("png", "svg"):
        metadata = {"Software": None} if kind == "png" else {"Date": None}
        figure.savefig(f"{name}.{kind}", dpi=150, metadata=metadata)


def parts(row: dict) -> tuple[float, ...]:
    """Shares of the layer's time [%], in the order of PARTS; a product that a cooler GPU runs faster loses nothing."""
    latency = min(row["latency_s"], row["network_s"])
    lost = (max(row["gemm_loss_s"], 0.0), row["others_loss_s"], latency, row["network_s"] - latency)
    shares = [100 * seconds / row["layer_s"] for seconds in lost]
    return (100 - sum(shares), *shares)


def bars() -> None:
    """Draw what TP loses, by hidden size and GPU."""
    figure = Figure(figsize=(10.5, 7.6))
    FigureCanvasAgg(figure)
    axes = figure.subplots(3, 3, sharey=True)
    for line, hidden in zip(axes, (2048, 8192, 16384), strict=True):
        for one, (cluster, words) in zip(line, CLUSTERS.items(), strict=True):
            rows = [r for r in ONE if (r["cluster"], r["hidden"], r["seq"]) == (cluster, hidden, 2048)]
            heights = list(zip(*(parts(row) for row in rows), strict=True))
            bottom = [0.0] * len(rows)
            for (label, colour), values in zip(PARTS, heights, strict=True):
                one.bar(range(len(rows)), values, bottom=bottom, color=colour, label=label, width=0.78)
                bottom = [a + b for a, b in zip(bottom, values, strict=True)]
            inside = sum(row["nvlink_domains"] == 1 for row in rows)
            if inside < len(rows):
                one.axvline(inside - 0.5, color="#222222", linestyle="--", linewidth=1)
                one.text(inside - 0.44, 103, "InfiniBand", fontsize=7.5)
            one.set_xticks(range(len(rows)), [f"{row['tp']:.0f}" for row in rows])
            one.set_ylim(0, 112)
            one.set_yticks(range(0, 101, 25))
            one.set_title(f"{words}, h {hidden:,}")
        line[0].set_ylabel("% of the layer's time")
    for one in axes[-1]:
        one.set_xlabel("TP")
    figure.suptitle(
        "One layer, 2,048 tokens, forward and backward, bf16, sequence parallelism: what TP loses",
        x=0.012,
        ha="left",
        fontsize=11,
        fontweight="bold",
    )
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="lower left", ncols=5, fontsize=8.5)
    figure.tight_layout(rect=(0, 0.035, 1, 0.985))
    save(figure, "slices")


def doublings() -> None:
    """Draw what a doubling of TP and a larger micro-batch are worth inside an NVL72."""
    figure = Figure(figsize=(10.5, 4.3))
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, sharey=True)
    sizes = sorted({row["hidden"] for row in ROWS})
    at = {(r["hidden"], r["seq"], r["tp"], r["micro_batch"]): r for r in SP if r["cluster"] == NVL72}
    for hidden, colour in zip(sizes, COLOURS, strict=True):
        for seq, dashes in zip(sorted({key[1] for key in at if key[0] == hidden}), ("--", "-"), strict=True):
            look = {"color": colour, "linestyle": dashes, "marker": "o", "markersize": 4}
            label = f"h {hidden:,.0f}" if dashes == "-" else None
            here = sorted((tp, micro) for h, s, tp, micro in at if (h, s) == (hidden, seq))
            steps = [tp for tp, micro in here if micro == 1 and (tp / 2, 1) in here]
            twice = [(tp, at[hidden, seq, tp / 2, 1], at[hidden, seq, tp, 1]) for tp in steps]
            for chain in ([x for x in twice if x[0] % 9], [x for x in twice if not x[0] % 9]):
                values = [50 * half["layer_s"] / row["layer_s"] for _, half, row in chain]
                left.plot(
                    [x[0] for x in chain], values, label=label if chain[:1] and chain[0][0] == 2 else None, **look
                )
            least = 9 if (72, 1) in here else 8
            first = at[hidden, seq, least, 1]["efficiency"]
            equal = [(tp, 100 * at[hidden, seq, tp, m]["efficiency"] / first) for tp, m in here if m * least == tp]
            right.plot(*zip(*equal, strict=True), **look)
    left.set_title("Efficiency of a doubling to this TP")
    right.set_title("Tokens/s per GPU, micro-batch in proportion to TP")
    left.set_ylabel("%")
    right.set_ylabel("% of TP 8 (h 9,216: TP 9)")
    right.tick_params(labelleft=True)
    left.axhline(75, color="#8a8a8a", linewidth=1)
    right.axhline(75, color="#8a8a8a", linewidth=1)
    for one in (left, right):
        one.set_xscale("log", base=2)
        one.set_xticks((2, 4, 8, 16, 32, 64) if one is left else (8, 16, 32, 64))
        one.xaxis.set_major_formatter("{x:.0f}")
        one.minorticks_off()
        one.set_ylim(20, 103)
        one.set_xlabel("TP")
        one.grid(color="#e6e6e6", linewidth=0.7)
    left.legend(fontsize=8, ncols=2, loc="lower left")
    title = "TP inside one NVL72 of GB200 (solid: about 8,192 tokens; dashed: 2,048)"
    figure.suptitle(title, x=0.012, ha="left", fontsize=11, fontweight="bold")
    note = (
        "75 %, left: pays in place of half a pipeline with as many micro-batches as stages; right: full recomputation."
    )
    figure.text(0.012, 0.015, note, fontsize=8, color="#555555")
    figure.tight_layout(rect=(0, 0.03, 1, 0.985), w_pad=2)
    save(figure, "nvl72")


bars()
doublings()
