"""Fit matrix products to measured GEMM times: a plain roofline, tile by tile, and a smoothed residual grid."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from shardsim.calibrate.fit import Array, Constant, Fit, fit_times
from shardsim.cost.gemm import AREAS, OPERAND_BYTES, PEAK_OF, tiled_gemm_seconds
from shardsim.cost.kernels import roofline_seconds
from shardsim.values.hardware import Device
from shardsim.values.kernels import GemmResidual, TileConstants

GEMM_CONSTANTS = (
    Constant("gemm_efficiency", 0.75, 0.05, 1.0),
    Constant("gemm_memory_efficiency", 0.7, 0.05, 1.0),
    Constant("gemm_overhead", 5e-6, 1e-8, 1e-3),
)
"""Shares of peak arithmetic and memory bandwidth (-), and the time of a launch [s]."""

TILE_NAMES = ("64x64", "64x128", "128x128", "128x256", "256x256")

TILE_CONSTANTS = (
    Constant("gemm_overhead", 2e-6, 2e-7, 2e-5),
    Constant("gemm_memory_efficiency", 0.8, 0.3, 1.0),
    Constant("fill", 1e-6, 2e-8, 2e-5),
    Constant("split_overhead", 2e-6, 2e-7, 1e-5),
    Constant("wave_quantization", 0.4, 0.02, 1.0),
    Constant("burst_cap", 0.95, 0.5, 1.2),
    Constant("burst_decay", 0.07, 0.005, 0.3),
    Constant("sharpness", 3.0, 2.0, 6.0),
    Constant("64x64", 0.65, 0.3, 1.1),
    Constant("64x128", 0.8, 0.3, 1.1),
    Constant("128x128", 0.9, 0.4, 1.1),
    Constant("128x256", 0.9, 0.4, 1.1),
    Constant("256x256", 0.9, 0.4, 1.1),
)
"""Constants of the tiled product, in SI units: where the search starts and its bounds. 256x256 where asked for."""

TETHER = 0.002
"""Weight of the starts against the measurements (-): what a table does not determine stays near them."""

ROWS_A_CONSTANT = 10
"""Fewest measurements for each constant that is fitted freely (-)."""

KEPT_OF_A_SMALL_TABLE = ("burst_decay", "sharpness")

TIED_CONSTANTS = (
    *(c for c in TILE_CONSTANTS if c.name not in (*TILE_NAMES, *KEPT_OF_A_SMALL_TABLE)),
    Constant("largest_tile", 0.95, 0.3, 1.3),
    Constant("area_exponent", 0.2, 1e-3, 0.6),
)
"""Those of a small table: tiles fall behind the largest by a power of their area, and what only many products can tell
apart stays where the search starts."""

QUANTIZATION_CONSTANTS = (
    Constant("quantization_traffic", 6.0, 1.0, 40.0),
    Constant("quantization_overhead", 2e-6, 1e-7, 2e-5),
)
"""Activations quantised with the product: traffic of an element [bytes] and fixed time [s]."""

LAYOUTS = ("nn", "nt")
LAYOUT_CONSTANTS = tuple(Constant(name, 1.0, 0.8, 1.25) for name in LAYOUTS)
"""Time over that of ``tn`` (-)."""

KNOTS_M = (1, 16, 64, 256, 1024, 3072, 8192, 32768)
KNOTS_NK = (256, 1024, 4096, 16384, 65536)
"""Knots of the residual grid (-): 8 x 5 x 5 = 200 numbers."""

CURVATURE = 0.3
"""Weight of a second difference along m, n or k against one measurement (-)."""
RIDGE = 0.3
"""Weight of a knot's size against one measurement (-): knots that nothing touches stay near 0."""
SCALE = 0.05
"""Log ratio at which the loss turns from squares to sizes (-)."""
_ROUNDS = 10


@dataclass(frozen=True, slots=True)
class GemmTable:
    """Measured products of one data type on one device.

    Parameters
    ----------
    m, n, k : ndarray of float
        Shapes (-), shape (points,).
    seconds : ndarray of float
        [s], shape (points,).
    """

    m: Array
    n: Array
    k: Array
    seconds: Array

    def __len__(self) -> int:
        return len(self.m)

    def where(self, mask: NDArray[np.bool_]) -> GemmTable:
        """Keep some points."""
        return GemmTable(self.m[mask], self.n[mask], self.k[mask], self.seconds[mask])

    @property
    def flop(self) -> Array:
        """2 m n k (-)."""
        return 2.0 * self.m * self.n * self.k


