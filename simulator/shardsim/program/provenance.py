"""Which constants a prediction rests on, and where each comes from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from shardsim.cost.attention import HEAD_DIMS, efficiency_at, library_of, padded
from shardsim.cost.gemm import PEAK_OF
from shardsim.cost.protocols import least_trusted
from shardsim.schema.changes import SOURCE as SET_BY_USER
from shardsim.units import format_bandwidth, format_flop_rate, format_time
from shardsim.values.hardware import Cluster, FabricConstants, Link, LinkConstants, WayConstants
from shardsim.values.num import Num, any_of
from shardsim.values.provenance import Provenance
from shardsim.values.results import CostNote
from shardsim.values.training import TrainingRun


def cost_notes(run: TrainingRun) -> tuple[CostNote, ...]:
    """List the constants that a run uses, the ones that matter most first.

    Parameters
    ----------
    run : TrainingRun

    Returns
    -------
    tuple of CostNote
    """
    return (*_compute(run), *_host(run), *_links(run), *_interference(run))


def _compute(run: TrainingRun) -> Iterator[CostNote]:
    device, kernels = run.cluster.device, run.profile.kernels

    def note(title: str, text: str, constant: str) -> CostNote:
        provenance, measured_on = kernels.provenance[constant], kernels.measured_on[constant.partition(".")[0]]
        here = device.name in measured_on and SET_BY_USER not in device.source
        found = provenance if here else _elsewhere(provenance, ", ".join(measured_on))
        return CostNote(title, text, priced_alike(run, found) if constant.startswith("gemm.fp8.") else found)

    low = run.framework.low_precision
    types = {run.wide_type: "matrix products"}
    if low is not None:
        types = {run.linear_type: f"linear layers ({low})", run.wide_type: "other matrix products"}
    for data_type, what in types.items():
        share, peak = kernels.gemm[data_type].sustained, device.peak_flops[PEAK_OF.get(data_type, data_type)]
        text = f"{share:.1%} of {format_flop_rate(peak)} {data_type}"
        yield note(f"{what}, sustained", text, f"gemm.{data_type}.sustained")
        tiles = [key for key in kernels.provenance if key.startswith(f"gemm.{data_type}.tile.")]
        if tiles:
            # One line for all of them: that of the constant that is trusted least.
            weakest = least_trusted(*(kernels.provenance[key] for key in tiles))
            constant = next(key for key in tiles if kernels.provenance[key] == weakest)
            yield note(f"{what}, tiles and waves", f"{len(tiles)} constants in {data_type}", constant)
    if run.framework.attention != "unfused":
        yield from _attention(run, note)
    memory = format_bandwidth(device.memory_bandwidth)
    for kind in _kernels_of(run):
        share = kernels.memory_bound.efficiency[kind]
        yield note(f"{kind} kernels", f"{share:.1%} of {memory}", f"memory_bound.efficiency.{kind}")


def _attention(run: TrainingRun, note: Callable[[str, str, str], CostNote]) -> Iterator[CostNote]:
    """The library that was taken, and its share of peak at the model's head dimension, from the nearest measured."""
    constants, width = run.profile.kernels.attention, run.model.head_dim
    library = library_of(run.framework.attention, constants)
    built = padded(width, HEAD_DIMS[library])
    asked = " (best of its profile)" if run.framework.attention == "flash" else ""
    for direction in ("forward", "backward"):
        shares = getattr(constants.libraries[library], direction).efficiency
        nearest = min(shares, key=lambda measured: abs(measured - built))
        found = note(
            f"fused attention by {library}{asked}, {direction}",
            f"{efficiency_at(built, shares):.1%} of peak inside a tile, head dimension {width}"
            + (f" run as {built}" if built != width else ""),
            f"attention.libraries.{library}.{direction}.efficiency.{nearest}",
        )
        if built not in shares and found.provenance.basis != "assumed":
            source = f"between head dimensions {', '.join(str(d) for d in shares)}: {found.provenance.source}"
            found = replace(found, provenance=replace(found.provenance, basis="interpolated", source=source))
        yield found


_LAUNCHES = {
    "forward": "launch of a forward kernel",
    "backward": "launch of a backward kernel",
    "collective": "launch of a collective",
    "passes": "before each pass",
    "optimizer": "launch of an optimizer kernel",
}


def _host(run: TrainingRun) -> Iterator[CostNote]:
    host = run.profile.host
    graphs = run.framework.cuda_graphs
    captured = {"none": "", "layers": ", layers in CUDA graphs", "full": ", passes in CUDA graphs"}[graphs]
    for constant, title in _LAUNCHES.items():
        if constant in host.provenance:
            text = f"{format_time(getattr(host, constant))} of the host ({host.name}{captured})"
            yield CostNote(title, text, host.provenance[constant])


