"""The event engine, on SimPy: a process for each stage, an event for each task, message and meeting.

Side streams are driven by callbacks, a message is an event in a dict that both ends share, and a meeting is a counter
with one event, so that the number of events follows from the program alone (`expected_events`) and never from which
of two simultaneous things happened first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable
from math import inf, isnan, nan
from typing import TypeAlias, cast

from simpy import Environment, Event
from simpy.core import EmptySchedule

from shardsim.engine.accounts import BUBBLE, HOST, PIPELINE, enqueue, execution
from shardsim.engine.interference import INTERFERENCE
from shardsim.engine.plan import make_plan
from shardsim.engine.steps import Meeting, PassKey, PassPlan, Plan, Queued, Run, Sync, stuck_error
from shardsim.engine.timeline import timeline_from_tasks
from shardsim.errors import ProgramError, ShardsimError
from shardsim.values.program import Program
from shardsim.values.results import Execution

_Process: TypeAlias = Generator[Event, None, None]
_Trace: TypeAlias = tuple[list[float], list[float]]


class EventLimitError(ShardsimError):
    """The event engine stopped at the number of events it was allowed.

    Parameters
    ----------
    events : int
        Processed so far (-).
    reached_s : float
        Simulated time reached [s].
    progress : str
        How far the stages got.
    """

    def __init__(self, events: int, reached_s: float, progress: str) -> None:
        self.events = events
        self.reached_s = reached_s
        super().__init__(f"stopped at the limit of {events} events: {progress}")


def simulate(program: Program, *, timeline: bool = False, max_events: int | None = None) -> Execution:
    """Run a program event by event.

    Parameters
    ----------
    program : Program
        Operator by operator or coalesced; scalars only.
    timeline : bool
        Whether to return the start and the end of every task.
    max_events : int, optional
        Events after which to give up (-).

    Returns
    -------
    Execution
        With the number of events processed.

    Raises
    ------
    ProgramError
        The program is malformed, holds arrays, or can never finish.
    EventLimitError
        ``max_events`` were processed and the program had not finished.
    """
    plan = make_plan(program)
    if plan.shape is not None:
        raise ProgramError("the event engine takes one layout; for arrays over layouts use the closed form")
    return _Simulation(plan, traced=timeline).run(inf if max_events is None else max_events)


def expected_events(plan: Plan) -> int:
    """Count the events that a plan takes: one for each task, message and meeting, two for each stage.

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


class _Later(Event):
    """An event that may be waited for before it is known when it happens.

    Of a task on a side stream, ``planned`` is when it will be, which is known as soon as it is issued: nothing that
    such a task waits for depends on other stages.
    """

    planned = nan

    def happen(self, delay: float) -> None:
        """Let it happen after ``delay`` [s]."""
        self._ok = True
        self._value = None
        self.env.schedule(self, delay=delay)


class _SideTask:
    """A task on a side stream, with what it still has to wait for."""

    __slots__ = ("earliest", "end", "row", "seconds", "waits")

    def __init__(self, end: _Later, earliest: float, seconds: float, waits: list[_Later], row: int) -> None:
        self.end = end
        self.earliest = earliest
        self.seconds = seconds
        self.waits = waits
        self.row = row


class _SideStream:
    """Runs its tasks in order and holds up nobody; each costs one event, that of its end."""

    def __init__(self, env: Environment, trace: _Trace | None) -> None:
        self.env = env
        self.trace = trace
        self.tasks: deque[_SideTask] = deque()
        self.queued: list[tuple[str, _Later]] = []

    def issue(self, task: _SideTask) -> None:
        task.end.callbacks.append(self._finished)
        self.tasks.append(task)
        if len(self.tasks) == 1:
            self._begin()

    def _begin(self, _: Event | None = None) -> None:
        task = self.tasks[0]
        while task.waits:
            if not task.waits[-1].processed:
                task.waits.pop().callbacks.append(self._begin)
                return
            task.waits.pop()
        delay = max(task.earliest - self.env.now, 0.0)
        if self.trace is not None:
            self.trace[0][task.row] = self.env.now + delay
        task.end.happen(delay + task.seconds)

    def _finished(self, _: Event) -> None:
        task = self.tasks.popleft()
        if self.trace is not None:
            self.trace[1][task.row] = self.env.now
        if self.tasks:
            self._begin()