@dataclass(frozen=True, slots=True)
class MoeTable:
    """Measured expert layers of 16 bits: both products of all experts of one rank, routing and activation with them.

    Parameters
    ----------
    tokens, hidden, inter, topk, experts : ndarray of float
        Tokens routed, widths of the model and of an expert on this rank, experts a token, experts on this rank (-).
    share : ndarray of float
        Part of all experts that is on this rank (-).
    seconds : ndarray of float
        [s], shape (points,).
    """

    tokens: Array
    hidden: Array
    inter: Array
    topk: Array
    experts: Array
    share: Array
    seconds: Array

    def __len__(self) -> int:
        return len(self.tokens)

    def where(self, mask: NDArray[np.bool_]) -> MoeTable:
        """Keep some points."""
        return MoeTable(*(getattr(self, name)[mask] for name in MoeTable.__slots__))

    @property
    def rows(self) -> Array:
        """Rows of an expert (-)."""
        return self.tokens * self.topk * self.share / self.experts


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


def fit_tiles(
    m: Array,
    n: Array,
    k: Array,
    seconds: Array,
    device: Device,
    precision: str,
    *,
    tiles: int = 4,
    overhead: float | None = None,
    layouts: NDArray[np.str_] | None = None,
    starts: Mapping[str, float] = MappingProxyType({}),
    tether: float = TETHER,
) -> Fit:
    """Fit the constants of the tiled product to measured bursts.

    Parameters
    ----------
    m, n, k : ndarray of float
        Shapes (-), shape (points,).
    seconds : ndarray of float
        Measured times of short bursts [s], shape (points,); the sustained share is measured apart.
    device : Device
    precision : str
        Data type of the products; results of 16 bits.
    tiles : {4, 5}
        Areas of tiles that the libraries have: 5 with 256x256.
    overhead : float or None
        Launch, where it is known from the 16-bit products [s]. The measured times then hold the quantisation of the
        activations as well, and its two constants are fitted with those of the product.
    layouts : ndarray of str or None
        ``tn``, ``nn`` or ``nt`` of each product, shape (points,); all ``tn`` if left out.
    starts : mapping of str to float
        Constants of a kindred device, where the search starts, in place of the usual ones.
    tether : float
        Weight of the starts against the measurements (-).

    Returns
    -------
    Fit
        Constants named as in a kernel profile, those of tiles by the tile's name. Of a table with less than
        ``ROWS_A_CONSTANT`` products for each, fewer are free (``TIED_CONSTANTS``), and layouts are not told apart.
    """
    constants = _from(starts, (c for c in TILE_CONSTANTS if c.name not in TILE_NAMES[tiles:]))
    if overhead is not None:
        constants = [*constants[1:], *QUANTIZATION_CONSTANTS]
    if layouts is not None:
        constants = [*constants, *(c for c in LAYOUT_CONSTANTS if c.name in layouts)]
    tied = overhead is None and len(m) < ROWS_A_CONSTANT * len(constants)
    kept = {c.name: c.start for c in constants if c.name in KEPT_OF_A_SMALL_TABLE} if tied else {}
    if overhead is not None:
        kept = {"gemm_overhead": overhead}

    def full(found: Mapping[str, float]) -> dict[str, float]:
        return {**kept, **(untied(found, tiles) if tied else found)}

    def times(found: Mapping[str, float]) -> Array:
        return predicted_seconds(m, n, k, full(found), device, precision, layouts=layouts)

    fit = fit_times(times, seconds, _from(starts, TIED_CONSTANTS) if tied else constants, tether)
    return replace(fit, constants=full(fit.constants))


def untied(constants: Mapping[str, float], tiles: int) -> dict[str, float]:
    """Share of its multiprocessor's peak that each tile reaches, by the power of its area."""
    largest, exponent = constants["largest_tile"], constants["area_exponent"]
    names = TILE_NAMES[:tiles]
    shares = {name: largest * (area / AREAS[tiles - 1]) ** exponent for name, area in zip(names, AREAS, strict=False)}
    return {
        **{name: value for name, value in constants.items() if name not in ("largest_tile", "area_exponent")},
        **shares,
    }


def _from(starts: Mapping[str, float], constants: Iterable[Constant]) -> list[Constant]:
    """Constants whose search starts at those of a kindred device, within their bounds."""
    return [replace(c, start=min(max(starts.get(c.name, c.start), c.least), c.most)) for c in constants]


