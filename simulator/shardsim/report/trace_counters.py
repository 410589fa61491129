"""Counters of a trace: what stages hold, and how much of shared links is in use."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from shardsim.report.trace_passes import nanoseconds
from shardsim.values.results import LinkUse, MemoryHistory

MEMORY_UNIT, LINK_UNIT = "GiB", "%"

_DIGITS = 3
"""Digits after the point: a megabyte, a thousandth of a per cent."""


def memory_events(histories: Sequence[MemoryHistory]) -> Iterator[str]:
    """What a GPU of each lane holds.

    Parameters
    ----------
    histories : sequence of MemoryHistory
        One for each lane: its place is the number of the process.

    Yields
    ------
    str
        One event for each change.
    """
    for pid, history in enumerate(histories):
        yield from _steps(pid, f"memory [{MEMORY_UNIT}]", "allocated", history.seconds, history.allocated / 2.0**30)


def link_events(links: Sequence[LinkUse], pid: int) -> Iterator[str]:
    """How much of the capacity of each link is in use.

    Parameters
    ----------
    links : sequence of LinkUse
    pid : int
        Number of the process that shows them.

    Yields
    ------
    str
        One event for each change.
    """
    for link in links:
        yield from _steps(pid, f"{link.name} [{LINK_UNIT}]", "in use", link.seconds, 100.0 * link.share)


def _steps(
    pid: int, name: str, series: str, seconds: NDArray[np.float64], values: NDArray[np.float64]
) -> Iterator[str]:
    """The changes of a step function; of several in one nanosecond, the last."""
    moments, rounded = nanoseconds(seconds), np.round(values, _DIGITS)
    last = np.r_[moments[1:] != moments[:-1], True][: moments.size]
    moments, rounded = moments[last], rounded[last]
    changes = np.r_[True, rounded[1:] != rounded[:-1]][: moments.size]
    head = f'{{"ph": "C", "name": {json.dumps(name)}, "pid": {pid}, "tid": 0, "ts": '
    for moment, value in zip(moments[changes].tolist(), rounded[changes].tolist(), strict=True):
        yield f'{head}{moment / 1000}, "args": {{{json.dumps(series)}: {value}}}}}'
