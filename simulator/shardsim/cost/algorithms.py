"""What each algorithm of a collective puts on the links: steps, bytes, and the groups for which it exists.

Near is inside an NVLink domain, far between domains. ``n`` ranks lie ``g`` to a domain in ``N`` domains; ``S`` is the
whole buffer, as nccl-tests counts it. Bytes are those that cross the most loaded link, per direction: a GPU's NVLink
ports, or the adapters that the members in one domain share.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from shardsim.values.hardware import GroupShape
from shardsim.values.num import Num, Truth, larger, log2, where

RING_PASSES: Mapping[str, int] = {
    "all_reduce": 2,
    "all_gather": 1,
    "reduce_scatter": 1,
    "all_to_all": 1,
    "broadcast": 1,
}
"""How often a ring carries the buffer round (-)."""


def bus_factor(kind: str, ranks: Num) -> Num:
    """Bus over algorithm bandwidth, as nccl-tests defines them (doc/PERFORMANCE.md).

    Parameters
    ----------
    kind : str
        Collective, or ``send_recv``.
    ranks : Num
        Members of the group (-).

    Returns
    -------
    Num
        (-). Bus bandwidth is what a ring would need of its links; in-switch reduction shows more than a link has.

    Examples
    --------
    >>> bus_factor("all_reduce", 8)
    1.75
    """
    if kind in ("broadcast", "send_recv"):
        return 1.0 + 0.0 * ranks
    return RING_PASSES[kind] * (ranks - 1) / ranks


@dataclass(frozen=True, slots=True)
class Traffic:
    """What one algorithm does to the links.

    Parameters
    ----------
    near_steps, far_steps : Num
        Steps that follow each other on links of the kind (-).
    near_wire, far_wire : Num
        Bytes on the most loaded link of the kind [bytes].
    chunk : Num
        What a rank sends in one step [bytes].
    exists : bool or array of bool
        Whether the algorithm can serve the group at all.
    """

    near_steps: Num
    far_steps: Num
    near_wire: Num
    far_wire: Num
    chunk: Num
    exists: Truth


def traffic(algorithm: str, kind: str, size: Num, shape: GroupShape) -> Traffic | None:
    """Steps and bytes of a collective.

    Parameters
    ----------
    algorithm : str
        One of :data:`ALGORITHMS`.
    kind : str
        Collective.
    size : Num
        The whole buffer [bytes].
    shape : GroupShape

    Returns
    -------
    Traffic or None
        None where the algorithm does not do this collective.

    Examples
    --------
    >>> group = GroupShape(16, 8, 8, 2, 2, 1, 400e9)
    >>> traffic("ring", "all_reduce", 16e6, group).far_wire
    30000000.0
    >>> traffic("tree", "all_reduce", 16e6, group).far_wire
    16000000.0
    """
    return ALGORITHMS[algorithm](kind, size, shape)


def _ring(kind: str, size: Num, shape: GroupShape) -> Traffic:
    """Ring: ``p (n-1)`` steps of ``S/n``, ``p`` = 2 for an all-reduce (nccl-tests doc/PERFORMANCE.md).

    A broadcast runs once along the ring, and every link but the last carries the whole buffer.
    """
    passes, n = RING_PASSES[kind], shape.ranks
    chunk = size / n
    wire = size * 1.0 if kind == "broadcast" else passes * (n - 1) * chunk
    far_steps = passes * (shape.domains - 1)
    return Traffic(passes * (n - 1) - far_steps, far_steps, wire, wire, chunk, shape.ranks >= 1)


def _tree(kind: str, size: Num, shape: GroupShape) -> Traffic | None:
    """Double binary tree over domains, a chain inside: all of it up and down.

    Two trees share the buffer, and every domain is a leaf of one. With two domains each has one child or none, and
    every adapter carries the buffer once only (NVIDIA/nccl src/graph/tuning.cc; Sanders et al. 2009).
    """
    if kind != "all_reduce":
        return None
    return Traffic(
        near_steps=2.0 * (shape.ranks_per_domain - 1),
        far_steps=2.0 * log2(larger(shape.domains, 1.0)),
        near_wire=2.0 * size,
        far_wire=where(shape.domains > 2, 2.0, 1.0) * size,
        chunk=size * 1.0,
        exists=shape.domains > 1,
    )


def _nvls(kind: str, size: Num, shape: GroupShape) -> Traffic | None:
    """In-switch reduction and multicast inside one domain (NVLink SHARP).

    For an all-reduce the switch pulls every GPU's whole buffer once, and each of the ``n`` sends its n-th part of the
    sum for multicast: ``S (1 + 1/n)`` out of each GPU. A gather delivers, and a scatter pulls, ``S (n-1)/n``.
    """
    n = shape.ranks
    if kind == "all_reduce":
        wire = size * (1.0 + 1.0 / n)
    elif kind in ("all_gather", "reduce_scatter"):
        wire = size * (n - 1) / n
    else:
        return None
    return Traffic(where(n > 1, 1.0, 0.0), n * 0.0, wire, n * 0.0, size / n, shape.domains <= 1)


def _nvls_tree(kind: str, size: Num, shape: GroupShape) -> Traffic | None:
    """In-switch reduction in each domain, a double binary tree between them, in-switch multicast."""
    if kind != "all_reduce":
        return None
    g = shape.ranks_per_domain
    return Traffic(
        near_steps=g * 0.0 + 2.0,
        far_steps=2.0 * log2(larger(shape.domains, 1.0)),
        near_wire=size * (1.0 + 1.0 / g),
        far_wire=where(shape.domains > 2, 2.0, 1.0) * size,
        chunk=size / g,
        exists=(shape.domains > 1) & (g > 1),
    )


def _sharp(kind: str, size: Num, shape: GroupShape) -> Traffic | None:
    """Reduction in the network's switches (SHARP) below in-switch reduction in each domain: the buffer goes up once.

    A gather's multicast comes back to its sender's domain too, so that its adapters carry what a ring's would.
    """
    n, g = shape.ranks, shape.ranks_per_domain
    if kind == "all_reduce":
        near, far = size * (1.0 + 1.0 / g), size * 1.0
    elif kind in ("all_gather", "reduce_scatter"):
        near = far = size * (n - 1) / n
    else:
        return None
    return Traffic(g * 0.0 + 2.0, g * 0.0 + 2.0, near, far, size / g, shape.domains > 1)


def _pat(kind: str, size: Num, shape: GroupShape) -> Traffic | None:
    """Parallel aggregated trees: a ring's bytes in ``log2 N`` steps; one GPU a domain (NCCL 2.23 and later)."""
    if kind not in ("all_gather", "reduce_scatter"):
        return None
    n = shape.ranks
    wire = size * (n - 1) / n
    exists = (shape.domains > 1) & (shape.ranks_per_domain <= 1)
    return Traffic(n * 0.0, log2(larger(shape.domains, 1.0)), n * 0.0, wire, size / n, exists)


