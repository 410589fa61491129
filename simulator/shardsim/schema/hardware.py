"""The hardware files: devices, clusters, and the calibration profiles of kernels and fabrics.

Every figure stands beside its source: ``{value: 80 GB, source: datasheet}``. A ``source`` is an entry of the file's
``sources`` table, or the citation itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from math import log2
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import Field

from shardsim.errors import InputError, Problem
from shardsim.schema.base import Bandwidth, Count, Duration, FlopRate, Power, Share, Size, StrictModel, Text
from shardsim.schema.catalog import CatalogKind, find, is_path, near
from shardsim.schema.changes import SOURCE, Changes, changed
from shardsim.schema.loader import Document, KeyPath, check, load_yaml
from shardsim.values.hardware import (
    Cluster,
    Correction,
    Device,
    FabricConstants,
    KernelConstants,
    Link,
    LinkConstants,
    TileConstants,
    WayConstants,
)
from shardsim.values.provenance import Basis, Provenance

T = TypeVar("T")
DataType = Literal["fp32", "tf32", "fp16", "bf16", "fp8", "fp4"]
Collective = Literal["default", "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv"]

_Source = Annotated[str, Field(min_length=1, description="an entry of `sources`, or the citation itself")]
_Positive = Field(gt=0.0)
PositiveSize = Annotated[Size, _Positive]
PositiveBandwidth = Annotated[Bandwidth, _Positive]
PositiveFlopRate = Annotated[FlopRate, _Positive]
PositivePower = Annotated[Power, _Positive]


class Figure(StrictModel, Generic[T]):
    """One figure and where it stands in print."""

    value: T
    source: _Source


class Constant(StrictModel, Generic[T]):
    """One constant of a profile: how it was obtained, and how well it fits."""

    value: T
    basis: Basis = Field(description="measured, interpolated, fitted, datasheet or assumed")
    source: _Source
    error: Annotated[float, Field(ge=0.0)] | None = None
    points: Count | None = None


class SourcedFile(StrictModel):
    """What all hardware files have: a title, and the table of sources that figures refer to."""

    title: Text = Field(description="a few words for people")
    sources: Mapping[str, Text] = Field(default_factory=dict)


class PeakFlops(StrictModel):
    """Dense peaks (no sparsity) by data type; one the device lacks is left out."""

    source: _Source
    fp32: PositiveFlopRate
    fp16: PositiveFlopRate
    tf32: PositiveFlopRate | None = None
    bf16: PositiveFlopRate | None = None
    fp8: PositiveFlopRate | None = None
    fp4: PositiveFlopRate | None = None


class DeviceFile(SourcedFile):
    """``topologies/devices/NAME.yaml``."""

    memory: Figure[PositiveSize] = Field(description="what a program sees, such as {value: 79.1 GiB, source: ...}")
    memory_bandwidth: Figure[PositiveBandwidth]
    peak_flops: PeakFlops
    multiprocessors: Figure[Count]
    power: Figure[PositivePower]
    kernel_profile: Text = Field(description="name of a file in topologies/profiles/kernels")


class LinkFile(StrictModel):
    """A link class of a cluster. Bandwidth is per direction; vendors print both directions of NVLink together."""

    product: Text
    bandwidth: Figure[PositiveBandwidth]
    latency: Figure[Duration]


class ClusterFile(SourcedFile):
    """``topologies/clusters/NAME.yaml``."""

    device: Text = Field(description="name of a file in topologies/devices")
    gpus_per_node: Figure[Count]
    gpus_per_domain: Figure[Count] = Field(description="GPUs that reach each other over NVLink")
    nvlink: LinkFile = Field(description="port set of one GPU, per direction")
    pcie: LinkFile = Field(description="GPU to adapter")
    nic: LinkFile = Field(description="one adapter, per direction")
    nics_per_node: Figure[Count] = Field(description="adapters that carry training traffic")
    nodes_per_leaf: Figure[Count] = Field(description="nodes under one leaf switch or one set of rail switches")
    oversubscription: Figure[Annotated[float, Field(ge=1.0)]]
    rail_optimized: Figure[bool]
    fabric_profile: Text = Field(
        description="name of a file in topologies/profiles/fabrics, or a path that starts from this file's folder"
    )
    fabric_assumed: Figure[bool] | None = Field(
        default=None, description="whether the profile is another cluster's: what was fitted there is assumed here"
    )
    max_gpus: Figure[Count] | None = None
    default_framework: Text = Field(description="software stack that runs of the cluster's time used")


FitShare = Annotated[float, Field(gt=0.0, le=10.0)]


class TileProfile(StrictModel):
    """Constants of the tiled matrix product; those of a joint fit may lie above 1."""

    efficiency: Constant[FitShare]
    exponent: Constant[Annotated[float, Field(ge=0.0, le=1.0)]]
    fill: Constant[Duration]
    split_overhead: Constant[Duration]
    wave_quantization: Constant[Share]
    burst_cap: Constant[FitShare]


class KernelProfileFile(SourcedFile):
    """``topologies/profiles/kernels/NAME.yaml``."""

    measured_on: tuple[Text, ...] = Field(
        default=(), description="devices that were measured; on any other the constants are assumed"
    )
    gemm_efficiency: Mapping[DataType, Constant[Share]] = Field(min_length=1)
    gemm_memory_efficiency: Constant[Share]
    gemm_overhead: Constant[Duration]
    tile: TileProfile | None = Field(default=None, description="tiled matrix products; a plain roofline if left out")
    attention_efficiency: Mapping[Literal["forward", "backward"], Constant[Share]]
    kernel_efficiency: Mapping[str, Constant[Share]]
    kernel_overhead: Constant[Duration]


LinkShare = Annotated[float, Field(gt=0.0, le=1.0)]


class LinkProfile(StrictModel):
    """Constants of one link class. In-switch reduction may lift an efficiency above 1."""

    measured_on: Text | None = Field(
        default=None, description="product that was measured; on any other the constants are assumed"
    )
    efficiency: Mapping[Collective, Constant[Annotated[float, Field(gt=0.0, le=2.0)]]]
    base_latency: Constant[Duration]
    step_latency: Constant[Duration]
    half_bandwidth: Constant[Size]


class LinkProfiles(StrictModel):
    """The link classes of a fabric."""

    nvlink: LinkProfile
    nic: LinkProfile


class FitNote(StrictModel):
    """How a group of constants was obtained, and how well they fit together."""

    basis: Basis = Field(description="measured, interpolated, fitted, datasheet or assumed")
    source: _Source
    error: Annotated[float, Field(ge=0.0)] | None = None
    points: Count | None = None


class WayProfile(StrictModel):
    """One algorithm with one protocol. Near is inside an NVLink domain, far between domains."""

    algorithm: Literal["ring", "tree", "nvls", "nvls_tree", "sharp", "pat", "direct", "hierarchical"]
    protocol: Literal["", "LL", "LL128", "Simple"] = ""
    base: Duration = Field(description="fixed time")
    step: Duration = Field(description="further time for each near step")
    share: LinkShare = Field(description="share of NVLink's datasheet bandwidth that large messages reach")
    half: Size = Field(description="bytes a rank and step at which half of that is reached")
    far_base: Duration = Field(description="further fixed time of a group across domains")
    far_step: Duration = Field(description="further time for each far step")
    far_share: LinkShare = Field(description="share of the adapters' datasheet bandwidth that large messages reach")
    far_half: Size = Field(description="bytes a rank and step at which half of that is reached")


class CollectiveProfile(StrictModel):
    """The ways that are enabled for one collective."""

    near: FitNote = Field(description="where base, step, share and half come from")
    far: FitNote = Field(description="where the constants between domains come from")
    ways: Sequence[WayProfile] = Field(min_length=1)


class CorrectionProfile(FitNote):
    """A smoothed residual grid of one collective and class of data type."""

    collective: Collective
    dtypes: Literal["wide", "narrow"] = Field(description="narrow: 8-bit types, which switches cannot add")
    place: Literal["near", "far"] = Field(description="near: groups inside one NVLink domain; far: groups across")
    members: Sequence[Count] = Field(
        min_length=1, description="ranks (near) or domains (far) of each row; 2 for send_recv"
    )
    sizes: Sequence[Size] = Field(min_length=1, description="buffer of each column")
    log_ratio: Sequence[Sequence[float]] = Field(description="log of measured over modelled time, a row for each count")


class FabricProfileFile(SourcedFile):
    """``topologies/profiles/fabrics/NAME.yaml``."""

    links: LinkProfiles
    tuning: Mapping[Collective, CollectiveProfile] = Field(
        default_factory=dict, description="what the library believes of each way: the cheapest by these is taken"
    )
    collectives: Mapping[Collective, CollectiveProfile] = Field(
        default_factory=dict,
        description="what each enabled way achieves; `tuning` for those left out, then ring and tree on `links`",
    )
    offload: Mapping[Collective, CollectiveProfile] = Field(
        default_factory=dict, description="further ways, such as reduction in the network's switches (SHARP)"
    )
    corrections: Sequence[CorrectionProfile] = Field(default=(), description="at most 200 numbers a data type")
    overlap_multiprocessors: Constant[Annotated[float, Field(ge=0.0)]] | None = Field(
        default=None, description="multiprocessors that a collective running behind compute occupies; 0 if left out"
    )


_File = TypeVar("_File", bound=SourcedFile)
_PREFIX: dict[CatalogKind, str] = {
    "device": "device",
    "cluster": "cluster",
    "kernel-profile": "kernels",
    "fabric-profile": "fabric",
}


def load_device(
    name: str, extra: Sequence[Path] = (), relative_to: Path | None = None, changes: Changes = MappingProxyType({})
) -> Device:
    """Read a device.

    Parameters
    ----------
    name : str
        Catalog name or path.
    extra : sequence of Path
        A user's own data folders.
    relative_to : Path or None
        Folder from which a relative path starts.
    changes : mapping of str to value
        Figures to replace, by dotted key (see :mod:`shardsim.schema.changes`).

    Returns
    -------
    Device

    Raises
    ------
    InputError
        Unknown name, or every problem of the file.

    Examples
    --------
    >>> load_device("a100-sxm-80gb").peak_flops["bf16"]
    312000000000000.0
    """
    path, _, file = _open("device", name, DeviceFile, extra, relative_to, changes)
    peaks = file.peak_flops.model_dump(exclude={"source"}, exclude_none=True)
    return Device(
        name=path.stem,
        memory_bytes=file.memory.value,
        memory_bandwidth=file.memory_bandwidth.value,
        peak_flops=MappingProxyType(peaks),
        multiprocessors=file.multiprocessors.value,
        power=file.power.value,
        compute_profile=file.kernel_profile,
        source=_cited(file),
    )


def load_cluster(
    name: str, extra: Sequence[Path] = (), relative_to: Path | None = None, changes: Changes = MappingProxyType({})
) -> Cluster:
    """Read a cluster and its device.

    Parameters
    ----------
    name : str
        Catalog name or path.
    extra : sequence of Path
        A user's own data folders.
    relative_to : Path or None
        Folder from which a relative path starts.
    changes : mapping of str to value
        Figures to replace, by dotted key (see :mod:`shardsim.schema.changes`).

    Returns
    -------
    Cluster

    Raises
    ------
    InputError
        Unknown name, or every problem of the file.

    Examples
    --------
    >>> load_cluster("dgx-2h").nic_bandwidth_per_gpu
    6250000000.0
    """
    path, document, file = _open("cluster", name, ClusterFile, extra, relative_to, changes)
    problems = list(_cluster_problems(document, file))
    device = None
    try:
        device = load_device(file.device, extra, path.parent, changes)
    except InputError as error:
        at = document.where(("device",))
        problems += [p if p.where else Problem(p.what, at, p.right) for p in error.problems]
    if problems or device is None:
        raise InputError(problems)
    return Cluster(
        name=path.stem,
        device=device,
        gpus_per_node=file.gpus_per_node.value,
        gpus_per_domain=file.gpus_per_domain.value,
        nvlink=_link(file, file.nvlink),
        pcie=_link(file, file.pcie),
        nic=_link(file, file.nic),
        nics_per_node=file.nics_per_node.value,
        nodes_per_leaf=file.nodes_per_leaf.value,
        oversubscription=file.oversubscription.value,
        rail_optimized=file.rail_optimized.value,
        fabric_profile=_beside(path, file.fabric_profile, changes),
        max_gpus=None if file.max_gpus is None else file.max_gpus.value,
        source=_cited(file),
        default_framework=file.default_framework,
        fabric_assumed=_CHOSEN not in changes and file.fabric_assumed is not None and file.fabric_assumed.value,
    )


def load_kernel_profile(
    name: str, extra: Sequence[Path] = (), relative_to: Path | None = None, changes: Changes = MappingProxyType({})
) -> KernelConstants:
    """Read the achieved efficiencies of a device.

    Parameters
    ----------
    name : str
        Catalog name or path.
    extra : sequence of Path
        A user's own data folders.
    relative_to : Path or None
        Folder from which a relative path starts.
    changes : mapping of str to value
        Figures to replace, by dotted key (see :mod:`shardsim.schema.changes`).

    Returns
    -------
    KernelConstants

    Raises
    ------
    InputError
        Unknown name, or every problem of the file.
    """
    path, document, file = _open("kernel-profile", name, KernelProfileFile, extra, relative_to, changes)
    problems = [
        *_lacking(document, ("attention_efficiency",), file.attention_efficiency, ("forward", "backward")),
        *_lacking(document, ("kernel_efficiency",), file.kernel_efficiency, ("default",)),
    ]
    if problems:
        raise InputError(problems)
    return KernelConstants(
        name=path.stem,
        gemm_efficiency=_plain(file.gemm_efficiency),
        gemm_memory_efficiency=file.gemm_memory_efficiency.value,
        gemm_overhead=file.gemm_overhead.value,
        attention_efficiency=_plain(file.attention_efficiency),
        kernel_efficiency=_plain(file.kernel_efficiency),
        kernel_overhead=file.kernel_overhead.value,
        provenance=_provenances(file, file),
        measured_on=file.measured_on,
        tile=None if file.tile is None else _tile(file.tile),
    )


def load_fabric_profile(
    name: str, extra: Sequence[Path] = (), relative_to: Path | None = None, changes: Changes = MappingProxyType({})
) -> FabricConstants:
    """Read the achieved collective bandwidths and latencies of a fabric.

    Parameters
    ----------
    name : str
        Catalog name or path.
    extra : sequence of Path
        A user's own data folders.
    relative_to : Path or None
        Folder from which a relative path starts.
    changes : mapping of str to value
        Figures to replace, by dotted key (see :mod:`shardsim.schema.changes`).

    Returns
    -------
    FabricConstants

    Raises
    ------
    InputError
        Unknown name, or every problem of the file.
    """
    path, document, file = _open("fabric-profile", name, FabricProfileFile, extra, relative_to, changes)
    links = {"nvlink": file.links.nvlink, "nic": file.links.nic}
    problems = [
        problem
        for link, constants in links.items()
        for problem in _lacking(document, ("links", link, "efficiency"), constants.efficiency, ("default",))
    ]
    problems += _correction_problems(document, file.corrections)
    if problems:
        raise InputError(problems)
    return FabricConstants(
        name=path.stem,
        links=MappingProxyType({n: _link_constants(file, p) for n, p in links.items()}),
        overlap_multiprocessors=0.0 if file.overlap_multiprocessors is None else file.overlap_multiprocessors.value,
        overlap_provenance=_provenances(file, file).get("overlap_multiprocessors"),
        ways=MappingProxyType(_all_ways(file)),
        tuning=MappingProxyType({kind: _ways(file, profile) for kind, profile in file.tuning.items()}),
        corrections=MappingProxyType(
            {(each.collective, each.dtypes, each.place): _correction(file, each) for each in file.corrections}
        ),
    )


# Opening: catalog, inheritance, schema, sources.


def _open(
    kind: CatalogKind,
    name: str,
    model: type[_File],
    extra: Sequence[Path],
    relative_to: Path | None,
    changes: Changes,
) -> tuple[Path, Document, _File]:
    path = find(kind, name, extra, relative_to)
    document = changed(_inherited(kind, path, model, extra, ()), changes, _PREFIX[kind])
    file = check(document, model)
    problems = list(_unknown_sources(document, file.sources))
    if problems:
        raise InputError(problems)
    return path, document, file


def _inherited(
    kind: CatalogKind, path: Path, model: type[_File], extra: Sequence[Path], below: tuple[Path, ...]
) -> Document:
    """Read a file; with ``based_on: NAME``, its top-level keys replace those of the other file."""
    document = load_yaml(path)
    if "based_on" not in document.data:
        return document
    own = dict(document.data)
    name = own.pop("based_on")
    at = document.where(("based_on",))
    if not isinstance(name, str):
        raise InputError(Problem(f"{name!r} is not a name", at, f"the {kind} that this one is based on"))
    if path.resolve() in below:
        raise InputError(Problem(f"{name!r} is based on this file in turn", at, f"write the {kind} out"))
    try:
        parent = find(kind, name, extra, path.parent)
    except InputError as error:
        raise InputError(Problem(p.what, at, p.right) for p in error.problems) from None
    base = _inherited(kind, parent, model, extra, (*below, path.resolve()))
    check(base, model)
    merged = base.data | own
    if isinstance(own.get("sources"), dict):
        merged["sources"] = base.data.get("sources", {}) | own["sources"]
    return Document(merged, document.file, document.lines)


def _unknown_sources(document: Document, known: Mapping[str, str]) -> Iterator[Problem]:
    """Find single words that stand as a source but are no entry of ``sources``: slips, not citations."""
    for keys, source in _named_sources(document.data, ()):
        if source not in known and source != SOURCE and " " not in source.strip():
            right = near(source, known) or "write the citation out, or add it to `sources`"
            yield Problem(f"unknown source {source!r}", document.where(keys), right)


def _named_sources(data: Any, keys: KeyPath) -> Iterator[tuple[KeyPath, str]]:
    if isinstance(data, dict):
        for key, value in data.items():
            if key == "source" and isinstance(value, str):
                yield (*keys, key), value
            elif key != "sources":
                yield from _named_sources(value, (*keys, key))


def _cited(file: SourcedFile) -> str:
    """Every citation a file rests on, once."""
    used = (source for _, source in _named_sources(file.model_dump(), ()))
    return "; ".join(dict.fromkeys(file.sources.get(source, source) for source in used))


# From file to value.


def _cluster_problems(document: Document, file: ClusterFile) -> Iterator[Problem]:
    node, domain = file.gpus_per_node.value, file.gpus_per_domain.value
    nics = file.nics_per_node.value
    if domain % node:
        what = f"{domain} GPUs an NVLink domain are no multiple of the {node} a node has"
        yield Problem(what, document.where(("gpus_per_domain", "value")), f"write {node}, {2 * node}, {3 * node} ...")
    if node % nics and nics % node:
        what = f"{nics} adapters cannot be shared evenly by {node} GPUs"
        yield Problem(what, document.where(("nics_per_node", "value")), f"write a divisor or a multiple of {node}")
    if file.nvlink.bandwidth.value < file.nic.bandwidth.value:
        what = "NVLink is slower than one adapter"
        yield Problem(what, document.where(("nvlink", "bandwidth")), "is the unit right, Gb/s or GB/s?")
    if file.max_gpus is not None and file.max_gpus.value % node:
        what = f"{file.max_gpus.value} GPUs are no whole number of nodes of {node}"
        yield Problem(what, document.where(("max_gpus", "value")), f"write a multiple of {node}")


def _lacking(
    document: Document, keys: KeyPath, found: Mapping[Any, object], wanted: Sequence[str]
) -> Iterator[Problem]:
    for name in wanted:
        if name not in found:
            yield Problem(f"the key {name!r} is missing", document.where(keys))


_CHOSEN = "cluster.fabric_profile"
"""The change with which a user names another profile."""


def _beside(path: Path, profile: str, changes: Changes) -> str:
    """Let a path in a cluster's file start from that file, and one that the user sets from the working directory."""
    return str(path.parent / profile) if is_path(profile) and _CHOSEN not in changes else profile