def priced_alike(run: TrainingRun, provenance: Provenance) -> Provenance:
    """Products in MXFP8 were not measured: those with one scale a tensor stand for them."""
    if run.framework.low_precision != "mxfp8":
        return provenance
    return Provenance("assumed", f"MXFP8 as fast as fp8 with one scale a tensor: {provenance.source}")


def fabric_here(cluster: Cluster, fabric: FabricConstants) -> FabricConstants:
    """Give a profile as it counts on a cluster: constants that were taken over from another cluster are assumed.

    Parameters
    ----------
    cluster : Cluster
    fabric : FabricConstants
        The cluster's own profile, or another.

    Returns
    -------
    FabricConstants
        The same figures. Where the cluster says that its profile is another's and this is that profile, every basis is
        ``assumed``, without the fit's error and points.
    """
    if not cluster.fabric_assumed or fabric.name != Path(cluster.fabric_profile).stem:
        return fabric
    where = f"another cluster, by its profile {fabric.name}"

    def link(constants: LinkConstants) -> LinkConstants:
        known = {name: _elsewhere(each, where) for name, each in constants.constants.items()}
        return replace(constants, provenance=_elsewhere(constants.provenance, where), constants=known)

    def ways(of: Mapping[str, tuple[WayConstants, ...]]) -> dict[str, tuple[WayConstants, ...]]:
        return {
            kind: tuple(replace(way, near=_elsewhere(way.near, where), far=_elsewhere(way.far, where)) for way in each)
            for kind, each in of.items()
        }

    overlap = fabric.overlap_provenance
    return replace(
        fabric,
        links={name: link(constants) for name, constants in fabric.links.items()},
        overlap_provenance=None if overlap is None else _elsewhere(overlap, where),
        ways=ways(fabric.ways),
        tuning=ways(fabric.tuning),
        corrections={
            key: replace(each, provenance=_elsewhere(each.provenance, where))
            for key, each in fabric.corrections.items()
        },
    )


def _elsewhere(provenance: Provenance, product: str) -> Provenance:
    """What was measured on another product is an assumption here."""
    if provenance.basis == "assumed" or not product:
        return provenance
    return Provenance("assumed", f"{provenance.basis} on {product}: {provenance.source}")


def _kernels_of(run: TrainingRun) -> tuple[str, ...]:
    """Kinds of memory-bound kernel that weigh most, those the profile knows."""
    model = run.model
    kinds = [model.norm, model.activation, "add", "optimizer"]
    if run.framework.low_precision is not None:
        kinds.append("quantize")
    if run.framework.attention == "unfused":
        kinds.append("softmax")
    return tuple(kind for kind in kinds if kind in run.profile.kernels.memory_bound.efficiency)


def _links(run: TrainingRun) -> Iterator[CostNote]:
    cluster, layout, links = run.cluster, run.layout, run.profile.fabric.links
    if layout.gpus > 1:
        for kind in _collectives(tokens_split=layout.sp, states_split=layout.zero > 0, replicas=layout.dp):
            yield _link("NVLink", kind, cluster.nvlink, links["nvlink"])
    if layout.gpus > cluster.gpus_per_domain:
        for kind in _collectives(tokens_split=False, states_split=layout.zero > 0, replicas=layout.dp):
            yield _link("between NVLink domains", kind, cluster.nic, links["nic"])
        if run.layout.pp > 1:
            yield _link("pipeline messages between NVLink domains", "send_recv", cluster.nic, links["nic"])


def _collectives(*, tokens_split: bool, states_split: bool, replicas: Num) -> tuple[str, ...]:
    """Collectives that matter: those of tensor parallelism, and of the gradients where there are replicas."""
    split = ("all_gather", "reduce_scatter")
    used = split if tokens_split else ("all_reduce",)
    gradients = split if states_split else ("all_reduce",)
    return tuple(dict.fromkeys(used + gradients)) if any_of(replicas > 1) else used


def _interference(run: TrainingRun) -> Iterator[CostNote]:
    fabric = run.profile.fabric
    reduces = run.framework.overlap_grad_reduce == "always" and any_of(run.layout.dp > 1)
    overlaps = reduces or (run.layout.sp and any_of(run.layout.tp > 1))
    if overlaps and fabric.overlap_multiprocessors and fabric.overlap_provenance is not None:
        text = f"{fabric.overlap_multiprocessors:g} of {run.cluster.device.multiprocessors}"
        yield CostNote("multiprocessors of collectives behind compute", text, fabric.overlap_provenance)


def _link(title: str, kind: str, link: Link, constants: LinkConstants) -> CostNote:
    share = constants.efficiency.get(kind, constants.efficiency["default"])
    text = f"{share:.1%} of {format_bandwidth(link.bandwidth)} ({link.name}, {kind.replace('_', '-')}, per direction)"
    provenance = constants.provenance_of(kind)
    product = constants.measured_on
    here = bool(product) and link.name.startswith(product) and SET_BY_USER not in link.source
    return CostNote(title, text, provenance if here else _elsewhere(provenance, product))
