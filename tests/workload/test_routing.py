"""Uneven loads of experts, and what a limited capacity leaves of them."""

from __future__ import annotations

import numpy as np
import pytest

from shardsim.errors import InputError
from shardsim.values.training import Layout, Moe
from shardsim.workload.routing import (
    busiest_expert,
    capped_loads,
    dropped_share,
    imbalance_of,
    load_of,
    power_law_loads,
)

MOE = Moe(experts=8, top_k=2, ffn=1024)


def layout(**changes):
    return Layout(tp=1, pp=1, dp=8, ep=8, **changes)


def test_equal_loads_are_balanced_on_any_number_of_ranks():
    assert [imbalance_of([3.0] * 12, ep) for ep in (1, 2, 3, 12)] == [1.0, 1.0, 1.0, 1.0]


def test_one_expert_that_gets_everything_makes_its_rank_as_busy_as_all_together():
    assert imbalance_of([0, 0, 0, 7, 0, 0, 0, 0], 4) == 4.0
    assert busiest_expert([0, 0, 0, 7, 0, 0, 0, 0]) == 8.0


def test_ranks_hold_neighbouring_experts():
    assert imbalance_of([2, 2, 1, 1], 2) == pytest.approx(4 / 3)
    assert imbalance_of([2, 1, 2, 1], 2) == 1.0


def test_the_scale_of_loads_does_not_matter():
    loads = power_law_loads(64, 1.0)
    assert imbalance_of([1e6 * load for load in loads], 8) == pytest.approx(imbalance_of(loads, 8))


def test_more_ranks_are_less_balanced_and_no_rank_is_busier_than_its_busiest_expert():
    loads = power_law_loads(256, 0.8)
    imbalances = [imbalance_of(loads, ep) for ep in (1, 2, 4, 8, 16, 32, 64, 128, 256)]
    assert imbalances[0] == pytest.approx(1.0)
    assert imbalances == sorted(imbalances)
    assert imbalances[-1] == pytest.approx(busiest_expert(loads))


def test_zipfs_law_has_the_loads_of_the_harmonic_series():
    loads = sorted(power_law_loads(4, 1.0), reverse=True)
    mean = (1 + 1 / 2 + 1 / 3 + 1 / 4) / 4
    assert loads == pytest.approx([1 / mean, 1 / 2 / mean, 1 / 3 / mean, 1 / 4 / mean])


def test_popular_experts_are_placed_at_random_but_always_the_same():
    loads = power_law_loads(64, 1.0)
    assert loads == power_law_loads(64, 1.0)
    assert list(loads) != sorted(loads, reverse=True)
    assert list(loads) != sorted(loads)


def test_capacity_drops_what_is_above_it():
    assert capped_loads([1, 1, 4, 2], 1.0) == (1, 1, 2.0, 2)
    assert dropped_share([1, 1, 4, 2], 1.0) == 0.25
    assert dropped_share([1, 1, 4, 2], 2.0) == 0.0
    assert dropped_share([1, 1, 4, 2], 0.0) == 0.0
    assert dropped_share([1, 1, 4, 2], 0.5) == 0.5


def test_bad_loads_are_refused():
    with pytest.raises(InputError, match="a number of 0 or more"):
        imbalance_of([], 1)
    with pytest.raises(InputError, match="a number of 0 or more"):
        busiest_expert([])
    for loads in ([0, 0], [1, -1], [1, float("nan")], [1, float("inf")]):
        with pytest.raises(InputError, match="loads"):
            dropped_share(loads, 1.0)
    with pytest.raises(InputError, match="8 loads of experts on 3 ranks"):
        imbalance_of([1] * 8, 3)
    with pytest.raises(InputError, match="a factor of -1"):
        dropped_share([1, 2], -1)
    with pytest.raises(InputError) as caught:
        power_law_loads(0, -1.0)
    assert [problem.where for problem in caught.value.problems] == ["experts", "exponent"]


def test_without_a_limit_experts_get_all_copies_as_unevenly_as_the_layout_says():
    assert load_of(MOE, layout(imbalance=1.7), 4096) == (1.0, 1.7)


def test_padded_experts_work_on_whole_capacities_whatever_comes():
    """Megatron's get_capacity: ceil(CF T k / E) = ceil(1.25 * 1000 * 2 / 8) = 313 of 250."""
    assert load_of(MOE, layout(imbalance=1.7, capacity_factor=1.25, pads_capacity=True), 1000) == (313 / 250, 1.0)


def test_a_capacity_bounds_the_busiest_rank():
    assert load_of(MOE, layout(imbalance=1.7, capacity_factor=1.25), 1024) == (1.0, 1.25)
    assert load_of(MOE, layout(imbalance=1.1, capacity_factor=1.25), 1024) == (1.0, 1.1)


def test_a_capacity_below_the_mean_drops_from_all():
    share, imbalance = load_of(MOE, layout(imbalance=1.7, capacity_factor=0.5), 1024)
    assert (share, imbalance) == (0.5, 1.0)


def test_many_layouts_are_loaded_like_each_of_them():
    tokens, imbalances = np.array([512.0, 1000.0, 4096.0]), np.array([1.0, 1.2, 3.0])
    for limits in ({}, {"capacity_factor": 1.25}, {"capacity_factor": 1.25, "pads_capacity": True}):
        share, imbalance = load_of(MOE, layout(imbalance=imbalances, **limits), tokens)
        each = [
            load_of(MOE, layout(imbalance=float(i), **limits), float(t))
            for t, i in zip(tokens, imbalances, strict=True)
        ]
        assert np.broadcast_to(share, 3).tolist() == [one.share for one in each]
        assert np.broadcast_to(imbalance, 3).tolist() == [one.imbalance for one in each]
