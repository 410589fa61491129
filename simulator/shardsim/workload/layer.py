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

from shardsim.values.num import Num
from shardsim.values.operators import Operator
from shardsim.values.training import Batch, Framework, Layout, Model
from shardsim.workload import attention, context, linear, parallel, pointwise, regions
from shardsim.workload.experts import activation_forward, experts_backward, experts_forward
from shardsim.workload.kinds import PLAIN, LayerKind
from shardsim.workload.latent import latent_backward, latent_forward, up_forward
from shardsim.workload.parameters import layer_held, layer_tensors
from shardsim.workload.shapes import Shapes, shapes
from shardsim.workload.shared_experts import shared_forward


def layer_forward(
    model: Model,
    layout: Layout,
    batch: Batch,
    framework: Framework,
    kind: LayerKind = PLAIN,
    *,
    repeated: bool = False,
) -> tuple[Operator, ...]:
    """List the operators of one layer's forward pass, in order of issue.

    Parameters
    ----------
    model : Model
    layout : Layout
        Degrees may be arrays over layouts.
    batch : Batch
    framework : Framework
    kind : LayerKind
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
            *parallel.column_forward((("mlp up", z.up), ("qkv", z.qkv)), "layer", layout, z, uses),
            *_arranged(model, z, framework),
            *_attended(model, layout, z, framework, kind),
            *pointwise.activate(model, z, framework),
            *parallel.row_forward("attention output", z.context, z, uses),
            *parallel.row_forward("mlp down", z.ffn, z, uses, added=True),
            *regions.leave("layer", layout, z),
            *pointwise.add_to_residual("layer", model, z, framework),
        )
    return (
        *norm,
        *_projected(model, layout, z, framework, uses),
        *_attended(model, layout, z, framework, kind),
        *parallel.row_forward("attention output", z.context, z, uses),
        *regions.leave("attention", layout, z),
        *pointwise.add_to_residual("attention", model, z, framework),
        *pointwise.norm_forward("mlp norm", model, z),
        *(
            experts_forward(model, layout, batch, framework, z, uses)
            if kind.moe
            else _mlp_forward(model, layout, z, framework, uses)
        ),
        *pointwise.add_to_residual("mlp", _of_sum(model, kind), z, framework),
    )


def layer_backward(
    model: Model, layout: Layout, batch: Batch, framework: Framework, kind: LayerKind = PLAIN
) -> tuple[Operator, ...]:
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
    kind : LayerKind

    Returns
    -------
    tuple of Operator
    """
    z = shapes(model, layout, batch, framework)
    parameters, tensors = layer_held(model, layout, framework, kind).shared, layer_tensors(model, framework, kind)
    accumulation = pointwise.accumulate("layer", parameters, tensors, batch.micro_batches(layout), framework, z)
    if framework.parallel_block:
        return (
            *pointwise.add_to_residual_backward("layer", model, z, framework),
            *parallel.row_backward((("mlp down", z.ffn), ("attention output", z.context)), "layer", layout, z),
            *pointwise.activate_backward(model, z, framework),
            *_attended_backward(model, layout, z, framework, kind),
            *_arranged_backward(model, z),
            *parallel.column_backward((("mlp up", z.up), ("qkv", z.qkv)), "layer", layout, z),
            *pointwise.norm_backward("input norm", model, z),
            *pointwise.residual_gradient("layer", z),
            *accumulation,
        )
    return (
        *pointwise.add_to_residual_backward("mlp", _of_sum(model, kind), z, framework),
        *(
            experts_backward(model, layout, batch, framework, z)
            if kind.moe
            else _mlp_backward(model, layout, z, framework)
        ),
        *pointwise.norm_backward("mlp norm", model, z),
        *pointwise.residual_gradient("mlp", z),
        *pointwise.add_to_residual_backward("attention", model, z, framework),
        *parallel.row_backward((("attention output", z.context),), "attention", layout, z),
        *_attended_backward(model, layout, z, framework, kind),
        *_projected_backward(model, layout, z),
        *pointwise.norm_backward("input norm", model, z),
        *pointwise.residual_gradient("attention", z),
        *accumulation,
    )


def recomputed_forward(
    model: Model, layout: Layout, batch: Batch, framework: Framework, kind: LayerKind = PLAIN
) -> tuple[Operator, ...]:
    """List the operators that one layer's backward pass repeats first.

    Parameters
    ----------
    model : Model
    layout : Layout
        Its ``recompute``: ``full`` repeats the whole layer with its communication; ``selective`` its modules, of them
        ``core_attn`` (arXiv 2205.05198 §5), ``mlp`` with its communication, ``layernorm`` and ``mla_up_proj``; of
        layers with experts ``moe`` with its communication, or of that ``shared_experts`` and ``moe_act``; ``none``
        nothing.
    batch : Batch
    framework : Framework
    kind : LayerKind

    Returns
    -------
    tuple of Operator
        All of it in front of the backward pass, though modules are repeated when their turn comes: the sum is the same.
    """
    if layout.recompute == "full":
        return layer_forward(model, layout, batch, framework, kind, repeated=True)
    if layout.recompute == "none":
        return ()
    z, modules = shapes(model, layout, batch, framework), layout.recompute_modules
    return (
        *(
            one
            for name in _repeated_norms(model, layout, framework, kind)
            for one in pointwise.norm_forward(name, model, z)
        ),
        *(_mlp_forward(model, layout, z, framework, None) if "mlp" in modules and not kind.moe else ()),
        *(_repeated_experts(model, layout, batch, framework, z) if kind.moe else ()),
        *(up_forward(model, layout, z, None) if "mla_up_proj" in modules and model.mla else ()),
        *(context.core_forward(model, layout, z, framework, kind) if "core_attn" in modules else ()),
    )


