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
    efficiency : float
        Share of a multiprocessor's peak that the largest tile reaches (-).
    exponent : float
        Power of the tile's area with which smaller tiles fall behind (-).
    fill : float
        Time to start and drain one tile [s].
    split_overhead : float
        Further time of a product that is split along k [s].
    wave_quantization : float
        Share of a last, partly filled wave that is lost (-): 1 where all tiles of a wave start together.
    burst_cap : float
        Share of peak in the short-burst bound of the fit (-). No efficiency by itself: the soft maximum of three
        near-equal terms supplies the rest.
    """

    efficiency: float
    exponent: float
    fill: float
    split_overhead: float
    wave_quantization: float
    burst_cap: float


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
    """

    sustained: float
    memory_efficiency: float
    overhead: float
    tile: TileConstants | None = None


@dataclass(frozen=True, slots=True)
class AttentionConstants:
    """Fused attention.

    Parameters
    ----------
    efficiency : mapping of str to float
        Share of the dense 16-bit peak (-): ``forward``, ``backward``.
    """

    efficiency: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class MemoryBoundConstants:
    """Memory-bound kernels.

    Parameters
    ----------
    efficiency : mapping of str to float
        Share of peak memory bandwidth (-) by kind of kernel; ``default`` for the others.
    overhead : float
        Fixed time of one kernel [s].
    """

    efficiency: Mapping[str, float]
    overhead: float


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
    """

    name: str
    gemm: Mapping[str, GemmConstants]
    attention: AttentionConstants
    memory_bound: MemoryBoundConstants
    provenance: Mapping[str, Provenance] = field(default_factory=dict)
    measured_on: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
