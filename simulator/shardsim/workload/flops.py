"""Floating point operations of one iteration, in the convention of Megatron: matrix products only, 2 a multiply-add.

The masked half of the attention scores is counted too, as Megatron and PaLM do; norms, softmax and the optimizer are
not. The equations of the papers are written for GPT (heads x head_dim = h, f = 4 h, no grouped queries); the functions
here hold for grouped-query and latent attention, SwiGLU, experts and any head width, and reduce to them.
"""

from __future__ import annotations

from shardsim.values.num import Num
from shardsim.values.training import Batch, Layout, Model
from shardsim.workload.parameters import expert_layers, mlp_projections, token_weights
from shardsim.workload.recompute import recomputed_in_all


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
    both = 2 * model.head_dim if model.mla is None else model.mla.qk_dim + model.mla.v_dim
    return 2 * sequences * seq_len * seq_len * model.heads * both


def layer_forward_flop(model: Model, sequences: Num, seq_len: int, *, moe: bool = False) -> Num:
    """Count the forward pass of one layer: 24 B s h² + 4 B s² h for GPT.

    Parameters
    ----------
    model : Model
    sequences : Num
        B (-).
    seq_len : int
        s (-).
    moe : bool
        Whether it is a layer with experts.

    Returns
    -------
    Num
        (-).

    Notes
    -----
    arXiv 2205.05198, appendix A: QKV 6, projection 2, MLP 16 B s h², scores and PV 4 B s² h.
    """
    products = 2 * sequences * seq_len * token_weights(model, moe=moe)
    return products + attention_core_flop(model, sequences, seq_len)


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
    mixed = expert_layers(model)
    plain = (model.layers - mixed) * layer_forward_flop(model, sequences, seq_len)
    return plain + mixed * layer_forward_flop(model, sequences, seq_len, moe=True)


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
    shape = (model, batch.global_batch, batch.seq_len)
    return 3.0 * (layers_forward_flop(*shape) + head_forward_flop(*shape))


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
    if layout.recompute == "full":
        return recomputed_in_all(model, layout) / model.layers * layers_forward_flop(*shape)
    if layout.recompute == "none":
        return 0.0
    mixed, mlp = expert_layers(model), mlp_forward_flop(*shape)
    experts = layer_forward_flop(*shape, moe=True) - layer_forward_flop(*shape) + mlp
    repeated = {
        "core_attn": model.layers * cores * attention_core_flop(*shape),
        "mlp": (model.layers - mixed) * mlp,
        "moe": mixed * experts,
    }
    return sum((repeated.get(module, 0.0) for module in layout.recompute_modules), start=0.0)
