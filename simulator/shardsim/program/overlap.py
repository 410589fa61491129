"""Communication that runs beside the computation which does not need it yet, and the joining of such tasks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from shardsim.values.operators import Collective, Elementwise, Gemm, Operator
from shardsim.values.program import Task


def regather_behind_dgrad(pairs: Iterable[tuple[Operator, Task]]) -> tuple[Task, ...]:
    """Let the inputs that sequence parallelism gathers again arrive while the input gradient is computed.

    Only the weight gradient needs them, and what prepares it, which come after (arXiv 2205.05198 §4.2.2).

    Parameters
    ----------
    pairs : iterable of (Operator, Task)
        Operators of a backward pass with their tasks, in order of issue.

    Returns
    -------
    tuple of Task
        The gathers do not block, and the next operator of a weight gradient waits for each.
    """
    tasks: list[Task] = []
    arriving: int | None = None
    for operator, task in pairs:
        if isinstance(operator, Collective) and operator.axis == "tp" and operator.role == "wgrad":
            arriving = len(tasks)
            tasks.append(replace(task, blocking=False))
        elif arriving is not None and isinstance(operator, Gemm | Elementwise) and operator.role == "wgrad":
            tasks.append(replace(task, waits=(arriving,)))
            arriving = None
        else:
            tasks.append(task)
    return tuple(tasks)


def joined(*parts: tuple[Task, ...]) -> tuple[Task, ...]:
    """Put tasks one after another in a block; what each waits for moves along with it.

    Parameters
    ----------
    *parts : tuple of Task
        Each with ``waits`` that count from its own first task.

    Returns
    -------
    tuple of Task
    """
    tasks: list[Task] = []
    for part in parts:
        start = len(tasks)
        tasks += (
            replace(task, waits=tuple(start + index for index in task.waits)) if start and task.waits else task
            for task in part
        )
    return tuple(tasks)
