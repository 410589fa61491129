"""The fabric graph: what the machine's specification says can be read off its edges."""

from dataclasses import replace

import networkx as nx
import pytest

from shardsim.errors import InputError
from shardsim.schema.catalog import names
from shardsim.schema.hardware import load_cluster
from shardsim.topology.fabric import build_fabric, gpu, path
from shardsim.topology.placement import coordinates
from shardsim.values.training import Layout


def count(graph, kind):
    return sum(graph.nodes[name]["kind"] == kind for name in graph)


def flow(graph, sources, sinks, *, without=()):
    """Most bytes/s that the sources can send the sinks together, by maximum flow."""
    network = nx.DiGraph()
    for a, b, edge in graph.edges(data=True):
        if edge["link"] not in without:
            network.add_edge(a, b, capacity=edge["bandwidth"])
    for name in sources:
        network.add_edge("source", name)
    for name in sinks:
        network.add_edge(name, "sink")
    return nx.maximum_flow_value(network, "source", "sink")


def test_dgx_2h_has_eight_adapters_for_sixteen_gpus():
    graph = build_fabric(load_cluster("dgx-2h"), nodes=2)
    assert [count(graph, kind) for kind in ("gpu", "nvswitch", "pcie switch", "nic")] == [32, 2, 16, 16]
    # Two GPUs hang on each PCIe switch and share its adapter.
    assert graph.has_edge("gpu/0", "pcie/0/0")
    assert graph.has_edge("gpu/1", "pcie/0/0")
    assert graph.has_edge("gpu/2", "pcie/0/1")
    # 100 GB/s between two servers.
    assert flow(graph, [gpu(r) for r in range(16)], [gpu(r) for r in range(16, 32)]) == pytest.approx(100e9)
    # 150 GB/s per direction, vendor's total 300, from one GPU to the others of its server.
    assert flow(graph, ["gpu/0"], ["gpu/9"], without=("pcie", "nic", "leaf")) == pytest.approx(150e9)


@pytest.mark.parametrize(
    ("name", "nvlink", "node"),
    [
        ("dgx-a100", 300e9, 200e9),
        ("selene", 300e9, 200e9),
        ("dgx-h100", 450e9, 400e9),
        ("hgx-h800", 200e9, 400e9),
        ("dgx-b200", 900e9, 400e9),
        ("hgx-b300", 900e9, 800e9),
        ("gb200-nvl72", 900e9, 200e9),
        ("gb300-nvl72", 900e9, 400e9),
        ("nvlink300-ib100", 150e9, 100e9),
        ("nvlink900-ib100", 450e9, 100e9),
        ("a100-sxm-80gb-8x100", 300e9, 50e9),
    ],
)
def test_published_bandwidth_per_direction_of_a_gpu_and_of_a_node(name, nvlink, node):
    cluster = load_cluster(name)
    graph = build_fabric(cluster, nodes=2)
    assert path(graph, 0, 1).bandwidth == nvlink
    first, second = (
        [gpu(r) for r in range(n * cluster.gpus_per_node, (n + 1) * cluster.gpus_per_node)] for n in (0, 1)
    )
    assert flow(graph, first, second, without=("nvlink",)) == pytest.approx(node)


def test_latency_over_hops_is_the_one_measured_end_to_end():
    # 64-byte latency of DeepSeek-AI 2025 (arXiv:2505.09343), table 5: NVLink 3.33 us, InfiniBand 2.8 us under one
    # leaf and 3.7 us across leaves.
    graph = build_fabric(load_cluster("hgx-h800"), nodes=40)
    assert path(graph, 0, 1).latency == pytest.approx(3.33e-6)
    assert path(graph, 0, 8).latency == pytest.approx(2.8e-6)
    assert path(graph, 0, 32 * 8).latency == pytest.approx(3.7e-6)


def test_a_rail_keeps_the_same_gpu_of_every_node_under_one_leaf():
    graph = build_fabric(load_cluster("dgx-h100"), nodes=32)
    assert count(graph, "leaf") == 8
    assert "leaf" not in path(graph, 3, 31 * 8 + 3).links
    assert path(graph, 3, 31 * 8 + 4).links.count("leaf") == 2


