"""Parameters of a layer, of the ends, of a model; of one tensor-parallel rank, of one chunk or pipeline stage.

Whole-model counts are exact integers. Per-rank counts are exact where the layout is valid (the degrees divide).
"""

from __future__ import annotations

from dataclasses import dataclass

from shardsim.values.num import Num, larger, where
from shardsim.values.training import Framework, Layout, Model, Moe
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


def is_expert_layer(model: Model, index: int) -> bool:
    """Tell whether a layer has experts.

    Parameters
    ----------
    model : Model
    index : int
        Counted from 0 (-).

    Returns
    -------
    bool
    """
    if model.moe is None or index < model.moe.first_dense:
        return False
    return (index + 1 - model.moe.first_dense) % model.moe.every == 0


def _attention_weights(model: Model, tp: Num) -> Num:
    """Weights of an attention's projections. Those down to latent vectors are on every rank alike."""
    h, heads, mla = model.hidden, model.heads / tp, model.mla
    if mla is None:
        return (2 * heads + 2 * kv_heads_per_rank(model, tp)) * model.head_dim * h
    down = h * (mla.q_lora + mla.kv_lora + mla.qk_rope_dim)
    up = heads * ((mla.q_lora or h) * mla.qk_dim + mla.kv_lora * (mla.qk_nope_dim + mla.v_dim))
    return down + up + heads * mla.v_dim * h


def _attention(model: Model, tp: Num) -> Num:
    """An attention's weights, biases of QKV, and norms of latent vectors; a projection's own bias is left out."""
    others: Num = 0.0
    if model.mla is not None:
        others = norm_parameters(model) // model.hidden * (model.mla.q_lora + model.mla.kv_lora)
    elif model.bias or model.qkv_bias:
        others = (model.heads / tp + 2 * kv_heads_per_rank(model, tp)) * model.head_dim
    return _attention_weights(model, tp) + others


def _mlp_weights(model: Model, ffn: Num) -> Num:
    return (mlp_projections(model) + 1) * model.hidden * ffn


def _layer(model: Model, tp: Num, moe: Moe | None, norms: int = 2) -> Num:
    """One layer without its experts, but with what chooses between them."""
    total = _attention(model, tp) + norms * norm_parameters(model)
    if moe is not None:
        return total + model.hidden * (moe.experts + moe.shared_gate) + _mlp_weights(model, moe.shared_ffn / tp)
    biases = mlp_projections(model) * model.ffn / tp + 2 * model.hidden if model.bias else 0.0
    return total + _mlp_weights(model, model.ffn / tp) + biases


def _norms(framework: Framework) -> int:
    """Norms of a layer: attention and MLP side by side share one."""
    return 1 if framework.parallel_block else 2


def _expert_layers_of(model: Model, content: ChunkContent) -> int:
    return sum(is_expert_layer(model, index) for index in range(content.first, content.first + content.layers))


def layer_parameters(model: Model, layout: Layout, framework: Framework) -> Num:
    """Count the parameters of one transformer layer without experts that a tensor-parallel rank holds.

    Column-parallel weights and biases and row-parallel weights are split; norms and the biases of the row-parallel
    projections are replicated.

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
    return _layer(model, layout.tp, None, _norms(framework))


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
        Its layers and ends.

    Returns
    -------
    HeldParameters
    """
    experts = _expert_layers_of(model, content)
    shared = (content.layers - experts) * _layer(model, layout.tp, None, _norms(framework))
    expert: Num = 0.0 * shared
    if model.moe is not None:
        shared = shared + experts * _layer(model, layout.tp, model.moe, _norms(framework))
        expert = experts * model.moe.experts / layout.ep * _mlp_weights(model, model.moe.ffn / layout.etp)
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
    mixed = _expert_layers_of(model, content)
    total = content.layers * _attention_weights(model, layout.tp)
    total = total + (content.layers - mixed) * _mlp_weights(model, model.ffn / layout.tp)
    if model.moe is None:
        return total
    experts = model.moe.experts / layout.ep * _mlp_weights(model, model.moe.ffn / layout.etp)
    return total + mixed * (experts + _mlp_weights(model, model.moe.shared_ffn / layout.tp))


def layer_tensors(model: Model, framework: Framework) -> int:
    """Count the parameter tensors of one layer, which is how many kernels an unfused pass over them launches.

    Parameters
    ----------
    model : Model
    framework : Framework

    Returns
    -------
    int
        (-).
    """
    biases = 4 if model.bias else int(model.qkv_bias)
    return 4 + biases + _norms(framework) * (2 if model.norm == "layernorm" else 1)


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
    return 0 if model.moe is None else round(float(_mlp_weights(model, model.moe.ffn)))


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
    attention = _attention_weights(model, 1)
    if not moe or model.moe is None:
        return round(float(attention + _mlp_weights(model, model.ffn)))
    chosen = _mlp_weights(model, model.moe.top_k * model.moe.ffn + model.moe.shared_ffn)
    return round(float(attention + chosen + model.hidden * (model.moe.experts + model.moe.shared_gate)))


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
