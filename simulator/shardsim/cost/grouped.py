"""Seconds of grouped matrix products: the experts of one rank in one kernel, each with the rows routed to it."""

from __future__ import annotations

from dataclasses import replace

from shardsim.cost.gemm import Regime, gemm_seconds
from shardsim.values.hardware import Device
from shardsim.values.kernels import GroupedConstants, KernelConstants
from shardsim.values.num import Num
from shardsim.values.operators import Gemm

AS_ONE = GroupedConstants(1.0, 0.0)
"""Where nothing was measured: as many tiles of one product."""


def grouped_gemm_seconds(
    gemm: Gemm,
    device: Device,
    constants: KernelConstants,
    precision: str,
    *,
    imbalance: Num = 1.0,
    regime: Regime = "sustained",
) -> Num:
    """Time of a grouped product.

    Parameters
    ----------
    gemm : Gemm
        Of one expert: m is the mean number of rows of an expert, batch the experts of the rank.
    device : Device
    constants : KernelConstants
    precision : str
    imbalance : Num
        Rows of the busiest rank over the mean of all ranks (-): the others wait for it. Within the rank only the sum
        counts, since the tiles of all experts share the device.
    regime : {"sustained", "burst"}

    Returns
    -------
    Num
        [s].

    Notes
    -----
    Tiles of the experts run in common waves, and each expert's last tile is partly empty. Fitted to expert layers with
    at least 256 rows an expert; fewer rows are an extrapolation.
    """
    own = constants.gemm[precision].grouped or AS_ONE
    seconds = gemm_seconds(replace(gemm, m=gemm.m * imbalance), device, constants, precision, regime)
    return own.overhead + own.slowdown * seconds
