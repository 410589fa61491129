"""Makes jobs.txt, ratios.txt and worse.txt of jobs.csv and worse.csv, with published figures beside them."""

from __future__ import annotations

import csv
from pathlib import Path

GPUS = (256, 512, 768)
STEP = {256: 18.37, 512: 9.49}
"""Eos, seconds of a step: github mlcommons/training_results_v4.1, NVIDIA/results/eos_n32_ngc24.09_nemo and eos_n64."""
RATE = {256: 208834 / 256, 512: 404624 / 512}
"""Eos, tokens/s per GPU of a whole run with its evaluations, from the same logs (result_0)."""
OWN = {256: 707.62, 512: 758.0, 768: 714.23}
"""SAKURAONE, tokens/s per GPU: arXiv 2604.13600 by a secondary reading, unverified."""
MINUTES = {256: (96.66, 105.31), 512: (49.80, 58.30), 768: (33.20, 41.86)}
"""Eos, SAKURAONE: of the same reading; Eos with 768 GPUs is extrapolated there."""


def read(name: str) -> list[dict[str, str]]:
    """Rows of a table."""
    with Path(name).open(newline="") as stream:
        return list(csv.DictReader(stream))


JOBS = {(row["cluster"], int(row["gpus"]), int(row["pp"])): row for row in read("jobs.csv")}
NAMES = {"dgx-h100": "NDR InfiniBand", "sakuraone": "SAKURAONE"}


def rate(cluster: str, gpus: int, pp: int) -> float:
    """Tokens/s per GPU."""
    return float(JOBS[cluster, gpus, pp]["tokens_per_s_per_gpu"])


def jobs() -> list[str]:
    """Every job, and where its time goes."""
    lines = [
        "GPT-3 175B in fp8, micro-batch 2, 2,048 sequences of 2,048 tokens (2,304 on 768 GPUs). Iteration, MFU of",
        "1,979 TFLOP/s; bubble and exposed communication of the mean stage, ms.",
        "",
        "GPUs  layout         fabric          iteration    MFU   bubble      tp    pp    dp   published step",
    ]
    for (cluster, gpus, pp), row in JOBS.items():
        milliseconds = "".join(
            f"{1e3 * float(row[f'{key}_s']):{width}.0f}"
            for key, width in (("bubble", 9), ("tp", 8), ("pp", 6), ("dp", 6))
        )
        step = STEP.get(gpus) if (cluster, pp) == ("dgx-h100", 8) else None
        error = f"   {step:.2f} s, {float(row['iteration_s']) / step - 1:+.1%}" if step else ""
        layout = f"TP{row['tp']} PP{pp} VP{row['vpp']}"
        lines.append(
            f"{gpus:4}  {layout:13}  {NAMES[cluster]:14} {float(row['iteration_s']):8.3f} s {float(row['mfu']):6.1%}"
            f"{milliseconds}{error}"
        )
    return lines


def ratios() -> list[str]:
    """Published ratios and what makes them."""
    lines = [
        "SAKURAONE over Eos (NDR InfiniBand): minutes to the quality target; tokens/s, and what is predicted of them.",
        "",
        "                                            256     512     768 GPUs",
    ]

    def line(what: str, values: dict[int, float]) -> str:
        cells = (f"{values[gpus]:8.3f}" if gpus in values else f"{'-':>8}" for gpus in GPUS)
        return f"{what:39}" + "".join(cells)

    fabric = {gpus: rate("dgx-h100", gpus, 16) / rate("sakuraone", gpus, 16) for gpus in GPUS}
    layout = {gpus: rate("dgx-h100", gpus, 8) / rate("dgx-h100", gpus, 16) for gpus in GPUS}
    lines += [
        line("minutes, published (unverified)", {gpus: own / eos for gpus, (eos, own) in MINUTES.items()}),
        line("time a token, published (unverified)", {gpus: eos / OWN[gpus] for gpus, eos in RATE.items()}),
        line("predicted: the fabric alone", fabric),
        line("predicted: the other layout alone", layout),
        line("predicted: both", {gpus: fabric[gpus] * layout[gpus] for gpus in GPUS}),
        "",
        "tokens/s per GPU                            256     512     768",
    ]

    def rates(what: str, values: dict[int, float]) -> str:
        return f"{what:39}" + "".join(f"{values[gpus]:8.0f}" if gpus in values else f"{'-':>8}" for gpus in GPUS)

    lines += [
        rates("Eos, published, with evaluations", RATE),
        rates("SAKURAONE, published (unverified)", OWN),
        rates("SAKURAONE, predicted, steps only", {gpus: rate("sakuraone", gpus, 16) for gpus in GPUS}),
    ]
    return lines


def worse() -> list[str]:
    """What worse Ethernet would cost."""
    rows = read("worse.csv")
    first = float(rows[0]["iteration_s"])
    lines = [
        "512 GPUs of SAKURAONE, TP4 PP16 VP6: iteration, what it adds, exposed pp and dp (ms).",
        "",
    ]
    for row in rows:
        seconds = float(row["iteration_s"])
        exposed = f"{1e3 * float(row['pp_s']):7.0f}{1e3 * float(row['dp_s']):6.0f}"
        lines.append(f"{row['what']:34}{seconds:7.3f} s {seconds / first - 1:+7.2%}{exposed}")
    return lines


for name, lines in {"jobs.txt": jobs(), "ratios.txt": ratios(), "worse.txt": worse()}.items():
    Path(name).write_text("\n".join(lines) + "\n")
