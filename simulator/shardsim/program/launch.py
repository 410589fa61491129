"""What the host does to issue tasks: the time of each launch, CUDA graphs, and what comes before a pass."""

from __future__ import annotations

from dataclasses import replace

from shardsim.values.host import HostConstants
from shardsim.values.num import Num, where
from shardsim.values.operators import Attention, Collective, Elementwise, Gemm, Operator, OptimizerStep, TokenExchange
from shardsim.values.program import Task


def launch_seconds(operator: Operator, constants: HostConstants, seconds: Num) -> Num:
    """Time that the host takes to issue an operator.

    Parameters
    ----------
    operator : Operator
    constants : HostConstants
    seconds : Num
        What it takes on the device [s]; what takes no time is not launched: a collective of one member, or what only
        others of several layouts do.

    Returns
    -------
    Num
        [s].
    """
    if isinstance(operator, Collective | TokenExchange):
        return where(seconds > 0.0, constants.collective, 0.0)
    if isinstance(operator, OptimizerStep):
        return operator.kernels * constants.optimizer
    kernels = operator.kernels if isinstance(operator, Elementwise | Gemm) else 1
    if not isinstance(operator, Elementwise):
        kernels = where(seconds > 0.0, kernels, 0)
    python = operator.role == "forward" and not _within_a_call(operator)
    if python and isinstance(operator, Gemm) and operator.grouped == "streams":
        # One module, and a loop within its call.
        return where(seconds > 0.0, constants.forward + (kernels - 1) * constants.backward, 0.0)
    return kernels * (constants.forward if python else constants.backward)


def _within_a_call(operator: Operator) -> bool:
    """Whether a kernel is launched from within a call that serves a product, with no module of its own."""
    if isinstance(operator, Attention):  # a block of a ring, behind the first
        return operator.keys is not None and not operator.causal
    return isinstance(operator, Elementwise) and operator.kind in ("quantize", "routing", "permute", "context")


def as_graph(tasks: tuple[Task, ...], constants: HostConstants) -> tuple[Task, ...]:
    """Issue several tasks by one launch.

    Parameters
    ----------
    tasks : tuple of Task
    constants : HostConstants

    Returns
    -------
    tuple of Task
    """
    return after(tuple(replace(task, host=0.0) for task in tasks), constants.forward)


def after(tasks: tuple[Task, ...], host: Num) -> tuple[Task, ...]:
    """Let the host do something before it issues tasks.

    Parameters
    ----------
    tasks : tuple of Task
    host : Num
        How long it takes [s].

    Returns
    -------
    tuple of Task
        The first of them takes the host so much longer.
    """
    return tuple(replace(task, host=task.host + host) if not index else task for index, task in enumerate(tasks))
