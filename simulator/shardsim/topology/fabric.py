"""The fabric of a cluster as a graph: every cable and switch, per-direction bandwidth and latency on every edge."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import networkx as nx

from shardsim.errors import InputError, Problem
from shardsim.values.hardware import Cluster, Link

if TYPE_CHECKING:
    Graph = nx.DiGraph[str]

_MESSAGE = 2.0**20
"""Size for which a path is the quickest [bytes]: large enough for bandwidth to count, as in training."""


@dataclass(frozen=True, slots=True)
class Route:
    """A way through the fabric.

    Parameters
    ----------
    nodes : tuple of str
        From the first GPU to the last.
    links : tuple of str
        Class of each edge: ``nvlink``, ``pcie``, ``nic``, ``leaf``.
    bandwidth : float
        Of its narrowest edge, when nobody else uses it [bytes/s].
    latency : float
        Sum over its edges [s].
    """

    nodes: tuple[str, ...]
    links: tuple[str, ...]
    bandwidth: float
    latency: float


def gpu(rank: int) -> str:
    """Name of a GPU's vertex.

    >>> gpu(3)
    'gpu/3'
    """
    return f"gpu/{rank}"


def build_fabric(cluster: Cluster, nodes: int) -> Graph:
    """Build the graph of a cluster.

    Parameters
    ----------
    cluster : Cluster
    nodes : int
        Nodes to build (-). The last NVLink domain and the last leaf may be partly filled.

    Returns
    -------
    networkx.DiGraph
        Vertices ``gpu/RANK``, ``nvswitch/DOMAIN``, ``pcie/NODE/SLOT``, ``nic/NODE/SLOT``, ``leaf/SET`` or
        ``leaf/SET/RAIL``, ``spine/INDEX``, each with its ``kind`` and, below the leaves, its ``node`` or ``domain``.
        Each cable is two edges with ``bandwidth`` [bytes/s], ``latency`` [s] and ``link``: ``nvlink``, ``pcie``,
        ``nic`` (adapter to leaf) or ``leaf`` (leaf to spine). The switches of an NVLink domain are one vertex: no
        GPU's ports can be more than full, so they never bind. Adapters that GPUs share hang on a shared PCIe switch.

    Raises
    ------
    InputError
        No nodes, or more than the cluster has.

    Examples
    --------
    >>> from shardsim.schema.hardware import load_cluster
    >>> graph = build_fabric(load_cluster("dgx-a100"), nodes=2)
    >>> graph.edges["gpu/0", "nvswitch/0"]["bandwidth"] / 1e9
    300.0
    """
    most = None if cluster.max_gpus is None else cluster.max_gpus // cluster.gpus_per_node
    if nodes < 1 or (most is not None and nodes > most):
        right = "1 or more" if most is None else f"1 to {most}"
        raise InputError(Problem(f"{cluster.name} cannot be built with {nodes} nodes", right=right))
    graph: Graph = nx.DiGraph(cluster=cluster.name)
    for node in range(nodes):
        _add_node(graph, cluster, node)
    if cluster.torus:
        _add_cables(graph, cluster, nodes)
    else:
        _add_spines(graph, cluster)
    return graph


def _add_node(graph: Graph, cluster: Cluster, node: int) -> None:
    gpus, nics = cluster.gpus_per_node, cluster.nics_per_node
    switches = min(gpus, nics)
    for slot in range(switches):
        graph.add_node(f"pcie/{node}/{slot}", kind="pcie switch", node=node)
    for slot in range(gpus):
        rank = node * gpus + slot
        domain = rank // cluster.gpus_per_domain
        graph.add_node(gpu(rank), kind="gpu", node=node, domain=domain)
        _connect(graph, gpu(rank), f"pcie/{node}/{slot * switches // gpus}", cluster.pcie, "pcie")
        if cluster.gpus_per_domain > 1:
            graph.add_node(f"nvswitch/{domain}", kind="nvswitch", domain=domain)
            _connect(graph, gpu(rank), f"nvswitch/{domain}", cluster.nvlink, "nvlink")
    for slot in range(nics):
        nic = f"nic/{node}/{slot}"
        graph.add_node(nic, kind="nic", node=node)
        _connect(graph, f"pcie/{node}/{slot * switches // nics}", nic, cluster.pcie, "pcie")
        leaf_set = node // cluster.nodes_per_leaf
        leaf = f"leaf/{leaf_set}/{slot}" if cluster.rail_optimized else f"leaf/{leaf_set}"
        graph.add_node(leaf, kind="leaf")
        _connect(graph, nic, leaf, cluster.nic, "nic")


def _add_cables(graph: Graph, cluster: Cluster, nodes: int) -> None:
    """Join neighbours on a torus: each node's adapters are spread over two cables along each dimension."""
    total = cluster.nic.bandwidth * cluster.nics_per_node
    link = Link("torus", total / (2 * len(cluster.torus)), cluster.nic.latency, cluster.nic.source)
    stride = 1
    for size in cluster.torus:
        for node in range(nodes):
            place = node // stride % size
            neighbour = node + ((place + 1) % size - place) * stride
            if neighbour != node and neighbour < nodes:
                _connect(graph, f"leaf/{node}", f"leaf/{neighbour}", link, "leaf")
        stride *= size


