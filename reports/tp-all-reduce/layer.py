"""Sets the all-reduces of all-reduce.csv beside the matrix products of the same GPT-3 layer: layer.csv, layer.txt."""

from __future__ import annotations

import csv
from pathlib import Path

import shardsim
from shardsim.report.frames import timeline_frame

HEADS = 96
RUN = {"model": "gpt3-175b", "micro_batch": 1, "global_batch": 1, "seq": 2048, "data": ["."]}
SAME = {"framework": "megatron-2021", "precision": "fp16", "recompute": "none", "sp": False}


def gemm_seconds(cluster: str, tp: int) -> float | None:
    """Linear layers of one layer on one rank, forward and backward [s]; None where TP does not divide the heads."""
    if HEADS % tp:
        return None
    options = {"engine": "listing", "detail": "operators", "timeline": True}
    found = shardsim.simulate(**RUN, **SAME, **options, cluster=cluster, gpus=tp, tp=tp)
    tasks = timeline_frame(found.execution.timeline)
    in_layers = (tasks["category"] == "gemm") & ~tasks["name"].str.startswith("lm head")
    return float(tasks["seconds"][in_layers].sum()) / found.run.model.layers


with Path("all-reduce.csv").open(newline="") as stream:
    rows = [
        {
            "cluster": row["cluster"],
            "tp": int(row["ranks"]),
            "nvlink_domains": int(row["nvlink_domains"]),
            "all_reduces_s": float(row["total_s"]),
            "gemms_s": gemm_seconds(row["cluster"], int(row["ranks"])),
        }
        for row in csv.DictReader(stream)
    ]
for row in rows:
    row["share"] = row["gemms_s"] and row["all_reduces_s"] / row["gemms_s"]

with Path("layer.csv").open("w", newline="") as stream:
    writer = csv.DictWriter(stream, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)

degrees = sorted({row["tp"] for row in rows})
lines = [
    "GPT-3 175B, one layer and micro-batch of 2,048 tokens, forward and backward, fp16: the four all-reduces in ms,",
    "and as a share of the linear layers' matrix products at the same TP. *: the group spans several NVLink domains.",
    "",
    "".join([f"{'':16}", *(f"{f'TP{tp}':>16}" for tp in degrees)]),
]
for cluster in dict.fromkeys(row["cluster"] for row in rows):
    line = f"{cluster:16}"
    for row in (row for row in rows if row["cluster"] == cluster):
        share = f"{100 * row['share']:,.0f} %" if row["share"] else "-"
        line += f"{1e3 * row['all_reduces_s']:7.2f}{share:>8}{'*' if row['nvlink_domains'] > 1 else ' '}"
    lines.append(line.rstrip())
lines += ["", "GPT-3's 96 heads do not divide by 64: its all-reduce is shown, a layer of it does not exist."]
Path("layer.txt").write_text("\n".join(lines) + "\n")
