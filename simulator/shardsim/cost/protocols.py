"""One way of doing a collective, an algorithm with a protocol, as a ``Transfer`` on the links of its group."""

from __future__ import annotations

from dataclasses import replace

from shardsim.cost.algorithms import Traffic
from shardsim.values.hardware import Cluster, FabricConstants, GroupShape, LinkConstants, WayConstants
from shardsim.values.num import Num, any_of, larger, smaller, where
from shardsim.values.provenance import Basis, Provenance
from shardsim.values.transfer import Transfer

TREE_BANDWIDTH_SHARE = 0.92
"""Share of the ring's bandwidth that NCCL's tuning model grants a tree (-) (NVIDIA/nccl src/graph/tuning.cc)."""

_NVLS_CHANNELS = 8.0
"""Channels of in-switch reduction that fill a GPU's ports (-): as many as GPUs behind the switches of a node."""

_TRUST: tuple[Basis, ...] = ("measured", "interpolated", "fitted", "datasheet", "assumed")


def slowdown(chunk_bytes: Num, half_bandwidth_bytes: float) -> Num:
    """Asymptotic over achieved bandwidth, by the size of what a rank sends at a time.

    Parameters
    ----------
    chunk_bytes : Num
        What a rank sends in one step [bytes].
    half_bandwidth_bytes : float
        Chunk at which half of the bandwidth is reached [bytes].

    Returns
    -------
    Num
        ``1 + sqrt(half / chunk)`` (-). The square root describes measured NCCL curves, which rise over three decades
        of size, better than the hyperbola of a fixed latency does.

    Examples
    --------
    >>> slowdown(1e6, 1e6)
    2.0
    """
    return 1.0 + (half_bandwidth_bytes / larger(chunk_bytes, 1.0)) ** 0.5


def achieved_bandwidth(datasheet: Num, kind: str, chunk_bytes: Num, constants: LinkConstants) -> Num:
    """Bandwidth that a collective reaches on one class of link, by the size of what it sends at a time.

    Parameters
    ----------
    datasheet : Num
        Datasheet bandwidth per direction [bytes/s].
    kind : str
        Collective.
    chunk_bytes : Num
        What a rank sends in one step [bytes].
    constants : LinkConstants

    Returns
    -------
    Num
        ``efficiency * datasheet / slowdown`` [bytes/s].

    Examples
    --------
    >>> nvlink = LinkConstants({"default": 0.8}, 0.0, 0.0, 1e6, Provenance("assumed", "example"))
    >>> achieved_bandwidth(300e9, "all_reduce", 1e6, nvlink)
    120000000000.0
    """
    efficiency = constants.efficiency.get(kind, constants.efficiency["default"])
    return efficiency * datasheet / slowdown(chunk_bytes, constants.half_bandwidth_bytes)


def way_transfer(
    way: WayConstants,
    traffic: Traffic,
    shape: GroupShape,
    cluster: Cluster,
    far_load: Num = 1.0,
    *,
    believed: bool = False,
) -> Transfer:
    """Transfer of a collective that goes one way.

    Parameters
    ----------
    way : WayConstants
    traffic : Traffic
        What its algorithm does to the links.
    shape : GroupShape
    cluster : Cluster
    far_load : Num
        How many times as long the leaf switches' up-links need as the adapters (-).
    believed : bool
        Whether this is what NCCL's tuning model expects, by which it chooses, rather than what is achieved.

    Returns
    -------
    Transfer
        Nothing for a group of one.
    """
    alone = shape.ranks <= 1
    across = shape.domains > 1
    together = shape.ranks_per_domain > 1
    # A hop to another leaf passes two more switches.
    leaf_hop = where(shape.leaves > 1, 2.0 * cluster.nic.latency, 0.0)
    far = where(across, way.far_base + traffic.far_steps * (way.far_step + leaf_hop), 0.0)
    latency = way.base_latency + traffic.near_steps * way.near_step + far
    fill = _channels_filled(way, shape) if believed else _without_own_part(way, traffic)
    return Transfer(
        latency=where(alone, 0.0, latency),
        wire={
            "nvlink": where(together, traffic.near_wire, 0.0),
            "nic": where(across, traffic.far_wire, 0.0),
        },
        rate={
            "nvlink": way.near_share * fill * cluster.nvlink.bandwidth / slowdown(traffic.chunk, way.near_half),
            "nic": way.far_share * shape.nic_share / slowdown(traffic.chunk, way.far_half) / larger(far_load, 1.0),
        },
        algorithm=way.name,
        provenance=_provenance(way, traffic, shape, cluster) if any_of(across) else way.near,
        capacity=capacities(shape.nic_share, cluster, far_load),
    )


def capacities(nic_share: Num, cluster: Cluster, far_load: Num) -> dict[str, Num]:
    """What a group has of each class of link.

    Parameters
    ----------
    nic_share : Num
        Adapter bandwidth that the group has, per direction [bytes/s].
    cluster : Cluster
    far_load : Num
        How many times as long the leaf switches' up-links need as the adapters (-); 0 where none is crossed.

    Returns
    -------
    dict of str to Num
        ``nvlink``, ``nic``, ``leaf`` [bytes/s].
    """
    uplinks = where(far_load > 0, nic_share / larger(far_load, 1e-9), float("inf"))
    return {"nvlink": cluster.nvlink.bandwidth, "nic": nic_share, "leaf": uplinks}


