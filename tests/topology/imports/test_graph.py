"""A node as a graph: it tells the distances that the dump told."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardsim.schema.hardware import load_cluster
from shardsim.topology.fabric import gpu, path
from shardsim.topology.imports.graph import KINDS, nic, node_graph
from shardsim.topology.imports.node import DISTANCES, Distance, Gpu, Nic, Node
from shardsim.topology.imports.read import read_text

Text = Callable[[str], str]


def told(node: Node) -> dict[tuple[int, int], str]:
    """Distance of every pair as the graph has it: the farthest thing on the way over PCIe."""
    graph = node_graph(node)
    tree = nx.Graph(graph)
    tree.remove_edges_from([(a, b) for a, b, edge in graph.edges(data=True) if edge["link"] == "nvlink"])
    vertices = [gpu(number) for number in range(len(node.gpus))] + [nic(number) for number in range(len(node.nics))]
    found: dict[tuple[int, int], str] = {}
    for a, b in combinations(range(len(vertices)), 2):
        way = nx.shortest_path(tree, vertices[a], vertices[b])[1:-1]
        found[a, b] = max((tree.nodes[vertex]["distance"] for vertex in way), key=DISTANCES.index)
    return found


@pytest.mark.parametrize(
    "name",
    ["quartz-8gpu.txt", "basalt-4gpu-old.txt", "flint-4gpu-cut.txt", "granite-4gpu-dump.xml", "marble-2gpu-input.xml"],
)
def test_the_graph_of_a_dump_has_its_distances(fixture_text: Text, name: str) -> None:
    node = read_text(fixture_text(name), name)
    found = told(node)
    assert {pair: found[pair] for pair in node.distances} == dict(node.distances)


@st.composite
def machines(draw: st.DrawFn) -> Node:
    """PCIe trees: each device has a place at every level, and meets another at the first that differs."""
    gpus, nics = draw(st.integers(1, 6)), draw(st.integers(0, 5))
    places = [tuple(draw(st.integers(0, 1)) for _ in range(4)) for _ in range(gpus + nics)]
    hidden = draw(st.booleans())
    distances: dict[tuple[int, int], Distance] = {}
    for a, b in combinations(range(gpus + nics), 2):
        same = next((level for level in range(4) if places[a][level] != places[b][level]), 4)
        if not (hidden and b < gpus):
            distances[a, b] = DISTANCES[4 - same]
    nvlinks = {(a, a + 1): 4 for a in range(0, gpus - 1, 2)} if hidden else {}
    names = [Gpu(f"GPU{number}") for number in range(gpus)]
    return Node("", tuple(names), tuple(Nic(f"NIC{number}") for number in range(nics)), distances, nvlinks)


@given(machines())
def test_the_graph_of_any_pcie_tree_has_its_distances(node: Node) -> None:
    found = told(node)
    assert {pair: found[pair] for pair in node.distances} == dict(node.distances)


def test_affinity_tells_what_nvlink_hides() -> None:
    text = "\n".join(
        [" GPU0 GPU1 GPU2 GPU3 CPU Affinity NUMA Affinity"]
        + [
            f"GPU{a} {' '.join('X' if a == b else 'NV12' for b in range(4))} {'0-7' if a < 2 else '8-15'} {a // 2}"
            for a in range(4)
        ]
    )
    found = told(read_text(text, "x"))
    assert (found[0, 1], found[2, 3], found[1, 2]) == ("NODE", "NODE", "SYS")


def test_an_affinity_that_the_matrix_contradicts_is_not_believed() -> None:
    """A pinned process has the same affinity for GPUs of both sockets."""
    rows = ["  GPU0 GPU1 GPU2 CPU Affinity", "GPU0 X NV1 SYS 0-7", "GPU1 NV1 X SYS 0-7", "GPU2 SYS SYS X 0-7"]
    assert set(told(read_text("\n".join(rows), "x")).values()) == {"SYS"}


def test_nvlinks_stand_beside_the_pcie_tree(fixture_text: Text) -> None:
    switched = node_graph(read_text(fixture_text("quartz-8gpu.txt"), "x"))
    assert switched.edges["gpu/0", "nvswitch/0"]["count"] == 18
    direct = node_graph(read_text(fixture_text("basalt-4gpu-old.txt"), "x"))
    assert direct.edges["gpu/0", "gpu/1"]["count"] == 2
    assert ("gpu/0", "gpu/3") not in direct.edges


def test_the_fabrics_routes_can_be_asked_of_a_node(fixture_text: Text) -> None:
    cluster = load_cluster("dgx-h100")
    graph = node_graph(read_text(fixture_text("quartz-8gpu.txt"), "x"), cluster)
    assert path(graph, 0, 5).links == ("nvlink", "nvlink")
    assert path(graph, 0, 5).bandwidth == cluster.nvlink.bandwidth
    near, far = path(graph, 0, nic(3)), path(graph, 0, nic(0))
    assert near.links == ("pcie", "pcie")
    assert len(far.nodes) > len(near.nodes)
    direct = node_graph(read_text(fixture_text("basalt-4gpu-old.txt"), "x"), cluster)
    assert path(direct, 0, 1).bandwidth == pytest.approx(cluster.nvlink.bandwidth * 2 / 3)


def test_every_distance_has_a_kind_of_joint() -> None:
    assert set(KINDS) == set(DISTANCES)


def test_a_single_device_is_a_graph_of_one_vertex() -> None:
    assert list(node_graph(Node("", (Gpu("GPU0"),), (), {}, {}))) == ["gpu/0"]
