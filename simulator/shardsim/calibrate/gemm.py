"""Fit the roofline of matrix products to measured GEMM times."""

from __future__ import annotations

from collections.abc import Mapping

from shardsim.calibrate.fit import Array, Constant, Fit, fit_times
from shardsim.cost.kernels import roofline_seconds
from shardsim.values.hardware import Device

GEMM_CONSTANTS = (
    Constant("gemm_efficiency", 0.75, 0.05, 1.0),
    Constant("gemm_memory_efficiency", 0.7, 0.05, 1.0),
    Constant("gemm_overhead", 5e-6, 1e-8, 1e-3),
)
"""Shares of peak arithmetic and memory bandwidth (-), and the time of a launch [s]."""


def fit_gemm(m: Array, n: Array, k: Array, seconds: Array, device: Device, precision: str) -> Fit:
    """Fit the three constants of the roofline.

    Parameters
    ----------
    m, n, k : ndarray of float
        Shapes (-), shape (points,).
    seconds : ndarray of float
        Measured times [s], shape (points,).
    device : Device
        Whose peaks the shares refer to.
    precision : str
        Data type of the products, 16-bit operands and results.

    Returns
    -------
    Fit
        Constants named as in a kernel profile.
    """
    flop = 2.0 * m * n * k
    traffic = 2.0 * (m * k + k * n + m * n)

    def times(constants: Mapping[str, float]) -> Array:
        found = roofline_seconds(
            flop,
            traffic,
            flop_rate=device.peak_flops[precision] * constants["gemm_efficiency"],
            bandwidth=device.memory_bandwidth * constants["gemm_memory_efficiency"],
            overhead=constants["gemm_overhead"],
        )
        return found + 0.0 * flop

    return fit_times(times, seconds, GEMM_CONSTANTS)
