"""Parameters of a layer, of the ends, of a model; of one tensor-parallel rank, of one chunk or pipeline stage.

Whole-model counts are exact integers. Per-rank counts are exact where the layout is valid (the degrees divide).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from shardsim.values.num import Num, larger, where
from shardsim.values.training import Framework, Layout, Mla, Model, Moe
from shardsim.workload.kinds import PLAIN, LayerKind, is_expert_layer, kinds_of, prediction_kind
from shardsim.workload.stages import ChunkContent


@dataclass(frozen=True, slots=True)
class HeldParameters:
    """Parameters that a rank holds, by the replicas that they are reduced over.

    Parameters
    ----------
    shared : Num
        Held alike by all ``dp`` x ``cp`` replicas (-).
    expert : Num
        Of experts, held alike by world/(pp ep etp) ranks (-).
    """

    shared: Num
    expert: Num

    @property
    def total(self) -> Num:
        """Both (-)."""
        return self.shared + self.expert


def norm_parameters(model: Model) -> int:
    """Count one norm: weight and bias of a LayerNorm (2 h), the weight of an RMSNorm (h).

    Parameters
    ----------
    model : Model

    Returns
    -------
    int
        (-).
    """
    return model.hidden * (2 if model.norm == "layernorm" else 1)


def mlp_projections(model: Model) -> int:
    """Width of the first MLP projection in units of f: 2 for SwiGLU (gate and up in one product), else 1.

    Parameters
    ----------
    model : Model

    Returns
    -------
    int
        (-).
    """
    return 2 if model.activation == "swiglu" else 1


def kv_heads_per_rank(model: Model, tp: Num) -> Num:
    """Key-value heads that a tensor-parallel rank holds; where TP exceeds them, each is held by several ranks.

    Parameters
    ----------
    model : Model
    tp : Num
        Tensor-parallel degree (-).

    Returns
    -------
    Num
        (-).
    """
    return larger(model.kv_heads / tp, 1.0)


def _attention_weights(model: Model, tp: Num) -> Num:
    """Weights of an attention's projections. Those down to latent vectors are on every rank alike."""
    h, heads, mla = model.hidden, model.heads / tp, model.mla
    if mla is None:
        return (2 * heads + 2 * kv_heads_per_rank(model, tp)) * model.head_dim * h
    down = h * (mla.q_lora + mla.kv_lora + mla.qk_rope_dim)
    return down + _up_weights(model, mla, heads) + heads * mla.v_dim * h


def _up_weights(model: Model, mla: Mla, heads: Num) -> Num:
    return heads * ((mla.q_lora or model.hidden) * mla.qk_dim + mla.kv_lora * (mla.qk_nope_dim + mla.v_dim))


def _attention(model: Model, tp: Num) -> Num:
    """An attention's weights, biases of QKV, norms inside it and sinks; a projection's own bias is left out."""
    each = norm_parameters(model) // model.hidden  # of a norm, by element
    others: Num = 0.0
    if model.mla is not None:
        others = each * (model.mla.q_lora + model.mla.kv_lora)
    elif model.bias or model.qkv_bias:
        others = (model.heads / tp + 2 * kv_heads_per_rank(model, tp)) * model.head_dim
    if model.qk_norm:
        others = others + 2 * each * model.head_dim
    if model.sinks:
        others = others + model.heads / tp
    return _attention_weights(model, tp) + others


def _mlp_weights(model: Model, ffn: Num) -> Num:
    return (mlp_projections(model) + 1) * model.hidden * ffn


def _mlp(model: Model, ffn: Num) -> Num:
    """Weights and biases of an MLP or an expert. The second bias is added to a sum over ranks: each has all of it."""
    return _mlp_weights(model, ffn) + (mlp_projections(model) * ffn + model.hidden if model.bias else 0.0)


def _layer(model: Model, tp: Num, moe: Moe | None, norms: int = 2) -> Num:
    """One layer without its experts, but with what chooses between them."""
    total = _attention(model, tp) + norms * norm_parameters(model) + (model.hidden if model.bias else 0.0)
    if moe is None:
        return total + _mlp(model, model.ffn / tp)
    total = total + model.hidden * (moe.experts + moe.shared_gate) + (moe.experts if model.bias else 0)
    return total + _mlp_weights(model, moe.shared_ffn / tp)  # which have no biases


