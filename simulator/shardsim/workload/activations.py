"""Activations of one layer and micro-batch, tensor by tensor: what is kept, what can be rebuilt, what waits for W.

Each tensor that the forward pass leaves for the backward pass is a row with its size and the modules whose
recomputation drops it, so that grouped queries, SwiGLU, fused attention, a missing dropout, experts and latent
attention follow. For GPT in 16 bits the sums are the equations of arXiv 2205.05198, Table 2.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from shardsim.values.num import Num, larger, where
from shardsim.values.training import Batch, Framework, Layout, Mla, Model, Moe
from shardsim.workload.kinds import LayerKind, kinds_of, prediction_kind
from shardsim.workload.parameters import mlp_projections
from shardsim.workload.quantization import kept_bytes
from shardsim.workload.recompute import recomputed_layers
from shardsim.workload.routing import load_of
from shardsim.workload.shapes import Shapes, shapes
from shardsim.workload.stages import ChunkContent
from shardsim.workload.under_way import under_way_bytes

_FP32 = 4
_MASK = 1


@dataclass(frozen=True, slots=True)
class LayerActivations:
    """Activations of one layer, or of the layers of one chunk, for one micro-batch.

    Parameters
    ----------
    kept : Num
        From the forward pass to the backward pass [bytes].
    weight_gradient : Num
        What stays from an input-gradient pass to its weight-gradient pass: inputs of the linear layers and gradients
        of their outputs [bytes].
    working_set : Num
        What recomputation takes at the fullest moment of the backward pass beyond ``kept`` [bytes].
    input_working_set : Num
        The same of an input-gradient pass, whose layers leave ``weight_gradient`` [bytes].
    under_way : Num
        Tokens and keys on their way at the fullest moment of a pass [bytes].
    """

    kept: Num
    weight_gradient: Num
    working_set: Num
    input_working_set: Num = 0.0
    under_way: Num = 0.0


@dataclass(frozen=True, slots=True)
class Kept:
    """A tensor that a layer's forward pass leaves for its backward pass.

    Parameters
    ----------
    name : str
    size : Num
        [bytes].
    half : {"attention", "mlp"}
    modules : tuple of str
        Selective recompute of any of these drops it.
    """

    name: str
    size: Num
    half: Literal["attention", "mlp"]
    modules: tuple[str, ...] = ()


def layer_activations(
    model: Model, layout: Layout, batch: Batch, framework: Framework, *, moe: bool = False, window: int = 0
) -> LayerActivations:
    """Count one layer.

    Parameters
    ----------
    model : Model
    layout : Layout
        Its degrees, ``sp`` and recomputation. Under full recompute this is a layer that is recomputed, by itself.
    batch : Batch
    framework : Framework
        Fused attention keeps nothing of size s².
    moe : bool
        Whether it is a layer with experts.
    window : int
        Keys that its queries see (-); 0 for all.

    Returns
    -------
    LayerActivations

    Notes
    -----
    arXiv 2205.05198, Table 2, for GPT: none s b h (10 + 24/t + 5 a s/(h t)); with SP s b h (34/t + 5 a s/(h t));
    selective without the last term; full 2 s b h, of which SP keeps 1/t. Weight gradients hold 32 s b h, arXiv
    2401.10241, Table 1.
    """
    sizes = shapes(model, layout, batch, framework)
    tensors = kept_tensors(model, layout, batch, framework, moe=moe)
    waiting = _weight_gradient(model, layout, sizes, framework, model.moe if moe else None)
    under_way = under_way_bytes(model, layout, sizes, LayerKind(moe, window))
    if layout.recompute == "full":
        return LayerActivations(_checkpoint(sizes), waiting, _total(tensors), _total(tensors), under_way)
    modules = layout.recompute_modules if layout.recompute == "selective" else ()
    dropped = [one for one in tensors if not set(one.modules).isdisjoint(modules)]
    attention, mlp = (_total(one for one in dropped if one.half == half) for half in ("attention", "mlp"))
    kept = [one for one in tensors if set(one.modules).isdisjoint(modules)]
    rebuilt = larger(attention, mlp)
    return LayerActivations(_total(kept), waiting, rebuilt, rebuilt, under_way)


def chunk_activations(
    model: Model, layout: Layout, batch: Batch, framework: Framework, content: ChunkContent
) -> LayerActivations:
    """Count the layers of a chunk, its ends left out.

    Parameters
    ----------
    model : Model
    layout : Layout
        Full recompute keeps the input of each unit of layers, and rebuilds a unit at a time.
    batch : Batch
    framework : Framework
    content : ChunkContent
        Which layers it holds tells which of them have experts; modules of multi-token prediction follow them.

    Returns
    -------
    LayerActivations
        Sums, but for the working sets: those of the layer, or unit of layers, at which most is there. Those behind it
        are freed by then, last first, but for what waits for weight gradients.
    """
    kinds = kinds_of(model, content)
    plain = layout if layout.recompute == "selective" else replace(layout, recompute="none")
    each = {kind: layer_activations(model, plain, batch, framework, **kind._asdict()) for kind in set(kinds)}
    modules = [_prediction(model, layout, batch, framework)] * content.mtp
    repeated = recomputed_layers(layout, content.layers)
    unit = layout.recompute_layers if layout.recompute_method == "uniform" and layout.recompute_layers else 1
    units = [kinds[start : min(start + unit, repeated)] for start in range(0, repeated, unit)]
    checkpoint = _checkpoint(shapes(model, layout, batch, framework))
    kept = {kind: one.kept for kind, one in each.items()}
    waiting = {kind: one.weight_gradient for kind, one in each.items()}
    steps = [LayerActivations(checkpoint, _of_layers(one, waiting), _of_layers(one, kept)) for one in units]
    steps += [each[kind] for kind in kinds[repeated:]]
    freed: Num = 0.0 * checkpoint
    left, working_set, input_working_set, under_way = freed, freed, freed, freed
    for one in (*each.values(), *modules):
        under_way = larger(under_way, one.under_way)
    for step in (*modules, *reversed(steps)):
        working_set = larger(working_set, step.working_set - freed)
        input_working_set = larger(input_working_set, step.working_set - freed + left)
        freed, left = freed + step.kept, left + step.weight_gradient
    return LayerActivations(
        kept=_of_layers(kinds[repeated:], kept) + len(units) * checkpoint + sum(one.kept for one in modules),
        weight_gradient=_of_layers(kinds, waiting) + sum(one.weight_gradient for one in modules),
        working_set=working_set,
        input_working_set=input_working_set,
        under_way=under_way,
    )


def _of_layers(kinds: Sequence[LayerKind], each: Mapping[LayerKind, Num]) -> Num:
    """Sum over layers, by their kind."""
    return sum((kinds.count(kind) * size for kind, size in each.items()), 0.0)


def _prediction(model: Model, layout: Layout, batch: Batch, framework: Framework) -> LayerActivations:
    """Count a module of multi-token prediction: two norms in front of a projection, a layer, and the head's norm.

    Recomputed, it keeps what it joins, and rebuilds all of it (github NVIDIA/Megatron-LM,
    megatron/core/transformer/multi_token_prediction.py, _checkpointed_forward).
    """
    sizes, kind = shapes(model, layout, batch, framework), prediction_kind(model)
    plain = layout if layout.recompute == "selective" else replace(layout, recompute="none")
    layer = layer_activations(model, plain, batch, framework, **kind._asdict())
    joined = 2 * sizes.local_hidden * sizes.element_bytes
    inside = 2 * sizes.local_hidden * kept_bytes(sizes) + _checkpoint(sizes)  # of the projection, of the head's norm
    waiting = layer.weight_gradient + 3 * sizes.local_hidden * kept_bytes(sizes)
    if layout.recompute != "full":
        return replace(layer, kept=layer.kept + joined + inside, weight_gradient=waiting)
    rebuilt = layer.kept + inside
    return LayerActivations(joined, waiting, rebuilt, rebuilt, layer.under_way)


def activation_bytes_per_layer(model: Model, layout: Layout, batch: Batch, framework: Framework) -> Num:
    """Activations of one layer without experts, and one micro-batch, that are kept for the backward pass.

    Parameters
    ----------
    model : Model
    layout : Layout
    batch : Batch
    framework : Framework

    Returns
    -------
    Num
        [bytes].
    """
    return layer_activations(model, layout, batch, framework).kept


def first_stage_activation_bytes(model: Model, layout: Layout, batch: Batch, framework: Framework) -> Num:
    """Activations of the first stage in the accounting of arXiv 2205.05198 §4.2.3: layers only.

    Parameters
    ----------
    model : Model
    layout : Layout
    batch : Batch
    framework : Framework

    Returns
    -------
    Num
        [bytes]. As many as all L layers of one micro-batch, whatever p; (1 + (p - 1)/(p v)) times that interleaved.
    """
    more = 1 + (layout.pp - 1) / (layout.pp * layout.vpp)
    factor = where(layout.vpp > 1, more, more * 0.0 + 1.0)
    return model.layers * activation_bytes_per_layer(model, layout, batch, framework) * factor


def kept_tensors(
    model: Model, layout: Layout, batch: Batch, framework: Framework, *, moe: bool = False
) -> tuple[Kept, ...]:
    """List what a layer keeps without recomputation.

    Parameters
    ----------
    model : Model
    layout : Layout
    batch : Batch
    framework : Framework
    moe : bool
        Whether it is a layer with experts.

    Returns
    -------
    tuple of Kept
    """
    sizes = shapes(model, layout, batch, framework)
    attention = _heads(model, sizes) if model.mla is None else _latent(model.mla, sizes)
    experts = model.moe if moe else None
    mlp = _mlp(model, sizes, framework) if experts is None else _experts(model, experts, layout, sizes, framework)
    # A norm in front of latent attention, or of experts, stands by itself in any case.
    alone = () if framework.fused_norms and model.mla is None else ("layernorm",)
    return (*_around(sizes, framework, "attention", alone), *attention, *_core(model, layout, sizes, framework), *mlp)


def _around(
    sizes: Shapes, framework: Framework, half: Literal["attention", "mlp"], modules: tuple[str, ...]
) -> tuple[Kept, ...]:
    """Around each half of a layer: input and output of its norm, the mask of its dropout."""
    mask = (Kept(f"{half} dropout mask", sizes.local_hidden * _MASK, half),) if framework.dropout else ()
    return (
        Kept(f"{half} norm input", sizes.local_hidden * sizes.element_bytes, half),
        Kept(f"{half} norm output", sizes.local_hidden * kept_bytes(sizes), half, modules),
        *mask,
    )


def _heads(model: Model, sizes: Shapes) -> tuple[Kept, ...]:
    """Queries, keys and values; queries and keys before their norms as well, where they have some."""
    whole = (Kept("q, k, v", sizes.tokens * sizes.qkv * sizes.element_bytes, "attention"),)
    if not model.qk_norm:
        return whole
    before = sizes.tokens * (sizes.heads + sizes.kv_heads) * sizes.head_dim * sizes.element_bytes
    return (*whole, Kept("q, k norm input", before, "attention"))


def _latent(mla: Mla, sizes: Shapes) -> tuple[Kept, ...]:
    """Latent vectors, before and after their norms; queries, keys and values of full width."""
    latents = sizes.local_tokens * (mla.q_lora + mla.kv_lora)
    whole = sizes.tokens * sizes.heads * (2 * mla.qk_dim + mla.v_dim)
    return (
        Kept("latents", latents * sizes.element_bytes, "attention"),
        Kept("latent norm output", latents * kept_bytes(sizes), "attention", ("mla_up_proj",)),
        Kept("q, k, v", whole * sizes.element_bytes, "attention", ("mla_up_proj",)),
    )


def _core(model: Model, layout: Layout, sizes: Shapes, framework: Framework) -> tuple[Kept, ...]:
    """What the attention core keeps for itself, and its output, which is the input of the projection."""
    e, linear = sizes.element_bytes, kept_bytes(sizes)
    context = sizes.tokens * _context(model, sizes)
    if framework.attention_output_bytes and sizes.low_precision is not None and framework.attention != "unfused":
        return (Kept("attention output", context * framework.attention_output_bytes, "attention"),)
    output = Kept("attention output", context * linear, "attention")
    if framework.attention == "unfused":
        element = 2 * e + _MASK if framework.dropout else e
        return (Kept("softmax", sizes.scores * element, "attention", ("core_attn",)), output)
    # A fused kernel keeps its output for itself; where that is no input of a linear layer any more, it is there twice.
    # So it is where heads are exchanged, or chunks of queries computed apart, before the output is put together (github
    # NVIDIA/TransformerEngine, dot_product_attention/context_parallel.py: what its functions save for backward).
    twice = linear < e or layout.cp_comm != "p2p"
    own = context * e if linear < e else where(layout.cp > 1, context * e, 0.0 * context)
    return (Kept("attention output of the kernel", own, "attention", ("core_attn",)), output) if twice else (output,)


def _mlp(model: Model, sizes: Shapes, framework: Framework) -> tuple[Kept, ...]:
    inner = _inner("mlp", sizes.tokens, sizes.ffn, model, sizes, framework, ("mlp",))
    # Beside the attention, it takes the output of that one's norm, and both are added before one dropout.
    # An MLP that is repeated keeps its input: that of a norm which is part of it, or the output of one before it.
    modules = ("mlp",) if framework.fused_norms else ("layernorm",)
    return inner if framework.parallel_block else (*_around(sizes, framework, "mlp", modules), *inner)


def _inner(
    name: str, rows: Num, ffn: Num, model: Model, sizes: Shapes, framework: Framework, modules: tuple[str, ...]
) -> tuple[Kept, ...]:
    """Inside an MLP: input of the activation, a separate activation's own output, input of the second product."""
    act = "moe_act" if name == "experts" else ""
    width = kept_bytes(sizes) if framework.narrow_activation_inputs else sizes.element_bytes
    up = rows * ffn * mlp_projections(model) * width
    separate = model.activation == "swiglu" and not framework.fused_bias_activation
    twice = (Kept(f"{name} gate", rows * ffn * sizes.element_bytes, "mlp", modules),) if separate else ()
    product = Kept(f"{name} second input", rows * ffn * kept_bytes(sizes), "mlp", (act, *modules) if act else modules)
    return (Kept(f"{name} activation input", up, "mlp", modules), *twice, product)


