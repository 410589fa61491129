"""Shared experts, which all tokens go through: an MLP under tensor parallelism beside the routed experts.

Each list comes in two parts, so that both can be issued behind an exchange of tokens and run beside it (github
NVIDIA/Megatron-LM, megatron/core/transformer/moe/shared_experts.py): forward, up to the activation beside the dispatch
and the rest beside the combine; backward mirrored. Names of all operators begin with ``shared``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from shardsim.values.num import Num
from shardsim.values.operators import Elementwise, Operator
from shardsim.values.training import Framework, Layout, Model, Moe
from shardsim.workload import linear, pointwise, regions
from shardsim.workload.parallel import column_backward, column_forward, row_backward, row_forward
from shardsim.workload.parameters import mlp_projections
from shardsim.workload.shapes import Shapes

NAME = "shared"
"""How the names of their operators begin."""


class SharedExperts(NamedTuple):
    """The two parts, in order of issue.

    Parameters
    ----------
    first, second : tuple of Operator
        Empty where a layer has no shared experts.
    """

    first: tuple[Operator, ...] = ()
    second: tuple[Operator, ...] = ()


def shared_forward(
    model: Model, moe: Moe, layout: Layout, framework: Framework, sizes: Shapes, uses: Num | None
) -> SharedExperts:
    """List the forward pass of the shared experts.

    Parameters
    ----------
    model : Model
    moe : Moe
    layout : Layout
    framework : Framework
    sizes : Shapes
        Of the layer.
    uses : Num or None
        Micro-batches that share a conversion of the weights (-); None where they are converted already.

    Returns
    -------
    SharedExperts
    """
    if not moe.shared_ffn:
        return SharedExperts()
    own = _own(model, moe, layout, sizes)
    return SharedExperts(
        (
            *column_forward(((f"{NAME} up", own.up),), NAME, layout, own, uses),
            *named(NAME, pointwise.activate(_without_bias(model), own, framework)),
        ),
        (
            *row_forward(f"{NAME} down", own.ffn, own, uses),
            *regions.leave(NAME, layout, own),
            *(_gate_forward(own) if moe.shared_gate else ()),
        ),
    )


def shared_backward(model: Model, moe: Moe, layout: Layout, framework: Framework, sizes: Shapes) -> SharedExperts:
    """List the backward pass of the shared experts.

    Parameters
    ----------
    model : Model
    moe : Moe
    layout : Layout
    framework : Framework
    sizes : Shapes
        Of the layer.

    Returns
    -------
    SharedExperts
    """
    if not moe.shared_ffn:
        return SharedExperts()
    own = _own(model, moe, layout, sizes)
    return SharedExperts(
        (
            *(_gate_backward(own) if moe.shared_gate else ()),
            *row_backward(((f"{NAME} down", own.ffn),), NAME, layout, own),
        ),
        (
            *named(NAME, pointwise.activate_backward(_without_bias(model), own, framework)),
            *column_backward(((f"{NAME} up", own.up),), NAME, layout, own),
        ),
    )


def named(name: str, operators: Iterable[Operator]) -> tuple[Operator, ...]:
    """Name the operators of an MLP's activation for the experts whose they are.

    Parameters
    ----------
    name : str
    operators : iterable of Operator

    Returns
    -------
    tuple of Operator
    """
    return tuple(replace(one, name=f"{name} {one.name.removeprefix('mlp ')}") for one in operators)


def _own(model: Model, moe: Moe, layout: Layout, sizes: Shapes) -> Shapes:
    width = moe.shared_ffn / layout.tp
    return replace(sizes, ffn=width, up=mlp_projections(model) * width)


def _without_bias(model: Model) -> Model:
    """Shared experts have none (the file named above asserts that)."""
    return replace(model, bias=False)


def _gate_forward(sizes: Shapes) -> tuple[Operator, ...]:
    """Weigh the output by one number a token: its product, then sigmoid and the output weighed in two kernels."""
    size = 2 * sizes.local_hidden * sizes.element_bytes
    return (
        linear.forward(f"{NAME} gate", sizes.local_tokens, sizes.hidden, 1, sizes),
        Elementwise(f"{NAME} gate weights", "add", size, kernels=2),
    )


def _gate_backward(sizes: Shapes) -> tuple[Operator, ...]:
    """Differentiate that: the gradient weighed, its product with the output and the sum of that, sigmoid."""
    size = 6 * sizes.local_hidden * sizes.element_bytes
    shape = (f"{NAME} gate", sizes.local_tokens, sizes.hidden, 1, sizes)
    return (
        Elementwise(f"{NAME} gate weights", "add", size, kernels=4, role="dgrad"),
        linear.input_gradient(*shape),
        linear.weight_gradient(*shape),
        *pointwise.residual_gradient(f"{NAME} gate", sizes),
    )
