"""Nodes that are cabled to each other: how far it is, and what crosses which cables."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import networkx as nx
import pytest

from shardsim.cost.collectives import collective_transfer
from shardsim.errors import InputError
from shardsim.schema.hardware import load_cluster, load_fabric_profile
from shardsim.topology.blocks import block_shape
from shardsim.topology.fabric import build_fabric
from shardsim.topology.torus import coordinates_of, group_loads, message_load

CLUSTERS = Path(__file__).resolve().parents[2] / "topologies" / "clusters"


@pytest.fixture
def torus(tmp_path):
    def write(dims: str, **changes: str):
        text = (CLUSTERS / "dgx-h100.yaml").read_text()
        lines = [
            line for line in text.splitlines() if not line.startswith(("nodes_per_leaf", "rail_optimized", "over"))
        ]
        figures = {"nodes_per_leaf": "1", "rail_optimized": "false", "oversubscription": "1.0", "torus": dims} | changes
        lines += [f"{name}: {{value: {value}, source: guide}}" for name, value in figures.items()]
        folder = tmp_path / "topologies" / "clusters"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "ring.yaml").write_text("\n".join(lines) + "\n")
        return load_cluster("ring", [tmp_path])

    return write


@pytest.mark.parametrize("dims", [(4,), (4, 4), (2, 4, 4), (8, 4)])
def test_the_mean_way_of_an_all_to_all_is_that_of_the_graph(dims):
    """In even, closed dimensions the mean distance to all nodes, oneself among them, is a quarter of each."""
    graph = nx.Graph()
    nodes = list(product(*(range(size) for size in dims)))
    for place in nodes:
        for dimension in range(len(dims)):
            graph.add_edge(place, tuple((x + (i == dimension)) % dims[i] for i, x in enumerate(place)))
    first = nodes[0]
    ways = nx.single_source_shortest_path_length(graph, first)
    mean = sum(ways.values()) / len(nodes)
    assert sum(size / 4 for size in dims) == pytest.approx(mean)
    # The longest dimension decides, and has one of d pairs of cables.
    total = 1
    for size in dims:
        total *= size
    assert group_loads(range(total), dims).pairs == pytest.approx(max(dims) / 4 * len(dims))


def test_rings_use_every_cable_of_a_torus_that_they_fill_and_one_dimension_of_three_otherwise():
    assert group_loads(range(64), (4, 4, 4)).ring == 1.0
    assert group_loads(range(4), (4, 4, 4)).ring == 3.0
    assert group_loads([0], (4, 4, 4)).ring == 0.0


def test_groups_that_lie_between_each_other_share_cables():
    """Every second node of a line of eight: two groups on the same cables."""
    assert group_loads([0, 2, 4, 6], (8,)).ring == 2 * group_loads(range(8), (8,)).ring


def test_a_message_takes_one_cable_of_six_and_shares_it_with_those_on_the_way():
    assert message_load(0, 1, (4, 4, 4)) == 6.0
    assert message_load(0, 2, (4, 4, 4)) == 12.0
    assert message_load(0, 16, (4, 4, 4)) == 6.0
    assert coordinates_of(16, (4, 4, 4)) == (0, 0, 1)


def test_the_graph_of_a_torus_has_its_neighbours_and_no_spine(torus):
    cluster = torus("[4, 4]")
    graph = build_fabric(cluster, 16)
    assert not [name for name in graph if name.startswith("spine")]
    cables = [edge for *edge, data in graph.edges(data=True) if data["link"] == "leaf"]
    assert len(cables) == 16 * 4
    out = sum(data["bandwidth"] for _, _, data in graph.out_edges("leaf/5", data=True) if data["link"] == "leaf")
    assert out == pytest.approx(cluster.nic.bandwidth * cluster.nics_per_node)


def test_an_all_to_all_is_slower_on_a_torus_than_under_leaves_and_a_ring_is_not(torus):
    flat, cluster = load_cluster("dgx-h100"), torus("[4, 4]")
    fabric = load_fabric_profile(flat.fabric_profile)

    def seconds(kind, machine):
        return collective_transfer(kind, 2.0**33, block_shape(machine, 8, 16), machine, fabric).seconds

    assert seconds("all_gather", cluster) == pytest.approx(seconds("all_gather", flat), rel=0.01)
    assert seconds("all_to_all", cluster) > 1.5 * seconds("all_to_all", flat)


def test_a_torus_with_rails_or_shared_leaves_is_refused(torus):
    with pytest.raises(InputError, match="no leaf switches that nodes share"):
        torus("[4, 4]", nodes_per_leaf="4")
