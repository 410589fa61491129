"""A program made ready to run: checked, laid out pass by pass, and grouped into steps. All three engines read it.

What an engine does in a pass is a sequence of steps of three kinds: a `Run` of blocking tasks that touch nothing
shared, a blocking task that has to `Sync` with others first, and a task that is `Queued` on a side stream.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import inf
from typing import NamedTuple, TypeAlias

import numpy as np

from shardsim.engine.interference import Slowdown
from shardsim.errors import ProgramError
from shardsim.program.coalesce import (
    free_runs,
    has_host,
    run_lag,
    seconds_by_category,
    side_streams,
    total,
    waiting_problems,
)
from shardsim.values.num import Num, any_of
from shardsim.values.program import Block, Pass, PassKind, PipelineSchedule, Program, Task

PassKey: TypeAlias = tuple[int, str, int, int]
"""Stage, pass kind, micro-batch, chunk: names a pass, and the message that it sends."""

EPILOGUE = "epilogue"


class Run(NamedTuple):
    """Blocking tasks in a row that touch nothing shared.

    Parameters
    ----------
    seconds : tuple of Num
        Of each task [s].
    total : Num
        Of all of them [s].
    issue : tuple of (Num, Num)
        Of each task, the host's time to issue it, and how long after the host turns to it it starts at the earliest
        [s]; empty where the program knows no host times.
    host, lag : Num
        The same of all of them [s].
    """

    seconds: tuple[Num, ...]
    total: Num
    issue: tuple[tuple[Num, Num], ...] = ()
    host: Num = 0.0
    lag: Num = 0.0


class Sync(NamedTuple):
    """A blocking task that has to wait for others first.

    Parameters
    ----------
    seconds : Num
        [s].
    waits : tuple of int
        Non-blocking tasks of the same block.
    drains : tuple of str
        Side streams that must be empty; its own among them where it shares one.
    rendezvous : str
        Meeting to attend, or empty.
    host, lag : Num
        The host's time to issue it, and how long after the host turns to it it starts at the earliest [s].
    synchronises : bool
        Whether the host waits for its end.
    """

    seconds: Num
    waits: tuple[int, ...]
    drains: tuple[str, ...]
    rendezvous: str
    host: Num = 0.0
    lag: Num = 0.0
    synchronises: bool = False


class Queued(NamedTuple):
    """A task on a side stream.

    Parameters
    ----------
    number : int
        Its place in the block, for later tasks to wait for.
    stream, category : str
    seconds : Num
        [s].
    waits : tuple of int
    drains : tuple of str
        Other side streams; what is queued on them now must have ended.
    host : Num
        The host's time to issue it [s].
    """

    number: int
    stream: str
    category: str
    seconds: Num
    waits: tuple[int, ...]
    drains: tuple[str, ...]
    host: Num = 0.0


Step: TypeAlias = Run | Sync | Queued


@dataclass(frozen=True, slots=True)
class BlockPlan:
    """A block as steps.

    Parameters
    ----------
    tasks : tuple of Task
        In order of issue, as in the program.
    steps : tuple of Step
    busy : mapping of str to Num
        Seconds of the blocking tasks by category [s].
    flop : Num
        Of all tasks (-).
    """

    tasks: tuple[Task, ...]
    steps: tuple[Step, ...]
    busy: Mapping[str, Num]
    flop: Num


class PassPlan(NamedTuple):
    """One pass of one stage; its epilogue is the last of them.

    Parameters
    ----------
    block : BlockPlan
    kind : str
        ``F``, ``B``, ``W`` or ``epilogue``.
    microbatch, chunk : int
        -1 in the epilogue.
    needs : PassKey or None
        The pass on another stage whose message it waits for.
    message : Num
        Time of that message [s].
    sends : PassKey or None
        The message that it sends when it ends.
    sends_seconds : Num
        Time of the message sent [s].
    """

    block: BlockPlan
    kind: str
    microbatch: int
    chunk: int
    needs: PassKey | None = None
    message: Num = 0.0
    sends: PassKey | None = None
    sends_seconds: Num = 0.0

    @property
    def name(self) -> str:
        """For messages to people."""
        return EPILOGUE if self.kind == EPILOGUE else pass_name(self.kind, self.microbatch, self.chunk)


@dataclass(frozen=True, slots=True)
class StagePlan:
    """What one stage does in an iteration.

    Parameters
    ----------
    passes : tuple of PassPlan
        In order, with the epilogue at the end.
    uses : tuple of (BlockPlan, int)
        Each different block, and how often it runs.
    """

    passes: tuple[PassPlan, ...]
    uses: tuple[tuple[BlockPlan, int], ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """A checked program, stage by stage.

    Parameters
    ----------
    stages : tuple of StagePlan
    members : mapping of str to tuple of int
        Stages that take part in each meeting.
    shape : tuple of int or None
        Shape of the arrays over layouts, or None when every figure is a scalar.
    slowdown : Slowdown or None
        Of blocking work while side streams are busy, or None when nothing is slowed.
    hosted : bool
        Whether the program knows host times.
    synchronous_messages : bool
        Whether the host waits for the device wherever a stage receives or sends a message.
    """

    stages: tuple[StagePlan, ...]
    members: Mapping[str, tuple[int, ...]]
    shape: tuple[int, ...] | None
    slowdown: Slowdown | None = None
    hosted: bool = False
    synchronous_messages: bool = False


def pass_name(kind: str, microbatch: int, chunk: int) -> str:
    """Write a pass for people: ``F3.1`` is the forward pass of micro-batch 3 through chunk 1.

    >>> pass_name("F", 3, 1)
    'F3.1'
    """
    return f"{kind}{microbatch}.{chunk}"


def make_plan(program: Program) -> Plan:
    """Check a program and lay it out for the engines.

    Parameters
    ----------
    program : Program

    Returns
    -------
    Plan

    Raises
    ------
    ProgramError
        Everything found wrong: a pass without a block, one that needs what its own stage runs later, a message that
        nobody sends, a meeting without the stage that attends it, a duration that is negative or not finite, a
        slowdown that is no share below 1.
    """
    return _Planner(program).plan()


def stuck_error(plan: Plan, stuck: Mapping[int, tuple[int, str]]) -> ProgramError:
    """Say which stages of a program can never finish, where they stand, and for what they wait.

    Parameters
    ----------
    plan : Plan
    stuck : mapping of int to (int, str)
        By stage: index of the pass it stands at, and what it waits for.

    Returns
    -------
    ProgramError
    """
    lines = [f"the program can never finish: {len(stuck)} of {len(plan.stages)} stages are stuck"]
    lines += [
        f"stage {stage} in {plan.stages[stage].passes[position].name}: waits for {reason}"
        for stage, (position, reason) in sorted(stuck.items())
    ]
    return ProgramError("\n".join(lines))


def message_reason(key: PassKey) -> str:
    """Name a message for people: that of a pass on another stage."""
    stage, kind, microbatch, chunk = key
    return f"{pass_name(kind, microbatch, chunk)} of stage {stage}"


def meeting_reason(name: str, generation: int, members: tuple[int, ...]) -> str:
    """Name a meeting for people."""
    return f"meeting {generation + 1} {name!r} of stages {', '.join(map(str, members))}"


class _Route(NamedTuple):
    """What every pass of one kind and chunk of a stage needs and sends.

    Parameters
    ----------
    after : (str, int) or None
        Kind and chunk of the pass of the same stage and micro-batch that must come before it.
    sender : (int, str, int) or None
        Stage, kind and chunk of the pass whose message it waits for.
    message : Num
        Time of that message [s].
    sends : bool
        Whether the next pass of the micro-batch runs on another stage.
    sends_seconds : Num
        Time of the message to it [s].
    """

    after: tuple[PassKind, int] | None = None
    sender: tuple[int, PassKind, int] | None = None
    message: Num = 0.0
    sends: bool = False
    sends_seconds: Num = 0.0


class _Planner:
    """Walks a program once; collects every problem on the way."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.schedule: PipelineSchedule = program.schedule
        self.problems: list[str] = []
        self.shapes: set[tuple[int, ...]] = set()
        self.side = side_streams(program)
        self.place = {virtual: index for index, virtual in enumerate(self.schedule.virtual_stages)}
        self.hosted = _knows_host_times(program)
        self.message_seconds = {key: transfer.seconds for key, transfer in program.messages.items()}

    def plan(self) -> Plan:
        stages: list[StagePlan] = []
        if len(self.program.epilogues) != self.schedule.stages:
            self.problems.append(
                f"the program has {len(self.program.epilogues)} epilogues for {self.schedule.stages} stages"
            )
        else:
            self.problems += [
                _bad_time(f"message {key}", seconds)
                for key, seconds in self.message_seconds.items()
                if not self._is_time(seconds)
            ]
            stages = [self._stage(stage) for stage in range(self.schedule.stages)]
        slowdown = self._slowdown()
        shape: tuple[int, ...] | None = None
        try:
            shape = np.broadcast_shapes(*self.shapes) if self.shapes else None
        except ValueError:
            self.problems.append(f"arrays of different shapes in one program: {sorted(self.shapes)}")
        if self.problems:
            raise ProgramError("\n".join(dict.fromkeys(self.problems)))
        synchronous = self.program.synchronous_messages
        return Plan(tuple(stages), self.program.rendezvous_members, shape, slowdown, self.hosted, synchronous)

    def _slowdown(self) -> Slowdown | None:
        share = self.program.overlap_slowdown
        self._note_shape(share)
        if not np.all((share >= 0.0) & (share < 1.0)):
            self.problems.append(f"the program's overlap_slowdown is {share}: not a share of at least 0 and below 1")
        return Slowdown(share) if any_of(share > 0.0) else None

    def _stage(self, stage: int) -> StagePlan:
        order = self.schedule.orders[stage]
        last = {(item.kind, item.chunk): index for index, item in enumerate(order)}
        routes = {key: self._route(stage, *key) for key in last}
        # By place in the program, not by identity: sums must not depend on which blocks happen to be one object.
        blocks: dict[tuple[str, int, bool], BlockPlan] = {}
        counts: Counter[tuple[str, int, bool]] = Counter()
        done: set[Pass] = set()
        passes: list[PassPlan] = []
        for index, item in enumerate(order):
            kind, microbatch, chunk = item
            route = routes[kind, chunk]
            if route is None:
                continue
            replaced = last[kind, chunk] == index and (stage, kind, chunk) in self.program.last_blocks
            use = (kind, chunk, replaced)
            counts[use] += 1
            if use not in blocks:
                source = self.program.last_blocks if replaced else self.program.blocks
                blocks[use] = self._block(stage, self._found(source, (stage, kind, chunk)))
            self._check_order(stage, item, route, done)
            done.add(item)
            passes.append(
                PassPlan(
                    blocks[use],
                    kind,
                    microbatch,
                    chunk,
                    None if route.sender is None else (route.sender[0], route.sender[1], microbatch, route.sender[2]),
                    route.message,
                    (stage, kind, microbatch, chunk) if route.sends else None,
                    route.sends_seconds,
                )
            )
        epilogue = self._block(stage, self.program.epilogues[stage])
        passes.append(PassPlan(epilogue, EPILOGUE, -1, -1))
        uses = [(block, counts[use]) for use, block in blocks.items()]
        return StagePlan(tuple(passes), (*uses, (epilogue, 1)))

    def _found(self, blocks: Mapping[tuple[int, str, int], Block], key: tuple[int, str, int]) -> Block:
        if key not in blocks:
            stage, kind, chunk = key
            self.problems.append(
                f"stage {stage} runs {kind} passes of chunk {chunk}, but the program has no block {key}"
            )
        return blocks.get(key, Block("missing", ()))

    def _check_order(self, stage: int, item: Pass, route: _Route, done: set[Pass]) -> None:
        if item in done:
            self.problems.append(f"stage {stage} runs {pass_name(*item)} twice")
        if route.after is not None and Pass(route.after[0], item.microbatch, route.after[1]) not in done:
            needed = pass_name(route.after[0], item.microbatch, route.after[1])
            self.problems.append(
                f"stage {stage} is stuck in {pass_name(*item)}: it needs {needed}, which the same stage runs later "
                "or never"
            )

    def _route(self, stage: int, kind: PassKind, chunk: int) -> _Route | None:
        """Find what the passes of one kind and chunk need and send; None if they cannot run at all."""
        virtual = self.schedule.virtual_stages
        key = (stage, kind, chunk)
        if (stage, chunk) not in self.place:
            self.problems.append(f"stage {stage} runs {kind} passes of chunk {chunk}, which it does not hold")
            return None
        if kind == "W":
            return _Route(after=("B", chunk))
        place = self.place[stage, chunk]
        before, behind = (place - 1, place + 1) if kind == "F" else (place + 1, place - 1)
        sends = 0 <= behind < len(virtual) and virtual[behind][0] != stage
        seconds = self.message_seconds.get(key, 0.0) if sends else 0.0
        if not 0 <= before < len(virtual):
            # The first forward pass needs nothing; the first backward pass, its own forward pass.
            return _Route(after=None if kind == "F" else ("F", chunk), sends=sends, sends_seconds=seconds)
        source = virtual[before]
        if source[0] == stage:
            return _Route(after=(kind, source[1]), sends=sends, sends_seconds=seconds)
        sender = (source[0], kind, source[1])
        if sender not in self.message_seconds:
            self.problems.append(
                f"stage {stage} is stuck in its {kind} passes of chunk {chunk}: nobody sends them a message "
                f"from chunk {source[1]} of stage {source[0]} (the program has no messages[{sender}])"
            )
            return None
        return _Route(sender=sender, message=self.message_seconds[sender], sends=sends, sends_seconds=seconds)

    def _block(self, stage: int, block: Block) -> BlockPlan:
        self.problems += waiting_problems(block)
        for task in block.tasks:
            self._check_task(stage, block, task)
        steps: list[Step] = []
        for free, indices in free_runs(block.tasks, self.side[stage]):
            if free:
                steps.append(self._run([block.tasks[index] for index in indices]))
            else:
                steps.append(self._lone_step(stage, indices[0], block.tasks[indices[0]]))
        busy = seconds_by_category(task for task in block.tasks if task.blocking)
        return BlockPlan(block.tasks, tuple(steps), busy, total(task.flop for task in block.tasks))

    def _run(self, tasks: Sequence[Task]) -> Run:
        seconds = tuple(task.seconds for task in tasks)
        if not self.hosted:
            return Run(seconds, total(seconds))
        issue = tuple((task.host, task.earliest) for task in tasks)
        return Run(seconds, total(seconds), issue, total(task.host for task in tasks), run_lag(tasks))

    def _lone_step(self, stage: int, index: int, task: Task) -> Step:
        # A stream runs its tasks in order, so a blocking task also waits for those queued on its own.
        drains = tuple(stream for stream in task.drains if stream != task.stream)
        if task.blocking:
            own = (task.stream,) if task.stream in self.side[stage] else ()
            issue = (task.host, task.earliest, task.synchronises)
            return Sync(task.seconds, task.waits, own + drains, task.rendezvous, *issue)
        return Queued(index, task.stream, task.category, task.seconds, task.waits, drains, task.host)

    def _check_task(self, stage: int, block: Block, task: Task) -> None:
        good = self._is_time(task.seconds)
        if self.hosted and not (self._is_time(task.host) and self._is_time(task.earliest)):
            where = f"task {task.name!r} of block {block.name!r} on stage {stage}"
            self.problems.append(_bad_time(f"to issue {where}", task.host))
        for number in (task.flop, *task.parts.values()):
            self._note_shape(number)
        if good and not task.rendezvous:
            return
        where = f"task {task.name!r} of block {block.name!r} on stage {stage}"
        if not good:
            self.problems.append(_bad_time(where, task.seconds))
        if not task.rendezvous:
            return
        members = self.program.rendezvous_members.get(task.rendezvous)
        if not task.blocking:
            self.problems.append(f"{where} meets other stages ({task.rendezvous!r}), so it has to block")
        if members is None:
            self.problems.append(f"{where} is stuck: nobody else attends the meeting {task.rendezvous!r}")
        elif stage not in members:
            self.problems.append(f"{where} attends the meeting {task.rendezvous!r}, which is of stages {members}")

    def _is_time(self, seconds: Num) -> bool:
        if isinstance(seconds, np.ndarray):
            self.shapes.add(seconds.shape)
            return bool(np.all((seconds >= 0) & np.isfinite(seconds)))
        return 0.0 <= seconds < inf

    def _note_shape(self, number: Num) -> None:
        if isinstance(number, np.ndarray):
            self.shapes.add(number.shape)


def _knows_host_times(program: Program) -> bool:
    blocks = (*program.blocks.values(), *program.last_blocks.values(), *program.epilogues)
    return any(has_host(task) for block in {id(block): block for block in blocks}.values() for task in block.tasks)


def _bad_time(where: str, seconds: Num) -> str:
    return f"{where} takes {seconds} s: not a finite, non-negative time"


def offsets(seconds: tuple[Num, ...]) -> list[float]:
    """Starts of a run's tasks, counted from the start of the run [s]."""
    return [0.0, *accumulate(float(value) for value in seconds[:-1])] if seconds else []


def issue_offsets(run: Run) -> list[float]:
    """How long after the host turned to a run each of its tasks starts at the earliest [s]."""
    found: list[float] = []
    issued = free = 0.0
    for seconds, (host, lag) in zip(run.seconds, run.issue, strict=True):
        found.append(max(free, issued + float(lag)))
        issued += float(host)
        free = found[-1] + float(seconds)
    return found
