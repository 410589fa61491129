"""Operators of multi-head latent attention outside its core: down to latent vectors, and up to heads.

Queries, and keys and values together, are projected down, normalised, and projected up to the heads of a rank (arXiv
2405.04434 §2.1). Projections down are on every tensor-parallel rank alike, and work on the tokens that it has outside
the others: under sequence parallelism it is latent vectors that are gathered in front of the projections up, a small
part of the hidden states. A part of each key carries the positions, is the same for all heads, and comes straight out
of the projection down. After github NVIDIA/Megatron-LM, megatron/core/transformer/multi_latent_attention.py.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from shardsim.values.num import Num
from shardsim.values.operators import Collective, Elementwise, GradientRole, Operator
from shardsim.values.training import Layout, Mla, Model
from shardsim.workload import linear, pointwise, quantization
from shardsim.workload.parallel import column_backward, column_forward, converted
from shardsim.workload.shapes import Shapes


class _Latent(NamedTuple):
    """One latent vector, on its way down to it and up from it."""

    name: str
    rank: int  # its width
    beside: int  # what comes out of the projection down besides
    heads: int  # width of a head that it is projected up to


def _latents(mla: Mla) -> tuple[_Latent, ...]:
    keys = _Latent("kv", mla.kv_lora, mla.qk_rope_dim, mla.qk_nope_dim + mla.v_dim)
    return (_Latent("q", mla.q_lora, 0, mla.qk_dim), keys) if mla.q_lora else (keys,)


def _mla(model: Model) -> Mla:
    if model.mla is None:
        raise ValueError(f"{model.name} has no latent attention")
    return model.mla


def latent_forward(model: Model, layout: Layout, sizes: Shapes, uses: Num | None) -> tuple[Operator, ...]:
    """List what latent attention does between the layer's norm and the attention core.

    Parameters
    ----------
    model : Model
        With ``mla``.
    layout : Layout
        Degrees may be arrays over layouts.
    sizes : Shapes
    uses : Num or None
        Micro-batches that use a weight's conversion below 16 bits (-); None where there is one already.

    Returns
    -------
    tuple of Operator
    """
    mla = _mla(model)
    down = [one for latent in _latents(mla) for one in _down_forward(latent, sizes, uses)]
    return (*down, *_rope_key(mla, layout, sizes, "forward"), *up_forward(model, layout, sizes, uses))


def up_forward(model: Model, layout: Layout, sizes: Shapes, uses: Num | None) -> tuple[Operator, ...]:
    """List what ``mla_up_proj`` repeats: projections up to heads with their norms, rotary embedding, copies of keys.

    Parameters
    ----------
    model : Model
    layout : Layout
    sizes : Shapes
    uses : Num or None

    Returns
    -------
    tuple of Operator
    """
    mla = _mla(model)
    at_once = () if mla.q_lora else column_forward(_queries(mla, sizes), "attention", layout, sizes, uses)
    up = [
        one
        for latent in _latents(mla)
        for one in column_forward(*_up(latent, sizes), layout, _narrowed(latent, sizes), uses)
    ]
    norms = [one for latent in _latents(mla) for one in pointwise.norm_forward(*_norm(latent, model, sizes))]
    return (*norms, *at_once, *up, *_arranged(mla, sizes, "forward"))


def latent_backward(model: Model, layout: Layout, sizes: Shapes) -> tuple[Operator, ...]:
    """List what it does backward, from gradients of queries, keys and values to that of the norm's output.

    Parameters
    ----------
    model : Model
    layout : Layout
    sizes : Shapes

    Returns
    -------
    tuple of Operator
    """
    mla = _mla(model)
    latents = _latents(mla)[::-1]
    up = [one for latent in latents for one in column_backward(*_up(latent, sizes), layout, _narrowed(latent, sizes))]
    norms = [one for latent in latents for one in pointwise.norm_backward(*_norm(latent, model, sizes))]
    down = [one for latent in latents for one in _down_backward(latent, sizes)]
    at_once = () if mla.q_lora else column_backward(_queries(mla, sizes), "attention", layout, sizes)
    return (
        *_arranged(mla, sizes, "dgrad"),
        *up,
        *at_once,
        *norms,
        *_rope_key(mla, layout, sizes, "dgrad"),
        *down,
        *pointwise.residual_gradient("latent", sizes),  # two projections have the same input
    )


def _queries(mla: Mla, sizes: Shapes) -> tuple[tuple[str, Num], ...]:
    return (("q", sizes.heads * mla.qk_dim),)


def _up(latent: _Latent, sizes: Shapes) -> tuple[tuple[tuple[str, Num], ...], str]:
    return ((f"{latent.name} up", sizes.heads * latent.heads),), f"{latent.name} latent"


def _narrowed(latent: _Latent, sizes: Shapes) -> Shapes:
    """The same tokens, as wide as a latent vector."""
    return replace(sizes, hidden=latent.rank)


def _norm(latent: _Latent, model: Model, sizes: Shapes) -> tuple[str, Model, Shapes]:
    return f"{latent.name} latent norm", model, _narrowed(latent, sizes)


def _down_forward(latent: _Latent, z: Shapes, uses: Num | None) -> tuple[Operator, ...]:
    name, width = f"{latent.name} down", latent.rank + latent.beside
    return (
        *quantization.operand(f"{name} input", z.local_hidden, z),
        *converted(name, z.hidden * width, z, uses),
        linear.forward(name, z.local_tokens, z.hidden, width, z, quantization.data_type(z)),
    )


def _down_backward(latent: _Latent, z: Shapes) -> tuple[Operator, ...]:
    name, width, narrow = f"{latent.name} down", latent.rank + latent.beside, quantization.data_type(z)
    return (
        *quantization.operand(f"{name} gradient", z.local_tokens * width, z, "dgrad"),
        linear.input_gradient(name, z.local_tokens, z.hidden, width, z, narrow),
        linear.weight_gradient(name, z.local_tokens, z.hidden, width, z, narrow),
    )


def _rope_key(mla: Mla, layout: Layout, z: Shapes, role: GradientRole) -> tuple[Operator, ...]:
    """The part of keys that all heads share, on all tokens; backward, the sum of what the heads of each rank give."""
    size = z.tokens * mla.qk_rope_dim * z.element_bytes
    if role == "forward":
        return (Collective("rope key gather", "all_gather", "tp", size),) if layout.sp else ()
    if layout.sp:
        return (Collective("rope key gradient scatter", "reduce_scatter", "tp", size, role),)
    return (Collective("rope key gradient all-reduce", "all_reduce", "tp", size, role),)


def _arranged(mla: Mla, z: Shapes, role: GradientRole) -> tuple[Operator, ...]:
    """Rotation of queries in place; keys and values out of their product, with a copy of the shared part for each head.

    Backward the same bytes go the other way: gradients of the copies are summed as they are read. Most of the second
    is copied as it is, and counts as a copy.

    github NVIDIA/Megatron-LM, megatron/core/fusions/fused_mla_yarn_rope_apply.py: one kernel each.
    """
    queries = 2 * z.tokens * z.heads * mla.qk_rope_dim
    product = z.tokens * (z.heads * (mla.qk_nope_dim + mla.v_dim) + mla.qk_rope_dim)
    keys = z.tokens * z.heads * (mla.qk_dim + mla.v_dim)
    rotate = Elementwise("rotary embedding", "rope", queries * z.element_bytes, role=role)
    spread = Elementwise("keys to heads", "transpose", (product + keys) * z.element_bytes, role=role)
    return (rotate, spread) if role == "forward" else (spread, rotate)
