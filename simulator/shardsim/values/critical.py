"""The critical path of an iteration, and what the iteration would be if something on it were quicker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

from shardsim.values.training import TrainingRun

Key = TypeVar("Key")


@dataclass(frozen=True, slots=True)
class Segment:
    """One thing that the end of the iteration waited for.

    Parameters
    ----------
    stage : int
        Pipeline stage; of a message, the sender.
    work : str
        Pass that it belongs to, such as ``F3.1``; empty before the first pass and after the last, and of launches.
    name : str
        Operator, ``message``, ``launch``, or ``interference``: by how much longer the work before it took.
    category : str
        What its time counts as: that of its task, ``pp`` of a message, ``host``, ``interference``.
    kind : str
        Of communication inside a stage, its category and what it does, such as ``tp:all-reduce``; else empty.
    start, seconds : float
        [s]; it ends where the next one starts.
    """

    stage: int
    work: str
    name: str
    category: str
    kind: str
    start: float
    seconds: float


@dataclass(frozen=True, slots=True)
class CriticalPath:
    """The longest chain of work, messages and launches, each of which waited for the one before.

    Parameters
    ----------
    iteration_s : float
        [s].
    segments : tuple of Segment
        From the beginning of the iteration to its end, without a gap: their seconds sum to ``iteration_s``.
    """

    iteration_s: float
    segments: tuple[Segment, ...]

    @property
    def by_category(self) -> dict[str, float]:
        """Seconds on the path by category [s], the most first."""
        return self.seconds_by(lambda segment: segment.category)

    @property
    def by_stage(self) -> dict[int, float]:
        """Seconds on the path by stage [s], in order of stages; a message counts as its sender's."""
        return dict(sorted(self.seconds_by(lambda segment: segment.stage).items()))

    @property
    def hops(self) -> int:
        """How often the path goes from one stage to another (-)."""
        return sum(one.stage != other.stage for one, other in pairwise(self.segments))

    def seconds_by(self, key: Callable[[Segment], Key]) -> dict[Key, float]:
        """Add up the seconds of segments that have one key [s], the most first."""
        found: dict[Key, float] = {}
        for segment in self.segments:
            found[key(segment)] = found.get(key(segment), 0.0) + segment.seconds
        return dict(sorted(found.items(), key=lambda item: -item[1]))


@dataclass(frozen=True, slots=True)
class Adjustment:
    """Some work made quicker or slower.

    Parameters
    ----------
    names : tuple of str
        Categories, and kinds such as ``tp:all-reduce``.
    factor : float
        How many times as long it takes (-), 0 for free.
    """

    names: tuple[str, ...]
    factor: float = 0.0

    @property
    def name(self) -> str:
        """Such as ``tp+pp``."""
        return "+".join(self.names)


@dataclass(frozen=True, slots=True)
class WhatIf:
    """What becomes of an iteration with an adjustment.

    Parameters
    ----------
    adjustment : Adjustment
    on_path_s : float
        Of what is adjusted, on the critical path as it was [s].
    iteration_s : float
        With the adjustment [s].
    """

    adjustment: Adjustment
    on_path_s: float
    iteration_s: float


@dataclass(frozen=True, slots=True)
class CriticalAnswer:
    """What one iteration of a run waits for, and what would make it shorter.

    Parameters
    ----------
    run : TrainingRun
    path : CriticalPath
    what_ifs : tuple of WhatIf
    """

    run: TrainingRun
    path: CriticalPath
    what_ifs: tuple[WhatIf, ...]
