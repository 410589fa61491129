"""Costs of collectives: ring and tree traffic, physical limits, scalars and arrays alike."""

from __future__ import annotations

from dataclasses import replace
from math import log

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardsim.cost.collectives import achieved_bandwidth, collective_transfer, message_transfer
from shardsim.errors import InputError
from shardsim.values.hardware import (
    Cluster,
    Correction,
    Device,
    FabricConstants,
    GroupShape,
    Link,
    LinkConstants,
    WayConstants,
)
from shardsim.values.provenance import Provenance

NVLINK, NIC = 300e9, 25e9
DEVICE = Device("example", 80e9, 2e12, {"bf16": 300e12, "fp32": 20e12}, 108, 400.0, "example", "invented")
CLUSTER = Cluster(
    name="example", device=DEVICE, gpus_per_node=8, gpus_per_domain=8, nvlink=Link("nvlink", NVLINK, 1e-6, "invented"),
    pcie=Link("pcie", 25e9, 1e-6, "invented"), nic=Link("nic", NIC, 2e-6, "invented"), nics_per_node=8,
    nodes_per_leaf=20, oversubscription=1.0, rail_optimized=True, fabric_profile="example", max_gpus=None,
    source="invented",
)  # fmt: skip
FITTED, ASSUMED = Provenance("fitted", "invented"), Provenance("assumed", "invented")
FABRIC = FabricConstants(
    "example",
    {
        "nvlink": LinkConstants({"default": 0.8, "all_reduce": 0.9}, 10e-6, 2e-6, 1e6, FITTED),
        "nic": LinkConstants({"default": 0.95}, 9e-6, 14e-6, 5e4, ASSUMED),
    },
)
IDEAL = FabricConstants(
    "ideal",
    {name: LinkConstants({"default": 1.0}, 0.0, 0.0, 0.0, FITTED) for name in ("nvlink", "nic")},
)
KINDS = ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"]


def inside(ranks):
    return GroupShape(ranks, ranks, ranks, 1, 1, 1, 8 * NIC)


def across(nodes, per_node):
    return GroupShape(nodes * per_node, per_node, per_node, nodes, nodes, 1, per_node * NIC)


def seconds(kind, size, shape, fabric=FABRIC):
    return collective_transfer(kind, size, shape, CLUSTER, fabric).seconds


@pytest.mark.parametrize("kind", KINDS)
def test_a_group_of_one_costs_nothing(kind):
    assert seconds(kind, 1e9, inside(1)) == 0.0


def test_an_ideal_ring_all_reduce_takes_two_n_minus_one_over_n_of_the_buffer():
    """nccl-tests doc/PERFORMANCE.md: t = 2 S (n-1) / (n B)."""
    assert seconds("all_reduce", 8e9, inside(8), IDEAL) == pytest.approx(2 * 8e9 * 7 / 8 / NVLINK)


def test_an_ideal_all_gather_takes_half_of_an_all_reduce():
    gather = seconds("all_gather", 8e9, inside(8), IDEAL)
    scatter = seconds("reduce_scatter", 8e9, inside(8), IDEAL)
    assert gather + scatter == pytest.approx(seconds("all_reduce", 8e9, inside(8), IDEAL))


def test_across_nodes_the_adapters_of_the_group_decide():
    assert seconds("all_reduce", 8e9, across(4, 8), IDEAL) == pytest.approx(2 * 8e9 * 31 / 32 / (8 * NIC))
    assert seconds("all_reduce", 8e9, across(4, 1), IDEAL) == pytest.approx(2 * 8e9 * 3 / 4 / NIC)


def test_inside_a_node_the_adapters_do_not_matter():
    slow = replace(CLUSTER, nic=Link("nic", 1e9, 1e-3, "invented"))
    shape = replace(inside(8), nic_share=8e9)
    assert collective_transfer("all_reduce", 1e9, shape, slow, FABRIC).seconds == seconds("all_reduce", 1e9, inside(8))


