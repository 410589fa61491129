"""``shardsim memory``: what each stage holds, whether it fits, and what would make it fit."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from shardsim.cli.options import data_option, json_option, run_keys, run_options
from shardsim.errors import InputError, Problem

if TYPE_CHECKING:
    from shardsim.schema.run import RunRequest
    from shardsim.values.fit import MemoryAnswer
    from shardsim.values.training import TrainingRun

_FILE = click.Path(path_type=Path)


@click.command(no_args_is_help=True)
@click.argument("run_file", metavar="[RUN.yaml]", required=False, type=_FILE)
@run_options
@click.option("--advise/--no-advise", default=True, help="Look for changes that make it fit where it does not.")
@click.option("--require-fit", is_flag=True, help="Exit with status 1 when the layout does not fit.")
@json_option
@click.option("--plot", type=_FILE, metavar="FILE", help="Draw the memory of every stage (.png or .svg).")
@click.option(
    "--over-time",
    type=_FILE,
    metavar="FILE",
    help="Draw memory over a simulated iteration (.png or .svg), or write it (.csv).",
)
@data_option
@click.pass_context
def memory(
    context: click.Context,
    /,
    *,
    run_file: Path | None,
    settings: tuple[str, ...],
    advise: bool,
    require_fit: bool,
    as_json: bool,
    plot: Path | None,
    over_time: Path | None,
    data: tuple[Path, ...],
    **flags: Any,
) -> None:
    """Show what a GPU of each pipeline stage holds at its fullest moment, and whether it fits.

    Where it does not, changes to the run are tried, one after the other and two together, and those that make it fit
    are shown with what they cost in iteration time.

    \b
    shardsim memory RUN.yaml
    shardsim memory RUN.yaml --recompute full --plot memory.png
    shardsim memory --model gpt3-175b --cluster dgx-a100 --gpus 128 --tp 8 \\
                    --pp 8 --global-batch 64 --seq 2048 --over-time memory.csv
    """  # noqa: D301  # click reads the escape
    from shardsim.program.resolve import resolve
    from shardsim.report.console import progress
    from shardsim.report.plots import plot_format
    from shardsim.report.save import check_outputs
    from shardsim.search.fit import memory_answer

    if plot is not None:
        plot_format(plot)
    if over_time is not None:
        _over_time_format(over_time)
    check_outputs({"--plot": plot, "--over-time": over_time}, [run_file] if run_file is not None else [])
    request = _request(run_file, run_keys(flags, settings))
    # Without a price there is no timeline; better said before the work than after.
    run = resolve(request, data) if over_time is not None else None
    with progress("counting memory") as done:
        answer = memory_answer(request, data, advise=advise, done=done)
    if plot is not None:
        _write_plot(answer, plot)
    if run is not None and over_time is not None:
        _write_over_time(answer, run, over_time)
    _print(answer, as_json=as_json)
    if require_fit and not answer.memory.fits:
        context.exit(1)


def _request(run_file: Path | None, keys: dict[str, Any]) -> RunRequest:
    """The run as asked for: the file, with flags on top."""
    from shardsim.schema.run import load_run, request_from_mapping

    return load_run(run_file, keys) if run_file is not None else request_from_mapping(keys, "command line")


def _over_time_format(path: Path) -> str:
    """``csv``, ``png`` or ``svg``."""
    ending = path.suffix.lower().lstrip(".")
    if ending not in ("csv", "png", "svg"):
        what = f"{path.name or str(path)!r} does not end in .png, .svg or .csv"
        raise InputError(Problem(what, "--over-time", "such as memory.png"))
    return ending


def _write_plot(answer: MemoryAnswer, path: Path) -> None:
    from shardsim.report.memory_plots import memory_plot
    from shardsim.report.plots import plot_format
    from shardsim.report.save import save_with

    save_with(path, partial(_put, memory_plot(answer, plot_format(path))))


def _write_over_time(answer: MemoryAnswer, run: TrainingRun, path: Path) -> None:
    """Simulate the run, and write what its stages hold as a drawing or a table."""
    from shardsim.engine.memory_over_time import memory_over_time
    from shardsim.report.console import progress
    from shardsim.report.save import save_text, save_with

    with progress(f"simulating {run.model.name} on {run.cluster.name}"):
        histories = memory_over_time(run)
    kind = _over_time_format(path)
    if kind == "csv":
        from shardsim.report.memory_records import histories_csv

        save_text(path, histories_csv(histories))
        return
    from shardsim.report.memory_plots import history_plot

    save_with(path, partial(_put, history_plot(answer, histories, kind)))


def _put(content: bytes, stream: IO[bytes]) -> None:
    stream.write(content)


def _print(answer: MemoryAnswer, *, as_json: bool) -> None:
    """Print the answer for people or for programs."""
    if as_json:
        from shardsim.report.memory_records import memory_record
        from shardsim.report.records import record_json

        click.echo(record_json(memory_record(answer)), nl=False)
        return
    from shardsim.report.console import show
    from shardsim.report.memory import memory_text

    show(memory_text(answer))
