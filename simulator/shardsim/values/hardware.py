"""Machines: a device, a link, a cluster, and the shape in which a group of ranks lies on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from shardsim.values.host import NO_HOST_TIME, HostConstants
from shardsim.values.kernels import KernelConstants
from shardsim.values.num import Num
from shardsim.values.provenance import Provenance
from shardsim.values.stack import AS_MEASURED, StackConstants


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU.

    Parameters
    ----------
    name : str
        Catalog name, such as ``a100-sxm-80gb``.
    memory_bytes : float
        Device memory [bytes].
    memory_bandwidth : float
        Datasheet memory bandwidth [bytes/s].
    peak_flops : mapping of str to float
        Dense datasheet peak by data type [FLOP/s]: ``fp32``, ``tf32``, ``fp16``, ``bf16``, ``fp8``, ``fp4``.
    multiprocessors : int
        Streaming multiprocessors (-).
    power : float
        Board power limit [W].
    compute_profile : str
        Name of the calibration profile that holds this device's achieved efficiencies.
    source : str
        Datasheet.
    """

    name: str
    memory_bytes: float
    memory_bandwidth: float
    peak_flops: Mapping[str, float]
    multiprocessors: int
    power: float
    compute_profile: str
    source: str


@dataclass(frozen=True, slots=True)
class Link:
    """One class of link. Bandwidth is per direction, always.

    Parameters
    ----------
    name : str
        ``nvlink``, ``pcie``, ``nic`` ... and the product, such as ``InfiniBand HDR``.
    bandwidth : float
        Datasheet bandwidth per direction [bytes/s]: of one GPU's whole port set for NVLink, of one adapter for a NIC.
    latency : float
        Latency of one hop [s].
    source : str
        Datasheet.
    """

    name: str
    bandwidth: float
    latency: float
    source: str


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster of equal nodes under a leaf-spine fabric.

    Parameters
    ----------
    name : str
        Catalog name.
    device : Device
    gpus_per_node : int
        GPUs under one host (-).
    gpus_per_domain : int
        GPUs that reach each other over NVLink (-): the node, or the rack of an NVL72.
    nvlink : Link
        Port set of one GPU into the NVLink switches.
    pcie : Link
        GPU to NIC.
    nic : Link
        One adapter.
    nics_per_node : int
        Adapters that carry training traffic (-).
    nodes_per_leaf : int
        Nodes under one leaf switch, or under one set of rail switches (-).
    oversubscription : float
        Leaf down-link over up-link bandwidth (-), 1 for full bisection.
    rail_optimized : bool
        Whether the i-th adapter of every node hangs on the i-th leaf switch.
    fabric_profile : str
        Name of the calibration profile that holds this fabric's achieved collective bandwidths and latencies.
    max_gpus : int or None
        Size of the real machine (-), or None when any size may be asked for.
    source : str
        Datasheet or paper.
    default_framework : str
        Framework profile that runs on this cluster take unless another is named.
    fabric_assumed : bool
        Whether the fabric profile is another cluster's, taken over: what was fitted there is assumed here.
    torus : tuple of int
        Nodes along each dimension of a torus (-); empty for leaves and spines. Every node is then a leaf of its own.
    """

    name: str
    device: Device
    gpus_per_node: int
    gpus_per_domain: int
    nvlink: Link
    pcie: Link
    nic: Link
    nics_per_node: int
    nodes_per_leaf: int
    oversubscription: float
    rail_optimized: bool
    fabric_profile: str
    max_gpus: int | None
    source: str
    default_framework: str = "megatron-core"
    fabric_assumed: bool = False
    torus: tuple[int, ...] = ()

    @property
    def nic_bandwidth_per_gpu(self) -> float:
        """Adapter bandwidth that falls to one GPU when all of a node use theirs, per direction [bytes/s]."""
        return self.nic.bandwidth * self.nics_per_node / self.gpus_per_node


@dataclass(frozen=True, slots=True)
class GroupShape:
    """How the ranks of one communication group lie on the cluster. Scalars, or arrays over layouts.

    All groups of an axis are taken to communicate at the same time, as they do in training, so a group has its
    share of a node's adapters and no more.

    Parameters
    ----------
    ranks : Num
        Members of the group (-).
    ranks_per_domain : Num
        Most members inside one NVLink domain (-).
    ranks_per_node : Num
        Most members inside one node (-).
    domains, nodes, leaves : Num
        NVLink domains, nodes and leaf switches that the group touches (-).
    nic_share : Num
        Adapter bandwidth that this group has out of one NVLink domain, the emptiest, per direction [bytes/s].
    fewest_per_domain : Num or None
        Fewest members inside one NVLink domain (-); None where all hold as many. ``nic_share`` is theirs.
    torus_ring, torus_pairs : Num
        On a torus, how many times as long its cables need as the adapters, for what goes from neighbour to neighbour
        and for what each member has for every other (-).
    """

    ranks: Num
    ranks_per_domain: Num
    ranks_per_node: Num
    domains: Num
    nodes: Num
    leaves: Num
    nic_share: Num
    fewest_per_domain: Num | None = None
    torus_ring: Num = 0.0
    torus_pairs: Num = 0.0


@dataclass(frozen=True, slots=True)
class LinkConstants:
    """Achieved behaviour of collectives on one class of link.

    Parameters
    ----------
    efficiency : mapping of str to float
        Share of the link's datasheet bandwidth per direction that large messages reach (-), by collective, with
        ``default`` for the others.
    base_latency : float
        Fixed time of one collective [s].
    step_latency : float
        Further time for each step of the ring [s].
    half_bandwidth_bytes : float
        Bytes a rank and step at which half the asymptotic bandwidth is reached [bytes]; 0 for none.
    provenance : Provenance
        Of the default efficiency, which decides large messages.
    constants : mapping of str to Provenance
        By constant, such as ``efficiency.all_reduce`` or ``base_latency``.
    measured_on : str
        Product that was measured; for any other the constants are assumed. Empty where nothing was.
    """

    efficiency: Mapping[str, float]
    base_latency: float
    step_latency: float
    half_bandwidth_bytes: float
    provenance: Provenance
    constants: Mapping[str, Provenance] = field(default_factory=dict)
    measured_on: str = ""

    def provenance_of(self, collective: str) -> Provenance:
        """Where the efficiency that this collective uses comes from."""
        return self.constants.get(f"efficiency.{collective}", self.provenance)


@dataclass(frozen=True, slots=True)
class WayConstants:
    """One way to do a collective: an algorithm with a protocol, as a fabric achieves it.

    Near is inside an NVLink domain, far is between domains.

    Parameters
    ----------
    algorithm : str
        ``ring``, ``tree``, ``nvls``, ``nvls_tree``, ``sharp``, ``pat``, ``direct`` or ``hierarchical``.
    protocol : str
        ``LL``, ``LL128``, ``Simple``; empty where none is told apart.
    base_latency : float
        Fixed time [s].
    near_step, far_step : float
        Further time for each step on a link of the kind [s].
    far_base : float
        Further fixed time of a group that leaves its domain [s].
    near_share, far_share : float
        Share of the link's datasheet bandwidth per direction that large messages reach (-).
    near_half, far_half : float
        Bytes a rank and step at which half of that is reached [bytes]; 0 for none.
    near, far : Provenance
    """

    algorithm: str
    protocol: str
    base_latency: float
    near_step: float
    far_step: float
    far_base: float
    near_share: float
    far_share: float
    near_half: float
    far_half: float
    near: Provenance
    far: Provenance

    @property
    def name(self) -> str:
        """Algorithm and protocol in words, such as ``ring LL128``."""
        return f"{self.algorithm} {self.protocol}".rstrip().replace("_", "-")


@dataclass(frozen=True, slots=True)
class Correction:
    """A smoothed residual grid: what measurements say beyond the algorithms' equations.

    Parameters
    ----------
    log2_bytes : tuple of float
        Binary logarithm of the sizes of the knots, rising (-).
    log2_members : tuple of float
        The same of the numbers of members, rising (-): ranks of a group inside one domain, domains of one across.
    log_ratio : tuple of tuple of float
        Natural logarithm of measured over modelled time (-), shape (members, sizes).
    provenance : Provenance
    """

    log2_bytes: tuple[float, ...]
    log2_members: tuple[float, ...]
    log_ratio: tuple[tuple[float, ...], ...]
    provenance: Provenance


@dataclass(frozen=True, slots=True)
class ExchangeConstants:
    """What a two-level exchange of tokens with experts reaches (see :func:`shardsim.cost.exchange.exchange_transfer`).

    Parameters
    ----------
    near_share : float
        Share of NVLink's datasheet bandwidth per direction (-).
    far_share : float
        Share of the adapters' (-).
    latency : float
        Fixed time, of finding out who gets how many tokens among it [s].
    beside_compute : float
        How many times as long it takes where another micro-batch computes meanwhile (-).
    multiprocessors : float
        That its kernel has to itself (-).
    provenance : mapping of str to Provenance
        By constant.
    measured_on : mapping of str to str
        Products that were measured, by link class; for any other the constants are assumed.
    """

    near_share: float
    far_share: float
    latency: float
    beside_compute: float
    multiprocessors: float
    provenance: Mapping[str, Provenance]
    measured_on: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FabricConstants:
    """Achieved behaviour of a fabric (a calibration profile).

    Parameters
    ----------
    name : str
        Profile name.
    links : mapping of str to LinkConstants
        By link class: ``nvlink``, ``nic``. They price what ``ways`` lacks.
    overlap_multiprocessors : float
        Multiprocessors that a collective running behind compute occupies (-); 0 where it slows nothing.
    overlap_provenance : Provenance or None
        Where that number comes from.
    ways : mapping of str to tuple of WayConstants
        Enabled ways by collective, with what they achieve.
    tuning : mapping of str to tuple of WayConstants
        What the communication library believes of the same ways: it takes the cheapest by these. Where it is silent,
        what they achieve decides.
    corrections : mapping of tuple of str to Correction
        By collective, class of data type (``wide``, ``narrow``), and where the group lies (``near``, ``far``).
    exchange : mapping of str to ExchangeConstants
        By dispatcher of tokens: ``deepep``, ``hybridep``.
    """

    name: str
    links: Mapping[str, LinkConstants]
    overlap_multiprocessors: float = 0.0
    overlap_provenance: Provenance | None = None
    ways: Mapping[str, tuple[WayConstants, ...]] = field(default_factory=dict)
    tuning: Mapping[str, tuple[WayConstants, ...]] = field(default_factory=dict)
    corrections: Mapping[tuple[str, str, str], Correction] = field(default_factory=dict)
    exchange: Mapping[str, ExchangeConstants] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Profile:
    """Every second that a prediction uses comes from here.

    Parameters
    ----------
    kernels : KernelConstants
    fabric : FabricConstants
    host : HostConstants
    stack : StackConstants
    """

    kernels: KernelConstants
    fabric: FabricConstants
    host: HostConstants = NO_HOST_TIME
    stack: StackConstants = AS_MEASURED