def test_a_plain_leaf_takes_every_adapter_of_its_nodes():
    cluster = load_cluster("a100-sxm-80gb-8x100")
    graph = build_fabric(cluster, nodes=2 * cluster.nodes_per_leaf)
    assert count(graph, "leaf") == 2
    assert "leaf" not in path(graph, 0, 8 + 5).links
    assert path(graph, 0, 8 * cluster.nodes_per_leaf).links.count("leaf") == 2


@pytest.mark.parametrize("rail_optimized", [True, False])
@pytest.mark.parametrize("oversubscription", [1.0, 2.0, 4.0])
def test_oversubscription_divides_what_crosses_the_spine(oversubscription, rail_optimized):
    cluster = replace(
        load_cluster("dgx-a100"),
        nodes_per_leaf=4,
        oversubscription=oversubscription,
        rail_optimized=rail_optimized,
    )
    graph = build_fabric(cluster, nodes=8)
    left, right = [gpu(r) for r in range(32)], [gpu(r) for r in range(32, 64)]
    assert flow(graph, left, right, without=("nvlink",)) == pytest.approx(4 * 200e9 / oversubscription)


def test_eighteen_trays_are_one_nvlink_domain():
    graph = build_fabric(load_cluster("gb200-nvl72"), nodes=36)
    assert (count(graph, "gpu"), count(graph, "nvswitch")) == (144, 2)
    assert path(graph, 0, 71).links == ("nvlink", "nvlink")
    assert "nic" in path(graph, 0, 72).links


@pytest.mark.parametrize("name", names("cluster"))
def test_every_cluster_is_whole_symmetric_and_priced_on_every_edge(name):
    graph = build_fabric(load_cluster(name), nodes=3)
    assert nx.is_strongly_connected(graph)
    for a, b, edge in graph.edges(data=True):
        assert edge == graph.edges[b, a]
        assert edge["bandwidth"] > 0
        assert edge["latency"] >= 0
        assert edge["link"] in ("nvlink", "pcie", "nic", "leaf")


def test_a_gpu_without_nvlink_goes_over_pcie():
    cluster = replace(load_cluster("dgx-a100"), gpus_per_node=1, gpus_per_domain=1, nics_per_node=2)
    graph = build_fabric(cluster, nodes=2)
    assert count(graph, "nvswitch") == 0
    assert path(graph, 0, 1).links == ("pcie", "pcie", "nic", "nic", "pcie", "pcie")


def test_a_path_to_itself_has_no_edges():
    route = path(build_fabric(load_cluster("dgx-a100"), nodes=1), 2, 2)
    assert (route.nodes, route.links, route.latency) == (("gpu/2",), (), 0)


def test_the_worked_example_crosses_the_links_that_its_axes_say():
    layout = Layout(tp=4, pp=2, dp=4)
    graph = build_fabric(load_cluster("nvlink300-ib100"), nodes=4)
    assert coordinates(16, layout) == {"tp": 0, "cp": 0, "dp": 0, "pp": 1, "etp": 0, "ep": 0, "edp": 0}
    assert set(path(graph, 0, 3).links) == {"nvlink"}  # TP
    assert set(path(graph, 0, 4).links) == {"nvlink"}  # DP inside the node
    assert set(path(graph, 4, 8).links) == {"pcie", "nic", "leaf"}  # DP to the next node, from rail 4 to rail 0
    assert set(path(graph, 0, 16).links) == {"pcie", "nic"}  # PP


@pytest.mark.parametrize("nodes", [0, -1, 561])
def test_a_size_that_does_not_exist_is_refused(nodes):
    with pytest.raises(InputError, match="1 to 560"):
        build_fabric(load_cluster("selene"), nodes)


def test_a_gpu_that_does_not_exist_is_refused():
    graph = build_fabric(load_cluster("dgx-a100"), nodes=1)
    with pytest.raises(InputError, match=r"no gpu/8 in this fabric \(GPUs 0 to 7\)"):
        path(graph, 0, 8)
