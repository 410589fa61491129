"""A program made ready to run: checked, laid out pass by pass, and grouped into steps. All three engines read it.

What an engine does in a pass is a sequence of steps of three kinds: a `Run` of blocking tasks that touch nothing
shared, a blocking task that has to `Sync` with others first, and a task that is `Queued` on a side stream.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple, TypeAlias

import numpy as np

from shardsim.errors import ProgramError
from shardsim.program.coalesce import free_runs, seconds_by_category, side_streams, total, waiting_problems
from shardsim.values.num import Num
from shardsim.values.program import Block, Pass, PipelineSchedule, Program, Task

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
    """

    seconds: tuple[Num, ...]
    total: Num


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
    """

    seconds: Num
    waits: tuple[int, ...]
    drains: tuple[str, ...]
    rendezvous: str


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
    """

    number: int
    stream: str
    category: str
    seconds: Num
    waits: tuple[int, ...]
    drains: tuple[str, ...]


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
    """

    stages: tuple[StagePlan, ...]
    members: Mapping[str, tuple[int, ...]]
    shape: tuple[int, ...] | None


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
        nobody sends, a meeting without the stage that attends it, a duration that is negative or not finite.
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


class _Planner:
    """Walks a program once; collects every problem on the way."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.schedule: PipelineSchedule = program.schedule
        self.problems: list[str] = []
        self.shapes: set[tuple[int, ...]] = set()
        self.side = side_streams(program)
        self.place = {virtual: index for index, virtual in enumerate(self.schedule.virtual_stages)}
        self.message_seconds = {key: transfer.seconds for key, transfer in program.messages.items()}

    def plan(self) -> Plan:
        stages: list[StagePlan] = []
        if len(self.program.epilogues) != self.schedule.stages:
            self.problems.append(
                f"the program has {len(self.program.epilogues)} epilogues for {self.schedule.stages} stages"
            )
        else:
            for key, seconds in self.message_seconds.items():
                self._check_number(seconds, f"the message {key}")
            stages = [self._stage(stage) for stage in range(self.schedule.stages)]
        shape: tuple[int, ...] | None = None
        try:
            shape = np.broadcast_shapes(*self.shapes) if self.shapes else None
        except ValueError:
            self.problems.append(f"arrays of different shapes in one program: {sorted(self.shapes)}")
        if self.problems:
            raise ProgramError("\n".join(dict.fromkeys(self.problems)))
        return Plan(tuple(stages), self.program.rendezvous_members, shape)

    def _stage(self, stage: int) -> StagePlan:
        order = self.schedule.orders[stage]
        last = {(item.kind, item.chunk): index for index, item in enumerate(order)}
        # By place in the program, not by identity: sums must not depend on which blocks happen to be one object.
        blocks: dict[tuple[str, int, bool], BlockPlan] = {}
        counts: Counter[tuple[str, int, bool]] = Counter()
        done: set[Pass] = set()
        passes: list[PassPlan] = []
        for index, item in enumerate(order):
            key = (stage, item.kind, item.chunk)
            replaced = last[item.kind, item.chunk] == index and key in self.program.last_blocks
            block = (self.program.last_blocks if replaced else self.program.blocks).get(key)
            if block is None:
                self.problems.append(f"stage {stage} runs {pass_name(*item)}, but the program has no block {key}")
            elif (stage, item.chunk) not in self.place:
                self.problems.append(f"stage {stage} runs {pass_name(*item)}, but holds no chunk {item.chunk}")
            elif item in done:
                self.problems.append(f"stage {stage} runs {pass_name(*item)} twice")
            else:
                use = (item.kind, item.chunk, replaced)
                counts[use] += 1
                if use not in blocks:
                    blocks[use] = self._block(stage, block)
                passes.append(self._pass(stage, item, blocks[use], done))
            done.add(item)
        epilogue = self._block(stage, self.program.epilogues[stage])
        passes.append(PassPlan(epilogue, EPILOGUE, -1, -1))
        uses = [(block, counts[use]) for use, block in blocks.items()]
        return StagePlan(tuple(passes), (*uses, (epilogue, 1)))

    def _pass(self, stage: int, item: Pass, block: BlockPlan, done: set[Pass]) -> PassPlan:
        kind, microbatch, chunk = item
        needs: PassKey | None = None
        message: Num = 0.0
        source = self._source(stage, item)
        if source is not None:
            sender, wanted = source
            if sender == stage:
                if wanted not in done:
                    self.problems.append(
                        f"stage {stage} is stuck in {pass_name(*item)}: it needs {pass_name(*wanted)}, "
                        "which the same stage runs later or never"
                    )
            elif (sender, wanted.kind, wanted.chunk) not in self.message_seconds:
                self.problems.append(
                    f"stage {stage} is stuck in {pass_name(*item)}: nobody sends the message of "
                    f"{pass_name(*wanted)} from stage {sender} (no messages[{(sender, wanted.kind, wanted.chunk)}])"
                )
            else:
                needs = (sender, *wanted)
                message = self.message_seconds[sender, wanted.kind, wanted.chunk]
        sends = (stage, kind, microbatch, chunk) if self._goes_elsewhere(stage, kind, chunk) else None
        seconds = self.message_seconds.get((stage, kind, chunk), 0.0) if sends else 0.0
        return PassPlan(block, kind, microbatch, chunk, needs, message, sends, seconds)

    def _source(self, stage: int, item: Pass) -> tuple[int, Pass] | None:
        """Find the stage and the pass that come before this one in its micro-batch."""
        kind, microbatch, chunk = item
        place = self.place[stage, chunk]
        if kind == "W":
            return stage, Pass("B", microbatch, chunk)
        if kind == "F":
            if place == 0:
                return None
            sender, chunk = self.schedule.virtual_stages[place - 1]
            return sender, Pass("F", microbatch, chunk)
        if place == len(self.schedule.virtual_stages) - 1:
            return stage, Pass("F", microbatch, chunk)
        sender, chunk = self.schedule.virtual_stages[place + 1]
        return sender, Pass("B", microbatch, chunk)

    def _goes_elsewhere(self, stage: int, kind: str, chunk: int) -> bool:
        """Tell whether the next pass of the same micro-batch runs on another stage."""
        step = {"F": 1, "B": -1}.get(kind)
        if step is None:
            return False
        receiver = self.place[stage, chunk] + step
        within = 0 <= receiver < len(self.schedule.virtual_stages)
        return within and self.schedule.virtual_stages[receiver][0] != stage

    def _block(self, stage: int, block: Block) -> BlockPlan:
        self.problems += waiting_problems(block)
        for task in block.tasks:
            self._check_task(stage, block, task)
        steps: list[Step] = []
        for free, indices in free_runs(block.tasks, self.side[stage]):
            if free:
                seconds = tuple(block.tasks[index].seconds for index in indices)
                steps.append(Run(seconds, total(seconds)))
            else:
                steps.append(self._lone_step(stage, indices[0], block.tasks[indices[0]]))
        busy = seconds_by_category(task for task in block.tasks if task.blocking)
        return BlockPlan(block.tasks, tuple(steps), busy, total(task.flop for task in block.tasks))

    def _lone_step(self, stage: int, index: int, task: Task) -> Step:
        # A stream runs its tasks in order, so a blocking task also waits for those queued on its own.
        drains = tuple(stream for stream in task.drains if stream != task.stream)
        if task.blocking:
            own = (task.stream,) if task.stream in self.side[stage] else ()
            return Sync(task.seconds, task.waits, own + drains, task.rendezvous)
        return Queued(index, task.stream, task.category, task.seconds, task.waits, drains)

    def _check_task(self, stage: int, block: Block, task: Task) -> None:
        where = f"task {task.name!r} of block {block.name!r} on stage {stage}"
        self._check_number(task.seconds, where)
        for number in (task.flop, *task.parts.values()):
            self._note_shape(number)
        if not task.rendezvous:
            return
        members = self.program.rendezvous_members.get(task.rendezvous)
        if not task.blocking:
            self.problems.append(f"{where} meets other stages ({task.rendezvous!r}), so it has to block")
        if members is None:
            self.problems.append(f"{where} is stuck: nobody else attends the meeting {task.rendezvous!r}")
        elif stage not in members:
            self.problems.append(f"{where} attends the meeting {task.rendezvous!r}, which is of stages {members}")

    def _check_number(self, seconds: Num, where: str) -> None:
        self._note_shape(seconds)
        if isinstance(seconds, np.ndarray):
            good = bool(np.all((seconds >= 0) & np.isfinite(seconds)))
        else:
            good = 0.0 <= seconds < float("inf")
        if not good:
            self.problems.append(f"{where} takes {seconds} s: not a finite, non-negative time")

    def _note_shape(self, number: Num) -> None:
        if isinstance(number, np.ndarray):
            self.shapes.add(number.shape)


def offsets(seconds: tuple[Num, ...]) -> list[float]:
    """Starts of a run's tasks, counted from the start of the run [s]."""
    return [0.0, *accumulate(float(value) for value in seconds[:-1])] if seconds else []
