"""A user's own logs into a fabric profile: which rows, what is fitted to them, how well, and how well elsewhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any

import numpy as np

from shardsim.calibrate.fabric import FEWEST, KINDS, Sources, crosses, fit_fabric, predict
from shardsim.calibrate.fabricfile import fabric_yaml
from shardsim.calibrate.nccl.table import NcclLog, NcclTest, Timing
from shardsim.calibrate.points import Array, Mask, Points, points
from shardsim.calibrate.ways import Place
from shardsim.errors import InputError, Problem
from shardsim.schema.catalog import near
from shardsim.values.hardware import Cluster, Correction, FabricConstants, LinkConstants, WayConstants
from shardsim.values.provenance import Provenance

_KINDS = {kind: kind for kind in KINDS} | {"alltoall": "all_to_all", "sendrecv": "send_recv"}
_DISTURBED = 2.0
"""A buffer that took over so many times the time of a larger one was disturbed (-)."""
_FEWEST_SIZES = 4
"""Fewest sizes to train on when the others are held out (-)."""
_POOR = 0.25
"""Median error from which on something else than the fit is wrong (-)."""
_LIMIT = 200
"""Most numbers of the corrections of one class of data types, as the loader has it (-)."""
_MOST_CITED = 8
_SOURCES = Sources(near="own_near", far="own_far", analogy="own_analogy", kin="own_kin")
HEADER = (
    "Written by shardsim calibrate nccl: collectives that were measured are fitted, all else is as in the profile that",
    "this one is based on.",
)


@dataclass(frozen=True, slots=True)
class Samples:
    """Rows of logs as points.

    Parameters
    ----------
    points : Points
        What a fit may use; ``origin`` is the name of the log.
    aside : Points
        What has a time that no fit uses.
    left : mapping of str to int
        How many rows were left aside, by reason.
    notes : tuple of str
        What a user should look at.
    """

    points: Points
    aside: Points
    left: Mapping[str, int]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Error:
    """Size of predicted / measured - 1.

    Parameters
    ----------
    points : int
    median, p90 : float
        (-).
    """

    points: int
    median: float
    p90: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one collective inside a domain or across.

    Parameters
    ----------
    kind, place : str
    fitted : bool
        False where there were too few points.
    before, after : Error
        With the base profile and with the new one.
    held_out : Error or None
        On every other size when trained on the rest; None where there are too few sizes.
    basis : str
        What its constants rest on now.
    """

    kind: str
    place: str
    fitted: bool
    before: Error
    after: Error
    held_out: Error | None
    basis: str


@dataclass(frozen=True, slots=True)
class UserFit:
    """A profile fitted to a user's logs.

    Parameters
    ----------
    fabric, base : FabricConstants
        The new profile, and the one that it starts from.
    cluster : Cluster
    samples : Samples
    before, after : ndarray of float
        Times of ``samples.points`` by ``base`` and by ``fabric`` [s], shape (points,).
    verdicts : tuple of Verdict
    notes : tuple of str
    """

    fabric: FabricConstants
    base: FabricConstants
    cluster: Cluster
    samples: Samples
    before: Array
    after: Array
    verdicts: tuple[Verdict, ...]
    notes: tuple[str, ...]


# Where the ranks of a test lie.


