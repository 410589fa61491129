"""The step of DeepSeek-V3 on 2,048 H800 and its parts, as published (arXiv 2505.09343, Table 4).

Of which rank the parts are is not published: those of the first are compared, which is the slowest here. The run is the
one that is shipped; the published bubble and optimizer stand beside these parts in reports/deepseek-v3-layout.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

import shardsim
from shardsim.values.results import PAIR, PASS_KINDS, Prediction

RUN = Path(__file__).resolve().parents[2] / "workloads" / "runs" / "deepseek-v3.yaml"


@pytest.fixture(scope="module")
def prediction() -> Prediction:
    return shardsim.simulate(RUN, engine="listing", timeline=True)


@pytest.fixture(scope="module")
def first_rank(prediction: Prediction) -> Mapping[str, float]:
    """Seconds between start and end of its passes, by kind."""
    timeline = prediction.execution.timeline
    assert timeline is not None
    spans: dict[tuple[int, ...], tuple[float, float]] = {}
    for row in np.flatnonzero((timeline.stage == 0) & (timeline.kind >= 0)):
        if timeline.labels[timeline.label[row]][1] == "dp":
            continue  # gradients and parameters, which travel beside passes and after them
        key = tuple(int(column[row]) for column in (timeline.kind, timeline.microbatch, timeline.chunk))
        begin, end = spans.get(key, (np.inf, -np.inf))
        spans[key] = min(begin, timeline.start[row]), max(end, timeline.finish[row])
    found = dict.fromkeys(("F", "B", "I", "W", PAIR), 0.0)
    for (kind, *_), (begin, end) in spans.items():
        found[PASS_KINDS[kind]] += end - begin
    return found


def test_a_step_takes_what_was_published(prediction: Prediction) -> None:
    assert prediction.iteration_s == pytest.approx(19.926, rel=0.08)


@pytest.mark.parametrize(
    ("kinds", "published", "within"),
    [(("F",), 1.13, 0.15), (("B", "I"), 1.99, 0.1), (("W",), 0.48, 0.06), ((PAIR,), 13.95, 0.05)],
)
def test_the_parts_of_a_step_take_what_was_published(
    first_rank: Mapping[str, float], kinds: tuple[str, ...], published: float, within: float
) -> None:
    """Passes by themselves, backward ones whole or of inputs, weight gradients, and forward and backward as a pair."""
    assert sum(first_rank[kind] for kind in kinds) == pytest.approx(published, rel=within)
