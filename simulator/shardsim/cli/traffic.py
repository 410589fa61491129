"""``shardsim topology traffic``: how much of what a run communicates goes over which link."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from shardsim.cli.options import data_option, json_option, run_keys, run_options
from shardsim.errors import InputError, Problem


@click.command(no_args_is_help=True)
@click.argument("run_file", metavar="[RUN.yaml]", required=False, type=click.Path(path_type=Path))
@run_options
@click.option("--stage", type=click.IntRange(min=0), metavar="N", help="Pipeline stage to show; by default their mean.")
@click.option(
    "--plot", type=click.Path(path_type=Path), metavar="FILE", help="Draw the layout on its cluster: .png or .svg."
)
@json_option
@data_option
def traffic(
    *,
    run_file: Path | None,
    settings: tuple[str, ...],
    stage: int | None,
    plot: Path | None,
    as_json: bool,
    data: tuple[Path, ...],
    **flags: Any,
) -> None:
    """Say what a rank sends in an iteration, by axis and link: NVLink, adapter, leaf to spine.

    \b
    shardsim topology traffic RUN.yaml
    shardsim topology traffic --model gpt3-175b --cluster dgx-a100 --gpus 1024 \\
                              --tp 8 --pp 8 --global-batch 1536 --seq 2048
    """  # noqa: D301  # click reads the escape
    from shardsim.engine.predict import predict
    from shardsim.program.resolve import resolve
    from shardsim.program.traffic import traffic as traffic_of
    from shardsim.report import console
    from shardsim.report.layout_drawing import layout_drawing
    from shardsim.report.plots import plot_format
    from shardsim.report.records import record_json
    from shardsim.report.save import check_outputs, save_with
    from shardsim.report.traffic import traffic_record, traffic_text
    from shardsim.schema.run import load_run, request_from_mapping

    drawn = None if plot is None else plot_format(plot)
    check_outputs({"--plot": plot}, [run_file] if run_file is not None else [])
    keys = run_keys(flags, settings)
    request = load_run(run_file, keys) if run_file is not None else request_from_mapping(keys, "command line")
    run = resolve(request, data)
    if stage is not None and stage >= run.layout.pp:
        raise InputError(Problem(f"there is no stage {stage}", "--stage", f"0 to {run.layout.pp - 1}"))
    with console.progress(f"counting what {run.model.name} sends on {run.cluster.name}"):
        prediction, rows = predict(run, engine="listing"), traffic_of(run)
        if plot is not None and drawn is not None:
            image = layout_drawing(prediction, rows, drawn)
            save_with(plot, lambda stream: stream.write(image))
    if as_json:
        click.echo(record_json(traffic_record(prediction, rows)), nl=False)
        return
    console.show(traffic_text(prediction, rows, stage))
