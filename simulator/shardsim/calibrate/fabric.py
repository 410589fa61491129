"""Fit a fabric profile: ways inside a domain, ways across, smoothed corrections, and the links' own constants."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, get_args

import numpy as np

from shardsim.calibrate.fit import Constant, fit_times
from shardsim.calibrate.points import Array, Mask, Points, joined
from shardsim.calibrate.smooth import knots_around, knots_between, smooth_grid, spread_rows
from shardsim.calibrate.ways import Place, fit_ways, way_times
from shardsim.cost.algorithms import bus_factor
from shardsim.cost.collectives import PAIR, collective_transfer, far_members, message_transfer
from shardsim.cost.corrections import WIDE, correction_family
from shardsim.topology.blocks import block_shape
from shardsim.values.hardware import Cluster, Correction, FabricConstants, LinkConstants, WayConstants
from shardsim.values.num import Num, larger
from shardsim.values.operators import CollectiveKind
from shardsim.values.provenance import Basis, Provenance

KINDS: tuple[CollectiveKind, ...] = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")
FEWEST = 6
"""Fewest points from which the ways of a collective are fitted (-)."""
FEWEST_GRID = 9
"""Fewest points from which a correction is fitted (-)."""
REPORTED_FROM = {"near": 65536.0, "far": 1048576.0}
"""Errors are reported for buffers of this size and above [bytes]."""
OLDER = 0.15
"""Weight of the measurements of an older library beside those of the newest (-)."""

_NEAR_KNOTS = np.array([9.0, *knots_between(13.0, 29.0, 2.0).tolist()])
_FAR_KNOTS = knots_between(16.0, 34.0, 2.0)
_FINE_FAR_KNOTS = knots_between(18.0, 33.0, 1.0)
_POINTS_A_FINE_KNOT = 20
_MOST_FINE_ROWS = 9
"""Where one collective alone was measured across domains, and often, its correction may be finer (-)."""
_MOST_ROWS = {"near": 6, "far": 6}
_FEWEST_NEAR_ROWS = 3
_BUDGET = 200
"""Most numbers of the corrections of one class of data types that a profile may have (-)."""
_MOST_MESSAGE_KNOTS, _FEWEST_MESSAGE_KNOTS = 10, 3
_MOST_SHARE = 0.99
_FINE = 8
_SAFETY = 0.9


@dataclass(frozen=True, slots=True)
class Quality:
    """How well a collective is fitted.

    Parameters
    ----------
    kind, dtypes, place : str
    points : int
        Reported ones (-).
    median, p90, bias : float
        Of predicted / measured - 1: median and 90th percentile of its size, and its median (-).
    equations : float
        Median error before any correction (-).
    """

    kind: str
    dtypes: str
    place: str
    points: int
    median: float
    p90: float
    bias: float
    equations: float


@dataclass(frozen=True, slots=True)
class FabricFit:
    """A fitted profile and its quality.

    Parameters
    ----------
    fabric : FabricConstants
    qualities : tuple of Quality
    """

    fabric: FabricConstants
    qualities: tuple[Quality, ...]


@dataclass(frozen=True, slots=True)
class Sources:
    """Names of the sources of a profile, as its file has them.

    Parameters
    ----------
    near, far, analogy, kin : str
        Measurements inside a domain and across; another profile; another collective of the same profile.
    """

    near: str = "near"
    far: str = "far"
    analogy: str = "analogy"
    kin: str = "kin"


def fit_fabric(
    name: str,
    points: Points,
    cluster: Cluster,
    base: FabricConstants,
    like: FabricConstants | None = None,
    weights: Array | None = None,
    sources: Sources = Sources(),
    *,
    near_basis: Basis = "fitted",
) -> FabricFit:
    """Fit a fabric profile to measured collectives.

    Parameters
    ----------
    name : str
        Of the profile.
    points : Points
    cluster : Cluster
        Datasheet bandwidths and the size of a domain.
    base : FabricConstants
        The library's own constants: where the search starts, and what stays where nothing is measured.
    like : FabricConstants or None
        Profile whose constants across domains hold where nothing is measured.
    weights : ndarray of float or None
        Of the points (-), shape (points,).
    sources : Sources
    near_basis : {"fitted", "assumed"}
        Assumed where the machines measured inside a domain differ from the one described.

    Returns
    -------
    FabricFit
    """
    weights = np.ones(len(points)) if weights is None else weights
    across = crosses(points, cluster)
    fabric = replace(base, name=name, corrections={})
    if like is not None:
        fabric = _with_far(fabric, like, sources)
    qualities: list[Quality] = []
    corrections: dict[tuple[str, str, str], Correction] = {}
    ways: dict[str, tuple[WayConstants, ...]] = dict(fabric.ways)
    for place in get_args(Place):
        here = across == (place == "far")
        measured = [kind for kind in KINDS if np.sum(here & (points.kind == kind)) >= FEWEST]
        if place == "far":
            ways |= {k: _alike_on_adapters(ways[k]) for k in measured if ways[k][0].far.source != sources.analogy}
        for kinds in _together(measured, place):
            some = here & np.isin(points.kind, kinds)
            trial = replace(fabric, ways={kind: ways[kind] for kind in kinds})
            ways |= fit_ways(kinds, points.where(some), cluster, trial, place, weights[some])
        for kind in measured:
            some = here & (points.kind == kind)
            chosen, weight = points.where(some), weights[some]
            fitted = ways[kind]
            trial = replace(fabric, ways={kind: fitted})
            used = sum(len(c.log2_bytes) * len(c.log2_members) for key, c in corrections.items() if key[1] == "wide")
            later = measured[measured.index(kind) + 1 :]
            rows = _rows(place, used, len(later), 80 if across.any() else 0)
            alone = place == "far" and set(points.kind[across].tolist()) <= {kind, "send_recv"}
            grids, found = _corrected(
                kind, place, chosen, weight, cluster, trial, getattr(sources, place), rows, alone=alone
            )
            corrections |= grids
            qualities += found
            basis: Basis = near_basis if place == "near" else "fitted"
            ways[kind] = _noted(fitted, place, basis, getattr(sources, place), found)
        _fill(ways, place, sources, fabric.tuning)
    fabric = replace(fabric, ways=ways, corrections=corrections)
    fabric = replace(fabric, links=_links(fabric, cluster, points, across, sources))
    for place in get_args(Place):
        some = (points.kind == "send_recv") & (across == (place == "far"))
        if some.sum() >= FEWEST:
            fabric, found = _message_corrected(
                place, points.where(some), weights[some], cluster, fabric, getattr(sources, place)
            )
            qualities += found
    return FabricFit(fabric, tuple(qualities))


def crosses(points: Points, cluster: Cluster) -> Mask:
    """Whether each point's group lies in several NVLink domains, shape (points,)."""
    return np.asarray(points.shape(cluster).domains) > 1


