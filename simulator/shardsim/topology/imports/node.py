"""A node as a dump describes it: GPUs, NVLinks, adapters, and how far they are from each other over PCIe.

What a dump does not say stays unknown (None, or no entry); nothing is filled in here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Literal

Distance = Literal["PIX", "PXB", "PHB", "NODE", "SYS"]
DISTANCES: tuple[Distance, ...] = ("PIX", "PXB", "PHB", "NODE", "SYS")
"""Distance classes, nearest first: at most one PCIe bridge, several, a host bridge, several host bridges of one NUMA
node, the link between NUMA nodes."""
SWITCHED: tuple[Distance, ...] = ("PIX", "PXB")
"""Distances that pass no host bridge: the two devices hang under one PCIe switch."""
MOST_LINKS = 18
"""Most NVLinks of any one GPU (NVIDIA H100 and Blackwell architecture papers): a mesh that would need more is
switched."""
MATRIX = "nvidia-smi topo -m"
XML = "NCCL topology XML"

Pair = tuple[int, int]
Numbers = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU of a node.

    Parameters
    ----------
    name : str
        As the dump calls it, such as ``GPU0``.
    cpus : tuple of (int, int) or None
        Ranges of the CPUs near it, both ends included; None where the dump does not say.
    numa : tuple of int or None
        NUMA nodes near it.
    bus : str
        PCI bus id.
    pci_id : str
        Vendor and device, such as ``10de:2330``.
    compute : int or None
        Compute capability times ten (-), such as 90.
    switch_links : int
        NVLinks into NVSwitches (-).
    cpu_links : int
        NVLinks or C2C links to the CPU (-).
    pcie : float or None
        Bandwidth per direction of its way up to the outermost PCIe bridge [bytes/s].
    memory_numa : int or None
        NUMA node of its own memory, where the CPU addresses that.
    """

    name: str
    cpus: tuple[Pair, ...] | None = None
    numa: Numbers | None = None
    bus: str = ""
    pci_id: str = ""
    compute: int | None = None
    switch_links: int = 0
    cpu_links: int = 0
    pcie: float | None = None
    memory_numa: int | None = None


@dataclass(frozen=True, slots=True)
class Nic:
    """One adapter port of a node.

    Parameters
    ----------
    name : str
        As the dump calls it, such as ``NIC0`` or ``mlx5_0``.
    device : str
        Name of its RDMA or network device, where the dump names both.
    bus : str
        PCI bus id.
    kind : str
        ``InfiniBand``, ``Ethernet``, or empty where the dump does not say.
    speed : float or None
        Bandwidth per direction [bytes/s].
    card : str
        Same for the ports of one adapter card; empty where unknown.
    pcie : float or None
        As :class:`Gpu`.
    """

    name: str
    device: str = ""
    bus: str = ""
    kind: str = ""
    speed: float | None = None
    card: str = ""
    pcie: float | None = None


