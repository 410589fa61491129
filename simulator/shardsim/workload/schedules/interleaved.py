"""Interleaved 1F1B: several chunks a stage, micro-batches in groups through each."""

from __future__ import annotations

from collections.abc import Sequence

from shardsim.values.pipeline import looped
from shardsim.values.program import Pass, PassKind, PipelineSchedule
from shardsim.workload.schedules.orders import warm_up_then_alternate, warm_up_then_pair


def interleaved(stages: int, microbatches: int, chunks: int, group: int, *, paired: bool = False) -> PipelineSchedule:
    """Interleaved 1F1B: each stage holds several chunks and runs micro-batches in groups through each.

    Parameters
    ----------
    stages, microbatches, chunks, group : int
        p, m, v and N (-). N is p for depth first, m for breadth first, or between them; the last group may be smaller.
    paired : bool
        Whether a forward and a backward pass of the steady state run as one. One more pass warms a stage up, so that
        they are of different micro-batches and neither waits for the other.

    Returns
    -------
    PipelineSchedule

    Notes
    -----
    arXiv 2104.04473 §2.2.2; N from arXiv 2407.21783 §3.3.2; warm-up of 2 (p - r - 1) + (v - 1) N passes on stage r
    and groups cut short at the end as in github NVIDIA/Megatron-LM, megatron/core/pipeline_parallel/schedules.py;
    pairs are its ``--overlap-moe-expert-parallel-comm`` (combined_1f1b.py there).
    """
    forward = _grouped("F", group, microbatches, range(chunks))
    backward = _grouped("B", group, microbatches, range(chunks - 1, -1, -1))
    warm_up = ((stages - stage - 1) * 2 + (chunks - 1) * group + paired for stage in range(stages))
    arranged = warm_up_then_pair if paired else warm_up_then_alternate
    orders = tuple(arranged(forward, backward, count) for count in warm_up)
    return PipelineSchedule("interleaved", orders, (looped(stages, chunks),), microbatches)


def _grouped(kind: PassKind, group: int, microbatches: int, chunks: Sequence[int]) -> tuple[Pass, ...]:
    return tuple(
        Pass(kind, microbatch, chunk)
        for start in range(0, microbatches, group)
        for chunk in chunks
        for microbatch in range(start, min(start + group, microbatches))
    )
