"""Writes study.txt, counts.txt and moe.txt from the tables of the studies."""

from __future__ import annotations

import csv
from itertools import groupby
from pathlib import Path

GIB = 2.0**30


def read(name: str) -> list[dict]:
    """Rows of a table, numbers as numbers."""
    with Path(name).open(newline="") as stream:
        return [{key: _number(value) for key, value in row.items()} for row in csv.DictReader(stream)]


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def case_of(row: dict) -> str:
    """A case in words."""
    return f"{row['model']} on {row['gpus']:,.0f} A100, {row['global_batch']:,.0f} sequences of 8,192 tokens"


def layout(row: dict) -> str:
    """A layout in words."""
    chunks = f" x{row['vpp']:.0f}" if row["schedule"] == "interleaved" else ""
    schedule = f"{row['schedule']}{chunks}" if row["pp"] > 1 else "no pipeline"
    degrees = " ".join(f"{axis.upper()}{row[axis]:.0f}" for axis in ("tp", "pp", "cp", "dp"))
    return f"{degrees}, {schedule}, ZeRO {row['zero']:.0f}, recompute {row['recompute']}"


def study() -> str:
    """The fastest layouts of every case."""
    head = (
        f"{'':30}{'iteration':>10}{'MFU':>7}{'bubble':>8}{'TP':>8}{'DP':>8}{'CP':>8}{'memory':>8}{'model':>8}  layout"
    )
    lines = []
    for (case, nvlink), rows in groupby(read("study.csv"), key=lambda row: (case_of(row), row["nvlink"])):
        lines += [f"{case}, NVLink {nvlink:.0f} GB/s", head]
        lines += [
            f"{row['question']:30}{row['iteration_s']:8.2f} s{row['mfu']:7.1%}{row['bubble']:8.1%}"
            f"{row['tp_s']:6.2f} s{row['dp_s']:6.2f} s{row['cp_s']:6.2f} s{row['memory'] / GIB:8.1f}"
            f"{row['parameters'] / GIB:8.1f}  {layout(row)}"
            for row in rows
        ]
        lines.append("")
    return "\n".join(lines[:-1])


def counts() -> str:
    """How many layouts each answer is the best of."""
    head = f"{'':30}{'enumerated':>11}{'valid':>8}{'could win':>11}{'of these fit':>14}"
    lines = []
    for (case, nvlink), rows in groupby(read("study.csv"), key=lambda row: (case_of(row), row["nvlink"])):
        if nvlink == 300:
            lines += [case, head]
            lines += [
                f"{row['question']:30}{row['enumerated']:11,.0f}{row['valid']:8,.0f}{row['counted']:11,.0f}"
                f"{row['fitting']:14,.0f}"
                for row in rows
                if row["enumerated"]
            ]
    return "\n".join(lines)


def moe() -> str:
    """DeepSeek-V3."""
    lines = [
        "deepseek-v3 on 2,048 H800, EP 64 PP 16 ZeRO 1, 7,680 sequences of 4,096 tokens",
        f"{'NVLink':>10}  {'':16}{'iteration':>10}{'MFU':>7}{'bubble':>8}{'TP':>8}{'EP':>8}{'memory':>8}{'model':>8}",
    ]
    lines += [
        f"{row['nvlink']:5.0f} GB/s  {row['schedule'] + ', TP ' + str(int(row['tp'])):16}{row['iteration_s']:8.2f} s"
        f"{row['mfu']:7.1%}{row['bubble']:8.1%}{row['tp_s']:6.2f} s{row['ep_s']:6.2f} s{row['memory'] / GIB:8.1f}"
        f"{row['parameters'] / GIB:8.1f}"
        for row in read("moe.csv")
    ]
    return "\n".join(lines)


def main() -> None:
    """Write all three."""
    for name, make in (("study", study), ("counts", counts), ("moe", moe)):
        Path(f"{name}.txt").write_text(make() + "\n")


if __name__ == "__main__":
    main()
