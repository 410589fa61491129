"""Device memory of one rank, as bytes that each part of training takes; the engine adds up what is held when.

Activations are those of arXiv 2205.05198 §4 (Table 2), tensor by tensor, so that grouped queries, SwiGLU, fused
attention and a missing dropout follow; for GPT in 16 bits they reduce to its equations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from shardsim.errors import InputError, Problem
from shardsim.values.num import Num, larger, where
from shardsim.values.training import Batch, Framework, Layout, Model
from shardsim.workload.parameters import padded_vocab, stage_parameters
from shardsim.workload.pipeline import p2p_message
from shardsim.workload.quantization import kept_bytes, weight_copies
from shardsim.workload.shapes import Shapes, element_bytes, shapes

_FP32 = 4
_MASK = 1


@dataclass(frozen=True, slots=True)
class StageAllocation:
    """What one rank of a stage allocates.

    Parameters
    ----------
    weights, gradients, optimizer : Num
        Held all the time [bytes].
    activation_per_chunk : tuple of Num
        For each chunk, held by every micro-batch between its forward and its backward pass [bytes]; in the last
        chunk of the last stage with the fp32 softmax over the vocabulary that the loss keeps.
    recompute_working_set : Num
        What one layer rebuilds before its backward pass [bytes].
    logits : Num
        What the loss needs besides for a moment [bytes]: the logits in 16 bits, or two more copies in fp32 where it
        is not in place. Never at the same time as the recompute working set.
    buffers : Num
        Communication: gathered input under SP, messages, copies of gradients in buckets [bytes].
    context : Num
        Framework and libraries [bytes].
    allocated_share : float
        Share of the memory reserved for tensors that tensors fill (-); the rest is fragmentation.
    """

    weights: Num
    gradients: Num
    optimizer: Num
    activation_per_chunk: tuple[Num, ...]
    recompute_working_set: Num
    logits: Num
    buffers: Num
    context: Num
    allocated_share: float = 1.0

    def total_at(self, in_flight: Sequence[float]) -> Num:
        """Sum at a moment, as reserved.

        Parameters
        ----------
        in_flight : sequence of float
            Micro-batches in flight in each chunk (-).

        Returns
        -------
        Num
            [bytes].
        """
        tensors = self.weights + self.gradients + self.optimizer + self.buffers
        for count, size in zip(in_flight, self.activation_per_chunk, strict=True):
            tensors = tensors + count * size
        tensors = tensors + larger(self.recompute_working_set, self.logits)
        return tensors / self.allocated_share + self.context


@dataclass(frozen=True, slots=True)
class StateBytes:
    """Bytes that a parameter takes on each rank, averaged over replicas.

    Parameters
    ----------
    weights, gradients, optimizer : Num
        [bytes].
    """

    weights: Num
    gradients: Num
    optimizer: Num

    @property
    def total(self) -> Num:
        """All of it [bytes]."""
        return self.weights + self.gradients + self.optimizer


def partitioned_state(weights: float, gradients: float, optimizer: float, dp: Num, zero: int) -> StateBytes:
    """Split the bytes of a parameter over replicas.

    Parameters
    ----------
    weights, gradients, optimizer : float
        Bytes a parameter, unsplit [bytes]; with 2, 2 and 12 this is the table of the ZeRO paper.
    dp : Num
        Replicas (-).
    zero : int
        1 splits the optimizer's states, 2 gradients too, 3 weights too.

    Returns
    -------
    StateBytes

    Notes
    -----
    arXiv 1910.02054, figure 1: 16 Ψ, 4 Ψ + 12 Ψ/N, 2 Ψ + 14 Ψ/N, 16 Ψ/N.

    Examples
    --------
    >>> round(7.5 * partitioned_state(2, 2, 12, dp=64, zero=1).total, 1)
    31.4
    """
    return StateBytes(
        weights=weights / dp if zero >= 3 else weights,
        gradients=gradients / dp if zero >= 2 else gradients,
        optimizer=optimizer / dp if zero >= 1 else optimizer,
    )


def state_bytes(framework: Framework, layout: Layout) -> StateBytes:
    """Bytes a parameter under a framework's precision recipe with Adam.

    Parameters
    ----------
    framework : Framework
    layout : Layout

    Returns
    -------
    StateBytes

    Notes
    -----
    Weight and gradient in their own precision; two moments in fp32, a master weight in fp32 unless the weight is, and
    an fp32 copy of the gradient unless the gradient is. 20, 18 and 16 bytes for fp16/fp16, bf16/fp32 and fp32/fp32
    weights/gradients, 4 + 16/D, 6 + 12/D and 8 + 8/D with the distributed optimizer: github NVIDIA/Megatron-LM,
    docs/user-guide/features/dist_optimizer.md.
    """
    weight, gradient = element_bytes(framework), framework.gradient_bytes
    master = 0 if weight == _FP32 else _FP32
    copy = 0 if gradient == _FP32 else _FP32
    return partitioned_state(weight, gradient, 2 * _FP32 + master + copy, layout.dp, layout.zero)


def activation_bytes_per_layer(model: Model, layout: Layout, batch: Batch, framework: Framework) -> Num:
    """Activations of one layer and micro-batch that are kept for the backward pass.

    Parameters
    ----------
    model : Model
    layout : Layout
        Its ``tp``, ``sp`` and ``recompute`` decide.
    batch : Batch
    framework : Framework
        Fused attention keeps nothing of size s².

    Returns
    -------
    Num
        [bytes].

    Notes
    -----
    arXiv 2205.05198, Table 2, for GPT: none s b h (10 + 24/t + 5 a s/(h t)); with SP s b h (34/t + 5 a s/(h t));
    selective without the last term; full 2 s b h, of which SP keeps 1/t.
    """
    sizes = shapes(model, layout, batch, framework)
    if layout.recompute == "full":
        return sizes.local_hidden * sizes.element_bytes
    outside_core = _outside_core(model, sizes, framework)
    return outside_core if layout.recompute == "selective" else outside_core + _core(sizes, framework)


def first_stage_activation_bytes(model: Model, layout: Layout, batch: Batch, framework: Framework) -> Num:
    """Activations of the first stage in the accounting of arXiv 2205.05198 §4.2.3: layers only.

    Parameters
    ----------
    model : Model
    layout : Layout
    batch : Batch
    framework : Framework

    Returns
    -------
    Num
        [bytes]. As many as all L layers of one micro-batch, whatever p; (1 + (p - 1)/(p v)) times that interleaved.
    """
    more = 1 + (layout.pp - 1) / (layout.pp * layout.vpp)
    factor = where(layout.vpp > 1, more, more * 0.0 + 1.0)
    return model.layers * activation_bytes_per_layer(model, layout, batch, framework) * factor


def stage_allocations(model: Model, layout: Layout, batch: Batch, framework: Framework, stage: int) -> StageAllocation:
    """Allocate one rank of a stage, for an even split of the layers.

    Parameters
    ----------
    model : Model
    layout : Layout
        ``pp`` and ``vpp`` are scalars; ``tp`` and ``dp`` may be arrays over layouts.
    batch : Batch
    framework : Framework
    stage : int
        Counted from 0.

    Returns
    -------
    StageAllocation

    Raises
    ------
    InputError
        There is no such stage.
    """
    stages, chunks = int(layout.pp), int(layout.vpp)
    if not 0 <= stage < stages:
        raise InputError(Problem(f"there is no pipeline stage {stage}", "stage", f"0 to {stages - 1}"))
    sizes = shapes(model, layout, batch, framework)
    parameters = stage_parameters(model, layout, framework, stage)
    states = state_bytes(framework, layout)
    layers = model.layers / (stages * chunks)
    chunk = layers * activation_bytes_per_layer(model, layout, batch, framework)
    activations = [chunk] * chunks
    logits: Num = 0.0
    if stage == 0 and framework.dropout:
        activations[0] = activations[0] + sizes.local_hidden * _MASK
    if stage == stages - 1:
        per_rank = sizes.tokens * padded_vocab(model, framework, layout.tp) / layout.tp
        logits = per_rank * (sizes.element_bytes if framework.loss_in_place else 2 * _FP32)
        activations[-1] = activations[-1] + 2 * sizes.local_hidden * sizes.element_bytes + per_rank * _FP32
    return StageAllocation(
        weights=parameters * states.weights + layers * chunks * _narrow_weights(model, sizes, framework),
        gradients=parameters * states.gradients,
        optimizer=parameters * states.optimizer,
        activation_per_chunk=tuple(activations),
        recompute_working_set=_working_set(model, layout.recompute, sizes, framework),
        logits=logits,
        buffers=_buffers(model, layout, batch, framework, parameters),
        context=framework.context_bytes,
        allocated_share=framework.allocated_share,
    )


def _outside_core(model: Model, sizes: Shapes, framework: Framework) -> Num:
    """What a layer keeps outside the attention core, where the inputs of dropout and of GEMMs are."""
    e = sizes.element_bytes
    masks = 2 * _MASK if framework.dropout else 0
    linear = kept_bytes(sizes)
    whole = sizes.local_hidden * (2 * e + 2 * linear + masks)  # inputs of the norms, their outputs, two dropout masks
    # Fused attention keeps its output for itself; where that is no input of a linear layer any more, it is there twice.
    twice = e if linear < e and framework.attention != "unfused" else 0
    attention = sizes.tokens * (sizes.qkv * e + sizes.context * (linear + twice))
    separate = sizes.ffn * e if model.activation == "swiglu" and not framework.fused_bias_activation else 0.0
    return whole + attention + sizes.tokens * (sizes.up * e + sizes.ffn * linear + separate)


def _narrow_weights(model: Model, sizes: Shapes, framework: Framework) -> Num:
    """Narrow copies of a layer's weights, kept over the micro-batches of an iteration."""
    linear = model.hidden * (sizes.qkv + sizes.context + sizes.up + sizes.ffn)
    return linear * weight_copies(framework.low_precision)


def _core(sizes: Shapes, framework: Framework) -> Num:
    """What the attention core keeps: the softmax, and the dropout's mask and output."""
    if framework.attention != "unfused":
        return sizes.scores * 0.0
    return sizes.scores * (2 * sizes.element_bytes + _MASK if framework.dropout else sizes.element_bytes)


def _working_set(
    model: Model, recompute: Literal["none", "selective", "full"], sizes: Shapes, framework: Framework
) -> Num:
    if recompute == "full":
        return _outside_core(model, sizes, framework) + _core(sizes, framework)
    return _core(sizes, framework) * (1.0 if recompute == "selective" else 0.0)


def _buffers(model: Model, layout: Layout, batch: Batch, framework: Framework, parameters: Num) -> Num:
    sizes = shapes(model, layout, batch, framework)
    total: Num = 0.0
    if layout.sp:
        total = total + sizes.hidden_bytes
    if layout.pp > 1:
        total = total + 2 * p2p_message(model, layout, batch, framework).size
    if framework.bucket_copies and framework.overlap_grad_reduce == "always":
        total = total + where(layout.dp > 1, parameters * framework.gradient_bytes, parameters * 0.0)
    return total
