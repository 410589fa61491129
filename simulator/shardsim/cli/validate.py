"""``shardsim validate``: measurements against predictions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from shardsim.cli.lazy import NearNameGroup
from shardsim.cli.options import data_option, json_option
from shardsim.cli.validate_cases import cases
from shardsim.cli.validate_gemms import gemms
from shardsim.cli.validate_memory import memory
from shardsim.cli.validate_published import published
from shardsim.errors import InputError, Problem

if TYPE_CHECKING:
    from shardsim.engine.predict import EngineName
    from shardsim.validate.table import ValidationTable

_FILE = click.Path(path_type=Path)


@click.group(cls=NearNameGroup)
def validate() -> None:
    """Compare predictions with measurements."""


validate.add_command(gemms)
validate.add_command(memory)
validate.add_command(cases)
validate.add_command(published)


@validate.command(short_help="Measured training runs: iteration times.")
@click.argument("measured_files", metavar="[FILE.csv]...", nargs=-1, type=_FILE)
@click.option("--out", type=_FILE, metavar="ROWS.csv", help="Write one row for every input row.")
@click.option("--plot", type=_FILE, metavar="FILE", help="Scatter of predicted and measured times (.png or .svg).")
@click.option("--engine", type=click.Choice(["closed", "listing", "des"]), default="listing", show_default=True)
@click.option(
    "--workers", type=click.IntRange(min=1), default=1, show_default=True, metavar="N", help="Processes that work."
)
@click.option("--bands", type=_FILE, metavar="BANDS.yaml", help="Write the error bands that predictions carry.")
@click.option(
    "--errors",
    type=_FILE,
    metavar="ROWS.csv",
    help="Held-out errors for --bands, from calibrate stack.",
)
@json_option
@data_option
def runs(
    measured_files: tuple[Path, ...],
    out: Path | None,
    plot: Path | None,
    engine: EngineName,
    workers: int,
    bands: Path | None,
    errors: Path | None,
    as_json: bool,  # noqa: FBT001  # click passes flags by name
    data: tuple[Path, ...],
) -> None:
    """Predict every measured training run of the files; without any, those that come with shardsim.

    Columns needed: gpu, num_gpus, layers, hidden, heads, vocab, seq_len, global_batch, micro_batch,
    iteration_time_s. Others are used where they are: id, source, year, cluster, gpu_mem_gb, model,
    arch_class, ffn_hidden, kv_heads, tp, pp, vpp, dp, sp, zero_stage, schedule, recompute, precision,
    framework, interconnect_inter.
    """
    from shardsim.report.console import progress
    from shardsim.report.plots import plot_format
    from shardsim.report.save import check_outputs, save_text
    from shardsim.search.workers import processes
    from shardsim.validate.bands import bands_yaml, read_errors, validated_groups
    from shardsim.validate.runs import shipped_runs, validate_runs

    if plot is not None:
        plot_format(plot)
    check_outputs({"--out": out, "--plot": plot, "--bands": bands}, list(measured_files))
    held_out = read_errors(errors) if errors is not None else None
    paths = measured_files or (shipped_runs(data),)
    named = ", ".join(path.name for path in paths)
    with progress(f"predicting the runs of {named}", total=1.0) as advance, processes(workers) as executor:
        table = validate_runs(
            paths, data, engine=engine, executor=executor, progress=lambda _done, total: advance(1 / total)
        )
    if plot is not None and table.overall.predicted == 0:
        raise InputError(Problem("no row could be predicted: there is nothing to draw", "--plot", _reasons(table)))
    _write(table, out, plot)
    if bands is not None:
        known = sum(row.error is not None and row.id in (held_out or {}) for row in table.rows)
        made_from = f"{named}; held-out errors of {known:,} of {table.overall.predicted:,} rows"
        save_text(bands, bands_yaml(validated_groups(table.rows, held_out), made_from))
    _print(table, as_json=as_json)


@validate.command(short_help="Measured collectives: times of nccl-tests and the like.", no_args_is_help=True)
@click.argument("measured_file", metavar="FILE.csv", type=_FILE)
@click.option("--out", type=_FILE, metavar="ROWS.csv", help="Write one row for every input row.")
@click.option("--plot", type=_FILE, metavar="FILE", help="Scatter of predicted and measured times (.png or .svg).")
@json_option
@data_option
def collectives(
    measured_file: Path,
    out: Path | None,
    plot: Path | None,
    as_json: bool,  # noqa: FBT001  # click passes flags by name
    data: tuple[Path, ...],
) -> None:
    """Predict every measured collective of FILE.csv.

    Columns needed: gpu, gpus_per_node, nodes, collective, bytes (the whole buffer), time_us.
    Others are used where they are: id, source, log_file, note, dtype, inter_node_gbps_per_gpu,
    healthy, cluster, fabric.
    """
    from shardsim.report.console import progress
    from shardsim.report.plots import plot_format
    from shardsim.report.save import check_outputs
    from shardsim.validate.collectives import validate_collectives

    if plot is not None:
        plot_format(plot)
    check_outputs({"--out": out, "--plot": plot}, [measured_file])
    with progress(f"predicting the rows of {measured_file.name}"):
        table = validate_collectives(measured_file, data)
    if plot is not None and table.overall.predicted == 0:
        raise InputError(Problem("no row could be predicted: there is nothing to draw", "--plot", _reasons(table)))
    _write(table, out, plot)
    _print(table, as_json=as_json)


def _reasons(table: ValidationTable) -> str:
    return "; ".join(f"{rows} rows: {reason}" for reason, rows in table.skipped[:3])


def _write(table: ValidationTable, out: Path | None, plot: Path | None) -> None:
    from shardsim.report.save import save_text, save_with

    if out is not None:
        from shardsim.report.validation import rows_csv

        save_text(out, rows_csv(table))
    if plot is not None:
        from shardsim.report.plots import plot_format, validation_scatter

        drawn = validation_scatter(table, plot_format(plot))
        save_with(plot, lambda stream: stream.write(drawn))


def _print(table: ValidationTable, *, as_json: bool) -> None:
    if as_json:
        from shardsim.report.validation import validation_json

        click.echo(validation_json(table), nl=False)
        return
    from shardsim.report.console import show
    from shardsim.report.validation import validation_text

    show(validation_text(table))
