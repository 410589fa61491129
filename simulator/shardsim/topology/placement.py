"""Which rank sits where: ranks and their coordinates, the groups of each axis, and who talks to whom.

Ranks fill the machine in order: rank 0 to ``gpus_per_node - 1`` on the first node, and so on. The axes are the digits
of a rank number, fastest first: by default TP, CP, DP, PP (Megatron-LM's ``tp-cp-ep-dp-pp``). EP takes no ranks of
its own: the DP replicas fall into blocks of EP consecutive ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Literal

from shardsim.errors import InputError, Problem
from shardsim.values.hardware import Cluster
from shardsim.values.num import Num, where
from shardsim.values.training import Layout

GroupAxis = Literal["tp", "cp", "ep", "edp", "dp", "dp_cp", "shard", "replica", "pp", "embedding", "model"]
"""Axes that have groups: the degrees of a layout; ``edp``, the replicas that hold the same experts; ``dp_cp``, all
that hold the same parameters; of those, ``shard``, over which ZeRO splits, and ``replica``, that hold the same part;
``embedding``, first and last pipeline stage; ``model``, the TP x PP of a replica."""

_RANKED = ("tp", "cp", "dp", "pp")


@dataclass(frozen=True, slots=True)
class Span:
    """Evenly spaced ranks: ``count`` of them, ``stride`` apart (-)."""

    count: Num
    stride: Num


@dataclass(frozen=True, slots=True)
class Lattice:
    """All groups of an axis at once.

    Parameters
    ----------
    members : tuple of Span
        One or two; a group's ranks are its first rank plus every sum of one step of each.
    others : tuple of Span
        The first ranks of the groups are every sum of one step of each.
    """

    members: tuple[Span, ...]
    others: tuple[Span, ...]


def axis_spans(layout: Layout) -> dict[str, Span]:
    """Degree and rank stride of each axis that takes ranks.

    Parameters
    ----------
    layout : Layout
        Degrees are scalars or arrays.

    Returns
    -------
    dict of str to Span
        In the layout's order, fastest axis first.

    Raises
    ------
    InputError
        The order is no permutation of tp, cp, dp and pp.

    Examples
    --------
    >>> axis_spans(Layout(tp=4, pp=2, dp=4))["pp"]
    Span(count=2, stride=16)
    """
    order = [axis for axis in layout.order if axis != "ep"]
    if sorted(order) != sorted(_RANKED):
        what = f"the rank order {'-'.join(layout.order)} does not name each of tp, cp, dp and pp once"
        raise InputError(Problem(what, "layout.order", "write tp, cp, dp, pp, fastest first"))
    degrees = {"tp": layout.tp, "cp": layout.cp, "dp": layout.dp, "pp": layout.pp}
    spans: dict[str, Span] = {}
    stride: Num = 1
    for axis in order:
        spans[axis] = Span(degrees[axis], stride)
        stride = stride * degrees[axis]
    return spans


def axis_lattice(axis: GroupAxis, layout: Layout) -> Lattice:
    """Describe all groups of an axis by spans.

    Parameters
    ----------
    axis : {"tp", "cp", "ep", "edp", "dp", "dp_cp", "shard", "replica", "pp", "embedding", "model"}
    layout : Layout
        Degrees are scalars or arrays.

    Returns
    -------
    Lattice
    """
    spans = axis_spans(layout)
    dp, pp = spans["dp"], spans["pp"]
    experts = Span(layout.ep, dp.stride)
    expert_replicas = Span(dp.count // layout.ep, dp.stride * layout.ep)
    parts = Span(layout.sharing, dp.stride)
    copies = Span(dp.count // layout.sharing, dp.stride * layout.sharing)
    ends = Span(where(pp.count > 1, 2, 1), (pp.count - 1) * pp.stride)
    lattices: dict[GroupAxis, Lattice] = {
        "ep": Lattice((experts,), (*_without(spans, "dp"), expert_replicas)),
        "edp": Lattice((expert_replicas,), (*_without(spans, "dp"), experts)),
        "model": Lattice((spans["tp"], pp), _without(spans, "tp", "pp")),
        "dp_cp": Lattice((spans["cp"], dp), _without(spans, "cp", "dp")),
        "shard": Lattice((spans["cp"], parts), (*_without(spans, "cp", "dp"), copies)),
        "replica": Lattice((copies,), (*_without(spans, "dp"), parts)),
        "embedding": Lattice((ends,), _without(spans, "pp")),
    }
    return lattices[axis] if axis in lattices else Lattice((spans[axis],), _without(spans, axis))


def _without(spans: Mapping[str, Span], *names: str) -> tuple[Span, ...]:
    return tuple(span for name, span in spans.items() if name not in names)


def coordinates(rank: int, layout: Layout) -> dict[str, int]:
    """Position of a rank on every axis.

    Parameters
    ----------
    rank : int
        (-).
    layout : Layout
        Scalar degrees.

    Returns
    -------
    dict of str to int
        ``tp``, ``cp``, ``dp``, ``pp``, and ``ep``, which is the position within the block of EP replicas.

    Raises
    ------
    InputError
        No such rank.

    Examples
    --------
    >>> coordinates(21, Layout(tp=4, pp=2, dp=4))
    {'tp': 1, 'cp': 0, 'dp': 1, 'pp': 1, 'ep': 0}
    """
    if not 0 <= rank < layout.gpus:
        raise InputError(Problem(f"there is no rank {rank}", right=f"0 to {int(layout.gpus) - 1}"))
    found = {axis: int(rank // span.stride % span.count) for axis, span in axis_spans(layout).items()}
    return {**found, "ep": int(found["dp"] % layout.ep)}


def rank_at(position: Mapping[str, int], layout: Layout) -> int:
    """Rank at a position; axes left out are 0.

    >>> rank_at({"tp": 1, "dp": 1, "pp": 1}, Layout(tp=4, pp=2, dp=4))
    21
    """
    return int(sum(position.get(axis, 0) * span.stride for axis, span in axis_spans(layout).items()))


def group(axis: GroupAxis, rank: int, layout: Layout) -> tuple[int, ...]:
    """Ranks that a rank communicates with along an axis, itself among them, in ascending order.

    Parameters
    ----------
    axis : {"tp", "cp", "ep", "edp", "dp", "dp_cp", "shard", "replica", "pp", "embedding", "model"}
        For ``embedding``, the first and last stage of the rank's pipeline, of which it need not be one.
    rank : int
    layout : Layout
        Scalar degrees.

    Returns
    -------
    tuple of int

    Examples
    --------
    >>> group("dp", 21, Layout(tp=4, pp=2, dp=4))
    (17, 21, 25, 29)
    """
    position = coordinates(rank, layout)
    free = {
        "model": ("tp", "pp"),
        "dp_cp": ("cp", "dp"),
        "shard": ("cp", "dp"),
        "replica": ("dp",),
        "embedding": ("pp",),
        "ep": ("dp",),
        "edp": ("dp",),
    }
    base = rank_at({name: at for name, at in position.items() if name not in free.get(axis, (axis,))}, layout)
    if axis == "ep":
        base += int(position["dp"] - position["ep"]) * int(axis_spans(layout)["dp"].stride)
    if axis == "edp":
        base += position["ep"] * int(axis_spans(layout)["dp"].stride)
    if axis in ("shard", "replica"):
        part = int(position["dp"] % layout.sharing)
        base += (part if axis == "replica" else position["dp"] - part) * int(axis_spans(layout)["dp"].stride)
    return tuple(sorted(base + step for step in _sums(axis_lattice(axis, layout).members)))


def groups(axis: GroupAxis, layout: Layout) -> tuple[tuple[int, ...], ...]:
    """All groups of an axis, by first rank.

    Parameters
    ----------
    axis : {"tp", "cp", "ep", "edp", "dp", "dp_cp", "shard", "replica", "pp", "embedding", "model"}
    layout : Layout
        Scalar degrees.

    Returns
    -------
    tuple of tuple of int

    Examples
    --------
    >>> groups("pp", Layout(tp=2, pp=2, dp=1))
    ((0, 2), (1, 3))
    """
    lattice = axis_lattice(axis, layout)
    steps = sorted(_sums(lattice.members))
    return tuple(tuple(base + step for step in steps) for base in sorted(_sums(lattice.others)))


def _sums(spans: tuple[Span, ...]) -> Iterator[int]:
    ranges = [[int(span.stride) * step for step in range(int(span.count))] for span in spans]
    return (sum(steps) for steps in product(*ranges))


def node_of(rank: int, cluster: Cluster) -> int:
    """Node that a rank sits in (-)."""
    return rank // cluster.gpus_per_node


def domain_of(rank: int, cluster: Cluster) -> int:
    """NVLink domain that a rank sits in (-)."""
    return rank // cluster.gpus_per_domain


def leaf_of(rank: int, cluster: Cluster) -> int:
    """Leaf switch, or set of rail switches, that a rank's node hangs on (-)."""
    return node_of(rank, cluster) // cluster.nodes_per_leaf


