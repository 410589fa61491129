"""Write fitted host constants as the YAML that the loader reads."""

from __future__ import annotations

import json

from shardsim.calibrate.hosts import HOST_CONSTANTS, LEAST_WEIGHT, HostFit
from shardsim.calibrate.notes import constant_text, time_text
from shardsim.values.provenance import Provenance

_KEPT = "not determined by the runs: kept near what eager PyTorch takes on a quick host"


def host_yaml(found: HostFit, title: str, stack: str, source: str) -> str:
    """Write a host profile.

    Parameters
    ----------
    found : HostFit
    title : str
    stack : str
        Software and processors that were measured.
    source : str
        Where the measured runs come from.

    Returns
    -------
    str
    """
    fit = found.fit
    lines = [
        "# Written by shardsim calibrate host: fit it again rather than change it.",
        f"title: {json.dumps(title, ensure_ascii=False)}",
        "sources:",
        f"  runs: {json.dumps(source, ensure_ascii=False)}",
        f"  kept: {json.dumps(_KEPT)}",
        f"stack: {json.dumps(stack, ensure_ascii=False)}",
    ]
    fitted, kept = Provenance("fitted", "runs", fit.median_error, fit.points), Provenance("assumed", "kept")
    for constant in HOST_CONSTANTS:
        note = fitted if found.weight[constant.name] >= LEAST_WEIGHT else kept
        lines.append(f"{constant.name}: {constant_text(time_text(fit.constants[constant.name]), note, digits=3)}")
    return "\n".join(lines) + "\n"
