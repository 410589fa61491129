"""One door to every cost: seconds of a compute operator, ``Transfer`` of a collective."""

from __future__ import annotations

from shardsim.cost.attention import attention_seconds
from shardsim.cost.gemm import gemm_seconds
from shardsim.cost.grouped import grouped_gemm_seconds, separate_gemm_seconds
from shardsim.cost.kernels import memory_bound_seconds
from shardsim.cost.power import at_its_clock
from shardsim.values.hardware import Device
from shardsim.values.kernels import KernelConstants
from shardsim.values.num import Num, any_of
from shardsim.values.operators import Attention, Elementwise, Gemm, OptimizerStep


def compute_seconds(
    operator: Gemm | Attention | Elementwise | OptimizerStep,
    device: Device,
    constants: KernelConstants,
    precision: str,
) -> Num:
    """Seconds of an operator that computes.

    Parameters
    ----------
    operator : Gemm, Attention, Elementwise or OptimizerStep
    device : Device
    constants : KernelConstants
    precision : str
        Data type of the matrix products that name none of their own.

    Returns
    -------
    Num
        [s].
    """
    if isinstance(operator, Gemm | Attention):
        device = at_its_clock(device, constants)
    if isinstance(operator, Gemm):
        data_type = operator.data_type or precision
        if operator.grouped:
            return grouped_gemm_seconds(operator, device, constants, data_type)
        uneven = any_of(operator.kernels > 1) or any_of(operator.imbalance > 1)
        price = separate_gemm_seconds if uneven else gemm_seconds
        return price(operator, device, constants, data_type)
    if isinstance(operator, Attention):
        return attention_seconds(operator, device, constants.attention, precision)
    return memory_bound_seconds(operator, device, constants)
