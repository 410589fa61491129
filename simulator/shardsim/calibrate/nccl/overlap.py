"""Jobs that ran at once and wrote into one stream: found by starts and footers that do not alternate.

One run after the other prints start, footer, start, footer. Two at once print start, start, footer, footer; whatever
stands between belongs to one or the other, and nothing in a row says to which.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from shardsim.calibrate.nccl.segments import Event, Segment


def overlaps(events: Sequence[Event]) -> Iterator[tuple[int, int, int]]:
    """Find where several jobs wrote at once.

    Parameters
    ----------
    events : sequence of Event
        In order.

    Yields
    ------
    tuple of (int, int, int)
        First line, last line, and jobs (-). Tables without a footer are no overlap: the footers must all come.

    Examples
    --------
    >>> list(overlaps([(1, "start"), (2, "start"), (8, "footer"), (9, "footer")]))
    [(1, 9, 2)]
    """
    first = depth = deepest = jobs = 0
    for line, kind in events:
        if kind == "failure":
            depth = 0
        elif kind == "start":
            first, deepest, jobs = (first, deepest, jobs) if depth else (line, 0, 0)
            depth, jobs = depth + 1, jobs + 1
            deepest = max(deepest, depth)
        elif depth:
            depth -= 1
            if not depth and deepest > 1:
                yield first, line, jobs


def merged(segments: Sequence[Segment], events: Sequence[Event]) -> list[Segment]:
    """Put together the segments in which the same jobs wrote at once.

    Parameters
    ----------
    segments : sequence of Segment
        Of one stream, in order.
    events : sequence of Event

    Returns
    -------
    list of Segment
        A merged one holds the rows and ranks of all its jobs, and as many headers.
    """
    rest = list(segments)
    for first, last, jobs in overlaps(events):
        ends = [*(after.line for _, after in pairwise(rest)), last + 1]
        inside = [segment for segment, end in zip(rest, ends, strict=True) if segment.line <= last and end > first]
        if not inside:
            continue
        whole = inside[0]
        for other in inside[1:]:
            _join(whole, other)
        whole.headers = jobs
        rest = [segment for segment in rest if segment is whole or segment not in inside]
    return rest


def _join(whole: Segment, other: Segment) -> None:
    whole.is_contradictory |= other.is_contradictory
    whole.is_contradictory |= None not in (whole.named, other.named) and whole.named != other.named
    whole.is_contradictory |= None not in (whole.columns, other.columns) and whole.columns != other.columns
    whole.named = whole.named or other.named
    whole.columns = whole.columns or other.columns
    whole.arguments = whole.arguments or other.arguments
    whole.ranks += other.ranks
    whole.rows += other.rows
    whole.refused += other.refused
    whole.members |= other.members
    whole.footers += other.footers
    whole.has_gap |= other.has_gap
    whole.failed |= other.failed
