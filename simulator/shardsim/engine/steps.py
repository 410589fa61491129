"""What an engine does, step by step: a program checked and laid out pass by pass. `plan` makes it.

What an engine does in a pass is a sequence of steps of three kinds: a `Run` of blocking tasks that touch nothing
shared, a blocking task that has to `Sync` with others first, and a task that is `Queued` on a side stream.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
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
    slows : bool
        Whether it takes multiprocessors from the work beside it.
    """

    number: int
    stream: str
    category: str
    seconds: Num
    waits: tuple[int, ...]
    drains: tuple[str, ...]
    host: Num = 0.0
    slows: bool = True


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
    """

    stages: tuple[StagePlan, ...]
    members: Mapping[str, tuple[int, ...]]
    shape: tuple[int, ...] | None
    slowdown: Slowdown | None = None
    hosted: bool = False
    synchronous_messages: bool = False
    chains: tuple[tuple[Place, ...], ...] = ()


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
    return ProgramError("\n".join(lines))


def _wanted_name(plan: Plan, wanted: PassKey | Meeting) -> str:
    if len(wanted) == 2:
        name, before = wanted
        return f"meeting {before + 1} {name!r} of stages {', '.join(map(str, plan.members[name]))}"
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