def predicted_seconds(
    m: Array,
    n: Array,
    k: Array,
    constants: Mapping[str, float],
    device: Device,
    precision: str,
    residual: GemmResidual | None = None,
    layouts: NDArray[np.str_] | None = None,
) -> Array:
    """Burst times by fitted constants, with the quantisation of activations where they have it [s]."""
    operand_bytes = OPERAND_BYTES.get(precision, 2.0)
    product = tiled_gemm_seconds(
        m,
        n,
        k,
        1.0,
        bytes_moved=operand_bytes * (m * k + k * n) + 2.0 * m * n,
        constants=tile_constants(constants),
        peak=device.peak_flops[PEAK_OF.get(precision, precision)],
        multiprocessors=device.multiprocessors,
        bandwidth=device.memory_bandwidth,
        memory_efficiency=constants["gemm_memory_efficiency"],
        residual=residual,
    )
    if layouts is not None:
        product = product * np.select(
            [layouts == name for name in LAYOUTS], [constants.get(x, 1.0) for x in LAYOUTS], 1.0
        )
    quantize = constants.get("quantization_traffic", 0.0) * m * k / device.memory_bandwidth
    return constants["gemm_overhead"] + product + quantize + constants.get("quantization_overhead", 0.0)


def tile_constants(constants: Mapping[str, float]) -> TileConstants:
    """Take the tile's own constants out of a fit."""
    return TileConstants(
        efficiency=tuple(constants[name] for name in TILE_NAMES[: len(AREAS)] if name in constants),
        **{name: constants[name] for name in TileConstants.__dataclass_fields__ if name != "efficiency"},
    )


def fit_residual(
    m: Array,
    n: Array,
    k: Array,
    log_ratio: Array,
    knots_m: tuple[int, ...] = KNOTS_M,
    knots_nk: tuple[int, ...] = KNOTS_NK,
) -> GemmResidual:
    """Fit the residual grid: smoothly, robustly, and small where nothing was measured.

    Parameters
    ----------
    m, n, k : ndarray of float
        Shapes (-), shape (points,).
    log_ratio : ndarray of float
        Measured over modelled time of the product, its launch taken off both, as a logarithm (-), shape (points,).
    knots_m, knots_nk : tuple of int
        Knots along m, and along n and k (-).

    Returns
    -------
    GemmResidual
    """
    sides = (np.log2(knots_m), np.log2(knots_nk), np.log2(knots_nk))
    weights = [_weights(np.log2(x), side) for x, side in zip((m, n, k), sides, strict=True)]
    design = weights[0][:, :, None, None] * weights[1][:, None, :, None] * weights[2][:, None, None, :]
    count = tuple(len(side) for side in sides)
    design = design.reshape(len(m), -1)
    penalty = _penalty(count)
    robust: Array = np.ones(len(m))
    found: Array = np.zeros(design.shape[1])
    for _ in range(_ROUNDS):
        weighted = design * robust[:, None]
        solved = np.linalg.solve(weighted.T @ design + penalty, weighted.T @ log_ratio)
        found = np.asarray(solved, dtype=np.float64)
        robust = 1.0 / np.sqrt(1.0 + ((design @ found - log_ratio) / SCALE) ** 2)
    grid = found.reshape(count).tolist()
    log2_m, log2_n, log2_k = (tuple(side.tolist()) for side in sides)
    return GemmResidual(log2_m, log2_n, log2_k, tuple(tuple(tuple(row) for row in plane) for plane in grid))


def with_residual(table: GemmTable, constants: Mapping[str, float], device: Device, precision: str) -> GemmResidual:
    """Fit the residual grid of a table beside fitted constants: of the product, without launch and quantisation."""
    m, n, k = table.m, table.n, table.k
    modelled = predicted_seconds(m, n, k, constants, device, precision)
    bare = {name: value for name, value in constants.items() if not name.startswith("quantization")}
    product = predicted_seconds(m, n, k, {**bare, "gemm_overhead": 0.0}, device, precision)
    beside = modelled - product
    # Where measured times fall short of launch and quantisation, the ratio of the whole is as good as can be had.
    left = np.maximum(table.seconds - beside, 0.25 * table.seconds)
    return fit_residual(m, n, k, np.log(left / product))


def _weights(x: Array, knots: Array) -> Array:
    """Weights of the knots in linear interpolation, constant beyond the ends, shape (points, knots)."""
    return np.stack([np.interp(x, knots, unit) for unit in np.eye(len(knots))], axis=-1)


def _penalty(count: tuple[int, ...]) -> Array:
    """Normal matrix of the second differences along each side and of the sizes."""
    total: Array = RIDGE**2 * np.eye(int(np.prod(count)))
    for side, length in enumerate(count):
        curve = np.diff(np.eye(length), n=2, axis=0)
        along = [curve.T @ curve if other == side else np.eye(size) for other, size in enumerate(count)]
        total = total + CURVATURE**2 * np.kron(np.kron(along[0], along[1]), along[2])
    return total
