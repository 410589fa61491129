"""``shardsim topology``: what a cluster is made of, and how a layout lies on it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import click

from shardsim.cli.lazy import NearNameGroup
from shardsim.cli.options import count, data_option, json_option
from shardsim.cli.topology_import import import_
from shardsim.cli.traffic import traffic
from shardsim.errors import InputError, Problem

if TYPE_CHECKING:
    from shardsim.values.hardware import Cluster
    from shardsim.values.training import Layout

DRAWN = (".png", ".svg")
MOST_GPUS = 1_000_000
"""GPUs whose groups are listed one by one."""


@click.group(cls=NearNameGroup)
def topology() -> None:
    """Show, draw or import a cluster; who talks to whom over which link."""


topology.add_command(import_)
topology.add_command(traffic)


@topology.command(no_args_is_help=True)
@click.argument("name")
@click.option("--gpus", type=count, metavar="N", help="GPUs in all; by default the fewest that hold the degrees.")
@click.option("--tp", type=count, default=1, metavar="N", help="Tensor-parallel degree.")
@click.option("--pp", type=count, default=1, metavar="N", help="Pipeline-parallel degree.")
@click.option("--cp", type=count, default=1, metavar="N", help="Context-parallel degree.")
@click.option("--ep", type=count, default=1, metavar="N", help="Expert-parallel degree.")
@click.option("--etp", type=count, default=1, metavar="N", help="Expert tensor-parallel degree.")
@click.option("--cp-inner", type=count, metavar="N", help="Ranks of an all-to-all within a ring (a2a+p2p).")
@click.option("--order", default="tp-cp-dp-pp", show_default=True, metavar="AXES", help="Rank order, fastest first.")
@json_option
@data_option
def show(
    name: str,
    *,
    gpus: int | None,
    cp_inner: int | None,
    order: str,
    as_json: bool,
    data: tuple[Path, ...],
    **degrees: int,
) -> None:
    """Show the facts of a cluster; with a layout, who talks to whom over which link.

    \b
    shardsim topology show dgx-a100
    shardsim topology show nvlink300-ib100 --gpus 32 --tp 4 --pp 2
    """  # noqa: D301  # click reads the escape
    from rich.console import Group

    from shardsim.report import console
    from shardsim.report.records import record_json
    from shardsim.report.topology import cluster_text, placement_text, topology_record
    from shardsim.schema.hardware import load_cluster
    from shardsim.topology.placement import who_talks_to_whom

    cluster = load_cluster(name, data)
    layout = _layout(cluster, gpus, order, cp_inner, degrees)
    with console.progress(f"placing a layout on {cluster.name}"):
        conversations = () if layout is None else who_talks_to_whom(cluster, layout)
    if as_json:
        click.echo(record_json(topology_record(cluster, layout, conversations)), nl=False)
        return
    parts = [cluster_text(cluster)]
    if layout is not None:
        parts.append(placement_text(cluster, layout, conversations))
    console.show(Group(*parts))


@topology.command(no_args_is_help=True)
@click.argument("name")
@click.option("--nodes", type=count, metavar="N", help="Nodes to draw; by default enough to show every kind of link.")
@click.option(
    "--out", type=click.Path(path_type=Path), required=True, metavar="FILE", help="Where to draw: .png or .svg."
)
@data_option
def draw(name: str, *, nodes: int | None, out: Path, data: tuple[Path, ...]) -> None:
    """Draw the fabric of a cluster: GPUs, switches, adapters, and their links."""
    from shardsim.report.console import progress
    from shardsim.report.fabric import fabric_drawing
    from shardsim.report.save import check_outputs, save_with
    from shardsim.schema.hardware import load_cluster

    if out.suffix.lower() not in DRAWN:
        raise InputError(Problem(f"{out} is neither PNG nor SVG", "--out", f"end it in {' or '.join(DRAWN)}"))
    check_outputs({"--out": out})
    cluster = load_cluster(name, data)
    with progress(f"drawing {cluster.name}"):
        drawn = fabric_drawing(cluster, nodes, out.suffix.lower().removeprefix("."))
        save_with(out, lambda stream: stream.write(drawn))


def _layout(
    cluster: Cluster, gpus: int | None, order: str, cp_inner: int | None, degrees: dict[str, int]
) -> Layout | None:
    """The layout that was asked for; None when none was."""
    from shardsim.topology.placement import axis_spans
    from shardsim.values.training import Layout

    replica = degrees["tp"] * degrees["pp"] * degrees["cp"]
    if gpus is None and replica * degrees["ep"] * degrees["etp"] == 1:
        return None
    stage = math.lcm(degrees["tp"] * degrees["cp"], degrees["ep"] * degrees["etp"])
    total = stage * degrees["pp"] if gpus is None else gpus
    problems: list[Problem] = []
    if total % replica:
        what = f"{total} GPUs are no multiple of TP x PP x CP = {replica}"
        near = [number for number in (total // replica * replica, -(-total // replica) * replica) if number]
        problems.append(Problem(what, "--gpus", f"such as {' or '.join(map(str, near))}"))
    if cluster.max_gpus is not None and total > cluster.max_gpus:
        problems.append(Problem(f"{cluster.name} has {cluster.max_gpus} GPUs, {total} are asked for", "--gpus"))
    if total > MOST_GPUS:
        problems.append(Problem(f"{total} GPUs are too many to list", "--gpus", f"at most {MOST_GPUS:,}"))
    dp = max(total // replica, 1)
    experts, ranks = degrees["ep"] * degrees["etp"], degrees["tp"] * degrees["cp"] * dp
    if not problems and ranks % experts:
        what = f"EP x ETP = {experts} does not divide the {ranks} ranks of a pipeline stage"
        problems.append(Problem(what, "--ep", "EP x ETP that divides TP x CP x DP"))
    if cp_inner is not None and degrees["cp"] % cp_inner:
        problems.append(Problem(f"{cp_inner} inner ranks do not divide CP {degrees['cp']}", "--cp-inner", "a divisor"))
    if problems:
        raise InputError(problems)
    layout = Layout(
        dp=dp,
        order=tuple(order.split("-")),  # type: ignore[arg-type]  # checked next
        cp_inner=cp_inner or 0,
        cp_comm="p2p" if cp_inner is None else "a2a+p2p",
        **degrees,  # type: ignore[arg-type]  # numbers, all of them
    )
    axis_spans(layout)
    return layout
