"""The inside of a pass that meets nothing: how long it takes, by the recurrence, worked out as seldom as possible."""

from __future__ import annotations

from math import inf
from typing import NamedTuple

from shardsim.engine.steps import BlockPlan, Plan, Queued, Run
from shardsim.engine.walk import fresh
from shardsim.values.num import Num


class Done(NamedTuple):
    """What a block does to the clocks of its stage.

    Parameters
    ----------
    seconds : float
        How long it takes on the device [s].
    issued : float
        The host's clock at its end, counted from the beginning of the block [s].
    waits : dict of str to float
        What its parts waited for [s].
    """

    seconds: float
    issued: float
    waits: dict[str, float]


class WholePasses:
    """The blocks of one plan, as a whole.

    How long a block takes depends on nothing but how far its host is ahead of its device; and not on that either, as
    long as the host is never late. So most blocks are walked through twice, and looked up from then on.

    Parameters
    ----------
    plan : Plan
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.early: dict[int, tuple[float, Done]] = {}
        self.last: dict[int, tuple[float | None, Done]] = {}

    def run(self, block: BlockPlan, host: float | None) -> Done:
        """Walk through a block, or remember how that went.

        Parameters
        ----------
        block : BlockPlan
            It meets nothing, and nothing of its stage is under way when it begins.
        host : float or None
            The host's clock, counted from the beginning of the block [s]; None where host times are not known.

        Returns
        -------
        Done
        """
        key = id(block)
        known = self.last.get(key)
        if known is not None and known[0] == host:
            return known[1]
        if host is not None:
            bound, found = self.early.get(key, (-inf, None))
            if found is not None and host <= bound:
                # ``issued`` was counted from a host that began at zero.
                return Done(found.seconds, host + found.issued, found.waits)
        done = self._walk(block, host)
        self.last[key] = host, done
        if host is not None and not any(getattr(step, "synchronises", False) for step in block.steps):
            ahead = self._walk(block, None)
            late = done.waits.get("host", 0.0)
            if late == 0.0 and done.seconds == ahead.seconds:
                self.early[key] = host, Done(done.seconds, done.issued - host, done.waits)
        return done

    def _walk(self, block: BlockPlan, host: float | None) -> Done:
        state = fresh(self.plan, traced=False)
        state.issued = host
        ends: dict[int, tuple[str, Num]] = {}
        for step in block.steps:
            if isinstance(step, Run):
                state.run(step, max)
            elif isinstance(step, Queued):
                state.enqueue(step, ends, max)
            else:
                state.await_streams(step, ends, max)
                state.issue(step.host, step.lag, max)
                state.work(step.seconds)
                if step.synchronises:
                    state.synchronise(max)
        waits = {name: float(seconds) for name, seconds in state.waits.items() if seconds}
        return Done(float(state.clock), float(state.issued or 0.0), waits)
