"""Kernel profiles: a device's achieved rates, in sections that are calibrated apart.

``topologies/profiles/kernels/NAME.yaml`` names one file for each section: matrix products, fused attention, and
memory-bound kernels. Each of those has its own sources and says on which devices it was measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import Field

from shardsim.errors import InputError, Problem
from shardsim.schema.base import Duration, Share, StrictModel, Text
from shardsim.schema.catalog import CatalogKind, find
from shardsim.schema.changes import Changes, changed
from shardsim.schema.loader import Document, check
from shardsim.schema.sourced import (
    Constant,
    SourcedFile,
    inherited,
    lacking,
    plain,
    provenances,
    unknown_sources,
)
from shardsim.values.kernels import (
    AttentionConstants,
    GemmConstants,
    KernelConstants,
    MemoryBoundConstants,
    TileConstants,
)

FitShare = Annotated[float, Field(gt=0.0, le=10.0)]
MEASURED_ON = Field(default=(), description="devices that were measured; on any other the constants are assumed")


class TileProfile(StrictModel):
    """Constants of the tiled matrix product; those of a joint fit may lie above 1."""

    efficiency: Constant[FitShare]
    exponent: Constant[Annotated[float, Field(ge=0.0, le=1.0)]]
    fill: Constant[Duration]
    split_overhead: Constant[Duration]
    wave_quantization: Constant[Share]
    burst_cap: Constant[FitShare]


class GemmProfile(StrictModel):
    """Matrix products of one data type."""

    sustained: Constant[Share] = Field(description="share of the dense peak that long products hold")
    memory_efficiency: Constant[Share]
    overhead: Constant[Duration]
    tile: TileProfile | None = Field(default=None, description="tiled matrix products; a plain roofline if left out")


class GemmSection(StrictModel):
    """Matrix products by data type."""

    measured_on: tuple[Text, ...] = MEASURED_ON
    fp16: GemmProfile | None = None
    bf16: GemmProfile | None = None
    fp8: GemmProfile | None = None
    fp4: GemmProfile | None = None


class AttentionSection(StrictModel):
    """Fused attention."""

    measured_on: tuple[Text, ...] = MEASURED_ON
    efficiency: Mapping[Literal["forward", "backward"], Constant[Share]] = Field(
        description="share of the dense 16-bit peak"
    )


class MemoryBoundSection(StrictModel):
    """Memory-bound kernels by kind."""

    measured_on: tuple[Text, ...] = MEASURED_ON
    efficiency: Mapping[str, Constant[Share]] = Field(description="share of peak memory bandwidth")
    overhead: Constant[Duration] = Field(description="of one kernel")


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


class _Composed(SourcedFile):
    """A kernel profile with the content of its sections in place of their names."""

    gemm: GemmSection
    attention: AttentionSection
    memory_bound: MemoryBoundSection


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
        *lacking(document, ("attention", "efficiency"), file.attention.efficiency, ("forward", "backward")),
        *lacking(document, ("memory_bound", "efficiency"), file.memory_bound.efficiency, ("default",)),
    ]
    if problems:
        raise InputError(problems)
    products = {dtype: getattr(file.gemm, dtype) for dtype in GemmSection.model_fields if dtype != "measured_on"}
    return KernelConstants(
        name=path.stem,
        gemm=MappingProxyType({d: _gemm(profile) for d, profile in products.items() if profile is not None}),
        attention=AttentionConstants(plain(file.attention.efficiency)),
        memory_bound=MemoryBoundConstants(plain(file.memory_bound.efficiency), file.memory_bound.overhead.value),
        provenance=provenances(file, file),
        measured_on=MappingProxyType({section: getattr(file, section).measured_on for section in _SECTIONS}),
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


def _gemm(profile: GemmProfile) -> GemmConstants:
    tile = profile.tile
    return GemmConstants(
        sustained=profile.sustained.value,
        memory_efficiency=profile.memory_efficiency.value,
        overhead=profile.overhead.value,
        tile=None
        if tile is None
        else TileConstants(**{name: getattr(tile, name).value for name in TileProfile.model_fields}),
    )
