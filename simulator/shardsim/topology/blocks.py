"""How groups of consecutive ranks on the same number of GPUs in each node lie, without a layout around them."""

from __future__ import annotations

import numpy as np

from shardsim.topology.torus import group_loads
from shardsim.values.hardware import Cluster, GroupShape
from shardsim.values.num import Num


def block_shape(cluster: Cluster, gpus_per_node: Num, nodes: Num, nic_per_gpu: Num | None = None) -> GroupShape:
    """Shape of a group that is alone on its nodes, block by block, as nccl-tests runs it.

    Parameters
    ----------
    cluster : Cluster
    gpus_per_node : Num
        Ranks on each node (-).
    nodes : Num
        (-).
    nic_per_gpu : Num or None
        Adapter bandwidth that falls to one rank, per direction [bytes/s]; by default the cluster's.

    Returns
    -------
    GroupShape
        Ranks spread evenly over the NVLink domains that they need.

    Examples
    --------
    >>> from shardsim.schema.hardware import load_cluster
    >>> shape = block_shape(load_cluster("gb200-nvl72"), 4, 36)
    >>> shape.ranks, shape.domains, shape.ranks_per_domain
    (144, 2, 72)
    """
    ranks = nodes * gpus_per_node
    domains = _ceiling(nodes, max(cluster.gpus_per_domain // cluster.gpus_per_node, 1))
    together = ranks / domains
    share = cluster.nic_bandwidth_per_gpu if nic_per_gpu is None else nic_per_gpu
    return GroupShape(
        ranks=ranks,
        ranks_per_domain=together if isinstance(together, np.ndarray) else _whole(together),
        ranks_per_node=gpus_per_node,
        domains=domains,
        nodes=nodes,
        leaves=_ceiling(nodes, cluster.nodes_per_leaf),
        nic_share=share * together,
        **_torus(cluster, nodes),
    )


def ranks_shape(cluster: Cluster, ranks: int) -> GroupShape:
    """Shape of a group of so many consecutive ranks that fills nodes one after the other.

    Parameters
    ----------
    cluster : Cluster
    ranks : int
        (-).

    Returns
    -------
    GroupShape
        The last node's ranks may be fewer: the adapters of the emptiest domain count.
    """
    node, domain = cluster.gpus_per_node, cluster.gpus_per_domain
    domains = -(-ranks // domain)
    least = ranks - domain * (domains - 1)
    nodes = -(-ranks // node)
    return GroupShape(
        ranks=ranks,
        ranks_per_domain=min(ranks, domain),
        ranks_per_node=min(ranks, node),
        domains=domains,
        nodes=nodes,
        leaves=-(-nodes // cluster.nodes_per_leaf),
        nic_share=least * cluster.nic_bandwidth_per_gpu,
        fewest_per_domain=least,
        **_torus(cluster, nodes),
    )


def _torus(cluster: Cluster, nodes: Num) -> dict[str, Num]:
    """What a group on so many consecutive nodes does to the cables of a torus; nothing where there is none."""
    if not cluster.torus:
        return {}
    counts = np.atleast_1d(np.asarray(nodes, dtype=np.int64))
    loads = [group_loads(range(int(count)), cluster.torus) for count in counts]
    found = np.array([(load.ring, load.pairs) for load in loads], dtype=np.float64).T
    ring, pairs = found if isinstance(nodes, np.ndarray) else (float(found[0, 0]), float(found[1, 0]))
    return {"torus_ring": ring, "torus_pairs": pairs}


def _ceiling(count: Num, size: int) -> Num:
    return -(-count // size)


def _whole(x: float) -> float:
    return int(x) if float(x).is_integer() else x
