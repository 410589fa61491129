"""From a node to a cluster of such nodes: what the dump says, what was asked, and, named as such, what is assumed.

Three things a dump may lack are never assumed: which GPU it is, how fast an adapter is, and which adapters carry
training traffic. They are asked for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from shardsim.errors import InputError, Problem
from shardsim.schema.catalog import names, near
from shardsim.schema.hardware import load_cluster, load_device
from shardsim.topology.imports.node import Gpu, Nic, Node
from shardsim.units import format_bandwidth
from shardsim.values.hardware import Cluster, Link
from shardsim.values.products import GpuProduct

DUMP, ASKED, ASSUMED, LINKS, DERIVED = "dump", "asked", "assumed", "links", "derived"
"""Keys of the sources of a draft: read from the dump, given by the user, taken from a catalogued cluster, the rate of
one NVLink, and what a rule made of the dump."""

WITHOUT_NVLINK = "nccl-pcie"
"""Fabric profile of nodes whose GPUs meet over PCIe: a fit of NVLink says nothing of them."""

_ALIKE = 0.1
"""How far the adapter bandwidth of a GPU may be from a catalogued cluster's that is taken without being asked (-)."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What the user adds to a dump. None for what was not given.

    Parameters
    ----------
    device : str or None
        Catalog name of the GPU.
    nodes : int or None
        Nodes of the cluster (-).
    gpus : int or None
        GPUs of a node (-).
    domain : int or None
        GPUs that reach each other over NVLink (-).
    nic : float or None
        Bandwidth of one adapter per direction [bytes/s].
    nics : int or None
        Adapters of a node that carry training traffic (-).
    like : str or None
        Catalogued cluster from which the rest is taken.
    """

    device: str | None = None
    nodes: int | None = None
    gpus: int | None = None
    domain: int | None = None
    nic: float | None = None
    nics: int | None = None
    like: str | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """A number and the key of its source."""

    value: float
    source: str


@dataclass(frozen=True, slots=True)
class LinkEntry:
    """A class of link: product, bandwidth per direction [bytes/s], latency [s]."""

    product: str
    bandwidth: Entry
    latency: Entry


@dataclass(frozen=True, slots=True)
class ClusterDraft:
    """A cluster made from a dump, every figure with its source; :mod:`shardsim.report.node` writes it as YAML.

    Parameters
    ----------
    title : str
    sources : mapping of str to str
        By key.
    device : str
    gpus_per_node, gpus_per_domain, nics_per_node, nodes_per_leaf, oversubscription : Entry
    nvlink, pcie, nic : LinkEntry
    rail_optimized : Entry
        1 or 0.
    fabric_profile, default_framework : str
    fabric_assumed : Entry
        1: no dump says how fast its fabric's collectives are.
    max_gpus : Entry or None
    assumed : tuple of str
        What the dump does not say and nobody gave, for people.
    notes : tuple of str
        What else should be known of it.
    """

    title: str
    sources: Mapping[str, str]
    device: str
    gpus_per_node: Entry
    gpus_per_domain: Entry
    nvlink: LinkEntry
    pcie: LinkEntry
    nic: LinkEntry
    nics_per_node: Entry
    nodes_per_leaf: Entry
    oversubscription: Entry
    rail_optimized: Entry
    fabric_profile: str
    default_framework: str
    fabric_assumed: Entry
    max_gpus: Entry | None
    assumed: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass(slots=True)
class _Work:
    """What is known while a draft is made."""

    node: Node
    asked: Asked
    products: Sequence[GpuProduct]
    extra: Sequence[Path]
    problems: list[Problem] = field(default_factory=list)
    assumed: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def draft_cluster(
    node: Node, asked: Asked, products: Sequence[GpuProduct], name: str, extra: Sequence[Path] = ()
) -> ClusterDraft:
    """Make a cluster of nodes like this one.

    Parameters
    ----------
    node : Node
    asked : Asked
    products : sequence of GpuProduct
    name : str
        Name of the dump, for titles and sources.
    extra : sequence of Path
        A user's own data folders.

    Returns
    -------
    ClusterDraft

    Raises
    ------
    InputError
        Everything that the dump does not say and that must not be assumed, at once.
    """
    work = _Work(node, asked, products, extra)
    product = _product(work)
    gpus, nics, speed = _gpus(work), _nics(work), _nic_bandwidth(work)
    share = nics.value * speed.value / gpus.value if gpus.value else 0.0
    reference = None if product is None else _reference(work, product, gpus.value, share)
    if product is None or reference is None:
        raise InputError(work.problems)
    domain = _domain(work, product, reference, int(gpus.value))
    pcie = _pcie(work, reference)
    nvlink = _nvlink(work, product, reference, pcie)
    work.problems += _misfits(gpus, nics, speed, nvlink)
    if work.problems:
        raise InputError(work.problems)
    profile = reference.fabric_profile if _has_nvlink(node, product) else WITHOUT_NVLINK
    work.assumed += _fabric(reference, profile)
    return ClusterDraft(
        title=f"{int(gpus.value)} x {product.device} a node, imported from {name}",
        sources={
            DUMP: f"{node.kind}, {name}",
            DERIVED: f"counted in {node.kind}, {name}, by the rules of the import",
            ASKED: "given with the import, on the command line",
            LINKS: product.source or "no NVLink",
            ASSUMED: f"assumed as in {reference.name}, not in the dump",
        },
        device=product.device,
        gpus_per_node=gpus,
        gpus_per_domain=domain,
        nvlink=nvlink,
        pcie=pcie,
        nic=LinkEntry(_nic_product(node, speed.value), speed, Entry(reference.nic.latency, ASSUMED)),
        nics_per_node=nics,
        nodes_per_leaf=Entry(reference.nodes_per_leaf, ASSUMED),
        oversubscription=Entry(reference.oversubscription, ASSUMED),
        rail_optimized=Entry(reference.rail_optimized, ASSUMED),
        fabric_profile=profile,
        default_framework=reference.default_framework,
        fabric_assumed=Entry(1, ASSUMED),
        max_gpus=None if asked.nodes is None else Entry(asked.nodes * int(gpus.value), ASKED),
        assumed=tuple(work.assumed),
        notes=tuple(work.notes),
    )


def _misfits(gpus: Entry, nics: Entry, speed: Entry, nvlink: LinkEntry) -> list[Problem]:
    """What no cluster file may say."""
    problems = []
    node, adapters = int(gpus.value), int(nics.value)
    if node and adapters and node % adapters and adapters % node:
        what = f"{adapters} adapters cannot be shared evenly by {node} GPUs"
        problems.append(Problem(what, "--nics", f"a divisor or a multiple of {node}"))
    if nvlink.bandwidth.value < speed.value:
        most, least = format_bandwidth(speed.value), format_bandwidth(nvlink.bandwidth.value)
        what = f"an adapter of {most} is faster than {nvlink.product}, {least}"
        problems.append(Problem(what, "--nic", f"at most {least}"))
    return problems


def _has_nvlink(node: Node, product: GpuProduct) -> bool:
    """Whether NVLink joins all GPUs of a node; else PCIe is priced in its place."""
    if not _lists_nvlinks(node):
        return product.links > 0
    return len(node.nvlink_groups) == 1 and all(map(node.links_of, range(len(node.gpus))))


def _fabric(reference: Cluster, profile: str) -> list[str]:
    """What no dump of a node can say."""
    constants = f"fabric profile {profile}, fitted on clusters such as {reference.name} and not on this one"
    if profile == WITHOUT_NVLINK:
        constants = f"fabric profile {profile}: without NVLink, NCCL's own constants for PCIe and the network"
    rails = "rail-optimized" if reference.rail_optimized else "leaf-spine"
    spine = f"oversubscription {reference.oversubscription:g}"
    return [
        f"latencies, as {reference.name}",
        f"{rails} fabric, {reference.nodes_per_leaf} nodes a leaf, {spine}, as {reference.name}",
        constants,
        f"framework {reference.default_framework}, as {reference.name}",
    ]


def device_of(node: Node, products: Sequence[GpuProduct]) -> GpuProduct | None:
    """The GPU that a dump names by its PCI id; None where it names none, an unknown one, or several."""
    ids = {gpu.pci_id for gpu in node.gpus}
    known = {product.pci_id: product for product in products if product.pci_id}
    return known.get(next(iter(ids))) if len(ids) == 1 else None


def _product(work: _Work) -> GpuProduct | None:
    """The GPU, from the dump or as asked."""
    node, asked = work.node, work.asked
    told = device_of(node, work.products)
    if asked.device is None:
        if told is None:
            work.problems.append(_which_device(work))
        return told
    try:
        load_device(asked.device, work.extra)
    except InputError as error:
        work.problems += [Problem(p.what, p.where or "--device", p.right) for p in error.problems]
        return None
    product = next((one for one in work.products if one.device == asked.device), None)
    if product is None:
        product = GpuProduct(asked.device, "", 0, 0.0, "")
    if told is not None and told.device != asked.device:
        work.notes.append(f"the dump names {told.device} by its PCI id; {asked.device} was asked for")
    most = max((node.links_of(gpu) for gpu in range(len(node.gpus))), default=0)
    if most > product.links:
        what = f"{asked.device} has {product.links} NVLinks, the dump shows {most} of one GPU"
        work.problems.append(Problem(what, "--device", _candidates(work, most)))
        return None
    return product


def _which_device(work: _Work) -> Problem:
    ids = sorted({gpu.pci_id for gpu in work.node.gpus if gpu.pci_id})
    most = max((work.node.links_of(gpu) for gpu in range(len(work.node.gpus))), default=0)
    told = f"the dump names a GPU that is not known ({', '.join(ids)})" if ids else "the dump does not name the GPU"
    return Problem(told, "--device", _candidates(work, most))


def _candidates(work: _Work, links: int) -> str:
    fitting = [one.device for one in work.products if one.links >= links]
    same = [one.device for one in work.products if one.links == links and _lists_nvlinks(work.node)]
    return f"such as {', '.join(same or fitting)}" if fitting else "a device of the catalog"


def _lists_nvlinks(node: Node) -> bool:
    """Whether the dump tells how many NVLinks a GPU has: one without GPUs, or of NCCL's input, does not."""
    return node.nvlink_known and bool(node.gpus)


