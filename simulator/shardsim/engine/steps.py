"""What an engine does, step by step: a program checked and laid out pass by pass. `plan` makes it.

What an engine does in a pass is a sequence of steps of three kinds: a `Run` of blocking tasks that touch nothing
shared, a blocking task that has to `Sync` with others first, and a task that is `Queued` on a side stream.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import NamedTuple, TypeAlias

from shardsim.engine.interference import Slowdown
from shardsim.errors import ProgramError
from shardsim.values.num import Num
from shardsim.values.program import Item, Pair, Place, Task

PassKey: TypeAlias = tuple[int, str, int, int]
"""Stage, kind, micro-batch and chunk of the pass that sends a message; gradients are of kind B."""

Meeting: TypeAlias = tuple[str, int]
"""Name of a meeting, and how often its members have met before."""

Message: TypeAlias = tuple[PassKey, Num]
"""A message, and how long it takes [s]."""


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
    task : Task or None
        What it is.
    """

    seconds: Num
    waits: tuple[int, ...]
    drains: tuple[str, ...]
    rendezvous: str
    host: Num = 0.0
    lag: Num = 0.0
    synchronises: bool = False
    task: Task | None = None


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
    slows : bool
        Whether it takes multiprocessors from the work beside it.
    task : Task or None
        What it is.
    """

    number: int
    stream: str
    category: str
    seconds: Num
    waits: tuple[int, ...]
    drains: tuple[str, ...]
    host: Num = 0.0
    slows: bool = True
    task: Task | None = None


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
    settles : bool
        Whether everything that it queues has ended when it ends.
    """

    tasks: tuple[Task, ...]
    steps: tuple[Step, ...]
    busy: Mapping[str, Num]
    flop: Num
    settles: bool = False


class PassPlan(NamedTuple):
    """One pass of one stage, or a pair of them; its epilogue is the last of them, its prologue the first.

    Parameters
    ----------
    block : BlockPlan
    item : Pass or Pair or None
        None for the epilogue and the prologue.
    needs : tuple of (PassKey, Num)
        The messages that it waits for, one after the other; of a pair the gradient first.
    sends : tuple of (PassKey, Num)
        The messages that it sends when it ends.
    """

    block: BlockPlan
    item: Item | None
    needs: tuple[Message, ...] = ()
    sends: tuple[Message, ...] = ()

    @property
    def name(self) -> str:
        """For messages to people."""
        return "epilogue" if self.item is None else item_name(self.item)


@dataclass(frozen=True, slots=True)
class StagePlan:
    """What one stage does in an iteration.

    Parameters
    ----------
    passes : tuple of PassPlan
        In order, with the prologue at the beginning and the epilogue at the end.
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
    chains : tuple of tuple of (int, int)
        The ways of micro-batches through the stages, as in the schedule.
    iterations : int
        How often each stage does its passes of one iteration (-).
    """

    stages: tuple[StagePlan, ...]
    members: Mapping[str, tuple[int, ...]]
    shape: tuple[int, ...] | None
    slowdown: Slowdown | None = None
    hosted: bool = False
    synchronous_messages: bool = False
    chains: tuple[tuple[Place, ...], ...] = ()
    iterations: int = 1


def repeated(plan: Plan, iterations: int, microbatches: int) -> Plan:
    """Let every stage do its passes several times.

    Parameters
    ----------
    plan : Plan
        Of one iteration.
    iterations, microbatches : int
        Iterations, and micro-batches of each (-).

    Returns
    -------
    Plan
        Messages of an iteration are those of the first, with micro-batches counted on.
    """

    def later(messages: tuple[Message, ...], by: int) -> tuple[Message, ...]:
        return tuple(((key[0], key[1], key[2] + by, key[3]), seconds) for key, seconds in messages)

    stages = []
    for stage in plan.stages:
        passes = tuple(
            item._replace(needs=later(item.needs, by), sends=later(item.sends, by))
            for by in range(0, iterations * microbatches, microbatches)
            for item in stage.passes
        )
        uses = tuple((block, count * iterations) for block, count in stage.uses)
        stages.append(StagePlan(passes, uses))
    return replace(plan, stages=tuple(stages), iterations=iterations)


