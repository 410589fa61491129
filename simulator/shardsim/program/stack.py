"""Which constant of a stack profile an operator's seconds are in proportion to."""

from __future__ import annotations

from dataclasses import replace

from shardsim.values.num import Num
from shardsim.values.operators import (
    Attention,
    Collective,
    Gemm,
    Operator,
    TokenExchange,
)
from shardsim.values.program import Block, Task
from shardsim.values.stack import StackConstants

_AXES = {
    **dict.fromkeys(("tp", "cp", "cp_inner", "cp_outer"), "inside"),
    **dict.fromkeys(("ep", "etp"), "exchange"),
    **dict.fromkeys(("embedding", "model"), ""),
}
"""Constants of collectives by axis, where they are not those of data parallelism."""


def term_of(operator: Operator) -> str:
    """Name the constant.

    Parameters
    ----------
    operator : Operator

    Returns
    -------
    str
        A field of :class:`shardsim.values.stack.StackConstants`; empty for none: what embeddings and the norm of the
        gradients exchange.
    """
    if isinstance(operator, TokenExchange):
        return "exchange"
    if isinstance(operator, Collective):
        return _AXES.get(operator.axis, "data")
    if isinstance(operator, Gemm):
        if operator.grouped:
            return "experts"
        return "narrow" if operator.data_type else "products"
    return "attention" if isinstance(operator, Attention) else "kernels"


def between_iterations(epilogue: Block, constants: StackConstants) -> Block:
    """Let a stage's iteration end with what its host does alone, once."""
    if isinstance(constants.iteration, float) and constants.iteration == 0.0:
        return epilogue
    alone = Task("between iterations", "compute", "host", constants.iteration, term="iteration")
    return replace(epilogue, tasks=(*epilogue.tasks, alone))


def in_training(term: str, constants: StackConstants) -> Num:
    """By what the seconds measured alone are to be multiplied (-)."""
    factor: Num = getattr(constants, term) if term else 1.0
    return factor
