"""The error band of a prediction: that of the validated runs most like it."""

from __future__ import annotations

from collections.abc import Iterator

from shardsim.program.features import features_of
from shardsim.schema.changes import SOURCE as SET_BY_USER
from shardsim.values.bands import ErrorBand, ValidatedGroup
from shardsim.values.conditions import NORMAL
from shardsim.values.features import RunFeatures
from shardsim.values.training import TrainingRun

_WORDS = {
    "gpus": "GPUs",
    "seq": "tokens a sequence",
    "micro_batch": "sequences a micro-batch",
    "hidden": "hidden size",
    "tp": "TP",
    "pp": "PP",
    "cp": "CP",
    "ep": "EP",
    "dp": "DP",
}
RANGES = tuple(_WORDS)
"""Figures whose ranges a group keeps."""

_BEYOND = 1.5
"""Figures this many times beyond what was validated are said to lie beyond it (-)."""


def error_band(run: TrainingRun, iteration_s: float) -> ErrorBand | None:
    """Say where the measured time would lie.

    Parameters
    ----------
    run : TrainingRun
    iteration_s : float
        Predicted [s].

    Returns
    -------
    ErrorBand or None
        None where no validated runs are known.
    """
    features = features_of(run)
    group = next((group for group in run.validated if _has(group, features)), None)
    if group is None:
        return None
    beyond = (*_unlike(group, features), *_outside(group, features), *_changed(run))
    low, high = group.low, group.high
    if not (group.framework and group.generation):
        # Other devices and stacks err otherwise than the mean of those validated: by as much as any of them.
        alike = [one for one in run.validated if one.kind in ("", features.kind)]
        low, high = min(one.low for one in alike), max(one.high for one in alike)
    return ErrorBand(iteration_s * low, iteration_s * high, group, beyond)


def _has(group: ValidatedGroup, features: RunFeatures) -> bool:
    """Whether a run has what a group's runs have in common."""
    return all(getattr(group, name) in ("", getattr(features, name)) for name in ("framework", "generation", "kind"))


def _unlike(group: ValidatedGroup, features: RunFeatures) -> Iterator[str]:
    if not group.generation:
        yield f"fewer than ten validated runs of this kind on {features.generation}: the widest band of all is taken"
    elif not group.framework:
        under = f"{features.generation} under {features.framework}"
        yield f"fewer than ten validated runs on {under}: the widest band of all is taken"
    if features.precision not in group.precisions:
        yield f"{features.precision}: validated runs like it are in {', '.join(group.precisions)}"


def _outside(group: ValidatedGroup, features: RunFeatures) -> Iterator[str]:
    for name, word in _WORDS.items():
        least, most = group.ranges.get(name, (0, 0))
        value = getattr(features, name)
        if most and (value > _BEYOND * most or value * _BEYOND < least):
            validated = f"{least:,}" if least == most else f"{least:,} to {most:,}"
            yield f"{word} {value:,}: validated runs like it have {validated}"


def _changed(run: TrainingRun) -> Iterator[str]:
    if run.conditions != NORMAL:
        yield "conditions are set: validated runs had a machine in order, as far as their tables say"
    cluster = run.cluster
    if any(SET_BY_USER in one.source for one in (cluster.device, cluster.nvlink, cluster.nic)):
        yield "figures of the machine are set: no validated run had them"
    if any(SET_BY_USER in origin.source for origin in run.profile.stack.provenance.values()):
        yield "constants of the stack are set: validated runs were predicted by those of its profile"
