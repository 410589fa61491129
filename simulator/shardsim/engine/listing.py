"""The listing: the longest path through one layout's tasks, without events."""

from __future__ import annotations

import numpy as np

from shardsim.engine.accounts import execution
from shardsim.engine.plan import make_plan
from shardsim.engine.timeline import timeline_from_steps
from shardsim.engine.walk import walk
from shardsim.errors import ProgramError
from shardsim.values.program import Program
from shardsim.values.results import Execution


def listing(program: Program, *, timeline: bool = False, iterations: int = 1) -> Execution:
    """Find when everything in a program happens, as its longest path.

    The cost is that of the passes, not of the operators in them: where an operator lies in a run is worked out once
    a block.

    Parameters
    ----------
    program : Program
        Operator by operator or coalesced; scalars only.
    timeline : bool
        Whether to return the start and the end of every task.
    iterations : int
        How many follow each other (-).

    Returns
    -------
    Execution

    Raises
    ------
    ProgramError
        The program is malformed, holds arrays, or can never finish.
    """
    plan = make_plan(program, iterations=iterations)
    if plan.shape is not None:
        raise ProgramError("the listing takes one layout; for arrays over layouts use the closed form")
    stages = walk(plan, max, min, traced=timeline)
    rows = None
    if timeline:
        starts = [np.asarray(stage.starts, dtype=np.float64) for stage in stages]
        until = [np.asarray(stage.slowed_until, dtype=np.float64) for stage in stages]
        turned_to = [np.asarray(stage.turned_to, dtype=np.float64) for stage in stages]
        rows = timeline_from_steps(plan, starts, until, turned_to)
    waits, ends = [stage.waits for stage in stages], [stage.end for stage in stages]
    return execution("listing", plan, waits, ends, max, each=[stage.ends for stage in stages], timeline=rows)
