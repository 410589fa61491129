"""Weights, gradients and optimizer states that a rank holds, by precision recipe and ZeRO stage."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from shardsim.values.num import Num, larger, where
from shardsim.values.training import Framework, Layout, Model
from shardsim.workload.data_parallel import expert_shards, scatters_every_microbatch
from shardsim.workload.kinds import is_expert_layer
from shardsim.workload.parameters import (
    HeldParameters,
    held_parameters,
    mlp_projections,
    table_parameters,
)
from shardsim.workload.shapes import element_bytes
from shardsim.workload.stages import ChunkContent

_FP32 = 4


@dataclass(frozen=True, slots=True)
class StateBytes:
    """Bytes that a parameter, or all that a rank holds, take on each rank.

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
        Replicas that it is split over (-).
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


def state_bytes(framework: Framework, layout: Layout, shards: Num | None = None) -> StateBytes:
    """Bytes a parameter under a framework's precision recipe with Adam.

    Parameters
    ----------
    framework : Framework
    layout : Layout
    shards : Num, optional
        Parts into which ZeRO splits (-); those of the layout's replicas by default.

    Returns
    -------
    StateBytes

    Notes
    -----
    Weight and gradient in their own precision; two moments, a master weight in fp32 unless the weight is, and an fp32
    copy of the gradient unless the gradient is. 20, 18 and 16 bytes for fp16/fp16, bf16/fp32 and fp32/fp32
    weights/gradients, 4 + 16/D, 6 + 12/D and 8 + 8/D with the distributed optimizer: github NVIDIA/Megatron-LM,
    docs/user-guide/features/dist_optimizer.md. Moments in bf16 take 4 of these bytes off (arXiv 2412.19437 §3.3.3).
    Where the sharded weights are the fp32 masters, gradients and moments are fp32 shards too: 16/F (arXiv 2304.11277
    §4.4).
    """
    weight, gradient = element_bytes(framework), framework.gradient_bytes
    if framework.weights_are_masters and layout.zero >= 3:
        weight = gradient = _FP32
    master = 0 if weight == _FP32 else _FP32
    copy = 0 if gradient == _FP32 else _FP32
    optimizer = 2 * framework.moment_bytes + master + copy
    return partitioned_state(weight, gradient, optimizer, layout.shards if shards is None else shards, layout.zero)


def stage_held(model: Model, layout: Layout, framework: Framework, contents: Iterable[ChunkContent]) -> HeldParameters:
    """Count the parameters of all chunks of one rank.

    Parameters
    ----------
    model : Model
    layout : Layout
    framework : Framework
    contents : iterable of ChunkContent
        Those of the rank.

    Returns
    -------
    HeldParameters
        A tied table that both ends of the rank use is there once. Modules of multi-token prediction on a rank without
        the embedding have a copy of it (github NVIDIA/Megatron-LM, megatron/core/models/gpt/gpt_model.py, mtp_process).
    """
    contents = tuple(contents)
    shared: Num = 0.0
    expert: Num = 0.0
    for content in contents:
        held = held_parameters(model, layout, framework, content)
        shared, expert = shared + held.shared, expert + held.expert
    both = any(one.embedding for one in contents) and any(one.head for one in contents)
    table = table_parameters(model, layout, framework)
    if model.tied_embeddings and both:
        # Within a pipeline of several stages the head counts a table of its own.
        shared = shared - where(layout.pp > 1, table, table * 0.0)
    if copies_table(model, contents):
        shared = shared + table
    return HeldParameters(shared, expert)


def copies_table(model: Model, contents: Iterable[ChunkContent]) -> bool:
    """Tell whether a rank has a copy of the embedding for modules of multi-token prediction alone.

    Parameters
    ----------
    model : Model
    contents : iterable of ChunkContent
        Those of the rank.

    Returns
    -------
    bool
        Neither where the embedding itself is there, nor a tied head.
    """
    contents = tuple(contents)
    there = any(one.embedding or (one.head and model.tied_embeddings) for one in contents)
    return any(one.mtp for one in contents) and not there


def stage_states(layout: Layout, framework: Framework, held: HeldParameters, copies: int = 1) -> StateBytes:
    """Weights, gradients and optimizer states of one rank.

    Parameters
    ----------
    layout : Layout
    framework : Framework
    held : HeldParameters
        Of the rank.
    copies : int
        Copies of the parameters in one pipeline (-); ZeRO splits optimizer states over them, too (assumed, as the
        step after :func:`shardsim.workload.data_parallel.copy_reduction` has it).

    Returns
    -------
    StateBytes
        Gradients as passes hold them: whole ones, in the place of a part, where a pipeline adds them up before it
        reduces them.

    Notes
    -----
    Whole gradients are there in the type in which they are reduced, and parts appear unit by unit when they go: github
    pytorch/pytorch, torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py (post_backward).
    """
    each = state_bytes(framework, layout)
    expert = state_bytes(framework, layout, expert_shards(layout))
    gradients = held.shared * each.gradients + held.expert * expert.gradients
    return StateBytes(
        weights=held.shared * each.weights + held.expert * expert.weights,
        gradients=held.total * framework.gradient_bytes if adds_up_whole(layout, framework) else gradients,
        optimizer=(held.shared * each.optimizer + held.expert * expert.optimizer) / (copies if layout.zero else 1),
    )