def _provenance(way: WayConstants, traffic: Traffic, shape: GroupShape, cluster: Cluster) -> Provenance:
    """Of a group across domains: the adapters' where they decide, else the weaker of both."""
    far = traffic.far_wire / (way.far_share * shape.nic_share)
    near = traffic.near_wire / (way.near_share * cluster.nvlink.bandwidth)
    return way.far if any_of((shape.domains > 1) & (far >= near)) else least_trusted(way.near, way.far)


def _channels_filled(way: WayConstants, shape: GroupShape) -> Num:
    """Share of in-switch reduction's bandwidth that NCCL expects of a few GPUs: each heads one channel (-).

    So it rings up to 4 GPUs: 4 x 60 GB/s against 360 on H100 (NVIDIA/nccl src/graph/tuning.cc, transport/nvls.cc).
    """
    return smaller(shape.ranks / _NVLS_CHANNELS, 1.0) if way.algorithm == "nvls" else 1.0


def _without_own_part(way: WayConstants, traffic: Traffic) -> Num:
    """Share of a ring's LL bandwidth that goes into what a rank sends (-).

    LL stores words with flags, so that a rank's multiprocessors are the limit and not its link: they copy or add the
    rank's own part besides the parts that they send. Measured times of an all-gather by LL hardly depend on the number
    of ranks.
    """
    if (way.algorithm, way.protocol) != ("ring", "LL"):
        return 1.0
    sent = larger(traffic.near_wire, larger(traffic.chunk, 1.0))
    return sent / (sent + traffic.chunk)


def corrected(transfer: Transfer, factor: Num, nic_share: Num, cluster: Cluster) -> Transfer:
    """Stretch a transfer's time by a factor; no link goes beyond its datasheet for that.

    Parameters
    ----------
    transfer : Transfer
    factor : Num
        Corrected over present time (-).
    nic_share : Num
        Adapter bandwidth that a rank has, per direction [bytes/s].
    cluster : Cluster

    Returns
    -------
    Transfer
    """
    limits = {"nvlink": cluster.nvlink.bandwidth, "nic": nic_share}
    rate = {link: smaller(rate / factor, larger(rate, limits[link])) for link, rate in transfer.rate.items()}
    return replace(transfer, latency=transfer.latency * factor, rate=rate)


def ways_on_links(kind: str, fabric: FabricConstants) -> tuple[WayConstants, ...]:
    """Ways to do a collective for which a profile has nothing but the constants of its links.

    Parameters
    ----------
    kind : str
        Collective.
    fabric : FabricConstants

    Returns
    -------
    tuple of WayConstants
        Ring, and tree for an all-reduce; for an all-to-all, direct.
    """
    nvlink, nic = fabric.links["nvlink"], fabric.links["nic"]
    ring = WayConstants(
        algorithm="direct" if kind == "all_to_all" else "ring",
        protocol="",
        base_latency=nvlink.base_latency,
        near_step=nvlink.step_latency,
        far_step=nic.step_latency,
        far_base=max(nic.base_latency - nvlink.base_latency, 0.0),
        near_share=nvlink.efficiency.get(kind, nvlink.efficiency["default"]),
        far_share=nic.efficiency.get(kind, nic.efficiency["default"]),
        near_half=nvlink.half_bandwidth_bytes,
        far_half=nic.half_bandwidth_bytes,
        near=nvlink.provenance_of(kind),
        far=nic.provenance_of(kind),
    )
    if kind == "all_to_all":
        # All messages of a rank are on their way at once.
        return (replace(ring, near_step=0.0, far_step=0.0, far_base=ring.far_base + ring.far_step),)
    if kind != "all_reduce":
        return (ring,)
    shares = {name: TREE_BANDWIDTH_SHARE * getattr(ring, name) for name in ("near_share", "far_share")}
    return ring, replace(ring, algorithm="tree", **shares)


def least_trusted(*provenances: Provenance) -> Provenance:
    """The weakest of some provenances: by basis, then by error.

    >>> least_trusted(Provenance("fitted", "x"), Provenance("assumed", "y")).basis
    'assumed'
    >>> least_trusted(Provenance("fitted", "x", 0.01), Provenance("fitted", "y", 0.04)).source
    'y'
    """
    return max(provenances, key=lambda each: (_TRUST.index(each.basis), each.error or 0.0))


def extrapolated(provenance: Provenance) -> Provenance:
    """Provenance of a group beyond what was measured.

    >>> extrapolated(Provenance("fitted", "a log", 0.01, 40)).basis
    'assumed'
    """
    if provenance.basis == "assumed":
        return provenance
    return Provenance("assumed", f"extrapolated beyond the measured sizes or groups of: {provenance.source}")
