"""Which constants a prediction rests on, and where each comes from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal

from shardsim.cost.attention import HEAD_DIMS, efficiency_at, library_of, padded
from shardsim.cost.gemm import PEAK_OF
from shardsim.cost.protocols import least_trusted
from shardsim.program.machine import Machine
from shardsim.schema.changes import SOURCE as SET_BY_USER
from shardsim.units import format_bandwidth, format_flop_rate, format_time
from shardsim.values.hardware import Cluster, FabricConstants, Link, LinkConstants, WayConstants
from shardsim.values.num import any_of, first_of
from shardsim.values.operators import Collective, CollectiveKind
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
    return (*_compute(run), *_stack(run), *_host(run), *_links(run), *_exchange(run), *_interference(run))


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
    weights = run.framework.narrow_weights_provenance
    if low is not None and weights is not None:
        text = f"{run.framework.narrow_weights_time:g} times as long by {run.framework.name}'s own kernels"
        yield CostNote("weight gradients of linear layers", text, weights)
    grouped = kernels.gemm[run.linear_type].grouped
    if run.model.moe is not None and run.framework.expert_products == "one_kernel" and grouped is not None:
        text = f"{grouped.slowdown:.3g} times as long as single ones in {run.linear_type}, and "
        text += format_time(grouped.overhead)
        yield note("products of experts, grouped", text, f"gemm.{run.linear_type}.grouped.slowdown")
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


_IN_TRAINING = {
    "products": "matrix products in training",
    "narrow": "matrix products below 16 bits in training",
    "attention": "attention in training",
    "kernels": "memory-bound kernels in training",
    "experts": "products of experts in training",
    "inside": "collectives of TP and CP in training",
    "exchange": "exchanges of tokens in training",
    "data": "collectives of data parallelism in training",
}


def _stack(run: TrainingRun) -> Iterator[CostNote]:
    """What the software stack takes longer than alone, as far as the run has it."""
    stack, layout = run.profile.stack, run.layout
    sixteen = run.framework.low_precision is None
    has = {
        "narrow": not sixteen,
        "attention": run.framework.attention != "unfused",
        "experts": run.model.moe is not None,
        "inside": any_of(layout.tp > 1) or any_of(layout.cp > 1),
        "exchange": run.model.moe is not None and any_of(layout.ep > 1),
        "data": any_of(layout.dp > 1),
    }
    for constant, title in _IN_TRAINING.items():
        factor = getattr(stack, constant)
        if factor != 1.0 and has.get(constant, True):
            yield CostNote(title, f"{factor:.3g} times as long as alone ({stack.name})", stack.provenance[constant])
    if stack.iteration:
        text = f"{format_time(float(stack.iteration))} ({stack.name})"
        yield CostNote("between iterations", text, stack.provenance["iteration"])


def _host(run: TrainingRun) -> Iterator[CostNote]:
    host = run.profile.host
    graphs = run.framework.cuda_graphs
    captured = {"none": "", "layers": ", layers in CUDA graphs", "full": ", passes in CUDA graphs"}[graphs]
    for constant, title in _LAUNCHES.items():
        if constant in host.provenance:
            text = f"{format_time(getattr(host, constant))} of the host ({host.name}{captured})"
            yield CostNote(title, text, host.provenance[constant])
    if host.member and "member" in host.provenance:
        text = f"{format_time(float(host.member))} of the host ({run.profile.stack.name})"
        yield CostNote("launch of a collective, each member of its group", text, host.provenance["member"])


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
        exchange={
            name: replace(each, provenance={key: _elsewhere(note, where) for key, note in each.provenance.items()})
            for name, each in fabric.exchange.items()
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
    machine = Machine(run)
    for kind, axis, title in _collectives(run):
        transfer = machine.transfer(Collective(kind, kind, axis, _LARGE))
        how = f"{kind.replace('_', '-')} by {transfer.algorithm}"
        for name, link, has, where in (
            ("nvlink", cluster.nvlink, cluster.nvlink.bandwidth, "NVLink"),
            ("nic", cluster.nic, first_of(machine.shapes[axis].nic_share), "between NVLink domains"),
        ):
            if any_of(transfer.wire.get(name, 0.0) > 0):
                rate = first_of(transfer.rate[name])
                yield _link(f"{where}, {title}", how, link, (rate, has), transfer.provenance, links[name].measured_on)
    if layout.gpus > cluster.gpus_per_domain and layout.pp > 1:
        constants = links["nic"]
        rate = constants.efficiency.get("send_recv", constants.efficiency["default"]) * cluster.nic.bandwidth
        title, provenance = "between NVLink domains, pipeline messages", constants.provenance_of("send_recv")
        yield _link(title, "send-recv", cluster.nic, (rate, cluster.nic.bandwidth), provenance, constants.measured_on)


_LARGE = 2.0**30
"""Size of the messages whose rate is told [bytes]: large enough for latency not to matter."""


_COLLECTIVE_DISPATCHERS: Mapping[str, tuple[CollectiveKind, ...]] = {
    "alltoall": ("all_to_all",),
    "allgather": ("all_gather", "reduce_scatter"),
}


def _collectives(run: TrainingRun) -> Iterator[tuple[CollectiveKind, Literal["tp", "dp", "ep"], str]]:
    """Collectives that matter: of tensor parallelism, of gradients where there are replicas, of tokens to experts."""
    split: tuple[CollectiveKind, ...] = ("all_gather", "reduce_scatter")
    whole: tuple[CollectiveKind, ...] = ("all_reduce",)
    layout = run.layout
    if any_of(layout.tp > 1):
        yield from ((kind, "tp", "tensor parallelism") for kind in (split if layout.sp else whole))
    if any_of(layout.dp > 1):
        yield from ((kind, "dp", "data parallelism") for kind in (split if layout.zero else whole))
    if run.model.moe is not None and any_of(layout.ep > 1) and layout.dispatcher in _COLLECTIVE_DISPATCHERS:
        yield from ((kind, "ep", "tokens to experts") for kind in _COLLECTIVE_DISPATCHERS[layout.dispatcher])


def _exchange(run: TrainingRun) -> Iterator[CostNote]:
    """What tokens reach on their way to experts and back, where a dispatcher has constants of its own."""
    constants = run.profile.fabric.exchange.get(run.layout.dispatcher)
    if run.model.moe is None or not any_of(run.layout.ep > 1) or constants is None:
        return
    cluster, what = run.cluster, f"tokens to experts by {run.layout.dispatcher}"
    reached = {"nvlink": (constants.near_share, cluster.nvlink), "nic": (constants.far_share, cluster.nic)}
    across = any_of(Machine(run).shapes["ep"].domains > 1)
    for name, (share, link) in reached.items():
        if name == "nvlink" or across:
            key = "near_share" if name == "nvlink" else "far_share"
            rate = (share * link.bandwidth, link.bandwidth)
            title = f"{what}, {'NVLink' if name == 'nvlink' else 'between NVLink domains'}"
            yield _link(title, "per GPU", link, rate, constants.provenance[key], constants.measured_on.get(name, ""))
    yield CostNote(f"{what}, fixed time", format_time(constants.latency), constants.provenance["latency"])
    if run.layout.overlap_experts or run.layout.schedule.startswith("dualpipe"):
        text = f"{constants.beside_compute:g} times as long as alone"
        yield CostNote(f"{what}, beside compute", text, constants.provenance["beside_compute"])
        text = f"{constants.multiprocessors:g} of {cluster.device.multiprocessors}"
        yield CostNote(f"multiprocessors of {what} beside compute", text, constants.provenance["multiprocessors"])


def _interference(run: TrainingRun) -> Iterator[CostNote]:
    fabric = run.profile.fabric
    reduces = run.framework.overlap_grad_reduce == "always" and any_of(run.layout.dp > 1)
    overlaps = reduces or ((run.layout.sp or run.framework.overlap_dgrad) and any_of(run.layout.tp > 1))
    if overlaps and fabric.overlap_multiprocessors and fabric.overlap_provenance is not None:
        text = f"{fabric.overlap_multiprocessors:g} of {run.cluster.device.multiprocessors}"
        yield CostNote("multiprocessors of collectives behind compute", text, fabric.overlap_provenance)


def _link(
    title: str, how: str, link: Link, rate: tuple[float, float], provenance: Provenance, measured_on: str
) -> CostNote:
    """Say what share of its bandwidth a transfer reaches, of ``rate``: what it reaches and what it has [bytes/s]."""
    reached, has = rate
    text = f"{reached / has:.1%} of {format_bandwidth(has)} ({link.name}, {how}, per direction)"
    here = bool(measured_on) and link.name.startswith(measured_on) and SET_BY_USER not in link.source
    return CostNote(title, text, provenance if here else _elsewhere(provenance, measured_on))