def newest_first(points: Points) -> Array:
    """Weights that favour, for each device of the measured tables, the newest version of the library.

    Parameters
    ----------
    points : Points
        ``origin`` ends in ``NCCL`` and the version.

    Returns
    -------
    ndarray of float
    """
    versions = np.array([_version(origin) for origin in points.origin.tolist()])
    newest = {device: max(versions[points.device == device].tolist()) for device in np.unique(points.device)}
    latest = np.array([version == newest[d] for version, d in zip(versions.tolist(), points.device, strict=True)])
    return np.where(latest, 1.0, OLDER)


def _version(origin: str) -> int:
    numbers = [int(part) for part in origin.rsplit(" ", 1)[-1].split(".") if part.isdigit()]
    return sum(number * 1000 ** (3 - place) for place, number in enumerate(numbers[:4]))


def _together(kinds: list[CollectiveKind], place: Place) -> list[list[CollectiveKind]]:
    """Collectives that are fitted together, by one ring: so an all-reduce by ring takes what its halves take.

    A broadcast's ring does not send in all directions at once: between nodes only, where adapters decide, it is alike.
    """
    apart = ("all_to_all", "broadcast") if place == "near" else ("all_to_all",)
    rings: list[CollectiveKind] = [kind for kind in kinds if kind not in apart]
    return [*([rings] if rings else []), *([kind] for kind in kinds if kind in apart)]