class _Stage:
    """One stage: the clock of its device is the environment's, its place in the order is the process's."""

    def __init__(self, index: int, simulation: _Simulation, *, traced: bool) -> None:
        self.index = index
        self.simulation = simulation
        self.env = simulation.env
        self.trace: _Trace | None = ([], []) if traced else None
        self.streams: dict[str, _SideStream] = {}
        self.attended: dict[str, int] = {}
        self.waits: dict[str, float] = {PIPELINE: 0.0, BUBBLE: 0.0}
        self.slowdown = simulation.plan.slowdown
        self.busy_until = 0.0
        if self.slowdown is not None:
            self.waits[INTERFERENCE] = 0.0
        self.hosted = simulation.plan.hosted
        self.synchronous = simulation.plan.synchronous_messages
        self.issued = 0.0
        if self.hosted:
            self.waits[HOST] = 0.0
        self.position = 0
        self.waits_for: PassKey | Meeting = ("", 0)
        self.end = nan

    def process(self, passes: tuple[PassPlan, ...]) -> _Process:
        timeout, traced = self.env.timeout, self.trace is not None
        for position, item in enumerate(passes):
            self.position = position
            for key, seconds in item.needs:
                yield from self._receive(key, float(seconds))
            ends: dict[int, tuple[str, _Later]] = {}
            for step in item.block.steps:
                issued = self.issued
                if isinstance(step, Queued):
                    self._queue(step, ends)
                elif isinstance(step, Sync):
                    yield from self._sync(step, ends)
                elif self.hosted and (gap := self._turn_to(step)):
                    yield from self._late(step, gap, issued)
                elif traced or self.busy_until > self.env.now:
                    yield from self._work(cast("tuple[float, ...]", step.seconds))
                else:
                    for seconds in cast("tuple[float, ...]", step.seconds):
                        yield timeout(seconds)
            for key, seconds in item.sends:
                self._send(key, float(seconds))
        for stream in self.streams.values():
            yield from self._drain(stream)
        self.end = self.env.now

    def _late(self, run: Run, gap: float, issued: float) -> _Process:
        """Run blocking tasks whose host is late, slowed by what is under way on the side streams or traced.

        Each ends when it would if the host were never late, or if the device were never busy before, whichever is
        later: what the device has to wait hides what it is slowed by. The run as a whole waits first.
        """
        env, trace = self.env, self.trace
        device, launched, lost, until = env.now, -inf, 0.0, self.busy_until
        slowdown = self.slowdown if until > env.now else None
        if trace is None and slowdown is None:
            for seconds in cast("tuple[float, ...]", run.seconds):
                yield env.timeout(gap + seconds)
                gap = 0.0
            return
        for seconds, (host, lag) in zip(
            cast("tuple[float, ...]", run.seconds), cast("tuple[tuple[float, float], ...]", run.issue), strict=True
        ):
            start = max(device, launched, issued + lag)
            launched = max(launched, issued + lag) + seconds
            issued += host
            extra = 0.0 if slowdown is None else float(slowdown.delay(seconds, device, until))
            device += seconds + extra
            lost += extra
            if trace is not None:
                trace[0].append(start)
                trace[1].append(max(device, launched))
            if slowdown is None:
                yield env.timeout(gap + seconds)
                gap = 0.0
            else:
                yield env.timeout(max(device, launched, env.now) - env.now)
        if slowdown is not None:
            self._count(INTERFERENCE, max(lost - gap, 0.0))

    def _turn_to(self, step: Run | Sync) -> float:
        """Let the host issue a step, and return how long that makes the device wait [s]."""
        gap = max(self.issued + float(step.lag) - self.env.now, 0.0)
        self._count(HOST, gap)
        self.issued += float(step.host)
        return gap

    def _synchronise(self) -> None:
        """Let the host wait for the device."""
        self.issued = max(self.issued, self.env.now)

    def _work(self, run: Iterable[float], gap: float = 0.0) -> _Process:
        """Run blocking tasks, after a gap and slowed by what is under way on the side streams."""
        env, trace, slowdown = self.env, self.trace, self.slowdown
        for seconds in run:
            begin, lasting = env.now + gap, gap + seconds
            if slowdown is not None and self.busy_until > begin:
                extra = float(slowdown.delay(seconds, begin, self.busy_until))
                self._count(INTERFERENCE, extra)
                lasting = lasting + extra
            if trace is None:
                yield env.timeout(lasting)
            else:
                trace[0].append(begin)
                yield env.timeout(lasting)
                trace[1].append(env.now)

    def _receive(self, key: PassKey, seconds: float) -> _Process:
        before = self.env.now
        self.waits_for = key
        yield self.simulation.message(key)
        self.simulation.forget(key)
        wait = self.env.now - before
        under_way = min(wait, seconds)
        self._count(PIPELINE, under_way)
        self._count(BUBBLE, wait - under_way)
        if self.synchronous:
            self._synchronise()

    def _send(self, key: PassKey, seconds: float) -> None:
        self.simulation.message(key).happen(seconds)
        if self.synchronous:
            self._synchronise()

    def _queue(self, step: Queued, ends: dict[int, tuple[str, _Later]]) -> None:
        stream = self._stream(step.stream)
        waits = [ends[index][1] for index in step.waits]
        waits += [self.streams[name].queued[-1][1] for name in step.drains if self._busy(name)]
        row = -1
        if self.trace is not None:
            row = len(self.trace[0])
            for column in self.trace:
                column.append(nan)
        if self.hosted:
            self.issued += float(step.host)
        end = _Later(self.env)
        ends[step.number] = (step.category, end)
        if self.slowdown is not None:
            before = [event.planned for event in (*waits, *(last for _, last in stream.queued[-1:]))]
            end.planned = max([self.env.now, self.issued, *before]) + float(step.seconds)
            if step.slows:
                self.busy_until = max(self.busy_until, end.planned)
        enqueue(stream.queued, step.category, end)
        stream.issue(_SideTask(end, self.issued, float(step.seconds), waits, row))

    def _sync(self, step: Sync, ends: dict[int, tuple[str, _Later]]) -> _Process:
        for index in step.waits:
            yield from self._wait(*ends[index])
        for name in step.drains:
            if self._busy(name):
                yield from self._drain(self.streams[name])
        gap = self._turn_to(step) if self.hosted else 0.0
        if step.rendezvous:
            yield from self._meet(step.rendezvous, gap)
            gap = 0.0
        yield from self._work((float(step.seconds),), gap)
        if step.synchronises:
            self._synchronise()

    def _meet(self, name: str, gap: float) -> _Process:
        generation = self.attended.get(name, 0)
        self.attended[name] = generation + 1
        self.waits_for = (name, generation)
        yield from self._wait(BUBBLE, self.simulation.arrive(name, generation, gap), gap)

    def _drain(self, stream: _SideStream) -> _Process:
        for category, end in stream.queued:
            yield from self._wait(category, end)
        stream.queued.clear()

    def _wait(self, category: str, event: Event, gap: float = 0.0) -> _Process:
        before = self.env.now + gap
        yield event
        self._count(category, self.env.now - before)

    def _count(self, category: str, seconds: float) -> None:
        self.waits[category] = self.waits.get(category, 0.0) + seconds

    def _stream(self, name: str) -> _SideStream:
        if name not in self.streams:
            self.streams[name] = _SideStream(self.env, self.trace)
        return self.streams[name]

    def _busy(self, name: str) -> bool:
        return name in self.streams and bool(self.streams[name].queued)


