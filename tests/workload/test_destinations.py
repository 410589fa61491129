"""How many domains and ranks a token goes to."""

from __future__ import annotations

from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardsim.workload.destinations import reached

V3 = {"experts": 256, "top_k": 8, "groups": 8, "group_limit": 4}


def test_deepseek_v3_reaches_three_and_a_half_other_nodes():
    """arXiv 2412.19437 §3.2.2: at most 4 nodes of 8; uniform routing leaves g (N - 1)/N remote."""
    assert reached(8, **V3) * 7 / 8 == pytest.approx(3.5)


def test_everything_on_one_unit_is_reached_once():
    assert reached(1, experts=128, top_k=8) == pytest.approx(1.0)
    assert reached(1, **V3) == pytest.approx(1.0)


def test_an_expert_a_rank_is_as_many_ranks_as_experts():
    assert reached(128, experts=128, top_k=8) == pytest.approx(8.0)
    assert reached(256, **V3) == pytest.approx(8.0)


def test_two_of_eight_experts_on_four_ranks_share_one_in_a_seventh_of_cases():
    assert reached(4, experts=8, top_k=2) == pytest.approx(2 - 1 / 7)


def test_half_as_many_nodes_as_groups_hold_two_groups_each():
    """4 of 8 groups in pairs: a pair is missed with C(6, 4)/C(8, 4) = 15/70."""
    assert reached(4, **V3) == pytest.approx(4 * (1 - 15 / 70))


def test_ranks_with_parts_of_groups_hold_an_equal_part_of_the_experts():
    """2 of 32 experts of each group on 8 ranks: a rank is missed with C(28, 2)/C(32, 2)."""
    assert reached(64, **V3) == pytest.approx(4 * 8 * (1 - comb(28, 2) / comb(32, 2)))


def test_groups_that_do_not_share_experts_evenly():
    """3 experts of 2 groups: one group has two of them."""
    found = reached(8, experts=16, top_k=3, groups=2, group_limit=2)
    assert found == pytest.approx(reached(8, experts=16, top_k=3))  # no limit at all
    limited = reached(16, experts=16, top_k=3, groups=4, group_limit=2)
    assert limited == pytest.approx(3.0)


def test_fewer_experts_than_groups_reach_one_group_each():
    assert reached(8, experts=64, top_k=2, groups=8, group_limit=4) == pytest.approx(2.0)


@given(
    units=st.sampled_from([1, 2, 4, 8, 16]),
    each=st.integers(1, 16),
    top_k=st.integers(1, 16),
)
def test_uniform_routing_is_a_draw_without_replacement(units, each, top_k):
    experts = units * each
    k = min(top_k, experts)
    expected = units * (1 - comb(experts - each, k) / comb(experts, k))
    assert reached(units, experts=experts, top_k=k) == pytest.approx(expected)


@pytest.mark.parametrize("units", [2, 4, 8, 16, 32])
def test_a_limit_is_what_drawing_groups_and_experts_of_them_gives(units):
    """Each chosen group has its best experts among those chosen: at least one, here two of eight."""
    draw = np.random.default_rng(1)
    total, trials = 0, 2000
    for _ in range(trials):
        groups = draw.permutation(8)[:4]
        experts = [8 * group + one for group in groups for one in draw.permutation(8)[:2]]
        total += len({int(expert) * units // 64 for expert in experts})
    assert reached(units, experts=64, top_k=8, groups=8, group_limit=4) == pytest.approx(total / trials, rel=0.02)


@given(st.sampled_from([{"experts": 256, "top_k": 8}, V3, {"experts": 8, "top_k": 2}]))
def test_many_numbers_of_units_at_once_are_like_each(routing):
    units = np.array([1.0, 2.0, 4.0, 8.0])
    assert reached(units, **routing).tolist() == [reached(float(one), **routing) for one in units]


@given(st.integers(0, 7))
def test_more_units_are_never_fewer_to_go_to_and_never_more_than_experts(power):
    for routing in ({"experts": 256, "top_k": 8}, V3):
        here, there = reached(2**power, **routing), reached(2 ** (power + 1), **routing)
        assert 1 - 1e-12 <= here <= there + 1e-12 <= 8 + 1e-9
