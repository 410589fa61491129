"""Errors by group, held out, beside their bounds; plots of them; what each term is worth. See run.sh."""

from __future__ import annotations

import csv
import sys
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import matplotlib as mpl
import numpy as np

from shardsim.engine.predict import predict
from shardsim.engine.waterfall import mean_seconds
from shardsim.program.features import features_of
from shardsim.validate.bands import read_errors
from shardsim.validate.measured import measured_as_runs

mpl.use("Agg")
import matplotlib.pyplot as plt  # after the choice of what draws

HERE = Path(__file__).resolve().parent / "measured"
DROPPED = {
    "host": "the host never late",
    "attention": "no time for attention",
    "bubble": "no bubble",
    "tp": "no communication of tensor parallelism",
    "dp": "no communication of data parallelism",
    "pp": "no time for pipeline messages",
    "ep": "no exchange of tokens",
    "cp": "no communication of context parallelism",
    "recompute": "no recompute",
    "memory-bound": "no memory-bound kernels",
    "optimizer": "no optimizer",
    "interference": "nothing slowed by what runs beside it",
}


@dataclass(frozen=True)
class Row:
    """One measured run and its prediction."""

    id: str
    source: str
    framework: str
    measured: float
    predicted: float
    held_out: float
    seconds: dict[str, float]
    flat: float
    dense: bool
    generation: str
    profile: str
    healthy: bool
    gpus: int
    dp: int
    seq: int
    micro_batch: int
    file: str


def flat_products(run):
    """The same run with every product at three quarters of the dense peak, whatever its shape."""
    kernels = run.profile.kernels
    gemm = {
        name: replace(constants, sustained=0.75, tile=None, residual=None) for name, constants in kernels.gemm.items()
    }
    return replace(run, profile=replace(run.profile, kernels=replace(kernels, gemm=gemm)))


def rows_of(table: Path, held_out: dict[str, float]) -> list[Row]:
    """Predict every row of a table."""
    measured = measured_as_runs([table])
    found = []
    for row, run, condition in zip(measured.rows, measured.runs, measured.conditions, strict=True):
        prediction, features = predict(run, engine="listing"), features_of(run)
        error = prediction.iteration_s / row.iteration_s - 1.0
        found.append(
            Row(
                row.id,
                row.source,
                row.framework,
                row.iteration_s,
                prediction.iteration_s,
                held_out.get(row.id, error),
                mean_seconds(prediction.execution.stages),
                predict(flat_products(run), engine="listing").iteration_s,
                features.kind == "dense",
                features.generation,
                features.framework,
                condition != "sick",
                features.gpus,
                features.dp,
                features.seq,
                features.micro_batch,
                table.stem,
            )
        )
    return found


def main_table(rows: list[Row]) -> list[Row]:
    """Rows of the table of many stacks."""
    return [row for row in rows if row.file == "measured_runs"]


def megatron(row: Row) -> bool:
    """Whether a row is of NVIDIA's Megatron of 2024 and after."""
    return row.profile.startswith(("megatron-core", "megatron-bridge"))


A100 = ("megatron-2020", "megatron-2021", "megatron-2022", "megatron-deepspeed-fp16", "megatron-deepspeed-bf16")
GROUPS = (
    ("all of measured_runs", (0.06, 0.20), lambda row: row.file == "measured_runs"),
    (
        "dense, Megatron and NeMo on H100",
        (0.05, 0.13),
        lambda r: r.dense and megatron(r) and r.generation == "h100-sxm",
    ),
    (
        "Megatron on A100",
        (0.04, 0.09),
        lambda r: r.profile in ("megatron-2020", "megatron-2021", "megatron-2022") and r.generation == "a100-sxm",
    ),
    (
        "Megatron on A100, BigScience too",
        (0.04, 0.09),
        lambda r: r.profile in A100 and r.generation == "a100-sxm" and r.file == "measured_runs",
    ),
    ("FSDP", (0.05, 0.14), lambda r: r.profile.startswith(("fsdp", "torchtitan"))),
    ("vTrain, single node", (0.06, 0.16), lambda r: r.file == "vtrain_single_node_a100"),
    ("vTrain, multi node", (0.07, 0.25), lambda r: r.file == "vtrain_multi_node_a100"),
    ("dense on Blackwell", (0.08, 0.18), lambda r: r.dense and r.generation.startswith(("b200", "b300", "gb"))),
    ("H100 sweep, healthy rows", (0.07, 0.24), lambda r: r.profile.startswith("nanotron") and r.healthy),
    ("experts", (0.12, 0.25), lambda r: not r.dense),
)


def figures(errors: np.ndarray) -> tuple[float, float, float]:
    """Median and 90th percentile of the size of errors, and their median."""
    return float(np.median(np.abs(errors))), float(np.quantile(np.abs(errors), 0.9)), float(np.median(errors))


