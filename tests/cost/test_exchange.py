"""Tokens on their way to experts: by NCCL's collectives, or in two levels of which the slower decides."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from shardsim.cost.collectives import collective_transfer
from shardsim.cost.exchange import exchange_transfer
from shardsim.errors import InputError
from shardsim.schema.hardware import load_cluster, load_fabric_profile
from shardsim.topology.shape import group_shape
from shardsim.values.exchange import ExchangeVolumes
from shardsim.values.training import Layout

H100, NVL72 = load_cluster("dgx-h100"), load_cluster("gb200-nvl72")
FABRIC, RACK = load_fabric_profile("nvlink4-ndr"), load_fabric_profile("nvl72-ndr")
SOME = ExchangeVolumes(near=200e6, far=100e6, whole=400e6)


def spread(ep, cluster=H100):
    return group_shape(cluster, Layout(tp=1, pp=1, dp=ep, ep=ep), "ep")


@pytest.mark.parametrize(
    ("dispatcher", "direction", "kind"),
    [
        ("alltoall", "dispatch", "all_to_all"),
        ("alltoall", "combine", "all_to_all"),
        ("allgather", "dispatch", "all_gather"),
        ("allgather", "combine", "reduce_scatter"),
    ],
)
def test_two_dispatchers_are_collectives_of_the_whole_buffer(dispatcher, direction, kind):
    found = exchange_transfer(SOME, dispatcher, direction, spread(16), H100, FABRIC)
    assert found == collective_transfer(kind, SOME.whole, spread(16), H100, FABRIC)


def test_of_two_levels_the_slower_decides():
    own = FABRIC.exchange["deepep"]
    far = own.latency + SOME.far / (own.far_share * 50e9)
    near = own.latency + 10 * SOME.near / (own.near_share * 450e9)
    one = exchange_transfer(SOME, "deepep", "dispatch", spread(16), H100, FABRIC)
    other = exchange_transfer(replace(SOME, near=10 * SOME.near), "deepep", "dispatch", spread(16), H100, FABRIC)
    assert (one.seconds, other.seconds) == pytest.approx((far, near))


def test_a_rack_keeps_all_tokens_on_nvlink():
    found = exchange_transfer(replace(SOME, far=0.0), "hybridep", "combine", spread(64, NVL72), NVL72, RACK)
    own = RACK.exchange["hybridep"]
    assert found.wire["nic"] == 0.0
    assert found.seconds == pytest.approx(own.latency + SOME.near / (own.near_share * 900e9))


def test_experts_of_one_rank_need_no_exchange():
    for dispatcher in ("alltoall", "deepep"):
        none = exchange_transfer(ExchangeVolumes(0.0, 0.0, 1e6), dispatcher, "dispatch", spread(1), H100, FABRIC)
        assert none.seconds == 0.0


def test_many_layouts_at_once_equal_one_by_one():
    ep = np.array([1.0, 8.0, 16.0, 64.0])
    volumes = ExchangeVolumes(near=1e7 * ep, far=np.where(ep > 8, 1e7 * ep, 0.0), whole=2e7 * ep)
    shape = group_shape(H100, Layout(tp=1, pp=1, dp=ep, ep=ep, cp=np.ones(4)), "ep")
    together = exchange_transfer(volumes, "deepep", "dispatch", shape, H100, FABRIC)
    alone = [
        exchange_transfer(
            ExchangeVolumes(float(volumes.near[i]), float(volumes.far[i]), float(volumes.whole[i])),
            *("deepep", "dispatch", spread(int(ep[i])), H100, FABRIC),
        )
        for i in range(4)
    ]
    assert together.seconds.tolist() == [each.seconds for each in alone]


def test_a_fabric_without_constants_says_what_works_there():
    cluster = load_cluster("dgx-2h")
    fabric = load_fabric_profile("nvlink2-edr")
    with pytest.raises(InputError, match=r"nvlink2-edr has no constants of the dispatcher deepep.*one of alltoall"):
        exchange_transfer(SOME, "deepep", "dispatch", spread(16, cluster), cluster, fabric)


@pytest.mark.parametrize(
    ("cluster", "ep", "measured"),
    # nccl-tests (github xxrjun/nccl-tests-cluster, and GB200 logs): bus bandwidth of large buffers, all of it NVLink's
    # within one domain and (ep - 8)/(ep - 1) of it the adapters' between nodes of 8.
    [
        ("dgx-h100", 8, 348.0),
        ("dgx-h100", 16, 92.1),
        ("dgx-h100", 80, 50.5),
        ("gb200-nvl72", 8, 662.0),
        ("gb200-nvl72", 64, 623.0),
    ],
)
def test_a_flat_all_to_all_is_as_fast_as_nccl_was_measured(cluster, ep, measured):
    machine = load_cluster(cluster)
    fabric, size = load_fabric_profile(machine.fabric_profile), 2.0**30
    volumes = ExchangeVolumes(0.0, 0.0, size)
    found = exchange_transfer(volumes, "alltoall", "dispatch", spread(ep, machine), machine, fabric)
    assert size * (ep - 1) / ep / found.seconds / 1e9 == pytest.approx(measured, rel=0.1)
