"""How data-parallel replicas share parameters and gradients: volumes, buckets, parts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardsim.cost.algorithms import bus_factor
from shardsim.schema.framework import load_framework
from shardsim.schema.hardware import load_cluster
from shardsim.topology.shape import group_shape
from shardsim.values.training import Layout
from shardsim.workload.data_parallel import (
    bucket_elements,
    copy_reduction,
    gradient_reduction,
    optimizer_step,
    parameter_gather,
    scatters_every_microbatch,
)

CORE, FSDP, TITAN, DEEPSPEED, TORCH = (
    load_framework(name) for name in ("megatron-core", "fsdp", "torchtitan", "deepspeed", "megatron-2021-torch-ddp")
)
CLUSTER = load_cluster("dgx-a100")
PURE = replace(FSDP, gradient_bytes=2)


def sent(collective, layout):
    """Bytes that a rank sends, around a ring (nccl-tests, doc/PERFORMANCE.md)."""
    axis = "dp_cp" if collective.axis == "dp" else collective.axis
    ranks = group_shape(CLUSTER, layout, axis).ranks
    return collective.size * bus_factor(collective.kind, ranks)


@given(st.integers(1, 8), st.integers(1, 3), st.integers(1, 12), st.sampled_from([0, 1, 2, 3]))
def test_zero_moves_two_psi_and_three_with_parameters_split(shard, cp, copies, zero):
    """arXiv 1910.02054 section 7: 2 psi elements a rank up to ZeRO 2, 3 psi with ZeRO 3."""
    ranks, psi = shard * copies * cp, 1e9
    layout = Layout(tp=1, pp=1, cp=cp, dp=shard * copies, zero=zero)
    gathers = {0: 0, 1: 1, 2: 1, 3: 2}[zero]
    moved = sum(sent(part, layout) for part in gradient_reduction(psi, layout, PURE))
    moved += gathers * sent(parameter_gather(psi, layout, PURE), layout)
    assert moved == pytest.approx((3 if zero == 3 else 2) * psi * 2 * (ranks - 1) / ranks, rel=1e-12)


def test_traffic_between_hosts_is_that_of_the_fsdp_paper():
    """arXiv 2304.11277 section 3.2.2, M bytes on W GPUs, G to a host.

    Its figure for hybrid sharding, 2 M (W - 1)/(G W), counts a ring over all W; sums over the W/G that hold the same
    part take (W - G) in the place of (W - 1).
    """
    w, g, m = 512, 8, 2e9
    replicated, whole, hybrid = (Layout(1, 1, w, zero=z, shard=s) for z, s in ((0, 0), (3, 0), (3, g)))
    (reduce,) = gradient_reduction(m / 2, replicated, PURE)
    assert sent(reduce, replicated) == pytest.approx(2 * m * (w - 1) / w)
    (scatter,) = gradient_reduction(m / 2, whole, PURE)
    gather = parameter_gather(m / 2, whole, PURE)
    assert sent(scatter, whole) + 2 * sent(gather, whole) == pytest.approx(3 * m * (w - 1) / w)
    inside, between = gradient_reduction(m / 2, hybrid, PURE)
    assert group_shape(CLUSTER, hybrid, "shard").nodes == 1
    assert parameter_gather(m / 2, hybrid, PURE).axis == inside.axis == "shard"
    assert sent(between, hybrid) == pytest.approx(2 * m * (w - g) / (g * w))
    assert sent(between, hybrid) == pytest.approx(2 * m * (w - 1) / (g * w), rel=g / w)


def test_buckets_follow_the_rules_of_their_frameworks():
    sizes = [bucket_elements(Layout(1, 1, dp), CORE) for dp in (8, 40, 64, 512)]
    assert sizes == [40e6, 40e6, 64e6, 512e6]
    assert list(bucket_elements(Layout(1, 1, np.array([8.0, 512.0])), CORE)) == [40e6, 512e6]
    assert bucket_elements(Layout(1, 1, 512), TORCH) == 25 * 2**20 / 2
    assert bucket_elements(Layout(1, 1, 512), DEEPSPEED) == 500e6
    assert TORCH.first_bucket_bytes == 2**20


def test_split_gradients_are_reduced_at_every_micro_batch_unless_a_pipeline_accumulates_them():
    for zero, framework, pp, every in (
        (0, FSDP, 1, False),
        (1, DEEPSPEED, 1, False),
        (2, DEEPSPEED, 1, True),
        (3, FSDP, 1, True),
        (3, TITAN, 1, True),
        (3, TITAN, 4, False),
        (3, CORE, 4, True),
    ):
        assert scatters_every_microbatch(Layout(1, pp, 8, zero=zero), framework) is every


@pytest.mark.parametrize(
    ("zero", "shard", "cp", "copies", "parts"),
    [(0, 0, 1, 1, 1), (1, 0, 1, 1, 64), (3, 8, 1, 1, 8), (1, 0, 2, 1, 128), (1, 0, 1, 2, 128), (2, 16, 2, 1, 32)],
)
def test_each_rank_updates_its_part(zero, shard, cp, copies, parts):
    layout = Layout(1, 1, 64, cp=cp, zero=zero, shard=shard)
    assert optimizer_step(1e9, layout, CORE, 1, copies).parameters == 1e9 / parts


def test_two_copies_in_a_pipeline_sum_what_replicas_left_of_their_gradients():
    plain, none = copy_reduction(1e9, Layout(1, 8, 64), CORE)
    assert (plain.kind, plain.size, none) == ("all_reduce", 4e9, None)
    scatter, gather = copy_reduction(1e9, Layout(1, 8, 64, zero=1), CORE)
    assert (scatter.kind, scatter.size) == ("reduce_scatter", 4e9 / 64)
    assert gather is not None
    assert (gather.kind, gather.size) == ("all_gather", 2e9 / 64)