def leaves_nothing(steps: Sequence[Step]) -> bool:
    """Whether everything that steps queue on side streams is waited for by later ones of them.

    Parameters
    ----------
    steps : sequence of Step

    Returns
    -------
    bool
    """
    under_way: dict[str, list[int]] = {}
    stream_of: dict[int, str] = {}
    for step in steps:
        if isinstance(step, Queued):
            under_way.setdefault(step.stream, []).append(step.number)
            stream_of[step.number] = step.stream
        elif isinstance(step, Sync):
            for number in step.waits:
                stream = stream_of.get(number, "")
                under_way[stream] = [other for other in under_way.get(stream, ()) if other > number]
            for stream in step.drains:
                under_way.pop(stream, None)
    return not any(under_way.values())


def pass_name(kind: str, microbatch: int, chunk: int) -> str:
    """Write a pass for people: ``F3.1`` is the forward pass of micro-batch 3 through chunk 1.

    >>> pass_name("F", 3, 1)
    'F3.1'
    """
    return f"{kind}{microbatch}.{chunk}"


def item_name(item: Item) -> str:
    """Write a pass or a pair for people.

    >>> from shardsim.values.program import Pass
    >>> item_name(Pair(Pass("F", 3, 1), Pass("B", 0, 0)))
    'F3.1 & B0.0'
    """
    return " & ".join(pass_name(*one) for one in item) if isinstance(item, Pair) else pass_name(*item)


def stuck_error(plan: Plan, stuck: Mapping[int, tuple[int, PassKey | Meeting]]) -> ProgramError:
    """Say which stages of a program can never finish, where they stand, and for what they wait.

    Parameters
    ----------
    plan : Plan
    stuck : mapping of int to (int, PassKey or Meeting)
        By stage: index of the pass it stands at, and what it waits for.

    Returns
    -------
    ProgramError
    """
    lines = [f"the program can never finish: {len(stuck)} of {len(plan.stages)} stages are stuck"]
    lines += [
        f"stage {stage} in {plan.stages[stage].passes[position].name}: waits for {_wanted_name(plan, wanted)}"
        for stage, (position, wanted) in sorted(stuck.items())
    ]
    return ProgramError("\n".join([*lines, _why_stuck(plan, stuck)]))


def _why_stuck(plan: Plan, stuck: Mapping[int, tuple[int, PassKey | Meeting]]) -> str:
    """The circle in which stages wait for each other, or the one that will never do what another waits for."""
    way = [min(stuck)]
    while True:
        wanted = stuck[way[-1]][1]
        absent = [wanted[0]] if len(wanted) == 4 else _absent(plan, stuck, wanted)
        late = next(iter(absent), None)
        if late is None or late not in stuck:
            gone = "nobody" if late is None else f"stage {late}, which has finished"
            return f"stage {way[-1]} waits for {gone}: what it waits for was never sent or attended"
        if late in way:
            return "they wait in a circle: " + " -> ".join(
                f"stage {stage}" for stage in [*way[way.index(late) :], late]
            )
        way.append(late)


def _absent(plan: Plan, stuck: Mapping[int, tuple[int, PassKey | Meeting]], meeting: Meeting) -> list[int]:
    """Members that do not wait at a meeting themselves."""
    return [member for member in plan.members.get(meeting[0], ()) if member not in stuck or stuck[member][1] != meeting]


def _wanted_name(plan: Plan, wanted: PassKey | Meeting) -> str:
    if len(wanted) == 2:
        name, before = wanted
        return f"meeting {before + 1} {name!r} of stages {', '.join(map(str, plan.members.get(name, ())))}"
    stage, kind, microbatch, chunk = wanted
    return f"{pass_name(kind, microbatch, chunk)} of stage {stage}"


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
