"""Groups of consecutive ranks: how many domains, nodes and leaves they touch, and which adapters they have."""

from __future__ import annotations

import numpy as np
import pytest

from shardsim.schema.hardware import load_cluster
from shardsim.topology.blocks import block_shape, ranks_shape
from shardsim.topology.shape import group_shape
from shardsim.values.training import Layout


@pytest.mark.parametrize("name", ["dgx-h100", "dgx-2h", "gb200-nvl72"])
@pytest.mark.parametrize("ranks", [1, 2, 8, 16, 64, 144])
def test_filled_nodes_are_what_a_layout_of_one_axis_gives(name, ranks):
    cluster = load_cluster(name)
    if ranks > cluster.gpus_per_domain and ranks % cluster.gpus_per_domain:
        return
    shape, layout = ranks_shape(cluster, ranks), group_shape(cluster, Layout(tp=ranks, pp=1, dp=1), "tp")
    for figure in ("ranks", "ranks_per_domain", "ranks_per_node", "domains", "nodes", "leaves", "nic_share"):
        assert getattr(shape, figure) == pytest.approx(getattr(layout, figure)), figure


def test_one_gpu_a_node_has_one_gpus_share_of_the_adapters():
    shape = block_shape(load_cluster("dgx-h100"), 1, 10)
    assert (shape.ranks, shape.domains, shape.nic_share) == (10, 10, 50e9)


def test_nodes_of_a_rack_are_one_domain_until_it_is_full():
    cluster = load_cluster("gb300-nvl72")
    assert [block_shape(cluster, 4, nodes).domains for nodes in (1, 16, 18, 19, 36)] == [1, 1, 1, 2, 2]


def test_a_last_node_with_fewer_ranks_has_fewer_adapters():
    assert ranks_shape(load_cluster("dgx-h100"), 12).nic_share == 4 * 50e9


def test_many_groups_at_once_are_what_each_is_alone():
    cluster = load_cluster("dgx-a100")
    nodes, gpus = np.array([1.0, 2.0, 40.0]), np.array([4.0, 8.0, 8.0])
    together = block_shape(cluster, gpus, nodes)
    alone = [block_shape(cluster, g, n) for g, n in zip(gpus.tolist(), nodes.tolist(), strict=True)]
    assert together.nic_share.tolist() == [shape.nic_share for shape in alone]
    assert together.leaves.tolist() == [shape.leaves for shape in alone]


def test_the_emptiest_domain_of_uneven_groups_is_told():
    shape = ranks_shape(load_cluster("dgx-h100"), 17)
    assert (shape.ranks_per_domain, shape.fewest_per_domain, shape.domains, shape.nic_share) == (8, 1, 3, 50e9)
