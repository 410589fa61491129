"""Writes schedules.txt: every schedule as it is, and at equal memory."""

from __future__ import annotations

import csv
from pathlib import Path

from common import RUN, SCHEDULES

GIB = 2.0**30

with Path("schedules.csv").open(newline="") as stream:
    ROWS = [{k: v if k == "schedule" else float(v) for k, v in row.items()} for row in csv.DictReader(stream)]


def fastest(name: str, budget: float) -> dict | None:
    """The fastest variant of a schedule within a budget [bytes]; None where nothing fits."""
    fitting = [row for row in ROWS if row["schedule"] == name and row["peak"] <= budget]
    return min(fitting, key=lambda row: row["iteration_s"], default=None)


def cell(row: dict | None) -> str:
    """A schedule within a budget: iteration time, and the part of its layers that it recomputes."""
    if row is None:
        return "       does not fit"
    return f"{row['iteration_s']:9.2f} s {row['recomputed'] / row['layers']:7.0%}"


def main() -> None:
    """Write the table."""
    capacity = ROWS[0]["capacity"]
    budgets = (capacity, 64 * GIB, 48 * GIB)
    layout = f"TP {RUN['tp']} PP {RUN['pp']} DP 8"
    lines = [
        f"{RUN['model']} on {RUN['gpus']:,} H100, {layout}, 32 micro-batches of 1 x {RUN['seq']:,} tokens.",
        "Nothing recomputed: iteration, bubble, memory of the fullest and the emptiest stage. Then the fastest variant",
        "within a budget, and the part of its layers that it recomputes for it.",
        "",
        f"{'':20}{'nothing recomputed':^36}" + "".join(f"{f'within {b / GIB:.1f} GiB':>20}" for b in budgets),
        f"{'':20}{'iteration':>11}{'bubble':>8}{'memory, GiB':>17}",
    ]
    for name in SCHEDULES:
        plain = next(row for row in ROWS if row["schedule"] == name and row["recomputed"] == 0)
        memory = f"{plain['peak'] / GIB:6.1f} to {plain['least'] / GIB:5.1f}"
        lines.append(
            f"{name:20}{plain['iteration_s']:9.2f} s{plain['bubble']:8.1%}{memory:>17}"
            + "".join(f"{cell(fastest(name, budget)):>20}" for budget in budgets)
        )
    Path("schedules.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
