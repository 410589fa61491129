"""Fits: constants put into synthetic measurements come out again, and noise shows in the error."""

from __future__ import annotations

import numpy as np
import pytest

from shardsim.calibrate.fit import Constant, fit_times
from shardsim.calibrate.gemm import fit_gemm
from shardsim.values.hardware import Device

DEVICE = Device("example", 80e9, 2e12, {"bf16": 300e12, "fp32": 20e12}, 108, 400.0, "example", "invented")


def gemm_grid():
    sizes = np.array([64.0, 512.0, 1024.0, 4096.0, 12288.0])
    return tuple(grid.ravel() for grid in np.meshgrid(sizes, sizes, sizes))


def gemm_times(m, n, k, efficiency=0.8, memory=0.6, overhead=7e-6):
    flop, traffic = 2 * m * n * k, 2 * (m * k + k * n + m * n)
    return overhead + np.maximum(flop / (efficiency * 300e12), traffic / (memory * 2e12))


def test_the_roofline_is_recovered_from_its_own_times():
    m, n, k = gemm_grid()
    fit = fit_gemm(m, n, k, gemm_times(m, n, k), DEVICE, "bf16")
    assert fit.constants["gemm_efficiency"] == pytest.approx(0.8, rel=1e-3)
    assert fit.constants["gemm_memory_efficiency"] == pytest.approx(0.6, rel=1e-2)
    assert fit.constants["gemm_overhead"] == pytest.approx(7e-6, rel=1e-2)
    assert fit.p90_error < 1e-3
    assert fit.at_bounds == ()


def test_one_wild_measurement_hardly_moves_the_fit():
    m, n, k = gemm_grid()
    times = gemm_times(m, n, k)
    times[-1] *= 20
    fit = fit_gemm(m, n, k, times, DEVICE, "bf16")
    assert fit.constants["gemm_efficiency"] == pytest.approx(0.8, rel=0.01)


def test_noise_shows_as_error_and_not_as_bias():
    m, n, k = gemm_grid()
    noise = np.exp(np.random.default_rng(0).normal(0.0, 0.05, m.size))
    fit = fit_gemm(m, n, k, gemm_times(m, n, k) * noise, DEVICE, "bf16")
    assert fit.median_error == pytest.approx(0.05 * 0.6745, rel=0.35)
    assert abs(fit.bias) < 0.02


def test_a_constant_that_the_data_does_not_determine_is_named():
    constants = [Constant("rate", 1.0, 0.1, 10.0), Constant("unseen", 1.0, 1e-6, 10.0)]
    x = np.arange(1.0, 20.0)
    fit = fit_times(lambda c: x / c["rate"] + 1e-12 * c["unseen"] + 1e-9, x / 50.0, constants)
    assert fit.at_bounds == ("rate",)


def test_fewer_points_than_constants_are_refused():
    with pytest.raises(ValueError, match="2 measurements cannot determine 3 constants"):
        fit_gemm(*(np.ones(2) for _ in range(4)), DEVICE, "bf16")