def placed(logs: Sequence[NcclLog], gpus_per_node: Mapping[str, int]) -> tuple[NcclLog, ...]:
    """Complete the logs that do not say how their ranks lie on nodes.

    Parameters
    ----------
    logs : sequence of NcclLog
    gpus_per_node : mapping of str to int
        GPUs a node (-) by path or name of a log; under the empty name of all logs that do not say it.

    Returns
    -------
    tuple of NcclLog

    Raises
    ------
    InputError
        A name of no log, or a number that cannot be; every one at once.
    """
    names = {name for log in logs for name in _names(log)}
    problems = [
        Problem(f"{name!r} is none of the logs", "--gpus-per-node", near(name, sorted(names)))
        for name in gpus_per_node
        if name and name not in names
    ]
    found = []
    for log in logs:
        own = next((gpus_per_node[name] for name in _names(log) if name in gpus_per_node), None)
        told = own or gpus_per_node.get("")
        tests = []
        for test in log.tests:
            if told is None or (own is None and test.nodes):
                tests.append(test)
            elif own is not None and test.gpus_per_node not in (None, own):
                what = f"{log.file} has {test.gpus_per_node} GPUs a node by its list of ranks, not {own}"
                problems.append(Problem(what, "--gpus-per-node"))
            elif test.ranks % told:
                what = f"{test.ranks} ranks of {log.file} are no whole number of nodes with {told} GPUs"
                problems.append(Problem(what, "--gpus-per-node", f"--gpus-per-node {PurePath(log.file).name}=N"))
            else:
                tests.append(replace(test, nodes=test.ranks // told, gpus_per_node=told))
        found.append(replace(log, tests=tuple(tests)))
    if problems:
        raise InputError(list(dict.fromkeys(problems)))
    return tuple(found)


def _names(log: NcclLog) -> tuple[str, str]:
    return log.file, PurePath(log.file).name


def _placement_problems(test: NcclTest, cluster: Cluster) -> Iterator[Problem]:
    """Why a test cannot be placed on a cluster; unevenly filled nodes are no problem of the input."""
    if not test.nodes:
        what = f"does not say how its {test.ranks} ranks lie on nodes"
        yield Problem(what, test.file, f"--gpus-per-node N, or --gpus-per-node {PurePath(test.file).name}=N")
    elif test.gpus_per_node and test.gpus_per_node > cluster.gpus_per_node:
        what = f"has {test.gpus_per_node} GPUs a node, and {cluster.name} has {cluster.gpus_per_node}"
        yield Problem(what, test.file, "name the cluster that it was measured on")
    elif cluster.max_gpus is not None and test.ranks > cluster.max_gpus:
        what = f"has a group of {test.ranks} ranks, and {cluster.name} has {cluster.max_gpus} GPUs"
        yield Problem(what, test.file, "name the cluster that it was measured on")


# Rows that a fit may use.


def samples_of(logs: Sequence[NcclLog], cluster: Cluster) -> Samples:
    """Take the rows that a fit may use, and say of the others why not.

    Parameters
    ----------
    logs : sequence of NcclLog
        Placed, see :func:`placed`.
    cluster : Cluster
        What they were measured on.

    Returns
    -------
    Samples

    Raises
    ------
    InputError
        Tests whose placement is not known or does not fit the cluster, or not one row that a fit may use.
    """
    tests = [test for log in logs for test in log.tests]
    modelled = [test for test in tests if not _unfit(test)]
    problems = [problem for test in modelled for problem in _placement_problems(test, cluster)]
    if problems:
        raise InputError(list(dict.fromkeys(problems)))
    left: Counter[str] = Counter()
    used, aside = [], []
    for test in tests:
        reason = _unfit(test)
        if reason:
            left[reason] += len(test.rows)
            continue
        rows = [_record(test, row.bytes, row.out_of_place or row.in_place) for row in test.rows]
        usable = test.usable
        left["wrong results"] += test.wrong_rows
        left["buffers of 0 bytes"] += sum(row.bytes == 0 for row in test.rows)
        left["in-place halves: the out-of-place half is taken"] += sum(
            row.in_place is not None and row.out_of_place is not None for row in test.rows
        )
        good = [row for row, ok in zip(rows, usable.tolist(), strict=True) if ok]
        steady = undisturbed(*(np.array([row[name] for row in good], float) for name in ("size", "seconds")))
        left[f"over {_DISTURBED:g} times as long as a larger buffer: first use, or disturbed"] += int((~steady).sum())
        used += [row for row, ok in zip(good, steady.tolist(), strict=True) if ok]
        aside += [row for row, ok in zip(good, steady.tolist(), strict=True) if not ok]
        aside += [row for row, own in zip(rows, test.rows, strict=True) if own.is_wrong and own.bytes]
    if not used:
        reasons = "; ".join(f"{count} rows: {reason}" for reason, count in left.items() if count)
        raise InputError(Problem("not one row that a fit may use", "LOG", reasons))
    return Samples(
        points(used), points(aside), {why: count for why, count in left.items() if count}, _doubts(modelled, cluster)
    )


def _unfit(test: NcclTest) -> str:
    """Why no fit uses any row of a test; empty when it may."""
    if test.collective not in _KINDS:
        return f"{test.collective} is not modelled"
    if not test.is_communication:
        return "a group of one rank sends nothing"
    if test.is_mixed:
        return "rows of several jobs that ran at once"
    if test.nodes and not test.gpus_per_node:
        return "nodes with different numbers of GPUs"
    return ""


def _record(test: NcclTest, size: int, timing: Timing | None) -> dict[str, object]:
    return {
        "kind": _KINDS[test.collective],
        "size": size,
        "seconds": np.nan if timing is None else timing.time_s,
        "dtype": test.dtype,
        "nodes": test.nodes,
        "gpus_per_node": test.gpus_per_node,
        "nic_per_gpu": np.nan,
        "device": test.device,
        "origin": PurePath(test.file).name,
    }


def undisturbed(size: Array, seconds: Array) -> Mask:
    """Leave out the fewest rows of a test so that none takes over twice the time of a larger buffer.

    A first use, or another job on the same links, shows as such a row; what is only a little too slow is left to the
    fit, which is robust.

    Parameters
    ----------
    size : ndarray of float
        [bytes], shape (rows,).
    seconds : ndarray of float
        [s], shape (rows,).

    Returns
    -------
    ndarray of bool
        Rows to keep, shape (rows,).

    Examples
    --------
    >>> undisturbed(np.array([8.0, 16.0, 32.0, 64.0]), np.array([10.0, 95.0, 10.5, 11.0])).tolist()
    [True, False, True, True]
    """
    turned = (size[:, None] < size[None, :]) & (seconds[:, None] > _DISTURBED * seconds[None, :])
    kept = np.ones(len(size), dtype=bool)
    while (at_odds := (turned.sum(axis=0) + turned.sum(axis=1))).any():
        worst = int(np.argmax(at_odds))
        kept[worst] = False
        turned[worst], turned[:, worst] = False, False
    return kept


def _doubts(tests: Sequence[NcclTest], cluster: Cluster) -> tuple[str, ...]:
    """Logs of another GPU than the cluster's, as far as names tell."""
    family = cluster.device.name.split("-")[0].lower()
    found = {test.device: test.file for test in tests if test.device and family not in test.device.lower()}
    return tuple(
        f"{PurePath(file).name} was measured on {device}; the GPU of {cluster.name} is {cluster.device.name}"
        for device, file in found.items()
    )


# The fit.


def fit_samples(name: str, samples: Samples, cluster: Cluster, base: FabricConstants) -> UserFit:
    """Fit a profile to a user's rows, and say how well it fits them and sizes that it has not seen.

    Parameters
    ----------
    name : str
        Of the profile.
    samples : Samples
    cluster : Cluster
    base : FabricConstants
        Where the search starts, and what holds where too little was measured.

    Returns
    -------
    UserFit

    Raises
    ------
    InputError
        The base profile lacks the algorithms of a collective.
    """
    lacking = [kind for kind in KINDS if not base.ways.get(kind)]
    if lacking:
        what = f"fabric profile {base.name} says nothing of the algorithms of {', '.join(lacking)}"
        raise InputError(Problem(what, right="base it on one that does, such as nccl-hopper"))
    measured = samples.points
    fabric, notes = _fitted(name, measured, cluster, base)
    before, after = (predict(measured, cluster, profile) for profile in (base, fabric))
    held_out = _held_out(measured, cluster, base)
    verdicts = []
    for kind, place, some in _parts(measured, cluster):
        tested = some & np.isfinite(held_out)
        verdicts.append(
            Verdict(
                kind,
                place,
                fitted=int(some.sum()) >= FEWEST,
                before=error_of(before[some], measured.seconds[some]),
                after=error_of(after[some], measured.seconds[some]),
                held_out=error_of(held_out[tested], measured.seconds[tested]) if tested.any() else None,
                basis=_basis(fabric, kind, place),
            )
        )
    poor = [v for v in verdicts if v.fitted and v.after.median > _POOR]
    notes += [
        f"{v.kind} {PLACES[v.place]} is off by {v.after.median:.0%} after the fit: is {cluster.name} what was measured?"
        for v in poor
    ]
    return UserFit(fabric, base, cluster, samples, before, after, tuple(verdicts), (*samples.notes, *notes))


PLACES = {"near": "inside an NVLink domain", "far": "across NVLink domains"}


def error_of(predicted: Array, measured: Array) -> Error:
    """Error of predicted times.

    Parameters
    ----------
    predicted, measured : ndarray of float
        [s], shape (points,).
    """
    off = np.abs(predicted / measured - 1.0)
    return Error(len(off), float(np.median(off)), float(np.quantile(off, 0.9)))


def _parts(measured: Points, cluster: Cluster) -> Iterator[tuple[str, str, Mask]]:
    """Collectives inside a domain and across, with their points."""
    across = crosses(measured, cluster)
    for kind in (*KINDS, "send_recv"):
        for place, lies in (("near", ~across), ("far", across)):
            some = (measured.kind == kind) & lies
            if some.any():
                yield kind, place, some


def _fitted(name: str, measured: Points, cluster: Cluster, base: FabricConstants) -> tuple[FabricConstants, list[str]]:
    """Fit, and keep the corrections of the base wherever the constants that they correct are still the same."""
    fabric = fit_fabric(name, measured, cluster, base, sources=_SOURCES).fabric
    fabric = _as_before(fabric, base, measured, cluster)
    same = {
        key: correction
        for key, correction in base.corrections.items()
        if key not in fabric.corrections and _same(fabric, base, key[0], key[2])
    }
    dropped = []
    for family in ("wide", "narrow"):
        own = sum(_numbers(c) for key, c in fabric.corrections.items() if key[1] == family)
        for key in sorted((k for k in same if k[1] == family), key=lambda k: _numbers(same[k])):
            own += _numbers(same[key])
            if own > _LIMIT:
                dropped.append(key)
    kept = {key: correction for key, correction in same.items() if key not in dropped}
    notes = [
        f"the correction of {kind} {PLACES[place]} of {base.name} is left out: a profile holds {_LIMIT} numbers"
        for kind, _, place in dropped
    ]
    return replace(fabric, corrections=kept | dict(fabric.corrections)), notes


def _numbers(correction: Correction) -> int:
    return len(correction.log2_bytes) * len(correction.log2_members)


_ACROSS_ONLY = ("tree", "nvls_tree", "sharp", "pat")
"""Algorithms that only groups across domains use: a fit to those moves what the way achieves inside, too."""


def _constants(way: WayConstants, place: Place) -> dict[str, Any]:
    """What of a way groups inside a domain show, or groups across, and where it comes from."""
    names = ("base_latency", "near_step", "near_half") if place == "near" else _FAR
    if (way.algorithm in _ACROSS_ONLY) == (place == "far"):
        names += ("near_share",)
    return {name: getattr(way, name) for name in (*names, place)}


_FAR: tuple[str, ...] = ("far_base", "far_step", "far_share", "far_half")


def _same(fabric: FabricConstants, base: FabricConstants, kind: str, place: str) -> bool:
    """Whether a collective, or a message, still has the constants of the base."""
    if kind == "send_recv":
        link = "nvlink" if place == "near" else "nic"
        return fabric.links[link].provenance_of(kind) == base.links[link].provenance_of(kind)
    asked: Place = "near" if place == "near" else "far"
    own, other = (
        [_constants(way, asked) | {asked: None} for way in profile.ways.get(kind, ())] for profile in (fabric, base)
    )
    return own == other


def _as_before(fabric: FabricConstants, base: FabricConstants, measured: Points, cluster: Cluster) -> FabricConstants:
    """Take back what was changed of collectives that had too few points, or that nothing new was learnt of."""
    some_points = {(kind, place) for kind, place, _ in _parts(measured, cluster)}
    ways, links = dict(fabric.ways), dict(fabric.links)
    places: tuple[tuple[Place, str, str], ...] = (("near", "nvlink", _SOURCES.near), ("far", "nic", _SOURCES.far))
    for place, link, own in places:
        notes: dict[str, Provenance] = {kind: getattr(fabric.ways[kind][0], place) for kind in KINDS}
        # Which collective stands in for those that were not measured is for the fit to say: the first that is fitted.
        model = next((k for k in ("all_gather", "reduce_scatter", "all_reduce") if notes[k].basis == "fitted"), None)
        learnt = model is not None and notes[model].source == own
        for kind in KINDS:
            taken_over = learnt and notes[kind].source == _SOURCES.kin and (kind, place) not in some_points
            if notes[kind].source == own or taken_over:
                continue
            pairs = zip(ways[kind], base.ways[kind], strict=True)
            ways[kind] = tuple(replace(way, **_constants(before, place)) for way, before in pairs)
            links[link] = _link_as_before(links[link], base.links[link], kind)
        if own not in {note.source for note in links[link].constants.values()}:
            links[link] = base.links[link]
    return replace(fabric, ways=ways, links=links)


def _link_as_before(link: LinkConstants, base: LinkConstants, kind: str) -> LinkConstants:
    shares, notes = dict(link.efficiency), dict(link.constants)
    for name in (kind, "default") if kind == "all_gather" else (kind,):
        if name in base.efficiency:
            shares[name], notes[f"efficiency.{name}"] = base.efficiency[name], base.provenance_of(name)
    return replace(link, efficiency=shares, constants=notes, provenance=notes["efficiency.default"])


def _basis(fabric: FabricConstants, kind: str, place: str) -> str:
    if kind == "send_recv":
        return fabric.links["nic" if place == "far" else "nvlink"].provenance_of(kind).basis
    note: Provenance = getattr(fabric.ways[kind][0], place)
    return note.basis


def _held_out(measured: Points, cluster: Cluster, base: FabricConstants) -> Array:
    """Times of every other size by a fit to the rest [s], shape (points,); NaN where nothing was held out."""
    # Sizes are rounded to whole elements of every rank: what differs by less than a fifth is one size.
    sizes = np.rint(4.0 * np.log2(measured.size))
    train, test = np.zeros(len(measured), dtype=bool), np.zeros(len(measured), dtype=bool)
    for _, _, some in _parts(measured, cluster):
        distinct = np.unique(sizes[some])
        chosen = some & np.isin(sizes, distinct[::2])
        if chosen.sum() >= FEWEST and len(distinct[::2]) >= _FEWEST_SIZES:
            train |= chosen
            test |= some & ~chosen
    found = np.full(len(measured), np.nan)
    if test.any():
        fabric, _ = _fitted("held out", measured.where(train), cluster, base)
        found[test] = predict(measured.where(test), cluster, fabric)
    return found


def curve(fit: UserFit, kind: str, dtype: str, nodes: float, gpus_per_node: float, size: Array) -> tuple[Array, Array]:
    """Times of one group over sizes, by the base profile and by the fitted one [s], shape (sizes,).

    Parameters
    ----------
    fit : UserFit
    kind, dtype : str
    nodes, gpus_per_node : float
        (-).
    size : ndarray of float
        [bytes], shape (sizes,).
    """
    one = {
        "kind": kind, "dtype": dtype, "nodes": nodes, "gpus_per_node": gpus_per_node,
        "seconds": np.nan, "nic_per_gpu": np.nan, "device": "", "origin": "",
    }  # fmt: skip
    asked = points([{**one, "size": each} for each in size.tolist()])
    return predict(asked, fit.cluster, fit.base), predict(asked, fit.cluster, fit.fabric)


# The file.


def user_profile_yaml(fit: UserFit, base: str) -> str:
    """Write a fitted profile as a file that clusters and commands can name.

    Parameters
    ----------
    fit : UserFit
    base : str
        The profile that it starts from, as the file should name it: a catalog name, or a path from its own folder.

    Returns
    -------
    str
    """
    measured = fit.samples.points
    across = crosses(measured, fit.cluster)
    sources = {
        _SOURCES.near: _citation(measured.where(~across)),
        _SOURCES.far: _citation(measured.where(across)),
        _SOURCES.kin: "as the ring of another collective of this profile, by analogy: this one was not measured",
    }
    taken_over = [citation for citation in _citations(fit.fabric) if citation not in sources]
    sources |= {f"base_{number}": citation for number, citation in enumerate(taken_over, 1)}
    title = f"{fit.cluster.name}, fitted to {len(measured)} rows of nccl-tests"
    text = fabric_yaml(fit.fabric, title, base, sources, HEADER)
    # What the base adds beyond its own `collectives` is among the ways above, and empty keys must not inherit.
    empty = ["offload: {}"] + ([] if fit.fabric.corrections else ["corrections: []"])
    return text + "\n".join(empty) + "\n"


def _citation(measured: Points) -> str:
    if not len(measured):
        return ""
    counts = Counter(measured.origin.tolist())
    cited = [f"{name} ({count} points)" for name, count in list(counts.items())[:_MOST_CITED]]
    more = len(counts) - len(cited)
    return "; ".join(["nccl-tests logs", *cited, *([f"{more} more"] if more else [])])


def _citations(fabric: FabricConstants) -> list[str]:
    """Every source that a profile names, once, the longest first: none may stand inside another that is replaced."""
    notes = [note for link in fabric.links.values() for note in (link.provenance, *link.constants.values())]
    notes += [note for ways in fabric.ways.values() for way in ways for note in (way.near, way.far)]
    notes += [correction.provenance for correction in fabric.corrections.values()]
    return sorted({note.source for note in notes}, key=lambda source: (-len(source), source))
