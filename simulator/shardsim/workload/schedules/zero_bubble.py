"""Schedules that put off weight gradients to fill the bubble, one chunk a stage: ZB-H1 and ZB-H2."""

from __future__ import annotations

from shardsim.values.pipeline import looped
from shardsim.values.program import PipelineSchedule
from shardsim.workload.schedules.orders import passes, warm_up_then_alternate, with_weight_gradients


def zb_h1(stages: int, microbatches: int) -> PipelineSchedule:
    """1F1B with the weight gradients of up to r micro-batches put off on stage r: no more memory than 1F1B.

    Parameters
    ----------
    stages, microbatches : int
        p and m (-).

    Returns
    -------
    PipelineSchedule

    Notes
    -----
    Qi et al. 2023, arXiv 2401.10241 §2 and Table 2: the first stage idles (p - 1) (T_F + T_I - T_W).
    """
    return _handcrafted("zb-h1", stages, microbatches, depth=1)


def zb_h2(stages: int, microbatches: int) -> PipelineSchedule:
    """2 (p - r) - 1 forward passes before the first backward: twice the memory, no bubble inside a stage's span.

    Parameters
    ----------
    stages, microbatches : int
        p and m (-).

    Returns
    -------
    PipelineSchedule

    Notes
    -----
    Qi et al. 2023, arXiv 2401.10241 §2 and Figure 3. Stages start and end one after the other; the optimizer step
    must not wait for all of them.
    """
    return _handcrafted("zb-h2", stages, microbatches, depth=2)


def _handcrafted(name: str, stages: int, microbatches: int, depth: int) -> PipelineSchedule:
    forward, backward = passes("F", microbatches), passes("I", microbatches)
    orders = tuple(
        tuple(with_weight_gradients(warm_up_then_alternate(forward, backward, warm_up), depth * stage))
        for stage, warm_up in enumerate(depth * (stages - stage - 1) for stage in range(stages))
    )
    return PipelineSchedule(name, orders, (looped(stages),), microbatches)
