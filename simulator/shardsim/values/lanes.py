"""Which ranks are simulated once for all that do the same, what links they share, and who meets whom."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from shardsim.values.program import Program

Direction = Literal["out", "in"]
DIRECTIONS: tuple[Direction, ...] = ("out", "in")

End: TypeAlias = tuple[str, Direction]
"""A class of links, and the direction in which a rank uses it."""


@dataclass(frozen=True, slots=True)
class Lane:
    """Ranks of one stage that do the same at the same time: one process stands for them.

    Parameters
    ----------
    stage : int
    ranks : int
        How many it stands for (-).
    example : int
        The first of them.
    column : int
        Pipelines that are alike have one number; the lanes of a column send each other messages.
    variant : int
        Which of the programs it runs.
    links : mapping of (str, str) to tuple of (int, float)
        By class and direction, the links that one of its ranks uses: index, and the share of the link's capacity that
        all ranks of this lane on it take when each takes all that falls to it (-).
    name : str
        What sets it apart; empty for nothing.
    """

    stage: int
    ranks: int
    example: int
    column: int = 0
    variant: int = 0
    links: Mapping[End, tuple[tuple[int, float], ...]] = field(default_factory=dict)
    name: str = ""


@dataclass(frozen=True, slots=True)
class SharedLink:
    """A link, or many that are used alike.

    Parameters
    ----------
    name : str
    capacity : float
        Share of its datasheet capacity that all transfers on it reach together (-).
    left : float
        What is left of it where it is degraded (-); the capacity counts that in.
    """

    name: str
    capacity: float = 1.0
    left: float = 1.0


@dataclass(frozen=True, slots=True)
class Sharing:
    """What tasks of a program meet outside their stage's own streams.

    Parameters
    ----------
    contested : mapping of int to frozenset of str
        By stage, link classes on which transfers of several kinds may be under way at once.
    axes : frozenset of str
        Axes whose groups lie on several lanes, so that their collectives are meetings.
    crossed : frozenset of str
        Of those classes, the ones that messages or other lanes use as well.
    """

    contested: Mapping[int, frozenset[str]] = field(default_factory=dict)
    axes: frozenset[str] = frozenset()
    crossed: frozenset[str] = frozenset()


ALONE = Sharing()
"""Nothing is shared."""


@dataclass(frozen=True, slots=True)
class Folding:
    """How the ranks of a run are folded into lanes.

    Parameters
    ----------
    lanes : tuple of Lane
        By column, then by stage.
    groups : mapping of str to tuple of tuple of int
        By axis, or by name of a rendezvous: for each lane, the lanes that its group has members on; those of one lane
        are left out (empty).
    links : tuple of SharedLink
    sharing : Sharing
    flow_share : float
        Share of its adapter that one transfer of a rank gets at most (-).
    bandwidth : mapping of str to float
        What one rank has of ``nvlink`` and ``nic``, per direction [bytes/s].
    """

    lanes: tuple[Lane, ...]
    groups: Mapping[str, tuple[tuple[int, ...], ...]]
    links: tuple[SharedLink, ...]
    sharing: Sharing
    flow_share: float = float("inf")
    bandwidth: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Folded:
    """A run made ready for the event engine.

    Parameters
    ----------
    folding : Folding
    programs : tuple of Program
        Operator by operator, by variant: the usual one first, then those of ranks on which something is different.
    cells : tuple of int
        For each lane the first rank of its tensor- and context-parallel group; empty where all ranks are alike.
    """

    folding: Folding
    programs: tuple[Program, ...]
    cells: tuple[int, ...] = ()
