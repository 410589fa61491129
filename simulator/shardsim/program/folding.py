"""Which ranks do the same at the same time, so that one process can stand for all of them.

Ranks are sorted into classes, and classes are split until every rank of a class meets the same classes in each of its
groups, in its pipeline and on each of its links (the coarsest equitable partition; McKay, Practical graph
isomorphism, 1981, section 2). Ranks of a class then see the same at the same time whatever happens, so that a run in
which each class is simulated once is the run of all ranks. A slow node, an odd placement or a dead adapter splits the
classes that it touches and no others.

Where all ranks of a stage are alike, which the degrees tell, no rank is looked at.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from shardsim.errors import InputError, Problem
from shardsim.program.build import build
from shardsim.program.coalesce import blocks_by_stage
from shardsim.program.conditions import scaled
from shardsim.program.contention import LINK_CLASSES, contested_links
from shardsim.program.machine import Machine
from shardsim.topology.placement import GroupAxis, axis_lattice, axis_spans, group
from shardsim.values.conditions import Conditions
from shardsim.values.hardware import GroupShape
from shardsim.values.lanes import ALONE, DIRECTIONS, End, Folded, Folding, Lane, SharedLink, Sharing
from shardsim.values.program import Program
from shardsim.values.training import Layout, TrainingRun

_Ints: TypeAlias = NDArray[np.int64]
_MIX = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
"""Constants of the splitmix64 hash (Steele, Lea and Flood, 2014)."""


def fold(run: TrainingRun, *, unfold: bool = False, contend: bool = True) -> Folded:
    """Fold the ranks of a run.

    Parameters
    ----------
    run : TrainingRun
        With its conditions.
    unfold : bool
        Whether every rank is to be a lane of its own.
    contend : bool
        Whether transfers share links.

    Returns
    -------
    Folded

    Raises
    ------
    InputError
        Conditions that name what the machine does not have, or those of links without contention.
    """
    if not contend and run.conditions.of_links:
        what = "conditions of links show where transfers share them, and contention is switched off"
        raise InputError(Problem(what, "--no-contention", "leave one of them out"))
    program = build(run)
    return _Folder(run, program, unfold=unfold, contend=contend).folded()


@dataclass
class _Folder:
    run: TrainingRun
    program: Program
    unfold: bool
    contend: bool

    def folded(self) -> Folded:
        conditions = self.run.conditions
        if not self.unfold and conditions.uniform and self._links_are_regular:
            return Folded(self._one_lane_a_stage(), (self.program,))
        return self._general()

    # ---- all ranks of a stage are alike ---------------------------------------------------------------------------

    @property
    def layout(self) -> Layout:
        return self.run.layout

    @cached_property
    def sharing(self) -> Sharing:
        """Link classes on which something may meet."""
        if not self.contend:
            return ALONE
        found, crossed = contested_links(self.program)
        conditions = self.run.conditions
        always = {"leaf"} if self._uplinks_matter else set()
        # Groups that ranks in odd places scatter use links that the program as usual does not.
        if self._slots_are_shared or conditions.dead_nics or conditions.slow_nics or conditions.swaps or self._limited:
            always.add("nic")
        if conditions.slow_nvlinks or conditions.swaps:
            always.add("nvlink")
        kept = {"nvlink", "nic"} | always
        contested = {stage: (links | always) & kept for stage, links in found.items()}
        return Sharing(contested, crossed=frozenset(crossed | always))

    @property
    def contested(self) -> Mapping[int, frozenset[str]]:
        return self.sharing.contested

    @property
    def _limited(self) -> bool:
        return self.run.conditions.flow_limit < self.run.cluster.nic_bandwidth_per_gpu

    @property
    def _uplinks_matter(self) -> bool:
        """Whether the up-links of a leaf have less than its adapters, and there is more than one leaf."""
        cluster = self.run.cluster
        several = int(self.layout.gpus) > cluster.gpus_per_node * cluster.nodes_per_leaf
        narrow = bool(cluster.torus) or cluster.oversubscription * self.run.conditions.ecmp_imbalance > 1.0
        return several and narrow

    @property
    def _slots_are_shared(self) -> bool:
        """Whether GPUs of different stages may have one adapter."""
        cluster = self.run.cluster
        gpus = cluster.gpus_per_node // max(cluster.nics_per_node, 1)
        return gpus > 1 and not self._stages_tile(gpus)

    def _stages_tile(self, unit: int) -> bool:
        """Whether stages lie on units of so many GPUs in whole, with no two on one unit."""
        pp = axis_spans(self.layout)["pp"]
        slowest = int(pp.stride) * int(pp.count) == self.layout.gpus
        return int(pp.count) == 1 or (slowest and int(pp.stride) % unit == 0)

    @property
    def _links_are_regular(self) -> bool:
        if not self.contend:
            return True
        cluster = self.run.cluster
        leaf = cluster.gpus_per_node * cluster.nodes_per_leaf
        return not self._slots_are_shared and not (self._uplinks_matter and not self._stages_tile(leaf))

    def _one_lane_a_stage(self) -> Folding:
        links: list[SharedLink] = []
        lanes: list[Lane] = []
        spans = axis_spans(self.layout)
        for stage in range(self.program.schedule.stages):
            mine: dict[End, tuple[tuple[int, float], ...]] = {}
            for link in LINK_CLASSES:
                if link not in self.contested.get(stage, ()):
                    continue
                for direction in DIRECTIONS:
                    mine[link, direction] = ((len(links), 1.0),)
                    links.append(self._link(_link_name(link, direction, f"stage {stage}"), link, 1.0))
            lanes.append(Lane(stage, self.program.multiplicity, int(stage * spans["pp"].stride), links=mine))
        return Folding(tuple(lanes), {}, tuple(links), self.sharing, self._flow_share, self._bandwidth)

    @property
    def _flow_share(self) -> float:
        return self.run.conditions.flow_limit / self.run.cluster.nic_bandwidth_per_gpu

    def _link(self, name: str, link: str, left: float) -> SharedLink:
        """A link with what is left of it, and what all transfers on it reach together."""
        if link == "leaf":
            return SharedLink(name, 1.0 / self.run.conditions.ecmp_imbalance)
        return SharedLink(name, left * self._achieved[link], left)

    @cached_property
    def _achieved(self) -> dict[str, float]:
        """The largest share of a class of links that any collective was seen to reach (-)."""
        fabric = self.run.profile.fabric
        found = {link: list(fabric.links[link].efficiency.values()) for link in ("nvlink", "nic")}
        for ways in fabric.ways.values():
            found["nvlink"] += [way.near_share for way in ways]
            found["nic"] += [way.far_share for way in ways]
        for exchange in fabric.exchange.values():
            found["nvlink"].append(exchange.near_share)
            found["nic"].append(exchange.far_share)
        return {link: min(max(shares), 1.0) for link, shares in found.items()}

    @property
    def _bandwidth(self) -> dict[str, float]:
        cluster = self.run.cluster
        return {"nvlink": cluster.nvlink.bandwidth, "nic": cluster.nic_bandwidth_per_gpu}

    # ---- ranks differ ---------------------------------------------------------------------------------------------

    def _general(self) -> Folded:
        ranks = _Ranks(self.run, self.contested)
        overrides = self._overrides(ranks)
        keys = list(zip(ranks.slow.tolist(), ranks.slow_host.tolist(), overrides, strict=True))
        kinds = list(dict.fromkeys([(1.0, 1.0, ()), *keys]))
        number = {key: index for index, key in enumerate(kinds)}
        variant = np.array([number[key] for key in keys], dtype=np.int64)
        groups = self._groups(ranks)
        colours = _refined(ranks, variant, groups, unfold=self.unfold, cells=self._cells(ranks))
        folding = self._lanes(ranks, colours, variant, groups, kinds)
        programs = tuple(self._program(*kind) for kind in kinds)
        return Folded(folding, programs, tuple(int(ranks.cell[lane.example]) for lane in folding.lanes))

    def _program(self, slow: float, slow_host: float, shapes: tuple[tuple[str, GroupShape], ...]) -> Program:
        program = build(self.run, dict(shapes)) if shapes else self.program
        return program if slow == slow_host == 1.0 else scaled(program, slow, slow_host)

    def _cells(self, ranks: _Ranks) -> _Ints | None:
        """Numbers that set ranks apart on which chance falls differently: a draw falls on a TP x CP group."""
        return ranks.cell if self.run.conditions.chance else None

    def _axes(self) -> list[str]:
        """Axes along which tasks of the program communicate, without those that meet by name."""
        found: dict[str, None] = {}
        for _, block in blocks_by_stage(self.program):
            for task in block.tasks:
                if task.moves is not None and not task.rendezvous:
                    found[task.moves[0]] = None
        return [axis for axis in found if axis not in ("embedding", "copies")]

    def _groups(self, ranks: _Ranks) -> dict[str, _Ints]:
        """For each axis and each meeting, the number of every rank's group; -1 for none."""
        found = {axis: ranks.group_of(_lattice_of(axis, self.layout)) for axis in self._axes()}
        named = {
            task.rendezvous: task.moves[0] if task.moves is not None else ""
            for _, block in blocks_by_stage(self.program)
            for task in block.tasks
            if task.rendezvous
        }
        for name, axis in named.items():
            whole = ranks.group_of(("model", self.layout)) if axis == "model" else ranks.column
            stages = np.isin(ranks.stage, self.program.rendezvous_members.get(name, ()))
            found[name] = np.where(stages, whole, -1)
        return found

    def _overrides(self, ranks: _Ranks) -> list[tuple[tuple[str, GroupShape], ...]]:
        """For every rank, the axes whose group lies otherwise than usual, and how."""
        found: list[tuple[tuple[str, GroupShape], ...]] = [()] * int(self.layout.gpus)
        swaps = self.run.conditions.swaps
        if not swaps:
            return found
        machine = Machine(self.run)
        odd: dict[int, dict[str, GroupShape]] = {}
        for axis in self._axes():
            name, layout = _lattice_of(axis, self.layout)
            for rank in dict.fromkeys(rank for pair in swaps for rank in pair):
                members = group(name, rank, layout)
                shape = ranks.shape_of(members)
                if shape != machine.shapes[axis]:
                    for member in members:
                        odd.setdefault(member, {})[axis] = shape
        for rank, shapes in odd.items():
            found[rank] = tuple(sorted(shapes.items()))
        return found

    def _lanes(
        self,
        ranks: _Ranks,
        colours: _Ints,
        variant: _Ints,
        groups: Mapping[str, _Ints],
        kinds: list[tuple[float, float, tuple[tuple[str, GroupShape], ...]]],
    ) -> Folding:
        _, example, counts = np.unique(colours, return_index=True, return_counts=True)
        columns = _columns(ranks.column, colours, example)
        order = np.lexsort((ranks.stage[example], columns))
        example, counts, columns = example[order], counts[order], columns[order]
        lane_of_colour = {int(colours[rank]): index for index, rank in enumerate(example)}
        lane_of = np.array([lane_of_colour[int(colour)] for colour in colours], dtype=np.int64)
        links, uses, crossed = self._shared_links(ranks, lane_of, example)
        met = {name: _met(numbers, lane_of, example) for name, numbers in groups.items()}
        reasons = [_reason(*kinds[variant[rank]]) for rank in example]
        odd_columns = {int(column) for column, reason in zip(columns, reasons, strict=True) if reason}
        lanes = tuple(
            Lane(
                int(ranks.stage[rank]),
                int(counts[index]),
                int(rank),
                int(columns[index]),
                int(variant[rank]),
                uses[index],
                _name(rank, reasons[index], unfolded=self.unfold, beside=int(columns[index]) in odd_columns),
            )
            for index, rank in enumerate(example.tolist())
        )
        axes = frozenset(name for name, lanes_met in met.items() if any(lanes_met))
        sharing = replace(self.sharing, axes=axes, crossed=self.sharing.crossed | crossed)
        return Folding(lanes, met, tuple(links), sharing, self._flow_share, self._bandwidth)

    def _shared_links(
        self, ranks: _Ranks, lane_of: _Ints, example: _Ints
    ) -> tuple[list[SharedLink], list[dict[End, tuple[tuple[int, float], ...]]], frozenset[str]]:
        """Links, what each lane uses of them, and the classes of which several lanes use one."""
        links: list[SharedLink] = []
        numbers: dict[tuple[object, ...], int] = {}
        uses: list[dict[End, tuple[tuple[int, float], ...]]] = [{} for _ in example]
        crossed: set[str] = set()
        for link in LINK_CLASSES:
            if not any(link in classes for classes in self.contested.values()):
                continue
            place, left, room = ranks.links[link]
            on = _lanes_by_place(place, lane_of)
            if any(len(held) > 1 for held in on.values()):
                crossed.add(link)
            for index, rank in enumerate(example.tolist()):
                here = int(place[rank])
                held = on[here]
                for direction in DIRECTIONS:
                    key = (link, direction, held, float(left[here]))
                    if key not in numbers:
                        numbers[key] = len(links)
                        where = f"{_PLACES[link]} {here}" if self.unfold or link == "leaf" else f"rank {rank}"
                        links.append(self._link(_link_name(link, direction, where), link, float(left[here])))
                    part = dict(held)[index] / room
                    uses[index][link, direction] = ((numbers[key], part),)
        return links, uses, frozenset(crossed)