def _repeated_norms(model: Model, layout: Layout, framework: Framework, kind: LayerKind) -> tuple[str, ...]:
    """Norms by themselves, and where it is repeated, that of a linear layer which it is part of.

    No such layer follows in front of experts, and of latent attention (github NVIDIA/Megatron-LM,
    megatron/core/models/gpt/gpt_layer_specs.py).
    """
    modules, fused = layout.recompute_modules, framework.fused_norms
    with_attention = fused and model.mla is None
    with_mlp = fused and not kind.moe
    first = "layernorm" in modules and not with_attention
    second = "mlp" in modules if with_mlp else "layernorm" in modules
    both = ("input norm",) * first + ("mlp norm",) * second
    return both[:first] if framework.parallel_block else both


def _repeated_experts(
    model: Model, layout: Layout, batch: Batch, framework: Framework, z: Shapes
) -> tuple[Operator, ...]:
    modules = layout.recompute_modules
    if model.moe is None or "moe" in modules:
        return experts_forward(model, layout, batch, framework, z, None)
    shared = shared_forward(model, model.moe, layout, framework, z, None)
    return (
        *((*shared.first, *shared.second) if "shared_experts" in modules else ()),
        *(activation_forward(model, layout, framework, z) if "moe_act" in modules else ()),
    )


def _of_sum(model: Model, kind: LayerKind) -> Model:
    """The model as what follows the second half of a layer sees it: experts have added their biases themselves."""
    return replace(model, bias=False) if kind.moe and model.bias else model


def _projected(model: Model, layout: Layout, z: Shapes, framework: Framework, uses: Num | None) -> tuple[Operator, ...]:
    """From the norm's output to queries, keys and values."""
    if model.mla is not None:
        return latent_forward(model, layout, z, uses)
    product = parallel.column_forward((("qkv", z.qkv),), "attention", layout, z, uses)
    return (*product, *_arranged(model, z, framework))


def _projected_backward(model: Model, layout: Layout, z: Shapes) -> tuple[Operator, ...]:
    if model.mla is not None:
        return latent_backward(model, layout, z)
    product = parallel.column_backward((("qkv", z.qkv),), "attention", layout, z)
    return (*_arranged_backward(model, z), *product)


def _arranged(model: Model, z: Shapes, framework: Framework) -> tuple[Operator, ...]:
    """Between the QKV product and the attention core."""
    separate = (model.bias or model.qkv_bias) and not framework.fused_qkv_bias
    return (
        *(linear.add_bias("qkv", z.tokens, z.qkv, z) if separate else ()),
        *attention.arrange_forward(model, z, framework),
    )


def _arranged_backward(model: Model, z: Shapes) -> tuple[Operator, ...]:
    return (
        *attention.arrange_backward(model, z),
        *(linear.bias_gradient("qkv", z.tokens, z.qkv, z) if model.bias or model.qkv_bias else ()),
    )


def _attended(model: Model, layout: Layout, z: Shapes, framework: Framework, kind: LayerKind) -> tuple[Operator, ...]:
    """From queries, keys and values to what the output projection takes."""
    return (
        *context.core_forward(model, layout, z, framework, kind),
        *attention.tokens_first(z, framework, "forward"),
    )


def _attended_backward(
    model: Model, layout: Layout, z: Shapes, framework: Framework, kind: LayerKind
) -> tuple[Operator, ...]:
    return (
        *attention.tokens_first(z, framework, "dgrad"),
        *context.core_backward(model, layout, z, framework, kind),
    )


def _mlp_forward(
    model: Model, layout: Layout, z: Shapes, framework: Framework, uses: Num | None
) -> tuple[Operator, ...]:
    shared = framework.parallel_block  # repeated alone, it gathers what the block does, and its sum is the block's
    return (
        *parallel.column_forward((("mlp up", z.up),), "layer" if shared else "mlp", layout, z, uses),
        *pointwise.activate(model, z, framework),
        *parallel.row_forward("mlp down", z.ffn, z, uses),
        *(() if shared else regions.leave("mlp", layout, z)),
    )


def _mlp_backward(model: Model, layout: Layout, z: Shapes, framework: Framework) -> tuple[Operator, ...]:
    return (
        *parallel.row_backward((("mlp down", z.ffn),), "mlp", layout, z),
        *pointwise.activate_backward(model, z, framework),
        *parallel.column_backward((("mlp up", z.up),), "mlp", layout, z),
    )
