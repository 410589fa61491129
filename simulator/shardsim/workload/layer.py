"""Operators of one transformer layer under one-dimensional (Megatron) tensor parallelism, for one micro-batch.

QKV and the first MLP projection are split by columns, the output projection and the second MLP projection by rows
(arXiv 1909.08053 §3). So each block needs one sum over ranks forward, after its row-parallel projection, and one
backward, behind its column-parallel projection: two all-reduces of b s h forward and two backward. Under sequence
parallelism (arXiv 2205.05198 §4.2.2) each becomes a gathering and a scattering of tokens, norms, dropout and residuals
work on 1/t of the tokens, and the inputs of the column-parallel projections are gathered once more going backward.

Where attention and MLP stand side by side (``parallel_block``), both take the output of one norm, which is gathered
once, and their row-parallel products are added up before they are summed over ranks: half the communication (arXiv
2402.15627 §3.1). The MLP's first product follows the gathering and its second one precedes the scattering, being the
wider ones to hide those behind (§3.2).

Nothing is left out at t = 1: a collective of one rank costs nothing. Below 16 bits conversions stand in front of the
products, or of the gathering (:mod:`shardsim.workload.quantization`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeAlias

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
    norm = pointwise.norm_forward("input norm", model, z)
    if framework.parallel_block:
        return (
            *norm,
            *_column_forward((("mlp up", z.up), ("qkv", z.qkv)), "layer", layout, z, uses),
            *_attention_inside(model, z, framework),
            *pointwise.activate(model, z, framework),
            *_row_forward("attention output", z.context, z, uses),
            *_row_forward("mlp down", z.ffn, z, uses, added=True),
            *regions.leave("layer", layout, z),
            *pointwise.add_to_residual("layer", model, z, framework),
        )
    return (
        *norm,
        *_column_forward((("qkv", z.qkv),), "attention", layout, z, uses),
        *_attention_inside(model, z, framework),
        *_row_forward("attention output", z.context, z, uses),
        *regions.leave("attention", layout, z),
        *pointwise.add_to_residual("attention", model, z, framework),
        *pointwise.norm_forward("mlp norm", model, z),
        *_mlp_forward(model, layout, z, framework, uses),
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
    accumulation = pointwise.accumulate(
        "layer", parameters, layer_tensors(model, framework), batch.micro_batches(layout), framework, z
    )
    if framework.parallel_block:
        return (
            *pointwise.add_to_residual_backward("layer", model, z, framework),
            *_row_backward((("mlp down", z.ffn), ("attention output", z.context)), "layer", layout, z),
            *pointwise.activate_backward(model, z, framework),
            *_attention_inside_backward(model, z, framework),
            *_column_backward((("mlp up", z.up), ("qkv", z.qkv)), "layer", layout, z),
            *pointwise.norm_backward("input norm", model, z),
            *pointwise.residual_gradient("layer", z),
            *accumulation,
        )
    return (
        *pointwise.add_to_residual_backward("mlp", model, z, framework),
        *_row_backward((("mlp down", z.ffn),), "mlp", layout, z),
        *pointwise.activate_backward(model, z, framework),
        *_column_backward((("mlp up", z.up),), "mlp", layout, z),
        *pointwise.norm_backward("mlp norm", model, z),
        *pointwise.residual_gradient("mlp", z),
        *pointwise.add_to_residual_backward("attention", model, z, framework),
        *_row_backward((("attention output", z.context),), "attention", layout, z),
        *_attention_inside_backward(model, z, framework),
        *_column_backward((("qkv", z.qkv),), "attention", layout, z),
        *pointwise.norm_backward("input norm", model, z),
        *pointwise.residual_gradient("attention", z),
        *accumulation,
    )


def recomputed_forward(model: Model, layout: Layout, batch: Batch, framework: Framework) -> tuple[Operator, ...]:
    """List the operators that one layer's backward pass repeats first.

    Parameters
    ----------
    model : Model
    layout : Layout
        Its ``recompute``: ``full`` repeats the whole layer with its communication; ``selective`` its modules, of them
        ``core_attn`` (arXiv 2205.05198 §5), ``mlp`` with its communication, and ``layernorm``; ``none`` nothing.
    batch : Batch
    framework : Framework

    Returns
    -------
    tuple of Operator
        All of it in front of the backward pass, though modules are repeated when their turn comes: the sum is the same.
    """
    if layout.recompute == "full":
        return layer_forward(model, layout, batch, framework, repeated=True)
    if layout.recompute == "none":
        return ()
    z, modules = shapes(model, layout, batch, framework), layout.recompute_modules
    norms: tuple[str, ...]
    if framework.fused_norms:  # a norm is repeated with the linear layer that it is part of
        norms = ("mlp norm",) if "mlp" in modules and not framework.parallel_block else ()
    else:
        norms = ("input norm", "mlp norm")[: 1 if framework.parallel_block else 2] if "layernorm" in modules else ()
    return (
        *(one for name in norms for one in pointwise.norm_forward(name, model, z)),
        *(_mlp_forward(model, layout, z, framework, None) if "mlp" in modules else ()),
        *(attention.core_forward(model, z, framework) if "core_attn" in modules else ()),
    )


Projections: TypeAlias = tuple[tuple[str, Num], ...]
"""Column-parallel projections with their widths, or row-parallel ones with what they sum over, on this rank."""


def _attention_inside(model: Model, z: Shapes, framework: Framework) -> tuple[Operator, ...]:
    """Between the QKV product and the output projection."""
    return (
        *(linear.add_bias("qkv", z.tokens, z.qkv, z) if _separate_qkv_bias(model, framework) else ()),
        *attention.arrange_forward(model, z, framework),
        *attention.core_forward(model, z, framework),
        *attention.tokens_first(z, framework, "forward"),
    )


def _attention_inside_backward(model: Model, z: Shapes, framework: Framework) -> tuple[Operator, ...]:
    return (
        *attention.tokens_first(z, framework, "dgrad"),
        *attention.core_backward(model, z, framework),
        *attention.arrange_backward(model, z),
        *(linear.bias_gradient("qkv", z.tokens, z.qkv, z) if model.bias or model.qkv_bias else ()),
    )


def _mlp_forward(
    model: Model, layout: Layout, z: Shapes, framework: Framework, uses: Num | None
) -> tuple[Operator, ...]:
    shared = framework.parallel_block  # repeated alone, it gathers what the block does, and its sum is the block's
    return (
        *_column_forward((("mlp up", z.up),), "layer" if shared else "mlp", layout, z, uses),
        *pointwise.activate(model, z, framework),
        *_row_forward("mlp down", z.ffn, z, uses),
        *(() if shared else regions.leave("mlp", layout, z)),
    )


def _column_forward(
    projections: Projections, region: str, layout: Layout, z: Shapes, uses: Num | None
) -> tuple[Operator, ...]:
    first, _ = projections[0]
    return (
        *quantization.operand(f"{first} input", z.local_hidden, z, gathered=layout.sp),
        *(one for name, width in projections for one in _converted(name, z.hidden * width, z, uses)),
        *regions.enter(region, layout, z, quantization.gathered_bytes(z)),
        *(linear.forward(name, z.tokens, z.hidden, width, z, quantization.data_type(z)) for name, width in projections),
    )


def _row_forward(name: str, inner: Num, z: Shapes, uses: Num | None, *, added: bool = False) -> tuple[Operator, ...]:
    product = linear.forward(name, z.tokens, inner, z.hidden, z, quantization.data_type(z))
    return (
        *quantization.operand(f"{name} input", z.tokens * inner, z),
        *_converted(name, inner * z.hidden, z, uses),
        replace(product, accumulates=True) if added else product,
    )


def _converted(name: str, elements: Num, z: Shapes, uses: Num | None) -> tuple[Operator, ...]:
    return () if uses is None else quantization.weight(name, elements, z, uses)


def _row_backward(projections: Projections, region: str, layout: Layout, z: Shapes) -> tuple[Operator, ...]:
    first, _ = projections[0]
    narrow = quantization.data_type(z)
    return (
        *quantization.operand(f"{first} gradient", z.local_hidden, z, "dgrad", gathered=layout.sp),
        *regions.enter_backward(region, layout, z, quantization.gathered_bytes(z, copies=2)),
        *(linear.input_gradient(name, z.tokens, inner, z.hidden, z, narrow) for name, inner in projections),
        *(quantization.turned(f"{first} gradient", z.tokens * z.hidden, z) if layout.sp else ()),
        *(linear.weight_gradient(name, z.tokens, inner, z.hidden, z, narrow) for name, inner in projections),
    )


def _column_backward(projections: Projections, region: str, layout: Layout, z: Shapes) -> tuple[Operator, ...]:
    first, _ = projections[0]
    narrow = quantization.data_type(z)
    inputs = [linear.input_gradient(name, z.tokens, z.hidden, width, z, narrow) for name, width in projections]
    return (
        *(
            one
            for name, width in projections
            for one in quantization.operand(f"{name} gradient", z.tokens * width, z, "dgrad")
        ),
        *regions.regather(region, layout, z, quantization.gathered_bytes(z)),
        inputs[0],
        *(replace(one, accumulates=True) for one in inputs[1:]),
        *regions.leave_backward(region, layout, z),
        *(quantization.turned(f"{first} input", z.tokens * z.hidden, z) if layout.sp else ()),
        *(linear.weight_gradient(name, z.tokens, z.hidden, width, z, narrow) for name, width in projections),
    )


def _separate_qkv_bias(model: Model, framework: Framework) -> bool:
    return (model.bias or model.qkv_bias) and not framework.fused_qkv_bias