@dataclass(frozen=True, slots=True)
class Conversation:
    """Groups of one axis that lie on the machine in the same way.

    Parameters
    ----------
    axis : str
    groups : int
        How many there are (-).
    ranks : int
        Members of each (-).
    example : tuple of int
        Ranks of the first of them.
    domains, nodes, leaves : int
        NVLink domains, nodes and leaves that each touches (-).
    links : tuple of str
        Link classes that its messages cross: ``nvlink``, ``pcie``, ``nic``, and ``leaf`` for leaf to spine.
    """

    axis: str
    groups: int
    ranks: int
    example: tuple[int, ...]
    domains: int
    nodes: int
    leaves: int
    links: tuple[str, ...]


def who_talks_to_whom(cluster: Cluster, layout: Layout) -> tuple[Conversation, ...]:
    """List which groups communicate over which links, alike ones together.

    Parameters
    ----------
    cluster : Cluster
    layout : Layout
        Scalar degrees.

    Returns
    -------
    tuple of Conversation
        Axes in rank order, then EP; axes of degree 1 are left out.
    """
    axes: list[GroupAxis] = [axis for axis in layout.order if axis != "ep"]
    if layout.ep > 1:
        axes.append("ep")
    found: list[Conversation] = []
    for axis in axes:
        kinds: dict[tuple[int, int, int, tuple[str, ...]], list[tuple[int, ...]]] = {}
        for ranks in groups(axis, layout):
            if len(ranks) > 1:
                kinds.setdefault(_lie(ranks, cluster), []).append(ranks)
        found += [Conversation(axis, len(alike), len(alike[0]), alike[0], *lie) for lie, alike in kinds.items()]
    return tuple(found)


def _lie(ranks: tuple[int, ...], cluster: Cluster) -> tuple[int, int, int, tuple[str, ...]]:
    domains = Counter(domain_of(rank, cluster) for rank in ranks)
    leaves = {leaf_of(rank, cluster) for rank in ranks}
    rails = {_rail_of(rank, cluster) for rank in ranks} if cluster.rail_optimized else {0}
    links: list[str] = ["nvlink"] if max(domains.values()) > 1 else []
    if len(domains) > 1:
        links += ["pcie", "nic"]
        # Members of a domain pass data on over NVLink, so a ring can stay on one rail; a lone member cannot.
        one_rail = len(rails) == 1 or min(domains.values()) > 1
        if len(leaves) > 1 or not one_rail:
            links.append("leaf")
    return len(domains), len({node_of(rank, cluster) for rank in ranks}), len(leaves), tuple(links)


def _rail_of(rank: int, cluster: Cluster) -> int:
    return rank % cluster.gpus_per_node * cluster.nics_per_node // cluster.gpus_per_node
