"""What a prediction says of a measured run beyond its time: what errors are grouped by and explained with."""

from __future__ import annotations

from dataclasses import dataclass

from shardsim.values.features import RunFeatures


@dataclass(frozen=True, slots=True)
class RunFacts:
    """One predicted run.

    Parameters
    ----------
    features : RunFeatures
    flop : float
        Counted model FLOP of one iteration, attention over the full square of scores (-).
    peak_flops : float
        Dense peak of one GPU for the run's data type [FLOP/s].
    seconds : tuple of (str, float)
        Time of the mean rank by category; sums to the iteration time [s].
    terms : tuple of (str, float)
        The same by name, less what the counted FLOP take at peak [s].
    """

    features: RunFeatures
    flop: float
    peak_flops: float
    seconds: tuple[tuple[str, float], ...]
    terms: tuple[tuple[str, float], ...]

    @property
    def at_peak_s(self) -> float:
        """Time that the counted FLOP take at the dense peak of all GPUs [s]."""
        return self.flop / (self.features.gpus * self.peak_flops)

    @property
    def largest_term(self) -> tuple[str, float]:
        """The term with most seconds, products at peak left out, and its share of the iteration time."""
        name, spent = max(self.terms, key=lambda term: term[1])
        return name, spent / sum(seconds for _, seconds in self.seconds)