def _link(file: SourcedFile, link: LinkFile) -> Link:
    sources = dict.fromkeys(file.sources.get(s, s) for s in (link.bandwidth.source, link.latency.source))
    return Link(link.product, link.bandwidth.value, link.latency.value, "; ".join(sources))


def _link_constants(file: SourcedFile, link: LinkProfile) -> LinkConstants:
    constants = _provenances(file, link)
    return LinkConstants(
        efficiency=_plain(link.efficiency),
        base_latency=link.base_latency.value,
        step_latency=link.step_latency.value,
        half_bandwidth_bytes=link.half_bandwidth.value,
        provenance=constants["efficiency.default"],
        constants=constants,
        measured_on=link.measured_on or "",
    )


def _all_ways(file: FabricProfileFile) -> dict[str, tuple[WayConstants, ...]]:
    """What is achieved where that is known, what the library believes elsewhere, and what offloading adds."""
    ways: dict[str, tuple[WayConstants, ...]] = {
        kind: _ways(file, profile) for kind, profile in {**file.tuning, **file.collectives}.items()
    }
    for kind, profile in file.offload.items():
        ways[kind] = ways.get(kind, ()) + _ways(file, profile)
    return ways


def _ways(file: SourcedFile, profile: CollectiveProfile) -> tuple[WayConstants, ...]:
    near, far = _noted(file, profile.near), _noted(file, profile.far)
    return tuple(
        WayConstants(
            algorithm=way.algorithm,
            protocol=way.protocol,
            base_latency=way.base,
            near_step=way.step,
            far_step=way.far_step,
            far_base=way.far_base,
            near_share=way.share,
            far_share=way.far_share,
            near_half=way.half,
            far_half=way.far_half,
            near=near,
            far=far,
        )
        for way in profile.ways
    )


