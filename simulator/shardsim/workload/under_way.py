"""What exists for a moment of a layer's pass, beside what it keeps: tokens and keys on their way.

Nothing of the kind is counted in layers without experts whose sequences are whole: there, gathered inputs are the
largest, which :mod:`shardsim.workload.buffers` counts.
"""

from __future__ import annotations

from shardsim.values.num import Num, larger, where
from shardsim.values.training import TWO_LEVEL, Layout, Model
from shardsim.workload.kinds import LayerKind
from shardsim.workload.routing import arriving, load_of
from shardsim.workload.shapes import Shapes

_FP32 = 4
_CHANNELS, _NODE = 10, 8
"""Of DeepEP: two multiprocessors make a channel, and 20 are used; ranks that reach each other over NVLink (-)."""
_TOP_K, _SCALES, _META = 128, 128, 8
"""Of DeepEP: room for so many indices, weights and scales of a token, and bytes that say where it came from."""
_SCALED = 128
"""Elements of a token that share a scale (-)."""


def under_way_bytes(model: Model, layout: Layout, sizes: Shapes, kind: LayerKind) -> Num:
    """Count it for the fullest moment of a layer, forward or backward.

    Parameters
    ----------
    model : Model
    layout : Layout
        Degrees may be arrays over layouts.
    sizes : Shapes
        Of the layer.
    kind : LayerKind

    Returns
    -------
    Num
        [bytes]. Attention and experts are not under way at once: the larger of both.
    """
    keys = _keys(layout, sizes, kind)
    return larger(keys, _tokens(model, layout, sizes)) if kind.moe else keys


def _tokens(model: Model, layout: Layout, sizes: Shapes) -> Num:
    """Results of experts before and after they are put in order, or on their way back; backward, their gradients.

    github NVIDIA/Megatron-LM, megatron/core/transformer/moe/token_dispatcher.py: each step takes a tensor of rows of
    experts, or of what arrived, and returns another. What arrived and the copies that a rank sends are as many before
    an all-to-all and after it; after an all-gather they are everybody's tokens; in two levels, one copy to a rank.
    """
    moe = model.moe
    if moe is None:
        return 0.0 * sizes.tokens
    tokens = sizes.tokens / layout.tp
    load = load_of(moe, layout, tokens)
    rows = tokens * layout.etp * moe.top_k * load.share * load.imbalance
    arrived = arriving(moe, layout, tokens, load) * layout.etp
    return (rows + arrived) * model.hidden * sizes.element_bytes


def _keys(layout: Layout, sizes: Shapes, kind: LayerKind) -> Num:
    """Keys and values of all ranks, outputs of steps, or what is exchanged for heads.

    github NVIDIA/TransformerEngine, transformer_engine/pytorch/attention/dot_product_attention/context_parallel.py. A
    ring has a buffer for the keys and values of every step, and an output of every step until all are added up; the
    last rank's are as many as it has queries. Gathered, there are keys, values and gradients of both, in the order of
    ranks and in that of the sequence. An all-to-all has its inputs and outputs, and backward their gradients.
    """
    width = sizes.kv_heads * (sizes.head_dim + sizes.value_dim)
    keys, output = sizes.tokens * width * sizes.element_bytes, sizes.tokens * sizes.context * sizes.element_bytes
    inner = larger(layout.cp_inner, 1) if layout.cp_comm == "a2a+p2p" else 1
    exchanged = 2 * sizes.tokens * (sizes.qkv + sizes.context) * sizes.element_bytes
    if layout.cp_comm == "a2a":
        size = exchanged
    elif layout.cp_comm == "all_gather" or kind.window:
        size = 4 * keys * layout.cp / inner
    else:
        size = (keys + output) * layout.cp / inner
    if layout.cp_comm == "a2a+p2p":
        size = size + exchanged
    return where(layout.cp > 1, size, 0.0 * size)


def exchange_buffer_bytes(model: Model, layout: Layout, sizes: Shapes) -> Num:
    """Count what a two-level dispatcher registers for tokens on their way, once for all layers.

    Parameters
    ----------
    model : Model
    layout : Layout
        Degrees may be arrays over layouts.
    sizes : Shapes

    Returns
    -------
    Num
        [bytes]. Nothing for an all-to-all or an all-gather, whose buffers are tensors.

    Notes
    -----
    DeepEP (github deepseek-ai/DeepEP, csrc/config.hpp, get_nvl_buffer_size_hint and get_rdma_buffer_size_hint, for the
    configurations of deep_ep/buffer.py): rings for as many tokens as a channel may have in flight, for each of 8 ranks
    of a node and, twice, for each node. HybridEP (csrc/hybrid_ep/buffer/intranode.cu): room for every token of every
    rank, should they all come to one, with a weight for each of the experts.
    """
    moe = model.moe
    if moe is None or layout.dispatcher not in TWO_LEVEL:
        return 0.0 * sizes.tokens
    ranks = layout.ep * layout.etp
    token = model.hidden * sizes.element_bytes
    if layout.dispatcher == "hybridep":
        scales = model.hidden / _SCALED * _FP32
        size = sizes.tokens / layout.tp * ranks * (token + moe.experts * _FP32 + scales)
    else:
        size = _deepep(token, ranks)
    return where(ranks > 1, size, 0.0 * size)


def _deepep(token: Num, ranks: Num) -> Num:
    """Both buffers of DeepEP, but for flags and counters: less than a megabyte."""
    message = token + _TOP_K * 12 + _SCALES * _FP32 + _META  # indices of 8 bytes and weights of 4
    near = where(ranks <= 64, 288, where(ranks <= 96, 480, where(ranks <= 128, 560, 720)))
    in_node = where(ranks < _NODE, ranks, _NODE)
    nvlink = _CHANNELS * in_node * where(ranks <= _NODE, 256, near) * message
    network = 2 * _CHANNELS * (ranks / _NODE) * 128 * (message + 16)
    return nvlink + where(ranks > _NODE, network, 0.0 * network)