_PLACES = {"nvlink": "GPU", "nic": "adapter of GPU", "leaf": "leaf"}


def _link_name(link: str, direction: str, where: str) -> str:
    return f"{link} {direction}, {where}"


class _Ranks:
    """Arrays over ranks: where each sits, what it is part of, and how it fares."""

    def __init__(self, run: TrainingRun, contested: Mapping[int, frozenset[str]]) -> None:
        layout, cluster, conditions = run.layout, run.cluster, run.conditions
        self.run = run
        self.count = int(layout.gpus)
        self.ranks = np.arange(self.count)
        _check(conditions, run)
        self.gpu = self.ranks.copy()
        for one, other in conditions.swaps:
            self.gpu[[one, other]] = self.gpu[[other, one]]
        spans = axis_spans(layout)
        self.stage = self.ranks // int(spans["pp"].stride) % int(spans["pp"].count)
        self.column = self.ranks - self.stage * int(spans["pp"].stride)
        self.cell = self.group_of(("tp", layout))
        if layout.cp > 1:
            self.cell = self.cell - self.ranks // int(spans["cp"].stride) % layout.cp * int(spans["cp"].stride)
        self.node = self.gpu // cluster.gpus_per_node
        self.slow = self._slow(conditions)
        self.slow_host = np.ones(self.count)
        for node, factor in conditions.slow_hosts.items():
            self.slow_host[self.node == node] = factor
        wanted = {link for links in contested.values() for link in links}
        self.links = {link: self._places(link) for link in LINK_CLASSES if link in wanted}

    def _slow(self, conditions: Conditions) -> NDArray[np.float64]:
        slow = np.ones(self.count)
        for node, factor in conditions.slow_nodes.items():
            slow[self.node == node] *= factor
        for gpu, factor in conditions.slow_gpus.items():
            slow[self.gpu == gpu] *= factor
        return slow

    def group_of(self, axis: tuple[GroupAxis, Layout]) -> _Ints:
        """The first rank of every rank's group."""
        base = self.ranks.copy()
        for span in axis_lattice(*axis).members:
            base = base - self.ranks // int(span.stride) % int(span.count) * int(span.stride)
        return base

    def _places(self, link: str) -> tuple[_Ints, NDArray[np.float64], float]:
        """For every rank the link that it uses, of every link what is left (-), and how many ranks' share that is."""
        cluster, conditions = self.run.cluster, self.run.conditions
        if link == "leaf":
            leaf = self.node // cluster.nodes_per_leaf
            return leaf, np.ones(int(leaf.max()) + 1), float(cluster.nodes_per_leaf * cluster.gpus_per_node)
        gpus = int(self.gpu.max()) + 1
        capacity = np.ones(gpus)
        if link == "nvlink":
            for gpu, share in conditions.slow_nvlinks.items():
                capacity[gpu] = share
            return self.gpu, capacity, 1.0
        return self._adapters(capacity)

    def _adapters(self, capacity: NDArray[np.float64]) -> tuple[_Ints, NDArray[np.float64], float]:
        """Adapters, numbered by their first GPU; one that is dead leaves its traffic to the next of its node."""
        cluster, conditions = self.run.cluster, self.run.conditions
        gpus, nics = cluster.gpus_per_node, cluster.nics_per_node
        together = max(gpus // nics, 1)
        each = max(nics // gpus, 1)
        place = self.gpu // together * together
        left: dict[int, list[float]] = {}
        for (node, nic), share in (*conditions.slow_nics.items(), *((dead, 0.0) for dead in conditions.dead_nics)):
            first = node * gpus + (nic // each if nics >= gpus else nic * together)
            left.setdefault(first, [1.0] * each)[nic % each if nics >= gpus else 0] = share
        for first, shares in left.items():
            if first < capacity.size:
                capacity[first] = sum(shares) / each
        for first in [first for first, shares in left.items() if sum(shares) == 0.0 and first < capacity.size]:
            start = first // gpus * gpus
            others = [start + (first - start + step) % gpus for step in range(together, gpus, together)]
            alive = next((other for other in others if other < capacity.size and capacity[other] > 0.0), None)
            if alive is None:
                raise InputError(Problem(f"node {first // gpus} has no adapter left", "conditions.dead_nics"))
            place = np.where(place == first, alive, place)
        return place, capacity, float(together)

    def shape_of(self, members: Iterable[int]) -> GroupShape:
        """How a group lies on the machine, its ranks being where they are."""
        cluster = self.run.cluster
        gpus = [int(self.gpu[rank]) for rank in members]
        domains = Counter(gpu // cluster.gpus_per_domain for gpu in gpus)
        nodes = Counter(gpu // cluster.gpus_per_node for gpu in gpus)
        leaves = {node // cluster.nodes_per_leaf for node in nodes}
        fewest = min(domains.values())
        return GroupShape(
            ranks=len(gpus),
            ranks_per_domain=max(domains.values()),
            ranks_per_node=max(nodes.values()),
            domains=len(domains),
            nodes=len(nodes),
            leaves=len(leaves),
            nic_share=fewest * cluster.nic_bandwidth_per_gpu,
            fewest_per_domain=fewest,
        )


def _lattice_of(axis: str, layout: Layout) -> tuple[GroupAxis, Layout]:
    """The axis of groups, and the layout in which it is one, of a task's axis."""
    if axis == "edp_shard":
        # A pipeline stage of the replicas that share one set of parts is a stage for itself.
        return "edp", replace(layout, dp=layout.sharing, pp=layout.pp * layout.dp // layout.sharing, shard=0)
    name: GroupAxis = "dp_cp" if axis == "dp" else axis  # type: ignore[assignment]
    return name, layout


_KEYS = {"swaps": "swap_ranks"}


def _check(conditions: Conditions, run: TrainingRun) -> None:
    cluster, gpus = run.cluster, int(run.layout.gpus)
    nodes = -(-gpus // cluster.gpus_per_node)
    problems = []
    for name, numbers, end in (
        ("slow_nodes", conditions.slow_nodes, nodes),
        ("slow_hosts", conditions.slow_hosts, nodes),
        ("slow_gpus", conditions.slow_gpus, gpus),
        ("slow_nvlinks", conditions.slow_nvlinks, gpus),
        ("swaps", [rank for pair in conditions.swaps for rank in pair], gpus),
        ("dead_nics", [node for node, _ in conditions.dead_nics], nodes),
        ("slow_nics", [node for node, _ in conditions.slow_nics], nodes),
    ):
        what = {"slow_gpus": "GPU", "slow_nvlinks": "GPU", "swaps": "rank"}.get(name, "node")
        problems += [
            Problem(f"this run has no {what} {number}", f"conditions.{_KEYS.get(name, name)}", f"0 to {end - 1}")
            for number in numbers
            if not 0 <= number < end
        ]
    for name, nics in (("dead_nics", conditions.dead_nics), ("slow_nics", conditions.slow_nics)):
        problems += [
            Problem(f"a node has no adapter {nic}", f"conditions.{name}", f"0 to {cluster.nics_per_node - 1}")
            for _, nic in nics
            if not 0 <= nic < cluster.nics_per_node
        ]
    problems += [
        Problem(f"adapter {nic} of node {node} cannot be dead and slow", "conditions.slow_nics", "keep one")
        for node, nic in conditions.dead_nics
        if (node, nic) in conditions.slow_nics
    ]
    if problems:
        raise InputError(problems)


def _refined(ranks: _Ranks, variant: _Ints, groups: Mapping[str, _Ints], *, unfold: bool, cells: _Ints | None) -> _Ints:
    """Classes of ranks: split until ranks of one class meet the same classes everywhere."""
    if unfold:
        return ranks.ranks
    start = [ranks.stage, variant] + ([] if cells is None else [cells])
    places = [np.unique(place, return_inverse=True)[1] for place, _, _ in ranks.links.values()]
    kept = [capacity[place] for place, capacity, _ in ranks.links.values()]
    start += [np.unique(values, return_inverse=True)[1] for values in kept]
    colours = _numbered(start)
    incidences = [ranks.column, *groups.values(), *places]
    incidences = [np.unique(numbers, return_inverse=True)[1] for numbers in incidences]
    while True:
        hashed = _hash(colours.astype(np.uint64))
        keys = [colours]
        for numbers in incidences:
            sums = np.zeros(int(numbers.max()) + 1, dtype=np.uint64)
            np.add.at(sums, numbers, hashed)
            keys.append(np.unique(sums[numbers], return_inverse=True)[1])
        finer = _numbered(keys)
        if int(finer.max()) == int(colours.max()):
            return finer
        colours = finer


def _numbered(keys: list[_Ints]) -> _Ints:
    """Number the distinct rows of several columns."""
    _, found = np.unique(np.stack(keys), axis=1, return_inverse=True)
    return found.reshape(-1)


def _hash(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Mix the bits of numbers, so that sums of them tell multisets apart."""
    golden, first, second = (np.uint64(constant) for constant in _MIX)
    with np.errstate(over="ignore"):
        mixed = (values + np.uint64(1)) * golden
        mixed = (mixed ^ (mixed >> np.uint64(30))) * first
        mixed = (mixed ^ (mixed >> np.uint64(27))) * second
        return mixed ^ (mixed >> np.uint64(31))


def _columns(column: _Ints, colours: _Ints, example: _Ints) -> _Ints:
    """Number the kinds of pipelines, and tell that of every lane."""
    order = np.lexsort((colours, column))
    starts = np.flatnonzero(np.r_[True, np.diff(column[order]) != 0])
    kinds: dict[tuple[int, ...], int] = {}
    of_column: dict[int, int] = {}
    for members in np.split(order, starts[1:]):
        key = tuple(colours[members].tolist())
        of_column[int(column[members[0]])] = kinds.setdefault(key, len(kinds))
    return np.array([of_column[int(column[rank])] for rank in example], dtype=np.int64)


def _met(numbers: _Ints, lane_of: _Ints, example: _Ints) -> tuple[tuple[int, ...], ...]:
    """For each lane the lanes of its group, where those are several."""
    pairs = np.unique(np.stack([numbers, lane_of]), axis=1)
    starts = np.searchsorted(pairs[0], numbers[example], side="left")
    ends = np.searchsorted(pairs[0], numbers[example], side="right")
    found = []
    for rank, start, end in zip(example.tolist(), starts.tolist(), ends.tolist(), strict=True):
        lanes = tuple(pairs[1, start:end].tolist())
        found.append(lanes if numbers[rank] >= 0 and len(lanes) > 1 else ())
    return tuple(found)


def _lanes_by_place(place: _Ints, lane_of: _Ints) -> dict[int, tuple[tuple[int, int], ...]]:
    """For each link, how many ranks of which lanes use it."""
    pairs, counts = np.unique(np.stack([place, lane_of]), axis=1, return_counts=True)
    found: dict[int, list[tuple[int, int]]] = {}
    for here, lane, count in zip(pairs[0].tolist(), pairs[1].tolist(), counts.tolist(), strict=True):
        found.setdefault(here, []).append((lane, count))
    return {here: tuple(lanes) for here, lanes in found.items()}


def _reason(slow: float, slow_host: float, shapes: tuple[tuple[str, GroupShape], ...]) -> str:
    said = [f"computes {slow:.4g} times as long"] if slow != 1.0 else []
    said += [f"launches {slow_host:.4g} times as long"] if slow_host != 1.0 else []
    said += [f"{axis} group on {int(shape.domains)} NVLink domains" for axis, shape in shapes]
    return ", ".join(said)


def _name(rank: int, reason: str, *, unfolded: bool, beside: bool) -> str:
    if unfolded:
        return f"rank {rank}" + (f", {reason}" if reason else "")
    return reason or ("same pipeline" if beside else "")
