"""What a validation says: one row for every input row, in order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


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
    """

    name: str
    rows: int
    predicted: int
    median: float | None
    p90: float | None
    bias: float | None
    sizes: tuple[float, float] | None = None


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
        Of training runs by ``source``, ``gpu`` and ``framework``; of collectives see
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
