"""Floating point operations of one iteration, in the convention of Megatron: matrix products only, 2 a multiply-add.

The masked half of the attention scores is counted too, as Megatron and PaLM do; norms, softmax and the optimizer are
not. The equations of the papers are written for GPT (heads x head_dim = h, f = 4 h, no grouped queries); the functions
here hold for grouped-query attention, SwiGLU and any head width, and reduce to them.
"""

from __future__ import annotations

from shardsim.values.num import Num
from shardsim.values.training import Batch, Model, Recompute
from shardsim.workload.parameters import mlp_projections


def attention_core_flop(model: Model, sequences: Num, seq_len: int) -> Num:
    """Count the forward score products of one layer, QK^T and PV: 4 B s² a d.

    Parameters
    ----------
    model : Model
    sequences : Num
        B (-).
    seq_len : int
        s (-).

    Returns
    -------
    Num
        (-).

    Notes
    -----
    arXiv 2205.05198, appendix A.
    """
    return 4 * sequences * seq_len * seq_len * model.heads * model.head_dim


def layer_forward_flop(model: Model, sequences: Num, seq_len: int) -> Num:
    """Count the forward pass of one layer: 24 B s h² + 4 B s² h for GPT.

    Parameters
    ----------
    model : Model
    sequences : Num
        B (-).
    seq_len : int
        s (-).

    Returns
    -------
    Num
        (-).

    Notes
    -----
    arXiv 2205.05198, appendix A: QKV 6, projection 2, MLP 16 B s h², scores and PV 4 B s² h.
    """
    heads = 2 * model.heads + 2 * model.kv_heads  # Q, K, V and the output projection
    width = heads * model.head_dim + (mlp_projections(model) + 1) * model.ffn
    return 2 * sequences * seq_len * model.hidden * width + attention_core_flop(model, sequences, seq_len)


def head_forward_flop(model: Model, sequences: Num, seq_len: int, vocab: Num | None = None) -> Num:
    """Count the forward pass of the LM head: 2 B s h V.

    Parameters
    ----------
    model : Model
    sequences : Num
        B (-).
    seq_len : int
        s (-).
    vocab : Num, optional
        V (-); the model's own, unpadded, by default.

    Returns
    -------
    Num
        (-).
    """
    return 2 * sequences * seq_len * model.hidden * (model.vocab if vocab is None else vocab)


def model_flop(model: Model, batch: Batch) -> Num:
    """Count one iteration without recomputation; the backward pass is twice the forward pass.

    Parameters
    ----------
    model : Model
    batch : Batch

    Returns
    -------
    Num
        (-).

    Notes
    -----
    Eq. 7 of arXiv 2205.05198, 72 B L s h² (1 + s/(6 h) + V/(12 h L)), for GPT.
    """
    layer = layer_forward_flop(model, batch.global_batch, batch.seq_len)
    return 3.0 * (model.layers * layer + head_forward_flop(model, batch.global_batch, batch.seq_len))


def attention_flop(model: Model, batch: Batch) -> Num:
    """Count the score products of one iteration without recomputation, a part of `model_flop`: 12 B s² a d a layer.

    Parameters
    ----------
    model : Model
    batch : Batch

    Returns
    -------
    Num
        (-).
    """
    return 3.0 * model.layers * attention_core_flop(model, batch.global_batch, batch.seq_len)


def hardware_flop(model: Model, batch: Batch, recompute: Recompute) -> Num:
    """Count one iteration with recomputation, by the published equations on which HFU is quoted.

    Parameters
    ----------
    model : Model
    batch : Batch
    recompute : {"none", "selective", "full"}

    Returns
    -------
    Num
        (-).

    Notes
    -----
    Full: eq. 3 of arXiv 2104.04473, 96 B l s h² (1 + s/(6 h) + V/(16 l h)). Selective: eq. 8 of arXiv 2205.05198,
    72 B L s h² (1 + s/(3 h) + V/(12 h L)). Eq. 8 counts the attention core three times over (12 B s² h a layer),
    although one forward pass of it (4 B s² h) is repeated; `executed_flop` counts what runs.
    """
    core = attention_core_flop(model, batch.global_batch, batch.seq_len)
    layer = layer_forward_flop(model, batch.global_batch, batch.seq_len)
    extra = {"none": 0.0, "selective": 3.0 * core, "full": 1.0 * layer}[recompute]
    return model_flop(model, batch) + model.layers * extra


def executed_flop(model: Model, batch: Batch, recompute: Recompute) -> Num:
    """Count the matrix products that run in one iteration: each recomputed forward pass once.

    Fused attention, which recomputes scores inside its backward kernel and may skip the masked half, is counted by its
    operator instead.

    Parameters
    ----------
    model : Model
    batch : Batch
    recompute : {"none", "selective", "full"}

    Returns
    -------
    Num
        (-).
    """
    core = attention_core_flop(model, batch.global_batch, batch.seq_len)
    layer = layer_forward_flop(model, batch.global_batch, batch.seq_len)
    extra = {"none": 0.0, "selective": 1.0 * core, "full": 1.0 * layer}[recompute]
    return model_flop(model, batch) + model.layers * extra
