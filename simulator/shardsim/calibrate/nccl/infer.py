"""What the rows themselves say: the factor between bus and algorithm bandwidth, the collective, the ranks.

nccl-tests prints busbw = algbw x factor with algbw = size / time; the factor is 2(n-1)/n for an all-reduce of n ranks,
(n-1)/n for all-gather, reduce-scatter, all-to-all, gather and scatter, and 1 for broadcast, reduce and send/recv
(nccl-tests, doc/PERFORMANCE.md). Printed numbers are rounded, so each row bounds the factor from both sides, and all
rows together bound the number of ranks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from shardsim.calibrate.nccl.rows import DTYPE_BYTES, RawHalf, RawRow

SLACK = 0.005
"""What size / time may differ from algbw beyond rounding (-): old versions print times to three digits."""
INFORMATIVE = 0.05
"""Relative width from which a bound says nothing about a row (-)."""
AGREEING = 0.9
"""Share of the rows that must agree on a number of ranks (-): the others are edited or damaged."""
_MOST_RANKS = 1 << 20
_ROUNDING = 1e-6
"""Relative error of the tool's own arithmetic and of numbers printed in full (-)."""

SHARED = frozenset({"all_gather", "reduce_scatter", "alltoall", "gather", "scatter", "hypercube", "alltoallv"})
"""Collectives whose size is the total over all ranks, and whose factor is (n-1)/n."""
PLAIN = frozenset({"broadcast", "reduce", "sendrecv"})
"""Collectives whose factor is 1."""
NOT_IN_PLACE = frozenset({"alltoall", "sendrecv", "alltoallv"})
"""Collectives whose in-place result is not checked, because it is not supported."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """An interval.

    Parameters
    ----------
    low, high : float
    """

    low: float
    high: float

    def holds(self, value: float, slack: float = 0.0) -> bool:
        """Whether a value lies inside, or within a relative slack of it."""
        return self.low * (1 - slack) <= value <= self.high * (1 + slack)

    @property
    def width(self) -> float:
        """Relative width (-)."""
        return (self.high - self.low) / self.low if self.low > 0 else math.inf


def factor(collective: str, ranks: int) -> float:
    """Bus bandwidth over size / time.

    Parameters
    ----------
    collective : str
        As nccl-tests names it.
    ranks : int
        Members of the group (-).

    Returns
    -------
    float
        (-)

    Examples
    --------
    >>> factor("all_reduce", 16)
    1.875
    """
    share = (ranks - 1) / ranks
    if collective in PLAIN:
        return 1.0
    return 2 * share if collective == "all_reduce" else share


def ratio_bounds(half: RawHalf, size: int, seconds_per_unit: float) -> tuple[Bounds, Bounds]:
    """Bound algbw and busbw in units of size / time by what was printed.

    Parameters
    ----------
    half : RawHalf
    size : int
        [bytes]
    seconds_per_unit : float
        Of the table's times [s].

    Returns
    -------
    tuple of Bounds
        algbw x time / size and busbw x time / size (-).
    """
    time = half.time
    scale = 1e9 * seconds_per_unit / size
    shortest, longest = max(time.value - time.half, 0.0) * scale, (time.value + time.half) * scale
    found = [
        Bounds(
            max(rate.value - rate.half, 0.0) * shortest * (1 - _ROUNDING),
            (rate.value + rate.half) * longest * (1 + _ROUNDING),
        )
        for rate in (half.algbw, half.busbw)
    ]
    return found[0], found[1]


def is_milliseconds(rows: Iterable[RawRow]) -> bool:
    """Whether times are in milliseconds, as size / time against algbw tells; without a telling row they are not."""
    votes = 0
    for row in rows:
        for half in row.halves:
            if row.size:
                micro, milli = (ratio_bounds(half, row.size, unit)[0] for unit in (1e-6, 1e-3))
                votes += milli.holds(1.0, SLACK) - micro.holds(1.0, SLACK)
    return votes > 0


def bus_factor(rows: Iterable[RawRow], seconds_per_unit: float) -> Bounds | None:
    """Bound the factor by the rows that most agree.

    Parameters
    ----------
    rows : iterable of RawRow
    seconds_per_unit : float
        Of the table's times [s].

    Returns
    -------
    Bounds or None
        busbw over size / time (-); None when no row bounds it.
    """
    bounds = [_half_factor(half, row.size, seconds_per_unit) for row in rows if row.size for half in row.halves]
    return _most_agreed([found for found in bounds if found is not None])


def _half_factor(half: RawHalf, size: int, seconds_per_unit: float) -> Bounds | None:
    """Busbw / algbw, both rounded from one measurement; where algbw is the old (n-1)/n of size / time, over that."""
    algbw, busbw = ratio_bounds(half, size, seconds_per_unit)
    if algbw.width > INFORMATIVE and busbw.width > INFORMATIVE:
        return None
    if not algbw.holds(1.0, SLACK) or half.algbw.value <= half.algbw.half:
        return busbw
    low = max(half.busbw.value - half.busbw.half, 0.0) / (half.algbw.value + half.algbw.half)
    high = (half.busbw.value + half.busbw.half) / (half.algbw.value - half.algbw.half)
    return Bounds(low * (1 - _ROUNDING), high * (1 + _ROUNDING))


def algbw_is_rate(rows: Iterable[RawRow], seconds_per_unit: float) -> bool | None:
    """Whether algbw is size / time, as most rows have it; None when no row tells."""
    votes = [
        algbw.holds(1.0, SLACK)
        for row in rows
        if row.size
        for half in row.halves
        for algbw in ratio_bounds(half, row.size, seconds_per_unit)[:1]
        if algbw.width <= INFORMATIVE
    ]
    return 2 * sum(votes) > len(votes) if votes else None


def _most_agreed(bounds: Sequence[Bounds]) -> Bounds | None:
    """Find where most intervals overlap."""
    # A lower end counts before an upper end at the same place: intervals are closed.
    ends = sorted([(b.low, 0) for b in bounds] + [(b.high, 1) for b in bounds])
    best = count = 0
    low = 0.0
    found: Bounds | None = None
    for place, is_upper in ends:
        if is_upper:
            if count > best:
                best, found = count, Bounds(low, place)
            count -= 1
        else:
            count, low = count + 1, place
    return found


def ranks_between(bounds: Bounds, collective: str) -> tuple[int, float] | None:
    """Invert the factor.

    Parameters
    ----------
    bounds : Bounds
        Of the factor (-).
    collective : str

    Returns
    -------
    tuple of (int, float) or None
        Fewest and most ranks that fit (-), the most possibly infinite; None when none fit, or the factor is 1 whatever
        the number.
    """
    if collective in PLAIN:
        return None
    full = 2.0 if collective == "all_reduce" else 1.0

    def inverted(value: float) -> float:
        return full / (full - value) if value < full else math.inf

    fewest = inverted(bounds.low)
    if math.isinf(fewest):
        return None
    fewest, most = math.ceil(fewest - 1e-9), inverted(bounds.high)
    most = most if math.isinf(most) else math.floor(most + 1e-9)
    return (fewest, most) if fewest <= most else None


def likely_ranks(fewest: int, most: float, gpus_per_node: int | None) -> int | None:
    """Choose a number of ranks from a range: the only one, or the only one that clusters have.

    Parameters
    ----------
    fewest : int
    most : float
        (-)
    gpus_per_node : int or None
        Where the rank list says so (-).

    Returns
    -------
    int or None
        None when several are as likely.

    Examples
    --------
    >>> likely_ranks(1004, 1044, 8), likely_ranks(79, 81, None), likely_ranks(4, 1e9, None)
    (1024, 80, None)
    """
    if fewest == most:
        return fewest
    if most >= 2 * fewest or fewest > _MOST_RANKS:
        return None
    powers = [2**exponent for exponent in range(1, 21) if fewest <= 2**exponent <= most]
    multiples = [list(range(-(-fewest // step) * step, int(most) + 1, step)) for step in (gpus_per_node or 8, 8)]
    unique = [choice for choice in (multiples[0], multiples[1], powers) if len(choice) == 1]
    return unique[0][0] if unique else None


def count_share(rows: Iterable[RawRow]) -> int | None:
    """Size over count x element size: 1, or the ranks where the count is one rank's part.

    Parameters
    ----------
    rows : iterable of RawRow

    Returns
    -------
    int or None
        (-); None unless nine of ten rows agree.
    """
    votes: dict[int, int] = {}
    rows = [row for row in rows if row.size and row.count]
    for row in rows:
        share, rest = divmod(row.size, row.count * DTYPE_BYTES[row.dtype])
        if not rest and share:
            votes[share] = votes.get(share, 0) + 1
    if not votes:
        return None
    best = max(votes, key=lambda share: votes[share])
    return best if votes[best] >= AGREEING * len(rows) else None


def candidates(rows: Sequence[RawRow], *, announces_redop: bool, is_first_format: bool) -> tuple[str, ...]:
    """Collectives that print such rows.

    Parameters
    ----------
    rows : sequence of RawRow
        Of one table.
    announces_redop : bool
        Whether the header has a redop column.
    is_first_format : bool
        ``bytes N type op``.

    Returns
    -------
    tuple of str
    """
    row = rows[0]
    has_redop = row.redop not in (None, "none")
    if row.redop is not None and row.root is not None and not is_first_format:  # 2.13 and newer, or an old reduce
        if has_redop:
            names: tuple[str, ...] = ("reduce",) if row.root >= 0 else ("all_reduce", "reduce_scatter", "sendrecv")
        elif row.root >= 0:
            names = ("broadcast", "gather", "scatter")
        else:
            names = ("all_gather", "alltoall", "sendrecv", "hypercube")
    elif has_redop:
        names = ("reduce",) if row.root is not None else ("all_reduce", "reduce_scatter")
    elif row.root is not None:
        names = ("broadcast", "gather", "scatter")
    else:
        names = ("alltoall", "sendrecv", "hypercube") if announces_redop else ("all_gather",)
    return names


def fitting(
    names: Iterable[str],
    rows: Sequence[RawRow],
    bounds: Bounds | None,
    share: int | None,
    ranks: int | None,
    *,
    is_rate: bool | None,
) -> tuple[str, ...]:
    """Collectives whose factor, count column and checks the rows have.

    Parameters
    ----------
    names : iterable of str
    rows : sequence of RawRow
    bounds : Bounds or None
        Of the factor (-).
    share : int or None
        Size over count x element size (-).
    ranks : int or None
        Where a complete rank list, or the caller, says so (-).
    is_rate : bool or None
        Whether algbw is size / time: a hypercube's never is.

    Returns
    -------
    tuple of str
    """
    return tuple(
        name
        for name in names
        if fits_factor(name, bounds, ranks)
        and _fits_count(name, share, ranks)
        and _fits_checks(name, rows)
        and not (name == "hypercube" and is_rate)
    )


def fits_factor(name: str, bounds: Bounds | None, ranks: int | None) -> bool:
    """Whether a collective can have this factor, with so many ranks where they are known."""
    if bounds is None:
        return True
    if name in PLAIN:
        return bounds.holds(1.0)
    if ranks is not None:
        return bounds.holds(factor(name, ranks)) or ranks_between(bounds, name) is not None
    found = ranks_between(bounds, name)
    return found is not None and found[1] >= 2


def _fits_count(name: str, share: int | None, ranks: int | None) -> bool:
    if share is None or ranks == 1:
        return True
    return share > 1 if name in SHARED else share == 1


def _fits_checks(name: str, rows: Sequence[RawRow]) -> bool:
    if rows[0].redop is None or rows[0].root is None:
        return True  # before 2.13 the check of an all-to-all in place printed a deviation
    both = [row for row in rows if row.out_of_place is not None and row.in_place is not None]
    checked = [row for row in both if row.out_of_place and row.out_of_place.wrong is not None]
    if not checked:
        return True
    unchecked = sum(row.in_place is not None and row.in_place.wrong is None for row in checked)
    return unchecked == len(checked) if name in NOT_IN_PLACE else unchecked < len(checked)
