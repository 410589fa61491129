"""What a log holds: tests, their rows, and everything that was left out with its reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

CollectiveSource = Literal["log", "command", "rows", "file name", "caller"]
RanksSource = Literal["caller", "rank list", "count column", "last rank", "NCCL log", "busbw/algbw"]
Column = Literal[
    "bytes",
    "time_s",
    "algbw",
    "busbw",
    "wrong",
    "in_place_time_s",
    "in_place_algbw",
    "in_place_busbw",
    "in_place_wrong",
    "line",
]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Something that was not read as data.

    Parameters
    ----------
    line : int
        Line of the file, from 1; 0 when the whole file is meant.
    what : str
        What it is.
    right : str
        What would be right; empty where nothing can be done.
    """

    line: int
    what: str
    right: str = ""


@dataclass(frozen=True, slots=True)
class Timing:
    """One half of a row: out of place or in place.

    Parameters
    ----------
    time_s : float
        Mean time of one operation [s].
    algbw : float
        Size over time [bytes/s]. Before June 2020 all-gather and reduce-scatter printed (n-1)/n of it; such rows are
        brought to today's definition.
    busbw : float
        Bus bandwidth [bytes/s], as printed.
    wrong : float or None
        Wrong values found (-); up to nccl-tests 2.12 the largest deviation instead; None when nothing was checked.
    is_wrong : bool
        Whether the result was wrong: the time is then no measurement of a correct operation.
    """

    time_s: float
    algbw: float
    busbw: float
    wrong: float | None
    is_wrong: bool


@dataclass(frozen=True, slots=True)
class NcclRow:
    """One size of a test.

    Parameters
    ----------
    bytes : int
        Size as nccl-tests counts it [bytes]: the whole vector of an all-reduce, broadcast, reduce or send/recv, and the
        **total** over all ranks of an all-gather, reduce-scatter, all-to-all, gather or scatter.
    out_of_place, in_place : Timing or None
        None where the tool printed N/A. At least one is there.
    line : int
        Line of the file, from 1.
    """

    bytes: int
    out_of_place: Timing | None
    in_place: Timing | None
    line: int

    @property
    def is_wrong(self) -> bool:
        """Whether either half gave a wrong result."""
        return any(half is not None and half.is_wrong for half in (self.out_of_place, self.in_place))


@dataclass(frozen=True, slots=True)
class NcclTest:
    """One collective, one data type, one group of ranks, over sizes.

    Parameters
    ----------
    file : str
        The log.
    collective : str
        As nccl-tests names it: ``all_reduce``, ``all_gather``, ``reduce_scatter``, ``alltoall``, ``broadcast``,
        ``reduce``, ``sendrecv``, ``gather``, ``scatter``, ``hypercube``, ``alltoallv``.
    collective_from : {"log", "command", "rows", "file name", "caller"}
        How it is known.
    ranks : int
        Members of the group (-).
    ranks_from : {"caller", "rank list", "count column", "last rank", "NCCL log", "busbw/algbw"}
        How that is known. It is cross-checked against busbw/algbw wherever the rows are precise enough.
    nodes, gpus_per_node : int or None
        Where the rank list says so (-).
    dtype, redop : str
        Data type and reductions; redop is empty where there is none.
    device : str
        Device name of the rank list, without the vendor; empty when not stated.
    nccl_version : str
        Such as ``2.26.2``; empty when not stated.
    form : str
        Vintage of the output, such as ``text 2.13-2.17.3`` or ``JSON 1``.
    rows : tuple of NcclRow
        As they stand in the file.
    sizes_asked : int or None
        Sizes that the run was asked for (-), where the log says so.
    is_mixed : bool
        Rows of several equal jobs that ran at once stand interleaved.
    notes : tuple of str
        What a user should know about how it was read.
    """

    file: str
    collective: str
    collective_from: CollectiveSource
    ranks: int
    ranks_from: RanksSource
    nodes: int | None
    gpus_per_node: int | None
    dtype: str
    redop: str
    device: str
    nccl_version: str
    form: str
    rows: tuple[NcclRow, ...]
    sizes_asked: int | None = None
    is_mixed: bool = False
    notes: tuple[str, ...] = ()

    @property
    def is_communication(self) -> bool:
        """Whether anything was sent: a group of one rank only copies."""
        return self.ranks > 1

    @property
    def wrong_rows(self) -> int:
        """Rows with a wrong result (-)."""
        return sum(row.is_wrong for row in self.rows)

    @property
    def usable(self) -> NDArray[np.bool_]:
        """Rows fit for calibration, shape (rows,): data was sent, and the result was right."""
        return np.array([self.is_communication and row.bytes > 0 and not row.is_wrong for row in self.rows], bool)

    @property
    def peak_busbw(self) -> float | None:
        """Largest bus bandwidth of the out-of-place half [bytes/s], else of the in-place half."""
        names: tuple[Column, ...] = ("busbw", "in_place_busbw")
        for name in names:
            values = self.column(name)
            if np.isfinite(values).any():
                return float(np.nanmax(values))
        return None

    def column(self, name: Column) -> NDArray[np.float64]:
        """Give one column as an array.

        Parameters
        ----------
        name : str
            ``bytes`` [bytes], ``time_s`` [s], ``algbw``, ``busbw`` [bytes/s], ``wrong`` (-), the last four of the
            out-of-place half; the same with ``in_place_`` in front; ``line`` (-).

        Returns
        -------
        ndarray of float
            Shape (rows,); NaN where there is no value.
        """
        if name in ("bytes", "line"):
            return np.array([getattr(row, name) for row in self.rows], float)
        half = "in_place" if name.startswith("in_place_") else "out_of_place"
        field = name.removeprefix("in_place_")
        values = [getattr(getattr(row, half), field, None) for row in self.rows]
        return np.array([np.nan if value is None else value for value in values], float)


@dataclass(frozen=True, slots=True)
class NcclLog:
    """One file.

    Parameters
    ----------
    file : str
        Path as it was given.
    tests : tuple of NcclTest
        In order.
    refused : tuple of Refusal
        Rows, tests or the whole file that were not read, the first thousand; ``refused_more`` counts the others.
    refused_more : int
    """

    file: str
    tests: tuple[NcclTest, ...]
    refused: tuple[Refusal, ...] = ()
    refused_more: int = 0
