"""Names of collectives: those of shardsim, and the other spellings that libraries and tests use."""

from __future__ import annotations

from collections.abc import Mapping

from shardsim.errors import InputError, Problem
from shardsim.schema.catalog import near, shorten

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv")
"""What is modelled."""

_KNOWN: Mapping[str, str] = {name.replace("_", ""): name for name in COLLECTIVES} | {
    "a2a": "all_to_all",
    "bcast": "broadcast",
    "pointtopoint": "send_recv",
    "p2p": "send_recv",
}


def collective_name(name: str) -> str:
    """Find a collective by any of its spellings.

    Parameters
    ----------
    name : str
        Such as ``allreduce``, ``alltoall``, ``Reduce-Scatter``, ``sendrecv_perf``, ``ncclAllGather``.

    Returns
    -------
    str
        One of :data:`COLLECTIVES`.

    Raises
    ------
    InputError
        Nothing that is modelled; near names are suggested.

    Examples
    --------
    >>> collective_name("alltoall"), collective_name("SendRecv")
    ('all_to_all', 'send_recv')
    """
    text = name.strip().casefold().removesuffix("_perf").removeprefix("nccl")
    found = _KNOWN.get("".join(letter for letter in text if letter not in "_- "))
    if found is None:
        close = near(name, COLLECTIVES)
        right = close if close.startswith("did") else f"one of {', '.join(COLLECTIVES)}"
        raise InputError(Problem(f"collective {shorten(name)} is not modelled", right=right))
    return found
