"""``Transfer`` of a collective or a message on the links of its group.

Sizes are counted as nccl-tests counts them: the whole buffer. Ring traffic is 2 (n-1)/n of it for an all-reduce and
(n-1)/n for the others (nccl-tests doc/PERFORMANCE.md), the same on every link of the ring. Across domains a double
binary tree sends the buffer up and down. The cheaper one of those that exist is taken, as NCCL does.
"""

from __future__ import annotations

import numpy as np

from shardsim.values.hardware import Cluster, FabricConstants, GroupShape, LinkConstants
from shardsim.values.num import Num, Truth, any_of, larger, log2, where
from shardsim.values.operators import CollectiveKind
from shardsim.values.provenance import Basis, Provenance
from shardsim.values.transfer import Transfer

RING_PASSES: dict[CollectiveKind, int] = {
    "all_reduce": 2,
    "all_gather": 1,
    "reduce_scatter": 1,
    "all_to_all": 1,
    "broadcast": 1,
}
"""How often a ring carries the buffer round (-)."""

TREE_BANDWIDTH_SHARE = 0.92
"""Share of the ring's bandwidth that NCCL's tuning model grants a tree (-) (NVIDIA/nccl src/graph/tuning.cc)."""

_TRUST: tuple[Basis, ...] = ("measured", "interpolated", "fitted", "datasheet", "assumed")


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
        ``efficiency * datasheet / (1 + sqrt(half / chunk))`` [bytes/s]. The square root describes measured NCCL
        curves, which rise over three decades of size, better than the hyperbola of a fixed latency does.

    Examples
    --------
    >>> nvlink = LinkConstants({"default": 0.8}, 0.0, 0.0, 1e6, Provenance("assumed", "example"))
    >>> achieved_bandwidth(300e9, "all_reduce", 1e6, nvlink)
    120000000000.0
    """
    efficiency = constants.efficiency.get(kind, constants.efficiency["default"])
    slowdown = 1.0 + (constants.half_bandwidth_bytes / larger(chunk_bytes, 1.0)) ** 0.5
    return efficiency * datasheet / slowdown


def collective_transfer(
    kind: CollectiveKind, size: Num, shape: GroupShape, cluster: Cluster, fabric: FabricConstants
) -> Transfer:
    """Transfer of a collective: the cheaper of ring and (for all-reduce) tree.

    Parameters
    ----------
    kind : {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"}
    size : Num
        The whole buffer [bytes].
    shape : GroupShape
        How the group lies on the cluster. A group of one costs nothing.
    cluster : Cluster
    fabric : FabricConstants

    Returns
    -------
    Transfer
    """
    ring = _ring(kind, size, shape, cluster, fabric)
    if kind != "all_reduce" or not any_of(shape.domains > 1):
        return ring
    return _cheaper(ring, _tree(size, shape, cluster, fabric))


def message_transfer(
    size: Num, *, leaves_domain: Num, nic_share: Num, cluster: Cluster, fabric: FabricConstants
) -> Transfer:
    """Transfer of one point-to-point message, such as activations to the next pipeline stage.

    Parameters
    ----------
    size : Num
        What the rank sends [bytes].
    leaves_domain : Num
        1 where the receiver is outside the sender's NVLink domain, else 0 (-).
    nic_share : Num
        Adapter bandwidth that the sender has, per direction [bytes/s].
    cluster : Cluster
    fabric : FabricConstants

    Returns
    -------
    Transfer
        Nothing when the size is zero.
    """
    nvlink, nic = fabric.links["nvlink"], fabric.links["nic"]
    outside = leaves_domain > 0
    sent = size > 0
    latency = where(outside, nic.base_latency + nic.step_latency, nvlink.base_latency + nvlink.step_latency)
    return Transfer(
        latency=where(sent, latency, 0.0),
        wire={"nvlink": where(outside, 0.0, size), "nic": where(outside, size, 0.0)},
        rate={
            "nvlink": achieved_bandwidth(cluster.nvlink.bandwidth, "send_recv", size, nvlink),
            "nic": achieved_bandwidth(nic_share, "send_recv", size, nic),
        },
        algorithm="send_recv",
        provenance=_least_trusted("send_recv", nvlink, nic, outside),
    )


def _ring(kind: CollectiveKind, size: Num, shape: GroupShape, cluster: Cluster, fabric: FabricConstants) -> Transfer:
    nvlink, nic = fabric.links["nvlink"], fabric.links["nic"]
    passes = RING_PASSES[kind]
    ranks = shape.ranks
    chunk = size / ranks
    wire = passes * (ranks - 1) * chunk
    alone = ranks <= 1
    across = shape.domains > 1
    steps = passes * (ranks - 1)
    far_steps = where(across, passes * (shape.domains - 1), 0.0)
    base = where(across, larger(nvlink.base_latency, nic.base_latency), nvlink.base_latency)
    latency = base + (steps - far_steps) * nvlink.step_latency + far_steps * nic.step_latency
    return Transfer(
        latency=where(alone, 0.0, latency),
        wire={"nvlink": where(shape.ranks_per_domain > 1, wire, 0.0), "nic": where(across, wire, 0.0)},
        rate={
            "nvlink": achieved_bandwidth(cluster.nvlink.bandwidth, kind, chunk, nvlink),
            "nic": achieved_bandwidth(shape.nic_share, kind, chunk, nic),
        },
        algorithm="ring",
        provenance=_least_trusted(kind, nvlink, nic, across),
    )


def _tree(size: Num, shape: GroupShape, cluster: Cluster, fabric: FabricConstants) -> Transfer:
    nvlink, nic = fabric.links["nvlink"], fabric.links["nic"]
    across = shape.domains > 1
    # Of two, each sends its half of the trees up and the other half down; inner nodes of larger ones send all twice.
    far_wire = where(shape.domains > 2, 2.0 * size, size)
    base = where(across, larger(nvlink.base_latency, nic.base_latency), nvlink.base_latency)
    near = 2.0 * (shape.ranks_per_domain - 1) * nvlink.step_latency
    far = 2.0 * log2(larger(shape.domains, 1.0)) * nic.step_latency
    return Transfer(
        # Inside one domain the ring is what profiles are fitted to, at every size.
        latency=where(across, base + near + far, np.inf),
        wire={"nvlink": where(shape.ranks_per_domain > 1, 2.0 * size, 0.0), "nic": where(across, far_wire, 0.0)},
        rate={
            "nvlink": TREE_BANDWIDTH_SHARE * achieved_bandwidth(cluster.nvlink.bandwidth, "all_reduce", size, nvlink),
            "nic": TREE_BANDWIDTH_SHARE * achieved_bandwidth(shape.nic_share, "all_reduce", size, nic),
        },
        algorithm="tree",
        provenance=_least_trusted("all_reduce", nvlink, nic, across),
    )


def _cheaper(first: Transfer, second: Transfer) -> Transfer:
    """Element by element the transfer that takes less time."""
    better = first.seconds <= second.seconds
    if not isinstance(better, np.ndarray):
        return first if better else second
    return Transfer(
        latency=where(better, first.latency, second.latency),
        wire={link: where(better, first.wire[link], second.wire[link]) for link in first.wire},
        rate={link: where(better, first.rate[link], second.rate[link]) for link in first.rate},
        algorithm=f"{first.algorithm} or {second.algorithm}",
        provenance=first.provenance,
    )


def _least_trusted(kind: str, nvlink: LinkConstants, nic: LinkConstants, across: Truth) -> Provenance:
    """The weaker of the provenances of the links that are crossed by anyone."""
    crossed = [link.provenance_of(kind) for link in ((nvlink, nic) if any_of(across) else (nvlink,))]
    return max(crossed, key=lambda provenance: _TRUST.index(provenance.basis))
