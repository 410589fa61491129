"""Memory beside states and activations: communication, buckets, what an optimizer step needs for a moment."""

from __future__ import annotations

from collections.abc import Sequence

from shardsim.values.num import Num, larger, where
from shardsim.values.training import Batch, Framework, Layout, Model
from shardsim.workload.data_parallel import expert_shards
from shardsim.workload.parameters import HeldParameters
from shardsim.workload.pipeline import p2p_message
from shardsim.workload.shapes import element_bytes, shapes
from shardsim.workload.stages import ChunkContent
from shardsim.workload.states import adds_up_whole, largest_units, split_parameters
from shardsim.workload.under_way import exchange_buffer_bytes


def buffer_bytes(
    model: Model,
    layout: Layout,
    batch: Batch,
    framework: Framework,
    contents: Sequence[ChunkContent],
    held: HeldParameters,
) -> Num:
    """Buffers that are there all the time.

    Parameters
    ----------
    model : Model
    layout : Layout
    batch : Batch
    framework : Framework
    contents : sequence of ChunkContent
        Those of the rank.
    held : HeldParameters
        Of the rank.

    Returns
    -------
    Num
        Workspaces of libraries; inputs gathered under sequence parallelism; a message to and one from another stage;
        what a dispatcher registers for tokens on their way; gradients in buckets, where these are copies; from ZeRO 2
        on, the gradients of one unit before they are scattered, or of a bucket where they are copied into one [bytes].
    """
    total: Num = framework.workspace_bytes
    if model.moe is not None:
        total = total + exchange_buffer_bytes(model, layout, shapes(model, layout, batch, framework))
    if layout.sp:
        total = total + framework.gather_buffers * shapes(model, layout, batch, framework).hidden_bytes
    if layout.pp > 1:
        total = total + 2 * p2p_message(model, layout, batch, framework).size
    total = total + where(layout.dp > 1, _buckets(layout, framework, held), 0.0 * held.total)
    if layout.zero >= 2 and not adds_up_whole(layout, framework):
        total = total + _scattered(model, layout, framework, contents)
    return total


def _buckets(layout: Layout, framework: Framework, held: HeldParameters) -> Num:
    if framework.bucket_copies and framework.overlap_grad_reduce == "always":
        return held.total * framework.gradient_bytes
    if framework.ddp_buckets and layout.zero == 0:
        return held.total * element_bytes(framework)
    return 0.0 * held.total


def _scattered(model: Model, layout: Layout, framework: Framework, contents: Sequence[ChunkContent]) -> Num:
    """What gradients are scattered from: those of the largest unit, or flat buffers."""
    if framework.reduces_units:
        return largest_units(model, layout, framework, contents, 1) * framework.gradient_bytes
    return where(layout.shards > 1, _flat(layout, framework), 0.0)


def _flat(layout: Layout, framework: Framework) -> float:
    """Buffers that gradients are copied into, of a bucket each: two where ZeRO 2 fills one while it reduces the other.

    github deepspeedai/DeepSpeed, deepspeed/runtime/zero: stage3.py, and stage_1_and_2.py with overlap_comm.
    """
    return framework.bucket_bytes * (2 if layout.zero == 2 and framework.overlap_grad_reduce == "always" else 1)


def passing_bytes(model: Model, layout: Layout, batch: Batch, framework: Framework, layers: int, warm_up: int) -> Num:
    """Tensors that passes have freed and that cannot be used again yet, because a communication stream reads them.

    Parameters
    ----------
    model : Model
    layout : Layout
    batch : Batch
    framework : Framework
        Its ``runs_ahead`` and ``tensors_run_ahead``.
    layers : int
        Of the rank (-).
    warm_up : int
        Forward passes before its first backward pass (-).

    Returns
    -------
    Num
        Outputs of the two row-parallel projections of a layer before they are scattered, b s h elements each [bytes].
        Where the host waits for the device, at a message that it receives, nothing is held up any more; the last of
        the forward passes comes after such a message, and the one before it is done by then.
    """
    passes = {"never": 0, "without_pipeline": int(layout.pp == 1), "warm_up": max(warm_up - 2, 0)}
    if not layout.sp or not passes[framework.runs_ahead]:
        return 0.0
    tensors = min(2 * layers * passes[framework.runs_ahead], framework.tensors_run_ahead)
    return tensors * shapes(model, layout, batch, framework).hidden_bytes


def stepping_bytes(
    model: Model,
    layout: Layout,
    framework: Framework,
    contents: Sequence[ChunkContent],
    held: HeldParameters,
    copies: int = 1,
) -> Num:
    """What is needed for a moment after the last pass.

    Parameters
    ----------
    model : Model
    layout : Layout
    framework : Framework
    contents : sequence of ChunkContent
        Those of the rank.
    held : HeldParameters
        Of the rank.
    copies : int
        Copies of the parameters in one pipeline (-), over which ZeRO splits the update, too.

    Returns
    -------
    Num
        Temporaries of the update, and under ZeRO 1 and 2 the updated weights on their way through flat copies where
        the framework gathers so: a rank's part, and the whole twice; what gradients are scattered from, where that
        comes after the last pass and they are whole until then [bytes].
    """
    split = layout.zero > 0
    updated = held.shared / (layout.shards if split else 1) + held.expert / (expert_shards(layout) if split else 1)
    updated = updated / (copies if split else 1)
    total = updated * framework.step_bytes
    if framework.gathers_by_copy and layout.zero in (1, 2):
        flat = (2 * split_parameters(layout, framework, held) + updated) * element_bytes(framework)
        total = total + where(layout.dp > 1, flat, 0.0 * flat)
    if adds_up_whole(layout, framework):
        # Whole gradients go while parts appear: the first moment of that is the fullest, and the update comes later.
        total = larger(total, _scattered(model, layout, framework, contents))
    return total