_ALIKE = ("ring", "tree", "nvls_tree")


def _alike_on_adapters(ways: tuple[WayConstants, ...]) -> tuple[WayConstants, ...]:
    """Let rings and trees start from one share of the adapters: those not measured then take that of those measured.

    What an adapter and its path give is theirs and not the algorithm's. NCCL chooses as if a tree had four fifths of a
    ring; where both were measured (GH200, Slingshot), a tree between two nodes had 0.98 of it. One fabric is thin
    evidence: it is where a fit starts, and what is measured moves it. Not so LL, whose flags double its bytes.
    """
    ring = next((way.far_share for way in ways if (way.algorithm, way.protocol) == ("ring", "Simple")), None)
    if ring is None:
        return ways
    return tuple(
        replace(way, far_share=ring) if way.algorithm in _ALIKE and way.protocol != "LL" else way for way in ways
    )


def _with_far(fabric: FabricConstants, like: FabricConstants, sources: Sources) -> FabricConstants:
    """Take the constants across domains, and the corrections to them, from another profile, by analogy."""
    ways = {}
    for kind, own in fabric.ways.items():
        others = {(way.algorithm, way.protocol): way for way in like.ways.get(kind, ())}
        ways[kind] = tuple(_far_of(way, others.get((way.algorithm, way.protocol)), sources) for way in own)
    note = Provenance("assumed", sources.analogy)
    nic = like.links["nic"]
    nic = replace(nic, provenance=note, constants=dict.fromkeys(nic.constants, note))
    return replace(fabric, ways=ways, links={**fabric.links, "nic": nic})


def _far_of(way: WayConstants, other: WayConstants | None, sources: Sources) -> WayConstants:
    if other is None:
        return way
    return replace(
        way,
        far_base=other.far_base,
        far_step=other.far_step,
        far_share=other.far_share,
        far_half=other.far_half,
        far=Provenance("assumed", sources.analogy),
    )


_CONSTANTS: dict[Place, tuple[str, ...]] = {
    "near": ("base_latency", "near_step", "near_share", "near_half"),
    "far": ("far_base", "far_step", "far_share", "far_half"),
}


def _fill(
    ways: dict[str, tuple[WayConstants, ...]],
    place: Place,
    sources: Sources,
    library: Mapping[str, Sequence[WayConstants]],
) -> None:
    """Where a collective was not measured but another was, take over what the same ways achieved there.

    Other ways keep the library's ratio to the ring of the same protocol.
    """
    known = [kind for kind in KINDS if getattr(ways[kind][0], place).basis == "fitted"]
    fitted = [kind for kind in known if kind in ("all_reduce", "all_gather", "reduce_scatter")]
    if not fitted:
        return
    for kind in KINDS:
        if kind in known or getattr(ways[kind][0], place).source == sources.analogy:
            continue
        model = next((k for k in ("all_gather", "reduce_scatter", "all_reduce") if k in fitted), fitted[0])
        others = {(way.algorithm, way.protocol): way for way in ways[model]}
        expected = {(way.algorithm, way.protocol): way for way in library.get(model, ())}
        ways[kind] = tuple(_like(way, others, place, sources, expected) for way in ways[kind])


