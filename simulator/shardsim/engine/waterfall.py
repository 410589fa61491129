"""From peak FLOP/s down to achieved: every second of the mean rank has a name, and the steps sum exactly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shardsim.engine.accounts import HOST, JITTER, STRAGGLERS
from shardsim.engine.interference import INTERFERENCE
from shardsim.values.results import StageAccount, WaterfallStep

_TITLES = {
    "gemm": "matrix products below peak",
    "attention": "attention below peak",
    "memory-bound": "memory-bound kernels",
    "recompute": "recompute",
    "tp": "tensor-parallel communication",
    "cp": "context-parallel communication",
    "ep": "expert-parallel communication",
    "pp": "pipeline communication",
    "dp": "data-parallel communication",
    "optimizer": "optimizer and gradient norm",
    "data": "waiting for the next batch",
    HOST: "waiting for the host to launch kernels",
    INTERFERENCE: "slowed by overlapping communication",
    STRAGGLERS: "waiting for slower ranks of a group",
    JITTER: "passes that took longer at random",
    "bubble": "pipeline bubble and waiting for other stages",
}


def mean_seconds(stages: Sequence[StageAccount]) -> dict[str, float]:
    """Time of the mean rank by category, in a fixed order; it sums to the iteration time [s]."""
    known = [category for category in _TITLES if any(category in account.seconds for account in stages)]
    others = sorted({category for account in stages for category in account.seconds} - set(known))
    return {
        category: float(sum(account.seconds.get(category, 0.0) for account in stages)) / len(stages)
        for category in [*known, *others]
    }


def waterfall(
    seconds: Mapping[str, float], *, gemm_flop: float, attention_flop: float, peak: float, iteration_s: float
) -> tuple[WaterfallStep, ...]:
    """Steps from the dense peak down to the achieved model FLOP/s of one GPU.

    Parameters
    ----------
    seconds : mapping of str to float
        Time of the mean rank by category, summing to the iteration time [s].
    gemm_flop, attention_flop : float
        Counted model FLOP of one GPU (-): without recompute, attention over the full square of scores.
    peak : float
        Dense peak [FLOP/s].
    iteration_s : float
        [s].

    Returns
    -------
    tuple of WaterfallStep
        ``peak - sum(flops_lost)`` is the achieved rate. What took no time is left out. A negative step gains: fused
        causal attention executes half of the scores that are counted.
    """
    ideal = {"gemm": gemm_flop / peak, "attention": attention_flop / peak}
    if "attention" not in seconds:
        ideal = {"gemm": ideal["gemm"] + ideal["attention"]}
    return tuple(
        WaterfallStep(
            name=_TITLES.get(category, category),
            seconds=spent - ideal.get(category, 0.0),
            flops_lost=(spent - ideal.get(category, 0.0)) / iteration_s * peak,
        )
        for category, spent in seconds.items()
        if spent or category in ideal
    )
