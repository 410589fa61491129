"""How groups and messages load the links of a torus of nodes, in which each node has a cable to its neighbours.

Nodes are numbered along the first dimension, then the next. A node's adapters are spread evenly over its ``2 d``
cables, one each way along each of ``d`` dimensions. Loads are counted with all groups of an axis at work at once, as
they are in training: those that lie between the members of one pass their traffic over the same cables.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class TorusLoads:
    """How many times as long the cables need as a node's adapters would (-).

    Parameters
    ----------
    ring : float
        Of what goes from neighbour to neighbour in a group.
    pairs : float
        Of what each member has for every other.
    """

    ring: float
    pairs: float


def coordinates_of(node: int, dims: Sequence[int]) -> tuple[int, ...]:
    """Place of a node.

    >>> coordinates_of(7, (4, 4, 2))
    (3, 1, 0)
    """
    place = []
    for size in dims:
        place.append(node % size)
        node //= size
    return tuple(place)


def group_loads(nodes: Sequence[int], dims: Sequence[int]) -> TorusLoads:
    """Load of the groups that lie as one of them does.

    Parameters
    ----------
    nodes : sequence of int
        On which the group has members.
    dims : sequence of int
        Nodes along each dimension (-).

    Returns
    -------
    TorusLoads

    Notes
    -----
    In a dimension of ``X`` nodes let a group have ``a`` coordinates, ``t`` apart. A torus of ``k`` dimensions has ``k``
    rings, both ways round each, with no cable in common (Bae and Bose, IEEE Trans. Computers 52(10), 2003): a group
    over ``k`` of ``d`` dimensions uses ``k`` of every ``d`` cables of a node. Each hop is over ``t`` cables, which as
    many groups share. A line that does not close (``a t < X``) returns over its other direction. Of all-to-alls the
    mean way is ``a t / 4`` cables round a closed dimension and ``a t / 3`` along a line; the longest dimension decides.

    Examples
    --------
    All 16 nodes of a 4 x 4 torus: rings fill it, and everybody is 1 + 1 hops from everybody else on average:

    >>> group_loads(range(16), (4, 4))
    TorusLoads(ring=1.0, pairs=2.0)
    """
    places = [coordinates_of(node, dims) for node in dict.fromkeys(nodes)]
    used, stretch, pairs = 0, 1.0, 0.0
    for dimension, size in enumerate(dims):
        taken = sorted({place[dimension] for place in places})
        if len(taken) < 2:
            continue
        used += 1
        step = min(after - before for before, after in pairwise(taken))
        closed = len(taken) * step >= size
        stretch = max(stretch, step * (1.0 if closed else 2.0))
        pairs = max(pairs, len(taken) * step / (4.0 if closed else 3.0) * len(dims))
    return TorusLoads(len(dims) / used * stretch, pairs) if used else TorusLoads(0.0, 0.0)


def message_load(sender: int, receiver: int, dims: Sequence[int]) -> float:
    """Load of messages, each from a node to the one as far away as another is from its own.

    Parameters
    ----------
    sender, receiver : int
        Nodes.
    dims : sequence of int
        Nodes along each dimension (-).

    Returns
    -------
    float
        How many times as long the cables need as the adapters of the sender would (-): a message takes one cable of
        ``2 d`` in each dimension, and shares it with as many as there are nodes on the way.

    Examples
    --------
    >>> message_load(0, 1, (4, 4)), message_load(0, 3, (4, 4)), message_load(0, 2, (4, 4)), message_load(0, 0, (4, 4))
    (4.0, 4.0, 8.0, 0.0)
    """
    ways = [
        min((to - start) % size, (start - to) % size)
        for start, to, size in zip(coordinates_of(sender, dims), coordinates_of(receiver, dims), dims, strict=True)
    ]
    return 2.0 * len(dims) * max(ways)
