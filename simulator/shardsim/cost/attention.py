"""Seconds of fused attention, tile by tile.

A kernel works on the score matrix in blocks of 128 x 128. One multiprocessor takes a row of blocks (forward) or a
column (backward) of one head from start to end: a tile. A causal mask or a sliding window leaves tiles of unequal
length, so the device is busy for its share of all tiles and for part of the longest one besides.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from shardsim.errors import InputError, Problem
from shardsim.values.hardware import Device
from shardsim.values.kernels import AttentionConstants, AttentionPass
from shardsim.values.num import Num, larger, smaller, where
from shardsim.values.operators import Attention

BLOCK = 128
"""Queries and keys of a block of scores (-)."""

HEAD_DIMS: Mapping[str, tuple[int, ...]] = MappingProxyType(
    {
        "flash1": (32, 64, 128),
        "flash2": (32, 64, 96, 128, 192, 256),
        "flash3": (64, 96, 128, 192, 256),
        "cudnn": (64, 128, 192, 256),
    }
)
"""Head dimensions that kernels are built for (-): any other is padded to the next (github Dao-AILab/flash-attention,
csrc and hopper/tile_size.h; cuDNN is taken to step by 64). Wider heads than the last run as several of 64."""


def attention_seconds(attention: Attention, device: Device, constants: AttentionConstants, precision: str) -> Num:
    """Time of a fused attention kernel.

    Parameters
    ----------
    attention : Attention
    device : Device
    constants : AttentionConstants
    precision : str
        Data type of the matrix products; FP8 and FP4 run attention in 16 bits, as frameworks do.

    Returns
    -------
    Num
        [s].

    Raises
    ------
    InputError
        The profile has no constants for the operator's library.
    """
    library = library_of(attention.library, constants)
    own = constants.libraries[library]
    data_type = precision if precision in {"fp16", "bf16"} else "bf16"
    return tiled_attention_seconds(
        attention,
        own.forward if attention.role == "forward" else own.backward,
        head_dims=HEAD_DIMS[library],
        peak=device.peak_flops[data_type],
        multiprocessors=device.multiprocessors,
        bandwidth=device.memory_bandwidth,
    )


def library_of(name: str, constants: AttentionConstants) -> str:
    """Name of the library behind ``flash``, or the name itself.

    Raises
    ------
    InputError
        The profile has no constants for it.
    """
    library = constants.best if name == "flash" else name
    if library not in constants.libraries:
        what = f"no constants for attention by {library}"
        right = f"one of {', '.join(('unfused', *constants.libraries))}, or flash for {constants.best}"
        raise InputError(Problem(what, "framework attention", right))
    return library


def tiled_attention_seconds(
    attention: Attention,
    constants: AttentionPass,
    *,
    head_dims: tuple[int, ...],
    peak: float,
    multiprocessors: int,
    bandwidth: float,
) -> Num:
    """Time of one kernel by tiles, and its memory traffic.

    Parameters
    ----------
    attention : Attention
    constants : AttentionPass
    head_dims : tuple of int
        Head dimensions that the kernel is built for (-).
    peak : float
        Dense peak of the device [FLOP/s].
    multiprocessors : int
        (-).
    bandwidth : float
        Datasheet memory bandwidth [bytes/s].

    Returns
    -------
    Num
        [s].
    """
    keys, values = (padded(d, head_dims) for d in (attention.head_dim, attention.value_dim))
    width = (keys + values) / 2.0
    products = keys + values if attention.role == "forward" else 3.0 * keys + 2.0 * values
    rate = efficiency_at(width, constants.efficiency) * peak / multiprocessors
    block = 2.0 * BLOCK * BLOCK * products / rate
    rows, columns = _ceil(attention.seq / BLOCK), _ceil(attention.key_count / BLOCK)
    longest, blocks = tile_lengths(rows, columns, causal=attention.causal, window=attention.window)
    tiles = rows
    if attention.role != "forward":
        tiles, longest = columns, smaller(longest, rows) if attention.causal else rows
    copies = attention.batch * attention.heads / multiprocessors
    last = longest * block + constants.tile
    busy = copies * (blocks * block + tiles * constants.tile) + constants.tail * last
    memory = attention.bytes_moved / (constants.memory_efficiency * bandwidth)
    # Layouts that share an array differ in their kernels: one without sequences takes no time.
    return where(attention.batch > 0, constants.overhead + larger(busy, last) + memory, 0.0)


def tile_lengths(rows: Num, columns: Num, *, causal: bool, window: Num) -> tuple[Num, Num]:
    """Blocks of the longest row, and of all rows of a head (-).

    Parameters
    ----------
    rows, columns : Num
        Blocks of queries and of keys (-).
    causal : bool
        Whether keys after the query are left out; the queries are the last of the keys.
    window : Num
        Keys that a query sees, itself among them (-); 0 for all.

    Examples
    --------
    >>> tile_lengths(8.0, 8.0, causal=True, window=0)
    (8.0, 36.0)
    >>> tile_lengths(8.0, 8.0, causal=True, window=128)
    (2.0, 15.0)
    >>> tile_lengths(2.0, 8.0, causal=True, window=0)
    (8.0, 15.0)
    """
    if not causal:
        return columns, rows * columns
    longest = smaller(columns, where(window > 0, _ceil((window - 1) / BLOCK) + 1.0, columns))

    def until(row: Num) -> Num:
        full = smaller(row, longest)
        return row * full - full * (full - 1.0) / 2.0

    return longest, until(columns) - until(columns - rows)


def padded(head_dim: int, head_dims: tuple[int, ...]) -> int:
    """Head dimension that a kernel works on (-).

    Examples
    --------
    >>> padded(80, (64, 96, 128)), padded(320, (64, 96, 128))
    (96, 320)
    """
    return next((built for built in head_dims if built >= head_dim), -(-head_dim // 64) * 64)


def efficiency_at(head_dim: float, measured: Mapping[int, float]) -> float:
    """Share of peak at a head dimension (-): between measured ones by a straight line, beyond them the nearest.

    Examples
    --------
    >>> efficiency_at(96, {64: 0.5, 128: 0.7})
    0.6
    """
    return float(np.interp(head_dim, list(measured), list(measured.values())))


def _ceil(x: Num) -> Num:
    return float(np.ceil(x)) if isinstance(x, float | int) else np.ceil(x)
