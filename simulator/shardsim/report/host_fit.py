"""Host constants fitted to a user's runs: on the screen and as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from shardsim.calibrate.fit import Array
from shardsim.calibrate.hosts import HOST_CONSTANTS, LEAST_WEIGHT, HostFit, model_keys
from shardsim.report.validation import _counted, _grid
from shardsim.units import format_time
from shardsim.values.training import TrainingRun

SCHEMA = "shardsim.host-fit/1"
"""Name of the JSON schema; the number grows when a key changes its meaning or goes, not when one is added."""
_LEGEND = (
    "error = predicted / measured - 1: median and p90 of its size, bias its median with its sign",
    "held out: fitted without the runs of that model; what to expect of models not measured",
    "weight: share by which times grow when the constant doubles; below 1 % the runs do not determine it",
)


@dataclass(frozen=True, slots=True)
class HostCalibration:
    """What measured runs say about the host of their stack.

    Parameters
    ----------
    framework : str
    runs : tuple of TrainingRun
    measured : ndarray of float
        [s], shape (runs,).
    found : HostFit
    left : tuple of (str, int)
        Rows not used, by reason.
    """

    framework: str
    runs: tuple[TrainingRun, ...]
    measured: Array
    found: HostFit
    left: tuple[tuple[str, int], ...]


def host_fit_text(calibration: HostCalibration) -> RenderableType:
    """Lay a fit out for the screen.

    Parameters
    ----------
    calibration : HostCalibration

    Returns
    -------
    RenderableType
    """
    found, measured = calibration.found, calibration.measured
    errors = _grid("|error|", "runs", "never late", "p90", "bias", "fitted", "p90", "bias", "held out", "p90", "bias")
    keys = np.array(model_keys(calibration.runs))
    for name in ("all", *np.unique(keys).tolist()):
        some = np.ones(len(keys), dtype=bool) if name == "all" else keys == name
        columns = (found.never_late, found.fit.predicted, found.held_out)
        cells = [cell for times in columns for cell in _error(times[some] / measured[some] - 1.0)]
        errors.add_row(name, f"{int(some.sum()):,}", *cells)
    constants = _grid("constant", "fitted", "weight", "")
    for constant in HOST_CONSTANTS:
        weight = found.weight[constant.name]
        value = format_time(found.fit.constants[constant.name])
        remark = "on its bound" if constant.name in found.fit.at_bounds else ""
        remark = "not determined" if weight < LEAST_WEIGHT else remark
        constants.add_row(constant.name, value, f"{100 * weight:.1f} %", remark)
    title = Text(f"{calibration.framework}: {len(measured):,} runs", "bold")
    parts: list[RenderableType] = [title, Text(), errors, Text(), constants, Text()]
    if calibration.left:
        parts += [Text("Left aside", "bold"), _counted(calibration.left), Text()]
    return Group(*parts, *(Text(line, "dim") for line in _LEGEND))


def _error(error: Array) -> tuple[str, str, str]:
    error = error[np.isfinite(error)]
    if not error.size:
        return ("-", "-", "-")
    size = np.abs(error)
    median, p90 = float(np.median(size)), float(np.quantile(size, 0.9))
    return f"{100 * median:.1f} %", f"{100 * p90:.1f} %", f"{100 * float(np.median(error)):+.1f} %"


def host_fit_json(calibration: HostCalibration) -> str:
    """Write a fit as JSON, in SI units.

    Parameters
    ----------
    calibration : HostCalibration

    Returns
    -------
    str
    """
    found, measured = calibration.found, calibration.measured
    held_out = np.abs(found.held_out / measured - 1.0)
    held_out = held_out[np.isfinite(held_out)]
    content = {
        "schema": SCHEMA,
        "framework": calibration.framework,
        "runs": len(measured),
        "constants_s": dict(found.fit.constants),
        "weight": dict(found.weight),
        "median_error": found.fit.median_error,
        "p90_error": found.fit.p90_error,
        "bias": found.fit.bias,
        "held_out_median_error": float(np.median(held_out)) if held_out.size else None,
        "held_out_p90_error": float(np.quantile(held_out, 0.9)) if held_out.size else None,
        "left": _left(calibration.left),
    }
    return json.dumps(content, indent=2) + "\n"


def _left(left: Sequence[tuple[str, int]]) -> list[dict[str, object]]:
    return [{"reason": reason, "rows": rows} for reason, rows in left]
