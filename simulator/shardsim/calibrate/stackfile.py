"""Write the fitted constants of a stack as the YAML that the loader reads."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import numpy as np

from shardsim.calibrate.notes import constant_text, time_text
from shardsim.calibrate.stacks import LEAST_WEIGHT, StackFit, is_time, members
from shardsim.values.provenance import Provenance

_KEPT = "not determined by the runs: kept near the start of the search"


def stack_yaml(found: StackFit, title: str, stack: str, source: str) -> str:
    """Write a stack profile.

    Parameters
    ----------
    found : StackFit
    title : str
    stack : str
        Software and machines that were measured.
    source : str
        Where the measured runs come from.

    Returns
    -------
    str
    """
    fit = found.fit
    plain = list(_lines([name for name in fit.constants if "@" not in name], found, ""))
    kept = [f"  kept: {json.dumps(_KEPT)}"] if any(found.weight[name] < LEAST_WEIGHT for name in fit.constants) else []
    lines = [
        "# Written by shardsim calibrate stack: fit it again rather than change it.",
        "based_on: none",
        f"title: {json.dumps(title, ensure_ascii=False)}",
        "sources:",
        f"  runs: {json.dumps(source, ensure_ascii=False)}",
        *kept,
        f"stack: {json.dumps(stack, ensure_ascii=False)}",
        *plain,
    ]
    generations = dict.fromkeys(name.partition("@")[2] for name in fit.constants if "@" in name)
    if generations:
        lines.append("on:")
    for generation in generations:
        lines.append(f"  {generation}:")
        lines += _lines([name for name in fit.constants if name.endswith(f"@{generation}")], found, "    ")
    return "\n".join(lines) + "\n"


def _lines(names: Sequence[str], found: StackFit, indent: str) -> Iterator[str]:
    known = found.held_out_errors[np.isfinite(found.held_out)]
    # Held out where that can be said: constants fitted to a run always come out close to it.
    median = float(np.median(np.abs(known))) if known.size else found.fit.median_error
    alone = {name.partition("@")[0] for name in names}
    for name in names:
        value = found.fit.constants[name]
        note = Provenance("fitted", "runs", median, found.rows[name])
        if found.weight[name] < LEAST_WEIGHT:
            note = Provenance("assumed", "kept")
        base = name.partition("@")[0]
        for plain in members(base):
            if plain != base and plain in alone:
                continue
            text = time_text(value) if is_time(plain) else f"{value:.4g}"
            yield f"{indent}{plain}: {constant_text(text, note, digits=3)}"
