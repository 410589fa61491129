"""Which constants a prediction rests on, and where each comes from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from shardsim.schema.changes import SOURCE as SET_BY_USER
from shardsim.units import format_bandwidth, format_flop_rate
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
    return (*_compute(run), *_links(run), *_interference(run))


def _compute(run: TrainingRun) -> Iterator[CostNote]:
    device, kernels = run.cluster.device, run.profile.kernels
    here = device.name in kernels.measured_on and SET_BY_USER not in device.source

    def note(title: str, text: str, constant: str) -> CostNote:
        provenance = kernels.provenance[constant]
        return CostNote(title, text, provenance if here else _elsewhere(provenance, ", ".join(kernels.measured_on)))

    share, peak = kernels.gemm_efficiency[run.precision], device.peak_flops[run.precision]
    text = f"{share:.1%} of {format_flop_rate(peak)} {run.precision}"
    yield note("matrix products, sustained", text, f"gemm_efficiency.{run.precision}")
    if run.framework.attention == "flash":
        for direction, share in kernels.attention_efficiency.items():
            yield note(f"fused attention, {direction}", f"{share:.1%} of peak", f"attention_efficiency.{direction}")
    memory = format_bandwidth(device.memory_bandwidth)
    for kind in _kernels_of(run):
        share = kernels.kernel_efficiency[kind]
        yield note(f"{kind} kernels", f"{share:.1%} of {memory}", f"kernel_efficiency.{kind}")


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
    if run.framework.attention == "unfused":
        kinds.append("softmax")
    return tuple(kind for kind in kinds if kind in run.profile.kernels.kernel_efficiency)


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