def _norms(framework: Framework) -> int:
    """Norms of a layer: attention and MLP side by side share one."""
    return 1 if framework.parallel_block else 2


def _kinds(model: Model, content: ChunkContent) -> tuple[tuple[LayerKind, int], ...]:
    """Kinds of a chunk's layers, and how many it has of each."""
    return tuple(Counter(kinds_of(model, content)).items())


def layer_held(model: Model, layout: Layout, framework: Framework, kind: LayerKind = PLAIN) -> HeldParameters:
    """Count the parameters of one transformer layer that a rank holds.

    Column-parallel weights and biases and row-parallel weights are split; norms, projections down to latent vectors,
    what chooses between experts and the biases of the row-parallel projections are replicated.

    Parameters
    ----------
    model : Model
    layout : Layout
        Degrees may be arrays over layouts. Experts are dealt out over ``ep`` ranks and each is split over ``etp``;
        shared experts are split like any MLP.
    framework : Framework
    kind : LayerKind

    Returns
    -------
    HeldParameters
    """
    moe = model.moe if kind.moe else None
    shared = _layer(model, layout.tp, moe, _norms(framework))
    if moe is None:
        return HeldParameters(shared, 0.0 * shared)
    return HeldParameters(shared, moe.experts / layout.ep * _mlp(model, moe.ffn / layout.etp))


def layer_parameters(model: Model, layout: Layout, framework: Framework) -> Num:
    """Count the parameters of one transformer layer without experts that a tensor-parallel rank holds.

    Parameters
    ----------
    model : Model
    layout : Layout
    framework : Framework

    Returns
    -------
    Num
        (-).
    """
    return layer_held(model, layout, framework).shared


def mtp_parameters(model: Model, layout: Layout, framework: Framework) -> HeldParameters:
    """Count what a rank holds of one module of multi-token prediction.

    Parameters
    ----------
    model : Model
    layout : Layout
        Degrees may be arrays over layouts.
    framework : Framework

    Returns
    -------
    HeldParameters
        Norms of the token's embedding and of the hidden states, the projection of both together to one of them, a layer
        of the last kind, and the norm in front of the head. Embedding and head are the model's own.

    Notes
    -----
    arXiv 2412.19437 §2.2; the projection is split by columns (github NVIDIA/Megatron-LM,
    megatron/core/transformer/multi_token_prediction.py, eh_proj).
    """
    layer = layer_held(model, layout, framework, prediction_kind(model))
    return HeldParameters(layer.shared + mtp_own_parameters(model, layout), layer.expert)


def mtp_own_parameters(model: Model, layout: Layout) -> Num:
    """Count what a rank holds of such a module besides its layer.

    Parameters
    ----------
    model : Model
    layout : Layout

    Returns
    -------
    Num
        Three norms, and the projection's share (-).
    """
    return 3 * norm_parameters(model) + _prediction_projection(model, layout)


def _prediction_projection(model: Model, layout: Layout) -> Num:
    return 2 * model.hidden**2 / layout.tp


def held_parameters(model: Model, layout: Layout, framework: Framework, content: ChunkContent) -> HeldParameters:
    """Count the parameters that one rank holds of one chunk.

    Parameters
    ----------
    model : Model
    layout : Layout
        Degrees may be arrays over layouts. Experts are dealt out over ``ep`` ranks and each is split over ``etp``;
        shared experts are split like any MLP.
    framework : Framework
    content : ChunkContent
        Its layers, modules of multi-token prediction and ends.

    Returns
    -------
    HeldParameters
    """
    held = [(layers, layer_held(model, layout, framework, kind)) for kind, layers in _kinds(model, content)]
    if content.mtp:
        held.append((content.mtp, mtp_parameters(model, layout, framework)))
    shared: Num = 0.0
    expert: Num = 0.0 * layout.tp
    for count, one in held:
        shared, expert = shared + count * one.shared, expert + count * one.expert
    if content.embedding:
        shared = shared + embedding_parameters(model, layout, framework)
    if content.head:
        shared = shared + head_parameters(model, layout, framework)
    return HeldParameters(shared, expert)