def test_a_tiny_all_reduce_over_thousands_of_ranks_goes_by_tree():
    transfer = collective_transfer("all_reduce", 4.0, across(1024, 8), CLUSTER, FABRIC)
    assert transfer.algorithm == "tree"
    assert transfer.seconds < 1e-3


def test_a_large_all_reduce_goes_by_ring():
    assert collective_transfer("all_reduce", 1e9, across(4, 8), CLUSTER, FABRIC).algorithm == "ring"


def test_half_of_the_bandwidth_is_reached_at_the_size_so_named():
    link = FABRIC.links["nvlink"]
    assert achieved_bandwidth(NVLINK, "all_reduce", 1e6, link) == pytest.approx(0.9 * NVLINK / 2)


def test_the_weakest_provenance_on_the_way_is_reported():
    assert collective_transfer("all_reduce", 1e9, inside(8), CLUSTER, FABRIC).provenance.basis == "fitted"
    assert collective_transfer("all_reduce", 1e9, across(2, 8), CLUSTER, FABRIC).provenance.basis == "assumed"


def test_a_message_takes_nvlink_inside_a_domain_and_an_adapter_outside():
    near = message_transfer(25e9, leaves_domain=0, nic_share=NIC, cluster=CLUSTER, fabric=IDEAL)
    far = message_transfer(25e9, leaves_domain=1, nic_share=NIC, cluster=CLUSTER, fabric=IDEAL)
    assert (near.seconds, far.seconds) == (pytest.approx(25e9 / NVLINK), pytest.approx(1.0))
    assert message_transfer(0.0, leaves_domain=1, nic_share=NIC, cluster=CLUSTER, fabric=FABRIC).seconds == 0.0


MESSAGES = replace(
    FABRIC,
    corrections={
        ("send_recv", "wide", "near"): Correction((20.0, 30.0), (1.0,), ((log(2.0), -9.0),), FITTED),
        ("send_recv", "wide", "far"): Correction((10.0, 20.0), (1.0,), ((log(3.0), log(1.5)),), FITTED),
    },
)


def message(size, leaves_domain, fabric=MESSAGES):
    return message_transfer(size, leaves_domain=leaves_domain, nic_share=NIC, cluster=CLUSTER, fabric=fabric)


@pytest.mark.parametrize(("size", "leaves_domain", "factor"), [(2.0**20, 0, 2.0), (2.0**10, 1, 3.0), (2.0**25, 1, 1.5)])
def test_measurements_correct_a_message_by_its_size_and_where_it_goes(size, leaves_domain, factor):
    plain = message(size, leaves_domain, FABRIC).seconds
    assert message(size, leaves_domain).seconds == pytest.approx(factor * plain)


def test_no_correction_takes_a_message_beyond_the_datasheet():
    assert message(2.0**30, 0).rate["nvlink"] == NVLINK
    assert message(2.0**30, 0).seconds > 2.0**30 / NVLINK


def test_a_message_smaller_than_any_that_was_measured_says_so():
    assert message(2.0**20, 0).provenance.basis == "fitted"
    assert message(2.0**19, 0).provenance.basis == "assumed"
    assert message(0.0, 0).provenance.basis == "fitted"


@given(st.lists(st.floats(0.0, 1e11), min_size=1), st.sampled_from([0.0, 1.0]))
def test_messages_in_an_array_take_what_each_takes_alone(sizes, leaves_domain):
    together = message(np.array(sizes), leaves_domain).seconds
    assert together.tolist() == [message(size, leaves_domain).seconds for size in sizes]
    mixed = message(np.array([1e6, 1e6]), np.array([0.0, 1.0])).seconds
    assert mixed.tolist() == [message(1e6, 0.0).seconds, message(1e6, 1.0).seconds]


@given(st.sampled_from(KINDS), st.floats(1.0, 1e11), st.integers(2, 8))
def test_no_collective_beats_the_wire(kind, size, ranks):
    passes = 2 if kind == "all_reduce" else 1
    assert seconds(kind, size, inside(ranks)) >= passes * size * (ranks - 1) / ranks / NVLINK


