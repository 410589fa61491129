"""The recurrence: when each pass of each stage starts and ends, without events, on floats and arrays alike.

In which order things happen on a stage is fixed by the schedule and does not depend on durations, so one walk serves
one layout or as many as the arrays hold. The listing and the closed form are this walk; it is written once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from dataclasses import dataclass, field
from math import inf
from typing import TypeAlias

from shardsim.engine.accounts import BUBBLE, HOST, PIPELINE, Larger, enqueue
from shardsim.engine.interference import INTERFERENCE, Slowdown
from shardsim.engine.steps import Meeting, PassKey, Plan, Queued, Run, Sync, stuck_error
from shardsim.values.num import Num

Waiting: TypeAlias = Generator[PassKey | Meeting, None, None]


@dataclass(slots=True)
class StageWalk:
    """What the walk found out about one stage.

    Parameters
    ----------
    waits : dict of str to Num
        Seconds by what was waited for [s], and those lost to interference.
    end : Num
        Latest end of anything on the stage [s].
    starts : list of Num or None
        Start of every step, in order [s]; None when nobody asked.
    slowed_until : list of Num
        Until when the work of each of these steps is slowed [s]; not after its start where it is not.
    turned_to : list of Num
        When the host turned to each of these steps [s]; minus infinity where it holds up nothing in it.
    slowdown : Slowdown or None
        Of blocking work while side streams are busy.
    synchronous_messages : bool
        Whether the host waits for the device at every message.
    busy_until : Num or None
        Latest end of what was queued on the side streams [s]; None while that slows nothing.
    issued : Num or None
        Clock of the host [s]; None where the program knows no host times.
    ends : list of Num
        Clock at the end of each iteration [s].
    """

    starts: list[Num] | None
    slowdown: Slowdown | None
    synchronous_messages: bool
    slowed_until: list[Num] = field(default_factory=list)
    turned_to: list[Num] = field(default_factory=list)
    busy_until: Num | None = None
    issued: Num | None = None
    waits: dict[str, Num] = field(default_factory=lambda: {PIPELINE: 0.0, BUBBLE: 0.0})
    end: Num = 0.0
    position: int = 0
    clock: Num = 0.0
    streams: dict[str, list[tuple[str, Num]]] = field(default_factory=dict)
    meetings: dict[str, int] = field(default_factory=dict)
    ends: list[Num] = field(default_factory=list)

    def wait(self, category: str, until: Num, larger: Larger) -> None:
        """Move the clock to ``until``, if that is later, and count the time as ``category``."""
        moved = larger(self.clock, until)
        self.waits[category] = self.waits.get(category, 0.0) + (moved - self.clock)
        self.clock = moved

    def issue(self, host: Num, lag: Num, larger: Larger) -> Num | None:
        """Move both clocks by the host's work before the device's, and return what the device had to wait for [s]."""
        if self.issued is None:
            return None
        begin = larger(self.clock, self.issued + lag)
        gap = begin - self.clock
        self.waits[HOST] = self.waits[HOST] + gap
        self.clock = begin
        self.issued = self.issued + host
        return gap

    def synchronise(self, larger: Larger) -> None:
        """Let the host wait for the device."""
        if self.issued is not None:
            self.issued = larger(self.issued, self.clock)

    def messaged(self, larger: Larger) -> None:
        """Take note that a message has been received or sent."""
        if self.synchronous_messages:
            self.synchronise(larger)

    def run(self, step: Run, larger: Larger) -> None:
        """Do blocking work that touches nothing shared; what its host makes it wait hides what it is slowed by."""
        begin, until = self.clock, self.busy_until
        self.note(begin, begin if until is None else until, self.issued)
        gap = self.issue(step.host, step.lag, larger)
        self.clock = self.clock + step.total
        if self.slowdown is not None and until is not None:
            extra = self.slowdown.delay(step.total, begin, until)
            self.lose(extra if gap is None else larger(extra - gap, 0.0))

    def work(self, seconds: Num) -> None:
        """Do a single piece of blocking work that the host has issued."""
        begin, until = self.clock, self.busy_until
        self.note(begin, begin if until is None else until)
        self.clock = begin + seconds
        if self.slowdown is not None and until is not None:
            self.lose(self.slowdown.delay(seconds, begin, until))

    def lose(self, extra: Num) -> None:
        """Move the clock by what work takes longer because of what runs behind it."""
        self.waits[INTERFERENCE] = self.waits[INTERFERENCE] + extra
        self.clock = self.clock + extra

    def queue(self, begin: Num, end: Num, larger: Larger, *, slows: bool) -> None:
        """Take note of a task on a side stream."""
        self.note(begin, begin)
        if self.slowdown is not None and slows:
            self.busy_until = end if self.busy_until is None else larger(self.busy_until, end)

    def enqueue(self, step: Queued, ends: dict[int, tuple[str, Num]], larger: Larger) -> None:
        """Queue a task on a side stream, behind what is there and what it waits for."""
        queued = self.streams.setdefault(step.stream, [])
        begin = self.clock
        if self.issued is not None:
            self.issued = self.issued + step.host
            begin = larger(begin, self.issued)
        if queued:
            begin = larger(begin, queued[-1][1])
        for index in step.waits:
            begin = larger(begin, ends[index][1])
        for stream in step.drains:
            if self.streams.get(stream):
                begin = larger(begin, self.streams[stream][-1][1])
        end = begin + step.seconds
        ends[step.number] = (step.category, end)
        enqueue(queued, step.category, end)
        self.queue(begin, end, larger, slows=step.slows)

    def await_streams(self, step: Sync, ends: dict[int, tuple[str, Num]], larger: Larger) -> None:
        """Wait for what a blocking task waits for on its stage's side streams."""
        for index in step.waits:
            self.wait(*ends[index], larger)
        for stream in step.drains:
            queued = self.streams.get(stream, [])
            for category, end in queued:
                self.wait(category, end, larger)
            queued.clear()

    def note(self, begin: Num, until: Num, turned_to: Num | None = None) -> None:
        """Keep the start of a step, until when it is slowed, and when the host turned to it."""
        if self.starts is not None:
            self.starts.append(begin)
            self.slowed_until.append(until)
            self.turned_to.append(-inf if turned_to is None else turned_to)


