"""Two chunks a stage in the shape of a V, weight gradients apart: ZB-V, V-Half and V-Min."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shardsim.values.pipeline import v_shaped
from shardsim.values.program import Pass, PipelineSchedule
from shardsim.workload.schedules.building_block import Block, orders_from_blocks
from shardsim.workload.schedules.orders import Chunk


def zb_v(stages: int, microbatches: int) -> PipelineSchedule:
    """No bubble inside a stage's span where F, I and W take the same time, with the memory of 1F1B on every stage.

    Parameters
    ----------
    stages, microbatches : int
        p and m (-).

    Returns
    -------
    PipelineSchedule

    Notes
    -----
    Qi et al. 2023, arXiv 2401.10241 §6; order as in github pytorch/pytorch, ``torch/distributed/pipelining/
    schedules.py``, ``ScheduleZBVZeroBubble``. Fewer than 2 p - 1 micro-batches run the order for that many, less the
    passes of those that are missing.
    """
    full = max(microbatches, 2 * stages - 1)
    orders = tuple(
        tuple(one for one in _zb_v(stages, full, stage) if one.microbatch < microbatches) for stage in range(stages)
    )
    return PipelineSchedule("zb-v", orders, (v_shaped(stages),), microbatches)


def _zb_v(stages: int, microbatches: int, stage: int) -> Iterator[Pass]:
    down, up = Chunk(0), Chunk(1)
    rest = stages - stage
    first = 2 * stages - stage - 1
    yield from down.run(2 * rest - 1, "F")
    for _ in range(stage):
        yield up.next("F")
        yield down.next("F")
    yield from up.run(rest, "F", "I", "W")
    for turn in range(microbatches - stages):
        if turn < microbatches - first:
            yield down.next("F")
        yield from down.run(1, "I", "W")
        yield from up.run(1, "F", "I", "W")
    for _ in range(stage):
        yield down.next("I")
        yield up.next("I")
    yield from down.run(rest, "I", "W")
    yield from up.run(stage, "W")
    yield from down.run(stage, "W")


def v_half(stages: int, microbatches: int) -> PipelineSchedule:
    """Half the activations of 1F1B and half its bubble, up to a constant, where F, I and W take the same time.

    Parameters
    ----------
    stages, microbatches : int
        p and m (-).

    Returns
    -------
    PipelineSchedule

    Notes
    -----
    Qi et al. 2024, arXiv 2405.15362; offsets of its building block, and how warm-up and cool-down are reordered, as in
    github sail-sg/zero-bubble-pipeline-parallelism, ``megatron/core/pipeline_parallel/zerobubble/scheduler/
    zbv_greedy.py``.
    """
    gap = 0 if stages % 2 else 3
    blocks = [
        (2 * r, 3 * stages - r - 2, 3 * stages + gap + 2 * r - 1, 6 * stages + gap - r - 2) for r in range(stages)
    ]
    return _from_blocks("v-half", blocks, microbatches)


def v_min(stages: int, microbatches: int) -> PipelineSchedule:
    """A third of the activations of 1F1B and two thirds of its bubble, up to a constant, as :func:`v_half`.

    Parameters
    ----------
    stages, microbatches : int
        p and m (-).

    Returns
    -------
    PipelineSchedule

    Notes
    -----
    As :func:`v_half`.
    """
    gap = 0 if stages % 3 else 2
    blocks = [(r, 2 * stages - r - 1, 2 * stages + gap + r, 4 * stages + gap - r - 1) for r in range(stages)]
    return _from_blocks("v-min", blocks, microbatches)


def _from_blocks(name: str, blocks: Sequence[Block], microbatches: int) -> PipelineSchedule:
    return PipelineSchedule(name, orders_from_blocks(blocks, microbatches), (v_shaped(len(blocks)),), microbatches)
