"""Compares the model with measured slices: python3 check.py FOLDER.

FOLDER holds tp_slices_measured_only.csv (sums of the four forward products of a layer; columns table, h, tokens, tp,
gemm_fwd_us, base_tp) and tp_slices_summary.csv (two all-reduces beside them; h, tokens, tp, allreduce2_us).
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import numpy as np

from shardsim.cost.gemm import gemm_seconds
from shardsim.program.ask import ask_collective
from shardsim.schema.hardware import load_cluster, load_device, load_fabric_profile
from shardsim.schema.kernels import load_kernel_profile
from shardsim.values.operators import Gemm

DEVICES = {"a100": "a100-sxm-80gb", "h100": "h100-sxm-80gb", "b200": "b200-sxm"}
CLUSTERS = {"a100": "dgx-a100", "h100": "dgx-h100"}


load_device, load_kernel_profile = cache(load_device), cache(load_kernel_profile)
load_cluster, load_fabric_profile = cache(load_cluster), cache(load_fabric_profile)


def read(path: Path) -> list[dict[str, str]]:
    """Rows of a CSV file."""
    with path.open(newline="") as stream:
        return list(csv.DictReader(stream))


def products(table: str, h: int, tokens: int, tp: int) -> float:
    """QKV, attention output, MLP up and down of one rank, as a burst [s]."""
    device = load_device(DEVICES[table[:4]])
    constants = load_kernel_profile(device.compute_profile)
    shapes = ((h, 3 * h // tp), (h // tp, h), (h, 4 * h // tp), (4 * h // tp, h))
    return sum(float(gemm_seconds(Gemm("", tokens, k, n), device, constants, "bf16", "burst")) for k, n in shapes)


def all_reduces(gpu: str, h: int, tokens: int, tp: int) -> float:
    """Two of tokens x h elements [s]."""
    cluster = load_cluster(CLUSTERS[gpu])
    fabric = load_fabric_profile(cluster.fabric_profile)
    return 2 * ask_collective("all_reduce", 2.0 * tokens * h, cluster, fabric, tp).seconds


def line(name: str, errors: Iterable[float], unit: str) -> str:
    """Statistics of errors [unit]."""
    found = 100 * np.array(list(errors))
    median, p90, worst = np.percentile(np.abs(found), [50, 90, 100])
    return f"{name:34}{len(found):5}{median:9.1f}{p90:7.1f}{worst:7.1f}{np.median(found).round(1) + 0.0:+8.1f} {unit}"


def key(row: dict[str, str]) -> tuple[str, int, int, int]:
    """Table, hidden size, tokens and TP of a slice."""
    return row["table"], int(row["h"]), int(row["tokens"]), int(row["tp"])


folder = Path(sys.argv[1])
given, summary = read(folder / "tp_slices_measured_only.csv"), read(folder / "tp_slices_summary.csv")
measured = {key(row): float(row["gemm_fwd_us"]) * 1e-6 for row in given}
base = {key(row): int(row["base_tp"]) for row in given}
predicted = {slice_: products(*slice_) for slice_ in measured}


def efficiency(times: dict[tuple[str, int, int, int], float], of: tuple[str, int, int, int]) -> float:
    """Rate of a slice over that of the widest (-)."""
    table, h, tokens, tp = of
    return times[table, h, tokens, base[of]] * base[of] / (times[of] * tp)


time = {of: predicted[of] / measured[of] - 1 for of in measured}
lost = {of: efficiency(predicted, of) - efficiency(measured, of) for of in measured if of[3] != base[of]}
tables = list(dict.fromkeys(of[0] for of in measured))
lines = [f"{'predicted against measured':34}{'n':>5}{'median':>9}{'p90':>7}{'worst':>7}{'bias':>8}"]
lines.append("time of a layer's four forward products, burst")
lines += [line(f"  {name}", (e for of, e in time.items() if of[0] == name), "%") for name in tables]
lines.append(line("  all", time.values(), "%"))
lines.append("rate of these products against TP 1 (h 8192: TP 2)")
lines += [line(f"  {name}", (e for of, e in lost.items() if of[0] == name), "points") for name in tables]
for low, high in ((2, 4), (8, 8), (16, 32)):
    some = (e for of, e in lost.items() if low <= of[3] <= high)
    lines.append(line(f"  TP {low} to {high}" if low < high else f"  TP {low}", some, "points"))
lines.append(line("  all", lost.values(), "points"))

same = [of for of in measured if of[0] == "h100 trt" and ("h100 sgl", *of[1:]) in measured]
lines.append("two measurements of the same GPU and shapes (h100 sgl over h100 trt)")
lines.append(line("  time", (measured["h100 sgl", *of[1:]] / measured[of] - 1 for of in same), "%"))
apart = (efficiency(measured, ("h100 sgl", *of[1:])) - efficiency(measured, of) for of in same if of[3] != base[of])
lines.append(line("  rate against TP 1", apart, "points"))

columns = ("allreduce2_us", "gemm_loss_us", "gemm_fwd_us")
eight = [[float(row[name]) for name in columns] for row in summary if row["tp"] == "8"]
shares = [(100 * sent / (sent + spent), 100 * more / (sent + spent)) for sent, more, spent in eight]
reduced = {
    (row["table"].split("_")[0], *key(row)[1:]): float(row["allreduce2_us"]) * 1e-6
    for row in summary
    if row["tp"] != "1"
}
lines.append("two all-reduces inside a node")
sums = {of: all_reduces(*of) / seconds - 1 for of, seconds in reduced.items()}
lines += [line(f"  {gpu}", (e for of, e in sums.items() if of[0] == gpu), "%") for gpu in CLUSTERS]
lines.append("")
lines.append("What the measurements alone say of TP 8, forward, in % of the four products and two all-reduces:")
for name, values in zip(("all-reduces", "products lose"), zip(*shares, strict=True), strict=True):
    lines.append(f"  h 8192, 12288    {name:14}{min(values):5.0f} to {max(values):.0f}")
for of, seconds in measured.items():
    if of[1:] == (2048, 2048, 8) and of[0][:4] in CLUSTERS:
        sent = all_reduces(of[0][:4], *of[1:])
        loss = seconds - measured[(*of[:3], 1)] / 8
        network, gemm = (100 * part / (sent + seconds) for part in (sent, loss))
        lines.append(f"  h 2048, {of[0]:9}all-reduces {network:.0f} (predicted), products lose {gemm:.0f}")
sys.stdout.write("\n".join(lines) + "\n")
