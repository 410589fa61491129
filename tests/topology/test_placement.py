"""Ranks, coordinates and groups: the placement that Megatron-LM uses, and who talks to whom on it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardsim.errors import InputError
from shardsim.schema.hardware import load_cluster
from shardsim.topology.placement import coordinates, group, groups, rank_at, who_talks_to_whom
from shardsim.values.training import Layout

WORKED = Layout(tp=4, pp=2, dp=4)
AXES = ("tp", "cp", "ep", "edp", "dp", "dp_cp", "shard", "replica", "pp", "embedding", "model")


def test_megatron_core_docstring_example_of_sixteen_ranks():
    # Megatron-LM, initialize_model_parallel: tp 2, pp 4 on 16 GPUs.
    layout = Layout(tp=2, pp=4, dp=2)
    assert groups("dp", layout) == ((0, 2), (1, 3), (4, 6), (5, 7), (8, 10), (9, 11), (12, 14), (13, 15))
    assert groups("tp", layout) == tuple((r, r + 1) for r in range(0, 16, 2))
    assert groups("pp", layout) == ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15))


def test_experts_are_spread_over_consecutive_replicas():
    layout = Layout(tp=2, pp=1, dp=4, ep=2)
    assert groups("ep", layout) == ((0, 2), (1, 3), (4, 6), (5, 7))
    assert groups("edp", layout) == ((0, 4), (1, 5), (2, 6), (3, 7))


def test_context_parallel_ranks_hold_the_same_parameters():
    layout = Layout(tp=2, cp=2, pp=2, dp=2)
    assert groups("dp_cp", layout) == ((0, 2, 4, 6), (1, 3, 5, 7), (8, 10, 12, 14), (9, 11, 13, 15))
    assert groups("model", layout)[0] == (0, 1, 8, 9)


def test_hybrid_sharding_splits_over_neighbours_and_repeats_across_them():
    layout = Layout(tp=1, cp=2, pp=1, dp=4, zero=3, shard=2)
    assert groups("shard", layout) == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert groups("replica", layout) == ((0, 4), (1, 5), (2, 6), (3, 7))
    assert group("shard", 6, layout) == (4, 5, 6, 7)
    assert group("replica", 6, layout) == (2, 6)


def test_first_and_last_stage_share_the_embedding():
    assert groups("embedding", Layout(tp=1, pp=4, dp=2)) == ((0, 6), (1, 7))
    assert groups("embedding", Layout(tp=1, pp=1, dp=2)) == ((0,), (1,))


def test_the_rank_order_can_be_changed():
    layout = Layout(tp=2, pp=2, dp=2, order=("pp", "tp", "cp", "dp"))
    assert groups("pp", layout) == ((0, 1), (2, 3), (4, 5), (6, 7))
    assert groups("tp", layout) == ((0, 2), (1, 3), (4, 6), (5, 7))


@pytest.mark.parametrize("order", [("tp", "dp", "pp"), ("tp", "tp", "dp", "pp"), ()])
def test_an_order_that_misses_an_axis_is_refused(order):
    with pytest.raises(InputError, match="write tp, cp, dp, pp, fastest first"):
        coordinates(0, Layout(tp=2, pp=2, dp=2, order=order))


def test_a_rank_that_does_not_exist_is_refused():
    with pytest.raises(InputError, match=r"there is no rank 32 \(0 to 31\)"):
        group("tp", 32, WORKED)


degrees = st.integers(1, 5)
layouts = st.builds(
    lambda tp, cp, ep, replicas, pp, order: Layout(tp=tp, cp=cp, ep=ep, dp=ep * replicas, pp=pp, order=tuple(order)),
    *(degrees, st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), degrees),
    st.permutations(["tp", "cp", "dp", "pp"]),
)


@given(layouts, st.data())
def test_coordinates_and_ranks_are_inverse(layout, data):
    rank = data.draw(st.integers(0, layout.gpus - 1))
    assert rank_at(coordinates(rank, layout), layout) == rank


@given(layouts, st.sampled_from(AXES))
def test_every_rank_is_in_exactly_one_group(layout, axis):
    found = groups(axis, layout)
    ranks = [rank for members in found for rank in members]
    assert len(ranks) == len(set(ranks))
    if axis != "embedding":
        assert sorted(ranks) == list(range(layout.gpus))
    for members in found:
        assert all(group(axis, rank, layout) == members for rank in members)


def test_the_worked_example_tp4_pp2_dp4_on_nodes_of_eight():
    talk = {each.axis: each for each in who_talks_to_whom(load_cluster("nvlink300-ib100"), WORKED)}
    assert set(talk) == {"tp", "dp", "pp"}
    # 8 groups of four GPUs, each inside one node.
    assert (talk["tp"].groups, talk["tp"].example, talk["tp"].links) == (8, (0, 1, 2, 3), ("nvlink",))
    # 8 groups of four replicas, two of them in each of two nodes: NVLink inside, InfiniBand between.
    assert (talk["dp"].groups, talk["dp"].example) == (8, (0, 4, 8, 12))
    assert (talk["dp"].nodes, talk["dp"].links) == (2, ("nvlink", "pcie", "nic"))
    # 16 pairs of stages, always two nodes apart: InfiniBand alone, under one leaf.
    assert (talk["pp"].groups, talk["pp"].example) == (16, (0, 16))
    assert (talk["pp"].nodes, talk["pp"].leaves, talk["pp"].links) == (2, 1, ("pcie", "nic"))


def test_groups_that_lie_differently_are_listed_apart():
    # TP 3 on nodes of eight: two of three groups fit, the third crosses.
    talk = who_talks_to_whom(load_cluster("dgx-a100"), Layout(tp=3, pp=1, dp=8))
    found = {(each.axis, each.nodes): each.groups for each in talk}
    assert found[("tp", 1)] == 6
    assert found[("tp", 2)] == 2


def test_a_rack_of_72_talks_over_nvlink_alone():
    talk = who_talks_to_whom(load_cluster("gb200-nvl72"), Layout(tp=4, pp=2, dp=9))
    assert {each.links for each in talk} == {("nvlink",)}
    assert {each.axis: each.nodes for each in talk} == {"tp": 1, "dp": 9, "pp": 2}


def test_leaves_are_crossed_only_beyond_their_nodes():
    cluster = load_cluster("dgx-h100")  # 32 nodes under one set of rail switches
    inside = who_talks_to_whom(cluster, Layout(tp=8, pp=1, dp=32))
    beyond = who_talks_to_whom(cluster, Layout(tp=8, pp=1, dp=64))
    assert [each.links for each in inside if each.axis == "dp"] == [("pcie", "nic")]
    assert [each.links for each in beyond if each.axis == "dp"] == [("pcie", "nic", "leaf")]
