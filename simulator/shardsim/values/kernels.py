"""What kernels achieve on a device under one software stack: the constants of a kernel profile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from shardsim.values.provenance import Provenance


@dataclass(frozen=True, slots=True)
class TileConstants:
    """How matrix products fill a device, tile by tile (see :func:`shardsim.cost.gemm.tiled_gemm_seconds`).

    Parameters
    ----------
    efficiency : tuple of float
        Share of a multiprocessor's peak inside a tile (-), by its area: 64x64, 64x128, 128x128, 128x256 and, where
        the libraries have such kernels, 256x256. No efficiency of a whole product: the soft maximum takes its part.
    fill : float
        Time to start and drain one tile [s].
    split_overhead : float
        Further time of a product that is split along k [s].
    wave_quantization : float
        Share of a last, partly filled wave that is lost (-): 1 where all tiles of a wave start together.
    burst_cap : float
        Share of peak in the power and clock bound of a short burst (-). No efficiency by itself either.
    burst_decay : float
        How much slower that bound becomes for each tenfold length above 0.1 ms, as a logarithm (-).
    sharpness : float
        Exponent of the soft maximum of tiles, memory and power (-): infinite where they overlap perfectly.
    """

    efficiency: tuple[float, ...]
    fill: float
    split_overhead: float
    wave_quantization: float
    burst_cap: float
    burst_decay: float
    sharpness: float


@dataclass(frozen=True, slots=True)
class GemmResidual:
    """What measurements say beyond the tiles: a smoothed grid, interpolated linearly and constant beyond its edges.

    Parameters
    ----------
    log2_m, log2_n, log2_k : tuple of float
        Knots: binary logarithms of the shape, ascending (-).
    log_ratio : tuple of tuple of tuple of float
        Logarithm of measured over modelled time (-), shape (m, n, k).
    """

    log2_m: tuple[float, ...]
    log2_n: tuple[float, ...]
    log2_k: tuple[float, ...]
    log_ratio: tuple[tuple[tuple[float, ...], ...], ...]


@dataclass(frozen=True, slots=True)
class AlignmentShare:
    """Throughput of a product with a leading dimension of less than 128-byte alignment.

    Parameters
    ----------
    least : int
        The worst aligned leading dimension is a multiple of so many bytes (-): 64, 16, or 1 for anything.
    usual : float
        Share of an aligned product's throughput that such products reach (-).
    worst : float
        The least share that was documented (-).
    """

    least: int
    usual: float
    worst: float


@dataclass(frozen=True, slots=True)
class GroupedConstants:
    """Products of many experts in one kernel (see :func:`shardsim.cost.grouped.grouped_gemm_seconds`).

    Parameters
    ----------
    slowdown : float
        Time of a grouped kernel over that of as many tiles of one product (-).
    overhead : float
        Fixed time of one grouped kernel beyond that of one product [s].
    """

    slowdown: float
    overhead: float


@dataclass(frozen=True, slots=True)
class GemmConstants:
    """Matrix products of one data type.

    Parameters
    ----------
    sustained : float
        Share of the dense peak that long products hold (-).
    memory_efficiency : float
        Share of peak memory bandwidth that a memory-bound product reaches (-).
    overhead : float
        Fixed time of one kernel [s].
    tile : TileConstants or None
        Where products are priced tile by tile; a plain roofline otherwise.
    residual : GemmResidual or None
        Correction of the tiled product, where one was fitted.
    layout_time : mapping of str to float
        Time over that of the layout ``tn`` (-), for ``nn`` and ``nt``; 1 where left out.
    alignment : tuple of AlignmentShare
        Shares of misaligned products, best alignment first; empty: alignment costs nothing.
    grouped : GroupedConstants or None
        Grouped products, where they were measured.
    """

    sustained: float
    memory_efficiency: float
    overhead: float
    tile: TileConstants | None = None
    residual: GemmResidual | None = None
    layout_time: Mapping[str, float] = field(default_factory=dict)
    alignment: tuple[AlignmentShare, ...] = ()
    grouped: GroupedConstants | None = None


@dataclass(frozen=True, slots=True)
class AttentionPass:
    """One direction of fused attention (see :func:`shardsim.cost.attention.tiled_attention_seconds`).

    Parameters
    ----------
    efficiency : mapping of int to float
        Share of a multiprocessor's dense 16-bit peak inside a tile (-), by head dimension, ascending.
    tile : float
        Time to start and finish one tile [s].
    tail : float
        Share of the longest tile during which the device waits for it (-).
    memory_efficiency : float
        Share of peak memory bandwidth at which operands come in beside the tiles (-); above 1 where most of that is
        hidden.
    overhead : float
        Fixed time of the kernel [s].
    """

    efficiency: Mapping[int, float]
    tile: float
    tail: float
    memory_efficiency: float
    overhead: float


@dataclass(frozen=True, slots=True)
class AttentionLibrary:
    """Fused attention of one library.

    Parameters
    ----------
    forward, backward : AttentionPass
    """

    forward: AttentionPass
    backward: AttentionPass


@dataclass(frozen=True, slots=True)
class AttentionConstants:
    """Fused attention.

    Parameters
    ----------
    libraries : mapping of str to AttentionLibrary
        By name: ``flash1``, ``flash2``, ``flash3``, ``cudnn``.
    best : str
        The library that ``flash`` stands for: the fastest that was measured on the device.
    """

    libraries: Mapping[str, AttentionLibrary]
    best: str


@dataclass(frozen=True, slots=True)
class MemoryBoundConstants:
    """Memory-bound kernels.

    Parameters
    ----------
    efficiency : mapping of str to float
        Share of peak memory bandwidth (-) by kind of kernel; ``default`` for the others.
    overhead : float
        Fixed time of one kernel [s].
    overheads : mapping of str to float
        The same by kind of kernel, where it was measured [s].
    """

    efficiency: Mapping[str, float]
    overhead: float
    overheads: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class KernelConstants:
    """Achieved rates of a device under one software stack (a calibration profile).

    Parameters
    ----------
    name : str
        Profile name.
    gemm : mapping of str to GemmConstants
        By data type.
    attention : AttentionConstants
    memory_bound : MemoryBoundConstants
    provenance : mapping of str to Provenance
        By dotted key, such as ``gemm.bf16.sustained``.
    measured_on : mapping of str to tuple of str
        Devices on which each section (``gemm``, ``attention``, ``memory_bound``) was measured; for any other its
        constants are assumed. Empty where nothing was.
    power : float
        Board power limit of those devices [W]; 0 where it is not known.
    """

    name: str
    gemm: Mapping[str, GemmConstants]
    attention: AttentionConstants
    memory_bound: MemoryBoundConstants
    provenance: Mapping[str, Provenance] = field(default_factory=dict)
    measured_on: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    power: float = 0.0
