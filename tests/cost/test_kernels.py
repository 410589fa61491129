"""Costs of kernels: the roofline, and that arrays and scalars agree."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from shardsim.cost.kernels import efficiency_of, roofline_seconds
from shardsim.cost.operators import compute_seconds
from shardsim.values.hardware import Device
from shardsim.values.kernels import AttentionConstants, GemmConstants, KernelConstants, MemoryBoundConstants
from shardsim.values.operators import Attention, Elementwise, Gemm, OptimizerStep

DEVICE = Device("example", 80e9, 2e12, {"bf16": 300e12, "fp32": 20e12}, 108, 400.0, "example", "invented")
KERNELS = KernelConstants(
    name="example",
    gemm={"bf16": GemmConstants(sustained=0.8, memory_efficiency=0.5, overhead=6e-6)},
    attention=AttentionConstants({}, "flash2"),
    memory_bound=MemoryBoundConstants({"default": 0.9, "softmax": 0.7}, overhead=2e-6, overheads={"rope": 1e-6}),
)


def seconds(operator):
    return compute_seconds(operator, DEVICE, KERNELS, "bf16")


def test_a_large_product_runs_at_the_sustained_share_of_peak():
    gemm = Gemm("square", 8192, 8192, 8192)
    assert seconds(gemm) == pytest.approx(6e-6 + 2 * 8192**3 / (0.8 * 300e12))


def test_a_thin_product_is_bound_by_memory():
    gemm = Gemm("one row", 1, 8192, 8192)
    traffic = 2 * (8192 + 8192 * 8192 + 8192)
    assert seconds(gemm) == pytest.approx(6e-6 + traffic / (0.5 * 2e12))


def test_halving_memory_bandwidth_doubles_a_memory_bound_kernel_and_leaves_a_large_product_alone():
    slow = replace(DEVICE, memory_bandwidth=1e12)
    softmax = Elementwise("softmax", "softmax", 1e9, kernels=0)
    gemm = Gemm("square", 8192, 8192, 8192)
    assert compute_seconds(softmax, slow, KERNELS, "bf16") == pytest.approx(2 * seconds(softmax))
    assert compute_seconds(gemm, slow, KERNELS, "bf16") == seconds(gemm)


def test_every_launch_of_a_memory_bound_operator_pays_its_overhead():
    three = Elementwise("three kernels", "softmax", 1e6, kernels=3)
    assert seconds(three) == pytest.approx(3 * 2e-6 + 1e6 / (0.7 * 2e12))


def test_a_kind_of_kernel_has_its_own_launch_where_it_was_measured():
    assert seconds(Elementwise("rotate", "rope", 0.0, kernels=3)) == pytest.approx(3e-6)
    assert seconds(Elementwise("add", "add", 0.0, kernels=3)) == pytest.approx(6e-6)


def test_a_kind_of_kernel_without_its_own_share_takes_the_default():
    assert efficiency_of("unheard of", KERNELS.memory_bound.efficiency) == 0.9
    step = OptimizerStep("adam", 1e6, 40e6, kernels=1)
    assert seconds(step) == pytest.approx(2e-6 + 40e6 / (0.9 * 2e12))


def test_a_causal_kernel_skips_half_of_the_scores():
    full = Attention("core", 2, 16, 16, 2048, 64, causal=False)
    assert full.flop == pytest.approx(2 * 2 * 2 * 16 * 2048 * 2048 * 64)
    assert replace(full, causal=True).flop == pytest.approx(full.flop / 2)


@pytest.mark.parametrize("make", [
    lambda t: Gemm("qkv", 4096, 12288, 3 * 12288 / t),
    lambda t: Elementwise("gelu", "gelu", 4e9 / t, kernels=1),
    lambda t: OptimizerStep("adam", 1e9 / t, 40e9 / t, kernels=4),
])  # fmt: skip
def test_arrays_over_layouts_give_what_scalars_give(make):
    degrees = np.array([1.0, 2.0, 4.0, 8.0])
    one_by_one = [seconds(make(t)) for t in degrees.tolist()]
    assert seconds(make(degrees)).tolist() == one_by_one


def test_the_roofline_takes_the_slower_of_arithmetic_and_traffic():
    assert roofline_seconds(10.0, 1.0, flop_rate=1.0, bandwidth=1.0, overhead=0.5) == 10.5
    assert roofline_seconds(1.0, 10.0, flop_rate=1.0, bandwidth=1.0, overhead=0.5) == 10.5
