"""Makes layouts.txt and groups.txt of layouts.csv."""

from __future__ import annotations

import csv
from pathlib import Path

with Path("layouts.csv").open(newline="") as stream:
    ROWS = list(csv.DictReader(stream))
NAMES = {
    "as it is": "8 H100 a node",
    "one domain": "H100, NVLink for 64",
    "racks of 64": "NVL72, 64 of 72 used",
    "racks of 72": "NVL72, all 72 used",
}


def cells(row: dict[str, str]) -> str:
    """Iteration, MFU, and where the time goes [ms]."""
    parts = "".join(f"{1e3 * float(row[f'{key}_s']):8.0f}" for key in ("tp", "bubble", "dp"))
    return f"{float(row['iteration_s']):8.3f} s {float(row['mfu']):6.1%}{parts}"


layouts = [
    "llama-3-405b on 1,024 GPUs, TP x PP = 128, DP 8, 32 micro-batches of 1 x 4,096 tokens, 1F1B, SP.",
    "Iteration, MFU; exposed tp, bubble, exposed dp of the mean rank, ms; memory of the fullest stage.",
    "",
    f"{'':22}{'TP':>3} {'PP':>3} {'iteration':>10} {'MFU':>6} {'tp':>7} {'bubble':>7} {'dp':>7}     GiB",
]
for what, name in NAMES.items():
    for row in (row for row in ROWS if row["what"] == what):
        memory = f"{float(row['reserved_gib']):8.1f}" + ("" if row["fits"] == "True" else " does not fit")
        layouts.append(f"{name:22}{row['tp']:>3} {row['pp']:>3}{cells(row)}{memory}")
    layouts.append("")
Path("layouts.txt").write_text("\n".join(layouts[:-1]) + "\n")

first = ROWS[0]
groups = [
    "TP 8, PP 16 on DGX H100: groups of eight that lie on two nodes. Of 128 groups, two at a time straddle.",
    "",
    f"{'':32}{'iteration':>10} {'MFU':>6} {'tp':>7} {'bubble':>7} {'dp':>7}",
]
for row in [first, *(row for row in ROWS if "+" in row["what"])]:
    name = "every group inside its node" if row is first else row["what"]
    more = float(row["iteration_s"]) / float(first["iteration_s"]) - 1
    groups.append(f"{name:32}{cells(row)}  {more:+.1%}")
Path("groups.txt").write_text("\n".join(groups) + "\n")
