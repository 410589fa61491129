"""Seconds of a matrix product, tile by tile: waves of tiles over the multiprocessors, split-k, memory and power.

A product (m, k) x (k, n) is cut into tiles of the result; each occupies one multiprocessor for its share of k. Tiles
run in waves of as many as there are multiprocessors, and a last wave that is partly filled wastes the rest. Libraries
choose the tile and may split k so that small results still fill the device; the model takes the fastest choice.

There are two regimes. Microbenchmarks run a product a few times on a cool device: a *burst*, in which clocks fall the
longer a kernel is. Training runs for weeks, long and hot: *sustained*, no product beats the share of peak that the
longest kernels hold. Predictions of training take ``sustained``; comparisons with microbenchmarks take ``burst``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from shardsim.cost.kernels import roofline_seconds
from shardsim.values.hardware import Device
from shardsim.values.kernels import AlignmentShare, GemmResidual, KernelConstants, TileConstants
from shardsim.values.num import Num, larger, where
from shardsim.values.operators import Gemm

Array = NDArray[np.float64]
Regime = Literal["burst", "sustained"]

TILES = ((64, 64), (64, 128), (128, 64), (128, 128), (128, 256), (256, 128), (256, 256))
"""Rows and columns of the result that one multiprocessor works on at a time (-), those of cuBLAS and CUTLASS; the last
on devices whose profile has a fifth efficiency (on Blackwell two multiprocessors share it)."""

AREAS = (64 * 64, 64 * 128, 128 * 128, 128 * 256, 256 * 256)
"""Elements of a tile (-), in the order of :attr:`TileConstants.efficiency`."""

SPLITS = (1, 2, 4, 8, 16)
"""Parts that k is cut into (-)."""

MIN_SPLIT_K = 256
"""Least k of a part (-): shorter ones never pay."""

K_STEP = 64
"""Elements of k that a tile consumes at a time (-)."""

BURST = 1e-4
"""Length at which the decay of clocks begins [s]."""

DECADES = 2.5
"""Tenfolds of that length after which clocks have settled (-)."""

LINE = 128
"""Bytes that a leading dimension must be a multiple of for full speed (-)."""

PEAK_OF: Mapping[str, str] = MappingProxyType({"fp8_block": "fp8"})
"""Data types whose dense peak goes by another's name."""

ELEMENT_BYTES: Mapping[str, float] = MappingProxyType({"fp8": 1.0, "fp8_block": 1.0, "fp4": 0.5})
"""Bytes of an operand's element (-). Scales lie in a tensor of their own."""

OPERAND_BYTES: Mapping[str, float] = MappingProxyType({"fp8": 1.0, "fp8_block": 1.0 + 4.0 / 128, "fp4": 0.5 + 1.0 / 16})
"""Bytes of an operand's element with its scale (-): one fp32 for 128 elements in blocks, one byte for 16 in NVFP4."""

_CHUNK = 1024


def gemm_seconds(
    gemm: Gemm, device: Device, constants: KernelConstants, precision: str, regime: Regime = "sustained"
) -> Num:
    """Time of a (batched) GEMM: tile by tile where the profile has such constants, by the roofline otherwise.

    Parameters
    ----------
    gemm : Gemm
        Of 16-bit operands; a narrower ``precision`` moves fewer bytes of them.
    device : Device
    constants : KernelConstants
    precision : str
        Data type of the product.
    regime : {"sustained", "burst"}
        ``sustained`` for training; ``burst`` as a microbenchmark would measure it.

    Returns
    -------
    Num
        [s].
    """
    own = constants.gemm[precision]
    operand_bytes = operand_width(gemm, precision)
    peak = device.peak_flops[PEAK_OF.get(precision, precision)]
    traffic = gemm.bytes_at(operand_bytes)
    first, second, result = gemm.leading_dimensions
    width = element_width(gemm, precision)
    sizes = (first * width, second * width, result * gemm.result_bytes)
    slowdown = own.layout_time.get(gemm.layout, 1.0) / alignment_factor(sizes, own.alignment)
    if own.tile is None:
        return roofline_seconds(
            gemm.flop * slowdown,
            traffic,
            flop_rate=peak * own.sustained,
            bandwidth=device.memory_bandwidth * own.memory_efficiency,
            overhead=own.overhead,
        )
    seconds = tiled_gemm_seconds(
        gemm.m,
        gemm.n,
        gemm.k,
        gemm.batch,
        bytes_moved=traffic,
        constants=own.tile,
        peak=peak,
        multiprocessors=device.multiprocessors,
        bandwidth=device.memory_bandwidth,
        memory_efficiency=own.memory_efficiency,
        residual=own.residual,
    )
    if regime == "sustained":
        seconds = larger(seconds, gemm.flop / (own.sustained * peak))
    return own.overhead + seconds * slowdown


