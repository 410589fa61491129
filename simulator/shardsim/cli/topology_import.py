"""``shardsim topology import``: a node from a dump, and a cluster of such nodes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from shardsim.cli.options import count, data_option, json_option
from shardsim.errors import InputError, Problem

if TYPE_CHECKING:
    from shardsim.topology.imports.cluster import Asked, ClusterDraft
    from shardsim.topology.imports.node import Node

DRAWN = (".png", ".svg")
CLUSTER_FILE = (".yaml", ".yml")


@click.command("import", no_args_is_help=True)
@click.argument("file", type=click.Path(path_type=Path, allow_dash=True))
@click.option("--device", metavar="NAME", help="GPU of the catalog, where the dump does not name it.")
@click.option("--nodes", type=count, metavar="N", help="Nodes of the cluster; any number if left out.")
@click.option("--nic", metavar="BANDWIDTH", help="One adapter, per direction, with its unit: '400 Gb/s'.")
@click.option("--nics", type=count, metavar="N", help="Adapters of a node that carry training traffic.")
@click.option("--gpus", type=count, metavar="N", help="GPUs of a node, where the dump does not list them all.")
@click.option("--domain", type=count, metavar="N", help="GPUs that NVLink joins, where it leaves the node.")
@click.option("--like", metavar="CLUSTER", help="Catalogued cluster for what no dump says: latencies, leaves, profile.")
@click.option("--out", type=click.Path(path_type=Path), metavar="CLUSTER.yaml", help="Write a cluster of such nodes.")
@click.option("--draw", type=click.Path(path_type=Path), metavar="FILE", help="Draw the node: .png or .svg.")
@json_option
@data_option
def import_(
    file: Path,
    *,
    device: str | None,
    nodes: int | None,
    nic: str | None,
    nics: int | None,
    gpus: int | None,
    domain: int | None,
    like: str | None,
    out: Path | None,
    draw: Path | None,
    as_json: bool,
    data: tuple[Path, ...],
) -> None:
    """Import a node from `nvidia-smi topo -m` text or NCCL topology XML; - reads standard input.

    With --out, or any option that describes a cluster, make a cluster of such nodes.

    \b
    shardsim topology import topo.txt
    shardsim topology import topo.txt --device h100-sxm-80gb \\
                             --nic '400 Gb/s' --out ./ours.yaml
    """  # noqa: D301  # click's mark for lines that are kept is the character itself
    from rich.console import Group, RenderableType

    from shardsim.report import console
    from shardsim.report.node import cluster_yaml, draft_text, node_record, node_text
    from shardsim.report.records import record_json
    from shardsim.report.save import check_outputs, save_text, save_with
    from shardsim.topology.imports.cluster import Asked

    _check_endings(out, draw)
    check_outputs({"--out": out, "--draw": draw}, [] if str(file) == "-" else [file])
    node, name = _read(file)
    asked = Asked(device, nodes, gpus, domain, _bandwidth(nic), nics, like)
    draft = _draft(node, asked, name, data) if out is not None or asked != Asked() else None
    drawn = None if draw is None else _drawn(node, name, draw)
    if out is not None and draft is not None:
        save_text(out, cluster_yaml(draft))
    if draw is not None and drawn is not None:
        save_with(draw, lambda stream: stream.write(drawn))
    if as_json:
        click.echo(record_json(node_record(node, name, draft)), nl=False)
        return
    parts: list[RenderableType] = [node_text(node, name)]
    if draft is not None:
        parts.append(draft_text(draft, "" if out is None else str(out)))
    console.show(Group(*parts))


def _check_endings(out: Path | None, draw: Path | None) -> None:
    problems = []
    if out is not None and out.suffix.lower() not in CLUSTER_FILE:
        problems.append(Problem(f"{out} is no YAML file", "--out", f"end it in {' or '.join(CLUSTER_FILE)}"))
    if draw is not None and draw.suffix.lower() not in DRAWN:
        problems.append(Problem(f"{draw} is neither PNG nor SVG", "--draw", f"end it in {' or '.join(DRAWN)}"))
    if problems:
        raise InputError(problems)


def _read(file: Path) -> tuple[Node, str]:
    """The node, and what to call it."""
    from shardsim.topology.imports.read import read_file, read_stream

    if str(file) == "-":
        return read_stream(sys.stdin.buffer, "standard input"), "standard input"
    return read_file(file), file.name


def _bandwidth(text: str | None) -> float | None:
    from shardsim.units import parse

    if text is None:
        return None
    try:
        value = parse(text, "bandwidth")
    except ValueError as error:
        raise InputError(Problem(str(error), "--nic")) from None
    if not value:
        raise InputError(Problem(f"{text!r} carries nothing", "--nic", "such as '400 Gb/s'"))
    return value


def _draft(node: Node, asked: Asked, name: str, data: tuple[Path, ...]) -> ClusterDraft:
    from shardsim.schema.products import load_products
    from shardsim.topology.imports.cluster import draft_cluster

    return draft_cluster(node, asked, load_products(data), name, data)


def _drawn(node: Node, name: str, draw: Path) -> bytes:
    from shardsim.report.console import progress
    from shardsim.report.node_drawing import node_drawing

    with progress(f"drawing {name}"):
        return node_drawing(node, name, draw.suffix.lower().removeprefix("."))
