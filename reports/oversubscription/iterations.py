"""Predicts a dense and a MoE model on leaf-spine fabrics, rail-optimised and plain, 1:1 to 1:7: iterations.csv."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import shardsim

OVERSUBSCRIPTIONS = (1, 2, 3, 4, 5, 6, 7)
DENSE: dict[str, Any] = {
    "model": "llama-3-70b",
    "cluster": "dgx-h100",
    "framework": "megatron-core",
    "gpus": 1024,
    "tp": 8,
    "pp": 4,
    "micro_batch": 1,
    "global_batch": 256,
    "seq": 8192,
}
NEAR, FAR = {"order": ["tp", "cp", "dp", "pp"]}, {"order": ["tp", "cp", "pp", "dp"]}
SHOWN = {"overlap_grad_reduce": False}
MOE: dict[str, Any] = {
    "model": "deepseek-v3",
    "cluster": "hgx-h800",
    "framework": "deepseek",
    "gpus": 2048,
    "pp": 16,
    "ep": 64,
    "micro_batch": 1,
    "global_batch": 4096,
    "seq": 4096,
    "schedule": "dualpipe",
    "stage_layers": [3, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 2],
}
RUNS = {
    "dense, replicas side by side": DENSE | NEAR,
    "dense, replicas side by side, gradients in the open": DENSE | NEAR | SHOWN,
    "dense, stages side by side": DENSE | FAR,
    "dense, stages side by side, gradients in the open": DENSE | FAR | SHOWN,
    "MoE, 8 nodes of experts": MOE,
}
FABRICS: dict[str, dict[str, Any]] = {
    "rails, 32 nodes": {"cluster.nodes_per_leaf": 32, "cluster.rail_optimized": True},
    "plain, 4 nodes": {"cluster.nodes_per_leaf": 4, "cluster.rail_optimized": False},
}
"""The same switches of 32 ports down: one for each rail of 32 nodes, or one for all adapters of four."""


def row(run: str, fabric: str, oversubscription: int) -> dict[str, object]:
    """Predict one run."""
    changes = FABRICS[fabric] | {"cluster.oversubscription": oversubscription}
    found = shardsim.simulate(**RUNS[run], set=changes)
    return {
        "run": run,
        "fabric": fabric,
        "oversubscription": oversubscription,
        "iteration_s": found.iteration_s,
        **{f"{axis}_s": found.exposed_s[axis] for axis in ("tp", "pp", "dp", "ep")},
    }


if __name__ == "__main__":
    rows = [row(run, fabric, times) for run in RUNS for fabric in FABRICS for times in OVERSUBSCRIPTIONS]
    with Path("iterations.csv").open("w", newline="") as stream:
        table = csv.DictWriter(stream, rows[0], lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
