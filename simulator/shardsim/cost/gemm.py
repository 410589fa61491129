"""Seconds of a matrix product, tile by tile: waves of tiles over the multiprocessors, split-k, memory and power.

A product (m, k) x (k, n) is cut into tiles of the result; each occupies one multiprocessor for its share of k. Tiles
run in waves of as many as there are multiprocessors, and a last wave that is partly filled wastes the rest. Libraries
choose the tile and may split k so that small results still fill the device; the model takes the fastest choice.
"""

from __future__ import annotations

import numpy as np

from shardsim.values.kernels import TileConstants
from shardsim.values.num import Num, larger, smaller, where

TILES = ((64, 64), (64, 128), (128, 64), (128, 128), (128, 256), (256, 128))
"""Rows and columns of the result that one multiprocessor works on at a time (-), those of cuBLAS and CUTLASS."""

SPLITS = (1, 2, 4, 8, 16)
"""Parts that k is cut into (-)."""

LARGEST_TILE = 128 * 256
MIN_SPLIT_K = 256
"""Least k of a part (-): shorter ones never pay."""

K_STEP = 64
"""Elements of k that a tile consumes at a time (-)."""

SHARPNESS = 4.0
"""Exponent of the soft maximum of arithmetic, memory and power: they overlap, but not perfectly (-)."""


def tiled_gemm_seconds(
    m: Num,
    n: Num,
    k: Num,
    batch: Num,
    *,
    bytes_moved: Num,
    constants: TileConstants,
    peak: float,
    sustained: float,
    multiprocessors: int,
    bandwidth: float,
    memory_efficiency: float,
    overhead: float,
) -> Num:
    """Time of a (batched) product.

    Parameters
    ----------
    m, n, k, batch : Num
        Shape and number of products (-).
    bytes_moved : Num
        Memory traffic [bytes].
    constants : TileConstants
    peak : float
        Dense peak of the device [FLOP/s].
    sustained : float
        Share of peak that power and clocks allow for long (-).
    multiprocessors : int
        (-).
    bandwidth : float
        Datasheet memory bandwidth [bytes/s].
    memory_efficiency : float
        Share of it that products reach (-).
    overhead : float
        Launch [s].

    Returns
    -------
    Num
        [s].
    """
    flop = 2.0 * batch * m * n * k
    tiles = _fastest(m, n, k, batch, constants, peak / multiprocessors, multiprocessors, bandwidth)
    memory = bytes_moved / (memory_efficiency * bandwidth)
    burst = flop / (constants.burst_cap * peak)
    together = (tiles**SHARPNESS + memory**SHARPNESS + burst**SHARPNESS) ** (1.0 / SHARPNESS)
    return overhead + larger(together, flop / (sustained * peak))


def _fastest(
    m: Num, n: Num, k: Num, batch: Num, constants: TileConstants, rate: float, multiprocessors: int, bandwidth: float
) -> Num:
    """The least time over all tiles and splits [s]."""
    best: Num = np.inf
    for rows, columns in TILES:
        reached = constants.efficiency * (rows * columns / LARGEST_TILE) ** constants.exponent * rate
        for split in SPLITS:
            waves = _waves(_ceil(m / rows) * _ceil(n / columns) * batch * split / multiprocessors, constants)
            one_tile = 2.0 * rows * columns * _ceil(k / split / K_STEP) * K_STEP / reached + constants.fill
            time = waves * one_tile
            if split > 1:
                # Partial results are written and read again in fp32.
                time = time + constants.split_overhead + 8.0 * split * batch * m * n / bandwidth
                time = where(k / split >= MIN_SPLIT_K, time, np.inf)
            best = smaller(best, time)
    return best


def _waves(filled: Num, constants: TileConstants) -> Num:
    """Waves that the tiles take: at least one, and part of an unfilled last one (-)."""
    partial = filled + constants.wave_quantization * (_ceil(filled) - filled)
    return where(filled <= 1.0, filled * 0.0 + 1.0, partial)


def _ceil(x: Num) -> Num:
    return float(np.ceil(x)) if isinstance(x, float | int) else np.ceil(x)
