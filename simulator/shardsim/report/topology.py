"""A cluster for people: its facts, who talks to whom over which link, and a drawing of its fabric."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from shardsim.report.text import layout_text
from shardsim.topology.placement import Conversation, coordinates
from shardsim.units import format_bandwidth, format_size, format_time, gigabytes_per_second, tflops
from shardsim.values.hardware import Cluster, Link
from shardsim.values.training import Layout

CARRIES = {
    "tp": "activations, in every layer",
    "cp": "keys and values, in every layer",
    "cp_inner": "heads for tokens, in every layer",
    "cp_outer": "keys and values, in every layer",
    "ep": "tokens to their experts, in every layer",
    "etp": "rows of experts that are split, in every layer",
    "edp": "gradients of experts, once an iteration",
    "pp": "activations between stages, every micro-batch",
    "dp": "gradients, once an iteration",
}
"""What the messages of each axis carry."""
_NODES_MAPPED = 16


def cluster_text(cluster: Cluster) -> RenderableType:
    """Lay the facts of a cluster out for people.

    Parameters
    ----------
    cluster : Cluster

    Returns
    -------
    RenderableType
    """
    device = cluster.device
    peaks = ", ".join(f"{kind} {tflops(peak):g}" for kind, peak in device.peak_flops.items())
    adapters = f"{cluster.nics_per_node} x {_link(cluster.nic)}"
    rails = "rail-optimized" if cluster.rail_optimized else "leaf-spine"
    spine = "full bisection" if cluster.oversubscription == 1 else f"{cluster.oversubscription:g}:1 oversubscribed"
    domain = f", {cluster.gpus_per_domain} in an NVLink domain"
    rows = [
        ("GPUs", f"{cluster.gpus_per_node} a node{domain * (cluster.gpus_per_domain != cluster.gpus_per_node)}"),
        ("device", f"{device.name}: {format_size(device.memory_bytes)} at {format_bandwidth(device.memory_bandwidth)}"),
        ("dense peak", f"{peaks} TFLOP/s"),
        ("NVLink", f"{_link(cluster.nvlink)} a GPU"),
        ("PCIe", _link(cluster.pcie)),
        ("adapters", f"{adapters} a node: {format_bandwidth(cluster.nic_bandwidth_per_gpu)} a GPU"),
        ("fabric", _torus(cluster) or f"{rails}, {cluster.nodes_per_leaf} nodes a leaf, {spine}"),
        ("size", f"{cluster.max_gpus:,} GPUs" if cluster.max_gpus is not None else "any"),
        ("profiles", f"{device.compute_profile}, {cluster.fabric_profile}"),
        ("source", cluster.source),
    ]
    table = Table.grid(padding=(0, 2))
    table.add_column()
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(Text(f"  {name}"), Text(value))
    title = Text(cluster.name, style="bold").append("  bandwidths per direction", style="not bold dim")
    return Group(title, table)


def placement_text(cluster: Cluster, layout: Layout, conversations: Sequence[Conversation]) -> RenderableType:
    """Say who talks to whom over which link.

    Parameters
    ----------
    cluster : Cluster
    layout : Layout
        Scalar degrees.
    conversations : sequence of Conversation

    Returns
    -------
    RenderableType
    """
    gpus = int(layout.gpus)
    nodes = -(-gpus // cluster.gpus_per_node)
    degrees = layout_text(layout).split(",", maxsplit=1)[0]
    title = Text(f"\n{degrees} on {gpus:,} GPUs in {nodes:,} node{'s' * (nodes != 1)}", style="bold")
    parts: list[RenderableType] = [title.append(f"  rank order {'-'.join(layout.order)}", style="not bold dim")]
    if nodes <= _NODES_MAPPED:
        parts.append(_rank_map(cluster, layout, nodes))
    parts.append(Text("\nWho talks to whom", style="bold"))
    if conversations:
        parts.append(_conversations(cluster, conversations))
    else:
        parts.append(Text("  nobody: a single rank"))
    return Group(*parts)


def topology_record(cluster: Cluster, layout: Layout | None, conversations: Sequence[Conversation]) -> dict[str, Any]:
    """Lay a cluster and its conversations out as plain data, bandwidths in GB/s per direction.

    Parameters
    ----------
    cluster : Cluster
    layout : Layout or None
    conversations : sequence of Conversation

    Returns
    -------
    dict
    """
    record: dict[str, Any] = {
        "schema": "shardsim.topology/1",
        "name": cluster.name,
        "device": cluster.device.name,
        "gpus_per_node": cluster.gpus_per_node,
        "gpus_per_domain": cluster.gpus_per_domain,
        "links": {
            name: {
                "product": link.name,
                "gb_per_s": gigabytes_per_second(link.bandwidth),
                "latency_s": link.latency,
                "source": link.source,
            }
            for name, link in (("nvlink", cluster.nvlink), ("pcie", cluster.pcie), ("nic", cluster.nic))
        },
        "nics_per_node": cluster.nics_per_node,
        "nic_gb_per_s_per_gpu": gigabytes_per_second(cluster.nic_bandwidth_per_gpu),
        "nodes_per_leaf": cluster.nodes_per_leaf,
        "torus": list(cluster.torus),
        "oversubscription": cluster.oversubscription,
        "rail_optimized": cluster.rail_optimized,
        "max_gpus": cluster.max_gpus,
        "source": cluster.source,
    }
    if layout is not None:
        record["layout"] = {axis: int(getattr(layout, axis)) for axis in ("tp", "pp", "dp", "cp", "ep", "etp")}
        record["conversations"] = [
            {key: list(value) if isinstance(value, tuple) else value for key, value in dataclasses.asdict(item).items()}
            for item in conversations
        ]
    return record


def ranks_text(ranks: Sequence[int]) -> str:
    """Write ranks in short: runs and even steps by their ends.

    Parameters
    ----------
    ranks : sequence of int
        Ascending.

    Returns
    -------
    str

    Examples
    --------
    >>> ranks_text([0, 1, 2, 3]), ranks_text([0, 4, 8, 12]), ranks_text([0, 16])
    ('0-3', '0, 4 .. 12', '0, 16')
    """
    steps = {after - before for before, after in pairwise(ranks)}
    if len(ranks) > 2 and steps == {1}:
        return f"{ranks[0]}-{ranks[-1]}"
    if len(ranks) > 3 and len(steps) == 1:
        return f"{ranks[0]}, {ranks[1]} .. {ranks[-1]}"
    if len(ranks) > 6:
        return f"{', '.join(map(str, ranks[:4]))} .. {ranks[-1]}"
    return ", ".join(map(str, ranks))


def _link(link: Link) -> str:
    return f"{link.name}, {format_bandwidth(link.bandwidth)}, {format_time(link.latency)}"


def _rank_map(cluster: Cluster, layout: Layout, nodes: int) -> RenderableType:
    """Which ranks sit on each node, and what each is for."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    gpus = int(layout.gpus)
    for node in range(nodes):
        ranks = range(node * cluster.gpus_per_node, min((node + 1) * cluster.gpus_per_node, gpus))
        runs: dict[tuple[int, int, int], list[int]] = {}
        for rank in ranks:
            at = coordinates(rank, layout)
            runs.setdefault((at["pp"], at["dp"], at["cp"]), []).append(rank)
        row = "; ".join(f"{ranks_text(members)} {_role(layout, *at)}" for at, members in runs.items())
        table.add_row(Text(f"  node {node}", style="dim"), Text(row))
    return table