def element_width(gemm: Gemm, precision: str) -> float:
    """Bytes of an operand's element, without its scale, when a product runs in a data type (-)."""
    return ELEMENT_BYTES.get(precision, gemm.element_bytes)


def operand_width(gemm: Gemm, precision: str) -> float:
    """Bytes of an operand's element and its part of a scale, when a product runs in a data type (-)."""
    return OPERAND_BYTES.get(precision, gemm.element_bytes)


def alignment_factor(sizes: Sequence[Num], shares: Sequence[AlignmentShare], which: str = "usual") -> Num:
    """Share of an aligned product's throughput that misaligned leading dimensions leave.

    Kernels load 16 bytes at a time and memory answers in lines of 128: a row that starts elsewhere needs narrower
    loads or another kernel. All multiples of 128 bytes: 1; below that the profile says what was documented.

    Parameters
    ----------
    sizes : sequence of Num
        Leading dimensions of both operands and the result [bytes].
    shares : sequence of AlignmentShare
        Best alignment first.
    which : {"usual", "worst"}

    Returns
    -------
    Num
        (-).

    Notes
    -----
    Sources and bases of the shares stand in the profile. Rule of thumb: NVIDIA, Matrix Multiplication Background, §
    "Tensor Core Requirements"; arXiv 2401.14489 §VI.

    Examples
    --------
    >>> shares = (AlignmentShare(64, 0.95, 0.89), AlignmentShare(1, 0.685, 0.35))
    >>> alignment_factor([2 * 10944.0], shares), alignment_factor([2 * 10922.0], shares)
    (1.0, 0.685)
    """
    factor: Num = 1.0
    reached = LINE
    for share in shares:
        misses = sizes[0] % reached != 0
        for size in sizes[1:]:
            misses = misses | (size % reached != 0)
        factor = where(misses, getattr(share, which), factor)
        reached = share.least
    return factor


def tiled_gemm_seconds(
    m: Num,
    n: Num,
    k: Num,
    batch: Num,
    *,
    bytes_moved: Num,
    constants: TileConstants,
    peak: float,
    multiprocessors: int,
    bandwidth: float,
    memory_efficiency: float,
    residual: GemmResidual | None = None,
) -> Num:
    """Time of a (batched) product in a burst, without its launch.

    Parameters
    ----------
    m, n, k, batch : Num
        Shape and number of products (-).
    bytes_moved : Num
        Memory traffic [bytes].
    constants : TileConstants
    peak : float
        Dense peak of the device [FLOP/s].
    multiprocessors : int
        (-).
    bandwidth : float
        Datasheet memory bandwidth [bytes/s].
    memory_efficiency : float
        Share of it that products reach (-).
    residual : GemmResidual or None
        Correction for single products; batched ones were not measured.

    Returns
    -------
    Num
        [s].
    """
    given = (m, n, k, batch, bytes_moved)
    machine = (constants, peak, multiprocessors, bandwidth, memory_efficiency, residual)
    if not any(isinstance(x, np.ndarray) for x in given):
        return _one(given, *machine)
    columns = np.stack([np.asarray(x, dtype=np.float64) for x in np.broadcast_arrays(*given)])
    flat = columns.reshape(len(given), -1)
    parts = [_price(flat[:, start : start + _CHUNK], *machine) for start in range(0, flat.shape[1], _CHUNK)]
    return np.concatenate(parts).reshape(columns.shape[1:])


@lru_cache(maxsize=8192)
def _one(
    given: tuple[Num, ...],
    constants: TileConstants,
    peak: float,
    multiprocessors: int,
    bandwidth: float,
    share: float,
    residual: GemmResidual | None,
) -> float:
    """Price one product; layers, stages and passes ask for the same ones again and again."""
    columns = np.array(given, dtype=np.float64)[:, None]
    return float(_price(columns, constants, peak, multiprocessors, bandwidth, share, residual)[0])