def _add_spines(graph: Graph, cluster: Cluster) -> None:
    """Join the leaves. Every leaf has one up-link to every spine; together they carry its down-links' share."""
    leaves = _of_kind(graph, "leaf")
    if len(leaves) < 2:
        return
    ports = cluster.nodes_per_leaf * (1 if cluster.rail_optimized else cluster.nics_per_node)
    up = ports * cluster.nic.bandwidth / cluster.oversubscription
    spines = max(1, math.ceil(ports / cluster.oversubscription))
    link = Link("leaf to spine", up / spines, cluster.nic.latency, cluster.nic.source)
    for index in range(spines):
        graph.add_node(f"spine/{index}", kind="spine")
        for leaf in leaves:
            _connect(graph, leaf, f"spine/{index}", link, "leaf")


def _of_kind(graph: Graph, kind: str) -> list[str]:
    return [name for name in graph if graph.nodes[name]["kind"] == kind]


def _connect(graph: Graph, a: str, b: str, link: Link, name: str) -> None:
    for start, end in ((a, b), (b, a)):
        graph.add_edge(start, end, link=name, bandwidth=link.bandwidth, latency=link.latency)


def path(graph: Graph, a: int | str, b: int | str) -> Route:
    """Find the quickest way of a large message between two GPUs; it passes through no third GPU.

    Parameters
    ----------
    graph : networkx.DiGraph
        From :func:`build_fabric`.
    a, b : int or str
        Ranks or names of vertices.

    Returns
    -------
    Route
        Without edges when both are the same.

    Raises
    ------
    InputError
        No such vertex, or no way.

    Examples
    --------
    >>> from shardsim.schema.hardware import load_cluster
    >>> route = path(build_fabric(load_cluster("dgx-a100"), nodes=2), 0, 8)
    >>> route.links
    ('pcie', 'pcie', 'nic', 'nic', 'pcie', 'pcie')
    """
    start, end = (gpu(vertex) if isinstance(vertex, int) else vertex for vertex in (a, b))
    missing = [name for name in dict.fromkeys((start, end)) if name not in graph]
    if missing:
        right = f"GPUs 0 to {len(_of_kind(graph, 'gpu')) - 1}"
        raise InputError(Problem(f"no {name} in this fabric", right=right) for name in missing)

    def seconds(u: str, _: str, edge: dict[str, Any]) -> float | None:
        if u != start and graph.nodes[u]["kind"] == "gpu":
            return None
        cost: float = edge["latency"] + _MESSAGE / edge["bandwidth"]
        return cost

    try:
        found: list[str] = nx.dijkstra_path(graph, start, end, weight=seconds)
    except nx.NetworkXNoPath:
        raise InputError(f"no way from {start} to {end} in this fabric") from None
    edges = [graph.edges[pair] for pair in pairwise(found)]
    return Route(
        nodes=tuple(found),
        links=tuple(edge["link"] for edge in edges),
        bandwidth=min((edge["bandwidth"] for edge in edges), default=math.inf),
        latency=sum(edge["latency"] for edge in edges),
    )
