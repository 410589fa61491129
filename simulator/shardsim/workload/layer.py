"""Operators of one transformer layer under one-dimensional (Megatron) tensor parallelism, for one micro-batch.

QKV and the first MLP projection are split by columns, the output projection and the second MLP projection by rows
(arXiv 1909.08053 §3). So each block needs one sum over ranks forward, after its row-parallel projection, and one
backward, behind its column-parallel projection: two all-reduces of b s h forward and two backward. Under sequence
parallelism (arXiv 2205.05198 §4.2.2) each becomes a gathering and a scattering of tokens, norms, dropout and residuals
work on 1/t of the tokens, and the inputs of the column-parallel projections are gathered once more going backward.

Nothing is left out at t = 1: a collective of one rank costs nothing. Below 16 bits conversions stand in front of the
products, or of the gathering (:mod:`shardsim.workload.quantization`).
"""

from __future__ import annotations

from shardsim.values.num import Num
from shardsim.values.operators import Operator
from shardsim.values.training import Batch, Framework, Layout, Model
from shardsim.workload import attention, linear, pointwise, quantization, regions
from shardsim.workload.parameters import layer_parameters, layer_tensors
from shardsim.workload.shapes import Shapes, shapes


def layer_forward(
    model: Model, layout: Layout, batch: Batch, framework: Framework, *, repeated: bool = False
) -> tuple[Operator, ...]:
    """List the operators of one layer's forward pass, in order of issue.

    Parameters
    ----------
    model : Model
    layout : Layout
        Degrees may be arrays over layouts.
    batch : Batch
    framework : Framework
    repeated : bool
        Whether the backward pass repeats it: weights are converted by then.

    Returns
    -------
    tuple of Operator
    """
    z = shapes(model, layout, batch, framework)
    uses = None if repeated else batch.micro_batches(layout)
    return (
        *pointwise.norm_forward("input norm", model, z),
        *_column_forward("qkv", "attention", z.qkv, layout, z, uses),
        *(linear.add_bias("qkv", z.tokens, z.qkv, z) if _separate_qkv_bias(model, framework) else ()),
        *attention.arrange_forward(model, z, framework),
        *attention.core_forward(model, z, framework),
        *attention.tokens_first(z, framework, "forward"),
        *_row_forward("attention output", z.context, z, uses),
        *regions.leave("attention", layout, z),
        *pointwise.add_to_residual("attention", model, z, framework),
        *pointwise.norm_forward("mlp norm", model, z),
        *_column_forward("mlp up", "mlp", z.up, layout, z, uses),
        *pointwise.activate(model, z, framework),
        *_row_forward("mlp down", z.ffn, z, uses),
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
        *_row_backward("mlp down", "mlp", z.ffn, layout, z),
        *pointwise.activate_backward(model, z, framework),
        *_column_backward("mlp up", "mlp", z.up, layout, z),
        *pointwise.norm_backward("mlp norm", model, z),
        *pointwise.residual_gradient("mlp", z),
        *pointwise.add_to_residual_backward("attention", model, z, framework),
        *_row_backward("attention output", "attention", z.context, layout, z),
        *attention.tokens_first(z, framework, "dgrad"),
        *attention.core_backward(model, z, framework),
        *attention.arrange_backward(model, z),
        *(linear.bias_gradient("qkv", z.tokens, z.qkv, z) if model.bias or model.qkv_bias else ()),
        *_column_backward("qkv", "attention", z.qkv, layout, z),
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
        return layer_forward(model, layout, batch, framework, repeated=True)
    if layout.recompute == "selective":
        return attention.core_forward(model, shapes(model, layout, batch, framework), framework)
    return ()


def _column_forward(
    name: str, region: str, width: Num, layout: Layout, z: Shapes, uses: Num | None
) -> tuple[Operator, ...]:
    return (
        *quantization.operand(f"{name} input", z.local_hidden, z, gathered=layout.sp),
        *(() if uses is None else quantization.weight(name, z.hidden * width, z, uses)),
        *regions.enter(region, layout, z, quantization.gathered_bytes(z)),
        linear.forward(name, z.tokens, z.hidden, width, z, quantization.data_type(z)),
    )


def _row_forward(name: str, inner: Num, z: Shapes, uses: Num | None) -> tuple[Operator, ...]:
    return (
        *quantization.operand(f"{name} input", z.tokens * inner, z),
        *(() if uses is None else quantization.weight(name, inner * z.hidden, z, uses)),
        linear.forward(name, z.tokens, inner, z.hidden, z, quantization.data_type(z)),
    )


def _row_backward(name: str, region: str, inner: Num, layout: Layout, z: Shapes) -> tuple[Operator, ...]:
    shape = (name, z.tokens, inner, z.hidden, z, quantization.data_type(z))
    return (
        *quantization.operand(f"{name} gradient", z.local_hidden, z, "dgrad", gathered=layout.sp),
        *regions.enter_backward(region, layout, z, quantization.gathered_bytes(z, copies=2)),
        linear.input_gradient(*shape),
        *(quantization.turned(f"{name} gradient", z.tokens * z.hidden, z) if layout.sp else ()),
        linear.weight_gradient(*shape),
    )


def _column_backward(name: str, region: str, width: Num, layout: Layout, z: Shapes) -> tuple[Operator, ...]:
    shape = (name, z.tokens, z.hidden, width, z, quantization.data_type(z))
    return (
        *quantization.operand(f"{name} gradient", z.tokens * width, z, "dgrad"),
        *regions.regather(region, layout, z, quantization.gathered_bytes(z)),
        linear.input_gradient(*shape),
        *regions.leave_backward(region, layout, z),
        *(quantization.turned(f"{name} input", z.tokens * z.hidden, z) if layout.sp else ()),
        linear.weight_gradient(*shape),
    )


def _separate_qkv_bias(model: Model, framework: Framework) -> bool:
    return (model.bias or model.qkv_bias) and not framework.fused_qkv_bias