def _experts(model: Model, moe: Moe, layout: Layout, sizes: Shapes, framework: Framework) -> tuple[Kept, ...]:
    """Experts of the busiest rank, each with its share of the rows."""
    rows, ffn = expert_rows(moe, layout, sizes), moe.ffn / layout.etp
    scores = sizes.local_tokens * moe.experts * _FP32
    modules, width = ("shared_experts", "moe"), moe.shared_ffn / layout.tp
    shared = _inner("shared", sizes.tokens, width, model, sizes, framework, modules) if moe.shared_ffn else ()
    # Rows are weighed in front of the second product: by the activation's kernel, or by one of their own.
    apart = Kept("experts unweighed", rows * ffn * sizes.element_bytes, "mlp", ("moe_act", "moe"))
    unweighed = () if framework.fused_bias_activation else (apart,)
    return (
        *_around(sizes, framework, "mlp", ("layernorm",)),
        Kept("router scores", 2 * scores, "mlp", ("moe",)),
        Kept("routed tokens", rows * model.hidden * kept_bytes(sizes), "mlp", ("moe",)),
        *_inner("experts", rows, ffn, model, sizes, framework, ("moe",)),
        *unweighed,
        *shared,
    )


def expert_rows(moe: Moe, layout: Layout, sizes: Shapes) -> Num:
    """Rows that the experts of the busiest rank work on: each token goes to ``top_k`` experts.

    Parameters
    ----------
    moe : Moe
    layout : Layout
        Ranks that share experts by tensor parallelism gather their rows. Its imbalance and capacity.
    sizes : Shapes

    Returns
    -------
    Num
        (-).
    """
    # Without sequence parallelism, tokens that all tensor-parallel ranks hold are sent once.
    load = load_of(moe, layout, sizes.tokens / layout.tp)
    return sizes.tokens * moe.top_k * layout.etp / layout.tp * load.share * load.imbalance