def linear_weights(model: Model, layout: Layout, content: ChunkContent) -> Num:
    """Count the weights of the linear layers of one chunk's transformer blocks that one rank holds.

    Parameters
    ----------
    model : Model
    layout : Layout
    content : ChunkContent

    Returns
    -------
    Num
        (-). Neither what chooses between experts nor the LM head: all that runs below 16 bits where anything does.
    """
    mixed = sum(layers for kind, layers in _kinds(model, content) if kind.moe)
    plain = content.layers - mixed
    total: Num = 0.0
    if content.mtp:
        mixed, plain = (mixed + content.mtp, plain) if prediction_kind(model).moe else (mixed, plain + content.mtp)
        total = content.mtp * _prediction_projection(model, layout)
    total = total + (mixed + plain) * _attention_weights(model, layout.tp)
    total = total + plain * _mlp_weights(model, model.ffn / layout.tp)
    if model.moe is None:
        return total
    experts = model.moe.experts / layout.ep * _mlp_weights(model, model.moe.ffn / layout.etp)
    return total + mixed * (experts + _mlp_weights(model, model.moe.shared_ffn / layout.tp))


def layer_tensors(model: Model, framework: Framework, kind: LayerKind = PLAIN) -> int:
    """Count the parameter tensors of one layer: as many kernels as an unfused pass over them launches.

    Parameters
    ----------
    model : Model
    framework : Framework
    kind : LayerKind

    Returns
    -------
    int
        (-), experts left out.
    """
    norm = 2 if model.norm == "layernorm" else 1
    attention = _attention_tensors(model, norm) + 1 + model.bias + model.sinks  # the output projection is the one
    norms = _norms(framework) * norm
    if model.moe is None or not kind.moe:
        return attention + 2 * (1 + model.bias) + norms
    shared = 2 if model.moe.shared_ffn else 0
    return attention + 1 + model.bias + model.moe.shared_gate + shared + norms


def _attention_tensors(model: Model, norm: int) -> int:
    """Tensors in front of the attention core."""
    if model.mla is not None:
        return (2 + 2 * norm + 2) if model.mla.q_lora else (2 + norm + 1)
    return 1 + (model.bias or model.qkv_bias) + (2 * norm if model.qk_norm else 0)


