"""How unevenly tokens fall on experts, and what a limited capacity leaves of them.

Loads are tokens of each expert on any scale, in the order of the experts. Rank ``i`` of an expert-parallel group holds
the ``i``-th run of ``experts / ep`` of them (github NVIDIA/Megatron-LM, megatron/core/transformer/moe/moe_layer.py,
local_expert_indices).
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import NamedTuple

from shardsim.errors import InputError, Problem
from shardsim.values.num import Num, smaller
from shardsim.values.training import Layout, Moe
from shardsim.workload.destinations import reached

_SEED = 0


class Load(NamedTuple):
    """What experts get of the copies that balanced routing without a limit would give them.

    Parameters
    ----------
    share : Num
        Copies that are sent and computed, over all copies (-): less than 1 where some are dropped, more where experts
        pad what they get to what they have room for.
    imbalance : Num
        Rows of the busiest rank over the mean of what is left (-).
    """

    share: Num
    imbalance: Num


def load_of(moe: Moe, layout: Layout, tokens: Num) -> Load:
    """Work out what the experts of a layout get.

    Parameters
    ----------
    moe : Moe
    layout : Layout
        Its imbalance, capacity factor, and whether experts pad.
    tokens : Num
        Tokens that a rank sends (-): capacities are counted rank by rank.

    Returns
    -------
    Load

    Notes
    -----
    An expert takes ceil(CF T k / E) of a rank's tokens (github NVIDIA/Megatron-LM,
    megatron/core/transformer/moe/moe_utils.py, get_capacity). What experts of the other ranks drop follows from loads
    of single experts (:func:`dropped_share`), which a layout does not have: it is left out, for the busiest rank is
    the one that is waited for.

    Examples
    --------
    >>> load_of(Moe(experts=8, top_k=2, ffn=1024), Layout(tp=1, pp=1, dp=8, ep=8, capacity_factor=1.5, imbalance=2), 64)
    Load(share=1.0, imbalance=1.5)
    """
    if not layout.capacity_factor:
        return Load(1.0, layout.imbalance)
    balanced = tokens * moe.top_k / moe.experts
    room = -(-(balanced * layout.capacity_factor) // 1) / balanced
    if layout.pads_capacity:
        return Load(room, 1.0)
    share = smaller(room, 1.0)
    return Load(share, smaller(layout.imbalance, room) / share)


def arriving(moe: Moe, layout: Layout, tokens: Num, load: Load) -> Num:
    """Count the rows that a rank receives, of those that split an expert one, the busiest.

    Parameters
    ----------
    moe : Moe
    layout : Layout
    tokens : Num
        That each rank sends (-).
    load : Load
        Of the same (:func:`load_of`).

    Returns
    -------
    Num
        A copy for each expert by an all-to-all; everybody's tokens by an all-gather; in two levels, a copy for each
        rank that has experts of a token (-).
    """
    if layout.dispatcher == "alltoall":
        return tokens * moe.top_k * load.share * load.imbalance
    if layout.dispatcher == "allgather":
        return tokens * layout.ep
    ranks = reached(layout.ep, moe.experts, moe.top_k, moe.groups, moe.group_limit)
    return tokens * ranks * load.share * load.imbalance


def power_law_loads(experts: int, exponent: float) -> tuple[float, ...]:
    """Loads that fall off with a power of an expert's place by popularity: the i-th has i to the minus ``exponent``.

    Parameters
    ----------
    experts : int
        (-).
    exponent : float
        0 for balanced loads, 1 for Zipf's law (-).

    Returns
    -------
    tuple of float
        With a mean of 1. Which expert is how popular is drawn once for each number of experts, always the same: nobody
        places experts by popularity.

    Raises
    ------
    InputError
        For fewer than one expert or an exponent below 0.

    Examples
    --------
    >>> power_law_loads(3, 0.0)
    (1.0, 1.0, 1.0)
    """
    problems = [Problem(f"{experts} experts", "experts", "at least 1")] if experts < 1 else []
    if not exponent >= 0:
        problems.append(Problem(f"an exponent of {exponent}", "exponent", "0 or more: 0 is balanced, 1 is Zipf's law"))
    if problems:
        raise InputError(problems)
    draw = Random(_SEED).random  # noqa: S311 - nothing secret
    places = sorted((draw(), place) for place in range(1, experts + 1))
    raw = [place**-exponent for _, place in places]
    mean = sum(raw) / experts
    return tuple(load / mean for load in raw)


def imbalance_of(loads: Sequence[float], ep: int) -> float:
    """Load of the busiest expert-parallel rank over the mean.

    Parameters
    ----------
    loads : sequence of float
        Tokens of each expert, on any scale (-).
    ep : int
        A divisor of the number of experts (-).

    Returns
    -------
    float
        From 1 to ``ep`` (-).

    Raises
    ------
    InputError
        Where the loads are no loads, or ``ep`` does not divide them.

    Examples
    --------
    >>> imbalance_of([1, 1, 4, 2], 2)
    1.5
    """
    _check(loads)
    if ep < 1 or len(loads) % ep:
        raise InputError(Problem(f"{len(loads)} loads of experts on {ep} ranks", "loads", "as many on each rank"))
    held = len(loads) // ep
    ranks = [sum(loads[first : first + held]) for first in range(0, len(loads), held)]
    return max(ranks) * ep / sum(ranks)


def busiest_expert(loads: Sequence[float]) -> float:
    """Load of the busiest expert over the mean (-).

    Parameters
    ----------
    loads : sequence of float
        Tokens of each expert, on any scale (-).

    Returns
    -------
    float
        Times T k / E, the rows that it works on.

    Raises
    ------
    InputError
        Where the loads are no loads.

    Examples
    --------
    >>> busiest_expert([1, 1, 4, 2])
    2.0
    """
    return imbalance_of(loads, max(len(loads), 1))


def capped_loads(loads: Sequence[float], capacity_factor: float) -> tuple[float, ...]:
    """Loads that are left where each expert takes ``capacity_factor`` times the mean at most.

    Parameters
    ----------
    loads : sequence of float
        Tokens of each expert, on any scale (-).
    capacity_factor : float
        (-); 0 for no limit.

    Returns
    -------
    tuple of float
        On the same scale (-).

    Raises
    ------
    InputError
        Where the loads are no loads, or the factor is negative.

    Examples
    --------
    >>> capped_loads([1, 1, 4, 2], 1.5)
    (1, 1, 3.0, 2)
    """
    _check(loads)
    if capacity_factor < 0:
        raise InputError(Problem(f"a factor of {capacity_factor}", "capacity_factor", "above 0, or 0 for no limit"))
    room = sum(loads) / len(loads) * capacity_factor if capacity_factor else max(loads)
    return tuple(min(load, room) for load in loads)


def dropped_share(loads: Sequence[float], capacity_factor: float) -> float:
    """Share of all copies that is dropped because experts are full.

    Parameters
    ----------
    loads : sequence of float
        Tokens of each expert, on any scale (-).
    capacity_factor : float
        (-); 0 for no limit.

    Returns
    -------
    float
        From 0 to 1 (-).

    Raises
    ------
    InputError
        Where the loads are no loads, or the factor is negative.

    Examples
    --------
    >>> dropped_share([1, 1, 4, 2], 1.5)
    0.125
    """
    return 1.0 - sum(capped_loads(loads, capacity_factor)) / sum(loads)


def _check(loads: Sequence[float]) -> None:
    if not loads or not all(load >= 0 for load in loads) or not 0 < sum(loads) < float("inf"):
        raise InputError(Problem(f"{list(loads)}", "loads", "a number of 0 or more for each expert, not all of them 0"))
