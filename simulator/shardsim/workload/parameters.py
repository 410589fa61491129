"""Parameters of a layer, of the ends, of a model; of one tensor-parallel rank, of one pipeline stage.

Whole-model counts are exact integers. Per-rank counts are exact where the layout is valid (the degrees divide).
"""

from __future__ import annotations

from shardsim.values.num import Num, larger, where
from shardsim.values.training import Framework, Layout, Model


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


def _layer(model: Model, tp: Num) -> Num:
    h, d = model.hidden, model.head_dim
    qkv = (model.heads / tp + 2 * kv_heads_per_rank(model, tp)) * d
    up = mlp_projections(model) * model.ffn / tp
    weights = qkv * h + model.heads * d / tp * h + up * h + model.ffn / tp * h
    biases: Num = 0.0
    if model.bias or model.qkv_bias:
        biases = biases + qkv
    if model.bias:
        biases = biases + up + 2 * h
    return weights + biases + 2 * norm_parameters(model)


def layer_parameters(model: Model, layout: Layout, framework: Framework) -> Num:  # noqa: ARG001  # as its siblings
    """Count the parameters of one transformer layer that a tensor-parallel rank holds.

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
    return _layer(model, layout.tp)


def layer_tensors(model: Model) -> int:
    """Count the parameter tensors of one layer, which is how many kernels an unfused pass over them launches.

    Parameters
    ----------
    model : Model

    Returns
    -------
    int
        (-).
    """
    biases = 4 if model.bias else int(model.qkv_bias)
    return 4 + biases + 2 * (2 if model.norm == "layernorm" else 1)


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


def unsplit_layer_parameters(model: Model) -> int:
    """Count the parameters of one transformer layer: 12 h² + 13 h for GPT.

    Parameters
    ----------
    model : Model

    Returns
    -------
    int
        (-).
    """
    return round(float(_layer(model, 1)))


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
    return model.layers * unsplit_layer_parameters(model) + tables + norm_parameters(model)


def stage_parameters(model: Model, layout: Layout, framework: Framework, stage: int) -> Num:
    """Count the parameters that one rank of a pipeline stage holds, for an even split of the layers.

    Parameters
    ----------
    model : Model
    layout : Layout
        Degrees may be arrays over layouts.
    framework : Framework
    stage : int
        Counted from 0.

    Returns
    -------
    Num
        (-).
    """
    total = model.layers / layout.pp * layer_parameters(model, layout, framework)
    if stage == 0:
        total = total + embedding_parameters(model, layout, framework)
    head = head_parameters(model, layout, framework)
    return total + where(layout.pp == stage + 1, head, head * 0.0)
