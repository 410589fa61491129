"""What a board's power limit leaves of its clock."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardsim.cost.operators import compute_seconds
from shardsim.cost.power import at_its_clock, clock_share
from shardsim.schema.hardware import load_cluster
from shardsim.schema.kernels import load_kernel_profile
from shardsim.values.operators import Elementwise, Gemm

DEVICE = load_cluster("dgx-h100").device
KERNELS = load_kernel_profile("h100-sxm")
PRODUCT = Gemm("up", 8192, 8192, 8192)


def test_the_clock_goes_with_the_cube_root_of_the_power_and_never_above_what_was_measured() -> None:
    assert clock_share(DEVICE, KERNELS) == 1.0
    assert clock_share(replace(DEVICE, power=350.0), KERNELS) == pytest.approx(0.5 ** (1 / 3))
    assert clock_share(replace(DEVICE, power=1000.0), KERNELS) == 1.0
    assert clock_share(replace(DEVICE, power=1.0), replace(KERNELS, power=0.0)) == 1.0
    assert at_its_clock(DEVICE, KERNELS) is DEVICE


def test_a_capped_board_multiplies_slower_and_copies_as_fast() -> None:
    capped = replace(DEVICE, power=500.0)
    slower = compute_seconds(PRODUCT, capped, KERNELS, "bf16") / compute_seconds(PRODUCT, DEVICE, KERNELS, "bf16")
    assert slower == pytest.approx((700 / 500) ** (1 / 3), rel=0.02)
    copy = Elementwise("norm", "norm", 1e9)
    assert compute_seconds(copy, capped, KERNELS, "bf16") == compute_seconds(copy, DEVICE, KERNELS, "bf16")
