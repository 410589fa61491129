"""Grouped products: many experts fill the device together, and the busiest rank decides."""

from __future__ import annotations

import pytest

from shardsim.cost.gemm import gemm_seconds
from shardsim.cost.grouped import grouped_gemm_seconds
from shardsim.schema.hardware import load_device
from shardsim.schema.kernels import load_kernel_profile
from shardsim.values.operators import Gemm

H100, KERNELS = load_device("h100-sxm-80gb"), load_kernel_profile("h100-sxm")
A100, UNMEASURED = load_device("a100-sxm-80gb"), load_kernel_profile("a100-sxm")


def test_without_measurements_a_grouped_product_is_as_many_tiles_of_one():
    experts = Gemm("experts", 512.0, 4096.0, 1536.0, 8.0)
    assert grouped_gemm_seconds(experts, A100, UNMEASURED, "bf16") == gemm_seconds(experts, A100, UNMEASURED, "bf16")


def test_eight_experts_take_less_than_eight_kernels():
    one = Gemm("expert", 512.0, 4096.0, 1536.0)
    alone = gemm_seconds(one, H100, KERNELS, "bf16")
    together = grouped_gemm_seconds(Gemm("experts", 512.0, 4096.0, 1536.0, 8.0), H100, KERNELS, "bf16")
    assert alone < together < 8 * alone


def test_the_busiest_rank_costs_in_proportion_once_tiles_are_full():
    experts = Gemm("experts", 4096.0, 4096.0, 14336.0, 8.0)
    even, skewed = (grouped_gemm_seconds(experts, H100, KERNELS, "bf16", imbalance=x) for x in (1.0, 1.5))
    assert skewed / even == pytest.approx(1.5, rel=0.02)
