"""Layers of pipeline stages, dealt out so that products of all stages take about as long."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate


def split_by_cost(costs: Sequence[float], head: float, stages: int) -> tuple[int, ...]:
    """Deal out the layers: a stage takes layers until those dealt out reach its share of the whole.

    Parameters
    ----------
    costs : sequence of float
        Of each layer, first layer first, in any unit.
    head : float
        Of the LM head, in the same unit.
    stages : int
        p (-).

    Returns
    -------
    tuple of int
        Layers of each stage (-); the last stages may have none, where the head costs as much as they would.

    Notes
    -----
    github huggingface/nanotron, src/nanotron/models/base.py, build_model: stage r ends where the cumulated cost reaches
    (r + 1)/p of the sum.

    Examples
    --------
    >>> split_by_cost([1.0] * 16, head=4.0, stages=4)
    (5, 5, 5, 1)
    """
    total = sum(costs) + head
    split = [0] * stages
    stage = 0
    for dealt in accumulate(costs):
        split[stage] += 1
        if dealt >= total * (stage + 1) / stages and stage < stages - 1:
            stage += 1
    return tuple(split)