def _gpus(work: _Work) -> Entry:
    seen = len(work.node.gpus)
    if work.asked.gpus is not None:
        if seen and seen != work.asked.gpus:
            work.notes.append(f"the dump shows {seen} GPUs; {work.asked.gpus} were asked for")
        return Entry(work.asked.gpus, ASKED)
    if not seen:
        work.problems.append(Problem("the dump lists no GPU", "--gpus", "give the GPUs of a node"))
    return Entry(seen, DUMP)


def _nics(work: _Work) -> Entry:
    """Adapters that carry training traffic: as asked, or those under a PCIe switch with a GPU."""
    node = work.node
    if work.asked.nics is not None:
        return Entry(work.asked.nics, ASKED)
    beside = len(node.nics_beside_gpus)
    if beside:
        if beside < len(node.nics):
            work.notes.append(f"{beside} of {len(node.nics)} adapters hang under a PCIe switch with a GPU and count")
        return Entry(beside, DERIVED)
    what = "the dump lists no adapter"
    if node.nics:
        what = f"none of {len(node.nics)} adapters hangs under a PCIe switch with a GPU: which carry training traffic?"
    work.problems.append(Problem(what, "--nics", "give how many of a node do"))
    return Entry(len(node.nics), DUMP)


def _training(node: Node) -> list[Nic]:
    """Adapters that count, or all where the dump cannot tell."""
    return [node.nics[number] for number in node.nics_beside_gpus] or list(node.nics)


