"""Grouped products: many experts fill the device together, and the busiest rank decides."""

from __future__ import annotations

from dataclasses import replace

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
    even, skewed = (
        grouped_gemm_seconds(replace(experts, imbalance=most), H100, KERNELS, "bf16") for most in (1.0, 1.5)
    )
    assert skewed / even == pytest.approx(1.5, rel=0.02)


def test_of_a_weight_gradient_the_busiest_rank_has_more_to_sum_up():
    experts = Gemm("experts", m=4096.0, n=14336.0, k=4096.0, batch=8.0, role="wgrad")
    even, skewed = (
        grouped_gemm_seconds(replace(experts, imbalance=most), H100, KERNELS, "bf16") for most in (1.0, 1.5)
    )
    longer = grouped_gemm_seconds(replace(experts, k=1.5 * 4096.0), H100, KERNELS, "bf16")
    assert skewed == longer > 1.3 * even


def test_in_training_grouping_does_not_lift_the_sustained_rate():
    experts = Gemm("experts", m=16384.0, n=4096.0, k=14336.0, batch=8.0)
    cap = KERNELS.gemm["bf16"].sustained * H100.peak_flops["bf16"]
    assert experts.flop / grouped_gemm_seconds(experts, H100, KERNELS, "bf16") == pytest.approx(cap)
    assert experts.flop / grouped_gemm_seconds(experts, H100, KERNELS, "bf16", regime="burst") > cap


@pytest.mark.parametrize("profile", ["h100-sxm", "h200-sxm", "b200-sxm", "b300-sxm", "gb200", "gb300"])
def test_grouped_products_were_measured_in_every_type_that_training_uses(profile):
    kernels = load_kernel_profile(profile)
    for data_type in ("bf16", "fp8", "fp8_block"):
        assert kernels.gemm[data_type].grouped is not None
        assert kernels.provenance[f"gemm.{data_type}.grouped.slowdown"].basis == "fitted"
