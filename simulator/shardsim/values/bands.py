"""How far predictions lay from measured runs: groups of validated runs, and the band that one gives a prediction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ValidatedGroup:
    """Measured runs that are alike in some ways, and how predictions of them erred.

    Parameters
    ----------
    framework, generation, kind : str
        What its runs have in common: framework profile, measurements that kernels are priced by, kind of model; empty
        where they have different ones.
    rows, models, sources : int
        Runs, and models and sources among them (-).
    low, high : float
        Measured over predicted time: a tenth of the runs lie below ``low``, a tenth above ``high`` (-).
    median, p90 : float
        Of predicted / measured - 1: median and 90th percentile of its size (-).
    ranges : mapping of str to (int, int)
        Least and most of figures of :class:`shardsim.values.features.RunFeatures` (-).
    precisions : tuple of str
    """

    framework: str
    generation: str
    kind: str
    rows: int
    models: int
    sources: int
    low: float
    high: float
    median: float
    p90: float
    ranges: Mapping[str, tuple[int, int]]
    precisions: tuple[str, ...]

    @property
    def name(self) -> str:
        """What its runs have in common, in words: ``dense models on h100-sxm under megatron-core``."""
        what = {"dense": "dense models", "experts": "models with experts"}.get(self.kind, "all models")
        where = f" on {self.generation}" if self.generation else ""
        under = f" under {self.framework}" if self.framework else ""
        return what + where + under

    @property
    def keys(self) -> int:
        """In how many ways its runs are alike (-)."""
        return sum(bool(key) for key in (self.framework, self.generation, self.kind))


@dataclass(frozen=True, slots=True)
class ErrorBand:
    """Where the measured time of a predicted run would lie if it erred as validated runs did.

    Parameters
    ----------
    low_s, high_s : float
        Between which 80 % of runs like it would lie [s].
    group : ValidatedGroup
        The runs that are most like it.
    extrapolates : tuple of str
        In what it lies beyond them.
    """

    low_s: float
    high_s: float
    group: ValidatedGroup
    extrapolates: tuple[str, ...]
