"""One collective by itself: its time, how it is done, and what the library thought of the other ways."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from shardsim.cost.algorithms import bus_factor
from shardsim.cost.collectives import (
    Candidate,
    candidate_transfers,
    collective_transfer,
    enabled_ways,
    message_transfer,
)
from shardsim.errors import InputError, Problem
from shardsim.program.provenance import fabric_here
from shardsim.schema.dtypes import data_type
from shardsim.topology.blocks import block_shape, ranks_shape
from shardsim.values.hardware import Cluster, FabricConstants, GroupShape
from shardsim.values.operators import CollectiveKind
from shardsim.values.transfer import Transfer

AskedKind = CollectiveKind | Literal["send_recv"]
"""What can be asked for: a collective, or every rank sending the buffer to the next one."""

MOST_RANKS = 10**9
"""Far beyond any machine: more is a slip (-)."""


@dataclass(frozen=True, slots=True)
class CollectiveAnswer:
    """A collective on a cluster, alone on its links.

    Parameters
    ----------
    kind : str
    size : float
        The whole buffer, as nccl-tests counts it [bytes].
    dtype : str
    cluster : Cluster
    fabric : FabricConstants
    shape : GroupShape
    transfer : Transfer
    candidates : tuple of Candidate
        Every way that is enabled and can serve the group, cheapest first as the library believes.
    correction : float
        Time over what the equations of the way alone say (-).
    """

    kind: AskedKind
    size: float
    dtype: str
    cluster: Cluster
    fabric: FabricConstants
    shape: GroupShape
    transfer: Transfer
    candidates: tuple[Candidate, ...]
    correction: float

    @property
    def seconds(self) -> float:
        """Uncontended time [s]."""
        return float(self.transfer.seconds)

    @property
    def algorithm_bandwidth(self) -> float:
        """Buffer over time [bytes/s]; 0 for a group of one."""
        return self.size / self.seconds if self.seconds else 0.0

    @property
    def bus_bandwidth(self) -> float:
        """What a ring would need of its links [bytes/s]."""
        return float(self.algorithm_bandwidth * bus_factor(self.kind, self.shape.ranks))

    @property
    def bound(self) -> str:
        """What takes longest: ``latency`` or a class of links."""
        parts = {link: float(size / self.transfer.rate[link]) for link, size in self.transfer.wire.items()}
        link = max(parts, key=lambda name: parts[name])
        return link if parts[link] > float(self.transfer.latency) else "latency"


def ask_collective(
    kind: AskedKind,
    size: float,
    cluster: Cluster,
    fabric: FabricConstants,
    ranks: int,
    *,
    per_node: int | None = None,
    dtype: str = "bf16",
    algorithm: str | None = None,
) -> CollectiveAnswer:
    """Price one collective of consecutive ranks.

    Parameters
    ----------
    kind : str
    size : float
        The whole buffer [bytes].
    cluster : Cluster
    fabric : FabricConstants
    ranks : int
        (-).
    per_node : int or None
        Ranks on each node; by default nodes are filled one after the other.
    dtype : str
        By any of its spellings.
    algorithm : str or None
        Force one algorithm.

    Returns
    -------
    CollectiveAnswer

    Raises
    ------
    InputError
        The group does not fit the cluster, an unknown data type, or an algorithm that is not enabled or cannot serve
        the group.
    """
    problems = list(_problems(cluster, ranks, per_node))
    try:
        dtype = data_type(dtype)
        if kind != "send_recv":
            enabled_ways(kind, fabric, dtype, algorithm)
        elif algorithm is not None:
            problems.append(Problem("a message has no algorithm to choose", "--algorithm", "leave it out"))
    except InputError as error:
        problems += [Problem(p.what, p.where or "--dtype", p.right) for p in error.problems]
    if problems:
        raise InputError(problems)
    fabric = fabric_here(cluster, fabric)
    shape = ranks_shape(cluster, ranks) if per_node is None else block_shape(cluster, per_node, ranks // per_node)
    if kind == "send_recv":
        return _message(size, dtype, cluster, fabric, shape)
    candidates = candidate_transfers(kind, size, shape, cluster, fabric, dtype=dtype, algorithm=algorithm)
    usable = sorted((c for c in candidates if c.believed != float("inf")), key=lambda c: float(c.believed))
    if not usable:
        what = f"{algorithm} cannot serve a group of {ranks} ranks in {shape.domains} NVLink domains"
        raise InputError(Problem(what, "--algorithm", "leave the choice to the library"))
    transfer = collective_transfer(kind, size, shape, cluster, fabric, dtype=dtype, algorithm=algorithm)
    plain = float(usable[0].transfer.seconds)
    return CollectiveAnswer(
        kind=kind,
        size=size,
        dtype=dtype,
        cluster=cluster,
        fabric=fabric,
        shape=shape,
        transfer=transfer,
        candidates=tuple(usable),
        correction=float(transfer.seconds) / plain if plain else 1.0,
    )


def _message(size: float, dtype: str, cluster: Cluster, fabric: FabricConstants, shape: GroupShape) -> CollectiveAnswer:
    """Every rank sends the buffer to the next, as the sendrecv test of nccl-tests: the slowest pair decides."""
    share = cluster.nic_bandwidth_per_gpu
    far = 1.0 if shape.domains > 1 else 0.0
    sent = size if shape.ranks > 1 else 0.0
    transfer = message_transfer(sent, leaves_domain=far, nic_share=share, cluster=cluster, fabric=fabric)
    bare = replace(fabric, corrections={})
    plain = message_transfer(sent, leaves_domain=far, nic_share=share, cluster=cluster, fabric=bare)
    only = (Candidate(plain, plain.seconds),)
    factor = float(transfer.seconds) / float(plain.seconds) if sent else 1.0
    return CollectiveAnswer("send_recv", size, dtype, cluster, fabric, shape, transfer, only, factor)


def _problems(cluster: Cluster, ranks: int, per_node: int | None) -> list[Problem]:
    found = []
    if ranks > MOST_RANKS:
        found.append(
            Problem(f"{float(ranks):.3g} ranks are more than can be meant", "--ranks", f"at most {MOST_RANKS:,}")
        )
    elif cluster.max_gpus is not None and ranks > cluster.max_gpus:
        found.append(Problem(f"{cluster.name} has {cluster.max_gpus} GPUs", "--ranks", f"at most {cluster.max_gpus}"))
    if per_node is not None:
        if per_node > cluster.gpus_per_node:
            right = f"at most {cluster.gpus_per_node}"
            found.append(Problem(f"a node of {cluster.name} has {cluster.gpus_per_node} GPUs", "--per-node", right))
        elif ranks % per_node:
            what = f"{ranks} ranks are no whole number of nodes with {per_node} each"
            found.append(Problem(what, "--ranks", f"a multiple of {per_node}"))
    return found
