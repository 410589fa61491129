"""``Transfer`` of a collective or a message on the links of its group.

Sizes are counted as nccl-tests counts them: the whole buffer. Of all ways that a fabric enables (algorithm and
protocol), the one is taken that NCCL expects to be the cheapest, unless another achieves far more, and corrected by
what measurements say beyond the equations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np

from shardsim.cost.algorithms import SWITCH_REDUCES, traffic
from shardsim.cost.corrections import WIDE, correction_factor, correction_family, is_extrapolated
from shardsim.cost.protocols import (
    achieved_bandwidth,
    corrected,
    extrapolated,
    least_trusted,
    way_transfer,
    ways_on_links,
)
from shardsim.errors import InputError, Problem
from shardsim.schema.dtypes import data_type
from shardsim.values.hardware import Cluster, Correction, FabricConstants, GroupShape, WayConstants
from shardsim.values.num import Num, Truth, any_of, larger, smaller, where
from shardsim.values.operators import CollectiveKind
from shardsim.values.transfer import Transfer

_NEVER = float("inf")

PAIR = 2.0
"""Members of a message, for its corrections: who sends and who receives (-)."""

PLAUSIBLE = 1.5
"""How many times as long as the fastest way the library's choice may take (-).

At a switch of way, times of the measured database (5608 doublings of the size) fall to 0.64 of what they were, or rise
by 1.46 beyond the doubling, in one case of a thousand. A choice that is worse than that was not measured: what is
fitted to other sizes was drawn out too far.
"""


def collective_transfer(
    kind: CollectiveKind,
    size: Num,
    shape: GroupShape,
    cluster: Cluster,
    fabric: FabricConstants,
    *,
    dtype: str = "bf16",
    algorithm: str | None = None,
) -> Transfer:
    """Transfer of a collective: of the ways that the fabric enables, the library's choice.

    Parameters
    ----------
    kind : {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"}
    size : Num
        The whole buffer [bytes].
    shape : GroupShape
        How the group lies on the cluster. A group of one costs nothing.
    cluster : Cluster
    fabric : FabricConstants
    dtype : str
        Type of the elements, by any of its spellings. Switches cannot add 8-bit types.
    algorithm : str or None
        Choose among the ways with this algorithm only. Measurements correct it where it is also the choice among all.

    Returns
    -------
    Transfer

    Raises
    ------
    InputError
        An unknown data type, an algorithm that is not enabled, or one that cannot serve the group.
    """
    every = candidate_transfers(kind, size, shape, cluster, fabric, dtype=dtype)
    if algorithm is None:
        return _with_corrections(kind, size, shape, cluster, fabric, dtype, _chosen(every))
    forced = _chosen(candidate_transfers(kind, size, shape, cluster, fabric, dtype=dtype, algorithm=algorithm))
    # What was measured is the way that the library chose: it says nothing of another.
    chosen = forced.seconds == _chosen(every).seconds
    return _with_corrections(kind, size, shape, cluster, fabric, dtype, forced, chosen)


@dataclass(frozen=True, slots=True)
class Candidate:
    """One enabled way for a collective.

    Parameters
    ----------
    transfer : Transfer
        What it achieves, before any correction.
    believed : Num
        Time that the library expects of it, by which it chooses [s]; infinite where it cannot serve the group.
    """

    transfer: Transfer
    believed: Num


def candidate_transfers(
    kind: CollectiveKind,
    size: Num,
    shape: GroupShape,
    cluster: Cluster,
    fabric: FabricConstants,
    *,
    dtype: str = "bf16",
    algorithm: str | None = None,
) -> list[Candidate]:
    """Every way that is enabled.

    Parameters
    ----------
    kind, size, shape, cluster, fabric, dtype, algorithm
        See :func:`collective_transfer`.

    Returns
    -------
    list of Candidate

    Raises
    ------
    InputError
        An unknown data type, or an algorithm that is not enabled.
    """
    ways = enabled_ways(kind, fabric, dtype, algorithm)
    beliefs = {(way.algorithm, way.protocol): way for way in fabric.tuning.get(kind, ())}
    load = uplink_load(kind, shape, cluster)
    found = []
    for way in ways:
        done = traffic(way.algorithm, kind, size, shape)
        if done is None:
            continue
        transfer = way_transfer(way, done, shape, cluster, load)
        belief = beliefs.get((way.algorithm, way.protocol), way)
        believed = transfer if belief is way else way_transfer(belief, done, shape, cluster, load, believed=True)
        found.append(Candidate(transfer, where(done.exists, believed.seconds, _NEVER)))
    return found


def enabled_ways(
    kind: str, fabric: FabricConstants, dtype: str = "bf16", algorithm: str | None = None
) -> tuple[WayConstants, ...]:
    """Ways to do a collective on a fabric with a data type.

    Parameters
    ----------
    kind : str
        Collective.
    fabric : FabricConstants
    dtype : str
        By any of its spellings.
    algorithm : str or None
        Those with this algorithm only.

    Returns
    -------
    tuple of WayConstants

    Raises
    ------
    InputError
        An unknown data type, or an algorithm that is not enabled.
    """
    ways = tuple(fabric.ways.get(kind) or ways_on_links(kind, fabric))
    if correction_family(kind, data_type(dtype)) != WIDE:
        ways = tuple(way for way in ways if way.algorithm not in SWITCH_REDUCES)
    if algorithm is None:
        return ways
    asked = tuple(way for way in ways if way.algorithm == algorithm)
    if not asked:
        what = f"{kind} of {dtype} has no algorithm {algorithm!r} on {fabric.name}"
        known = ", ".join(sorted({way.algorithm for way in ways}))
        raise InputError(Problem(what, "--algorithm", f"one of {known}"))
    return asked


def message_transfer(
    size: Num, *, leaves_domain: Num, nic_share: Num, cluster: Cluster, fabric: FabricConstants, far_load: Num = 0.0
) -> Transfer:
    """Transfer of one point-to-point message, such as activations to the next pipeline stage.

    Parameters
    ----------
    size : Num
        What the rank sends [bytes]. Measurements correct it by its size alone, not by how many ranks send at once.
    leaves_domain : Num
        1 where the receiver is outside the sender's NVLink domain, else 0 (-).
    nic_share : Num
        Adapter bandwidth that the sender has, per direction [bytes/s].
    cluster : Cluster
    fabric : FabricConstants
    far_load : Num
        How many times as long the up-links of the leaves need as the adapters (-), all ranks of the sender's stage
        sending at once; 0 where the receiver hangs on the same leaf switch.

    Returns
    -------
    Transfer
        Nothing when the size is zero.
    """
    nvlink, nic = fabric.links["nvlink"], fabric.links["nic"]
    across, sent = leaves_domain > 0, size > 0
    latency = where(across, nic.base_latency + nic.step_latency, nvlink.base_latency + nvlink.step_latency)
    crossed = (nvlink, nic) if any_of(across) else (nvlink,)
    uplinks = where(far_load > 0, nic_share / larger(far_load, 1e-9), float("inf"))
    transfer = Transfer(
        latency=where(sent, latency, 0.0),
        wire={"nvlink": where(across, 0.0, size), "nic": where(across, size, 0.0)},
        rate={
            "nvlink": achieved_bandwidth(cluster.nvlink.bandwidth, "send_recv", size, nvlink),
            "nic": smaller(achieved_bandwidth(nic_share, "send_recv", size, nic), uplinks),
        },
        algorithm="send_recv",
        provenance=least_trusted(*(link.provenance_of("send_recv") for link in crossed)),
        capacity={"nvlink": cluster.nvlink.bandwidth, "nic": nic_share, "leaf": uplinks},
    )
    near, far = (fabric.corrections.get(("send_recv", WIDE, place)) for place in ("near", "far"))
    factor = where(across, _factor(far, size, PAIR), _factor(near, size, PAIR))
    done = corrected(transfer, factor, nic_share, cluster)
    outside = sent & across & _is_outside(far, size, PAIR)
    outside = outside | (sent & (leaves_domain <= 0) & _is_outside(near, size, PAIR))
    return replace(done, provenance=extrapolated(done.provenance)) if any_of(outside) else done


def uplink_load(kind: str, shape: GroupShape, cluster: Cluster) -> Num:
    """How many times as long the up-links of the leaves need as the adapters.

    Parameters
    ----------
    kind : str
        Collective.
    shape : GroupShape
    cluster : Cluster

    Returns
    -------
    Num
        Below 1 where they need less, 0 for a group within a leaf (-).

    Notes
    -----
    Neighbours in a ring or tree mostly share a leaf, so that one domain's traffic in and out passes the up-links of
    ``N/L`` domains; of an all-to-all, everything for other leaves does.
    """
    if cluster.torus:
        return where(shape.leaves > 1, shape.torus_pairs if kind == "all_to_all" else shape.torus_ring, 0.0)
    passing = shape.leaves / shape.domains
    if kind == "all_to_all":
        passing = (shape.domains - shape.domains / shape.leaves) / larger(shape.domains - 1.0, 1.0)
    return where(shape.leaves > 1, cluster.oversubscription * passing, 0.0)


def far_members(kind: str, shape: GroupShape) -> Num:
    """Members by which corrections of groups across domains are told apart (-).

    Domains, which decide the steps between them; of an all-to-all the ranks, since each is a peer to send to.
    """
    return shape.ranks if kind == "all_to_all" else shape.domains


def _with_corrections(
    kind: CollectiveKind,
    size: Num,
    shape: GroupShape,
    cluster: Cluster,
    fabric: FabricConstants,
    dtype: str,
    transfer: Transfer,
    chosen: Truth = True,  # noqa: FBT002  # an array of them as often as one
) -> Transfer:
    family = correction_family(kind, data_type(dtype))
    near, far = (
        fabric.corrections.get((kind, family, place), fabric.corrections.get((kind, WIDE, place)))
        for place in ("near", "far")
    )
    members = far_members(kind, shape)
    across, inside = shape.domains > 1, (shape.domains <= 1) & (shape.ranks > 1)
    factor = where(across, _factor(far, size, members), _factor(near, size, shape.ranks))
    done = corrected(transfer, where(chosen, factor, 1.0), shape.nic_share, cluster)
    outside = across & _is_outside(far, size, members)
    outside = outside | (inside & _is_outside(near, size, shape.ranks))
    return replace(done, provenance=extrapolated(done.provenance)) if any_of(outside) else done


def _factor(correction: Correction | None, size: Num, members: Num) -> Num:
    return 1.0 if correction is None else correction_factor(correction, size, members)


def _is_outside(correction: Correction | None, size: Num, members: Num) -> Truth:
    """Whether a group lies beyond what a correction was fitted to; where there is none, nothing tells."""
    return False if correction is None else is_extrapolated(correction, size, members)


def _chosen(candidates: Sequence[Candidate]) -> Transfer:
    """Element by element the transfer that the library takes: the least expected time, of the plausible ways.

    So the time lies between that of the fastest way, which never falls with the size, and ``PLAUSIBLE`` times as much.
    """
    if not any(isinstance(candidate.believed, np.ndarray) for candidate in candidates):
        served = [candidate for candidate in candidates if candidate.believed != _NEVER]
        _check_served(0.0 if served else _NEVER)
        most = PLAUSIBLE * min(candidate.transfer.seconds for candidate in served)
        plausible = [candidate for candidate in served if candidate.transfer.seconds <= most]
        return min(plausible, key=lambda candidate: candidate.believed).transfer
    achieved = [where(c.believed == _NEVER, _NEVER, c.transfer.seconds) for c in candidates]
    most = PLAUSIBLE * reduce(smaller, achieved)
    times = [where(time <= most, c.believed, _NEVER) for time, c in zip(achieved, candidates, strict=True)]
    best, least = candidates[0].transfer, times[0]
    winner = np.zeros(np.broadcast_shapes(*(np.shape(time) for time in times)))
    for index, (candidate, time) in enumerate(zip(candidates[1:], times[1:], strict=True), start=1):
        better = time < least
        best = _merged(better, candidate.transfer, best)
        least = where(better, time, least)
        winner = np.where(better, float(index), winner)
    _check_served(least)
    won = [candidates[int(index)].transfer for index in np.unique(winner)]
    return Transfer(
        latency=best.latency,
        wire=best.wire,
        rate=best.rate,
        algorithm=" or ".join(dict.fromkeys(transfer.algorithm for transfer in won)),
        provenance=least_trusted(*(transfer.provenance for transfer in won)),
        capacity=best.capacity,
    )


def _check_served(least: Num) -> None:
    if any_of(least == _NEVER):
        what = "none of the ways that are enabled or asked for can serve a group that lies so"
        raise InputError(Problem(what, "--algorithm", "leave the choice to the library"))


def _merged(choose: Truth, first: Transfer, second: Transfer) -> Transfer:
    return Transfer(
        latency=where(choose, first.latency, second.latency),
        wire={link: where(choose, first.wire[link], second.wire[link]) for link in first.wire},
        rate={link: where(choose, first.rate[link], second.rate[link]) for link in first.rate},
        capacity=first.capacity,
        algorithm="",
        provenance=first.provenance,
    )
