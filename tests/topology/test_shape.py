"""The shape of a group in closed form is what counting its ranks on the machine gives."""

from collections import Counter
from dataclasses import fields, replace
from math import prod
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardsim.schema.hardware import load_cluster
from shardsim.topology.placement import GroupAxis, coordinates, domain_of, leaf_of, node_of
from shardsim.topology.shape import group_shape, pipeline_hop
from shardsim.values.hardware import GroupShape
from shardsim.values.training import Layout

DGX_2H = load_cluster("dgx-2h")
DGX_A100 = load_cluster("dgx-a100")
NVL72 = load_cluster("gb200-nvl72")
AXES = get_args(GroupAxis)


def members_by_key(axis, layout):
    """Group ranks by the coordinates that a group shares: an independent reading of what each axis means."""
    free = {"dp_cp": {"dp", "cp"}, "model": {"tp", "pp"}, "embedding": {"pp"}}.get(axis, {axis})
    found, places = {}, Counter()
    for rank in range(layout.gpus):
        at = coordinates(rank, layout)
        place = places[at["pp"]]  # among the ranks of its stage
        places[at["pp"]] += 1
        if axis == "embedding" and at["pp"] not in (0, layout.pp - 1):
            continue
        shared = tuple(at[name] for name in ("tp", "cp", "dp", "pp") if name not in free)
        if axis in ("etp", "ep", "edp"):
            within = (place % layout.etp, place // layout.etp % layout.ep, place // (layout.etp * layout.ep))
            shared = (*(d for name, d in zip(("etp", "ep", "edp"), within, strict=True) if name != axis), at["pp"])
        if axis == "cp_inner":
            shared = (at["tp"], at["cp"] // layout.cp_inner, at["dp"], at["pp"])
        if axis == "cp_outer":
            shared = (at["tp"], at["cp"] % layout.cp_inner, at["dp"], at["pp"])
        if axis == "shard":
            shared = (at["tp"], at["dp"] // (layout.shard or layout.dp), at["pp"])
        if axis == "replica":
            shared = (at["tp"], at["cp"], at["dp"] % (layout.shard or layout.dp), at["pp"])
        found.setdefault(shared, []).append(rank)
    return list(found.values())


def counted_shape(cluster, layout, axis):
    gathered = members_by_key(axis, layout)
    domains = [Counter(domain_of(r, cluster) for r in ranks) for ranks in gathered]
    nodes = [Counter(node_of(r, cluster) for r in ranks) for ranks in gathered]
    leaves = [{leaf_of(r, cluster) for r in ranks} for ranks in gathered]
    leaving = [min(count.values()) for count in domains if len(count) > 1]
    fewest = min(leaving) if leaving else len(gathered[0])
    return GroupShape(
        ranks=len(gathered[0]),
        ranks_per_domain=max(max(count.values()) for count in domains),
        ranks_per_node=max(max(count.values()) for count in nodes),
        domains=max(len(count) for count in domains),
        nodes=max(len(count) for count in nodes),
        leaves=max(len(touched) for touched in leaves),
        nic_share=fewest * (cluster.nic.bandwidth * cluster.nics_per_node / cluster.gpus_per_node),
        fewest_per_domain=fewest,
    )


degree = st.integers(1, 6) | st.sampled_from([8, 9, 12, 16])
orders = st.permutations(["tp", "cp", "dp", "pp"]).map(tuple) | st.just(("tp", "cp", "dp", "pp"))


@st.composite
def layouts(draw, most_gpus=1500, order=orders):
    tp, cp, pp = draw(degree), draw(st.integers(1, 6)), draw(degree)
    dp = draw(st.integers(1, max(1, min(most_gpus // (tp * cp * pp), 120))))
    order = draw(order)
    # Groups of experts that tile a stage lie within its ranks that are faster than the pipeline's, or take them all.
    sizes = {"tp": tp, "cp": cp, "dp": dp}
    faster = prod(sizes[axis] for axis in order[: order.index("pp")])
    fitting = [n for n in divisors(tp * cp * dp) if faster % n == 0 or n % faster == 0]
    block = draw(st.sampled_from(fitting))
    etp = draw(st.sampled_from([n for n in fitting if block % n == 0]))
    shard, inner = draw(st.sampled_from([0, *divisors(dp)])), draw(st.sampled_from(divisors(cp)))
    degrees = {"tp": tp, "cp": cp, "pp": pp, "dp": dp, "ep": block // etp, "etp": etp}
    return Layout(**degrees, order=order, shard=shard, cp_inner=inner)


def divisors(number):
    return [n for n in range(1, number + 1) if number % n == 0]


@st.composite
def clusters(draw):
    node = draw(st.sampled_from([1, 2, 3, 4, 6, 8, 16]))
    return replace(
        DGX_A100,
        gpus_per_node=node,
        gpus_per_domain=node * draw(st.sampled_from([1, 1, 2, 3, 18])),
        nics_per_node=draw(st.sampled_from([1, 2, 8])),
        nodes_per_leaf=draw(st.integers(1, 20)),
    )


@settings(max_examples=250, deadline=None)
@given(clusters(), layouts(), st.sampled_from(AXES))
def test_closed_form_equals_counting(cluster, layout, axis):
    assert group_shape(cluster, layout, axis) == counted_shape(cluster, layout, axis)


@settings(max_examples=60, deadline=None)
@given(
    clusters(),
    orders.flatmap(lambda order: st.lists(layouts(order=st.just(order)), min_size=1, max_size=30)),
    st.sampled_from(AXES),
)
def test_many_layouts_at_once_equal_one_by_one(cluster, several, axis):
    shared = {"shard": min(several[0].shard, 1), "cp_inner": 1}  # the only ones that divide every degree
    several = [replace(one, **shared) for one in several]
    names = ("tp", "cp", "ep", "etp", "dp", "pp")
    degrees = {name: np.array([getattr(one, name) for one in several], float) for name in names}
    together = group_shape(cluster, Layout(**degrees, order=several[0].order, **shared), axis)
    apart = [group_shape(cluster, one, axis) for one in several]
    for field in fields(GroupShape):
        assert getattr(together, field.name).tolist() == [getattr(one, field.name) for one in apart]


@settings(max_examples=150, deadline=None)
@given(clusters(), layouts(), st.data())
def test_a_hop_leaves_where_some_rank_does(cluster, layout, data):
    sender = data.draw(st.integers(0, layout.pp - 1))
    receiver = data.draw(st.integers(0, layout.pp - 1))
    stages = members_by_key("pp", layout)
    hop = pipeline_hop(cluster, layout, sender, receiver)
    for place, found in ((domain_of, hop.leaves_domain), (node_of, hop.leaves_node), (leaf_of, hop.leaves_leaf)):
        assert found == any(place(ranks[sender], cluster) != place(ranks[receiver], cluster) for ranks in stages)


def test_the_hops_of_many_layouts_equal_one_by_one():
    tp, pp = np.array([1.0, 2.0, 4.0, 8.0, 3.0, 5.0]), np.array([4.0, 4.0, 4.0, 4.0, 4.0, 4.0])
    hop = pipeline_hop(DGX_A100, Layout(tp=tp, pp=pp, dp=np.ones(6)), 1, 2)
    alone = [pipeline_hop(DGX_A100, Layout(tp=int(t), pp=4, dp=1), 1, 2) for t in tp]
    assert hop.leaves_domain.tolist() == [one.leaves_domain for one in alone] == [0, 0, 1, 1, 1, 1]


def test_tensor_parallel_groups_of_eight_stay_inside_a_dgx_a100():
    shape = group_shape(DGX_A100, Layout(tp=8, pp=8, dp=16), "tp")
    assert (shape.ranks, shape.ranks_per_domain, shape.domains, shape.nodes) == (8, 8, 1, 1)


def test_data_parallel_groups_share_the_adapters_of_their_node():
    # 8 x 25 GB/s for 8 groups of one member in each node.
    shape = group_shape(DGX_A100, Layout(tp=8, pp=8, dp=16), "dp")
    assert (shape.ranks_per_node, shape.nodes, shape.nic_share) == (1, 16, 25e9)
    # Without TP a node's eight ranks belong to one group, which has all eight.
    shape = group_shape(DGX_A100, Layout(tp=1, pp=8, dp=128), "dp")
    assert (shape.ranks_per_node, shape.nodes, shape.nic_share) == (8, 16, 200e9)


def test_two_gpus_share_an_adapter_on_dgx_2h():
    # 100 GB/s a node for 16 GPUs: 6.25 GB/s for a lone member.
    assert group_shape(DGX_2H, Layout(tp=16, pp=1, dp=4), "dp").nic_share == 6.25e9
    assert group_shape(DGX_2H, Layout(tp=8, pp=1, dp=64), "dp").nic_share == 12.5e9


def test_a_rack_of_72_is_one_domain_of_18_nodes():
    shape = group_shape(NVL72, Layout(tp=8, pp=1, dp=9), "dp")
    assert (shape.domains, shape.nodes, shape.ranks_per_node, shape.ranks_per_domain) == (1, 9, 1, 9)
    shape = group_shape(NVL72, Layout(tp=8, pp=1, dp=72), "dp")
    assert (shape.domains, shape.ranks_per_domain, shape.nic_share) == (8, 9, 9 * 50e9)


def test_three_ranks_cannot_all_stay_inside_nodes_of_eight():
    # Ranks 6, 7, 8: the third group crosses, and rank 8 has one adapter.
    shape = group_shape(DGX_A100, Layout(tp=3, pp=1, dp=8), "tp")
    assert (shape.ranks_per_node, shape.nodes, shape.nic_share) == (3, 2, 25e9)


def test_a_pipeline_leaves_the_node_only_where_its_stages_do():
    layout = Layout(tp=4, pp=2, dp=1)
    assert pipeline_hop(DGX_A100, layout, 0, 1).leaves_domain == 0
    assert pipeline_hop(DGX_A100, replace(layout, pp=4), 0, 1).leaves_domain == 0
    assert pipeline_hop(DGX_A100, replace(layout, pp=4), 1, 2).leaves_domain == 1
    wrap_around = pipeline_hop(DGX_A100, replace(layout, pp=4), 3, 0)
    assert (wrap_around.leaves_domain, wrap_around.leaves_leaf, wrap_around.nic_share) == (1, 0, 25e9)


@pytest.mark.parametrize("axis", AXES)
def test_many_layouts_are_shaped_without_a_loop_over_them(axis):
    rng = np.random.default_rng(1)
    tp, pp = 2.0 ** rng.integers(0, 4, 200_000), rng.integers(1, 13, 200_000).astype(float)
    dp = 2.0 ** rng.integers(0, 8, 200_000)
    shape = group_shape(DGX_A100, Layout(tp=tp, pp=pp, dp=dp, cp=1, ep=1), axis)
    assert shape.nic_share.shape == (200_000,)
    assert np.all(shape.domains * shape.ranks_per_domain >= shape.ranks)
