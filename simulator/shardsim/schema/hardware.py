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
from typing import Annotated, Literal

from pydantic import Field

from shardsim.errors import InputError, Problem
from shardsim.schema.base import Count, Duration, Size, StrictModel, Text
from shardsim.schema.catalog import is_path
from shardsim.schema.changes import Changes
from shardsim.schema.loader import Document
from shardsim.schema.sourced import (
    Constant,
    Figure,
    PositiveBandwidth,
    PositiveFlopRate,
    PositivePower,
    PositiveSize,
    SourcedFile,
    SourceName,
    cited,
    lacking,
    open_file,
    plain,
    provenances,
)
from shardsim.values.hardware import (
    Cluster,
    Correction,
    Device,
    ExchangeConstants,
    FabricConstants,
    Link,
    LinkConstants,
    WayConstants,
)
from shardsim.values.provenance import Basis, Provenance

Collective = Literal["default", "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv"]


class PeakFlops(StrictModel):
    """Dense peaks (no sparsity) by data type; one the device lacks is left out."""

    source: SourceName
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
    torus: Figure[tuple[Count, ...]] | None = Field(
        default=None,
        description="nodes along each dimension, of nodes cabled to each other; nodes_per_leaf is 1",
    )
    default_framework: Text = Field(description="software stack that runs of the cluster's time used")


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
    source: SourceName
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


class ExchangeProfile(StrictModel):
    """Constants of a dispatcher that brings tokens to their experts in two levels."""

    measured_on: Mapping[Literal["nvlink", "nic"], Text] = Field(
        default_factory=dict, description="products that were measured; on any other the constants are assumed"
    )
    near_share: Constant[LinkShare] = Field(description="share of NVLink's datasheet bandwidth per direction")
    far_share: Constant[LinkShare] = Field(description="share of the adapters' datasheet bandwidth")
    latency: Constant[Duration]
    beside_compute: Constant[Annotated[float, Field(ge=1.0)]] = Field(
        description="time beside the compute of another micro-batch over that alone"
    )
    multiprocessors: Constant[Annotated[float, Field(ge=0.0)]] = Field(description="that its kernel has to itself")


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
    exchange: Mapping[Literal["deepep", "hybridep"], ExchangeProfile] = Field(
        default_factory=dict, description="two-level exchanges of tokens with experts, by dispatcher"
    )


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
    path, _, file = open_file("device", name, DeviceFile, extra, relative_to, changes)
    peaks = file.peak_flops.model_dump(exclude={"source"}, exclude_none=True)
    return Device(
        name=path.stem,
        memory_bytes=file.memory.value,
        memory_bandwidth=file.memory_bandwidth.value,
        peak_flops=MappingProxyType(peaks),
        multiprocessors=file.multiprocessors.value,
        power=file.power.value,
        compute_profile=file.kernel_profile,
        source=cited(file),
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
    path, document, file = open_file("cluster", name, ClusterFile, extra, relative_to, changes)
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
        source=cited(file),
        default_framework=file.default_framework,
        fabric_assumed=_CHOSEN not in changes and file.fabric_assumed is not None and file.fabric_assumed.value,
        torus=() if file.torus is None else file.torus.value,
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
    path, document, file = open_file("fabric-profile", name, FabricProfileFile, extra, relative_to, changes)
    links = {"nvlink": file.links.nvlink, "nic": file.links.nic}
    problems = [
        problem
        for link, constants in links.items()
        for problem in lacking(document, ("links", link, "efficiency"), constants.efficiency, ("default",))
    ]
    problems += _correction_problems(document, file.corrections)
    if problems:
        raise InputError(problems)
    return FabricConstants(
        name=path.stem,
        links=MappingProxyType({n: _link_constants(file, p) for n, p in links.items()}),
        overlap_multiprocessors=0.0 if file.overlap_multiprocessors is None else file.overlap_multiprocessors.value,
        overlap_provenance=provenances(file, file).get("overlap_multiprocessors"),
        ways=MappingProxyType(_all_ways(file)),
        tuning=MappingProxyType({kind: _ways(file, profile) for kind, profile in file.tuning.items()}),
        corrections=MappingProxyType(
            {(each.collective, each.dtypes, each.place): _correction(file, each) for each in file.corrections}
        ),
        exchange=MappingProxyType({name: _exchange(file, each) for name, each in file.exchange.items()}),
    )


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
    switched = file.nodes_per_leaf.value != 1 or file.rail_optimized.value or file.oversubscription.value != 1.0
    if file.torus is not None and switched:
        what = "a torus has no leaf switches that nodes share, no rails and no spines"
        right = "nodes_per_leaf 1, rail_optimized false and oversubscription 1"
        yield Problem(what, document.where(("torus",)), right)


_CHOSEN = "cluster.fabric_profile"
"""The change with which a user names another profile."""


def _beside(path: Path, profile: str, changes: Changes) -> str:
    """Let a path in a cluster's file start from that file, and one that the user sets from the working directory."""
    return str(path.parent / profile) if is_path(profile) and _CHOSEN not in changes else profile


def _link(file: SourcedFile, link: LinkFile) -> Link:
    sources = dict.fromkeys(file.sources.get(s, s) for s in (link.bandwidth.source, link.latency.source))
    return Link(link.product, link.bandwidth.value, link.latency.value, "; ".join(sources))


def _link_constants(file: SourcedFile, link: LinkProfile) -> LinkConstants:
    constants = provenances(file, link)
    return LinkConstants(
        efficiency=plain(link.efficiency),
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


def _exchange(file: SourcedFile, profile: ExchangeProfile) -> ExchangeConstants:
    return ExchangeConstants(
        near_share=profile.near_share.value,
        far_share=profile.far_share.value,
        latency=profile.latency.value,
        beside_compute=profile.beside_compute.value,
        multiprocessors=profile.multiprocessors.value,
        provenance=provenances(file, profile),
        measured_on=MappingProxyType({str(link): product for link, product in profile.measured_on.items()}),
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