@dataclass(frozen=True, slots=True)
class Node:
    """One node.

    Devices are numbered: GPUs first, then adapters, each in the order of the dump.

    Parameters
    ----------
    kind : str
        What it was read from: :data:`MATRIX` or :data:`XML`.
    gpus : tuple of Gpu
    nics : tuple of Nic
    distances : mapping of (int, int) to Distance
        PCIe distance of two devices, the lower number first; pairs that the dump does not tell have none.
    nvlinks : mapping of (int, int) to int
        NVLinks that join two GPUs directly (-), the lower number first.
    switches : tuple of tuple of int
        GPUs joined by NVSwitches, one group for each NVLink domain.
    nvlink_known : bool
        Whether the dump tells about NVLink at all: a hand-written XML file does not.
    domain_gpus : int or None
        GPUs of the whole NVLink domain, where the dump shows more hosts than one (-).
    notes : tuple of str
        What was repaired, left out or could not be told.
    """

    kind: str
    gpus: tuple[Gpu, ...]
    nics: tuple[Nic, ...]
    distances: Mapping[Pair, Distance]
    nvlinks: Mapping[Pair, int]
    switches: tuple[Numbers, ...] = ()
    nvlink_known: bool = True
    domain_gpus: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all devices, by number."""
        return (*(gpu.name for gpu in self.gpus), *(nic.name for nic in self.nics))

    def distance(self, a: int, b: int) -> Distance | None:
        """PCIe distance of two devices, by number; None where the dump does not tell."""
        return self.distances.get((min(a, b), max(a, b)))

    def links(self, a: int, b: int) -> int:
        """NVLinks over which two GPUs reach each other (-): direct ones, or those of either into a common switch."""
        direct = self.nvlinks.get((min(a, b), max(a, b)), 0)
        if direct or not any(a in group and b in group for group in self.switches):
            return direct
        return min(self.gpus[a].switch_links, self.gpus[b].switch_links)

    def links_of(self, gpu: int) -> int:
        """All NVLinks from a GPU to other GPUs and switches (-)."""
        return self.gpus[gpu].switch_links + sum(count for pair, count in self.nvlinks.items() if gpu in pair)

    @property
    def nvlink_groups(self) -> tuple[Numbers, ...]:
        """GPUs that NVLink joins, directly, over other GPUs or over switches; GPUs without NVLink by themselves."""
        joined = [*self.nvlinks, *(pair for group in self.switches for pair in pairwise(group))]
        return components(range(len(self.gpus)), joined)

    def nearest(self, gpu: int) -> tuple[Distance | None, Numbers]:
        """Distance of the adapters nearest to a GPU, and their positions among the adapters."""
        first = len(self.gpus)
        known = {nic: self.distance(gpu, first + nic) for nic in range(len(self.nics))}
        for distance in DISTANCES:
            found = tuple(nic for nic, at in known.items() if at == distance)
            if found:
                return distance, found
        return None, ()

    @property
    def nics_beside_gpus(self) -> Numbers:
        """Positions of the adapters that hang under one PCIe switch with a GPU."""
        first = len(self.gpus)
        return tuple(
            nic
            for nic in range(len(self.nics))
            if any(self.distance(gpu, first + nic) in SWITCHED for gpu in range(len(self.gpus)))
        )


def components(members: Iterable[int], pairs: Iterable[Pair]) -> tuple[Numbers, ...]:
    """Split numbers into groups that pairs connect.

    Parameters
    ----------
    members : iterable of int
    pairs : iterable of (int, int)

    Returns
    -------
    tuple of tuple of int
        Each ascending, ordered by the first of each.

    Examples
    --------
    >>> components(range(5), [(0, 3), (3, 1)])
    ((0, 1, 3), (2,), (4,))
    """
    parent = {member: member for member in members}

    def top(member: int) -> int:
        while parent[member] != member:
            parent[member] = parent[parent[member]]
            member = parent[member]
        return member

    for a, b in pairs:
        low, high = sorted((top(a), top(b)))
        parent[high] = low
    groups: dict[int, list[int]] = {}
    for member in parent:
        groups.setdefault(top(member), []).append(member)
    return tuple(tuple(sorted(group)) for group in groups.values())


def switched_groups(
    gpus: int, links: Mapping[Pair, int], untold: Collection[Pair] = ()
) -> tuple[dict[Numbers, int], dict[Pair, int]]:
    """Tell GPUs behind NVSwitches from GPUs that are cabled to each other.

    A matrix prints the same ``NV#`` for both. Where every pair of a group has the same number of links, and a GPU would
    need more links than any has to be cabled to all the others, the group is switched.

    Parameters
    ----------
    gpus : int
        GPUs of the node (-).
    links : mapping of (int, int) to int
        Links between two GPUs as printed (-).
    untold : collection of (int, int)
        Pairs of which the dump says nothing, because it is cut off.

    Returns
    -------
    switched : dict of tuple of int to int
        Links of each GPU into the switches, by group (-).
    direct : dict of (int, int) to int
        What is left.

    Examples
    --------
    >>> eight = {(a, b): 12 for a in range(8) for b in range(a + 1, 8)}
    >>> switched_groups(8, eight)
    ({(0, 1, 2, 3, 4, 5, 6, 7): 12}, {})
    >>> switched_groups(2, {(0, 1): 12})
    ({}, {(0, 1): 12})
    """
    switched: dict[Numbers, int] = {}
    direct = dict(links)
    for group in components(range(gpus), links):
        counts = {links.get(pair) for pair in combinations(group, 2) if pair not in untold}
        count = next(iter(counts), None)
        if len(counts) == 1 and count is not None and (len(group) - 1) * count > MOST_LINKS:
            switched[group] = count
            direct = {pair: number for pair, number in direct.items() if pair[0] not in group}
    return switched, direct
