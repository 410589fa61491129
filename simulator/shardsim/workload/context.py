"""The attention core of ranks that share a sequence: what context parallelism moves, and what each step computes.

Under a causal mask the last tokens of a sequence see most. So a rank has two of ``2 c`` chunks, number ``r`` and number
``2 c - 1 - r``, and all ranks have as many scores to compute (arXiv 2407.21783 §3.3.2). Where ranks differ, what is
listed is the work of the slowest: the others wait for it.

* ``p2p``: keys and values go around a ring; a rank computes with the block that is there while the next is on its way
  (arXiv 2310.01889). Of a block from a lower rank only the first chunk is seen, by all queries; of one from a higher
  rank everything, by the second chunk of queries: half of the scores either way.
* ``all_gather``: keys and values are gathered whole before attention, and each chunk of queries sees those up to its
  own end (arXiv 2407.21783 §3.3.2). Backward they are gathered again, and their gradients summed to where they belong.
* ``a2a``: an all-to-all gives every rank all tokens of some of the heads, another one brings the output back
  (arXiv 2309.14509).
* ``a2a+p2p``: that among ``cp_inner`` ranks, and a ring over the others.

Copies and sums follow github NVIDIA/TransformerEngine, transformer_engine/pytorch/attention/dot_product_attention/
context_parallel.py. Its rings refuse sliding windows: layers that have one gather keys and values instead, and compute
with those in the window.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from shardsim.errors import InputError, Problem
from shardsim.values.num import Num, any_of, smaller, where
from shardsim.values.operators import Attention, Collective, CollectiveKind, Elementwise, GradientRole, Operator
from shardsim.values.training import Framework, Layout, Model
from shardsim.workload import attention
from shardsim.workload.kinds import LayerKind
from shardsim.workload.shapes import Shapes


def core_forward(
    model: Model, layout: Layout, sizes: Shapes, framework: Framework, kind: LayerKind
) -> tuple[Operator, ...]:
    """List the attention core of one layer with its communication.

    Parameters
    ----------
    model : Model
    layout : Layout
        Degrees may be arrays over layouts: there are steps for the largest ``cp``, and surplus ones take no time.
    sizes : Shapes
        ``seq`` is the whole sequence, ``tokens`` are the rank's.
    framework : Framework
    kind : LayerKind

    Returns
    -------
    tuple of Operator
        In order of issue: a step of a ring before the attention that it runs beside.

    Raises
    ------
    InputError
        Attention that is not one kernel, with ``cp`` above 1.
    """
    return _over_ranks(attention.core_forward(model, sizes, framework), layout, kind)


def core_backward(
    model: Model, layout: Layout, sizes: Shapes, framework: Framework, kind: LayerKind
) -> tuple[Operator, ...]:
    """List it backward.

    Parameters
    ----------
    model : Model
    layout : Layout
    sizes : Shapes
    framework : Framework
    kind : LayerKind

    Returns
    -------
    tuple of Operator
        Of a ring, ``c`` steps: keys and values in all but the last, gradients of them in all but the first.

    Raises
    ------
    InputError
        Attention that is not one kernel, with ``cp`` above 1.
    """
    return _over_ranks(attention.core_backward(model, sizes, framework), layout, kind)


def _over_ranks(whole: tuple[Operator, ...], layout: Layout, kind: LayerKind) -> tuple[Operator, ...]:
    """A rank's share of the core of a layer over whole sequences."""
    if kind.window:
        whole = tuple(replace(one, window=kind.window) if isinstance(one, Attention) else one for one in whole)
    if not any_of(layout.cp > 1):
        return whole
    core, comm = whole[0], layout.cp_comm
    if not isinstance(core, Attention):
        what = "context parallelism of attention that writes its scores to memory"
        raise InputError(Problem(what, "framework attention", "a fused kernel such as flash, or cp 1"))
    if comm == "a2a":
        return _by_heads(core, layout.cp, "cp", layout.cp)
    if comm == "a2a+p2p":
        inner = smaller(layout.cp_inner, layout.cp)
        part = replace(core, heads=core.heads / inner, kv_heads=core.kv_heads / inner)
        share = _Share(part, layout.cp / inner, "cp_outer", layout.cp_zigzag)
        return _by_heads(core, inner, "cp_inner", layout.cp, share.steps(ring=not kind.window))
    share = _Share(core, layout.cp, "cp", layout.cp_zigzag)
    return share.steps(ring=comm == "p2p" and not kind.window)


def _by_heads(
    core: Attention, ranks: Num, axis: str, cp: Num, inside: tuple[Operator, ...] | None = None
) -> tuple[Operator, ...]:
    """Tokens exchanged for heads, what is computed with those, and back."""
    if inside is None:
        inside = (replace(core, heads=core.heads / ranks, kv_heads=core.kv_heads / ranks),)
    row = core.batch * core.seq / cp * core.element_bytes
    inputs = {
        "queries": row * core.heads * core.head_dim,
        "keys": row * core.kv_heads * core.head_dim,
        "values": row * core.kv_heads * core.value_dim,
    }
    output = {"attention output": row * core.heads * core.value_dim}
    before, after = (inputs, output) if core.role == "forward" else (output, inputs)
    there = where(ranks > 1, 1.0, 0.0)
    return (
        *_exchanged(before, axis, there, core.role),
        *inside,
        *_exchanged(after, axis, there, core.role),
    )