@given(
    st.sampled_from(KINDS),
    st.floats(1.0, 1e10),
    st.floats(1.0, 10.0),
    st.integers(1, 16),
    st.sampled_from([1, 2, 4, 8]),
)
def test_more_bytes_never_take_less_time(kind, size, factor, nodes, per_node):
    shape = across(nodes, per_node) if nodes > 1 else inside(per_node)
    assert seconds(kind, size * factor, shape) >= seconds(kind, size, shape)


@pytest.mark.parametrize("kind", KINDS)
def test_arrays_over_groups_give_what_scalars_give(kind):
    shapes = [inside(1), inside(2), inside(8), across(4, 8), across(512, 1)]
    fields = ("ranks", "ranks_per_domain", "ranks_per_node", "domains", "nodes", "leaves", "nic_share")
    together = GroupShape(*(np.array([float(getattr(s, f)) for s in shapes]) for f in fields))
    for size in (4.0, 1e6, 1e9):
        assert seconds(kind, size, together).tolist() == [seconds(kind, size, shape) for shape in shapes]


def test_an_ideal_tree_between_two_nodes_carries_the_buffer_over_the_adapters_once_each_way():
    """Which is why nccl-tests shows more bus bandwidth on two nodes than their adapters have."""
    transfer = collective_transfer("all_reduce", 8e9, across(2, 1), CLUSTER, IDEAL)
    assert transfer.algorithm == "ring"  # of two ranks: the same traffic, and no allowance for trees
    transfer = collective_transfer("all_reduce", 8e9, across(2, 4), CLUSTER, IDEAL)
    assert transfer.algorithm == "tree"
    assert transfer.wire["nic"] == 8e9
    assert collective_transfer("all_reduce", 4.0, across(64, 1), CLUSTER, FABRIC).wire["nic"] == 8.0


def test_inside_one_domain_an_all_reduce_is_always_the_ring_that_profiles_are_fitted_to():
    for size in (4.0, 1e5, 1e6, 1e9):
        assert collective_transfer("all_reduce", size, inside(8), CLUSTER, FABRIC).algorithm == "ring"


@pytest.mark.parametrize(("ranks", "domains", "fewest"), [(9, 2, 1), (12, 2, 4), (15, 2, 7), (16, 2, 8), (17, 3, 1)])
def test_an_uneven_all_to_all_takes_as_long_as_its_slowest_domain(ranks, domains, fewest):
    """Each member of a domain of g sends n - g chunks over its own adapter."""
    shape = GroupShape(ranks, 8, 8, domains, domains, 1, fewest * NIC, fewest)
    chunk = 8e9 / ranks
    each = [members * (ranks - members) * chunk / (members * NIC) for members in (8, fewest)]
    assert seconds("all_to_all", 8e9, shape, IDEAL) == pytest.approx(max(each))


WAY = WayConstants("nvls", "Simple", 0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, FITTED, FITTED)
DOUBLED = Correction((10.0,), (3.0,), ((log(2.0),),), FITTED)
SWITCHED = replace(
    IDEAL,
    ways={"all_reduce": (WAY, replace(WAY, algorithm="ring"))},
    corrections={("all_reduce", "wide", "near"): DOUBLED},
)
"""In one domain NVLS is the choice, and measured at twice its equations' time."""


def forced(algorithm, shape, fabric=SWITCHED):
    return collective_transfer("all_reduce", 8e9, shape, CLUSTER, fabric, algorithm=algorithm)


def test_what_was_measured_of_the_librarys_choice_corrects_no_other_way():
    ring = 2 * 8e9 * 7 / 8 / NVLINK
    assert forced("ring", inside(8)).seconds == pytest.approx(ring)
    assert forced("nvls", inside(8)).seconds == forced(None, inside(8)).seconds
    assert forced(None, inside(8)).seconds == pytest.approx(2 * 8e9 * 9 / 8 / NVLINK)


def test_a_forced_way_of_many_groups_is_what_it_is_of_each():
    sizes = np.array([1e3, 1e6, 8e9])
    many = collective_transfer("all_reduce", sizes, inside(8), CLUSTER, SWITCHED, algorithm="ring").seconds
    each = [
        collective_transfer("all_reduce", s, inside(8), CLUSTER, SWITCHED, algorithm="ring") for s in sizes.tolist()
    ]
    assert many.tolist() == [transfer.seconds for transfer in each]


