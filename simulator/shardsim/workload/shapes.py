"""Sizes of one micro-batch on one tensor-parallel rank, from which every operator takes its shape."""

from __future__ import annotations

from dataclasses import dataclass

from shardsim.values.num import Num, where
from shardsim.values.training import Batch, Framework, Layout, LowPrecision, Model
from shardsim.workload.parameters import kv_heads_per_rank, mlp_projections


@dataclass(frozen=True, slots=True)
class Shapes:
    """Sizes of one micro-batch on one rank.

    Parameters
    ----------
    element_bytes : int
        Bytes of an activation's element (-).
    batch : Num
        b (-).
    seq : int
        s (-).
    tokens : Num
        T = b s (-), of which context parallelism leaves a rank its share.
    local_tokens : Num
        Tokens of the regions outside tensor parallelism (-): T/t under sequence parallelism, else T.
    hidden : int
        h (-).
    heads, kv_heads : Num
        Query and key-value heads of the rank (-).
    head_dim : int
        d (-); of queries and keys where values have another.
    qkv, context, up, ffn : Num
        Widths of the rank's QKV output, attention output, first and second MLP operand (-).
    accumulated_bytes : int or None
        Bytes of an element of the sum that weight gradients are added to as they are made (-); None where they are
        written as they are.
    low_precision : str or None
        How the linear layers of transformer blocks run below 16 bits; None where they do not.
    v_head_dim : int or None
        Dimensions of a value (-) where they are not ``head_dim``.
    """

    element_bytes: int
    batch: Num
    seq: int
    tokens: Num
    local_tokens: Num
    hidden: int
    heads: Num
    kv_heads: Num
    head_dim: int
    qkv: Num
    context: Num
    up: Num
    ffn: Num
    accumulated_bytes: int | None = None
    low_precision: LowPrecision | None = None
    v_head_dim: int | None = None

    @property
    def value_dim(self) -> int:
        """Dimensions of a value (-)."""
        return self.head_dim if self.v_head_dim is None else self.v_head_dim

    @property
    def scores(self) -> Num:
        """Elements of the score matrices: b (a/t) s² (-)."""
        return self.tokens * self.heads * self.seq

    @property
    def hidden_bytes(self) -> Num:
        """All tokens' hidden states, b s h elements [bytes]."""
        return self.tokens * self.hidden * self.element_bytes

    @property
    def local_hidden(self) -> Num:
        """Elements of the hidden states outside tensor parallelism (-)."""
        return self.local_tokens * self.hidden


def element_bytes(framework: Framework) -> int:
    """Bytes of an element of activations and weights (-).

    Parameters
    ----------
    framework : Framework

    Returns
    -------
    int
        4 for the fp32 recipe, else 2.
    """
    return 4 if framework.recipe == "fp32" else 2


def shapes(model: Model, layout: Layout, batch: Batch, framework: Framework) -> Shapes:
    """Work out the sizes.

    Parameters
    ----------
    model : Model
    layout : Layout
    batch : Batch
    framework : Framework

    Returns
    -------
    Shapes
    """
    tokens = batch.micro_batch * batch.seq_len
    tokens = where(layout.cp > 1, tokens / layout.cp, tokens)
    heads = model.heads / layout.tp
    kv_heads = kv_heads_per_rank(model, layout.tp)
    ffn = model.ffn / layout.tp
    value = model.head_dim if model.mla is None else model.mla.v_dim
    return Shapes(
        element_bytes=element_bytes(framework),
        batch=batch.micro_batch,
        seq=batch.seq_len,
        tokens=tokens,
        local_tokens=tokens / layout.tp if layout.sp else tokens,
        hidden=model.hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=model.head_dim,
        qkv=(heads + kv_heads) * model.head_dim + kv_heads * value,
        context=heads * value,
        up=mlp_projections(model) * ffn,
        ffn=ffn,
        accumulated_bytes=framework.gradient_bytes if framework.fused_gradient_accumulation else None,
        low_precision=framework.low_precision,
        v_head_dim=None if model.mla is None else value,
    )
