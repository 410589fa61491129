"""Interference: what runs behind compute takes multiprocessors from it, and slows it for as long as it runs.

While anything is queued or running on a side stream of a stage, blocking work of that stage goes on at a constant share
of its rate; afterwards at its full rate. What that costs is additive over the parts of a run of work, so a coalesced
run loses exactly what its operators lose.
"""

from __future__ import annotations

from typing import NamedTuple

from shardsim.values.num import Num, larger, smaller

INTERFERENCE = "interference"
"""Category of the seconds that blocking work takes longer."""


class Slowdown(NamedTuple):
    """How much slower blocking work is while side streams are busy.

    Parameters
    ----------
    share : Num
        Share of its rate that it loses (-), at least 0 and below 1.
    """

    share: Num

    def delay(self, work: Num, begin: Num, until: Num) -> Num:
        """Seconds that work takes longer than alone.

        Either all of it is slowed, or it loses its share of the time that the side streams stay busy; whichever is
        shorter.

        Parameters
        ----------
        work : Num
            Duration at full rate [s].
        begin : Num
            When it begins [s].
        until : Num
            When the last task on any side stream ends [s].

        Returns
        -------
        Num
            [s].

        Examples
        --------
        >>> Slowdown(0.5).delay(work=1.0, begin=0.0, until=10.0), Slowdown(0.5).delay(work=10.0, begin=0.0, until=2.0)
        (1.0, 1.0)
        """
        return smaller(work * (self.share / (1.0 - self.share)), self.share * larger(until - begin, 0.0))