def _nic_bandwidth(work: _Work) -> Entry:
    speeds = {nic.speed for nic in _training(work.node)}
    told = min((speed for speed in speeds if speed is not None), default=None)
    if work.asked.nic is not None:
        if told is not None and not math.isclose(told, work.asked.nic):
            told_text, asked_text = format_bandwidth(told), format_bandwidth(work.asked.nic)
            work.notes.append(f"the dump gives adapters {told_text}; {asked_text} was asked for")
        return Entry(work.asked.nic, ASKED)
    if told is None or None in speeds:
        problem = Problem("the dump does not give the bandwidth of an adapter", "--nic", "such as '400 Gb/s'")
        work.problems.append(problem)
        return Entry(0.0, DUMP)
    if len(speeds) > 1:
        work.notes.append(f"adapters of different bandwidth: the least, {format_bandwidth(told)}, was taken for all")
    return Entry(told, DUMP)


def _reference(work: _Work, product: GpuProduct, gpus: float, share: float) -> Cluster | None:
    """The catalogued cluster from which the rest is taken: as asked, or the most similar one with this GPU.

    Where several are as similar and their fabrics differ, it has to be asked.

    ``share`` is the adapter bandwidth of one GPU [bytes/s]; 0 where it is not known.
    """
    if work.asked.like is not None:
        try:
            return load_cluster(work.asked.like, work.extra)
        except InputError as error:
            work.problems += [Problem(p.what, p.where or "--like", p.right) for p in error.problems]
            return None
    known = [load_cluster(name, work.extra) for name in names("cluster", work.extra)]
    same = [cluster for cluster in known if cluster.device.name == product.device]
    if not same:
        what = f"no catalogued cluster has {product.device}: from which are latencies and the fabric taken?"
        work.problems.append(Problem(what, "--like", near(product.device, [cluster.name for cluster in known])))
        return None
    links = max((work.node.links_of(gpu) for gpu in range(len(work.node.gpus))), default=0) or product.links

    def unlike(cluster: Cluster) -> tuple[float, float, bool]:
        nvlink = abs(math.log(cluster.nvlink.bandwidth / (links * product.link_bandwidth))) if links else 0.0
        adapters = abs(math.log(cluster.nic_bandwidth_per_gpu / share)) if share else 0.0
        return round(nvlink, 6), round(adapters, 6), cluster.gpus_per_node != gpus

    nearest = [cluster for cluster in same if unlike(cluster) == min(map(unlike, same))]
    problem = _which_fabric(product, same, nearest, share) if _has_nvlink(work.node, product) else None
    if problem is not None:
        work.problems.append(problem)
        return None
    return nearest[0]


