"""Device memory of one rank, as bytes that each part of training takes and the passes that take and give them back.

States are those of :mod:`shardsim.workload.states`, activations those of :mod:`shardsim.workload.activations`;
:mod:`shardsim.workload.occupancy` adds up what is held when.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import takewhile

from shardsim.values.num import Num, larger, where
from shardsim.values.program import PipelineSchedule, passes_of
from shardsim.values.training import Batch, Framework, Layout, Model
from shardsim.workload.activations import chunk_activations
from shardsim.workload.buffers import buffer_bytes, passing_bytes, stepping_bytes
from shardsim.workload.kinds import is_expert_layer
from shardsim.workload.parameters import held_parameters, linear_weights, padded_vocab
from shardsim.workload.quantization import weight_copies
from shardsim.workload.shapes import element_bytes, shapes
from shardsim.workload.stages import ChunkContent, chunk_contents
from shardsim.workload.states import gathered_bytes, kept_gradients, stage_held, stage_states

_FP32 = 4
_MASK = 1


@dataclass(frozen=True, slots=True)
class ChunkAllocation:
    """What the passes of one chunk take, for each micro-batch.

    Parameters
    ----------
    kept : Num
        From the forward pass to the end of the backward pass, or of the input-gradient pass [bytes].
    weight_gradient : Num
        From the input-gradient pass to the end of the weight-gradient pass [bytes].
    working_set : Num
        What recomputation takes at the fullest moment of a backward or input-gradient pass beyond ``kept`` [bytes].
    loss : Num
        What the loss keeps as long as ``kept``: the fp32 softmax over the vocabulary [bytes].
    logits : Num
        What the loss needs besides, during the forward pass [bytes].
    gradients : Num
        Gradients of a whole backward pass in the type of the weights, where they are added to those of other passes
        after it [bytes].
    input_working_set : Num
        The same as ``working_set`` in the middle of an input-gradient pass, when the loss is over and later layers have
        left what their weight gradients need [bytes].
    under_way : Num
        Tokens and keys on their way at the fullest moment of a layer, forward or backward, when there is no loss yet,
        or no more [bytes].
    """

    kept: Num = 0.0
    weight_gradient: Num = 0.0
    working_set: Num = 0.0
    loss: Num = 0.0
    logits: Num = 0.0
    gradients: Num = 0.0
    input_working_set: Num = 0.0
    under_way: Num = 0.0


@dataclass(frozen=True, slots=True)
class StageAllocation:
    """What one rank of a stage allocates.

    Parameters
    ----------
    weights, gradients, optimizer : Num
        Held all the time [bytes].
    chunks : tuple of ChunkAllocation
        For each chunk of the stage.
    buffers : Num
        Held all the time [bytes].
    gathered : Num
        Weights that full sharding has gathered while passes run [bytes].
    passing : Num
        Freed while passes run and not to be used again yet [bytes].
    stepping : Num
        What the optimizer step needs, when no pass runs [bytes].
    context : Num
        Framework and libraries [bytes].
    allocated_share : float
        Share of the memory reserved for tensors that tensors fill (-); the rest is fragmentation.
    activation_share : float
        The same share of the memory reserved for what passes allocate and free (-), before ``allocated_share``.
    """

    weights: Num
    gradients: Num
    optimizer: Num
    chunks: tuple[ChunkAllocation, ...]
    buffers: Num = 0.0
    gathered: Num = 0.0
    passing: Num = 0.0
    stepping: Num = 0.0
    context: Num = 0.0
    allocated_share: float = 1.0
    activation_share: float = 1.0


def stage_allocations(
    model: Model, layout: Layout, batch: Batch, framework: Framework, schedule: PipelineSchedule
) -> tuple[StageAllocation, ...]:
    """Allocate one rank of every stage.

    Parameters
    ----------
    model : Model
    layout : Layout
        ``pp`` and ``vpp`` are scalars; ``tp``, ``dp`` ... may be arrays over layouts.
    batch : Batch
    framework : Framework
    schedule : PipelineSchedule
        Which chunks each stage holds.

    Returns
    -------
    tuple of StageAllocation

    Raises
    ------
    InputError
        The layers do not divide over the schedule's chunks.
    """
    contents = chunk_contents(model, layout, schedule)
    known: dict[ChunkContent, ChunkAllocation] = {}
    stages: list[StageAllocation] = []
    for stage in range(schedule.stages):
        places = sorted(place for place in contents if place[0] == stage)
        for place in places:
            if contents[place] not in known:
                known[contents[place]] = chunk_allocation(model, layout, batch, framework, contents[place])
        mine = tuple(contents[place] for place in places)
        chunks = tuple(known[content] for content in mine)
        warm_up = sum(1 for _ in takewhile(lambda one: one.kind == "F", passes_of(schedule.orders[stage])))
        stages.append(_stage(model, layout, batch, framework, mine, chunks, warm_up, schedule.copies))
    return tuple(stages)


def chunk_allocation(
    model: Model, layout: Layout, batch: Batch, framework: Framework, content: ChunkContent
) -> ChunkAllocation:
    """Count what the passes of one chunk allocate for a micro-batch.

    Parameters
    ----------
    model : Model
    layout : Layout
    batch : Batch
    framework : Framework
    content : ChunkContent
        Its layers and ends.

    Returns
    -------
    ChunkAllocation
    """
    sizes = shapes(model, layout, batch, framework)
    layers = chunk_activations(model, layout, batch, framework, content)
    kept, waiting, rebuilt = layers.kept, layers.weight_gradient, layers.input_working_set
    loss: Num = 0.0
    logits: Num = 0.0
    if content.embedding and framework.dropout:
        kept = kept + sizes.local_hidden * _MASK
    if content.head:
        vocab = padded_vocab(model, framework, layout.tp) / layout.tp
        # Each further token that is predicted has a loss of its own; the norm in front of the head is its module's.
        losses = 1 + model.mtp
        loss, logits = losses * sizes.tokens * vocab * _FP32, sizes.tokens * vocab * _logit_bytes(framework)
        ends = (1 + losses) * sizes.local_hidden * sizes.element_bytes
        # The weight gradient of the head multiplies the norm's output by the gradient of the logits.
        left = losses * (sizes.local_hidden + sizes.tokens * vocab) * sizes.element_bytes
        kept, waiting, rebuilt = kept + ends, waiting + left, rebuilt + left - ends
    apart = framework.backward_gradients == "pass" and framework.gradient_bytes != element_bytes(framework)
    held = held_parameters(model, layout, framework, content).total if apart else 0.0
    return ChunkAllocation(
        kept=kept,
        weight_gradient=waiting,
        working_set=layers.working_set,
        loss=loss,
        logits=logits,
        gradients=held * element_bytes(framework),
        input_working_set=rebuilt,
        under_way=layers.under_way,
    )


def _stage(
    model: Model,
    layout: Layout,
    batch: Batch,
    framework: Framework,
    contents: Sequence[ChunkContent],
    chunks: tuple[ChunkAllocation, ...],
    warm_up: int,
    copies: int,
) -> StageAllocation:
    held = stage_held(model, layout, framework, contents)
    states = stage_states(layout, framework, held, copies)
    layers = sum(content.layers + content.mtp for content in contents)
    narrow = _narrow_weights(model, layout, contents) * weight_copies(framework.low_precision)
    return StageAllocation(
        weights=states.weights + narrow,
        gradients=states.gradients + kept_gradients(model, layout, framework, contents, held),
        optimizer=states.optimizer,
        chunks=chunks,
        buffers=buffer_bytes(model, layout, batch, framework, contents, held),
        gathered=gathered_bytes(model, layout, framework, contents),
        passing=passing_bytes(model, layout, batch, framework, layers, warm_up),
        stepping=stepping_bytes(model, layout, framework, contents, held, copies),
        context=framework.context_bytes,
        allocated_share=framework.allocated_share,
        activation_share=framework.activation_share,
    )


def _narrow_weights(model: Model, layout: Layout, contents: Sequence[ChunkContent]) -> Num:
    """Count the weights that are there in a narrow type too.

    They are kept over the micro-batches of an iteration, but where a layer is given up after each pass: then they are
    made anew from what was gathered, and only those of the largest layer are there at a time.
    """
    whole = sum((linear_weights(model, layout, content) for content in contents), 0.0)
    if layout.zero < 3 or not layout.reshard:
        return whole
    first = {is_expert_layer(model, at): at for one in contents for at in range(one.first, one.first + one.layers)}
    kinds = [ChunkContent(1, embedding=False, head=False, first=at) for at in first.values()]
    layers = [linear_weights(model, layout, kind) for kind in kinds]
    return where(layout.shards > 1, reduce(larger, layers, 0.0 * whole), whole)


def _logit_bytes(framework: Framework) -> int:
    """Bytes a logit during the forward pass, beside the softmax that is kept.

    In place: the 16-bit logits that the fp32 ones came from. Else a clone of the fp32 logits and a buffer for the
    exponentials, unless the framework says what there is.
    """
    if framework.loss_moment_bytes:
        return framework.loss_moment_bytes
    return element_bytes(framework) if framework.loss_in_place else 2 * _FP32
