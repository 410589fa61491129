"""Compares an iteration on some ranks with what DeepSeek published: its parts (arXiv 2505.09343, Table 4), one pair.

The pair is that of the published trace (github deepseek-ai/profile-data, train.json), of four layers with experts, as
every rank here has them but the first.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

import shardsim
from shardsim.values.results import PAIR, PASS_KINDS

PUBLISHED = {"F": 1.13, PAIR: 13.95, "B": 1.99, "W": 0.48, "end": 0.29, "bubble": 2.06}
NAMES = {
    "F": "forward passes",
    PAIR: "forward and backward passes as pairs",
    "B": "backward passes, whole or of inputs",
    "W": "weight gradients",
    "end": "gradients, optimizer, parameters",
    "bubble": "bubble",
}
ITERATION, ONE_PAIR = 19.926, 0.1290

prediction = shardsim.simulate("../../workloads/runs/deepseek-v3.yaml", engine="listing", timeline=True)


def passes(stage: int) -> dict[tuple[int, ...], list[float]]:
    """Start and end of each pass of one rank [s], by kind, micro-batch and chunk."""
    timeline = prediction.execution.timeline
    spans: dict[tuple[int, ...], list[float]] = {}
    for row in np.flatnonzero(timeline.stage == stage):
        if timeline.kind[row] < 0 or timeline.labels[timeline.label[row]][1] == "dp":
            continue  # gradients and parameters on their way, and what follows the last pass
        key = tuple(int(column[row]) for column in (timeline.kind, timeline.microbatch, timeline.chunk))
        span = spans.setdefault(key, [timeline.start[row], timeline.finish[row]])
        span[0], span[1] = min(span[0], timeline.start[row]), max(span[1], timeline.finish[row])
    return spans


def parts(stage: int) -> dict[str, float]:
    """Seconds of one rank by kind of pass, of what follows the last of them, and of the rest."""
    spans = passes(stage)
    found = dict.fromkeys(PUBLISHED, 0.0)
    for (kind, *_), (start, finish) in spans.items():
        name = PASS_KINDS[kind]
        found["B" if name == "I" else name] += finish - start
    found["end"] = prediction.iteration_s - max(finish for _, finish in spans.values())
    found["bubble"] = prediction.iteration_s - sum(found.values())
    return found


def one_pair(stage: int) -> float:
    """Mean time of a pair of passes on one rank [s]."""
    return float(
        np.mean([finish - start for (kind, *_), (start, finish) in passes(stage).items() if PASS_KINDS[kind] == PAIR])
    )


STAGES = (0, 1, 7)
columns = [parts(stage) for stage in STAGES]
lines = [f"{'seconds of an iteration':40}{'published':>10}" + "".join(f"{f'rank {stage}':>9}" for stage in STAGES)]
for kind, seconds in PUBLISHED.items():
    lines.append(f"{NAMES[kind]:40}{seconds:10.2f}" + "".join(f"{found[kind]:9.2f}" for found in columns))
lines.append(f"{'in all':40}{ITERATION:10.2f}" + f"{prediction.iteration_s:9.2f}" * len(STAGES))
alone = "".join(f"{one_pair(stage) * 1e3:9.0f}" if stage else f"{'':9}" for stage in STAGES)
lines.append(f"{'one pair of four layers with experts, ms':40}{ONE_PAIR * 1e3:10.0f}" + alone)
Path("step.txt").write_text("\n".join(lines) + "\n")
