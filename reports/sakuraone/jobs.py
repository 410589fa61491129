"""Predicts GPT-3 175B as in MLPerf on two fabrics, in two layouts, and on worse Ethernet: jobs.csv, worse.csv."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import shardsim

JOB = {"model": "gpt3-175b", "precision": "fp8", "framework": "megatron-core", "micro_batch": 2, "seq": 2048}
FABRICS = ("dgx-h100", "sakuraone")
EOS = {"tp": 4, "pp": 8, "vpp": 6}  # github mlcommons/training_results_v4.1, config_DGXH100_32x8x256x4x8_mbs2.sh
OWN = {"tp": 4, "pp": 16, "vpp": 6}
SIZES = {256: (2048, OWN), 512: (2048, OWN), 768: (2304, OWN | {"tp": 8})}
"""GPUs, sequences an iteration (of 768 GPUs assumed: 24 replicas of two have to divide it), SAKURAONE's layout."""

WORSE: dict[str, dict[str, Any]] = {
    "as it is": {},
    "every message 10 us later": {"set": {"fabric.links.nic.step_latency": "24 us"}},
    "fullest up-link 2 x the mean": {"conditions": {"ecmp_imbalance": 2.0}},
    "fullest up-link 4 x the mean": {"conditions": {"ecmp_imbalance": 4.0}},
    "25 GB/s a flow": {"conditions": {"flow_limit": "25 GB/s"}},
    "12.5 GB/s a flow": {"conditions": {"flow_limit": "12.5 GB/s"}},
    "5 GB/s a flow": {"conditions": {"flow_limit": "5 GB/s"}},
}


def row(cluster: str, gpus: int, layout: Mapping[str, int], more: Mapping[str, Any]) -> dict[str, object]:
    """Predict one job."""
    found = shardsim.simulate(cluster=cluster, gpus=gpus, global_batch=SIZES[gpus][0], **JOB, **layout, **more)
    tokens = SIZES[gpus][0] * JOB["seq"]
    return {
        "cluster": cluster,
        "gpus": gpus,
        **layout,
        "iteration_s": found.iteration_s,
        "tokens_per_s_per_gpu": tokens / found.iteration_s / gpus,
        "mfu": found.mfu,
        "bubble_s": found.bubble_fraction * found.iteration_s,
        **{f"{axis}_s": found.exposed_s[axis] for axis in ("tp", "pp", "dp")},
        "reserved_gib": max(found.memory.reserved) / 2**30,
    }


def write(name: str, rows: Iterable[Mapping[str, object]]) -> None:
    """Write rows of the same columns."""
    rows = list(rows)
    with Path(name).open("w", newline="") as stream:
        table = csv.DictWriter(stream, rows[0], lineterminator="\n")
        table.writeheader()
        table.writerows(rows)


if __name__ == "__main__":
    jobs = [
        row(cluster, gpus, layout, {})
        for gpus, (_, own) in SIZES.items()
        for layout in (EOS, own)
        for cluster in FABRICS
    ]
    write("jobs.csv", jobs)
    write("worse.csv", ({"what": what, **row("sakuraone", 512, OWN, more)} for what, more in WORSE.items()))
