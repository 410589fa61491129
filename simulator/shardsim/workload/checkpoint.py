"""Bytes that a checkpoint saves: weights and optimizer states, each once."""

from __future__ import annotations

from dataclasses import replace

from shardsim.values.num import Num, larger
from shardsim.values.training import Batch, Framework, Layout, Model
from shardsim.workload.schedules import schedule_of
from shardsim.workload.stages import chunk_contents
from shardsim.workload.states import stage_held, state_bytes

_FP32 = 4


def saved_bytes(framework: Framework, layout: Layout) -> Num:
    """Bytes that are saved for each parameter.

    Parameters
    ----------
    framework : Framework
    layout : Layout

    Returns
    -------
    Num
        [bytes]: the weight, its fp32 master where there is one, and two moments; no gradient. 14 with Adam in mixed
        precision: arXiv 2104.04473 §5.10 has 13.8 TB for 10^12 parameters.
    """
    # Gradients in fp32 have no copy among the optimizer's states, which nobody saves.
    states = state_bytes(replace(framework, gradient_bytes=_FP32), layout, shards=1)
    return states.weights + states.optimizer


def checkpoint_bytes(model: Model, layout: Layout, batch: Batch, framework: Framework) -> tuple[Num, Num]:
    """Bytes of a checkpoint, and of what the rank with most of it saves.

    Parameters
    ----------
    model : Model
    layout : Layout
    batch : Batch
    framework : Framework

    Returns
    -------
    whole, rank : Num
        [bytes]. Ranks that hold the same save equal parts of it (github NVIDIA/Megatron-LM, megatron/training/
        arguments.py, ckpt_fully_parallel_save, which is on by default). Small weights that tensor-parallel ranks hold
        alike count for each of them.
    """
    schedule = schedule_of(layout, batch)
    contents = chunk_contents(model, layout, schedule)
    replicas = layout.dp * layout.cp
    replicas_of_experts = replicas * layout.tp / (layout.ep * layout.etp)
    each = saved_bytes(framework, layout)
    whole: Num = 0.0
    most: Num = 0.0
    for stage in range(schedule.stages):
        held = stage_held(model, layout, framework, (one for place, one in contents.items() if place[0] == stage))
        rank = each * (held.shared / replicas + held.expert / replicas_of_experts) / schedule.copies
        whole, most = whole + rank * layout.tp * replicas, larger(most, rank)
    return whole, most
