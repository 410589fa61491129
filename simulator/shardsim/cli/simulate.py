"""``shardsim simulate``: one layout, one prediction."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shardsim.cli.conditions import condition_keys, condition_options, engine_options
from shardsim.cli.iterations import iteration_keys, iteration_options
from shardsim.cli.options import data_option, json_option, run_keys, run_options
from shardsim.errors import InputError, Problem

if TYPE_CHECKING:
    from shardsim.engine.des import EventLimitError
    from shardsim.engine.predict import Detail, EngineName
    from shardsim.schema.run import RunRequest
    from shardsim.values.results import Partial, Prediction

_FILE = click.Path(path_type=Path)


@click.command(no_args_is_help=True)
@click.argument("run_file", metavar="[RUN.yaml]", required=False, type=_FILE)
@run_options
@click.option(
    "--engine",
    type=click.Choice(["closed", "listing", "des"]),
    default="des",
    show_default=True,
    help="Closed form, longest path, or discrete events.",
)
@click.option(
    "--detail",
    type=click.Choice(["stages", "operators"]),
    default="stages",
    show_default=True,
    help="What the engine steps through: whole passes, or every operator.",
)
@iteration_options
@engine_options
@condition_options
@click.option("--require-fit", is_flag=True, help="Exit with status 1 when the layout does not fit into memory.")
@json_option
@click.option("--trace", type=_FILE, metavar="FILE", help="Write the timeline for Perfetto or chrome://tracing.")
@click.option("--html", type=_FILE, metavar="FILE", help="Write a self-contained page.")
@data_option
@click.pass_context
def simulate(
    context: click.Context,
    /,
    *,
    run_file: Path | None,
    settings: tuple[str, ...],
    engine: EngineName,
    detail: Detail,
    require_fit: bool,
    as_json: bool,
    trace: Path | None,
    html: Path | None,
    data: tuple[Path, ...],
    unfold: bool,
    contention: bool,
    max_events: int | None,
    max_seconds: float | None,
    iterations: int,
    **flags: Any,
) -> None:
    """Predict one iteration of a run described by RUN.yaml, by flags, or by a file with flags on top.

    \b
    shardsim simulate RUN.yaml
    shardsim simulate RUN.yaml --tp 4 --json
    shardsim simulate --model gpt3-175b --cluster dgx-a100 --gpus 1024 --tp 8 \\
                      --pp 8 --vpp 3 --global-batch 1536 --seq 2048
    """  # noqa: D301  # click reads the escape
    from shardsim.engine.des import EventLimitError
    from shardsim.engine.predict import EventOptions, predict
    from shardsim.program.resolve import resolve
    from shardsim.report.console import progress
    from shardsim.report.save import check_outputs
    from shardsim.schema.run import merged

    if trace is not None and engine == "closed":
        raise InputError(
            Problem("the closed form has no timeline to write", "--trace", "use --engine listing or --engine des")
        )
    options = EventOptions(unfold, contention, max_events, max_seconds)
    if engine != "des" and options != EventOptions():
        raise InputError(Problem(f"the engine {engine} steps through no events", "--engine", "use --engine des"))
    check_outputs({"--trace": trace, "--html": html}, [run_file] if run_file is not None else [])
    conditions = condition_keys(flags)
    more = iteration_keys(flags) | ({"conditions": conditions} if conditions else {})
    keys = merged(run_keys(flags, settings), more)
    run = resolve(_request(run_file, keys), data)
    try:
        with progress(f"simulating {run.model.name} on {run.cluster.name}"):
            traced = trace is not None
            prediction = predict(
                run, engine=engine, detail=detail, timeline=traced, options=options, iterations=iterations
            )
            _write(prediction, trace, html)
    except (EventLimitError, KeyboardInterrupt) as stopped:
        _stop(stopped, trace, as_json=as_json)
        context.exit(1 if isinstance(stopped, EventLimitError) else 130)
    _print(prediction, as_json=as_json)
    if require_fit and not prediction.memory.fits:
        context.exit(1)


def _stop(stopped: EventLimitError | KeyboardInterrupt, trace: Path | None, *, as_json: bool) -> None:
    """Say how far a simulation got that did not finish, and keep what it has seen."""
    from shardsim.report.partial import partial_record, partial_text
    from shardsim.report.records import record_json

    partial: Partial | None = getattr(stopped, "partial", None)
    if partial is None:
        raise stopped
    if trace is not None and partial.timeline is not None:
        from shardsim.report.trace import save_trace

        note = save_trace(trace, partial.timeline)
        if note:
            click.echo(note, err=True)
    why = str(stopped).partition(":")[0] or "interrupted"
    if as_json:
        click.echo(record_json(partial_record(partial, why)), nl=False)
    else:
        click.echo(partial_text(partial, why))


def _request(run_file: Path | None, keys: dict[str, Any]) -> RunRequest:
    """The run as asked for: the file, with flags on top."""
    from shardsim.schema.run import load_run, request_from_mapping

    return load_run(run_file, keys) if run_file is not None else request_from_mapping(keys, "command line")


def _write(prediction: Prediction, trace: Path | None, html: Path | None) -> None:
    """Write the files that were asked for."""
    from shardsim.report.save import save_text

    timeline = prediction.execution.timeline
    if trace is not None and timeline is not None:
        from shardsim.engine.memory_over_time import histories_of_lanes
        from shardsim.report.trace import save_trace

        note = save_trace(trace, timeline, histories_of_lanes(prediction.run, timeline))
        if note:
            click.echo(note, err=True)
    if html is not None:
        from shardsim.report.page import prediction_page

        save_text(html, prediction_page(prediction))


def _print(prediction: Prediction, *, as_json: bool) -> None:
    """Print the prediction for people or for programs."""
    if as_json:
        from shardsim.report.records import prediction_record, record_json

        click.echo(record_json(prediction_record(prediction)), nl=False)
        return
    from shardsim.report.console import show
    from shardsim.report.text import prediction_text

    show(prediction_text(prediction))