def _role(layout: Layout, stage: int, replica: int, part: int) -> str:
    context = f" context {part}" if layout.cp > 1 else ""
    return f"stage {stage} replica {replica}{context}"


def _conversations(cluster: Cluster, conversations: Sequence[Conversation]) -> RenderableType:
    rates = {
        "nvlink": f"NVLink {gigabytes_per_second(cluster.nvlink.bandwidth):g}",
        "pcie": f"PCIe {gigabytes_per_second(cluster.pcie.bandwidth):g}",
        "nic": f"NIC {gigabytes_per_second(cluster.nic_bandwidth_per_gpu):g}",
        "leaf": f"spine {cluster.oversubscription:g}:1",
    }
    table = Table.grid(padding=(0, 2))
    for _ in range(3):
        table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row(*(Text(head, style="dim") for head in ("  axis", "groups", "such as ranks", "over, GB/s a GPU")))
    for item in conversations:
        over = ", ".join(rates[link] for link in item.links)
        table.add_row(
            Text(f"  {item.axis.upper().replace('_', ' ')}", style="bold"),
            Text(f"{item.groups:,} of {item.ranks:,}"),
            Text(ranks_text(item.example)),
            Text(over),
        )
        spread = ", ".join(
            _counted(number, what)
            for number, what in ((item.domains, "NVLink domain"), (item.nodes, "node"), (item.leaves, "leaf"))
        )
        table.add_row("", "", Text(f"in {spread}", style="dim"), Text(CARRIES.get(item.axis, ""), style="dim"))
    return table


def _counted(number: int, what: str) -> str:
    plural = {"leaf": "leaves"}.get(what, f"{what}s")
    return f"{number:,} {what if number == 1 else plural}"


def _torus(cluster: Cluster) -> str:
    return f"torus of {' x '.join(map(str, cluster.torus))} nodes" if cluster.torus else ""
