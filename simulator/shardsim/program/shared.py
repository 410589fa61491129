"""Shared experts beside tokens on their way: computed while dispatch and combine are under way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from shardsim.program.overlap import Priced
from shardsim.values.operators import Operator, TokenExchange, for_weights
from shardsim.workload.shared_experts import NAME


def beside_exchange(pairs: Sequence[Priced]) -> tuple[Priced, ...]:
    """Let tokens travel beside what is issued behind them and does not need them: shared experts, weight gradients.

    Parameters
    ----------
    pairs : sequence of (Operator, Task)
        Of one layer and pass, in order of issue; nothing may be put between them afterwards.

    Returns
    -------
    tuple of (Operator, Task)
        The same tasks. An exchange that such operators follow at once does not block; the first operator that needs it
        waits for it. So ``x`` seconds of those and ``y`` of the exchange take ``max(x, y)``. Where the framework
        overlaps nothing, none of them follows an exchange.

    Notes
    -----
    github NVIDIA/Megatron-LM, megatron/core/transformer/moe/shared_experts.py (``--moe-shared-expert-overlap``): a
    stream of their own takes them, from the time of the exchange on.
    """
    made: list[Priced] = []
    under_way: int | None = None
    for index, (operator, task) in enumerate(pairs):
        waits, blocking = task.waits, task.blocking
        if under_way is not None and not _independent(operator, pairs[under_way][0]):
            waits, under_way = (*waits, under_way), None
        if isinstance(operator, TokenExchange) and _runs_beside(operator, pairs[index + 1 :]):
            blocking, under_way = False, index
        changed = waits is not task.waits or blocking != task.blocking
        made.append((operator, replace(task, waits=waits, blocking=blocking) if changed else task))
    return tuple(made)


def _runs_beside(exchange: Operator, later: Sequence[Priced]) -> bool:
    """Whether what does not need an exchange follows at once, and at last something that waits for it."""
    independent = [_independent(operator, exchange) for operator, _ in later]
    return bool(later) and independent[0] and not all(independent)


def _independent(operator: Operator, exchange: Operator) -> bool:
    """Shared experts need no exchange, and weight gradients not the one that gives back gradients of inputs."""
    if for_weights(operator):
        returns = isinstance(exchange, TokenExchange) and exchange.direction == "combine" and exchange.role == "dgrad"
        return returns or operator.name.startswith(NAME)
    return operator.name.startswith(NAME)
