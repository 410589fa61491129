"""Predicts Llama 3 405B with TP 8 to 64 inside and across NVLink domains, and groups that straddle: layouts.csv."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import shardsim

RUN = {
    "model": "llama-3-405b",
    "framework": "megatron-core",
    "gpus": 1024,
    "micro_batch": 1,
    "global_batch": 256,
    "seq": 4096,
    "schedule": "1f1b",
    # 126 layers, the embedding and the loss make 128 places, which split evenly.
    "embedding_as_layer": True,
    "loss_as_layer": True,
}
H100, NVL72 = "dgx-h100", "gb200-nvl72"
DOMAINS_OF_64 = {"set": {"cluster.gpus_per_domain": 64}}
NODES_OF_4 = {
    "set": {
        "cluster.gpus_per_node": 4,
        "cluster.gpus_per_domain": 4,
        "cluster.nics_per_node": 4,
        "cluster.nodes_per_leaf": 64,
    }
}


def swapped(first: int, count: int) -> dict[str, Any]:
    """The last ``count`` ranks of the group of eight from ``first`` change places with the first of the next node."""
    return {"conditions": {"swap_ranks": [[first + 8 - count + each, first + 8 + each] for each in range(count)]}}


def row(what: str, cluster: str, tp: int, pp: int, more: dict[str, Any]) -> dict[str, object]:
    """Predict one layout."""
    found = shardsim.simulate(cluster=cluster, tp=tp, pp=pp, **RUN, **more)
    return {
        "what": what,
        "cluster": cluster,
        "tp": tp,
        "pp": pp,
        "iteration_s": found.iteration_s,
        "mfu": found.mfu,
        "bubble_s": found.bubble_fraction * found.iteration_s,
        **{f"{axis}_s": found.exposed_s[axis] for axis in ("tp", "pp", "dp")},
        "reserved_gib": max(found.memory.reserved) / 2**30,
        "fits": found.memory.fits,
    }


if __name__ == "__main__":
    degrees = (8, 16, 32, 64)
    rows = [row("as it is", H100, tp, 128 // tp, {}) for tp in degrees]
    rows += [row("one domain", H100, tp, 128 // tp, DOMAINS_OF_64) for tp in degrees[1:]]
    rows += [row("racks of 64", NVL72, tp, 128 // tp, DOMAINS_OF_64) for tp in degrees]
    rows += [row("racks of 72", NVL72, 16, 8, {})]
    rows.append(row("every group 4 + 4", H100, 8, 16, NODES_OF_4))
    # Ranks 512 to 575 are stage 8, ranks 0 to 63 stage 0, which has a layer less.
    for stage, away in ((8, 4), (8, 1), (0, 4)):
        what = f"two groups of stage {stage} {8 - away} + {away}"
        rows.append(row(what, H100, 8, 16, swapped(64 * stage, away)))
    with Path("layouts.csv").open("w", newline="") as stream:
        table = csv.DictWriter(stream, rows[0], lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