def padded_vocab(model: Model, framework: Framework, tp: Num) -> Num:
    """Vocabulary padded so that every tensor-parallel rank holds an equal, aligned part.

    Parameters
    ----------
    model : Model
    framework : Framework
        Its ``vocab_multiple`` is what the part of a rank is a multiple of.
    tp : Num
        Tensor-parallel degree (-).

    Returns
    -------
    Num
        (-).

    Notes
    -----
    arXiv 1909.08053 §5.1: 50,257 entries are padded to a multiple of 128 x 8, 51,200.
    """
    multiple = framework.vocab_multiple * tp
    return -(-model.vocab // multiple) * multiple


def position_parameters(model: Model) -> int:
    """Count a learned position table; nothing with RoPE.

    Parameters
    ----------
    model : Model

    Returns
    -------
    int
        (-).
    """
    return model.max_positions * model.hidden if model.position == "learned" else 0


def table_parameters(model: Model, layout: Layout, framework: Framework) -> Num:
    """Count one vocabulary table (embedding or LM head) on a tensor-parallel rank: V/t rows of h.

    Parameters
    ----------
    model : Model
    layout : Layout
    framework : Framework

    Returns
    -------
    Num
        (-).
    """
    return padded_vocab(model, framework, layout.tp) / layout.tp * model.hidden


def embedding_parameters(model: Model, layout: Layout, framework: Framework) -> Num:
    """Count what a rank of the first stage holds besides layers: its part of the table, and all positions.

    Parameters
    ----------
    model : Model
    layout : Layout
    framework : Framework

    Returns
    -------
    Num
        (-).
    """
    return table_parameters(model, layout, framework) + position_parameters(model)


def head_parameters(model: Model, layout: Layout, framework: Framework) -> Num:
    """Count what a rank of the last stage holds besides layers: the final norm and its part of the LM head.

    A tied head is the embedding itself where both are on one stage, and a copy of it otherwise.

    Parameters
    ----------
    model : Model
    layout : Layout
    framework : Framework

    Returns
    -------
    Num
        (-).
    """
    table = table_parameters(model, layout, framework)
    own = where(layout.pp > 1, table, table * 0.0) if model.tied_embeddings else table
    return norm_parameters(model) + own


def unsplit_layer_parameters(model: Model, *, moe: bool = False) -> int:
    """Count the parameters of one transformer layer: 12 h² + 13 h for GPT.

    Parameters
    ----------
    model : Model
    moe : bool
        Whether it is a layer with experts.

    Returns
    -------
    int
        (-).
    """
    if not moe or model.moe is None:
        return round(float(_layer(model, 1, None)))
    return round(float(_layer(model, 1, model.moe))) + model.moe.experts * expert_parameters(model)


def expert_parameters(model: Model) -> int:
    """Count the parameters of one expert; nothing in a dense model.

    Parameters
    ----------
    model : Model

    Returns
    -------
    int
        (-).
    """
    return 0 if model.moe is None else round(float(_mlp(model, model.moe.ffn)))


def attention_parameters(model: Model) -> int:
    """Count the parameters of one layer's attention, its norm left out.

    Parameters
    ----------
    model : Model

    Returns
    -------
    int
        (-).
    """
    return round(float(_attention(model, 1)))


def token_weights(model: Model, *, moe: bool = False) -> int:
    """Count the weights of one layer's products that a token meets: 12 h² for GPT.

    Parameters
    ----------
    model : Model
    moe : bool
        Whether it is a layer with experts, of which a token meets ``top_k``.

    Returns
    -------
    int
        (-).
    """
    inside = expert_token_weights(model) if moe else _mlp_weights(model, model.ffn)
    return round(float(_attention_weights(model, 1) + inside))


def expert_token_weights(model: Model) -> int:
    """Count the weights that a token meets in the place of an MLP: router, its experts, shared ones.

    Parameters
    ----------
    model : Model

    Returns
    -------
    int
        (-); 0 in a dense model.
    """
    moe = model.moe
    if moe is None:
        return 0
    chosen = round(float(_mlp_weights(model, moe.top_k * moe.ffn)))
    return chosen + model.hidden * (moe.experts + moe.shared_gate) + shared_expert_weights(model)


def shared_expert_weights(model: Model) -> int:
    """Count the weights of a layer's shared experts.

    Parameters
    ----------
    model : Model

    Returns
    -------
    int
        (-); 0 where there are none.
    """
    return 0 if model.moe is None else round(float(_mlp_weights(model, model.moe.shared_ffn)))


def up_projection_weights(model: Model) -> int:
    """Count the weights of a layer's projections from latent vectors up to heads.

    Parameters
    ----------
    model : Model

    Returns
    -------
    int
        Queries projected at once among them (-); 0 without latent attention.
    """
    return 0 if model.mla is None else round(float(_up_weights(model, model.mla, model.heads)))


def expert_layers(model: Model) -> int:
    """Count the layers with experts.

    Parameters
    ----------
    model : Model

    Returns
    -------
    int
        (-).
    """
    return sum(is_expert_layer(model, index) for index in range(model.layers))


def model_parameters(model: Model) -> int:
    """Count the parameters of the whole model, without padding of the vocabulary.

    Parameters
    ----------
    model : Model

    Returns
    -------
    int
        (-).

    Notes
    -----
    For GPT this is eq. 2 of arXiv 2104.04473, P = 12 l h² (1 + 13/(12 h) + (V + s)/(12 l h)), and the 2 h of the
    final norm, which that equation leaves out.
    """
    tables = (1 if model.tied_embeddings else 2) * model.vocab * model.hidden + position_parameters(model)
    mixed = expert_layers(model)
    layers = (model.layers - mixed) * unsplit_layer_parameters(model)
    return layers + mixed * unsplit_layer_parameters(model, moe=True) + tables + norm_parameters(model)


def active_parameters(model: Model) -> int:
    """Count the parameters that one token meets: all, but of the experts only those it goes to.

    Parameters
    ----------
    model : Model

    Returns
    -------
    int
        (-), both vocabulary tables included.
    """
    idle = 0 if model.moe is None else model.moe.experts - model.moe.top_k
    return model_parameters(model) - expert_layers(model) * idle * expert_parameters(model)
