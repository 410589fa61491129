"""Operators of one transformer layer under one-dimensional (Megatron) tensor parallelism, for one micro-batch.

QKV and the first MLP projection are split by columns, the output projection and the second MLP projection by rows
(arXiv 1909.08053 §3). So each block needs one sum over ranks forward, after its row-parallel projection, and one
backward, behind its column-parallel projection: two all-reduces of b s h forward and two backward. Under sequence
parallelism (arXiv 2205.05198 §4.2.2) each becomes a gathering and a scattering of tokens, norms, dropout and residuals
work on 1/t of the tokens, and the inputs of the column-parallel projections are gathered once more going backward.

Nothing is left out at t = 1: a collective of one rank costs nothing.
"""

from __future__ import annotations

from shardsim.values.operators import Operator
from shardsim.values.training import Batch, Framework, Layout, Model
from shardsim.workload import attention, linear, pointwise, regions
from shardsim.workload.parameters import layer_parameters, layer_tensors
from shardsim.workload.shapes import shapes


def layer_forward(model: Model, layout: Layout, batch: Batch, framework: Framework) -> tuple[Operator, ...]:
    """List the operators of one layer's forward pass, in order of issue.

    Parameters
    ----------
    model : Model
    layout : Layout
        Degrees may be arrays over layouts.
    batch : Batch
    framework : Framework

    Returns
    -------
    tuple of Operator
    """
    z = shapes(model, layout, batch, framework)
    return (
        *pointwise.norm_forward("input norm", model, z),
        *regions.enter("attention", layout, z),
        linear.forward("qkv", z.tokens, z.hidden, z.qkv, z),
        *(linear.add_bias("qkv", z.tokens, z.qkv, z) if _separate_qkv_bias(model, framework) else ()),
        *attention.arrange_forward(model, z, framework),
        *attention.core_forward(model, z, framework),
        *attention.tokens_first(z, framework, "forward"),
        linear.forward("attention output", z.tokens, z.context, z.hidden, z),
        *regions.leave("attention", layout, z),
        *pointwise.add_to_residual("attention", model, z, framework),
        *pointwise.norm_forward("mlp norm", model, z),
        *regions.enter("mlp", layout, z),
        linear.forward("mlp up", z.tokens, z.hidden, z.up, z),
        *pointwise.activate(model, z, framework),
        linear.forward("mlp down", z.tokens, z.ffn, z.hidden, z),
        *regions.leave("mlp", layout, z),
        *pointwise.add_to_residual("mlp", model, z, framework),
    )


def layer_backward(model: Model, layout: Layout, batch: Batch, framework: Framework) -> tuple[Operator, ...]:
    """List the operators of one layer's backward pass, in order of issue, without what is recomputed before it.

    Row-parallel: input gradient, weight gradient. Column-parallel: input gradient, its sum over ranks, weight
    gradient, so that the sum may run beside the last where the framework lets it.

    Parameters
    ----------
    model : Model
    layout : Layout
        Degrees may be arrays over layouts.
    batch : Batch
    framework : Framework

    Returns
    -------
    tuple of Operator
    """
    z = shapes(model, layout, batch, framework)
    parameters = layer_parameters(model, layout, framework)
    return (
        *pointwise.add_to_residual_backward("mlp", model, z, framework),
        *regions.enter_backward("mlp", layout, z),
        linear.input_gradient("mlp down", z.tokens, z.ffn, z.hidden, z),
        linear.weight_gradient("mlp down", z.tokens, z.ffn, z.hidden, z),
        *pointwise.activate_backward(model, z, framework),
        *regions.regather("mlp", layout, z),
        linear.input_gradient("mlp up", z.tokens, z.hidden, z.up, z),
        *regions.leave_backward("mlp", layout, z),
        linear.weight_gradient("mlp up", z.tokens, z.hidden, z.up, z),
        *pointwise.norm_backward("mlp norm", model, z),
        *pointwise.residual_gradient("mlp", z),
        *pointwise.add_to_residual_backward("attention", model, z, framework),
        *regions.enter_backward("attention", layout, z),
        linear.input_gradient("attention output", z.tokens, z.context, z.hidden, z),
        linear.weight_gradient("attention output", z.tokens, z.context, z.hidden, z),
        *attention.tokens_first(z, framework, "dgrad"),
        *attention.core_backward(model, z, framework),
        *attention.arrange_backward(model, z),
        *(linear.bias_gradient("qkv", z.tokens, z.qkv, z) if model.bias or model.qkv_bias else ()),
        *regions.regather("attention", layout, z),
        linear.input_gradient("qkv", z.tokens, z.hidden, z.qkv, z),
        *regions.leave_backward("attention", layout, z),
        linear.weight_gradient("qkv", z.tokens, z.hidden, z.qkv, z),
        *pointwise.norm_backward("input norm", model, z),
        *pointwise.residual_gradient("attention", z),
        *pointwise.accumulate("layer", parameters, layer_tensors(model), batch.micro_batches(layout), framework, z),
    )


def recomputed_forward(model: Model, layout: Layout, batch: Batch, framework: Framework) -> tuple[Operator, ...]:
    """List the operators that one layer's backward pass repeats first.

    Parameters
    ----------
    model : Model
    layout : Layout
        Its ``recompute``: ``full`` repeats the whole layer with its communication, ``selective`` the attention core
        (arXiv 2205.05198 §5), ``none`` nothing.
    batch : Batch
    framework : Framework

    Returns
    -------
    tuple of Operator
    """
    if layout.recompute == "full":
        return layer_forward(model, layout, batch, framework)
    if layout.recompute == "selective":
        return attention.core_forward(model, shapes(model, layout, batch, framework), framework)
    return ()


def _separate_qkv_bias(model: Model, framework: Framework) -> bool:
    return (model.bias or model.qkv_bias) and not framework.fused_qkv_bias
