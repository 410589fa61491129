"""The attention core: between the QKV projection and the output projection, all of it inside one rank.

Byte counts are reads and writes of whole operands, once each; dropout masks are one byte an element.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from shardsim.values.num import Num, Truth, where
from shardsim.values.operators import Attention, Elementwise, Gemm, GradientRole, Operator
from shardsim.values.training import Batch, Framework, Layout, Model
from shardsim.workload import pointwise
from shardsim.workload.shapes import Shapes, shapes


def core_forward(model: Model, sizes: Shapes, framework: Framework) -> tuple[Operator, ...]:
    """From Q, K and V to the attention output: what selective recomputation repeats.

    Parameters
    ----------
    model : Model
    sizes : Shapes
    framework : Framework

    Returns
    -------
    tuple of Operator
        One fused kernel, or scores, softmax (in one kernel or five) and P V.

    Notes
    -----
    The separate kernels are those of the first Megatron-LM (github NVIDIA/Megatron-LM, mpu/transformer.py of 2019):
    scale, multiply by the mask, subtract, softmax, dropout.
    """
    if framework.attention != "unfused":
        return (_fused(sizes, framework, "forward"),)
    s, d, v, n = sizes.seq, sizes.head_dim, sizes.value_dim, sizes.batch * sizes.heads
    return (
        *_repeat_kv(model, sizes, "forward"),
        Gemm("scores", s, d, s, n, sizes.element_bytes, attention=True),
        *_softmax_forward(sizes, framework),
        Gemm("attention values", s, s, v, n, sizes.element_bytes, attention=True),
    )


def core_backward(model: Model, sizes: Shapes, framework: Framework) -> tuple[Operator, ...]:
    """From the gradient of the attention output to those of Q, K and V.

    Parameters
    ----------
    model : Model
    sizes : Shapes
    framework : Framework

    Returns
    -------
    tuple of Operator
    """
    if framework.attention != "unfused":
        return (_fused(sizes, framework, "dgrad"),)
    s, d, v, n, e = sizes.seq, sizes.head_dim, sizes.value_dim, sizes.batch * sizes.heads, sizes.element_bytes
    return (
        Gemm("probabilities dgrad", s, v, s, n, e, "dgrad", attention=True),
        Gemm("values dgrad", s, s, v, n, e, "dgrad", attention=True),
        *_softmax_backward(sizes, framework),
        Gemm("query dgrad", s, s, d, n, e, "dgrad", attention=True),
        Gemm("key dgrad", s, s, d, n, e, "dgrad", attention=True),
        *_repeat_kv(model, sizes, "dgrad"),
    )


def arrange_forward(model: Model, sizes: Shapes, framework: Framework) -> tuple[Operator, ...]:
    """Between the QKV product and the core: norms of heads, rotary embedding, copies into head-major order where made.

    Parameters
    ----------
    model : Model
    sizes : Shapes
    framework : Framework

    Returns
    -------
    tuple of Operator
    """
    rotate = _rotate(sizes, "forward") if model.position == "rope" else ()
    norms = [one for name, of in _head_norms(model, sizes) for one in pointwise.norm_forward(name, model, of)]
    if not framework.copies_heads:
        return (*norms, *rotate)
    size = 2 * sizes.tokens * sizes.qkv * sizes.element_bytes
    return (*norms, *rotate, Elementwise("heads first", "transpose", size, kernels=3))


def arrange_backward(model: Model, sizes: Shapes) -> tuple[Operator, ...]:
    """From the gradients of Q, K and V to that of the QKV product: rotation, norms, and one copy that joins them.

    Parameters
    ----------
    model : Model
    sizes : Shapes

    Returns
    -------
    tuple of Operator
    """
    rotate = _rotate(sizes, "dgrad") if model.position == "rope" else ()
    norms = [one for name, of in _head_norms(model, sizes)[::-1] for one in pointwise.norm_backward(name, model, of)]
    size = 2 * sizes.tokens * sizes.qkv * sizes.element_bytes
    return (*rotate, *norms, Elementwise("join QKV gradients", "transpose", size, role="dgrad"))


def tokens_first(sizes: Shapes, framework: Framework, role: GradientRole) -> tuple[Operator, ...]:
    """Copy the attention output back into token-major order, or its gradient out of it; flash writes it so.

    Parameters
    ----------
    sizes : Shapes
    framework : Framework
    role : {"forward", "dgrad"}

    Returns
    -------
    tuple of Operator
    """
    if framework.attention != "unfused":
        return ()
    size = 2 * sizes.tokens * sizes.context * sizes.element_bytes
    return (Elementwise("tokens first", "transpose", size, role=role),)


def _fused(sizes: Shapes, framework: Framework, role: GradientRole) -> Attention:
    return Attention(
        "attention" if role == "forward" else "attention backward",
        batch=sizes.batch,
        heads=sizes.heads,
        kv_heads=sizes.kv_heads,
        seq=sizes.seq,
        head_dim=sizes.head_dim,
        causal=framework.causal_flop_halved,
        role=role,
        element_bytes=sizes.element_bytes,
        library=framework.attention,
        v_head_dim=sizes.v_head_dim,
    )


def _rotate(sizes: Shapes, role: GradientRole) -> tuple[Operator, ...]:
    elements = sizes.tokens * (sizes.heads + sizes.kv_heads) * sizes.head_dim
    return (Elementwise("rotary embedding", "rope", 2 * elements * sizes.element_bytes, role=role),)


def _head_norms(model: Model, sizes: Shapes) -> tuple[tuple[str, Shapes], ...]:
    """Norms of queries and keys, as a norm sees them: one head of one token after another."""
    if not model.qk_norm:
        return ()
    heads = (("query norm", sizes.heads), ("key norm", sizes.kv_heads))
    return tuple(
        (name, replace(sizes, local_tokens=sizes.tokens * count, hidden=sizes.head_dim)) for name, count in heads
    )


def _repeat_kv(model: Model, sizes: Shapes, role: GradientRole) -> tuple[Operator, ...]:
    """Unfused products need a key and a value for every query head."""
    if model.kv_heads == model.heads:
        return ()
    elements = 2 * sizes.tokens * (sizes.kv_heads + sizes.heads) * sizes.head_dim
    size = elements * sizes.element_bytes
    return (Elementwise("repeat keys and values", "transpose", size, kernels=2, role=role, attention=True),)


def _on_scores(name: str, kind: str, bytes_per_score: float, sizes: Shapes, role: GradientRole) -> Elementwise:
    size: Num = sizes.scores * bytes_per_score
    return Elementwise(name, kind, size, role=role, attention=True)


def softmax_fuses(sizes: Shapes, framework: Framework) -> Truth:
    """Whether the fused scale-mask-softmax kernel takes these scores.

    Parameters
    ----------
    sizes : Shapes
    framework : Framework

    Returns
    -------
    bool or ndarray of bool

    Notes
    -----
    github NVIDIA/Megatron-LM, megatron/model/fused_softmax.py, is_kernel_available: 16 bits; more than 16 keys, at most
    a length that grew with its versions; a multiple of 4 of keys, and of matrices (b a/t).
    """
    s = sizes.seq
    length = 16 < s <= framework.fused_softmax_max_seq and s % 4 == 0 and sizes.element_bytes == 2
    return ((sizes.batch * sizes.heads) % 4 == 0) & (framework.fused_softmax and length)


def softmax_warning(model: Model, layout: Layout, batch: Batch, framework: Framework) -> str | None:
    """Say that the fused softmax kernel, which the framework has, does not take these scores; None if it does."""
    sizes = shapes(model, layout, batch, framework)
    if framework.attention != "unfused" or not framework.fused_softmax or bool(np.all(softmax_fuses(sizes, framework))):
        return None
    return (
        f"the fused softmax kernel of {framework.name} takes 16-bit scores of 17 to {framework.fused_softmax_max_seq} "
        f"tokens, a multiple of 4 of them, and a multiple of 4 of matrices (micro-batch x heads / tp); these are "
        f"of {sizes.seq} tokens: scale, mask and softmax run as kernels of their own, in fp32"
    )


def _softmax_forward(sizes: Shapes, framework: Framework) -> tuple[Operator, ...]:
    e = sizes.element_bytes
    through = 2 * e  # read and written
    dropout = (_on_scores("attention dropout", "dropout", through + 1, sizes, "forward"),) if framework.dropout else ()
    if framework.fused_softmax:
        # The fused causal kernel reads the unmasked half and writes the whole. The others work in fp32, as the scaling
        # by layer asks that is on by default: conversion, scale, mask, softmax, conversion.
        return (_fused_or_apart(1.5 * e, (e + 4) + 8 + 8 + 8 + (4 + e), sizes, framework, "forward"), *dropout)
    return (
        _on_scores("scale scores", "add", through, sizes, "forward"),
        _on_scores("mask multiply", "add", through, sizes, "forward"),
        _on_scores("mask subtract", "add", through, sizes, "forward"),
        _on_scores("softmax", "softmax", through, sizes, "forward"),
        *dropout,
    )


def _softmax_backward(sizes: Shapes, framework: Framework) -> tuple[Operator, ...]:
    e = sizes.element_bytes
    through = 2 * e
    dropout = (_on_scores("attention dropout", "dropout", through + 1, sizes, "dgrad"),) if framework.dropout else ()
    if framework.fused_softmax:
        # Halves of the output and of its gradient are read, the whole is written. Apart, softmax reads two and writes
        # one, and every other kernel of the way forward has one of the way back.
        return (*dropout, _fused_or_apart(2 * e, (e + 4) + 12 + 8 + 8 + (4 + e), sizes, framework, "dgrad"))
    return (
        *dropout,
        _on_scores("softmax", "softmax", 3 * e, sizes, "dgrad"),
        _on_scores("mask multiply", "add", through, sizes, "dgrad"),
        _on_scores("scale scores", "add", through, sizes, "dgrad"),
    )


def _fused_or_apart(fused: float, apart: float, sizes: Shapes, framework: Framework, role: GradientRole) -> Elementwise:
    """Scale, mask and softmax in one kernel, or in five where that one does not take the scores."""
    fuses = softmax_fuses(sizes, framework)
    size = sizes.scores * where(fuses, fused, apart)
    return Elementwise("softmax", "softmax", size, where(fuses, 1.0, 5.0), role=role, attention=True)
