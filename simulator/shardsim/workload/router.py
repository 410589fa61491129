"""What chooses the experts of a token: scores of all experts, the best of them, their weights.

Operators are PyTorch's, one kernel each, as github NVIDIA/Megatron-LM has them: megatron/core/transformer/moe/router.py
and moe_utils.py (topk_routing_with_score_function, compute_routing_scores_for_aux_loss,
switch_load_balancing_loss_func), or Transformer Engine's fused ones. Scores are fp32 (``--moe-router-dtype fp32``),
their product takes 16-bit operands. Everything of one number an expert, or of k numbers a token, is too small to count
but for its launch.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from shardsim.values.num import Num
from shardsim.values.operators import Elementwise, GradientRole, Operator
from shardsim.values.training import Framework, Moe
from shardsim.workload import linear
from shardsim.workload.shapes import Shapes

_FP32 = 4


class _Cost(NamedTuple):
    """Kernels, and bytes a score that they read and write."""

    kernels: int
    score_bytes: float


# Choice: top-k (read), softmax and cast of k, zeros and scatter (3 passes), zeros, int, scatter, bool (5 1/4 passes).
_CHOICE = _Cost(11, 9.25 * _FP32)
# With groups, before that: scores of groups, their top-k, mask (4 kernels of groups), mask of experts, fill, 4 passes.
_GROUPS = _Cost(8, 4 * _FP32)
# Balancing loss: softmax, top-k, zeros, int, scatter, bool, two sums over tokens (10 passes), product and scale.
_BALANCE = _Cost(13, 10 * _FP32)
# Backward: gather of k, softmax of k, top-k as zeros and scatter (3 passes); of the loss, fill, softmax, sum (6).
_BACKWARD = _Cost(11, 9 * _FP32)
# Scores read; weights and a map of one byte written: one kernel to choose, one for the loss.
_FUSED = _Cost(2, 2 * (2 * _FP32 + 1))


def router_forward(moe: Moe, framework: Framework, sizes: Shapes) -> tuple[Operator, ...]:
    """Choose the experts of each token.

    Parameters
    ----------
    moe : Moe
    framework : Framework
    sizes : Shapes

    Returns
    -------
    tuple of Operator
    """
    product = linear.forward("router", sizes.local_tokens, sizes.hidden, moe.experts, sizes)
    parts = [_FUSED] if framework.fused_router else [_CHOICE, _BALANCE, *([_GROUPS] if moe.groups else [])]
    return (replace(product, output_bytes=_FP32), _kernels("router choice", moe, sizes, parts, "forward"))


def router_backward(moe: Moe, framework: Framework, sizes: Shapes) -> tuple[Operator, ...]:
    """Differentiate the weights of the experts that were chosen, and the loss that balances them.

    Parameters
    ----------
    moe : Moe
    framework : Framework
    sizes : Shapes

    Returns
    -------
    tuple of Operator
    """
    shape = ("router", sizes.local_tokens, sizes.hidden, moe.experts, sizes)
    parts = [_FUSED] if framework.fused_router else [_BACKWARD]
    return (
        _kernels("router choice", moe, sizes, parts, "dgrad"),
        linear.input_gradient(*shape),
        linear.weight_gradient(*shape),
    )


def _kernels(name: str, moe: Moe, sizes: Shapes, parts: list[_Cost], role: GradientRole) -> Elementwise:
    scores: Num = sizes.local_tokens * moe.experts
    size = scores * sum(part.score_bytes for part in parts)
    return Elementwise(name, "routing", size, kernels=sum(part.kernels for part in parts), role=role)