class _Simulation:
    """One run: the environment, its stages, and what they share."""

    def __init__(self, plan: Plan, *, traced: bool) -> None:
        self.plan = plan
        self.traced = traced
        self.env = Environment()
        self.messages: dict[PassKey, _Later] = {}
        self.meetings: dict[tuple[str, int], _Later] = {}
        self.present: dict[tuple[str, int], tuple[int, float]] = {}
        self.stages = [_Stage(index, self, traced=traced) for index in range(len(plan.stages))]
        self.events = 0

    def message(self, key: PassKey) -> _Later:
        """Return the event of a message's arrival, for whichever end asks first."""
        if key not in self.messages:
            self.messages[key] = _Later(self.env)
        return self.messages[key]

    def forget(self, key: PassKey) -> None:
        """Drop a message that has been received."""
        del self.messages[key]

    def arrive(self, name: str, generation: int, gap: float) -> _Later:
        """Count a stage in that arrives at a meeting after a gap; it takes place when the last of its members does."""
        key = (name, generation)
        if key not in self.meetings:
            self.meetings[key] = _Later(self.env)
        count, latest = self.present.get(key, (0, 0.0))
        self.present[key] = count, latest = count + 1, max(latest, self.env.now + gap)
        if count == len(self.plan.members[name]):
            self.meetings[key].happen(latest - self.env.now)
        return self.meetings[key]

    def run(self, max_events: float) -> Execution:
        """Process events until none is left."""
        for stage, plan in zip(self.stages, self.plan.stages, strict=True):
            self.env.process(stage.process(plan.passes))
        try:
            self._step_through(max_events)
        except KeyboardInterrupt as interrupt:
            interrupt.add_note(f"interrupted after {self.events} events: {self._progress()}")
            raise
        stuck = {stage.index: (stage.position, stage.waits_for) for stage in self.stages if isnan(stage.end)}
        if stuck:
            raise stuck_error(self.plan, stuck)
        rows = None
        if self.traced:
            traces = [stage.trace or ([], []) for stage in self.stages]
            rows = timeline_from_tasks(self.plan, [trace[0] for trace in traces], [trace[1] for trace in traces])
        waits, ends = [stage.waits for stage in self.stages], [stage.end for stage in self.stages]
        return execution("des", self.plan, waits, ends, max, events=self.events, timeline=rows)

    def _step_through(self, max_events: float) -> None:
        step = self.env.step
        try:
            while self.events < max_events:
                step()
                self.events += 1
        except EmptySchedule:
            return
        if self.env.peek() < inf:
            raise EventLimitError(self.events, self.env.now, self._progress())

    def _progress(self) -> str:
        done = sum(stage.position for stage in self.stages)
        passes = sum(len(stage.passes) for stage in self.plan.stages)
        return f"{self.env.now:.6g} s simulated, {done} of {passes} passes finished"
