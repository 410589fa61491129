"""``shardsim critical``: what an iteration waits for, and what would make it shorter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from shardsim.cli.options import data_option, json_option, run_keys, run_options


@click.command(no_args_is_help=True)
@click.argument("run_file", metavar="[RUN.yaml]", required=False, type=click.Path(path_type=Path))
@run_options
@click.option(
    "--what-if",
    "what_ifs",
    multiple=True,
    metavar="NAME[=FACTOR]",
    help="Make an axis (tp, pp, dp, cp, ep), a category (gemm, host ...), one kind of communication "
    "(tp:all-reduce) or several (tp+pp) take FACTOR times as long, by default 0: free; may be repeated.",
)
@click.option(
    "--top",
    type=click.IntRange(min=0),
    default=10,
    show_default=True,
    metavar="N",
    help="Operators to name, those the path spends longest in.",
)
@json_option
@data_option
def critical(
    *,
    run_file: Path | None,
    settings: tuple[str, ...],
    what_ifs: tuple[str, ...],
    top: int,
    as_json: bool,
    data: tuple[Path, ...],
    **flags: Any,
) -> None:
    """Show the critical path of an iteration, through computation and communication, and what would shorten it.

    Everything that the run spends time on is made free in turn, and the iteration found anew.

    \b
    shardsim critical RUN.yaml
    shardsim critical RUN.yaml --what-if tp=0.5 --what-if tp:all-reduce+pp
    shardsim critical --model gpt3-175b --cluster dgx-a100 --gpus 1024 --tp 8 \\
                      --pp 8 --vpp 3 --global-batch 1536 --seq 2048
    """  # noqa: D301  # click reads the escape
    from shardsim.engine.what_if import critical_answer
    from shardsim.program.resolve import resolve
    from shardsim.report.console import progress, show
    from shardsim.report.critical import critical_record, critical_text
    from shardsim.report.records import record_json
    from shardsim.schema.run import load_run, request_from_mapping

    keys = run_keys(flags, settings)
    request = load_run(run_file, keys) if run_file is not None else request_from_mapping(keys, "command line")
    run = resolve(request, data)
    with progress(f"walking through {run.model.name} on {run.cluster.name}"):
        answer = critical_answer(run, what_ifs)
    if as_json:
        click.echo(record_json(critical_record(answer, top)), nl=False)
        return
    show(critical_text(answer, top))
