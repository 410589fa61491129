"""A node as a graph, in the words of :mod:`shardsim.topology.fabric`: its routes can be asked for as in a fabric.

A dump tells distances, not cables. They form a tree: devices at PIX share a PCIe bridge, those at PXB a group of
bridges, those at PHB a host bridge, those at NODE a NUMA node, and all the link between NUMA nodes. NVLink hides the
PCIe distance of two GPUs; where nothing else tells it, their affinities do.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, pairwise
from typing import TYPE_CHECKING

import networkx as nx

from shardsim.topology.fabric import gpu
from shardsim.topology.imports.node import DISTANCES, Distance, Node, Numbers, Pair, components
from shardsim.values.hardware import Cluster

if TYPE_CHECKING:
    Graph = nx.DiGraph[str]

KINDS: dict[Distance, str] = {
    "PIX": "pcie switch",
    "PXB": "pcie switch",
    "PHB": "host bridge",
    "NODE": "numa node",
    "SYS": "socket link",
}
"""What devices of each distance share."""
_LINKS = {"PIX": "pcie", "PXB": "pcie", "PHB": "host", "NODE": "host", "SYS": "socket"}


def nic(position: int) -> str:
    """Name of an adapter's vertex.

    >>> nic(3)
    'nic/0/3'
    """
    return f"nic/0/{position}"


def node_graph(node: Node, cluster: Cluster | None = None) -> Graph:
    r"""Build the graph of a node.

    Parameters
    ----------
    node : Node
    cluster : Cluster or None
        Made from it; gives edges their ``bandwidth`` [bytes/s] and ``latency`` [s], as
        :func:`shardsim.topology.fabric.path` needs them. A dump does not tell what a host bridge or the link between
        sockets carries: as much as one PCIe link is assumed.

    Returns
    -------
    networkx.DiGraph
        Vertices ``gpu/INDEX``, ``nic/0/INDEX``, ``nvswitch/DOMAIN``, and ``pcie/0/INDEX``, ``host/INDEX``,
        ``numa/INDEX``, ``socket/0`` with the ``distance`` of what they join; each with its ``kind``. Each cable is two
        edges with ``link`` (``nvlink``, ``pcie``, ``host``, ``socket``) and, for NVLinks, their ``count``.

    Examples
    --------
    >>> from shardsim.topology.imports.read import read_text
    >>> graph = node_graph(read_text("     GPU0 NIC0\nGPU0 X PIX\nNIC0 PIX X", "small.txt"))
    >>> sorted(graph)
    ['gpu/0', 'nic/0/0', 'pcie/0/0']
    """
    graph: Graph = nx.DiGraph(kind=node.kind)
    vertices = [gpu(number) for number in range(len(node.gpus))]
    vertices += [nic(number) for number in range(len(node.nics))]
    for vertex, name in zip(vertices, node.names, strict=True):
        graph.add_node(vertex, kind=vertex.split("/")[0], name=name, node=0)
    _add_nvlinks(graph, node)
    top = dict(enumerate(vertices))
    for distance in DISTANCES:
        _join(graph, node, distance, top)
    if cluster is not None:
        _rate(graph, node, cluster)
    return graph


def _add_nvlinks(graph: Graph, node: Node) -> None:
    for domain, group in enumerate(node.switches):
        switch = f"nvswitch/{domain}"
        graph.add_node(switch, kind="nvswitch", domain=domain)
        for number in group:
            _connect(graph, gpu(number), switch, "nvlink", node.gpus[number].switch_links)
    for (a, b), count in node.nvlinks.items():
        _connect(graph, gpu(a), gpu(b), "nvlink", count)


def _join(graph: Graph, node: Node, distance: Distance, top: dict[int, str]) -> None:
    """Put a vertex over every group at a distance; ``top`` is the uppermost vertex over each device so far."""
    for group in groups_within(node, distance):
        below = list(dict.fromkeys(top[number] for number in group))
        if len(below) < 2:
            continue
        kind = KINDS[distance]
        stem = {"pcie switch": "pcie/0", "host bridge": "host", "numa node": "numa", "socket link": "socket"}[kind]
        vertex = f"{stem}/{sum(1 for name in graph if name.startswith(f'{stem}/'))}"
        graph.add_node(vertex, kind=kind, distance=distance, node=0)
        for under in below:
            device = graph.nodes[under]["kind"] in ("gpu", "nic")
            _connect(graph, under, vertex, "pcie" if device else _LINKS[distance])
        top.update(dict.fromkeys(group, vertex))


def groups_within(node: Node, distance: Distance) -> tuple[Numbers, ...]:
    """Devices that are at most so far from each other, by number; at SYS all of them.

    Parameters
    ----------
    node : Node
    distance : {"PIX", "PXB", "PHB", "NODE", "SYS"}

    Returns
    -------
    tuple of tuple of int
    """
    devices = range(len(node.gpus) + len(node.nics))
    if distance == "SYS":
        return (tuple(devices),) if devices else ()
    near = DISTANCES[: DISTANCES.index(distance) + 1]
    pairs: list[Pair] = [pair for pair, at in node.distances.items() if at in near]
    if distance == "NODE":
        pairs += _alike(node, components(devices, pairs))
    return components(devices, pairs)


def _alike(node: Node, groups: tuple[Numbers, ...]) -> Iterator[Pair]:
    """Pairs of GPUs with the same affinity, unless any two devices that they would join are told to be apart.

    A process that is pinned, or a virtual machine, shows the same affinity for all GPUs.
    """
    of = {number: group for group in groups for number in group}
    alike: dict[object, list[int]] = {}
    for number, one in enumerate(node.gpus):
        if one.numa or one.cpus:
            alike.setdefault((one.numa, one.cpus), []).append(number)
    for members in alike.values():
        joined = {device for number in members for device in of[number]}
        if not any(node.distance(a, b) == "SYS" for a, b in combinations(joined, 2)):
            yield from pairwise(members)


def _rate(graph: Graph, node: Node, cluster: Cluster) -> None:
    for a, b, edge in graph.edges(data=True):
        link = cluster.nvlink if edge["link"] == "nvlink" else cluster.pcie
        bandwidth = link.bandwidth
        if edge["link"] == "nvlink":
            ends = [int(name.split("/")[1]) for name in (a, b) if name.startswith("gpu/")]
            bandwidth *= edge["count"] / max(node.links_of(end) for end in ends)
        edge["bandwidth"], edge["latency"] = bandwidth, link.latency


def _connect(graph: Graph, a: str, b: str, link: str, count: int = 1) -> None:
    for start, end in ((a, b), (b, a)):
        graph.add_edge(start, end, link=link, count=count)