def weighted(errors: np.ndarray, sources: list[str]) -> tuple[float, float, float]:
    """The same with every source weighted equally."""
    counts = Counter(sources)
    weights = np.array([1.0 / counts[source] for source in sources])

    def at(values: np.ndarray, share: float) -> float:
        order = np.argsort(values, kind="stable")
        reached = np.cumsum(weights[order]) / weights.sum()
        return float(values[order][np.searchsorted(reached, share - 1e-12)])

    return at(np.abs(errors), 0.5), at(np.abs(errors), 0.9), at(errors, 0.5)


def write_groups(rows: list[Row]) -> None:
    """Errors of every group, held out, beside their bounds."""
    header = ["group", "rows", "median", "p90", "bias", "median of sources", "p90 of sources", "bias of sources"]
    lines: list[list[object]] = [[*header, "bound of median", "bound of p90", "met"]]
    for name, bound, of in GROUPS:
        group = [row for row in rows if of(row)]
        errors = np.array([row.held_out for row in group])
        pooled = figures(errors)
        met = pooled[0] <= bound[0] and pooled[1] <= bound[1]
        cells = [f"{value:.4f}" for value in (*pooled, *weighted(errors, [row.source for row in group]), *bound)]
        lines.append([name, len(group), *cells, "yes" if met else "no"])
    write("groups.csv", lines)


def write_ablation(rows: list[Row]) -> None:
    """Errors without one term, after the level of every software stack was fitted again."""
    known = [row for row in main_table(rows) if row.healthy]
    lines: list[list[object]] = [["term", "median", "p90"]]

    def line(name: str, times: np.ndarray) -> None:
        profiles = np.array([row.profile for row in known])
        measured = np.array([row.measured for row in known])
        scaled = times.copy()
        for profile in np.unique(profiles):
            own = profiles == profile
            scaled[own] /= np.median(times[own] / measured[own])
        median, p90, _ = figures(scaled / measured - 1.0)
        lines.append([name, f"{median:.4f}", f"{p90:.4f}"])

    whole = np.array([row.predicted for row in known])
    line("nothing left out", whole)
    for category, name in DROPPED.items():
        spent = np.array([row.seconds.get(category, 0.0) for row in known])
        line(name, np.maximum(whole - spent, 0.05 * whole))
    line("products at 75 % of peak whatever their shape", np.array([row.flat for row in known]))
    write("ablation.csv", lines)


def write(name: str, lines: list[list[object]]) -> None:
    """Write a table."""
    with (HERE / name).open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream, lineterminator="\n").writerows(lines)


def draw(rows: list[Row]) -> None:
    """Draw errors by group, and against figures of the layout."""
    named = [(name, [100 * row.held_out for row in rows if of(row)]) for name, _, of in GROUPS]
    figure, axes = plt.subplots(figsize=(9, 4.5), layout="constrained")
    axes.boxplot([errors for _, errors in named], orientation="horizontal", whis=(10, 90), showfliers=False)
    axes.set_yticks(range(1, len(named) + 1), [f"{name} ({len(errors)})" for name, errors in named])
    axes.axvspan(-10, 10, color="0.9")
    axes.axvline(0, color="0.5", linewidth=0.8)
    axes.set_xlabel("predicted / measured - 1, held out (%): quartiles, and 10 to 90 %")
    figure.savefig(HERE / "by-group.png", dpi=120, metadata={"Software": None})
    plt.close(figure)
    figure, panels = plt.subplots(2, 2, figsize=(9, 7), sharey=True, layout="constrained")
    healthy = [row for row in rows if row.healthy]
    for panel, (name, label) in zip(
        panels.flat, (("gpus", "GPUs"), ("dp", "DP"), ("seq", "sequence"), ("micro_batch", "micro-batch")), strict=True
    ):
        panel.axhspan(-10, 10, color="0.9")
        figures_of = [getattr(row, name) for row in healthy]
        panel.plot(figures_of, [100 * row.held_out for row in healthy], ".", markersize=3, alpha=0.5)
        panel.set_xscale("log", base=2)
        panel.set_ylim(-60, 60)
        panel.set_xlabel(label)
    panels[0, 0].set_ylabel("error, held out (%)")
    panels[1, 0].set_ylabel("error, held out (%)")
    figure.savefig(HERE / "by-figure.png", dpi=120, metadata={"Software": None})
    plt.close(figure)


def main() -> None:
    """Predict every row, and write tables and drawings."""
    held_out = read_errors(Path(sys.argv[1]))
    rows = [row for table in sys.argv[2:] for row in rows_of(Path(table), held_out)]
    write_groups(rows)
    write_ablation(rows)
    draw(rows)


if __name__ == "__main__":
    main()
