"""Communication that runs beside the computation which does not need it yet, and the joining of such tasks."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TypeAlias

from shardsim.program.machine import stretched
from shardsim.values.operators import Collective, Gemm, Operator, for_weights
from shardsim.values.program import Task

Priced: TypeAlias = tuple[Operator, Task]
"""An operator with its task."""

_STRANDED = frozenset({"tp", "cp", "ep"})
"""Streams whose communication one strand of a pair waits for while the other computes."""


def behind_products(pairs: Iterable[Priced], *, sums: bool) -> tuple[Task, ...]:
    """Let communication of a backward pass run beside the products that do not need it.

    Inputs that sequence parallelism gathers again arrive while the input gradient is computed: only the weight gradient
    needs them, and what prepares it, which come after (arXiv 2205.05198 §4.2.2). The input gradient's own sum over
    ranks may run beside that weight gradient in turn.

    Parameters
    ----------
    pairs : iterable of (Operator, Task)
        Operators of a backward pass with their tasks, in order of issue.
    sums : bool
        Whether the framework hides those sums, each behind the weight gradient that follows it.

    Returns
    -------
    tuple of Task
        What is hidden does not block, and the first operator that needs it waits for it.

    Notes
    -----
    github NVIDIA/Megatron-LM, megatron/core/tensor_parallel/layers.py,
    LinearWithGradAccumulationAndAsyncCommunication.
    """
    tasks: list[Task] = []
    arriving: int | None = None  # inputs, for the next operator of a weight gradient
    leaving: int | None = None  # a sum, for whatever follows the weight gradients behind it
    product = False
    for operator, task in pairs:
        wanted: tuple[int, ...] = ()
        blocking = task.blocking
        if isinstance(operator, Collective):
            if operator.axis == "tp" and operator.role == "wgrad":
                arriving, blocking = len(tasks), False
            elif sums and _sums_gradient(operator):
                leaving, blocking, product = len(tasks), False, False
        else:
            if leaving is not None and not _hides_sum(operator, first=not product):
                wanted, leaving = (leaving,), None
            if arriving is not None and for_weights(operator):
                wanted, arriving = (*wanted, arriving), None
            product = isinstance(operator, Gemm)
        changed = wanted or blocking != task.blocking
        tasks.append(replace(task, blocking=blocking, waits=(*task.waits, *wanted)) if changed else task)
    if leaving is not None:  # nothing is left that would wait
        tasks[leaving] = replace(tasks[leaving], blocking=True)
    return tuple(tasks)


def _sums_gradient(collective: Collective) -> bool:
    return collective.axis == "tp" and collective.role == "dgrad" and collective.kind != "all_gather"


def _hides_sum(operator: Operator, *, first: bool) -> bool:
    """Whether an operator hides a sum: products of weight gradients do, and what prepares the first of them."""
    return for_weights(operator) and (isinstance(operator, Gemm) or first)


def paired(
    forward: Sequence[Task], backward: Sequence[Task], longer: Mapping[str, float] = MappingProxyType({})
) -> tuple[Task, ...]:
    """Run a forward and a backward pass as one, each computing while the other communicates.

    Parameters
    ----------
    forward, backward : sequence of Task
        The two strands, each in its own order of issue.
    longer : mapping of str to float
        How many times as long transfers take beside computation (-), by their algorithm; 1 for what it leaves out.

    Returns
    -------
    tuple of Task
        All tasks of both, each strand in its own order. Communication of an axis inside the model no longer blocks: the
        next task of its strand waits for it, and before that task comes work of the other strand.

    Notes
    -----
    Strands take turns at such waits, as DeepSeek's kernels do (github deepseek-ai/profile-data, train.json: combine
    backward, attention forward, MLP backward, dispatch forward ...). The next turn is that of the strand whose message
    has been under way for longer; the backward one begins.
    """
    left = [_turns(_loosened(_beside_compute(strand, longer))) for strand in (backward, forward)]
    places: tuple[list[int], list[int]] = ([], [])  # where the tasks of each strand have come to lie
    tasks: list[Task] = []

    def issued(which: int) -> int:
        """Place of the message that the next turn of a strand waits for."""
        return max((places[which][wanted] for wanted in left[which][0][0].waits), default=-1)

    while any(left):
        which = min((one for one in (0, 1) if left[one]), key=issued)
        for task in left[which].popleft():
            places[which].append(len(tasks))
            waits = tuple(places[which][wanted] for wanted in task.waits)
            tasks.append(replace(task, waits=waits) if waits else task)
    return tuple(tasks)


def _beside_compute(strand: Sequence[Task], longer: Mapping[str, float]) -> Iterator[Task]:
    for task in strand:
        factor = 1.0 if task.transfer is None else longer.get(task.transfer.algorithm, 1.0)
        if task.transfer is None or factor == 1.0:
            yield task
        else:
            transfer = stretched(task.transfer, factor)
            yield replace(task, seconds=transfer.seconds, transfer=transfer)


def _loosened(strand: Iterable[Task]) -> tuple[Task, ...]:
    """A strand whose communication holds up only itself. The last task stays as it is: nothing would wait for it."""
    strand, tasks = tuple(strand), list[Task]()
    under_way: int | None = None
    for index, task in enumerate(strand):
        waiting = task if under_way is None else replace(task, waits=(*task.waits, under_way))
        if task.blocking:  # what is only queued, such as a gather of parameters, holds back nothing behind it
            under_way = None
        if task.blocking and task.transfer is not None and task.stream in _STRANDED and index < len(strand) - 1:
            waiting, under_way = replace(waiting, blocking=False), index
        tasks.append(waiting)
    return tuple(tasks)


def _turns(strand: Sequence[Task]) -> deque[list[Task]]:
    """A strand cut in front of every task that waits."""
    turns: deque[list[Task]] = deque()
    for task in strand:
        if task.waits or not turns:
            turns.append([])
        turns[-1].append(task)
    return turns


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
