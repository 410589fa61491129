"""One lane of the event engine: the ranks of a stage that do the same, as one process.

The clock of the device is the environment's, the place in the order is the process's. Side streams are driven by
callbacks. What touches nothing shared takes one event: an operator, a coalesced run of them or, where asked for, a
whole pass, whose inside is then the recurrence's (:mod:`shardsim.engine.walk`).

Blocking work is slowed while something runs or is queued on a side stream. Until when that is, is known as soon as it
is queued, unless it meets others; then the work's end is moved once the last of it has ended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from functools import partial
from math import inf, nan
from typing import TYPE_CHECKING, TypeAlias, cast

from simpy import Environment, Event

from shardsim.engine.accounts import BUBBLE, HOST, JITTER, PIPELINE, STRAGGLERS, computing_seconds, enqueue
from shardsim.engine.interference import INTERFERENCE, Slowdown
from shardsim.engine.later import Later
from shardsim.engine.steps import BlockPlan, Meeting, PassKey, Queued, Run, StagePlan, Sync
from shardsim.engine.walk import StageWalk
from shardsim.engine.whole import WholePasses
from shardsim.values.lanes import Lane

if TYPE_CHECKING:
    from shardsim.engine.meetings import Meetings, Shared

Process: TypeAlias = Generator[Event, None, None]
Trace: TypeAlias = tuple[list[float], list[float]]


class _SideTask:
    """A task on a side stream, with what it still has to wait for."""

    __slots__ = ("earliest", "end", "row", "seconds", "shared", "waits")

    def __init__(
        self, end: Later, earliest: float, seconds: float, waits: list[Later], row: int, shared: Shared | None
    ) -> None:
        self.end = end
        self.earliest = earliest
        self.seconds = seconds
        self.waits = waits
        self.row = row
        self.shared = shared


class _SideStream:
    """Runs its tasks in order and holds up nobody."""

    def __init__(self, env: Environment, meetings: Meetings, lane: int, trace: Trace | None) -> None:
        self.env = env
        self.meetings = meetings
        self.lane = lane
        self.trace = trace
        self.tasks: deque[_SideTask] = deque()
        self.queued: list[tuple[str, Later]] = []
        self.late: deque[tuple[float, float]] = deque()

    def late_within(self, start: float, end: float) -> float:
        """Seconds of a span in which a task waited for slower ranks; spans are asked for in order [s]."""
        found = 0.0
        while self.late and self.late[0][0] < end:
            arrived, begun = self.late[0]
            found += max(min(begun, end) - max(arrived, start), 0.0)
            if begun > end:
                break
            self.late.popleft()
        return found

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
        if task.shared is None:
            self._started(task, delay)
            task.end.happen(delay + task.seconds)
        elif delay > 0.0:
            later = Later(self.env)
            later.callbacks.append(lambda _: self._meet(task))
            later.happen(delay)
        else:
            self._meet(task)

    def _meet(self, task: _SideTask) -> None:
        shared, arrived = cast("Shared", task.shared), self.env.now

        def begun() -> None:
            if self.env.now > arrived:
                self.late.append((arrived, self.env.now))
            self._started(task, 0.0)

        self.meetings.attend(self.lane, shared, begun, task.end.happen)

    def _started(self, task: _SideTask, delay: float) -> None:
        if self.trace is not None:
            self.trace[0][task.row] = self.env.now + delay

    def _finished(self, _: Event) -> None:
        task = self.tasks.popleft()
        if self.trace is not None:
            self.trace[1][task.row] = self.env.now
        if self.tasks:
            self._begin()


def _end_of(slowdown: Slowdown, seconds: float, begin: float, least: float, until: float) -> float:
    """When work that is slowed until some time ends, but not before ``least`` [s]."""
    return max(begin + seconds + float(slowdown.delay(seconds, begin, until)), least)


class LaneProcess:
    """One lane.

    Parameters
    ----------
    index : int
    lane : Lane
    plan : StagePlan
    meetings : Meetings
        Everything outside the lane: messages, meetings, the network.
    state : StageWalk
        What it waited for, and how it is slowed.
    inside : WholePasses
        The inside of passes that take one event.
    jitter : iterator of float
        By which share of its computation each pass takes longer (-), as far as it goes.
    iterations : int
        In its passes (-).
    hosted, whole_passes, traced : bool
        Whether the program knows host times; whether a pass that touches nothing shared takes one event; whether to
        keep the start and the end of every task.
    """

    def __init__(
        self,
        index: int,
        lane: Lane,
        plan: StagePlan,
        meetings: Meetings,
        state: StageWalk,
        inside: WholePasses,
        jitter: Iterator[float],
        *,
        iterations: int,
        hosted: bool,
        whole_passes: bool,
        traced: bool,
    ) -> None:
        self.index = index
        self.lane = lane
        self.plan = plan
        self.meetings = meetings
        self.env = meetings.env
        self.state = state
        self.trace: Trace | None = ([], []) if traced else None
        self.streams: dict[str, _SideStream] = {}
        self.waits = state.waits
        self.slowdown = state.slowdown
        self.busy_until = 0.0
        self.unknown = 0
        self.outstanding = 0
        self.held: tuple[Later, Callable[[float], float]] | None = None
        self.hosted = hosted
        self.issued = 0.0
        self.whole_passes = whole_passes and not traced
        self.walkable: dict[int, bool] = {}
        self.inside = inside
        self.jitter = jitter
        self.known: dict[int, Shared | None] = {}
        self.computing: dict[int, float] = {}
        self.position = 0
        self.waits_for: PassKey | Meeting = ("", 0)
        self.end = nan
        self.iterations = iterations
        self.ends: list[float] = []

    def process(self) -> Process:
        """Run all passes."""
        each = len(self.plan.passes) // self.iterations
        for position, item in enumerate(self.plan.passes):
            self.position = position
            if position and position % each == 0:
                self.ends.append(self.env.now)
            for key, seconds in item.needs:
                yield from self._receive(key, float(seconds))
            if self.whole_passes and not self.outstanding and self._walks(item.block):
                yield from self._whole(item.block)
            else:
                yield from self._steps(item.block)
            if item.item is not None:
                yield from self._stutter(item.block)
            for key, seconds in item.sends:
                self._send(key, float(seconds))
        self.ends.append(self.env.now)
        for stream in self.streams.values():
            yield from self._drain(stream)
        self.end = self.env.now

    def _steps(self, block: BlockPlan) -> Process:
        """Run a block step by step."""
        timeout, traced = self.env.timeout, self.trace is not None
        ends: dict[int, tuple[str, Later]] = {}
        for step in block.steps:
            issued = self.issued
            if isinstance(step, Queued):
                self._queue(step, ends)
            elif isinstance(step, Sync):
                yield from self._sync(step, ends)
            elif self.hosted and (gap := self._turn_to(step)):
                yield from self._late(step, gap, issued)
            elif traced or self.unknown or self.busy_until > self.env.now:
                yield from self._work(cast("tuple[float, ...]", step.seconds))
            else:
                for seconds in cast("tuple[float, ...]", step.seconds):
                    yield timeout(seconds)

    # ---- whole passes ---------------------------------------------------------------------------------------------

    def _walks(self, block: BlockPlan) -> bool:
        """Whether a block meets nothing while nothing else of its lane is under way: one event can stand for it."""
        found = self.walkable.get(id(block))
        if found is None:
            found = block.settles and self.meetings.meets_itself_only(self.index, block)
            self.walkable[id(block)] = found
        return found

    def _whole(self, block: BlockPlan) -> Process:
        """Run a block as one event: the recurrence tells when it ends."""
        now = self.env.now
        done = self.inside.run(block, self.issued - now if self.hosted else None)
        for category, seconds in done.waits.items():
            self._count(category, seconds)
        if self.hosted:
            self.issued = now + done.issued
        yield self.env.timeout(done.seconds)

    def _stutter(self, block: BlockPlan) -> Process:
        """Let a pass take longer than its work, by as much as its turn has."""
        share = next(self.jitter, 0.0)
        if share > 0.0:
            longer = share * self._computing(block)
            self._count(JITTER, longer)
            yield self.env.timeout(longer)

    def _computing(self, block: BlockPlan) -> float:
        """Seconds of a block's computation, worked out once [s]."""
        if id(block) not in self.computing:
            self.computing[id(block)] = computing_seconds(block)
        return self.computing[id(block)]

    # ---- blocking work --------------------------------------------------------------------------------------------

    @property
    def until(self) -> float:
        """Until when blocking work is slowed, as far as is known now [s]."""
        return inf if self.unknown else self.busy_until

    def _late(self, run: Run, gap: float, issued: float) -> Process:
        """Run blocking tasks whose host is late, slowed by what is under way on the side streams or traced.

        Each ends when it would if the host were never late, or if the device were never busy before, whichever is
        later: what the device has to wait hides what it is slowed by. The run as a whole waits first.
        """
        env, trace = self.env, self.trace
        device, launched, lost = env.now, -inf, 0.0
        slowdown = self.slowdown if self.until > env.now else None
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
            if slowdown is None:
                device += seconds
                yield env.timeout(gap + seconds)
                gap = 0.0
            else:
                begin = device
                yield from self._until(partial(_end_of, slowdown, seconds, begin, launched))
                device = _end_of(slowdown, seconds, begin, -inf, self.until)
                lost += device - begin - seconds
            if trace is not None:
                trace[0].append(start)
                trace[1].append(max(device, launched))
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

    def _work(self, run: Iterable[float], gap: float = 0.0) -> Process:
        """Run blocking tasks, after a gap and slowed by what is under way on the side streams."""
        env, trace, slowdown = self.env, self.trace, self.slowdown
        for seconds in run:
            begin = env.now + gap
            if slowdown is not None and self.until > begin:
                yield from self._slowed(seconds, begin)
            else:
                yield env.timeout(gap + seconds)
            gap = 0.0
            if trace is not None:
                trace[0].append(begin)
                trace[1].append(env.now)

    def _slowed(self, seconds: float, begin: float) -> Process:
        """Work while side streams are busy."""
        slowdown = self.slowdown
        if slowdown is None:
            return
        yield from self._until(partial(_end_of, slowdown, seconds, begin, -inf))
        self._count(INTERFERENCE, float(slowdown.delay(seconds, begin, self.until)))

    def _until(self, ends: Callable[[float], float]) -> Process:
        """Wait for the end of work, which depends on until when it is slowed."""
        event = Later(self.env)
        event.happen(max(ends(self.until) - self.env.now, 0.0))
        if self.unknown:
            self.held = event, ends
        yield event
        self.held = None

    def _ended(self, _: Event) -> None:
        """Take note that the end of something on a side stream that meets others is known at last."""
        self.unknown -= 1
        self.busy_until = max(self.busy_until, self.env.now)
        if self.held is not None and not self.unknown:
            event, ends = self.held
            sooner = Later(self.env)
            # Whoever waits, waits for the new event; the old one will happen and nobody look at it.
            sooner.callbacks, event.callbacks = event.callbacks, []
            sooner.happen(max(ends(self.until) - self.env.now, 0.0))
            self.held = sooner, ends

    # ---- messages -------------------------------------------------------------------------------------------------

    def _receive(self, key: PassKey, seconds: float) -> Process:
        before = self.env.now
        self.waits_for = key
        yield self.meetings.message(self.lane.column, key)
        lasting = self.meetings.received(self.index, self.lane.column, key, before)
        wait = self.env.now - before
        under_way = min(wait, seconds if lasting is None else lasting)
        self._count(PIPELINE, under_way)
        self._count(BUBBLE, wait - under_way)
        if self.state.synchronous_messages:
            self._synchronise()

    def _send(self, key: PassKey, seconds: float) -> None:
        self.meetings.send(self.index, self.lane.column, key, seconds)
        if self.state.synchronous_messages:
            self._synchronise()

    # ---- side streams and meetings --------------------------------------------------------------------------------

    def _queue(self, step: Queued, ends: dict[int, tuple[str, Later]]) -> None:
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
        end = Later(self.env)
        end.stream = stream
        ends[step.number] = (step.category, end)
        shared = self._shared(step)
        self._plan_end(step, end, (*waits, *(last for _, last in stream.queued[-1:])), met=shared is not None)
        self.outstanding += 1
        end.callbacks.append(self._over)
        enqueue(stream.queued, step.category, end)
        stream.issue(_SideTask(end, self.issued, float(step.seconds), waits, row, shared))

    def _plan_end(self, step: Queued, end: Later, before: Iterable[Later], *, met: bool) -> None:
        """Work out when a task on a side stream will end, where nothing else decides that."""
        if self.slowdown is None:
            return
        now = self.env.now
        known = [now if event.processed else event.planned for event in before]
        end.planned = inf if met else max([now, self.issued, *known]) + float(step.seconds)
        if not step.slows:
            return
        if end.planned < inf:
            self.busy_until = max(self.busy_until, end.planned)
        else:
            self.unknown += 1
            end.callbacks.append(self._ended)

    def _over(self, _: Event) -> None:
        self.outstanding -= 1

    def _sync(self, step: Sync, ends: dict[int, tuple[str, Later]]) -> Process:
        for index in step.waits:
            yield from self._wait(*ends[index])
        for name in step.drains:
            if self._busy(name):
                yield from self._drain(self.streams[name])
        gap = self._turn_to(step) if self.hosted else 0.0
        shared = self._shared(step)
        if shared is None:
            yield from self._work((float(step.seconds),), gap)
        elif shared.load is None and step.rendezvous:
            yield from self._meet(shared, gap)
            yield from self._work((float(step.seconds),))
        else:
            yield from self._together(step, shared, gap)
        if step.synchronises:
            self._synchronise()

    def _shared(self, step: Queued | Sync) -> Shared | None:
        """What a task meets, worked out once."""
        if id(step) not in self.known:
            self.known[id(step)] = self.meetings.shared(self.index, step)
        return self.known[id(step)]

    def _meet(self, shared: Shared, gap: float) -> Process:
        """Wait for the other stages that take part."""
        before = self.env.now + gap
        self.waits_for = self.meetings.next_of(self.index, shared)
        yield self.meetings.arrive(self.index, shared, gap)
        self._count(BUBBLE, self.env.now - before)

    def _together(self, step: Sync, shared: Shared, gap: float) -> Process:
        """Run a blocking task that meets other lanes or other transfers."""
        env, slowdown = self.env, self.slowdown
        if gap > 0.0:
            yield env.timeout(gap)
        arrived, seconds = env.now, float(step.seconds)
        begun: list[float] = []
        over = Later(env)
        self.waits_for = self.meetings.next_of(self.index, shared)
        self.meetings.attend(self.index, shared, lambda: begun.append(env.now), over.happen)
        yield over
        begin = begun[0]
        self._count(BUBBLE if step.rendezvous else STRAGGLERS, begin - arrived)
        self._count(step.task.category if step.task else PIPELINE, max(env.now - begin - seconds, 0.0))
        if slowdown is not None and self.until > begin:
            before = env.now
            yield from self._until(partial(_end_of, slowdown, seconds, begin, before))
            self._count(INTERFERENCE, env.now - before)
        if self.trace is not None:
            self.trace[0].append(begin)
            self.trace[1].append(env.now)

    def _drain(self, stream: _SideStream) -> Process:
        for category, end in stream.queued:
            yield from self._wait(category, end)
        stream.queued.clear()

    def _wait(self, category: str, event: Event) -> Process:
        before = self.env.now
        if not event.processed:
            yield event
        wait = self.env.now - before
        if wait > 0.0 and isinstance(event, Later) and event.stream is not None:
            late = min(event.stream.late_within(before, self.env.now), wait)
            if late > 0.0:
                self._count(STRAGGLERS, late)
                wait -= late
        self._count(category, wait)

    def _count(self, category: str, seconds: float) -> None:
        self.waits[category] = self.waits.get(category, 0.0) + seconds

    def _busy(self, name: str) -> bool:
        return name in self.streams and bool(self.streams[name].queued)

    def _stream(self, name: str) -> _SideStream:
        if name not in self.streams:
            self.streams[name] = _SideStream(self.env, self.meetings, self.index, self.trace)
        return self.streams[name]
