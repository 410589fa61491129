"""Experts whose products run one after another."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from shardsim.cost.operators import compute_seconds
from shardsim.schema.hardware import load_device
from shardsim.schema.kernels import load_kernel_profile
from shardsim.values.operators import Gemm

H100, KERNELS = load_device("h100-sxm-80gb"), load_kernel_profile("h100-sxm")
ONE = Gemm("experts", 512.0, 4096.0, 1536.0)


def seconds(gemm):
    return compute_seconds(gemm, H100, KERNELS, "bf16")


def test_eight_experts_one_after_another_take_as_long_as_eight_products():
    assert seconds(replace(ONE, batch=8.0, kernels=8.0)) == pytest.approx(8 * seconds(ONE))


def test_one_expert_in_a_kernel_of_its_own_is_a_plain_product():
    assert seconds(replace(ONE, batch=1.0, kernels=1.0)) == seconds(ONE)


@pytest.mark.parametrize(("role", "rows"), [("forward", "m"), ("dgrad", "m"), ("wgrad", "k")])
def test_the_busiest_rank_has_more_rows(role, rows):
    one = replace(ONE, role=role)
    assert seconds(replace(one, imbalance=1.5)) == seconds(replace(one, **{rows: getattr(one, rows) * 1.5}))


def test_many_layouts_are_like_each_of_them():
    held = np.array([1.0, 2.0, 8.0])
    together = seconds(replace(ONE, batch=held, kernels=held))
    assert together.tolist() == [seconds(replace(ONE, batch=float(one), kernels=float(one))) for one in held]
