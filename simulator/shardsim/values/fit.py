"""What would make a run fit into device memory: changes to it, and what each would cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shardsim.values.results import MemoryProfile
from shardsim.values.training import TrainingRun

CLOSE = 0.05
"""Share of a device (-): a layout that leaves less of it fits by less than this model is exact.

The median measured peak was missed by as much, and nine in ten were met within 15 % (docs/equations/memory.md).
"""


def fits_closely(memory: MemoryProfile) -> bool:
    """Whether a layout fits by less than this model is exact.

    Parameters
    ----------
    memory : MemoryProfile

    Returns
    -------
    bool
    """
    return memory.fits and memory.capacity - memory.peak < CLOSE * memory.capacity


@dataclass(frozen=True, slots=True)
class Change:
    """One change to a run, or several made together, and what follows.

    Parameters
    ----------
    words : str
        Such as ``selective recompute of the attention core``.
    keys : mapping of str to value
        Keys of a run file, such as ``{"layout.recompute": "selective"}``, and what they would be.
    flags : str
        The same for the command line, to be added to the flags of the run.
    count : int
        How many changes are made together (-), 1 or 2.
    memory : MemoryProfile
        After the change.
    iteration_s : float or None
        Predicted iteration time after the change [s]; None where it cannot be priced.
    slowdown : float or None
        Iteration time over that of the run as it is, less 1 (-).
    warnings : tuple of str
        What the run with the change warns of, and the run as it is does not: a schedule that the framework lacks ...
    """

    words: str
    keys: Mapping[str, object]
    flags: str
    count: int
    memory: MemoryProfile
    iteration_s: float | None = None
    slowdown: float | None = None
    warnings: tuple[str, ...] = ()

    @property
    def close(self) -> bool:
        """Whether it fits by less than this model is exact."""
        return fits_closely(self.memory)


@dataclass(frozen=True, slots=True)
class FitAdvice:
    """The cheapest ways to make a run fit.

    Parameters
    ----------
    iteration_s : float or None
        Predicted iteration time of the run as it is, as if it did fit [s].
    changes : tuple of Change
        Those that suffice, the shortest iteration first, where it cannot be priced the least memory first; single
        changes, and pairs where no single one is cheap.
    nearest : tuple of Change
        Where none suffices, those that come nearest, the least memory first.
    tried : int
        Valid layouts that were looked at (-).
    more : int
        Changes that suffice besides those of ``changes`` (-).
    """

    iteration_s: float | None
    changes: tuple[Change, ...]
    nearest: tuple[Change, ...]
    tried: int
    more: int = 0


@dataclass(frozen=True, slots=True)
class MemoryAnswer:
    """Whether a run fits, and what to do where it does not.

    Parameters
    ----------
    run : TrainingRun
    memory : MemoryProfile
    advice : FitAdvice or None
        None where it fits, or where no advice was asked for.
    """

    run: TrainingRun
    memory: MemoryProfile
    advice: FitAdvice | None = None
