"""How the iteration time follows from the constants of a software stack: seconds on the critical path by constant.

An iteration is the longest of many chains of durations, each in proportion to a constant or none. Along the longest
one the time is a sum, so the seconds on it by constant are the derivatives of the time by the logarithms of the
constants. Another set of constants may have another chain as its longest, and then its time is longer than the sum
along this one: chains are lower bounds of the time that touch it where they were found (cutting planes of a convex
function; Kelley 1960, doi:10.1137/0108053).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from shardsim.engine.critical import Cause, Moment, Span, labelled, late_task, scalar
from shardsim.engine.plan import make_plan
from shardsim.engine.walk import walk
from shardsim.errors import ProgramError
from shardsim.values.program import Program, Task

Array = NDArray[np.float64]
Weigh = Callable[[Task], Array]


def path_sums(program: Program, work: Weigh, launch: Weigh) -> tuple[float, Array]:
    """Add up what lies on the critical path.

    Parameters
    ----------
    program : Program
        Operator by operator; scalars only.
    work, launch : callable
        What a task adds where its own seconds lie on the path, and where its launch does: shape (constants,).

    Returns
    -------
    float
        The iteration time [s].
    ndarray of float
        The sum, shape (constants,). Messages and what work takes longer beside communication add nothing.

    Raises
    ------
    ProgramError
        The program is malformed, holds arrays, or can never finish.
    """
    plan = make_plan(program)
    if plan.shape is not None:
        raise ProgramError("a critical path is that of one layout, and the program holds arrays over layouts")
    known = replace(plan, stages=tuple(labelled(i, stage, by_pass=False) for i, stage in enumerate(plan.stages)))
    stages = walk(known, max, min)
    end = max((scalar(stage.end) for stage in stages), default=0.0)
    met: Counter[tuple[int, bool]] = Counter()
    causes: dict[int, Cause] = {}
    moment = end
    while isinstance(moment, Moment):
        before, span = moment.before, moment.span
        if isinstance(span, Span) and span.cause.what != "message":
            causes[id(span.cause)] = span.cause
            met[id(span.cause), _waited(span.cause, before)] += 1
        moment = before
    found = [_added(causes[cause], work, launch, waited=waited) * count for (cause, waited), count in met.items()]
    return float(end), np.sum(found, axis=0)


def _waited(cause: Cause, before: float) -> bool:
    """Whether work began with the wait for its host: then what came before hid behind that."""
    return isinstance(before, Moment) and isinstance(before.span, Span) and _is_lag(before.span.cause, cause)


def _is_lag(one: Cause, other: Cause) -> bool:
    return one.what == "lag" and other.what == "work" and one.step is other.step


def _added(cause: Cause, work: Weigh, launch: Weigh, *, waited: bool) -> Array:
    """What one span adds: tasks of their own seconds, or launches, up to the one that waits for its host longest."""
    late = late_task(cause.step) if waited or cause.what == "lag" else 0
    if cause.what == "work":
        tasks = cause.tasks[late:]
        return np.asarray(np.sum([work(task) for task in tasks], axis=0))
    tasks = cause.tasks[: late + 1] if cause.what == "lag" else cause.tasks
    return np.asarray(np.sum([launch(task) for task in tasks], axis=0))