def _weight_gradient(model: Model, layout: Layout, sizes: Shapes, framework: Framework, moe: Moe | None) -> Num:
    """Inputs of the linear layers, each once, and gradients of their outputs."""
    wide, local = sizes.tokens, sizes.local_tokens
    h, gate = model.hidden, mlp_projections(model)
    attention = _context(model, sizes)
    total = local * h + wide * attention + local * h  # input of QKV; input of the projection and its gradient
    if model.mla is not None:
        mla = model.mla
        down = mla.q_lora + mla.kv_lora
        up = sizes.heads * (mla.qk_dim + mla.qk_nope_dim + mla.v_dim)
        total = total + local * (2 * down + mla.qk_rope_dim) + wide * up
    else:
        total = total + wide * sizes.qkv
    if moe is None:
        own = 0.0 if framework.parallel_block else 2 * local * h
        return (total + own + wide * (gate + 1) * sizes.ffn) * kept_bytes(sizes)
    total = total + local * h + expert_rows(moe, layout, sizes) * (2 * h + (gate + 1) * moe.ffn / layout.etp)
    if moe.shared_ffn:
        total = total + local * h + wide * (gate + 1) * moe.shared_ffn / layout.tp
    return total * kept_bytes(sizes)


def _context(model: Model, sizes: Shapes) -> Num:
    """Width of the attention output on this rank."""
    return sizes.heads * (sizes.head_dim if model.mla is None else model.mla.v_dim)


def _checkpoint(sizes: Shapes) -> Num:
    """The input of a layer [bytes]."""
    return sizes.local_hidden * sizes.element_bytes


def _total(tensors: Iterable[Kept]) -> Num:
    return sum((one.size for one in tensors), 0.0)
