"""The critical path: the chain of work, messages and launches whose lengths add up to the iteration.

The recurrence of `walk` only ever adds a duration to a moment or takes the later of two moments. So the path is found
by walking once more with moments that remember what was added to which: the chain behind the last end is the path. It
is that of the same arithmetic, in the same order, and its lengths add up to the iteration bit for bit. Of two moments
that are equal the stage's own is taken.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Literal, NamedTuple, TypeAlias

from shardsim.engine.accounts import HOST, PIPELINE
from shardsim.engine.interference import INTERFERENCE
from shardsim.engine.plan import make_plan
from shardsim.engine.steps import BlockPlan, Queued, Run, StagePlan, Step, item_name
from shardsim.engine.walk import walk
from shardsim.errors import ProgramError
from shardsim.values.critical import CriticalPath, Segment
from shardsim.values.num import Num
from shardsim.values.program import Program, Task

_What: TypeAlias = Literal["work", "host", "lag", "message"]


class Cause(NamedTuple):
    """What takes time: a step of a stage, what its host does for it, or a message."""

    stage: int
    what: _What
    tasks: tuple[Task, ...] = ()
    step: Step | None = None


class Span(float):
    """A duration that knows its cause, and in which pass [s]."""

    __slots__ = ("cause", "work")
    cause: Cause
    work: str

    def __radd__(self, moment: float, /) -> float:
        return _after(moment, self)


class Moment(float):
    """A time that knows what it came after [s]."""

    __slots__ = ("before", "span")
    before: float
    span: float

    def __add__(self, span: float, /) -> float:
        return _after(self, span)


def critical_path(program: Program) -> CriticalPath:
    """Find what the end of an iteration waited for, link by link back to its beginning.

    Parameters
    ----------
    program : Program
        Operator by operator, so that every segment is of one category; scalars only.

    Returns
    -------
    CriticalPath
        Of the listing: transfers that share links do not slow each other. Where several paths are equally long, one.

    Raises
    ------
    ProgramError
        The program is malformed, holds arrays, or can never finish.
    """
    plan = make_plan(program)
    if plan.shape is not None:
        raise ProgramError("a critical path is that of one layout, and the program holds arrays over layouts")
    known = replace(plan, stages=tuple(labelled(index, stage) for index, stage in enumerate(plan.stages)))
    end = max((scalar(stage.end) for stage in walk(known, max, min)), default=0.0)
    links: list[Moment] = []
    moment = end
    while isinstance(moment, Moment):
        links.append(moment)
        moment = moment.before
    return CriticalPath(float(end), tuple(_segments(reversed(links))))


def kind_of(task: Task) -> str:
    """Name what a task communicates: its category and what it does.

    Parameters
    ----------
    task : Task

    Returns
    -------
    str
        Such as ``tp:all-reduce``; empty for computation.
    """
    return f"{task.category}:{task.moves[1].replace('_', '-')}" if task.moves is not None else ""


def _after(moment: float, span: float) -> float:
    """A time so long after another."""
    if span == 0.0:
        return moment
    found = Moment(float(moment) + float(span))
    found.before, found.span = moment, span
    return found


def scalar(value: Num) -> float:
    """A time as it is: one that remembers stays one."""
    return value if isinstance(value, float) else float(value)


def _span(seconds: Num, cause: Cause, work: str = "") -> Span:
    found = Span(seconds)
    found.cause, found.work = cause, work
    return found


def labelled(index: int, stage: StagePlan, *, by_pass: bool = True) -> StagePlan:
    """Give durations of a stage their causes.

    Parameters
    ----------
    index : int
        Of the stage.
    stage : StagePlan
    by_pass : bool
        Whether they are to know in which pass they lie; otherwise passes that do the same share theirs.

    Returns
    -------
    StagePlan
    """
    known = {id(block): list(_with_causes(index, block)) for block, _ in stage.uses}
    message = Cause(index, "message")
    shared: dict[int, BlockPlan] = {}
    passes = []
    for one in stage.passes:
        work = item_name(one.item) if by_pass and one.item is not None else ""
        block = shared.get(id(one.block))
        if block is None:
            block = replace(one.block, steps=tuple(_of_pass(*step, work) for step in known[id(one.block)]))
        if not by_pass:
            shared[id(one.block)] = block
        sends = tuple((key, _span(seconds, message, work)) for key, seconds in one.sends)
        passes.append(one._replace(block=block, sends=sends))
    return replace(stage, passes=tuple(passes))


def _with_causes(stage: int, block: BlockPlan) -> Iterator[tuple[Step, Cause]]:
    """Every step of a block, its launches labelled, and what its work is."""
    done = 0
    for step in block.steps:
        count = len(step.seconds) if isinstance(step, Run) else 1
        tasks = block.tasks[done : done + count]
        done += count
        launched = step._replace(host=_span(step.host, Cause(stage, "host", tasks, step)))
        if not isinstance(launched, Queued):
            launched = launched._replace(lag=_span(launched.lag, Cause(stage, "lag", tasks, step)))
        yield launched, Cause(stage, "work", tasks, step)


def _of_pass(step: Step, cause: Cause, work: str) -> Step:
    if isinstance(step, Run):
        return step._replace(total=_span(step.total, cause, work))
    return step._replace(seconds=_span(step.seconds, cause, work))


def _segments(links: Iterable[Moment]) -> Iterator[Segment]:
    """A chain of moments, the first first, as segments."""
    owner: Span | None = None
    for link in links:
        start, seconds, span = float(link.before), float(link.span), link.span
        before, owner = owner, span if isinstance(span, Span) else owner
        if owner is None:
            continue
        stage, what, tasks, step = owner.cause
        if span is not owner:
            # What has no cause of its own makes the work before it longer.
            yield Segment(stage, owner.work, INTERFERENCE, INTERFERENCE, "", start, seconds)
        elif what == "message":
            yield Segment(stage, owner.work, "message", PIPELINE, "", start, seconds)
        elif what == "work":
            waited = before is not None and before.cause.what == "lag" and before.cause.step is step
            yield from _work(start, owner, late_task(step) if waited else 0)
        else:
            # While the host is on its way to the task that waits for it, the tasks before that hide behind it.
            hidden = sum(float(task.seconds) for task in tasks[: late_task(step)]) if what == "lag" else 0.0
            yield Segment(stage, "", "launch", HOST, "", start, seconds + hidden)


def _work(start: float, span: Span, late: int) -> Iterator[Segment]:
    """The tasks of a step one by one, without those that hide behind the host."""
    for number, task in enumerate(span.cause.tasks):
        seconds = float(task.seconds)
        if number >= late and seconds > 0.0:
            yield Segment(span.cause.stage, span.work, task.name, task.category, kind_of(task), start, seconds)
        start += seconds


def late_task(step: Step | None) -> int:
    """Which task of a run it is that waits for the host longest."""
    late, ahead, lag = 0, 0.0, 0.0
    if isinstance(step, Run):
        for number, (seconds, (host, earliest)) in enumerate(zip(step.seconds, step.issue, strict=True)):
            if ahead + float(earliest) > lag:
                late, lag = number, ahead + float(earliest)
            ahead += float(host) - float(seconds)
    return late
