"""Fit matrix products to measured GEMM times: a plain roofline, or tile by tile."""

from __future__ import annotations

from collections.abc import Mapping

from shardsim.calibrate.fit import Array, Constant, Fit, fit_times
from shardsim.cost.gemm import tiled_gemm_seconds
from shardsim.cost.kernels import roofline_seconds
from shardsim.values.hardware import Device
from shardsim.values.kernels import TileConstants

GEMM_CONSTANTS = (
    Constant("gemm_efficiency", 0.75, 0.05, 1.0),
    Constant("gemm_memory_efficiency", 0.7, 0.05, 1.0),
    Constant("gemm_overhead", 5e-6, 1e-8, 1e-3),
)
"""Shares of peak arithmetic and memory bandwidth (-), and the time of a launch [s]."""

TILE_CONSTANTS = (
    Constant("gemm_overhead", 2e-6, 1e-7, 2e-5),
    Constant("gemm_memory_efficiency", 0.7, 0.3, 1.0),
    Constant("efficiency", 0.95, 0.3, 2.0),
    Constant("exponent", 0.1, 1e-3, 0.6),
    Constant("fill", 1e-6, 1e-8, 2e-5),
    Constant("split_overhead", 2e-6, 1e-7, 1e-5),
    Constant("wave_quantization", 0.7, 0.01, 1.0),
    Constant("burst_cap", 0.9, 0.5, 2.0),
)
"""Constants of the tiled product, in SI units."""


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


def fit_tiles(m: Array, n: Array, k: Array, seconds: Array, device: Device, precision: str) -> Fit:
    """Fit the eight constants of the tiled product.

    Parameters
    ----------
    m, n, k : ndarray of float
        Shapes (-), shape (points,).
    seconds : ndarray of float
        Measured times of short bursts [s], shape (points,); the sustained share is measured apart.
    device : Device
    precision : str
        Data type of the products, 16-bit operands and results.

    Returns
    -------
    Fit
        Constants named as in a kernel profile, those under ``tile`` among them.
    """
    traffic = 2.0 * (m * k + k * n + m * n)

    def times(constants: Mapping[str, float]) -> Array:
        own = {name: constants[name] for name in TileConstants.__dataclass_fields__}
        found = tiled_gemm_seconds(
            m,
            n,
            k,
            1.0,
            bytes_moved=traffic,
            constants=TileConstants(**own),
            peak=device.peak_flops[precision],
            sustained=1.0,
            multiprocessors=device.multiprocessors,
            bandwidth=device.memory_bandwidth,
            memory_efficiency=constants["gemm_memory_efficiency"],
            overhead=constants["gemm_overhead"],
        )
        return found + 0.0 * m

    return fit_times(times, seconds, TILE_CONSTANTS)