def _correction(file: SourcedFile, correction: CorrectionProfile) -> Correction:
    return Correction(
        log2_bytes=tuple(log2(size) for size in correction.sizes),
        log2_members=tuple(log2(members) for members in correction.members),
        log_ratio=tuple(tuple(row) for row in correction.log_ratio),
        provenance=_noted(file, correction),
    )


def _noted(file: SourcedFile, note: FitNote) -> Provenance:
    return Provenance(note.basis, file.sources.get(note.source, note.source), note.error, note.points)


_GRID_LIMIT = 200
"""Most numbers of all corrections of one class of data type: a correction is no look-up table."""


def _correction_problems(document: Document, corrections: Sequence[CorrectionProfile]) -> Iterator[Problem]:
    numbers: dict[str, int] = {}
    for index, correction in enumerate(corrections):
        at = document.where(("corrections", index))
        rows, columns = len(correction.members), len(correction.sizes)
        if [len(row) for row in correction.log_ratio] != [columns] * rows:
            yield Problem(f"log_ratio is not {rows} rows of {columns} numbers", at, "a row for each of `members`")
        for name, knots in (("members", correction.members), ("sizes", correction.sizes)):
            if min(knots) <= 0 or any(a >= b for a, b in pairwise(knots)):
                yield Problem(f"{name} do not rise from above zero", at)
        numbers[correction.dtypes] = numbers.get(correction.dtypes, 0) + rows * columns
    for dtypes, count in numbers.items():
        if count > _GRID_LIMIT:
            what = f"{count} numbers correct {dtypes} data types"
            yield Problem(what, document.where(("corrections",)), f"at most {_GRID_LIMIT}")


def _tile(tile: TileProfile) -> TileConstants:
    return TileConstants(**{name: getattr(tile, name).value for name in TileProfile.model_fields})


def _plain(constants: Mapping[Any, Constant[float]]) -> Mapping[str, float]:
    return MappingProxyType({name: constant.value for name, constant in constants.items()})


def _provenances(file: SourcedFile, holder: StrictModel) -> Mapping[str, Provenance]:
    found: dict[str, Provenance] = {}
    for name in type(holder).model_fields:
        value = getattr(holder, name)
        entries = value.items() if isinstance(value, Mapping) else [("", value)]
        for key, constant in entries:
            if isinstance(constant, Constant):
                source = file.sources.get(constant.source, constant.source)
                full_name = f"{name}.{key}" if key else name
                found[full_name] = Provenance(constant.basis, source, constant.error, constant.points)
    return MappingProxyType(found)