def _which_fabric(
    product: GpuProduct, same: Sequence[Cluster], nearest: Sequence[Cluster], share: float
) -> Problem | None:
    """What has to be asked before the fabric profile of a similar cluster is taken."""
    if share and all(abs(cluster.nic_bandwidth_per_gpu / share - 1) > _ALIKE for cluster in nearest):
        known = ", ".join(f"{cluster.name} ({_gigabits(cluster.nic_bandwidth_per_gpu)})" for cluster in same)
        what = f"no catalogued cluster of {product.device} has {_gigabits(share)} of adapters a GPU: which fabric?"
        return Problem(what, "--like", f"one of {known}")
    fabrics = {cluster.fabric_profile: cluster.name for cluster in reversed(nearest)}
    if len(fabrics) > 1:
        what = f"the dump does not say which fabric joins the nodes ({', '.join(sorted(fabrics))})"
        return Problem(what, "--like", f"one of {', '.join(sorted(fabrics.values()))}")
    return None


def _domain(work: _Work, product: GpuProduct, reference: Cluster, gpus: int) -> Entry:
    """GPUs that reach each other over NVLink, or over PCIe where there is none."""
    node, asked = work.node, work.asked
    listed = _lists_nvlinks(node)
    if asked.domain is not None:
        if gpus and asked.domain % gpus:
            right = f"a multiple of {gpus}"
            work.problems.append(Problem(f"{asked.domain} GPUs do not fit nodes of {gpus}", "--domain", right))
        return Entry(asked.domain, ASKED)
    if node.domain_gpus is not None:
        return Entry(node.domain_gpus, DUMP)
    if not product.links or (listed and not node.nvlinks and not node.switches):
        if gpus > 1:
            work.notes.append("no NVLink: the GPUs of a node reach each other over PCIe, which is priced in its place")
        return Entry(gpus, DERIVED)
    wide = reference.gpus_per_domain
    if (node.switches or not listed) and wide > max(gpus, reference.gpus_per_node):
        what = f"a dump of one node does not say how far NVLink reaches; in {reference.name} it joins {wide} GPUs"
        work.problems.append(Problem(what, "--domain", f"{wide} or {gpus}"))
    elif listed:
        return _grouped(work, gpus)
    work.assumed.append(f"NVLink joins the {gpus} GPUs of a node: the dump does not list NVLinks")
    return Entry(gpus, ASSUMED)


