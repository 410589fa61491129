"""Runs every schedule with more and more recomputed layers, and writes time and memory of each to schedules.csv."""

from __future__ import annotations

import csv
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from common import RUN, SCHEDULES

import shardsim

STEPS = 4
"""In how many steps recompute goes from no layer of a chunk to all."""


def priced(name: str, layers: int) -> dict[str, object]:
    """One schedule that recomputes the first ``layers`` layers of each chunk."""
    keys = dict(RUN, **SCHEDULES[name], engine="listing")
    if layers:
        keys |= {"recompute": "full", "recompute_method": "block", "recompute_layers": layers}
    prediction = shardsim.simulate(**keys)
    stages = [sum(items.values()) for items in prediction.memory.stages]
    return {
        "schedule": name,
        "recomputed": layers,
        "layers": max(prediction.run.layout.split),
        "iteration_s": prediction.iteration_s,
        "bubble": prediction.bubble_fraction,
        "mfu": prediction.mfu,
        "peak": max(stages),
        "least": min(stages),
        "capacity": prediction.memory.capacity,
    }


def steps(name: str) -> list[int]:
    """Numbers of recomputed layers to try."""
    chunks = {"interleaved, v = 4": 4, "zb-v": 2, "v-half": 2, "v-min": 2, "dualpipev": 2}.get(name, 1)
    layers = 128 // (RUN["pp"] * chunks)
    return sorted({round(layers * step / STEPS) for step in range(STEPS + 1)})


def main() -> None:
    """Run all of them, two at a time, and write the table in a fixed order."""
    asked = [(name, layers) for name in SCHEDULES for layers in steps(name)]
    with ProcessPoolExecutor(2) as pool:
        rows = list(pool.map(priced, *zip(*asked, strict=True)))
    with Path("schedules.csv").open("w", newline="") as stream:
        writer = csv.DictWriter(stream, rows[0].keys(), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
