"""Which rank sits where: ranks and their coordinates, the groups of each axis, and who talks to whom.

Ranks fill the machine in order: rank 0 to ``gpus_per_node - 1`` on the first node, and so on. The axes are the digits
of a rank number, fastest first: by default TP, CP, DP, PP (Megatron-LM's ``tp-cp-ep-dp-pp``). Experts take no ranks of
their own: those of a pipeline stage, counted in the same order, have a second set of digits, of which the fastest tells
the part of an expert, the next which experts, and the rest the replica.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Literal

from shardsim.errors import InputError, Problem
from shardsim.values.hardware import Cluster
from shardsim.values.num import Num, Truth, any_of, larger, smaller, where
from shardsim.values.training import Layout

GroupAxis = Literal[
    "tp",
    "cp",
    "cp_inner",
    "cp_outer",
    "etp",
    "ep",
    "edp",
    "dp",
    "dp_cp",
    "shard",
    "replica",
    "pp",
    "embedding",
    "model",
]
"""Axes that have groups: the degrees of a layout; ``cp_inner`` and ``cp_outer``, neighbours on the CP axis and those
that are so many apart; ``edp``, the ranks that hold the same of the same experts; ``dp_cp``, all that hold the same
parameters; of those, ``shard``, over which ZeRO splits, and ``replica``, that hold the same part; ``embedding``, first
and last pipeline stage; ``model``, the TP x PP of a replica."""

_RANKED = ("tp", "cp", "dp", "pp")
_EXPERT_AXES: tuple[GroupAxis, ...] = ("etp", "ep", "edp")


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
    axis : str
        Of ``GroupAxis``.
    layout : Layout
        Degrees are scalars or arrays.

    Returns
    -------
    Lattice

    Raises
    ------
    InputError
        The order of ranks is not one, or the groups of experts do not tile the ranks of a pipeline stage.
    """
    spans = axis_spans(layout)
    if axis in _EXPERT_AXES:
        experts = _expert_spans(layout, spans)
        others = [span for name in _EXPERT_AXES if name != axis for span in experts[name]]
        return Lattice(experts[axis], (*others, spans["pp"]))
    cp, dp, pp = spans["cp"], spans["dp"], spans["pp"]
    parts = Span(layout.sharing, dp.stride)
    copies = Span(dp.count // layout.sharing, dp.stride * layout.sharing)
    ends = Span(where(pp.count > 1, 2, 1), (pp.count - 1) * pp.stride)
    within = max(layout.cp_inner, 1)
    inner, outer = Span(within, cp.stride), Span(cp.count // within, cp.stride * within)
    lattices: dict[GroupAxis, Lattice] = {
        "cp_inner": Lattice((inner,), (*_without(spans, "cp"), outer)),
        "cp_outer": Lattice((outer,), (*_without(spans, "cp"), inner)),
        "model": Lattice((spans["tp"], pp), _without(spans, "tp", "pp")),
        "dp_cp": Lattice((cp, dp), _without(spans, "cp", "dp")),
        "shard": Lattice((cp, parts), (*_without(spans, "cp", "dp"), copies)),
        "replica": Lattice((copies,), (*_without(spans, "dp"), parts)),
        "embedding": Lattice((ends,), _without(spans, "pp")),
    }
    return lattices[axis] if axis in lattices else Lattice((spans[axis],), _without(spans, axis))


def _expert_spans(layout: Layout, spans: Mapping[str, Span]) -> dict[GroupAxis, tuple[Span, Span]]:
    """Ranks of each axis of the experts: those faster than the pipeline's, and those slower.

    Notes
    -----
    github NVIDIA/Megatron-LM, megatron/core/parallel_state.py: ``expert_decoder_rank_generator`` orders etp, ep, edp
    and pp as the rest orders tp, ep, dp and pp. So do DeepSpeed (deepspeed/utils/groups.py) and torchtitan
    (torchtitan/distributed/parallel_dims.py), of the cases that they have.
    """
    stage = layout.tp * layout.cp * layout.dp
    faster = spans["pp"].stride  # ranks in a row of one pipeline stage
    degrees: dict[GroupAxis, Num] = {"etp": layout.etp, "ep": layout.ep, "edp": stage // (layout.etp * layout.ep)}
    found: dict[GroupAxis, tuple[Span, Span]] = {}
    stride: Num = 1
    astray: Truth = False
    for axis, count in degrees.items():
        inside = smaller(count, larger(faster // stride, 1))
        first = Span(inside, smaller(stride, faster))
        found[axis] = (first, Span(count // inside, larger(stride, faster) * spans["pp"].count))
        stride = stride * count
        astray = astray | ((faster % stride != 0) & (stride % faster != 0))
    if any_of(astray | (stride != stage)):
        what = "the groups of experts do not tile the ranks of a pipeline stage"
        right = "ETP x EP has to divide TP x CP x DP and, where PP is not the slowest axis, to fit the ranks before it"
        raise InputError(Problem(what, "layout.ep", right))
    return found


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
        ``tp``, ``cp``, ``dp``, ``pp``, and ``etp``, ``ep``, ``edp``, which number the ranks of a pipeline stage again.

    Raises
    ------
    InputError
        No such rank.

    Examples
    --------
    >>> coordinates(21, Layout(tp=4, pp=2, dp=4))
    {'tp': 1, 'cp': 0, 'dp': 1, 'pp': 1, 'etp': 0, 'ep': 0, 'edp': 5}
    """
    _check_rank(rank, layout)
    spans = axis_spans(layout)
    found = {axis: _digit(rank, span) for axis, span in spans.items()}
    for axis, (inner, outer) in _expert_spans(layout, spans).items():
        found[axis] = int(_digit(rank, inner) + inner.count * _digit(rank, outer))
    return found


def _digit(rank: int, span: Span) -> int:
    return int(rank // span.stride % span.count)


def _check_rank(rank: int, layout: Layout) -> None:
    if not 0 <= rank < layout.gpus:
        raise InputError(Problem(f"there is no rank {rank}", right=f"0 to {int(layout.gpus) - 1}"))


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
    axis : str
        Of ``GroupAxis``. For ``embedding``, the ends of the rank's pipeline, of which it need not be one.
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
    _check_rank(rank, layout)
    members = axis_lattice(axis, layout).members
    # The two ends of a pipeline are no digit of a rank: their ranks differ from this one by its whole pipeline's.
    digits = members if axis != "embedding" else (axis_spans(layout)["pp"],)
    base = int(rank - sum(_digit(rank, span) * span.stride for span in digits))
    return tuple(sorted(base + step for step in _sums(members)))


def groups(axis: GroupAxis, layout: Layout) -> tuple[tuple[int, ...], ...]:
    """All groups of an axis, by first rank.

    Parameters
    ----------
    axis : str
        Of ``GroupAxis``.
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
        Axes in rank order, where an all-to-all within a ring makes two of CP; then those of the experts, where they
        have groups of their own. Axes of degree 1 are left out.
    """
    axes: list[GroupAxis] = [axis for axis in layout.order if axis != "ep"]
    if layout.cp_comm == "a2a+p2p":
        axes[axes.index("cp") : axes.index("cp") + 1] = ["cp_inner", "cp_outer"]
    if layout.etp * layout.ep > 1:
        axes += _EXPERT_AXES
    return tuple(one for axis in axes for one in conversations(axis, cluster, layout))


def conversations(axis: GroupAxis, cluster: Cluster, layout: Layout) -> tuple[Conversation, ...]:
    """List the groups of one axis by how they lie on the machine.

    Parameters
    ----------
    axis : str
        Of ``GroupAxis``.
    cluster : Cluster
    layout : Layout
        Scalar degrees.

    Returns
    -------
    tuple of Conversation
        None for groups of one rank.
    """
    kinds: dict[tuple[int, int, int, tuple[str, ...]], list[tuple[int, ...]]] = {}
    for ranks in groups(axis, layout):
        if len(ranks) > 1:
            kinds.setdefault(_lie(ranks, cluster), []).append(ranks)
    return tuple(Conversation(axis, len(alike), len(alike[0]), alike[0], *lie) for lie, alike in kinds.items())


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