def _exchanged(tensors: Mapping[str, Num], axis: str, there: Num, role: GradientRole) -> tuple[Operator, ...]:
    """An all-to-all of each tensor, between copies into the order of ranks and into that of attention or of tokens."""
    size: Num = 0.0
    for one in tensors.values():
        size = size + 2 * there * one
    kernels = there * len(tensors)
    return (
        Elementwise("order for ranks", "context", size, kernels, role),
        *(Collective(f"exchange {name}", "all_to_all", axis, there * one, role) for name, one in tensors.items()),
        Elementwise("order received", "context", size, kernels, role),
    )


@dataclass(frozen=True, slots=True)
class _Share:
    """Attention over sequences that several ranks hold, and how it is shared."""

    core: Attention
    ranks: Num
    axis: str
    zigzag: bool

    def steps(self, *, ring: bool) -> tuple[Operator, ...]:
        if not ring:
            return self._gathered()
        return self._ring_forward() if self.core.role == "forward" else self._ring_backward()

    def _ring_forward(self) -> tuple[Operator, ...]:
        made: list[Operator] = []
        for step in range(_most(self.ranks)):
            made += self._sent("next keys and values", _there(step + 1, self.ranks))
            made.append(self._block(step))
        # A kernel a step for the sum of the softmax, and one that scales the step's output and adds it.
        size = self._several * self._output_bytes * (2 + 3 * (self.ranks - 1))
        made.append(Elementwise("softmax correction", "context", size, 2 * self.ranks * self._several, self.core.role))
        return tuple(made)

    def _ring_backward(self) -> tuple[Operator, ...]:
        """Each step ends when its messages are there: the gradients of its own block are added to those."""
        made: list[Operator] = []
        for step in range(_most(self.ranks)):
            gradients = _there(step, self.ranks) if step else 0.0
            made += self._sent("next block and gradients", _there(step + 1, self.ranks) + gradients)
            block = self._block(step)
            made.append(block)
            queries = block.batch * self._local * block.heads * block.head_dim * block.element_bytes
            keys = self._keys_bytes(block.batch, block.key_count)
            size = self._several * (3 if step else 2) * (queries + keys)  # the first are copied
            kernels = self._several * 2 * _there(step, self.ranks)
            made.append(Elementwise("sum of gradients", "context", size, kernels, self.core.role))
        return tuple(made)

    def _sent(self, name: str, blocks: Num) -> tuple[Operator, ...]:
        size = blocks * self._keys_bytes(self.core.batch, self._local)
        return (Collective(name, "send_recv", self.axis, size, self.core.role),) if any_of(blocks > 0) else ()

    def _block(self, step: int) -> Attention:
        """Attention to a rank's own block, then to those of the ranks before: the last rank has all of them."""
        if not step:
            return replace(self.core, seq=self._local)
        halved = self.core.causal and self.zigzag
        return replace(
            self.core,
            batch=self.core.batch * _there(step, self.ranks),
            seq=self._local,
            keys=self._local / 2 if halved else self._local,
            causal=False,
        )

    def _gathered(self) -> tuple[Operator, ...]:
        core, several = self.core, self._several
        size = several * self._keys_bytes(core.batch, core.seq)
        before = (
            *self._moved("gather", "all_gather"),
            Elementwise("keys and values in order", "context", 2 * size, 2 * several, core.role),
            *self._chunks(),
        )
        if core.role == "forward":
            join = Elementwise("join chunks", "context", 2 * several * self._output_bytes, several, core.role)
            return (*before, join)
        return (
            *before,
            Elementwise("sum of key gradients", "context", 3 * size, 4 * several, core.role),
            Elementwise("key gradients by rank", "context", 2 * size, 2 * several, core.role),
            *self._moved("scatter gradients of", "reduce_scatter"),
        )

    def _moved(self, verb: str, kind: CollectiveKind) -> tuple[Operator, ...]:
        core = self.core
        row = self._several * core.batch * core.seq * core.kv_heads * core.element_bytes
        widths = (("keys", core.head_dim), ("values", core.value_dim))
        return tuple(Collective(f"{verb} {name}", kind, self.axis, row * width, core.role) for name, width in widths)

    def _chunks(self) -> tuple[Attention, ...]:
        """Of the last rank: the two chunks in the middle of a sequence, where all windows are full; or its only one."""
        seq = self.core.seq
        if not self.zigzag:
            return (self._chunk(self._local, seq, 1.0),)
        half = self._local / 2
        # Alone, a rank computes whole sequences.
        first, end = (where(self.ranks > 1, some, seq) for some in (half, seq / 2))
        return self._chunk(first, end, 1.0), self._chunk(half, seq / 2 + half, self._several)

    def _chunk(self, queries: Num, end: Num, there: Num) -> Attention:
        core = self.core
        keys = end if core.causal else core.seq
        if core.window:
            keys = smaller(keys, queries + core.window)
        return replace(core, batch=core.batch * there, seq=queries, keys=keys)

    @property
    def _local(self) -> Num:
        return self.core.seq / self.ranks

    @property
    def _several(self) -> Num:
        return where(self.ranks > 1, 1.0, 0.0)

    @property
    def _output_bytes(self) -> Num:
        core = self.core
        return core.batch * self._local * core.heads * core.value_dim * core.element_bytes

    def _keys_bytes(self, batch: Num, count: Num) -> Num:
        """Of so many keys and values a sequence [bytes]."""
        core = self.core
        return batch * count * core.kv_heads * (core.head_dim + core.value_dim) * core.element_bytes


def _most(count: Num) -> int:
    return int(np.max(count))


def _there(step: int, count: Num) -> Num:
    return where(count > step, 1.0, 0.0)
