"""Schedules with one chunk a stage and whole backward passes: GPipe and 1F1B."""

from __future__ import annotations

from shardsim.values.pipeline import looped
from shardsim.values.program import PipelineSchedule
from shardsim.workload.schedules.orders import passes, warm_up_then_alternate, warm_up_then_pair


def gpipe(stages: int, microbatches: int) -> PipelineSchedule:
    """All forward passes, then all backward passes, first in first out.

    Parameters
    ----------
    stages, microbatches : int
        p and m (-).

    Returns
    -------
    PipelineSchedule

    Notes
    -----
    Huang et al. 2019, arXiv 1811.06965 §2.3.
    """
    order = passes("F", microbatches) + passes("B", microbatches)
    return PipelineSchedule("gpipe", (order,) * stages, (looped(stages),), microbatches)


def one_forward_one_backward(stages: int, microbatches: int) -> PipelineSchedule:
    """1F1B: p - r - 1 forward passes on stage r, then a forward and a backward in turn, then the rest.

    Parameters
    ----------
    stages, microbatches : int
        p and m (-).

    Returns
    -------
    PipelineSchedule

    Notes
    -----
    arXiv 2104.04473 §2.2.1.
    """
    forward, backward = passes("F", microbatches), passes("B", microbatches)
    orders = tuple(warm_up_then_alternate(forward, backward, stages - stage - 1) for stage in range(stages))
    return PipelineSchedule("1f1b", orders, (looped(stages),), microbatches)


def paired_without_pipeline(stages: int, microbatches: int) -> PipelineSchedule:
    """Run each forward pass but the first as one with the backward pass of the micro-batch before.

    Parameters
    ----------
    stages, microbatches : int
        1, and m (-).

    Returns
    -------
    PipelineSchedule

    Notes
    -----
    Megatron-LM's ``--overlap-moe-expert-parallel-comm`` (github NVIDIA/Megatron-LM,
    megatron/core/pipeline_parallel/combined_1f1b.py).
    """
    order = warm_up_then_pair(passes("F", microbatches), passes("B", microbatches), 1)
    return PipelineSchedule("1f1b", (order,) * stages, (looped(stages),), microbatches)
