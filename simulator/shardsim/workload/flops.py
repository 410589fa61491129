"""Floating point operations of one iteration, in the convention of Megatron: matrix products only, 2 a multiply-add.

The masked half of the attention scores is counted too, as PaLM does, and as Megatron did; norms, softmax and the
optimizer are not. Where attention sees a window, every query counts as many keys as that has (so github
NVIDIA-NeMo/Megatron-Bridge, training/utils/flop_utils.py, which halves both). The equations of the papers are written
for GPT (heads x head_dim = h, f = 4 h, no grouped queries); the functions here hold for grouped-query and latent
attention, SwiGLU, experts and any head width, and reduce to them.
"""

from __future__ import annotations

from collections import Counter

from shardsim.values.num import Num
from shardsim.values.training import Batch, Layout, Model
from shardsim.workload.kinds import PLAIN, LayerKind, layer_kind, prediction_kind
from shardsim.workload.parameters import (
    expert_token_weights,
    mlp_projections,
    shared_expert_weights,
    token_weights,
    up_projection_weights,
)
from shardsim.workload.recompute import recomputed_in_all


def attention_core_flop(model: Model, sequences: Num, seq_len: int, window: int = 0) -> Num:
    """Count the forward score products of one layer, QK^T and PV: 4 B s² a d, or of a window of w keys 4 B s w a d.

    Parameters
    ----------
    model : Model
    sequences : Num
        B (-).
    seq_len : int
        s (-).
    window : int
        Keys that a query sees (-); 0 for all.

    Returns
    -------
    Num
        (-).

    Notes
    -----
    arXiv 2205.05198, appendix A.
    """
    keys = min(window, seq_len) if window else seq_len
    both = 2 * model.head_dim if model.mla is None else model.mla.qk_dim + model.mla.v_dim
    return 2 * sequences * seq_len * keys * model.heads * both


def layer_forward_flop(model: Model, sequences: Num, seq_len: int, kind: LayerKind = PLAIN) -> Num:
    """Count the forward pass of one layer: 24 B s h² + 4 B s² h for GPT.

    Parameters
    ----------
    model : Model
    sequences : Num
        B (-).
    seq_len : int
        s (-).
    kind : LayerKind

    Returns
    -------
    Num
        (-).

    Notes
    -----
    arXiv 2205.05198, appendix A: QKV 6, projection 2, MLP 16 B s h², scores and PV 4 B s² h.
    """
    products = 2 * sequences * seq_len * token_weights(model, moe=kind.moe)
    return products + attention_core_flop(model, sequences, seq_len, kind.window)


def layers_forward_flop(model: Model, sequences: Num, seq_len: int) -> Num:
    """Count the forward pass of all layers.

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
    """
    kinds = _kinds(model, model.layers)
    total: Num = sum(count * layer_forward_flop(model, sequences, seq_len, kind) for kind, count in kinds.items())
    return total


def _kinds(model: Model, layers: int) -> Counter[LayerKind]:
    """How many layers of each kind the first so many are."""
    return Counter(layer_kind(model, index) for index in range(layers))


def _predicting(model: Model) -> Counter[LayerKind]:
    """How many layers of each kind modules of multi-token prediction have."""
    return Counter({prediction_kind(model): model.mtp})


def prediction_forward_flop(model: Model, sequences: Num, seq_len: int) -> Num:
    """Count the forward pass of all modules of multi-token prediction: layer, projection 4 B s h², LM head.

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
    """
    layer = layer_forward_flop(model, sequences, seq_len, prediction_kind(model))
    projection = 4 * sequences * seq_len * model.hidden**2
    return model.mtp * (layer + projection + head_forward_flop(model, sequences, seq_len))


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
    Eq. 7 of arXiv 2205.05198, 72 B L s h² (1 + s/(6 h) + V/(12 h L)), for GPT. Multi-token prediction counts, where the
    model has it (github NVIDIA/Megatron-LM, megatron/training/training.py, num_floating_point_operations).
    """
    shape = (model, batch.global_batch, batch.seq_len)
    return 3.0 * (layers_forward_flop(*shape) + head_forward_flop(*shape) + prediction_forward_flop(*shape))


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
    return 3.0 * _cores(model, batch)


def _cores(model: Model, batch: Batch) -> Num:
    """One forward pass of all score products."""
    kinds = _kinds(model, model.layers) + _predicting(model)
    total: Num = sum(
        count * attention_core_flop(model, batch.global_batch, batch.seq_len, kind.window)
        for kind, count in kinds.items()
    )
    return total


def hardware_flop(model: Model, batch: Batch, layout: Layout) -> Num:
    """Count one iteration with recomputation, by the published equations on which HFU is quoted.

    Parameters
    ----------
    model : Model
    batch : Batch
    layout : Layout
        What it recomputes.

    Returns
    -------
    Num
        (-).

    Notes
    -----
    Full: eq. 3 of arXiv 2104.04473, 96 B l s h² (1 + s/(6 h) + V/(16 l h)), where every layer is recomputed. Selective:
    eq. 8 of arXiv 2205.05198, 72 B L s h² (1 + s/(3 h) + V/(12 h L)), for the attention core. Eq. 8 counts the core
    three times over (12 B s² h a layer), although one forward pass of it (4 B s² h) is repeated; `executed_flop` counts
    what runs.
    """
    return model_flop(model, batch) + _repeated_flop(model, batch, layout, cores=3.0)


def executed_flop(model: Model, batch: Batch, layout: Layout) -> Num:
    """Count the matrix products that run in one iteration: each recomputed forward pass once.

    Fused attention, which recomputes scores inside its backward kernel and may skip the masked half, is counted by its
    operator instead.

    Parameters
    ----------
    model : Model
    batch : Batch
    layout : Layout
        What it recomputes.

    Returns
    -------
    Num
        (-).
    """
    return model_flop(model, batch) + _repeated_flop(model, batch, layout, cores=1.0)


def mlp_forward_flop(model: Model, sequences: Num, seq_len: int) -> Num:
    """Count the forward pass of the MLP of one layer: 16 B s h² for GPT.

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
    """
    return 2 * sequences * seq_len * model.hidden * (mlp_projections(model) + 1) * model.ffn


def _repeated_flop(model: Model, batch: Batch, layout: Layout, cores: float) -> Num:
    shape = (model, batch.global_batch, batch.seq_len)
    further = prediction_kind(model)
    if layout.recompute == "full":
        layers = recomputed_in_all(model, layout) / model.layers * layers_forward_flop(*shape)
        return layers + model.mtp * layer_forward_flop(*shape, further)
    if layout.recompute == "none":
        return 0.0
    kinds = _kinds(model, model.layers) + _predicting(model)
    every = model.layers + model.mtp
    mixed = sum(count for kind, count in kinds.items() if kind.moe)
    rows = 2 * batch.global_batch * batch.seq_len
    shared = mixed * rows * shared_expert_weights(model)
    repeated = {
        "core_attn": cores * _cores(model, batch),
        "mla_up_proj": every * rows * up_projection_weights(model),
        "mlp": (every - mixed) * mlp_forward_flop(*shape),
        "moe": mixed * rows * expert_token_weights(model),
        "shared_experts": 0.0 if "moe" in layout.recompute_modules else shared,
    }
    return sum((repeated.get(module, 0.0) for module in layout.recompute_modules), start=0.0)
