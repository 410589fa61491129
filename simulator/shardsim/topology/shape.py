"""How the groups of an axis lie on the cluster, in closed form over degrees, for one layout or for many.

Groups of ``n`` ranks, ``s`` apart, on units (NVLink domains, nodes, leaves) of ``D`` ranks: where ``s >= D`` every
member has a unit to itself; where ``n s`` divides ``D`` a group stays in one; where ``s`` divides ``D`` and ``D``
divides ``n s`` every unit holds ``D / s`` of it. All layouts whose degrees divide the machine are of these kinds.
Where ``s`` divides ``D`` and no more (DP 5), the groups' starts are followed until they repeat. The few others (TP 3
on nodes of 8) are counted over one period of first ranks, once for each distinct kind of layout.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import gcd
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from shardsim.errors import InputError, Problem
from shardsim.topology.placement import GroupAxis, Lattice, Span, axis_lattice, axis_spans
from shardsim.topology.torus import group_loads, message_load
from shardsim.values.hardware import Cluster, GroupShape
from shardsim.values.num import Num, where
from shardsim.values.training import Layout

_Ints: TypeAlias = NDArray[np.int64]
_Truths: TypeAlias = NDArray[np.bool_]
_CHUNK = 4_000_000


@dataclass(frozen=True, slots=True)
class PipelineHop:
    """The way between two pipeline stages, the same for every rank of the sender or the worst of them.

    Parameters
    ----------
    leaves_domain, leaves_node, leaves_leaf : Num
        1 where any rank's message leaves its NVLink domain, node, or leaf, else 0 (-).
    nic_share : Num
        Adapter bandwidth that one rank has, per direction [bytes/s].
    far_load : Num
        How many times as long the up-links of the leaves, or the cables of a torus, need as the adapters (-).
    """

    leaves_domain: Num
    leaves_node: Num
    leaves_leaf: Num
    nic_share: Num
    far_load: Num = 0.0


class _Count(NamedTuple):
    """Over all groups: most members in a unit, most units touched, fewest members in a unit of a group that leaves."""

    most: _Ints
    units: _Ints
    fewest: _Ints


def group_shape(cluster: Cluster, layout: Layout, axis: GroupAxis) -> GroupShape:
    """Shape of the groups of one axis; where they differ, the worst of each figure.

    Parameters
    ----------
    cluster : Cluster
    layout : Layout
        Degrees are scalars or arrays.
    axis : str
        Of :data:`shardsim.topology.placement.GroupAxis`.

    Returns
    -------
    GroupShape
        ``nic_share`` is the adapters' bandwidth that falls to those members of a group which share a domain, the
        fewest of them in any domain: all GPUs of a domain have an equal share of its adapters.

    Examples
    --------
    A data-parallel group of DGX-2H under 8-way TP has two members in each node of 16 GPUs and 8 adapters:

    >>> from shardsim.schema.hardware import load_cluster
    >>> shape = group_shape(load_cluster("dgx-2h"), Layout(tp=8, pp=1, dp=64), "dp")
    >>> shape.ranks_per_domain, shape.domains, shape.nic_share / 1e9
    (2, 32, 12.5)
    """
    lattice = _canonical(axis, layout)
    scalar = _is_scalar(layout)
    domain = _counted(lattice, cluster.gpus_per_domain)
    node = domain
    if cluster.gpus_per_node != cluster.gpus_per_domain:
        node = _counted(lattice, cluster.gpus_per_node)
    leaf = _counted(lattice, cluster.gpus_per_node * cluster.nodes_per_leaf)
    ranks = np.prod(np.stack(_integers([span.count for span in lattice.members])), axis=0)
    ring, pairs = _torus_loads(cluster, layout, axis, domain.most.shape)
    return GroupShape(
        ranks=_num(np.broadcast_to(ranks, domain.most.shape), scalar=scalar),
        ranks_per_domain=_num(domain.most, scalar=scalar),
        ranks_per_node=_num(node.most, scalar=scalar),
        domains=_num(domain.units, scalar=scalar),
        nodes=_num(node.units, scalar=scalar),
        leaves=_num(leaf.units, scalar=scalar),
        nic_share=_num(domain.fewest * cluster.nic_bandwidth_per_gpu, scalar=scalar),
        fewest_per_domain=_num(domain.fewest, scalar=scalar),
        torus_ring=ring,
        torus_pairs=pairs,
    )


def pipeline_hop(cluster: Cluster, layout: Layout, sender: int, receiver: int) -> PipelineHop:
    """Way of a message from one pipeline stage to another.

    Parameters
    ----------
    cluster : Cluster
    layout : Layout
        Degrees are scalars or arrays.
    sender, receiver : int
        Stages (-), neighbours or, for the wrap-around of interleaving, last and first.

    Returns
    -------
    PipelineHop

    Examples
    --------
    >>> from shardsim.schema.hardware import load_cluster
    >>> hop = pipeline_hop(load_cluster("dgx-a100"), Layout(tp=8, pp=8, dp=2), 0, 1)
    >>> hop.leaves_domain, hop.nic_share / 1e9
    (1, 25.0)
    """
    pp = axis_spans(layout)["pp"]
    others = _around(pp, layout.gpus)
    scalar = _is_scalar(layout)

    def leaves(unit: int) -> Num:
        # A pipeline that lies within one unit needs no look at where its stages start.
        inside = unit % (pp.count * pp.stride) == 0
        ends = Span(where(inside, 1, 1 if sender == receiver else 2), abs(receiver - sender) * pp.stride)
        first = where(inside, 0, min(sender, receiver) * pp.stride)
        counted = _counted(Lattice((ends,), others), unit, first)
        return _num((counted.units > 1).astype(np.int64), scalar=scalar)

    domain = leaves(cluster.gpus_per_domain)
    leaf = leaves(cluster.gpus_per_node * cluster.nodes_per_leaf)
    share = cluster.nic_bandwidth_per_gpu
    load: Num = leaf * cluster.oversubscription
    if cluster.torus:
        _only_scalars(cluster, layout)
        start, end = (int(stage * pp.stride) // cluster.gpus_per_node for stage in (sender, receiver))
        load = leaf * message_load(start, end, cluster.torus)
    return PipelineHop(
        leaves_domain=domain,
        leaves_node=leaves(cluster.gpus_per_node),
        leaves_leaf=leaf,
        nic_share=share if scalar else np.full(np.shape(domain), share),
        far_load=load,
    )


def _only_scalars(cluster: Cluster, layout: Layout) -> None:
    if not _is_scalar(layout):
        raise InputError(Problem(f"{cluster.name} is a torus, on which layouts are priced one by one", "cluster.torus"))


def _torus_loads(cluster: Cluster, layout: Layout, axis: GroupAxis, shape: tuple[int, ...]) -> tuple[Num, Num]:
    """What the first group of an axis does to the cables of a torus: rings, and all-to-alls; 0 where there is none."""
    if not cluster.torus:
        return (0.0, 0.0) if _is_scalar(layout) else (np.zeros(shape), np.zeros(shape))
    _only_scalars(cluster, layout)
    offsets = [0]
    for span in axis_lattice(axis, layout).members:
        offsets = [offset + int(span.stride) * step for offset in offsets for step in range(int(span.count))]
    loads = group_loads([offset // cluster.gpus_per_node for offset in offsets], cluster.torus)
    return loads.ring, loads.pairs


def _canonical(axis: GroupAxis, layout: Layout) -> Lattice:
    """The lattice of an axis, with all axes faster than it, between its two spans, and slower than it as one each."""
    lattice = axis_lattice(axis, layout)
    if axis == "embedding":
        return Lattice(lattice.members, _around(axis_spans(layout)["pp"], layout.gpus))
    if len(lattice.members) == 1:
        return Lattice(lattice.members, _around(lattice.members[0], layout.gpus))
    order = list(axis_spans(layout))
    first, second = lattice.members
    names = ("tp", "pp") if axis == "model" else ("cp", "dp")
    ordered = axis in ("etp", "ep", "edp") or order.index(names[0]) < order.index(names[1])
    inner, outer = (first, second) if ordered else (second, first)
    faster, _ = _around(inner, layout.gpus)
    _, slower = _around(outer, layout.gpus)
    block = inner.count * inner.stride
    return Lattice((inner, outer), (faster, Span(outer.stride // block, block), slower))


def _around(span: Span, gpus: Num) -> tuple[Span, Span]:
    """Everything faster and everything slower than a span: the digits of a rank number fill both without gaps."""
    block = span.count * span.stride
    return Span(span.stride, 1), Span(gpus // block, block)


def _is_scalar(layout: Layout) -> bool:
    degrees = (layout.tp, layout.pp, layout.dp, layout.cp, layout.ep, layout.etp)
    return all(np.ndim(degree) == 0 for degree in degrees)


def _num(values: NDArray[np.int64] | NDArray[np.floating], *, scalar: bool) -> Num:
    if not scalar:
        return values.astype(np.float64)
    value: int | float = values.reshape(-1)[0].item()
    return value


def _integers(values: list[Num]) -> list[_Ints]:
    arrays = np.broadcast_arrays(*(np.atleast_1d(np.asarray(value)) for value in values))
    return [np.rint(array).astype(np.int64) for array in arrays]


def _counted(lattice: Lattice, unit: int, start: Num = 0) -> _Count:
    """Count members by unit for all groups: in closed form where one holds, else by looking."""
    spans = [*lattice.members, *lattice.others]
    # First ranks matter up to whole units only.
    numbers = (start % unit, *(value for span in spans for value in (span.count, span.stride)))
    counted = _counted_for_many if any(isinstance(number, np.ndarray) for number in numbers) else _counted_once
    return counted(numbers, len(lattice.members), unit)


def _counted_for_many(numbers: tuple[Num, ...], members: int, unit: int) -> _Count:
    flat = _integers([*numbers])
    first, counts, strides = flat[0], flat[1::2], flat[2::2]
    n1, s1 = counts[0], strides[0]
    n2, s2 = (counts[1], strides[1]) if members == 2 else (np.ones_like(first), np.zeros_like(first))
    others = list(zip(counts[members:], strides[members:], strict=True))
    settled, found = _closed_form(n1, s1, n2, s2, others, first, unit)
    if settled.all():
        return found
    rest = ~settled
    # First ranks matter up to whole units only, so layouts that differ in nothing else are looked at once.
    others = [(np.minimum(count, unit // np.gcd(stride, unit)), stride % unit) for count, stride in others]
    columns = [first, *(array for span in (*((n1, s1), (n2, s2))[:members], *others) for array in span)]
    rows, inverse = np.unique(np.stack([array[rest] for array in columns], axis=-1), axis=0, return_inverse=True)
    looked = np.array([_look(tuple(row.tolist()), members, unit) for row in rows], dtype=np.int64)[inverse.reshape(-1)]
    for array, column in zip(found, looked.T, strict=True):
        array[rest] = column
    return found


_counted_once = lru_cache(maxsize=65_536)(_counted_for_many)
"""The same for one layout: its groups and the ways between its stages are mostly alike."""


def _closed_form(
    n1: _Ints, s1: _Ints, n2: _Ints, s2: _Ints, others: list[tuple[_Ints, _Ints]], first: _Ints, unit: int
) -> tuple[_Truths, _Count]:
    """Counts of the layouts that divide the machine, and for which layouts they hold."""
    merged = (n1 == 1) | (n2 == 1) | (s2 == n1 * s1)
    # One span: the inner one, or both where the outer continues it.
    n = np.where(merged, n1 * n2, n1)
    s = np.where(merged & (n1 == 1), s2, s1)
    settled, inner = _one_span(n, s, others, first, unit)
    last = first + (n - 1) * s + sum((count - 1) * stride for count, stride in others)
    # Two spans whose outer stride is whole units: every outer step has the inner span's units to itself.
    apart = ~merged & settled & (s2 % unit == 0)
    # Two spans whose inner one stays within a step of the outer: blocks of n1 ranks take the place of ranks.
    together, outer = _one_span(n2, s2, [*others, (n1, s1)], first, unit)
    together &= ~merged & (s2 < unit)
    within = last + np.where(merged, 0, (n2 - 1) * s2) < unit
    members = n1 * n2
    most = np.select([within, apart | merged, together], [members, inner.most, n1 * outer.most], 0)
    units = np.select([within, apart, merged, together], [1, inner.units * n2, inner.units, outer.units], 0)
    fewest = np.select([within, apart | merged, together], [members, inner.fewest, n1 * outer.fewest], 0)
    return within | apart | (merged & settled) | together, _Count(most, units, fewest)


def _one_span(n: _Ints, s: _Ints, others: list[tuple[_Ints, _Ints]], first: _Ints, unit: int) -> tuple[_Truths, _Count]:
    """Counts for ``n`` ranks ``s`` apart, and whether they hold."""
    s = np.maximum(s, 1)
    block = n * s
    below = first
    aligned = np.ones_like(n, dtype=np.bool_)
    for count, stride in others:
        faster = stride < s
        below = below + np.where(faster, (count - 1) * stride, 0)
        aligned &= faster | (count == 1) | (stride % block == 0)
    aligned &= below < s
    alone = (n == 1) | (s >= unit)
    inside = aligned & (unit % block == 0)
    tiled = aligned & (unit % s == 0) & (block % unit == 0)
    slots = np.maximum(unit // s, 1)
    most = np.select([alone, inside, tiled], [np.ones_like(n), n, slots], 0)
    units = np.select([alone, inside, tiled], [n, np.ones_like(n), n // slots], 0)
    found = _Count(most, units, most.copy())
    # The groups follow each other without gaps where everything slower is whole groups.
    gapless = (first == 0) & (unit % s == 0)
    groups = np.ones_like(n)
    for number, stride in others:
        slower = (stride >= s) & (number > 1)
        gapless &= ~slower | ((stride == block) & (groups == 1))
        groups = np.where(slower, number, groups)
    rest = aligned & gapless & ~(alone | inside | tiled)
    if rest.any():
        for array, column in zip(found, _gapless(n[rest], slots[rest], groups[rest]), strict=True):
            array[rest] = column
    return alone | inside | tiled | rest, found


def _gapless(n: _Ints, slots: _Ints, groups: _Ints) -> _Count:
    """Counts for groups of ``n`` on consecutive slots, one after the other, on units of so many slots."""
    step = np.gcd(n, slots)
    every = groups >= slots // step  # then some group starts at each multiple of the step
    units = (slots - step + n - 1) // slots + 1
    fewest = np.where(n > step, step, n)
    some = np.flatnonzero(~every)
    if some.size:
        units[some], fewest[some] = 1, n[some]
        for index in range(int(groups[some].max())):
            some = some[groups[some] > index]
            size, room = n[some], slots[some]
            start = index * size % room
            touched = (start + size - 1) // room + 1
            least = np.minimum(room - start, (start + size - 1) % room + 1)
            units[some] = np.maximum(units[some], touched)
            fewest[some] = np.where(touched > 1, np.minimum(fewest[some], least), fewest[some])
    return _Count(np.minimum(n, slots), units, fewest)


@lru_cache(maxsize=65_536)
def _look(row: tuple[int, ...], members: int, unit: int) -> tuple[int, int, int]:
    """Count by looking at every first rank, up to whole units, that a group of this kind has."""
    first, pairs = row[0], list(zip(row[1::2], row[2::2], strict=True))
    bases = np.array([first % unit])
    for count, stride in pairs[members:]:
        steps = np.arange(min(count, unit // gcd(stride, unit))) * stride
        bases = np.unique((bases[:, None] + steps) % unit)
    spans = sorted(pairs[:members], key=lambda pair: pair[1])
    # The outer span repeats itself: whole periods in its middle add units, but no new kinds of unit.
    count, stride = spans[-1]
    period = unit // gcd(stride, unit)
    skipped = max(0, count // period - 3)
    spans[-1] = (count - skipped * period, stride)
    offsets = _offsets(spans)
    longer = _offsets([*spans[:-1], (spans[-1][0] + period, stride)]) if skipped else offsets
    most, units, fewest_leaving = 0, 0, len(offsets)
    rows = max(1, _CHUNK // len(offsets))
    for some in np.split(bases[:, None], range(rows, len(bases), rows)):
        sizes, touched = _runs((some + offsets) // unit)
        added = skipped * (_runs((some + longer) // unit)[1] - touched)
        most, units = max(most, int(sizes.max())), max(units, int((touched + added).max()))
        leaving = np.repeat(touched > 1, touched)
        if leaving.any():
            fewest_leaving = min(fewest_leaving, int(sizes[leaving].min()))
    return most, units, fewest_leaving


def _offsets(spans: list[tuple[int, int]]) -> _Ints:
    offsets = np.array([0])
    for count, stride in spans:
        offsets = (offsets[:, None] + np.arange(count) * stride).reshape(-1)
    return np.sort(offsets)


def _runs(units: _Ints) -> tuple[_Ints, _Ints]:
    """Lengths of the runs of equal numbers in each row, all rows in turn, and runs of each row."""
    starts = np.ones(units.shape, dtype=np.bool_)
    starts[:, 1:] = units[:, 1:] != units[:, :-1]
    at = np.flatnonzero(starts.reshape(-1))
    return np.diff(np.append(at, units.size)), starts.sum(axis=1)