def _price(
    columns: Array,
    constants: TileConstants,
    peak: float,
    multiprocessors: int,
    bandwidth: float,
    share: float,
    residual: GemmResidual | None,
) -> Array:
    seconds = _burst(columns, constants, peak, multiprocessors, bandwidth, share)
    if residual is None:
        return seconds
    measured: Array = columns[3] == 1.0
    return seconds * np.exp(measured * residual_log(columns[:3], residual))


def _burst(
    columns: Array, constants: TileConstants, peak: float, multiprocessors: int, bandwidth: float, share: float
) -> Array:
    """Soft maximum of tiles, memory and power [s]."""
    m, n, k, batch, bytes_moved = columns
    tiles = fastest_tiles(m, n, k, batch, constants, peak / multiprocessors, multiprocessors, bandwidth)
    memory = bytes_moved / (share * bandwidth)
    ideal = 2.0 * batch * m * n * k / peak
    decades = np.minimum(np.maximum(np.log10(ideal / BURST), 0.0), DECADES)
    power = ideal / constants.burst_cap * np.exp(constants.burst_decay * decades)
    p = constants.sharpness
    together: Array = (tiles**p + memory**p + power**p) ** (1.0 / p)
    return together


def fastest_tiles(
    m: Array,
    n: Array,
    k: Array,
    batch: Array,
    constants: TileConstants,
    rate: float,
    multiprocessors: int,
    bandwidth: float,
) -> Array:
    """Least time of the tiles over all choices of tile and split [s], shape (points,).

    ``rate`` is the peak of one multiprocessor [FLOP/s].
    """
    rows, columns, seconds_of_step, splits, overhead, least_k = _choices(constants, rate)
    count = np.ceil(m / rows) * np.ceil(n / columns) * (batch / multiprocessors)
    fill = count[:, None] * splits
    waves = fill + constants.wave_quantization * (np.ceil(fill) - fill)
    np.maximum(waves, 1.0, out=waves)
    tile = np.ceil(k / (splits * K_STEP)) * seconds_of_step + constants.fill
    # Partial results are written and read again in fp32.
    extra = np.where(k >= least_k, overhead[1] * (m * n * batch / bandwidth) + overhead[0], np.inf)
    waves *= tile
    waves += extra
    best: Array = waves.min(axis=(0, 1))
    return best


@lru_cache(maxsize=256)
def _choices(constants: TileConstants, rate: float) -> tuple[Array, Array, Array, Array, tuple[Array, Array], Array]:
    """Tiles and splits as columns that broadcast to (tiles, splits, points)."""
    tiles = [tile for tile in TILES if AREAS.index(tile[0] * tile[1]) < len(constants.efficiency)]
    rows, columns = (np.array([[tile[side]] for tile in tiles], dtype=np.float64) for side in (0, 1))
    reached = np.array([constants.efficiency[AREAS.index(a * b)] for a, b in tiles]) * rate
    step = (2.0 * K_STEP * rows[:, 0] * columns[:, 0] / reached)[:, None, None]
    splits = np.array(SPLITS, dtype=np.float64)[:, None]
    several = np.asarray(splits > 1, dtype=np.float64)
    overhead = (several * constants.split_overhead, several * splits * 8.0)
    return rows, columns, step, splits, overhead, several * splits * MIN_SPLIT_K


def residual_log(shape: Array, residual: GemmResidual) -> Array:
    """Interpolate the residual grid at rows m, n, k (-), shape (points,)."""
    knots, values, corners = _grid(residual)
    flat: Array = np.zeros(1)
    shares = []
    for (own, order), x in zip(knots, np.log2(shape), strict=True):
        place = np.interp(x, own, order)
        below = np.minimum(np.floor(place), len(own) - 2)
        shares.append(place - below)
        flat = flat * len(own) + below
    found = values.take(flat.astype(np.int64) + corners).reshape(2, 2, 2, -1)
    for share in shares:
        found = found[0] + share * (found[1] - found[0])
    return found


@lru_cache(maxsize=64)
def _grid(residual: GemmResidual) -> tuple[tuple[tuple[Array, Array], ...], Array, NDArray[np.int64]]:
    """Knots and their numbers, values in a row, and how far the corners of a cell are from its first, as a column."""
    own = (residual.log2_m, residual.log2_n, residual.log2_k)
    knots = tuple((np.array(x), np.arange(float(len(x)))) for x in own)
    steps = len(own[1]) * len(own[2]), len(own[2]), 1
    corners = np.array([[i * steps[0] + j * steps[1] + k] for i in (0, 1) for j in (0, 1) for k in (0, 1)])
    return knots, np.array(residual.log_ratio).ravel(), corners
