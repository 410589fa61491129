"""Fit grouped products to measured expert layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from shardsim.calibrate.fit import Array, Constant, fit_times
from shardsim.calibrate.gemm import MoeTable, tile_constants
from shardsim.cost.gemm import OPERAND_BYTES, PEAK_OF, tiled_gemm_seconds
from shardsim.values.hardware import Device
from shardsim.values.kernels import GroupedConstants

MIN_ROWS = 256
"""Least rows of an expert that count (-)."""

CONSTANTS = (
    Constant("slowdown", 1.1, 0.7, 3.0),
    Constant("overhead", 5e-6, 1e-7, 1e-4),
    Constant("rest", 0.6, 0.1, 1.0),
)
"""Grouped over one product (-), fixed time of a product [s], and the bandwidth share of routing and activation (-)."""


@dataclass(frozen=True, slots=True)
class GroupedFit:
    """Fitted constants of grouped products.

    Parameters
    ----------
    constants : GroupedConstants
    rest : float
        Share of memory bandwidth that routing and activation reach (-).
    median_error, p90_error : float
        Of whole expert layers (-).
    points : int
    """

    constants: GroupedConstants
    rest: float
    median_error: float
    p90_error: float
    points: int

    def predict(
        self, table: MoeTable, constants: Mapping[str, float], device: Device, data_type: str = "bf16"
    ) -> Array:
        """Predict whole expert layers [s]."""
        own = {"slowdown": self.constants.slowdown, "overhead": self.constants.overhead, "rest": self.rest}
        return _layer(*_parts(table, constants, device, data_type), own, device)


def fit_grouped(table: MoeTable, constants: Mapping[str, float], device: Device, data_type: str = "bf16") -> GroupedFit:
    """Fit grouped products to balanced, gated expert layers: two products, and what is between them.

    Parameters
    ----------
    table : MoeTable
    constants : mapping of str to float
        Of single products, as :func:`shardsim.calibrate.gemm.fit_tiles` names them.
    device : Device
    data_type : str
        Of the products; what is between them has 16 bits.

    Returns
    -------
    GroupedFit
    """
    table = table.where(table.rows >= MIN_ROWS)
    products, traffic = _parts(table, constants, device, data_type)

    def times(found: Mapping[str, float]) -> Array:
        return _layer(products, traffic, found, device)

    fit = fit_times(times, table.seconds, CONSTANTS)
    found = GroupedConstants(fit.constants["slowdown"], fit.constants["overhead"])
    return GroupedFit(found, fit.constants["rest"], fit.median_error, fit.p90_error, fit.points)


def _parts(table: MoeTable, constants: Mapping[str, float], device: Device, data_type: str) -> tuple[Array, Array]:
    """Time of both products as if single [s], and traffic of what is beside them [bytes]."""
    hidden, inter, rows, experts = table.hidden, table.inter, table.rows, table.experts
    products = _product(rows, 2.0 * inter, hidden, experts, constants, device, data_type)
    products = products + _product(rows, hidden, inter, experts, constants, device, data_type)
    # Rows copied to their expert, gate and up made one, and results gathered back to the tokens.
    traffic = 2.0 * (rows * experts * (3.0 * hidden + 3.0 * inter) + table.tokens * hidden)
    return products, traffic


def _layer(products: Array, traffic: Array, found: Mapping[str, float], device: Device) -> Array:
    rest = traffic / (found["rest"] * device.memory_bandwidth)
    return 2.0 * found["overhead"] + found["slowdown"] * products + rest


def _product(
    m: Array, n: Array, k: Array, experts: Array, constants: Mapping[str, float], device: Device, data_type: str
) -> Array:
    width = OPERAND_BYTES.get(data_type, 2.0)
    product = tiled_gemm_seconds(
        m,
        n,
        k,
        experts,
        bytes_moved=experts * (width * (m * k + k * n) + 2.0 * m * n),
        constants=tile_constants(constants),
        peak=device.peak_flops[PEAK_OF.get(data_type, data_type)],
        multiprocessors=device.multiprocessors,
        bandwidth=device.memory_bandwidth,
        memory_efficiency=constants["gemm_memory_efficiency"],
    )
    return constants["gemm_overhead"] + np.asarray(product)
