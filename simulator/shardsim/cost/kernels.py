"""Seconds of a compute kernel: a roofline with a fixed overhead for each launch.

A kernel takes its launch overhead plus the longer of its arithmetic at the achieved share of peak and its memory
traffic at the achieved share of bandwidth (Williams, Waterman & Patterson 2009, doi:10.1145/1498765.1498785).
"""

from __future__ import annotations

from collections.abc import Mapping

from shardsim.cost.gemm import tiled_gemm_seconds
from shardsim.values.hardware import Device
from shardsim.values.kernels import KernelConstants
from shardsim.values.num import Num, larger
from shardsim.values.operators import Attention, Elementwise, Gemm, OptimizerStep


def roofline_seconds(flop: Num, bytes_moved: Num, *, flop_rate: float, bandwidth: float, overhead: Num) -> Num:
    """Time of one kernel by the roofline.

    Parameters
    ----------
    flop : Num
        Floating point operations (-).
    bytes_moved : Num
        Memory traffic [bytes].
    flop_rate, bandwidth : float
        Achieved rates [FLOP/s], [bytes/s].
    overhead : Num
        Launch and ramp [s].

    Returns
    -------
    Num
        [s].

    Examples
    --------
    >>> roofline_seconds(1e12, 1e9, flop_rate=100e12, bandwidth=1e12, overhead=5e-6)
    0.010005
    """
    return overhead + larger(flop / flop_rate, bytes_moved / bandwidth)


def gemm_seconds(gemm: Gemm, device: Device, constants: KernelConstants, precision: str) -> Num:
    """Time of a (batched) GEMM: tile by tile where the profile has such constants, by the roofline otherwise [s]."""
    own = constants.gemm[precision]
    if own.tile is not None:
        return tiled_gemm_seconds(
            gemm.m,
            gemm.n,
            gemm.k,
            gemm.batch,
            bytes_moved=gemm.bytes_moved,
            constants=own.tile,
            peak=device.peak_flops[precision],
            sustained=own.sustained,
            multiprocessors=device.multiprocessors,
            bandwidth=device.memory_bandwidth,
            memory_efficiency=own.memory_efficiency,
            overhead=own.overhead,
        )
    return roofline_seconds(
        gemm.flop,
        gemm.bytes_moved,
        flop_rate=device.peak_flops[precision] * own.sustained,
        bandwidth=device.memory_bandwidth * own.memory_efficiency,
        overhead=own.overhead,
    )


def attention_seconds(attention: Attention, device: Device, constants: KernelConstants, precision: str) -> Num:
    """Time of a fused attention kernel [s]. FP8 runs attention in 16 bits, as frameworks do."""
    direction = "forward" if attention.role == "forward" else "backward"
    data_type = precision if precision in {"fp16", "bf16"} else "bf16"
    return roofline_seconds(
        attention.flop,
        attention.bytes_moved,
        flop_rate=device.peak_flops[data_type] * constants.attention.efficiency[direction],
        bandwidth=device.memory_bandwidth * constants.gemm[data_type].memory_efficiency,
        overhead=constants.memory_bound.overhead,
    )


def memory_bound_seconds(operator: Elementwise | OptimizerStep, device: Device, constants: KernelConstants) -> Num:
    """Time of memory-bound kernels: traffic over achieved bandwidth, one efficiency a kind of kernel [s]."""
    kind = operator.kind if isinstance(operator, Elementwise) else "optimizer"
    return roofline_seconds(
        0.0,
        operator.bytes_moved,
        flop_rate=1.0,
        bandwidth=device.memory_bandwidth * efficiency_of(kind, constants.memory_bound.efficiency),
        overhead=constants.memory_bound.overhead * operator.kernels,
    )


def efficiency_of(kind: str, efficiencies: Mapping[str, float]) -> float:
    """Share of peak bandwidth of a kind of kernel, or the profile's default (-)."""
    return efficiencies.get(kind, efficiencies["default"])
