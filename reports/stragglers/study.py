"""What one thing that is wrong costs (once.csv), and what chance costs as the machine grows (chance.csv)."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import shardsim
from shardsim.values.results import Prediction

RUN = {
    "model": "llama-3-405b",
    "cluster": "dgx-h100",
    "tp": 8,
    "pp": 16,
    "sp": True,
    "zero": 1,
    "first_layers": 7,
    "last_layers": 7,
    "recompute": "full",
    "micro_batch": 1,
    "seq": 8192,
}
REPLICA = 8 * 16
SMALL = 4 * REPLICA
# Node 4 s + r holds the GPUs of stage s of replica r.
ONCE: tuple[tuple[str, dict[str, Any]], ...] = (
    ("one node computes 2 % slower, stage 8", {"slow_nodes": {33: 1.02}}),
    ("one node computes 5 % slower, stage 8", {"slow_nodes": {33: 1.05}}),
    ("one node computes 10 % slower, stage 8", {"slow_nodes": {33: 1.10}}),
    ("one node computes 10 % slower, stage 0", {"slow_nodes": {1: 1.10}}),
    ("one node computes 10 % slower, stage 15", {"slow_nodes": {61: 1.10}}),
    ("a node of each of four stages, 10 %, one replica", {"slow_nodes": {1: 1.1, 17: 1.1, 33: 1.1, 49: 1.1}}),
    ("a node of each of four stages, 10 %, four replicas", {"slow_nodes": {0: 1.1, 17: 1.1, 34: 1.1, 51: 1.1}}),
    ("one GPU computes 10 % slower, stage 8", {"slow_gpus": {266: 1.10}}),
    ("one host launches three times slower, stage 8", {"slow_hosts": {33: 3.0}}),
    ("one adapter has half its bandwidth, stage 8", {"slow_nics": {(33, 0): 0.5}}),
    ("one adapter is dead, stage 8", {"dead_nics": ["33/0"]}),
    ("NVLink of one GPU has half its bandwidth, stage 8", {"slow_nvlinks": {266: 0.5}}),
    ("one TP group lies on two nodes, 7 + 1, stages 8", {"swap_ranks": [[263, 264]]}),
)
CHANCE = (
    ("speed_spread", 0.005),
    ("speed_spread", 0.01),
    ("speed_spread", 0.02),
    ("jitter", 0.01),
    ("jitter", 0.02),
)
REPLICAS = (1, 2, 4, 8)


def predicted(gpus: int, conditions: dict[str, Any] | None = None) -> Prediction:
    """Predict so many replicas with 16 micro-batches each."""
    keys = {**RUN, "gpus": gpus, "global_batch": gpus // REPLICA * 16}
    request = {"conditions": _named(conditions)} if conditions else {}
    return shardsim.simulate(request, **keys)


def _named(conditions: dict[str, Any]) -> dict[str, Any]:
    """Adapters as a run file writes them."""
    return {
        name: {f"{key[0]}/{key[1]}" if isinstance(key, tuple) else key: share for key, share in value.items()}
        if isinstance(value, dict)
        else value
        for name, value in conditions.items()
    }


def once() -> None:
    """Break one thing at a time on 512 GPUs."""
    usual = predicted(SMALL)
    rows, lines = [], [f"{'what is wrong':52s} {'iteration':>10s} {'cost':>7s}  classes"]
    lines.append(f"{'nothing':52s} {usual.iteration_s:8.3f} s {'':>7s}  {len(usual.execution.lanes):7d}")
    for what, conditions in ONCE:
        found = predicted(SMALL, conditions)
        cost = found.iteration_s / usual.iteration_s - 1.0
        rows.append((what, found.iteration_s, cost, len(found.execution.lanes)))
        lines.append(f"{what:52s} {found.iteration_s:8.3f} s {cost:+7.2%}  {rows[-1][3]:7d}")
    _write("once.csv", ("what", "iteration_s", "cost", "classes"), rows)
    Path("once.txt").write_text("\n".join(lines) + "\n")


def chance() -> None:
    """Let speeds spread and passes jitter on more and more replicas."""
    rows, lines = [], [f"{'GPUs':>6s}" + "".join(f"{_what(*one):>14s}" for one in CHANCE)]
    usual = {replicas: predicted(replicas * REPLICA).iteration_s for replicas in REPLICAS}
    for replicas in REPLICAS:
        costs = []
        for name, value in CHANCE:
            found = predicted(replicas * REPLICA, {name: value, "seed": 1})
            costs.append(found.iteration_s / usual[replicas] - 1.0)
            rows.append((replicas * REPLICA, name, value, found.iteration_s, costs[-1]))
        lines.append(f"{replicas * REPLICA:6,d}" + "".join(f"{cost:+14.2%}" for cost in costs))
    _write("chance.csv", ("gpus", "what", "value", "iteration_s", "cost"), rows)
    Path("chance.txt").write_text("\n".join(lines) + "\n")


def _what(name: str, value: float) -> str:
    return f"{name.removeprefix('speed_')} {value:.1%}"


def _write(name: str, header: tuple[str, ...], rows: list[tuple[Any, ...]]) -> None:
    with Path(name).open("w", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)


once()
chance()
