"""Kernel profiles: a device's achieved rates, in sections that are calibrated apart.

``topologies/profiles/kernels/NAME.yaml`` names one file for each section: matrix products, fused attention, and
memory-bound kernels. Each of those has its own sources and says on which devices it was measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from math import log2, prod
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, get_args

from pydantic import Field

from shardsim.errors import InputError, Problem
from shardsim.schema.base import Count, Duration, Share, StrictModel, Text
from shardsim.schema.catalog import CatalogKind, find
from shardsim.schema.changes import Changes, changed
from shardsim.schema.loader import Document, check
from shardsim.schema.sourced import (
    Constant,
    PositivePower,
    SourcedFile,
    inherited,
    lacking,
    plain,
    provenances,
    unknown_sources,
)
from shardsim.values.kernels import (
    AlignmentShare,
    AttentionConstants,
    AttentionLibrary,
    AttentionPass,
    GemmConstants,
    GemmResidual,
    GroupedConstants,
    KernelConstants,
    MemoryBoundConstants,
    TileConstants,
)

FitShare = Annotated[float, Field(gt=0.0, le=10.0)]
TileName = Literal["64x64", "64x128", "128x128", "128x256", "256x256"]
DATA_TYPES = ("fp16", "bf16", "fp8", "fp8_block", "fp4")
HeadDim = Annotated[str, Field(pattern=r"^[1-9][0-9]*$")]
AttentionName = Literal["flash1", "flash2", "flash3", "cudnn"]
MEASURED_ON = Field(default=(), description="devices that were measured; on any other the constants are assumed")


class TileProfile(StrictModel):
    """Constants of the tiled matrix product; those of a joint fit may lie above 1."""

    efficiency: Mapping[TileName, Constant[FitShare]] = Field(
        description="share of a multiprocessor's peak inside a tile; 256x256 only where the libraries have such kernels"
    )
    fill: Constant[Duration] = Field(description="start and drain of one tile")
    split_overhead: Constant[Duration] = Field(description="of a product that is split along k")
    wave_quantization: Constant[Share] = Field(description="share of a last, partly filled wave that is lost")
    burst_cap: Constant[FitShare] = Field(description="share of peak in the power bound of a short burst")
    burst_decay: Constant[Annotated[float, Field(ge=0.0, le=1.0)]] = Field(
        description="logarithm of the slowdown of that bound for each tenfold length above 0.1 ms"
    )
    sharpness: Constant[Annotated[float, Field(ge=1.0, le=20.0)]] = Field(description="exponent of the soft maximum")


class ResidualGrid(StrictModel):
    """A smoothed residual grid over the shape of a product, constant beyond its edges."""

    m: Sequence[Count] = Field(min_length=2)
    n: Sequence[Count] = Field(min_length=2)
    k: Sequence[Count] = Field(min_length=2)
    log_ratio: Sequence[Sequence[Sequence[float]]] = Field(
        description="log of measured over modelled time: for each m, a row for each n of one number for each k"
    )


class AlignmentProfile(StrictModel):
    """Throughput of misaligned products over that of aligned ones."""

    usual: Constant[Share]
    worst: Constant[Share] = Field(description="the least that was documented")


class GroupedProfile(StrictModel):
    """Grouped products: many experts in one kernel."""

    slowdown: Constant[FitShare] = Field(description="time over that of as many tiles of one product")
    overhead: Constant[Duration] = Field(description="of one grouped kernel, beyond that of one product")


class GemmProfile(StrictModel):
    """Matrix products of one data type."""

    sustained: Constant[Share] = Field(description="share of the dense peak that long products hold")
    memory_efficiency: Constant[Share]
    overhead: Constant[Duration]
    tile: TileProfile | None = Field(default=None, description="tiled matrix products; a plain roofline if left out")
    residual: Constant[ResidualGrid] | None = Field(default=None, description="correction of the tiled product")
    layout_time: Mapping[Literal["nn", "nt"], Constant[FitShare]] = Field(
        default={}, description="time over that of the layout `tn`; 1 where left out"
    )
    grouped: GroupedProfile | None = None


class GemmSection(StrictModel):
    """Matrix products by data type."""

    measured_on: tuple[Text, ...] = MEASURED_ON
    alignment: Mapping[Literal["64", "16", "1"], AlignmentProfile] = Field(
        default={},
        description="products whose worst leading dimension is a multiple of so many bytes only, 128 being aligned; "
        "1 where left out",
    )
    fp16: GemmProfile | None = None
    bf16: GemmProfile | None = None
    fp8: GemmProfile | None = None
    fp8_block: GemmProfile | None = Field(default=None, description="fp8 with scales for blocks of 128")
    fp4: GemmProfile | None = None


class AttentionPassProfile(StrictModel):
    """One direction of fused attention."""

    efficiency: Mapping[HeadDim, Constant[FitShare]] = Field(
        min_length=1, description="share of the dense 16-bit peak inside a tile, by head dimension"
    )
    tile: Constant[Duration] = Field(description="to start and finish one tile")
    tail: Constant[Annotated[float, Field(ge=0.0, le=2.0)]] = Field(description="share of the longest tile waited for")
    memory_efficiency: Constant[Annotated[float, Field(gt=0.0, le=20.0)]] = Field(
        description="share of peak bandwidth of operands beside the tiles; above 1 where that is hidden"
    )
    overhead: Constant[Duration] = Field(description="of the kernel")


class AttentionLibraryProfile(StrictModel):
    """Fused attention of one library."""

    forward: AttentionPassProfile
    backward: AttentionPassProfile


class AttentionSection(StrictModel):
    """Fused attention by library."""

    measured_on: tuple[Text, ...] = MEASURED_ON
    best: AttentionName = Field(description="the library that `flash` stands for")
    libraries: Mapping[AttentionName, AttentionLibraryProfile] = Field(min_length=1)


class MemoryBoundSection(StrictModel):
    """Memory-bound kernels by kind."""

    measured_on: tuple[Text, ...] = MEASURED_ON
    efficiency: Mapping[str, Constant[Share]] = Field(description="share of peak memory bandwidth")
    overhead: Constant[Duration] = Field(description="of one kernel")
    overheads: Mapping[str, Constant[Duration]] = Field(default={}, description="the same by kind, where measured")


class GemmFile(SourcedFile, GemmSection):
    """``topologies/profiles/gemm/NAME.yaml``."""


class AttentionFile(SourcedFile, AttentionSection):
    """``topologies/profiles/attention/NAME.yaml``."""


class MemoryBoundFile(SourcedFile, MemoryBoundSection):
    """``topologies/profiles/memory-bound/NAME.yaml``."""


class KernelProfileFile(SourcedFile):
    """``topologies/profiles/kernels/NAME.yaml``."""

    gemm: Text = Field(description="name of a file in topologies/profiles/gemm, or a path")
    attention: Text = Field(description="name of a file in topologies/profiles/attention, or a path")
    memory_bound: Text = Field(description="name of a file in topologies/profiles/memory-bound, or a path")
    power: PositivePower | None = Field(
        default=None, description="board limit of the devices measured; a device with less clocks lower"
    )


class _Composed(SourcedFile):
    """A kernel profile with the content of its sections in place of their names."""

    gemm: GemmSection
    attention: AttentionSection
    memory_bound: MemoryBoundSection
    power: PositivePower | None = None


_SECTIONS: Mapping[str, tuple[CatalogKind, type[SourcedFile]]] = MappingProxyType(
    {
        "gemm": ("gemm-profile", GemmFile),
        "attention": ("attention-profile", AttentionFile),
        "memory_bound": ("memory-bound-profile", MemoryBoundFile),
    }
)


def load_kernel_profile(
    name: str, extra: Sequence[Path] = (), relative_to: Path | None = None, changes: Changes = MappingProxyType({})
) -> KernelConstants:
    """Read the achieved rates of a device.

    Parameters
    ----------
    name : str
        Catalog name or path.
    extra : sequence of Path
        A user's own data folders.
    relative_to : Path or None
        Folder from which a relative path starts.
    changes : mapping of str to value
        Figures to replace, by dotted key (see :mod:`shardsim.schema.changes`), such as ``kernels.gemm.bf16.sustained``;
        ``kernels.gemm`` names another file for the section.

    Returns
    -------
    KernelConstants

    Raises
    ------
    InputError
        Unknown name, or every problem of the file and of those that it names.
    """
    path = find("kernel-profile", name, extra, relative_to)
    sections = {key: value for key, value in changes.items() if key.partition(".")[2] in _SECTIONS}
    figures = {key: value for key, value in changes.items() if key not in sections}
    named = changed(inherited("kernel-profile", path, KernelProfileFile, extra, ()), sections, "kernels")
    check(named, KernelProfileFile)
    chosen = {key.partition(".")[2] for key in sections}
    document = changed(_composed(named, path.parent, extra, chosen), figures, "kernels")
    file = check(document, _Composed)
    problems = [
        *_product_problems(document, file.gemm),
        *lacking(document, ("attention", "libraries"), file.attention.libraries, (file.attention.best,)),
        *lacking(document, ("memory_bound", "efficiency"), file.memory_bound.efficiency, ("default",)),
    ]
    if problems:
        raise InputError(problems)
    products = {dtype: getattr(file.gemm, dtype) for dtype in DATA_TYPES}
    alignment = _alignment(file.gemm)
    return KernelConstants(
        name=path.stem,
        gemm=MappingProxyType({d: _gemm(p, alignment) for d, p in products.items() if p is not None}),
        attention=_attention(file.attention),
        memory_bound=MemoryBoundConstants(
            plain(file.memory_bound.efficiency), file.memory_bound.overhead.value, plain(file.memory_bound.overheads)
        ),
        provenance=provenances(file, file),
        measured_on=MappingProxyType({section: getattr(file, section).measured_on for section in _SECTIONS}),
        power=file.power or 0.0,
    )


def _composed(named: Document, folder: Path, extra: Sequence[Path], chosen: set[str]) -> Document:
    """Put the content of each section in place of its name; a name that the user gave starts where the user is."""
    data = dict(named.data)
    problems: list[Problem] = []
    for section, (kind, model) in _SECTIONS.items():
        try:
            start = None if section in chosen else folder
            document = inherited(kind, find(kind, named.data[section], extra, start), model, extra, ())
            file = check(document, model)
            problems += unknown_sources(document, file.sources)
            content = {key: value for key, value in document.data.items() if key not in ("title", "sources")}
            data[section] = _cited_in_full(content, file.sources)
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(problems)
    return Document(data, named.file, named.lines)


def _cited_in_full(data: Any, sources: Mapping[str, str]) -> Any:
    if isinstance(data, dict):
        return {
            key: sources.get(value, value) if key == "source" else _cited_in_full(value, sources)
            for key, value in data.items()
        }
    return data


def _gemm(profile: GemmProfile, alignment: tuple[AlignmentShare, ...]) -> GemmConstants:
    grouped = profile.grouped
    return GemmConstants(
        sustained=profile.sustained.value,
        memory_efficiency=profile.memory_efficiency.value,
        overhead=profile.overhead.value,
        tile=None if profile.tile is None else _tile(profile.tile),
        residual=None if profile.residual is None else _residual(profile.residual.value),
        layout_time=plain(profile.layout_time),
        alignment=alignment,
        grouped=None if grouped is None else GroupedConstants(grouped.slowdown.value, grouped.overhead.value),
    )


def _tile(profile: TileProfile) -> TileConstants:
    scalars = {name: getattr(profile, name).value for name in TileProfile.model_fields if name != "efficiency"}
    shares = (profile.efficiency[name] for name in get_args(TileName) if name in profile.efficiency)
    return TileConstants(tuple(share.value for share in shares), **scalars)


def _residual(grid: ResidualGrid) -> GemmResidual:
    m, n, k = (tuple(log2(x) for x in side) for side in (grid.m, grid.n, grid.k))
    return GemmResidual(m, n, k, tuple(tuple(tuple(row) for row in plane) for plane in grid.log_ratio))


def _alignment(section: GemmSection) -> tuple[AlignmentShare, ...]:
    rows = sorted(((int(least), one) for least, one in section.alignment.items()), reverse=True)
    return tuple(AlignmentShare(least, one.usual.value, one.worst.value) for least, one in rows)


_GRID_LIMIT = 200
"""Most numbers of a residual grid: a correction is no look-up table."""


def _product_problems(document: Document, section: GemmSection) -> Iterator[Problem]:
    for dtype in DATA_TYPES:
        profile = getattr(section, dtype)
        if profile is None:
            continue
        if profile.tile is not None:
            yield from lacking(
                document, ("gemm", dtype, "tile", "efficiency"), profile.tile.efficiency, get_args(TileName)[:4]
            )
        if profile.residual is not None:
            yield from _grid_problems(document.where(("gemm", dtype, "residual")), profile.residual.value)


def _grid_problems(at: str, grid: ResidualGrid) -> Iterator[Problem]:
    count = (len(grid.m), len(grid.n), len(grid.k))
    if [[len(row) for row in plane] for plane in grid.log_ratio] != [[count[2]] * count[1]] * count[0]:
        yield Problem(f"log_ratio is not {count[0]} x {count[1]} x {count[2]} numbers", at, "one for each m, n and k")
    for side in ("m", "n", "k"):
        if any(a >= b for a, b in pairwise(getattr(grid, side))):
            yield Problem(f"{side} does not rise", at)
    if prod(count) > _GRID_LIMIT:
        yield Problem(f"{prod(count)} numbers correct one data type", at, f"at most {_GRID_LIMIT}")


def _attention(section: AttentionSection) -> AttentionConstants:
    libraries: dict[str, AttentionLibrary] = {
        name: AttentionLibrary(_attention_pass(one.forward), _attention_pass(one.backward))
        for name, one in section.libraries.items()
    }
    return AttentionConstants(MappingProxyType(libraries), section.best)


def _attention_pass(profile: AttentionPassProfile) -> AttentionPass:
    shares = sorted((int(width), share.value) for width, share in profile.efficiency.items())
    return AttentionPass(
        efficiency=MappingProxyType(dict(shares)),
        tile=profile.tile.value,
        tail=profile.tail.value,
        memory_efficiency=profile.memory_efficiency.value,
        overhead=profile.overhead.value,
    )