def _direct(kind: str, size: Num, shape: GroupShape) -> Traffic | None:
    """Every rank sends ``S/n`` to every other: ``g-1`` of them near, ``n-g`` far, all members' through the adapters.

    Far, the emptiest domain takes longest: its members have as much of the adapters each, and the most peers outside.
    """
    if kind != "all_to_all":
        return None
    n, g = shape.ranks, shape.ranks_per_domain
    few = g if shape.fewest_per_domain is None else shape.fewest_per_domain
    chunk = size / n
    return Traffic((g - 1) * 1.0, (n - few) * 1.0, chunk * (g - 1), chunk * few * (n - few), chunk, n >= 1)


def _hierarchical(kind: str, size: Num, shape: GroupShape) -> Traffic | None:
    """A ring in each domain and, for each of its members' parts, a ring over the domains."""
    if kind not in ("all_reduce", "all_gather", "reduce_scatter"):
        return None
    passes, g, domains = RING_PASSES[kind], shape.ranks_per_domain, shape.domains
    return Traffic(
        near_steps=passes * (g - 1) * 1.0,
        far_steps=passes * (domains - 1) * 1.0,
        near_wire=passes * size * (g - 1) / g,
        far_wire=passes * size * (domains - 1) / domains,
        chunk=size / shape.ranks,
        exists=(domains > 1) & (g > 1),
    )


ALGORITHMS: Mapping[str, Callable[[str, Num, GroupShape], Traffic | None]] = {
    "ring": _ring,
    "tree": _tree,
    "nvls": _nvls,
    "nvls_tree": _nvls_tree,
    "sharp": _sharp,
    "pat": _pat,
    "direct": _direct,
    "hierarchical": _hierarchical,
}
"""Traffic by algorithm."""

SWITCH_REDUCES = ("nvls", "nvls_tree", "sharp")
"""Algorithms in which switches add: they need a data type that switches can add."""
