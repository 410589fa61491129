"""``shardsim scale``: one run at several GPU counts."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

import click

from shardsim.cli.options import data_option, json_option, layout_options, run_keys
from shardsim.errors import InputError, Problem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardsim.engine.predict import EngineName
    from shardsim.schema.run import RunRequest
    from shardsim.values.scaling import Grow, ScalingTable

_FILE = click.Path(path_type=Path)
_COUNT = click.IntRange(min=1)


@click.command(no_args_is_help=True)
@click.argument("run_file", metavar="[RUN.yaml]", required=False, type=_FILE)
@click.option("--model", metavar="NAME[,NAME...]", help="Catalog name or path; several: one for each GPU count.")
@click.option("--cluster", metavar="NAME", help="Catalog name, or path of a YAML file.")
@click.option("--gpus", "counts", metavar="N,N,...", required=True, help="GPU counts, ascending: 1,2,4,8.")
@click.option(
    "--grow",
    type=click.Choice(["tp", "pp", "dp", "cp", "ep"]),
    default="dp",
    show_default=True,
    help="Axis that takes the additional GPUs; ep grows within dp, which takes them.",
)
@click.option(
    "--weak/--strong",
    default=True,
    show_default="weak",
    help="Weak: work grows with the GPUs (the global batch is that of the first count, or of RUN.yaml's), or the "
    "model does where several are given. Strong: the work stays.",
)
@layout_options
@click.option("--micro-batch", type=_COUNT, metavar="N", help="Sequences a micro-batch of one replica.")
@click.option("--global-batch", type=_COUNT, metavar="N", help="Sequences an iteration, over all replicas.")
@click.option("--seq", type=_COUNT, metavar="N", help="Tokens a sequence.")
@click.option("--precision", metavar="NAME", help="Data type of the matrix products, such as bf16.")
@click.option("--framework", metavar="NAME", help="Framework profile of the catalog.")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="Any key of a run file, or of the hardware with its unit; may be repeated.",
)
@click.option("--measured", type=_FILE, metavar="FILE.csv", help="Measured points to compare with.")
@click.option(
    "--baseline-tflops",
    type=click.FloatRange(min=1e-6, max=1e9),
    metavar="X",
    help="TFLOP/s per GPU at which efficiency is 1; by default the first point's.",
)
@click.option("--engine", type=click.Choice(["closed", "listing", "des"]), default="listing", show_default=True)
@click.option("--workers", type=_COUNT, default=1, show_default=True, metavar="N", help="Processes that work.")
@click.option(
    "--plot", "plots", type=_FILE, multiple=True, metavar="FILE", help="Plot (.png or .svg); may be repeated."
)
@click.option("--csv", "csv_file", type=_FILE, metavar="FILE", help="Write the table as CSV.")
@json_option
@data_option
def scale(
    run_file: Path | None,
    model: str | None,
    counts: str,
    grow: str,
    weak: bool,  # noqa: FBT001  # click passes flags by name
    settings: tuple[str, ...],
    measured: Path | None,
    baseline_tflops: float | None,
    engine: EngineName,
    workers: int,
    plots: tuple[Path, ...],
    csv_file: Path | None,
    as_json: bool,  # noqa: FBT001
    data: tuple[Path, ...],
    **flags: Any,
) -> None:
    """Predict how a run scales over a list of GPU counts.

    \b
    shardsim scale --model gpt3-175b --cluster dgx-a100 --gpus 64,128,256,512 \\
                   --tp 8 --pp 8 --global-batch 64 --seq 2048 --plot scaling.png
    shardsim scale RUN.yaml --gpus 128,256,512 --strong --csv scaling.csv
    """  # noqa: D301  # click reads the escape
    from shardsim.report.console import progress
    from shardsim.report.plots import plot_format
    from shardsim.report.save import check_outputs
    from shardsim.search.measured import read_measured
    from shardsim.search.scaling import scaling_study
    from shardsim.search.workers import processes

    for plot in plots:
        plot_format(plot)
    outputs = {f"--plot {plot}": plot for plot in plots} | {"--csv": csv_file}
    check_outputs(outputs, [path for path in (run_file, measured) if path is not None])
    gpus = _counts(counts)
    names = [name.strip() for name in model.split(",")] if model else []
    request = _request(run_file, names, flags, settings, grow)
    with progress(f"scaling over {len(gpus)} GPU counts"), processes(workers) as executor:
        table = scaling_study(
            request,
            gpus,
            cast("Grow", grow),
            "weak" if weak else "strong",
            models=names if len(names) > 1 else None,
            measured=() if measured is None else read_measured(measured),
            executor=executor,
            baseline_flops=None if baseline_tflops is None else baseline_tflops * 1e12,
            engine=engine,
            data=data,
        )
    _refuse_empty(table)
    _write(table, plots, csv_file)
    _print(table, as_json=as_json)


def _counts(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise InputError(Problem(f"{text!r} is not a list of GPU counts", "--gpus", "such as 1,2,4,8")) from None


def _request(
    run_file: Path | None, names: Sequence[str], flags: dict[str, Any], settings: Sequence[str], grow: str
) -> RunRequest:
    """The run at the base of the study: the file, with flags on top."""
    from shardsim.schema.run import load_run, request_from_mapping

    if flags[grow] is not None:
        right = f"leave it out: the GPU counts and the other degrees give {grow}"
        raise InputError(Problem(f"--{grow} is the axis that grows", f"--{grow}", right))
    keys = run_keys(flags | {"model": names[0] if names else None}, settings)
    return load_run(run_file, keys) if run_file is not None else request_from_mapping(keys, "command line")


def _refuse_empty(table: ScalingTable) -> None:
    """Refuse a study of which nothing could be predicted: that is bad input, with one reason for each point."""
    if all(point.reason for point in table.points):
        raise InputError([Problem(point.reason, f"{point.gpus} GPUs, {point.model}") for point in table.points])


def _write(table: ScalingTable, plots: Sequence[Path], csv_file: Path | None) -> None:
    from shardsim.report.save import save_text, save_with

    if csv_file is not None:
        from shardsim.report.scaling import scaling_csv

        save_text(csv_file, scaling_csv(table))
    if plots:
        from shardsim.report.plots import plot_format, scaling_plot

        for plot in plots:
            save_with(plot, partial(_put, scaling_plot(table, plot_format(plot))))


def _put(content: bytes, stream: IO[bytes]) -> None:
    stream.write(content)


def _print(table: ScalingTable, *, as_json: bool) -> None:
    if as_json:
        from shardsim.report.scaling import scaling_json

        click.echo(scaling_json(table), nl=False)
        return
    from shardsim.report.console import show
    from shardsim.report.scaling import scaling_text

    show(scaling_text(table))
