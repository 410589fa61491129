"""Seconds of the products of a rank's experts, each with the rows routed to it: in one kernel, or one after another."""

from __future__ import annotations

from dataclasses import replace

from shardsim.cost.gemm import PEAK_OF, Regime, gemm_seconds
from shardsim.values.hardware import Device
from shardsim.values.kernels import GroupedConstants, KernelConstants
from shardsim.values.num import Num, larger
from shardsim.values.operators import Gemm

AS_ONE = GroupedConstants(1.0, 0.0)
"""Where nothing was measured: as many tiles of one product."""


def grouped_gemm_seconds(
    gemm: Gemm,
    device: Device,
    constants: KernelConstants,
    precision: str,
    *,
    regime: Regime = "sustained",
) -> Num:
    """Time of the products of experts: of a grouped one, or of plain ones in ``kernels`` of their own.

    Parameters
    ----------
    gemm : Gemm
        Of one expert: m (k for a weight gradient) is the mean number of rows of an expert, batch the experts of the
        rank. Its ``imbalance`` is that of the busiest rank, for which the others wait; within the rank only the sum
        counts, since the tiles of all experts share the device.
    device : Device
    constants : KernelConstants
    precision : str
    regime : {"sustained", "burst"}

    Returns
    -------
    Num
        [s].

    Notes
    -----
    Tiles of the experts run in common waves, and each expert's last tile is partly empty. Fitted to expert layers with
    at least 256 rows an expert; fewer rows are an extrapolation. What was measured was short: in training no grouped
    product beats the share of peak that the longest products hold, any more than a single one does.

    Kernels of their own on several streams share the device as well, and take as long as that many tiles of one product
    (github NVIDIA/TransformerEngine, transformer_engine/common/gemm/cublaslt_gemm.cu, multi_stream_cublas_gemm).
    """
    own = constants.gemm[precision]
    grouped = own.grouped or AS_ONE
    busiest = _busiest(gemm)
    if gemm.grouped == "streams":
        return gemm_seconds(busiest, device, constants, precision, regime)
    seconds = grouped.overhead + grouped.slowdown * gemm_seconds(busiest, device, constants, precision, "burst")
    if regime == "burst":
        return seconds
    return larger(seconds, busiest.flop / (own.sustained * device.peak_flops[PEAK_OF.get(precision, precision)]))


def separate_gemm_seconds(gemm: Gemm, device: Device, constants: KernelConstants, precision: str) -> Num:
    """Time of the products of experts one after another, in ``kernels`` of their own.

    Parameters
    ----------
    gemm : Gemm
        As of :func:`grouped_gemm_seconds`.
    device : Device
    constants : KernelConstants
    precision : str

    Returns
    -------
    Num
        [s].
    """
    one = replace(_busiest(gemm), batch=gemm.batch / gemm.kernels)
    return gemm.kernels * gemm_seconds(one, device, constants, precision)


def _busiest(gemm: Gemm) -> Gemm:
    """The product of the rank that has most rows."""
    if gemm.role == "wgrad":
        return replace(gemm, k=gemm.k * gemm.imbalance)
    return replace(gemm, m=gemm.m * gemm.imbalance)
