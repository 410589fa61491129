"""DeepSeek-V3 on 2,048 H800: with and without tensor parallelism, DualPipe and 1F1B. Writes moe.csv."""

from __future__ import annotations

import csv
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path

import shardsim

RUN = {
    "model": "deepseek-v3",
    "cluster": "hgx-h800",
    "framework": "deepseek",
    "gpus": 2048,
    "pp": 16,
    "ep": 64,
    "zero": 1,
    # Half of the published batch: 60 micro-batches for 16 stages.
    "global_batch": 7680,
    "micro_batch": 1,
    "seq": 4096,
    # As in workloads/runs/deepseek-v3.yaml.
    "stage_layers": [3, *[4] * 14, 2],
}
NVLINK = (300, 900)


def priced(nvlink: int, schedule: str, tp: int) -> dict[str, object]:
    """One layout on H800 with NVLink of so many GB/s, both directions together."""
    split = {"sp": True, "etp": 1} if tp > 1 else {}
    changes = {"cluster.nvlink.bandwidth": f"{nvlink / 2} GB/s"}
    prediction = shardsim.simulate({"set": changes}, **RUN, **split, schedule=schedule, tp=tp, engine="closed")
    memory = prediction.memory
    worst = memory.stages[memory.worst_stage]
    return {
        "nvlink": nvlink,
        "schedule": schedule,
        "tp": tp,
        "iteration_s": prediction.iteration_s,
        "mfu": prediction.mfu,
        "bubble": prediction.bubble_fraction,
        "tp_s": prediction.exposed_s["tp"],
        "ep_s": prediction.exposed_s["ep"],
        "memory": memory.peak,
        "capacity": memory.capacity,
        "parameters": worst["weights"] + worst["gradients"] + worst["optimizer"],
        "fits": memory.fits,
    }


def main() -> None:
    """Price all, two at a time, in a fixed order."""
    asked = list(product(NVLINK, ("1f1b", "dualpipe"), (1, 2)))
    with ProcessPoolExecutor(2) as pool:
        rows = list(pool.map(priced, *zip(*asked, strict=True)))
    with Path("moe.csv").open("w", newline="") as stream:
        writer = csv.DictWriter(stream, rows[0].keys(), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
