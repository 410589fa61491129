"""SAKURAONE's fabric is the published one (arXiv 2604.13600), with RoCE's latency (arXiv 2505.09343, Table 5)."""

from __future__ import annotations

import pytest

from shardsim.errors import InputError
from shardsim.schema.hardware import load_cluster, load_fabric_profile
from shardsim.topology.fabric import build_fabric, path


def test_sakuraone_has_two_pods_of_eight_leaves_one_for_each_rail() -> None:
    cluster = load_cluster("sakuraone")
    graph = build_fabric(cluster, nodes=100)
    assert sum(kind == "leaf" for _, kind in graph.nodes(data="kind")) == 16
    assert cluster.nic_bandwidth_per_gpu == 50e9
    assert cluster.oversubscription == 1
    with pytest.raises(InputError, match="101 nodes"):
        build_fabric(cluster, nodes=101)


def test_roce_takes_3_6_us_under_a_leaf_and_5_6_us_across() -> None:
    graph = build_fabric(load_cluster("sakuraone"), nodes=51)
    assert path(graph, 0, 8).latency == pytest.approx(3.6e-6)
    assert path(graph, 0, 50 * 8).latency == pytest.approx(5.6e-6)


def test_its_nodes_are_those_of_dgx_h100_and_nothing_between_them_is_called_measured() -> None:
    ours, theirs = (load_fabric_profile(load_cluster(name).fabric_profile) for name in ("sakuraone", "dgx-h100"))
    assert ours.links["nvlink"].efficiency == theirs.links["nvlink"].efficiency
    assert {ways[0].far.basis for ways in ours.ways.values()} == {"assumed"}
    assert (
        ours.links["nic"].efficiency["send_recv"]
        == load_fabric_profile("nvlink4-roce").links["nic"].efficiency["send_recv"]
    )