def walk(plan: Plan, larger: Larger, smaller: Larger, *, traced: bool = False) -> list[StageWalk]:
    """Run every stage of a plan to its end.

    Parameters
    ----------
    plan : Plan
    larger, smaller : callable
        ``max`` and ``min`` for scalars, ``numpy.maximum`` and ``numpy.minimum`` for arrays.
    traced : bool
        Whether to keep the start of every step.

    Returns
    -------
    list of StageWalk

    Raises
    ------
    ProgramError
        Stages wait for each other, or for a message that nobody sends.
    """
    return _Walk(plan, larger, smaller, traced=traced).run()


def fresh(plan: Plan, *, traced: bool) -> StageWalk:
    """What is known of a stage before it begins.

    Parameters
    ----------
    plan : Plan
    traced : bool
        Whether to keep the start of every step.

    Returns
    -------
    StageWalk
    """
    state = StageWalk([] if traced else None, plan.slowdown, plan.synchronous_messages)
    if plan.slowdown is not None:
        state.waits[INTERFERENCE] = 0.0
    if plan.hosted:
        state.waits[HOST] = 0.0
        state.issued = 0.0
    return state


class _Walk:
    def __init__(self, plan: Plan, larger: Larger, smaller: Larger, *, traced: bool) -> None:
        self.plan = plan
        self.larger = larger
        self.smaller = smaller
        self.stages = [fresh(plan, traced=traced) for _ in plan.stages]
        self.arrived: dict[PassKey, Num] = {}
        self.present: dict[Meeting, dict[int, Num]] = {}
        self.waiting: dict[PassKey | Meeting, list[int]] = {}
        self.ready: deque[int] = deque(range(len(plan.stages)))

    def run(self) -> list[StageWalk]:
        walks = [self._stage(stage) for stage in range(len(self.stages))]
        while self.ready:
            stage = self.ready.popleft()
            wanted = next(walks[stage], None)
            if wanted is not None:
                self.waiting.setdefault(wanted, []).append(stage)
        if self.waiting:
            stuck = {stage: wanted for wanted, stages in self.waiting.items() for stage in stages}
            raise stuck_error(
                self.plan, {stage: (self.stages[stage].position, wanted) for stage, wanted in stuck.items()}
            )
        return self.stages

    def _wake(self, key: PassKey | Meeting) -> None:
        if key in self.waiting:
            self.ready.extend(self.waiting.pop(key))

    def _stage(self, stage: int) -> Waiting:
        state = self.stages[stage]
        larger, smaller = self.larger, self.smaller
        on_the_wire: Num = 0.0
        idle: Num = 0.0
        passes = self.plan.stages[stage].passes
        each = len(passes) // self.plan.iterations
        for position, item in enumerate(passes):
            state.position = position
            if position and position % each == 0:
                state.ends.append(state.clock)
            for key, seconds in item.needs:
                if key not in self.arrived:
                    yield key
                begin = larger(state.clock, self.arrived.pop(key))
                wait = begin - state.clock
                under_way = smaller(wait, seconds)
                on_the_wire = on_the_wire + under_way
                idle = idle + (wait - under_way)
                state.clock = begin
                state.messaged(larger)
            ends: dict[int, tuple[str, Num]] = {}
            for step in item.block.steps:
                if isinstance(step, Run):
                    state.run(step, larger)
                elif isinstance(step, Queued):
                    state.enqueue(step, ends, larger)
                else:
                    yield from self._sync(stage, step, ends)
            for key, seconds in item.sends:
                self.arrived[key] = state.clock + seconds
                self._wake(key)
                state.messaged(larger)
        state.waits[PIPELINE] = state.waits[PIPELINE] + on_the_wire
        state.waits[BUBBLE] = state.waits[BUBBLE] + idle
        state.ends.append(state.clock)
        for queued in state.streams.values():
            for category, end in queued:
                state.wait(category, end, larger)
        state.end = state.clock

    def _sync(self, stage: int, step: Sync, ends: dict[int, tuple[str, Num]]) -> Waiting:
        state = self.stages[stage]
        state.await_streams(step, ends, self.larger)
        state.issue(step.host, step.lag, self.larger)
        if step.rendezvous:
            yield from self._meet(stage, step.rendezvous)
        state.work(step.seconds)
        if step.synchronises:
            state.synchronise(self.larger)

    def _meet(self, stage: int, name: str) -> Waiting:
        state = self.stages[stage]
        meeting = (name, state.meetings.get(name, 0))
        state.meetings[name] = meeting[1] + 1
        present = self.present.setdefault(meeting, {})
        present[stage] = state.clock
        members = self.plan.members[name]
        if len(present) < len(members):
            yield meeting
        else:
            self._wake(meeting)
        begin = state.clock
        for member in members:
            begin = self.larger(begin, present[member])
        state.wait(BUBBLE, begin, self.larger)
