"""The closed form: the schedule's exact makespan by recurrence, for one layout or an array of them."""

from __future__ import annotations

import numpy as np

from shardsim.engine.accounts import execution
from shardsim.engine.plan import make_plan
from shardsim.engine.walk import walk
from shardsim.values.program import Program
from shardsim.values.results import Execution


def closed_form(program: Program, *, iterations: int = 1) -> Execution:
    """Price a program whose figures are scalars, or arrays over layouts that share the pipeline's shape.

    Parameters
    ----------
    program : Program
        Best coalesced once and priced many times; an operator-level program gives the same.
    iterations : int
        How many follow each other (-).

    Returns
    -------
    Execution
        Arrays of one shape where the program holds arrays; each element is what the scalar program would give.

    Raises
    ------
    ProgramError
        The program is malformed or can never finish.
    """
    plan = make_plan(program, iterations=iterations)
    larger, smaller = (max, min) if plan.shape is None else (np.maximum, np.minimum)
    stages = walk(plan, larger, smaller)
    waits, ends = [stage.waits for stage in stages], [stage.end for stage in stages]
    return execution("closed", plan, waits, ends, larger, each=[stage.ends for stage in stages])