def _like(
    way: WayConstants,
    others: Mapping[tuple[str, str], WayConstants],
    place: Place,
    sources: Sources,
    library: Mapping[tuple[str, str], WayConstants],
) -> WayConstants:
    note = Provenance("assumed", sources.kin)
    other = others.get((way.algorithm, way.protocol))
    if other is not None:
        return _changed(way, place, note, {name: getattr(other, name) for name in _CONSTANTS[place]})
    ring, expected = (known.get(("ring", way.protocol)) for known in (others, library))
    if ring is None or expected is None:
        return _changed(way, place, note, {})
    if place == "near":
        # NCCL grants a parallel tree three quarters of a ring's bandwidth.
        return _changed(way, place, note, {"near_share": (0.75 if way.algorithm == "pat" else 1.0) * ring.near_share})
    alike = way.algorithm in _ALIKE and way.protocol != "LL"
    share = ring.far_share if alike else min(way.far_share * ring.far_share / expected.far_share, _MOST_SHARE)
    # All messages of an all-to-all are on their way at once: its steps are not a ring's.
    slower = 1.0 if way.algorithm == "direct" else ring.far_step / expected.far_step
    found = {"far_share": share, "far_base": ring.far_base, "far_step": way.far_step * slower}
    return _changed(way, place, note, found)


def _changed(way: WayConstants, place: Place, note: Provenance, values: Mapping[str, Any]) -> WayConstants:
    """A way with other constants on one side of the domain's border, and a note of where they come from."""
    noted: Mapping[str, Any] = {place: note}
    return replace(way, **values, **noted)


def _noted(
    ways: tuple[WayConstants, ...], place: Place, basis: Basis, source: str, found: list[Quality]
) -> tuple[WayConstants, ...]:
    points = sum(quality.points for quality in found)
    error = float(np.average([q.median for q in found], weights=[q.points for q in found])) if points else None
    note = Provenance(basis, source, None if error is None else round(error, 4), points or None)
    return tuple(_changed(way, place, note, {}) for way in ways)


def _rows(place: Place, used: int, later: int, reserved: int) -> int:
    """Rows of the next correction: what the budget allows when the later collectives shall have some too."""
    if place == "near":
        room = (_BUDGET - reserved - used) // len(_NEAR_KNOTS)
        return max(min(room - _FEWEST_NEAR_ROWS * later, _MOST_ROWS[place]), _FEWEST_NEAR_ROWS)
    room = (_BUDGET - used) // len(_FAR_KNOTS)
    return max(min(room - 2 * later, _MOST_ROWS[place]), min(room, 1))


def _corrected(
    kind: CollectiveKind,
    place: Place,
    points: Points,
    weights: Array,
    cluster: Cluster,
    fabric: FabricConstants,
    source: str,
    most_rows: int,
    *,
    alone: bool,
) -> tuple[dict[tuple[str, str, str], Correction], list[Quality]]:
    """Fit the corrections of both classes of data types, and say how well the result fits."""
    grids: dict[tuple[str, str, str], Correction] = {}
    qualities: list[Quality] = []
    families = np.array([correction_family(kind, dtype) for dtype in points.dtype.tolist()])
    for family in np.unique(families).tolist():
        some = families == family
        chosen = points.where(some)
        plain = way_times(kind, chosen, cluster, fabric)
        final = fabric
        if most_rows and (place == "near" or family == "wide"):
            grid = _grid(
                kind, family, place, chosen, weights[some], plain, cluster, fabric, source, most_rows, alone=alone
            )
            final = replace(fabric, corrections={(kind, family, place): grid})
            worse = _off(way_times(kind, chosen, cluster, final), chosen) > _off(plain, chosen)
            if worse or len(chosen) < FEWEST_GRID:
                # Few points, or groups of one size that lie otherwise and contradict each other: no correction serves
                # them. That it corrects nothing still tells where they lie.
                grid = replace(grid, log_ratio=tuple((0.0,) * len(row) for row in grid.log_ratio))
                final = replace(fabric, corrections={(kind, family, place): grid})
            grids[kind, family, place] = grid
        qualities += _quality(kind, family, place, chosen, plain, way_times(kind, chosen, cluster, final))
    return grids, qualities


