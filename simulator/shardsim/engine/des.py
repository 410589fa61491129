"""The event engine, on SimPy: a process for each lane, an event for each task, message and meeting.

A lane stands for all ranks of a stage that do the same (:mod:`shardsim.program.folding`); without a folding every stage
is one, and nothing contends. A message is an event that both ends share, and a meeting is a counter with one event, so
that the number of events follows from the program alone (`expected_events`) and never from which of two simultaneous
things happened first. Transfers that meet others are flows of a network, which take one event more, and one each time
that their speed changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf, isnan

import numpy as np
from simpy import Environment
from simpy.core import EmptySchedule

from shardsim.engine.accounts import execution, merged_accounts
from shardsim.engine.lane import LaneProcess
from shardsim.engine.meetings import Meetings
from shardsim.engine.network import Network
from shardsim.engine.plan import make_plan
from shardsim.engine.steps import Plan, StagePlan, stuck_error
from shardsim.engine.timeline import picked, timeline_from_tasks
from shardsim.engine.walk import fresh
from shardsim.engine.whole import WholePasses
from shardsim.errors import ProgramError, ShardsimError
from shardsim.values.lanes import ALONE, Folding, Lane
from shardsim.values.program import Program
from shardsim.values.results import Execution, LaneAccount, LaneName, LinkUse, Partial, Timeline, Wait


class EventLimitError(ShardsimError):
    """The event engine stopped at a bound before the program had finished.

    Parameters
    ----------
    partial : Partial
        How far it got.
    bound : str
        Such as ``limit of 50 events``.
    """

    def __init__(self, partial: Partial, bound: str) -> None:
        self.partial = partial
        self.events = partial.events
        self.reached_s = partial.reached_s
        super().__init__(f"stopped at the {bound}: {partial.progress}")


def simulate(
    program: Program,
    *,
    timeline: bool = False,
    max_events: int | None = None,
    max_seconds: float | None = None,
    folding: Folding | None = None,
    variants: Sequence[Program] = (),
    whole_passes: bool = False,
    jitter: Mapping[int, Sequence[float]] | None = None,
    iterations: int = 1,
) -> Execution:
    """Run a program event by event.

    Parameters
    ----------
    program : Program
        Operator by operator or coalesced; scalars only.
    timeline : bool
        Whether to return the start and the end of every task, and the use of links.
    max_events : int, optional
        Events after which to give up (-).
    max_seconds : float, optional
        Simulated time after which to give up [s].
    folding : Folding, optional
        Which ranks are one lane, and what they share. By default every stage is a lane and shares nothing.
    variants : sequence of Program
        Further programs, of the same shape, that lanes may run: those of slow nodes, of groups that lie otherwise.
    whole_passes : bool
        Whether a pass that touches nothing shared takes one event; not with ``timeline``.
    jitter : mapping of int to sequence of float, optional
        By lane, by which share of its computation each pass takes longer, in order (-).
    iterations : int
        How many follow each other (-).

    Returns
    -------
    Execution
        With the number of events processed.

    Raises
    ------
    ProgramError
        The program is malformed, holds arrays, or can never finish.
    EventLimitError
        A bound was reached and the program had not finished.
    """
    sharing = ALONE if folding is None else folding.sharing
    plans = [make_plan(one, sharing, iterations=iterations) for one in (program, *variants)]
    if any(plan.shape is not None for plan in plans):
        raise ProgramError("the event engine takes one layout; for arrays over layouts use the closed form")
    simulation = _Simulation(
        (program, *variants), plans, folding, jitter or {}, traced=timeline, whole_passes=whole_passes
    )
    return simulation.run(inf if max_events is None else max_events, inf if max_seconds is None else max_seconds)


def expected_events(plan: Plan) -> int:
    """Count the events that a plan takes where nothing contends: one for each task, message and meeting, two a stage.

    Parameters
    ----------
    plan : Plan

    Returns
    -------
    int
        (-)
    """
    events = 2 * len(plan.stages)
    attended: dict[str, int] = {}
    for stage in plan.stages:
        for block, count in stage.uses:
            events += count * len(block.tasks)
            for task in block.tasks:
                if task.rendezvous:
                    attended[task.rendezvous] = attended.get(task.rendezvous, 0) + count
        events += sum(len(item.sends) for item in stage.passes)
    return events + sum(count // len(plan.members[name]) for name, count in attended.items())


def one_lane_a_stage(program: Program) -> Folding:
    """Fold a program whose stages share nothing.

    Parameters
    ----------
    program : Program

    Returns
    -------
    Folding
    """
    lanes = tuple(Lane(stage, program.multiplicity, -1) for stage in range(program.schedule.stages))
    return Folding(lanes, {}, (), ALONE)


class _Simulation:
    """One run: the environment, its lanes, and what they share."""

    def __init__(
        self,
        programs: tuple[Program, ...],
        plans: Sequence[Plan],
        folding: Folding | None,
        jitter: Mapping[int, Sequence[float]],
        *,
        traced: bool,
        whole_passes: bool,
    ) -> None:
        self.folded = folding is not None
        self.folding = folding or one_lane_a_stage(programs[0])
        self.traced = traced
        self.env = Environment()
        self.network: Network | None = None
        if self.folding.links:
            self.network = Network(self.env, [link.capacity for link in self.folding.links], recording=traced)
        self.meetings = Meetings(self.env, self.folding, programs, self.network)
        insides = [WholePasses(plan) for plan in plans]
        stages = tuple(plans[lane.variant].stages[lane.stage] for lane in self.folding.lanes)
        self.plan = replace(plans[0], stages=stages, hosted=any(plan.hosted for plan in plans))
        self.lanes = [
            LaneProcess(
                index,
                lane,
                stages[index],
                self.meetings,
                fresh(plans[lane.variant], traced=False),
                insides[lane.variant],
                iter(jitter.get(index, ())),
                iterations=plans[0].iterations,
                hosted=plans[lane.variant].hosted,
                whole_passes=whole_passes,
                traced=traced,
            )
            for index, lane in enumerate(self.folding.lanes)
        ]
        self.events = 0

    def run(self, max_events: float, max_seconds: float) -> Execution:
        """Process events until none is left."""
        for lane in self.lanes:
            self.env.process(lane.process())
        try:
            bound = self._step_through(max_events, max_seconds)
        except KeyboardInterrupt as interrupt:
            partial = self._partial()
            interrupt.partial = partial  # type: ignore[attr-defined]
            interrupt.add_note(f"interrupted after {self.events} events: {partial.progress}")
            raise
        if bound and any(isnan(lane.end) for lane in self.lanes):
            raise EventLimitError(self._partial(), bound)
        stuck = {lane.lane.stage: (lane.position, lane.waits_for) for lane in self.lanes if isnan(lane.end)}
        if stuck:
            raise stuck_error(self.plan, stuck)
        waits, ends = [lane.waits for lane in self.lanes], [lane.end for lane in self.lanes]
        ended = [lane.ends for lane in self.lanes]
        rows = self._timeline() if self.traced else None
        found = execution("des", self.plan, waits, ends, max, each=ended, events=self.events, timeline=rows)
        if not self.folded:
            return found
        lanes = self.folding.lanes
        named = tuple(
            LaneAccount(LaneName(lane.stage, lane.ranks, lane.name, lane.column), account.seconds, end)
            for lane, account, end in zip(lanes, found.stages, ends, strict=True)
        )
        each = self.plan.iterations
        waited = tuple(Wait(*key, seconds / each) for key, seconds in sorted(self.meetings.waited.items()))
        stages = merged_accounts(found.stages, lanes)
        return replace(found, stages=stages, lanes=named, waited=waited)

    def _step_through(self, max_events: float, max_seconds: float) -> str:
        """Process events up to a bound, and name it where it was reached before the end."""
        step, peek = self.env.step, self.env.peek
        try:
            if max_seconds == inf:
                while self.events < max_events:
                    step()
                    self.events += 1
            else:
                while self.events < max_events:
                    if max_seconds < peek() < inf:
                        return f"bound of {max_seconds:g} simulated seconds"
                    step()
                    self.events += 1
        except EmptySchedule:
            return ""
        return f"limit of {self.events} events" if peek() < inf else ""

    def _partial(self) -> Partial:
        done = sum(lane.position + (not isnan(lane.end)) for lane in self.lanes)
        passes = sum(len(stage.passes) for stage in self.plan.stages)
        return Partial(self.env.now, self.events, done, passes, self._timeline(partial=True) if self.traced else None)

    def _timeline(self, *, partial: bool = False) -> Timeline:
        traces = [lane.trace or ([], []) for lane in self.lanes]
        columns = [
            [_padded(trace[which], stage) for trace, stage in zip(traces, self.plan.stages, strict=True)]
            for which in (0, 1)
        ]
        rows = timeline_from_tasks(self.plan, *columns)
        if partial:
            rows = picked(rows, ~np.isnan(rows.finish))
        if not self.folded:
            return rows
        of_lane = np.array([lane.stage for lane in self.folding.lanes], dtype=np.int64)
        names = tuple(LaneName(lane.stage, lane.ranks, lane.name, lane.column) for lane in self.folding.lanes)
        links: tuple[LinkUse, ...] = ()
        if self.network is not None and self.network.history is not None:
            links = tuple(
                _use(link.name, history)
                for link, history in zip(self.folding.links, self.network.history, strict=True)
                if history
            )
        return replace(rows, stage=of_lane[rows.stage], lane=rows.stage, lanes=names, links=links)


def _padded(column: list[float], stage: StagePlan) -> list[float]:
    """A column with a row for every task, also for those that have not begun."""
    tasks = sum(len(item.block.tasks) for item in stage.passes)
    return [*column, *([np.nan] * (tasks - len(column)))]


def _use(name: str, history: Sequence[tuple[float, float]]) -> LinkUse:
    """The last of all that was noted at each moment."""
    last = dict(history)
    return LinkUse(name, np.array(list(last), dtype=np.float64), np.array(list(last.values()), dtype=np.float64))
