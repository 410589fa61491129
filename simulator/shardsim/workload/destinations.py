"""Where the experts of a token are: how many NVLink domains, or ranks, it goes to on average."""

from __future__ import annotations

from shardsim.values.num import Num, larger, where


def reached(units: Num, experts: int, top_k: int, groups: int = 0, group_limit: int = 0) -> Num:
    """Count the units that a token goes to, each once however many of its experts are there.

    Parameters
    ----------
    units : Num
        NVLink domains or ranks over which the experts are dealt out evenly, in order (-).
    experts, top_k : int
        (-).
    groups, group_limit : int
        Node-limited routing: experts of ``group_limit`` of so many groups only; 0 for no limit (-).

    Returns
    -------
    Num
        Mean over tokens, the sender's own unit included where it is among them (-).

    Notes
    -----
    Uniform routing draws ``k`` of ``E`` experts without putting any back: of ``N`` units, each with ``E/N``, it misses
    one with probability C(E - E/N, k) / C(E, k). With a limit, ``g`` of ``G`` groups are drawn so, and each has its
    equal part of the ``k`` experts, for it was chosen by its best ones (arXiv 2412.19437 §2.1.2): units that hold whole
    groups are reached with them.

    Examples
    --------
    DeepSeek-V3 on 8 nodes: 4 of 8 groups, each on a node of its own.

    >>> reached(8, experts=256, top_k=8, groups=8, group_limit=4)
    4.0
    """
    if not groups or not group_limit or group_limit >= groups:
        return _touched(units, experts, top_k)
    chosen = min(group_limit, top_k)
    whole = _touched(units, groups, chosen)
    # A unit with a part of a group: groups look alike, some of them with one expert of the token more than others.
    parts = larger(units / groups, 1.0)
    each, more = divmod(top_k, chosen)
    size = experts // groups
    split = (chosen - more) * _touched(parts, size, each)
    if more:
        split = split + more * _touched(parts, size, each + 1)
    return where(units > groups, split, whole)


def _touched(units: Num, things: int, drawn: int) -> Num:
    """Units that hold any of the ``drawn`` out of ``things``, dealt out evenly (-)."""
    missed: Num = 1.0 + 0.0 * units
    for number in range(drawn):
        missed = missed * larger(things - things / units - number, 0.0) / (things - number)
    return units * (1.0 - missed)