def _off(times: Array, points: Points) -> float:
    return float(np.median(np.abs(np.log(times / points.seconds))))


def _grid(
    kind: CollectiveKind,
    family: str,
    place: Place,
    points: Points,
    weights: Array,
    plain: Array,
    cluster: Cluster,
    fabric: FabricConstants,
    source: str,
    most: int,
    *,
    alone: bool,
) -> Correction:
    shape = points.shape(cluster)
    members = np.asarray(shape.ranks if place == "near" else far_members(kind, shape), dtype=np.float64)
    knots = _NEAR_KNOTS if place == "near" else _FAR_KNOTS
    if place == "far" and alone and len(points) >= _POINTS_A_FINE_KNOT * len(_FINE_FAR_KNOTS):
        knots, most = _FINE_FAR_KNOTS, _MOST_FINE_ROWS
    knots = knots_around(np.log2(points.size), knots)
    rows = spread_rows(members, most)
    together = float(np.median(shape.ranks_per_node))

    def times(row: float, size: Array) -> Num:
        """Modelled times of one row, at the GPUs a node that are usual in the measurements."""
        count: Num = 2.0**row
        if place == "near":
            group = block_shape(
                cluster, np.minimum(count, cluster.gpus_per_node), np.ceil(count / cluster.gpus_per_node)
            )
        else:
            per_domain = max(cluster.gpus_per_domain // cluster.gpus_per_node, 1)
            if kind == "all_to_all":
                count = larger(count / together, 2.0)
            group = block_shape(cluster, together, np.ceil(count) * per_domain)
        dtype = "int8" if family == "narrow" else "half"
        return collective_transfer(kind, size, group, cluster, fabric, dtype=dtype).seconds

    note = Provenance("fitted", source, points=len(points))
    return smooth_grid(
        points.size,
        members,
        np.log(points.seconds / plain),
        knots,
        rows,
        least_rises(times, rows, knots),
        note,
        weights,
    )


def least_rises(times: Callable[[float, Array], Num], rows: Array, knots: Array) -> Array:
    """How much the logarithm of modelled times rises at least from a knot to the next, shape (rows, sizes - 1).

    The steepest fall that a correction may have anywhere between two knots, so that more bytes never take less time.
    Where the equations themselves fall, at a switch of protocols, it may not fall at all.
    """
    fine = np.concatenate([np.linspace(a, b, _FINE, endpoint=False) for a, b in pairwise(knots)] + [knots[-1:]])
    slopes = np.stack([np.diff(np.log(np.asarray(times(row, 2.0**fine)))) for row in rows])
    least = slopes.reshape(len(rows), len(knots) - 1, _FINE).min(axis=2) * _FINE
    # Between two rows both corrections act on one group: the flatter of its neighbours bounds both.
    padded = np.pad(least, ((1, 1), (0, 0)), constant_values=np.inf)
    flattest = np.minimum(np.minimum(padded[:-2], padded[2:]), least)
    bounded: Array = np.maximum(_SAFETY * flattest, 0.0)
    return bounded


def _quality(kind: str, family: str, place: Place, points: Points, plain: Array, final: Array) -> list[Quality]:
    big = points.size >= REPORTED_FROM[place]
    if not big.any():
        return []
    error, before = ((times[big] / points.seconds[big]) - 1.0 for times in (final, plain))
    return [
        Quality(
            kind,
            family,
            place,
            int(big.sum()),
            float(np.median(np.abs(error))),
            float(np.quantile(np.abs(error), 0.9)),
            float(np.median(error)),
            float(np.median(np.abs(before))),
        )
    ]


# The links' own constants: what messages use, and what reports show.

_HUGE = 2.0**34
_SMALL_MESSAGE = 2.0**20
_SPAN, _FEW = 64.0, 0.1
"""Largest over smaller messages, and the latter's share, from which it is seen how bandwidth rises with size (-)."""
_MESSAGE = (
    Constant("efficiency", 0.8, 0.05, 1.0),
    Constant("latency", 1e-5, 1e-6, 1e-3),
    Constant("half", 1e5, 1.0, 1e9),
)


def _links(
    fabric: FabricConstants, cluster: Cluster, points: Points, across: Mask, sources: Sources
) -> Mapping[str, LinkConstants]:
    """Shares of a link that large buffers reach, as a ring would need it, and how single messages do."""
    links = dict(fabric.links)
    per_domain = max(cluster.gpus_per_domain // cluster.gpus_per_node, 1)
    for link, nodes in (("nvlink", 1.0), ("nic", 4.0 * per_domain)):
        shape = block_shape(cluster, float(cluster.gpus_per_node), nodes)
        own = links[link]
        bandwidth = cluster.nvlink.bandwidth if link == "nvlink" else shape.nic_share
        shares = {"default": own.efficiency["default"]}
        notes = {"efficiency.default": own.provenance}
        for kind in KINDS:
            transfer = collective_transfer(kind, _HUGE, shape, cluster, fabric)
            # In-switch reduction shows a larger share than a link has, as bus bandwidth does.
            sent = transfer.wire[link] if kind == "all_to_all" else _HUGE * bus_factor(kind, shape.ranks)
            shares[kind] = round(float(sent / transfer.seconds / bandwidth), 4)
            way = fabric.ways[kind][0]
            notes[f"efficiency.{kind}"] = way.near if link == "nvlink" else way.far
        shares["default"], notes["efficiency.default"] = shares["all_gather"], notes["efficiency.all_gather"]
        if "send_recv" in own.efficiency:
            shares["send_recv"] = own.efficiency["send_recv"]
            notes["efficiency.send_recv"] = own.provenance_of("send_recv")
        constants = {**own.constants, **notes}
        links[link] = replace(own, efficiency=shares, constants=constants, provenance=notes["efficiency.default"])
        some = (points.kind == "send_recv") & (across == (link == "nic"))
        if some.sum() >= FEWEST:
            links[link] = _message_link(links[link], link, points.where(some), cluster, fabric, sources)
        fitted = any(note.basis == "fitted" for note in links[link].constants.values())
        product = (cluster.nvlink if link == "nvlink" else cluster.nic).name
        links[link] = replace(links[link], measured_on=product if fitted else "")
    return links


def _message_link(
    own: LinkConstants, link: str, points: Points, cluster: Cluster, fabric: FabricConstants, sources: Sources
) -> LinkConstants:
    """Fit latency and bandwidth of single messages; a rank sends to its neighbour, of whom few leave the node."""
    nic = np.where(np.isfinite(points.nic_per_gpu), points.nic_per_gpu, cluster.nic_bandwidth_per_gpu)
    far = 1.0 if link == "nic" else 0.0

    def times(constants: Mapping[str, float]) -> Array:
        trial = _with_message(own, constants)
        moved = replace(fabric, links={**fabric.links, link: trial})
        sent = message_transfer(points.size, leaves_domain=far, nic_share=nic, cluster=cluster, fabric=moved)
        return np.asarray(sent.seconds)

    small = points.size.min() < _SMALL_MESSAGE
    rising = np.mean(points.size <= points.size.max() / _SPAN) >= _FEW
    free = [c for c in _MESSAGE if {"latency": small, "half": rising}.get(c.name, True)]
    found = fit_times(times, points.seconds, free)
    source = sources.far if link == "nic" else sources.near
    note = Provenance("fitted", source, round(found.median_error, 4), found.points)
    latencies = ("base_latency", "step_latency") if small else ()
    names = ("efficiency.send_recv", *(("half_bandwidth",) if rising else ()), *latencies)
    return replace(_with_message(own, found.constants), constants={**own.constants, **dict.fromkeys(names, note)})


def _with_message(own: LinkConstants, constants: Mapping[str, float]) -> LinkConstants:
    """A link with other constants of messages; large messages say nothing of latencies, which then stay."""
    shares = {**own.efficiency, "send_recv": constants["efficiency"]}
    own = replace(own, efficiency=shares, half_bandwidth_bytes=constants.get("half", own.half_bandwidth_bytes))
    if "latency" not in constants:
        return own
    # A message pays both, so that only their sum is known.
    half = 0.5 * constants["latency"]
    return replace(own, base_latency=half, step_latency=half)


def _message_corrected(
    place: Place, points: Points, weights: Array, cluster: Cluster, fabric: FabricConstants, source: str
) -> tuple[FabricConstants, list[Quality]]:
    """Correct messages by their size where that helps, within what is left of the budget."""
    plain = predict(points, cluster, fabric)
    used = sum(len(c.log2_bytes) * len(c.log2_members) for key, c in fabric.corrections.items() if key[1] == WIDE)
    most = min(_BUDGET - used, _MOST_MESSAGE_KNOTS)
    final, trial = plain, fabric
    if len(points) >= FEWEST_GRID and most >= _FEWEST_MESSAGE_KNOTS:
        least, largest = float(np.floor(np.log2(points.size.min()))), float(np.ceil(np.log2(points.size.max())))
        step = max(float(np.ceil((largest - least) / (most - 1))), 1.0)
        knots = knots_between(largest - step * max(np.ceil((largest - least) / step), 1.0), largest, step)
        rows = np.log2(np.array([PAIR]))

        def times(_: float, size: Array) -> Num:
            far, nic = float(place == "far"), cluster.nic_bandwidth_per_gpu
            return message_transfer(size, leaves_domain=far, nic_share=nic, cluster=cluster, fabric=fabric).seconds

        grid = smooth_grid(
            points.size,
            np.full(len(points), PAIR),
            np.log(points.seconds / plain),
            knots,
            rows,
            least_rises(times, rows, knots),
            Provenance("fitted", source, points=len(points)),
            weights,
        )
        trial = replace(fabric, corrections={**fabric.corrections, ("send_recv", WIDE, place): grid})
        final = predict(points, cluster, trial)
        if _off(final, points) > _off(plain, points):
            final, trial = plain, fabric
    if trial is not fabric:
        # The constants' error is that of what they predict, which now is corrected.
        link = "nvlink" if place == "near" else "nic"
        error = round(float(np.median(np.abs(final / points.seconds - 1.0))), 4)
        own = trial.links[link]
        before = own.provenance_of("send_recv")
        notes = {key: replace(note, error=error) if note == before else note for key, note in own.constants.items()}
        trial = replace(trial, links={**trial.links, link: replace(own, constants=notes)})
    return trial, _quality("send_recv", WIDE, place, points, plain, final)


def predict(points: Points, cluster: Cluster, fabric: FabricConstants) -> Array:
    """Times of measured points by a profile [s], shape (points,).

    Parameters
    ----------
    points : Points
        Collectives and, for groups across domains, messages to the next rank.
    cluster : Cluster
    fabric : FabricConstants
    """
    times = np.empty(len(points))
    for kind in np.unique(points.kind).tolist():
        some = points.kind == kind
        part = points.where(some)
        if kind != "send_recv":
            times[some] = way_times(kind, part, cluster, fabric)
            continue
        nic = np.where(np.isfinite(part.nic_per_gpu), part.nic_per_gpu, cluster.nic_bandwidth_per_gpu)
        far = np.asarray(part.shape(cluster).domains > 1, dtype=np.float64)
        times[some] = message_transfer(
            part.size, leaves_domain=far, nic_share=nic, cluster=cluster, fabric=fabric
        ).seconds
    return times


def all_points(parts: list[Points]) -> Points:
    """All points of several sets, of which any may be empty."""
    return joined([part for part in parts if len(part)] or parts[:1])