def test_an_algorithm_that_cannot_serve_the_group_is_refused():
    with pytest.raises(InputError, match=r"none of the ways .* can serve a group that lies so"):
        forced("nvls", across(4, 8))
    only = replace(SWITCHED, ways={"all_reduce": (WAY,)})
    for domains in (4, np.array([1.0, 4.0])):
        with pytest.raises(InputError, match="can serve"):
            forced(None, replace(across(4, 8), domains=domains), only)


def test_an_unknown_algorithm_or_data_type_is_refused_with_the_known_ones():
    with pytest.raises(InputError, match=r"has no algorithm 'foo' on ideal .*one of nvls, ring"):
        forced("foo", inside(8))
    with pytest.raises(InputError, match="'foo' is no data type"):
        collective_transfer("all_reduce", 8e9, inside(8), CLUSTER, SWITCHED, dtype="foo")


@pytest.mark.parametrize("dtype", ["int8", "FP8", "float8", "e4m3", "i8", "int8_t", "char", "torch.float8_e5m2"])
def test_switches_add_no_8_bit_type_by_any_spelling(dtype):
    assert collective_transfer("all_reduce", 8e9, inside(8), CLUSTER, SWITCHED, dtype=dtype).algorithm.startswith(
        "ring"
    )


def believing(**times):
    """A fabric on which the library believes one thing of each way and achieves another: fixed times."""
    ways = {name: replace(WAY, algorithm=name, protocol="", base_latency=done) for name, (_, done) in times.items()}
    beliefs = tuple(replace(way, base_latency=times[name][0]) for name, way in ways.items())
    return replace(IDEAL, ways={"all_reduce": tuple(ways.values())}, tuning={"all_reduce": beliefs})


@pytest.mark.parametrize(("achieved", "taken"), [(1.4, "tree"), (1.6, "ring")])
def test_the_librarys_choice_is_taken_unless_another_way_achieves_far_more(achieved, taken):
    fabric = believing(ring=(2.0, 1.0), tree=(1.0, achieved))
    assert collective_transfer("all_reduce", 8.0, across(4, 8), CLUSTER, fabric).algorithm == taken
    many = collective_transfer("all_reduce", np.array([8.0, 80.0]), across(4, 8), CLUSTER, fabric)
    assert many.seconds == pytest.approx([1.0 if taken == "ring" else achieved] * 2)


def test_corrections_of_other_types_hold_for_8_bit_ones_where_those_have_none():
    doubled = {("all_reduce", "wide", "near"): DOUBLED, ("all_reduce", "wide", "far"): DOUBLED}
    ring = replace(IDEAL, ways={"all_reduce": (replace(WAY, algorithm="ring"),)}, corrections=doubled)
    for shape in (inside(8), across(4, 2)):
        half, byte = (
            collective_transfer("all_reduce", 8e9, shape, CLUSTER, ring, dtype=dtype).seconds
            for dtype in ("half", "int8")
        )
        assert byte == half
    none = replace(DOUBLED, log_ratio=((0.0,),))
    own = replace(ring, corrections={**doubled, ("all_reduce", "narrow", "near"): none})
    half, byte = (
        collective_transfer("all_reduce", 8e9, inside(8), CLUSTER, own, dtype=dtype).seconds
        for dtype in ("half", "int8")
    )
    assert half == pytest.approx(2.0 * byte)


def test_a_group_beyond_a_correction_is_assumed():
    one = replace(SWITCHED, corrections={("all_reduce", "wide", "near"): DOUBLED})
    assert collective_transfer("all_reduce", 8e9, inside(8), CLUSTER, one).provenance.basis == "fitted"
    assert collective_transfer("all_reduce", 8e9, inside(4), CLUSTER, one).provenance.basis == "assumed"
    assert collective_transfer("all_reduce", 8.0, inside(8), CLUSTER, one).provenance.basis == "assumed"
