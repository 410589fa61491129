"""What each algorithm puts on the links, by hand-computed figures and by what must hold for all groups."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardsim.cost.algorithms import ALGORITHMS, bus_factor, traffic
from shardsim.values.hardware import GroupShape

KINDS = ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"]
GROUPS = st.builds(
    lambda domains, together: GroupShape(domains * together, together, together, domains, domains, 1, 50e9 * together),
    st.integers(1, 64),
    st.integers(1, 16),
)
SIZES = st.floats(1.0, 1e11)


def group(domains, together):
    return GroupShape(domains * together, together, together, domains, domains, 1, 50e9 * together)


def test_a_ring_all_reduce_sends_two_n_minus_one_over_n_of_the_buffer_everywhere():
    """nccl-tests doc/PERFORMANCE.md."""
    done = traffic("ring", "all_reduce", 16e6, group(2, 8))
    assert (done.near_wire, done.far_wire) == (30e6, 30e6)
    assert (done.near_steps, done.far_steps) == (28, 2)


@given(SIZES, GROUPS)
def test_a_ring_all_reduce_is_a_reduce_scatter_and_an_all_gather(size, shape):
    whole, scatter, gather = (
        traffic("ring", kind, size, shape) for kind in ("all_reduce", "reduce_scatter", "all_gather")
    )
    for figure in ("near_steps", "far_steps", "near_wire", "far_wire"):
        assert getattr(whole, figure) == pytest.approx(getattr(scatter, figure) + getattr(gather, figure))


def test_a_tree_over_two_domains_carries_the_buffer_over_the_adapters_once_and_over_more_twice():
    assert traffic("tree", "all_reduce", 1e9, group(2, 8)).far_wire == 1e9
    assert traffic("tree", "all_reduce", 1e9, group(4, 8)).far_wire == 2e9


def test_in_switch_reduction_reads_every_buffer_once_and_multicasts_an_eighth():
    """8 H100: 480 GB/s of bus bandwidth is 274 of algorithm bandwidth and 309 GB/s on the wire of 450."""
    assert traffic("nvls", "all_reduce", 8e9, group(1, 8)).near_wire == pytest.approx(9e9)


def test_an_all_to_all_sends_to_each_peer_once_over_the_link_to_it():
    done = traffic("direct", "all_to_all", 16e6, group(2, 8))
    assert (done.near_wire, done.far_wire) == (7e6, 64e6)


def test_switches_of_the_network_take_the_buffer_up_once_however_many_nodes():
    assert {traffic("sharp", "all_reduce", 1e9, group(n, 8)).far_wire for n in (2, 4, 64)} == {1e9}


def test_a_parallel_tree_has_a_rings_bytes_in_logarithmically_many_steps():
    done, ring = (traffic(name, "all_gather", 1e6, group(64, 1)) for name in ("pat", "ring"))
    assert done.far_wire == pytest.approx(ring.far_wire)
    assert (done.far_steps, ring.far_steps) == (6.0, 63)


def test_a_hierarchical_all_reduce_crosses_domains_with_a_part_of_the_buffer():
    done = traffic("hierarchical", "all_reduce", 16e6, group(4, 8))
    assert (done.near_wire, done.far_wire) == (28e6, 24e6)
    assert (done.near_steps, done.far_steps) == (14.0, 6.0)


@given(st.sampled_from(sorted(ALGORITHMS)), st.sampled_from(KINDS), SIZES, GROUPS)
def test_nothing_is_negative_and_twice_the_bytes_are_twice_the_traffic(name, kind, size, shape):
    once, twice = traffic(name, kind, size, shape), traffic(name, kind, 2 * size, shape)
    if once is None:
        return
    for figure in ("near_steps", "far_steps", "near_wire", "far_wire", "chunk"):
        assert getattr(once, figure) >= 0.0
    assert twice.near_wire == pytest.approx(2 * once.near_wire)
    assert twice.far_wire == pytest.approx(2 * once.far_wire)


@given(st.sampled_from(["all_gather", "reduce_scatter", "all_reduce"]), SIZES, GROUPS)
def test_every_rank_receives_at_least_what_it_lacks(kind, size, shape):
    """No algorithm but in-switch reduction of an all-reduce may deliver with less than the missing bytes."""
    for name in ALGORITHMS:
        done = traffic(name, kind, size, shape)
        if done is None or not done.exists or shape.ranks == 1:
            continue
        assert done.near_wire + done.far_wire >= size * (1 - 1 / shape.ranks) * (1 - 1e-9)


def test_bus_factors_are_those_of_nccl_tests():
    assert [bus_factor(kind, 4) for kind in KINDS] == [1.5, 0.75, 0.75, 0.75, 1.0]
    assert bus_factor("send_recv", 16) == 1.0
