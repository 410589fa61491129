"""Seconds of a compute kernel: a roofline with a fixed overhead for each launch.

A kernel takes its launch overhead plus the longer of its arithmetic at the achieved share of peak and its memory
traffic at the achieved share of bandwidth (Williams, Waterman & Patterson 2009, doi:10.1145/1498765.1498785).
"""

from __future__ import annotations

from collections.abc import Mapping

from shardsim.values.hardware import Device
from shardsim.values.kernels import KernelConstants
from shardsim.values.num import Num, larger
from shardsim.values.operators import Elementwise, OptimizerStep


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


def memory_bound_seconds(operator: Elementwise | OptimizerStep, device: Device, constants: KernelConstants) -> Num:
    """Time of memory-bound kernels: traffic over achieved bandwidth, one efficiency a kind of kernel [s]."""
    kind = operator.kind if isinstance(operator, Elementwise) else "optimizer"
    return roofline_seconds(
        0.0,
        operator.bytes_moved,
        flop_rate=1.0,
        bandwidth=device.memory_bandwidth * efficiency_of(kind, constants.memory_bound.efficiency),
        overhead=constants.memory_bound.overheads.get(kind, constants.memory_bound.overhead) * operator.kernels,
    )


def efficiency_of(kind: str, efficiencies: Mapping[str, float]) -> float:
    """Share of peak bandwidth of a kind of kernel, or the profile's default (-)."""
    return efficiencies.get(kind, efficiencies["default"])
