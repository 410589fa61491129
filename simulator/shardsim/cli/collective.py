"""``shardsim collective``: how long a collective takes, how it is done, and why so; or a table over groups."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING

import click

from shardsim.cli.options import count, data_option, json_option
from shardsim.errors import InputError, Problem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardsim.program.ask import AskedKind, CollectiveAnswer

_FILE = click.Path(path_type=Path)


def _kind(text: str) -> str:
    from shardsim.schema.collectives import collective_name

    try:
        return collective_name(text)
    except InputError as error:
        raise click.BadParameter("; ".join(map(str, error.problems))) from None


def _counts(text: str) -> list[int]:
    return [count(part) for part in text.split(",")]


def _names(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")]


@click.command(no_args_is_help=True)
@click.argument("kind", metavar="COLLECTIVE", type=_kind)
@click.argument("size", metavar="SIZE")
@click.option(
    "--cluster",
    "clusters",
    required=True,
    type=_names,
    metavar="NAME[,NAME...]",
    help="Catalog clusters, or paths; several are compared.",
)
@click.option(
    "--ranks", required=True, type=_counts, metavar="N[,N...]", help="Members of the group; several make a table."
)
@click.option("--per-node", type=count, metavar="N", help="Ranks on each node; by default nodes are filled.")
@click.option("--dtype", default="bf16", show_default=True, metavar="TYPE", help="Switches cannot add 8-bit types.")
@click.option("--fabric", metavar="NAME", help="Another fabric profile than the cluster's own.")
@click.option("--algorithm", metavar="NAME", help="Force ring, tree, nvls, nvls_tree, sharp, pat, direct ...")
@click.option(
    "--repeat",
    type=count,
    default=1,
    metavar="N",
    help="How many in a row: a layer under tensor parallelism does 4 all-reduces.",
)
@click.option(
    "--plot", "plots", type=_FILE, multiple=True, metavar="FILE", help="Plot (.png or .svg); may be repeated."
)
@click.option("--csv", "csv_file", type=_FILE, metavar="FILE", help="Write the table as CSV.")
@json_option
@data_option
def collective(
    kind: AskedKind,
    size: str,
    *,
    clusters: list[str],
    ranks: list[int],
    per_node: int | None,
    dtype: str,
    fabric: str | None,
    algorithm: str | None,
    repeat: int,
    plots: tuple[Path, ...],
    csv_file: Path | None,
    as_json: bool,
    data: tuple[Path, ...],
) -> None:
    """Tell how long a collective takes when alone, its algorithm and bus bandwidth, and why that algorithm.

    COLLECTIVE is all_reduce, all_gather, reduce_scatter, all_to_all, broadcast or send_recv: every rank
    sends to the next.

    SIZE is the whole buffer, as nccl-tests counts it: for an all-gather what every rank ends up with.
    Several clusters or groups make a table, a CSV file, a plot.

    \b
    shardsim collective all_reduce 1GiB --cluster dgx-h100 --ranks 8
    shardsim collective all_to_all "64 MiB" --cluster gb200-nvl72 --ranks 144 \\
                        --dtype fp8
    shardsim collective all_reduce "48 MiB" --cluster dgx-a100,dgx-h100 \\
                        --ranks 2,4,8,16 --repeat 4 --plot layer.png
    """  # noqa: D301  # click reads the escape
    from shardsim.program.ask import ask_collective
    from shardsim.report.plots import plot_format
    from shardsim.report.save import check_outputs
    from shardsim.schema.hardware import load_cluster, load_fabric_profile
    from shardsim.units import parse

    for plot in plots:
        plot_format(plot)
    check_outputs({f"--plot {plot}": plot for plot in plots} | {"--csv": csv_file})
    try:
        size_bytes = parse(size, "size")
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="SIZE") from None
    found: list[CollectiveAnswer] = []
    problems: dict[Problem, None] = {}
    for name in clusters:
        with _noting(problems):
            machine = load_cluster(name, data)
            profile = load_fabric_profile(fabric or machine.fabric_profile, data)
            for members in ranks:
                with _noting(problems):
                    given = (kind, size_bytes, machine, profile, members)
                    found.append(ask_collective(*given, per_node=per_node, dtype=dtype, algorithm=algorithm))
    if problems:
        raise InputError(list(problems))
    _write(found, repeat, plots, csv_file)
    _print(found, repeat, as_json=as_json)


@contextmanager
def _noting(problems: dict[Problem, None]) -> Iterator[None]:
    """Note what is wrong and go on, so that all of it is told at once, and each thing once."""
    try:
        yield
    except InputError as error:
        problems.update(dict.fromkeys(error.problems))


def _write(answers: Sequence[CollectiveAnswer], repeat: int, plots: Sequence[Path], csv_file: Path | None) -> None:
    from shardsim.report.save import save_text, save_with

    if plots and all(answer.shape.ranks == 1 for answer in answers):
        raise InputError(Problem("a group of one has nothing to draw", "--ranks", "such as 2,4,8,16"))
    if csv_file is not None:
        from shardsim.report.collective import collectives_csv

        save_text(csv_file, collectives_csv(answers, repeat))
    if plots:
        from shardsim.report.plots import collectives_plot, plot_format

        for plot in plots:
            save_with(plot, partial(_put, collectives_plot(answers, repeat, plot_format(plot))))


def _put(content: bytes, stream: IO[bytes]) -> None:
    stream.write(content)


def _print(answers: Sequence[CollectiveAnswer], repeat: int, *, as_json: bool) -> None:
    from shardsim.report.collective import collective_json, collective_text, collectives_json, collectives_text
    from shardsim.report.console import show

    if len(answers) == 1:
        if as_json:
            click.echo(collective_json(answers[0], repeat), nl=False)
        else:
            show(collective_text(answers[0], repeat))
    elif as_json:
        click.echo(collectives_json(answers, repeat), nl=False)
    else:
        show(collectives_text(answers, repeat))