def adds_up_whole(layout: Layout, framework: Framework) -> bool:
    """Whether ZeRO 2 and 3 add up whole gradients over micro-batches, and split them after the last.

    Parameters
    ----------
    layout : Layout
    framework : Framework

    Returns
    -------
    bool
    """
    return layout.zero > 1 and not scatters_every_microbatch(layout, framework)


def kept_gradients(
    model: Model, layout: Layout, framework: Framework, contents: Iterable[ChunkContent], held: HeldParameters
) -> Num:
    """Gradients of the last backward pass that stay beside their wider sum, and the widened copy of one tensor.

    Parameters
    ----------
    model : Model
    layout : Layout
    framework : Framework
    contents : iterable of ChunkContent
        Those of the rank.
    held : HeldParameters
        Of the rank.

    Returns
    -------
    Num
        [bytes]. Nothing where the framework frees them or has no wider sum.

    Notes
    -----
    github microsoft/DeepSpeed, deepspeed/runtime/bf16_optimizer.py, update_hp_grads.
    """
    if framework.backward_gradients != "kept" or framework.gradient_bytes == element_bytes(framework):
        return 0.0 * held.total
    ends = any(content.embedding or content.head for content in contents)
    table = table_parameters(model, layout, framework)
    matrix = model.hidden * model.ffn / layout.tp * mlp_projections(model)
    tensor = larger(table, matrix) if ends else matrix
    return held.total * element_bytes(framework) + tensor * framework.gradient_bytes


def split_parameters(layout: Layout, framework: Framework, held: HeldParameters) -> Num:
    """Parameters of which ZeRO leaves a rank a part, so that whole ones take memory beside it.

    Parameters
    ----------
    layout : Layout
    framework : Framework
        Masters are copied to the type that computes even where a rank has all of them.
    held : HeldParameters

    Returns
    -------
    Num
        (-). Without experts where no other rank holds the same ones.
    """
    masters = framework.weights_are_masters and layout.zero >= 3
    parts = layout.shards if masters else expert_shards(layout)
    return where(layout.shards > 1, held.shared, 0.0 * held.shared) + where(parts > 1, held.expert, 0.0 * held.expert)


def largest_units(
    model: Model, layout: Layout, framework: Framework, contents: Sequence[ChunkContent], together: int
) -> Num:
    """Count the parameters of the largest units in a row that full sharding gathers, or reduces, at a time.

    Parameters
    ----------
    model : Model
    layout : Layout
    framework : Framework
    contents : sequence of ChunkContent
        Those of the rank.
    together : int
        Units that are there at a time (-).

    Returns
    -------
    Num
        (-). A unit is a layer, the embedding, or the final norm and LM head; ends that always stay are left out, and
        so is what no other rank has a part of.
    """
    most: Num = 0.0
    for content in contents:
        units = _units(model, layout, framework, content)
        for start in range(max(1, len(units) - together + 1)):
            row: Num = 0.0
            for unit in units[start : start + together]:
                row = row + unit
            most = larger(most, row)
    return most


def gathered_bytes(model: Model, layout: Layout, framework: Framework, contents: Sequence[ChunkContent]) -> Num:
    """Weights that full sharding has gathered at its fullest moment, besides the shards.

    Parameters
    ----------
    model : Model
    layout : Layout
        Without ``reshard`` all weights of the rank stay gathered until they are updated.
    framework : Framework
        While one unit computes, so many more arrive as ``gathers_ahead``; its ``kept_parts`` stay.
    contents : sequence of ChunkContent
        Those of the rank.

    Returns
    -------
    Num
        [bytes]. Nothing below ZeRO 3.

    Notes
    -----
    arXiv 2304.11277 §3.2.1: a peak of Σ ψ_i / F + max ψ_i parameters.
    """
    if layout.zero < 3:
        return 0.0
    if layout.reshard:
        count = largest_units(model, layout, framework, contents, 1 + framework.gathers_ahead)
        for content in contents:
            for part, there in (("embedding", content.embedding), ("head", content.head)):
                if there and part in _kept_parts(model, framework, content):
                    count = count + _end(model, layout, framework, part)
    else:
        count = split_parameters(layout, framework, stage_held(model, layout, framework, contents))
    return count * element_bytes(framework)


def _units(model: Model, layout: Layout, framework: Framework, content: ChunkContent) -> list[Num]:
    kinds: dict[bool, Num] = {}
    units: list[Num] = []
    for index in range(content.first, content.first + content.layers):
        kind = is_expert_layer(model, index)
        if kind not in kinds:
            layer = ChunkContent(1, embedding=False, head=False, first=index)
            kinds[kind] = split_parameters(layout, framework, held_parameters(model, layout, framework, layer))
        units.append(kinds[kind])
    kept = _kept_parts(model, framework, content)
    if content.embedding and "embedding" not in kept:
        units.insert(0, _end(model, layout, framework, "embedding"))
    if content.head and "head" not in kept:
        units.append(_end(model, layout, framework, "head"))
    return units


def _kept_parts(model: Model, framework: Framework, content: ChunkContent) -> tuple[str, ...]:
    """Ends that stay gathered: a head that is kept keeps the table that it shares with an embedding beside it."""
    tied = model.tied_embeddings and content.embedding and content.head
    return ("embedding", "head") if tied and "head" in framework.kept_parts else framework.kept_parts


def _end(model: Model, layout: Layout, framework: Framework, part: str) -> Num:
    content = ChunkContent(0, embedding=part == "embedding", head=part == "head")
    return split_parameters(layout, framework, held_parameters(model, layout, framework, content))
