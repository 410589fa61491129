"""Makes slices.txt and nvl72.txt of slices.csv."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable
from pathlib import Path

NVL72 = "gb200-nvl72"
COLUMNS = ((2,), (4,), (8,), (16, 18), (32, 36), (64, 72))
WIDTH = 15

with Path("slices.csv").open(newline="") as stream:
    ROWS = [{k: v if k == "cluster" else float(v) for k, v in row.items()} for row in csv.DictReader(stream)]
AT = {tuple(row[k] for k in ("cluster", "hidden", "seq", "tp", "sp", "micro_batch")): row for row in ROWS}
SIZES = sorted({(row["hidden"], row["seq"]) for row in ROWS})

Cell = Callable[[str, float, float, int], str]


def find(cluster: str, hidden: float, seq: float, tp: int, *, sp: bool = True, micro: int = 1) -> dict | None:
    """Row of a layout, where it is legal."""
    return AT.get((cluster, hidden, seq, tp, float(sp), float(micro)))


def lost(cluster: str, hidden: float, seq: float, tp: int) -> str:
    """Efficiency, and what network, products and other kernels take of the rest [%]."""
    row = find(cluster, hidden, seq, tp)
    if row is None:
        return "-"
    shares = (100 * row[key] / row["layer_s"] for key in ("network_s", "gemm_loss_s", "others_loss_s"))
    parts = "/".join(str(round(share)) for share in shares)
    return f"{100 * row['efficiency']:.0f} {parts:>8}" + ("*" if row["nvlink_domains"] > 1 else " ")


def doubling(cluster: str, hidden: float, seq: float, tp: int) -> str:
    """Efficiency of the last doubling of TP [%]."""
    half, row = find(cluster, hidden, seq, tp // 2), find(cluster, hidden, seq, tp)
    if half is None or row is None:
        return "-"
    reached = half["layer_s"] / row["layer_s"] / 2
    return f"{row['layer_s'] * 1e3:.2f} ms {100 * reached:4.0f}" + ("+" if reached >= 0.75 else " ")


def to_hide(cluster: str, hidden: float, seq: float, tp: int) -> str:
    """Share of the network's time that has to vanish, at both degrees, for a doubling to reach 75 % [%]."""
    half, row = find(cluster, hidden, seq, tp // 2), find(cluster, hidden, seq, tp)
    if half is None or row is None:
        return "-"
    own, before = (one["layer_s"] - one["network_s"] for one in (row, half))
    if before < 1.5 * own:
        return "never"
    left = (before - 1.5 * own) / (1.5 * row["network_s"] - half["network_s"])
    return f"{100 * max(1 - left, 0):.0f}"


def each_kernel(cluster: str, hidden: float, seq: float, tp: int) -> str:
    """Mean time of a kernel, collectives included [us]."""
    row = find(cluster, hidden, seq, tp)
    return f"{1e6 * row['layer_s'] / row['kernels']:.0f}" if row else "-"


def at_equal_memory(cluster: str, hidden: float, seq: float, tp: int) -> str:
    """Tokens/s per GPU over those of TP 8, or 9, with as many activations a GPU [%]."""
    least = 9 if tp % 9 == 0 else 8
    first, row = find(cluster, hidden, seq, least), find(cluster, hidden, seq, tp, micro=max(tp // least, 1))
    return f"{100 * row['efficiency'] / first['efficiency']:.0f}" if first and row else "-"


def without_sp(cluster: str, hidden: float, seq: float, tp: int) -> str:
    """Time with four all-reduces over that with SP [%]."""
    row, plain = find(cluster, hidden, seq, tp), find(cluster, hidden, seq, tp, sp=False)
    return f"{100 * plain['layer_s'] / row['layer_s']:.0f}" if row and plain else "-"


def table(cluster: str, cell: Cell, columns: Iterable[tuple[int, ...]] = COLUMNS) -> list[str]:
    """One line for each hidden size and sequence."""
    lines = [f"{cluster:12}{'tokens':>8}" + "".join(f"{'TP ' + ' or '.join(map(str, c)):>{WIDTH}}" for c in columns)]
    for hidden, seq in SIZES:
        cells = (next((text for tp in c if (text := cell(cluster, hidden, seq, tp)) != "-"), "-") for c in columns)
        lines.append(f"h {hidden:<10.0f}{seq:8.0f}" + "".join(f"{text:>{WIDTH}}" for text in cells))
    return [*(line.rstrip() for line in lines), ""]


slices = [
    "One layer of a GPT, forward and backward, bf16, SP: efficiency against TP 1 in %, and how the rest is lost,",
    "network/GEMM size/other kernels, in % of the layer's time. *: the group spans several NVLink domains.",
    "",
    *(line for cluster in ("dgx-a100", "dgx-h100", NVL72) for line in table(cluster, lost)),
]
Path("slices.txt").write_text("\n".join(slices).rstrip() + "\n")

wide = COLUMNS[3:]
nvl72 = [
    "Time of a layer, and efficiency of the last doubling of TP in %. +: at least 75 %.",
    "",
    *table(NVL72, doubling, COLUMNS[2:]),
    "Share of the network's time that has to be hidden for that doubling to reach 75 %, in %.",
    "",
    *table(NVL72, to_hide, wide),
    "Tokens/s per GPU at equal activation memory (micro-batch grows with TP), in % of those at TP 8, or at TP 9.",
    "",
    *table(NVL72, at_equal_memory, wide),
    "Time with four all-reduces in place of SP's gathers and scatters, in % of the time with SP.",
    "",
    *table(NVL72, without_sp, COLUMNS[2:]),
    "Mean time of a kernel in us; a host that needs longer to launch one is what bounds the layer.",
    "",
    *table(NVL72, each_kernel, COLUMNS[2:]),
]
Path("nvl72.txt").write_text("\n".join(nvl72).rstrip() + "\n")