def _grouped(work: _Work, gpus: int) -> Entry:
    """The domain that the NVLinks of the dump make; a domain is at least a node."""
    groups = work.node.nvlink_groups
    if len(groups) > 1:
        sizes = " + ".join(str(len(group)) for group in groups)
        work.notes.append(
            f"NVLink joins groups of {sizes} GPUs, PCIe the groups: a node is priced at PCIe, its slowest link"
        )
    elif work.node.switches:
        work.assumed.append(f"NVLink ends at the node: {gpus} GPUs in a domain")
    else:
        work.notes.append("NVLinks join GPUs directly, without a switch; all of a GPU's links count")
    return Entry(gpus, DERIVED)


def _pcie(work: _Work, reference: Cluster) -> LinkEntry:
    devices: tuple[Gpu | Nic, ...] = (*work.node.gpus, *_training(work.node))
    rates = [device.pcie for device in devices if device.pcie is not None]
    latency = Entry(reference.pcie.latency, ASSUMED)
    if rates:
        return LinkEntry("PCIe", Entry(min(rates), DUMP), latency)
    work.assumed.append(f"{_of(reference.pcie)}, as {reference.name}")
    return LinkEntry(reference.pcie.name, Entry(reference.pcie.bandwidth, ASSUMED), latency)


def _nvlink(work: _Work, product: GpuProduct, reference: Cluster, pcie: LinkEntry) -> LinkEntry:
    """The port set of one GPU."""
    node = work.node
    if not product.links:
        return LinkEntry(f"{pcie.product} between GPUs, no NVLink", pcie.bandwidth, pcie.latency)
    latency = Entry(reference.nvlink.latency, ASSUMED)
    if not _lists_nvlinks(node):
        work.assumed.append(f"{product.links} NVLinks a GPU, as its datasheet: the dump does not list them")
        bandwidth = product.links * product.link_bandwidth
        return LinkEntry(f"NVLink, {product.links} links", Entry(bandwidth, LINKS), latency)
    counts = {node.links_of(gpu) for gpu in range(len(node.gpus))}
    links = min(counts)
    if not max(counts):
        return LinkEntry(f"{pcie.product} between GPUs, no NVLink", pcie.bandwidth, pcie.latency)
    if len(node.nvlink_groups) > 1:
        return LinkEntry(f"{pcie.product} between groups of GPUs with NVLink", pcie.bandwidth, pcie.latency)
    if len(counts) > 1:
        work.notes.append(f"GPUs have {links} to {max(counts)} NVLinks; the fewest were taken for all")
    way = "through NVSwitch" if node.switches else "direct"
    bandwidth = links * product.link_bandwidth
    return LinkEntry(f"NVLink {way}, {links} links", Entry(bandwidth, LINKS), latency)


def _gigabits(bandwidth: float) -> str:
    return f"{bandwidth * 8 / 1e9:.4g} Gb/s"


def _of(link: Link) -> str:
    return f"{link.name} of {format_bandwidth(link.bandwidth)}"


def _nic_product(node: Node, speed: float) -> str:
    kinds = {nic.kind for nic in _training(node) if nic.kind}
    kind = f"{next(iter(kinds))} " if len(kinds) == 1 else ""
    return f"{kind}adapter of {speed * 8 / 1e9:g} Gb/s"
