"""What a validation says: one row for every input row, in order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from shardsim.validate.facts import RunFacts


@dataclass(frozen=True, slots=True)
class ValidationRow:
    """One measured run against its prediction.

    Parameters
    ----------
    id : str
        From the table's ``id`` column, else the row's number from 1.
    source, gpu, framework, model : str
        As the table names them.
    measured : float or None
        Iteration time [s]; None where the table has none.
    predicted : float or None
        Iteration time [s]; None for a skipped row.
    error : float or None
        predicted / measured - 1 (-).
    status : {"ok", "skipped"}
    reason : str
        Why the row was skipped: depends on the inputs only.
    notes : tuple of str
        What had to be assumed to predict it.
    facts : RunFacts or None
        More of the prediction of a training run.
    condition : str
        Of the machine, by the table's own words: ``healthy``, or the name of a rule such as ``sick``; empty where the
        source says nothing.
    job, layout : str
        What a training run has to compute on which machine, and how it is laid out there: equal where they are equal.
    """

    id: str
    source: str
    gpu: str
    framework: str
    model: str
    measured: float | None
    predicted: float | None
    error: float | None
    status: Literal["ok", "skipped"]
    reason: str
    notes: tuple[str, ...] = ()
    facts: RunFacts | None = None
    condition: str = ""
    job: str = ""
    layout: str = ""


@dataclass(frozen=True, slots=True)
class BaselineErrors:
    """Errors of a prediction at a constant share of dense peak, on counted FLOP.

    Parameters
    ----------
    name : str
    share : float
        Of dense peak (-).
    median, p90, bias : float
        As of :class:`ErrorSummary`.
    """

    name: str
    share: float
    median: float
    p90: float
    bias: float


@dataclass(frozen=True, slots=True)
class RankedGroup:
    """Layouts of one job, in the predicted order against the measured one.

    Parameters
    ----------
    name : str
        Model, GPUs and sequence.
    source, condition : str
        As of :class:`ValidationRow`.
    layouts : int
        (-).
    chosen : str
        Row of the layout predicted fastest.
    loss : float
        By how much its measured time is above the measured best (-).
    spearman : float
        Rank correlation of measured and predicted times (-); 0 where all times of one kind are equal.
    """

    name: str
    source: str
    condition: str
    layouts: int
    chosen: str
    loss: float
    spearman: float


@dataclass(frozen=True, slots=True)
class RankingSummary:
    """How well layouts of several jobs are ranked.

    Parameters
    ----------
    name : str
    groups : int
        (-).
    best_within : float
        Share of the jobs whose layout predicted fastest is within 3 % of the measured best (-).
    spearman_median : float
        (-).
    """

    name: str
    groups: int
    best_within: float
    spearman_median: float


@dataclass(frozen=True, slots=True)
class ErrorSummary:
    """Errors of a group of rows, as shares of the measured time.

    Parameters
    ----------
    name : str
        The group.
    rows, predicted : int
        Rows in the group, and those with a prediction (-).
    median, p90 : float or None
        Median and 90th percentile of the absolute error (-); None without predictions.
    bias : float or None
        Median of the signed error (-): positive where predictions are too slow.
    sizes : tuple of (float, float) or None
        Smallest and largest buffer of those with a prediction [bytes], where rows are collectives.
    baselines : tuple of BaselineErrors
        Of the same rows, where they are training runs.
    """

    name: str
    rows: int
    predicted: int
    median: float | None
    p90: float | None
    bias: float | None
    sizes: tuple[float, float] | None = None
    baselines: tuple[BaselineErrors, ...] = ()


@dataclass(frozen=True, slots=True)
class ValidationTable:
    """Every row of a measured table against its prediction.

    Parameters
    ----------
    file : str
        Name of the measured table.
    rows : tuple of ValidationRow
        In the order of the input.
    overall : ErrorSummary
    groups : tuple of (str, tuple of ErrorSummary)
        Of training runs see :mod:`shardsim.validate.summary`; of collectives see
        :func:`shardsim.validate.collectives.validate_collectives`.
    skipped : tuple of (str, int)
        Reasons and how many rows each, the most frequent first.
    noun : str
        What a row is, in the plural.
    headline : ErrorSummary or None
        The rows that count, where not all do.
    remarks : tuple of str
        How groups are to be read, and which columns nothing reads.
    quantity, unit : str
        What was measured, and in what.
    views : tuple of ErrorSummary
        The same rows weighted or chosen otherwise.
    worst : tuple of ValidationRow
        Training runs with the largest absolute error, the largest first.
    ranked : tuple of RankedGroup
        Jobs of which the table has several layouts.
    ranking : tuple of RankingSummary
        The first of all jobs.
    """

    file: str
    rows: tuple[ValidationRow, ...]
    overall: ErrorSummary
    groups: tuple[tuple[str, tuple[ErrorSummary, ...]], ...]
    skipped: tuple[tuple[str, int], ...]
    noun: str = "runs"
    headline: ErrorSummary | None = None
    remarks: tuple[str, ...] = ()
    quantity: str = "iteration time"
    unit: str = "s"
    views: tuple[ErrorSummary, ...] = ()
    worst: tuple[ValidationRow, ...] = ()
    ranked: tuple[RankedGroup, ...] = ()
    ranking: tuple[RankingSummary, ...] = ()
