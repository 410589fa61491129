"""Ranks, coordinates and groups: the placement that Megatron-LM uses, and who talks to whom on it."""

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardsim.errors import InputError
from shardsim.schema.hardware import load_cluster
from shardsim.topology.placement import GroupAxis, coordinates, group, groups, rank_at, who_talks_to_whom
from shardsim.values.training import Layout

WORKED = Layout(tp=4, pp=2, dp=4)
AXES = get_args(GroupAxis)


def test_megatron_core_docstring_example_of_sixteen_ranks():
    # Megatron-LM, initialize_model_parallel: tp 2, pp 4 on 16 GPUs.
    layout = Layout(tp=2, pp=4, dp=2)
    assert groups("dp", layout) == ((0, 2), (1, 3), (4, 6), (5, 7), (8, 10), (9, 11), (12, 14), (13, 15))
    assert groups("tp", layout) == tuple((r, r + 1) for r in range(0, 16, 2))
    assert groups("pp", layout) == ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15))


def test_experts_split_as_the_rest_are_spread_over_consecutive_replicas():
    layout = Layout(tp=2, pp=1, dp=4, ep=2, etp=2)
    assert groups("etp", layout) == groups("tp", layout) == ((0, 1), (2, 3), (4, 5), (6, 7))
    assert groups("ep", layout) == ((0, 2), (1, 3), (4, 6), (5, 7))
    assert groups("edp", layout) == ((0, 4), (1, 5), (2, 6), (3, 7))


def test_experts_that_are_not_split_take_the_ranks_of_tensor_and_context_parallelism():
    # Parallel folding: github NVIDIA/Megatron-LM, megatron/core/parallel_state.py, expert_decoder_rank_generator.
    layout = Layout(tp=2, cp=2, pp=2, dp=2, ep=4)
    assert groups("ep", layout) == ((0, 1, 2, 3), (4, 5, 6, 7), (8, 9, 10, 11), (12, 13, 14, 15))
    assert groups("edp", layout) == ((0, 4), (1, 5), (2, 6), (3, 7), (8, 12), (9, 13), (10, 14), (11, 15))
    assert len(group("edp", 0, layout)) == layout.gpus // (layout.pp * layout.ep * layout.etp)


def test_experts_reach_over_the_pipeline_where_it_is_not_slowest():
    # tp-cp-ep-pp-dp: 2 fast ranks of a stage, then the other stage's, then the stage's second replica.
    layout = Layout(tp=2, pp=2, dp=4, ep=4, order=("tp", "cp", "pp", "dp"))
    assert groups("ep", layout) == ((0, 1, 4, 5), (2, 3, 6, 7), (8, 9, 12, 13), (10, 11, 14, 15))
    assert groups("edp", layout)[:2] == ((0, 8), (1, 9))


def test_experts_that_do_not_tile_a_stage_are_refused():
    with pytest.raises(InputError, match="ETP x EP has to divide"):
        groups("ep", Layout(tp=2, pp=1, dp=4, ep=3))
    with pytest.raises(InputError, match="do not tile the ranks of a pipeline stage"):
        groups("ep", Layout(tp=4, pp=2, dp=3, ep=6, order=("tp", "cp", "pp", "dp")))


def test_an_all_to_all_within_a_ring_joins_neighbours():
    layout = Layout(tp=2, pp=1, cp=4, dp=1, cp_comm="a2a+p2p", cp_inner=2)
    assert groups("cp_inner", layout) == ((0, 2), (1, 3), (4, 6), (5, 7))
    assert groups("cp_outer", layout) == ((0, 4), (1, 5), (2, 6), (3, 7))
    talk = who_talks_to_whom(load_cluster("dgx-h100"), layout)
    assert [each.axis for each in talk] == ["tp", "cp_inner", "cp_outer"]


def test_deepseek_v3_talks_over_eight_nodes_for_its_experts_and_never_within_a_layer_otherwise():
    # PP16, EP64 over 8 nodes, ZeRO-1, no tensor parallelism, 2048 GPUs (arXiv 2412.19437 section 3).
    talk = who_talks_to_whom(load_cluster("hgx-h800"), Layout(tp=1, pp=16, dp=128, ep=64))
    found = {each.axis: (each.groups, each.ranks, each.nodes) for each in talk}
    assert found == {"dp": (16, 128, 16), "pp": (128, 16, 16), "ep": (32, 64, 8), "edp": (1024, 2, 2)}


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


@st.composite
def layouts(draw):
    tp, cp, replicas, pp = draw(degrees), draw(st.integers(1, 4)), draw(st.integers(1, 6)), draw(degrees)
    order = tuple(draw(st.permutations(["tp", "cp", "dp", "pp"])))
    faster, slower = 1, 1
    for axis, degree in zip(("tp", "cp", "dp"), (tp, cp, replicas), strict=True):
        if order.index(axis) < order.index("pp"):
            faster *= degree
        else:
            slower *= degree
    # Groups of experts that tile a stage lie within its fast ranks, or take all of them.
    block = draw(st.sampled_from(_divisors(faster) + [faster * more for more in _divisors(slower)]))
    etp = draw(st.sampled_from([n for n in _divisors(block) if faster % n == 0 or n % faster == 0]))
    inner = draw(st.sampled_from(_divisors(cp)))
    return Layout(tp=tp, cp=cp, ep=block // etp, etp=etp, dp=replicas, pp=pp, order=order, cp_inner=inner)


def _divisors(number):
    return [n for n in range(1, number + 1) if number % n == 0]


@given(layouts(), st.data())
def test_coordinates_and_ranks_are_inverse(layout, data):
    rank = data.draw(st.integers(0, layout.gpus - 1))
    assert rank_at(coordinates(rank, layout), layout) == rank


@given(layouts(), st.sampled_from(AXES))
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
