"""``shardsim collective``: how long one collective takes, how it is done, and why so."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from shardsim.cli.options import count, data_option, json_option

if TYPE_CHECKING:
    from shardsim.values.operators import CollectiveKind

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")


@click.command(no_args_is_help=True)
@click.argument("kind", metavar="COLLECTIVE", type=click.Choice(KINDS))
@click.argument("size", metavar="SIZE")
@click.option("--cluster", required=True, metavar="NAME", help="Catalog cluster, or a path.")
@click.option("--ranks", required=True, type=count, metavar="N", help="Members of the group.")
@click.option("--per-node", type=count, metavar="N", help="Ranks on each node; by default nodes are filled.")
@click.option("--dtype", default="bf16", show_default=True, metavar="TYPE", help="Switches cannot add 8-bit types.")
@click.option("--fabric", metavar="NAME", help="Another fabric profile than the cluster's own.")
@click.option("--algorithm", metavar="NAME", help="Force ring, tree, nvls, nvls_tree, sharp, pat, direct ...")
@json_option
@data_option
def collective(
    kind: CollectiveKind,
    size: str,
    *,
    cluster: str,
    ranks: int,
    per_node: int | None,
    dtype: str,
    fabric: str | None,
    algorithm: str | None,
    as_json: bool,
    data: tuple[Path, ...],
) -> None:
    r"""Tell how long a collective takes when alone, its algorithm and bus bandwidth, and why that algorithm.

    SIZE is the whole buffer, as nccl-tests counts it: for an all-gather what every rank ends up with.

    \b
    shardsim collective all_reduce 1GiB --cluster dgx-h100 --ranks 8
    shardsim collective all_to_all "64 MiB" --cluster gb200-nvl72 --ranks 144 --dtype fp8
    """
    from shardsim.program.ask import ask_collective
    from shardsim.report.collective import collective_json, collective_text
    from shardsim.report.console import show
    from shardsim.schema.hardware import load_cluster, load_fabric_profile
    from shardsim.units import parse

    try:
        size_bytes = parse(size, "size")
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="SIZE") from None
    machine = load_cluster(cluster, data)
    profile = load_fabric_profile(fabric or machine.fabric_profile, data)
    answer = ask_collective(
        kind, size_bytes, machine, profile, ranks, per_node=per_node, dtype=dtype, algorithm=algorithm
    )
    if as_json:
        click.echo(collective_json(answer), nl=False)
    else:
        show(collective_text(answer))
