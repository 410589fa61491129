"""Constants of a software stack fitted to measured runs: on the screen, as JSON and as rows."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from shardsim.calibrate.fit import Array
from shardsim.calibrate.stacks import LEAST_ROWS, LEAST_WEIGHT, MOST_CONSTANTS, StackFit, bounds, is_time
from shardsim.report.validation import ROW_COLUMNS, _counted, _grid
from shardsim.units import format_time

SCHEMA = "shardsim.stack-fit/1"
"""Name of the JSON schema; the number grows when a key changes its meaning or goes, not when one is added."""
_LEGEND = (
    "error = predicted / measured - 1: median and p90 of its size, bias its median with its sign",
    "held out: fitted without the runs of that source, model and GPU; what to expect of others",
    "weight: share by which times grow when the constant doubles; below 1 % the runs do not determine it",
)


@dataclass(frozen=True, slots=True)
class StackCalibration:
    """What measured runs say about a software stack.

    Parameters
    ----------
    name : str
    ids : tuple of str
        Of the rows used.
    found : StackFit
    before : ndarray of float
        Time of each run with nothing but what was measured alone [s], shape (runs,).
    left : tuple of (str, int)
        Rows not used, by reason.
    """

    name: str
    ids: tuple[str, ...]
    found: StackFit
    before: Array
    left: tuple[tuple[str, int], ...]


def remarks(found: StackFit) -> tuple[str, ...]:
    """What a fit has more constants or fewer rows for than it should.

    Parameters
    ----------
    found : StackFit

    Returns
    -------
    tuple of str
    """
    constants, points = len(found.fit.constants), found.fit.points
    said = []
    if constants > MOST_CONSTANTS:
        said.append(f"{constants} constants: more than {MOST_CONSTANTS} of one stack are not told apart")
    if points < LEAST_ROWS * constants:
        said.append(f"{points} runs for {constants} constants: fewer than {LEAST_ROWS} each")
    return tuple(said)


def stack_fit_text(calibration: StackCalibration) -> RenderableType:
    """Lay a fit out for the screen.

    Parameters
    ----------
    calibration : StackCalibration

    Returns
    -------
    RenderableType
    """
    found = calibration.found
    errors = _grid("|error|", "runs", "median", "p90", "bias")
    for name, times in (
        ("as measured alone", calibration.before),
        ("fitted", found.fit.predicted),
        ("held out", found.held_out),
    ):
        error = times / found.measured - 1.0
        errors.add_row(name, f"{int(np.isfinite(error).sum()):,}", *_error(error))
    constants = _grid("constant", "fitted", "between", "weight", "runs", "")
    for name, value in found.fit.constants.items():
        remark = "on its bound" if name in found.fit.at_bounds else ""
        remark = "not determined" if found.weight[name] < LEAST_WEIGHT else remark
        between = " and ".join(_value(name, bound) for bound in bounds(name))
        weight = f"{100 * found.weight[name]:.1f} %"
        constants.add_row(name, _value(name, value), between, weight, f"{found.rows[name]:,}", remark)
    title = Text(f"{calibration.name}: {found.fit.points:,} runs", "bold")
    parts: list[RenderableType] = [title, Text(), errors, Text(), constants, Text()]
    if found.halves.size:
        parts += [Text(f"A fit to one half moves 9 of 10 predictions by less than {100 * found.moved:.1f} %."), Text()]
    parts += [Text(said) for said in remarks(found)]
    if calibration.left:
        parts += [Text("Left aside", "bold"), _counted(calibration.left), Text()]
    return Group(*parts, *(Text(line, "dim") for line in _LEGEND))


def _value(name: str, value: float) -> str:
    return format_time(value) if is_time(name) else f"{value:.3g}"


def _error(error: Array) -> tuple[str, str, str]:
    error = error[np.isfinite(error)]
    if not error.size:
        return ("-", "-", "-")
    size = np.abs(error)
    median, p90 = float(np.median(size)), float(np.quantile(size, 0.9))
    return f"{100 * median:.1f} %", f"{100 * p90:.1f} %", f"{100 * float(np.median(error)):+.1f} %"


def stack_fit_json(calibration: StackCalibration) -> str:
    """Write a fit as JSON, in SI units.

    Parameters
    ----------
    calibration : StackCalibration

    Returns
    -------
    str
    """
    found = calibration.found
    held_out = np.abs(found.held_out_errors[np.isfinite(found.held_out)])
    content = {
        "schema": SCHEMA,
        "stack": calibration.name,
        "runs": found.fit.points,
        "constants": {
            name: {
                "value": value,
                "least": bounds(name)[0],
                "most": bounds(name)[1],
                "weight": found.weight[name],
                "runs": found.rows[name],
                "on_bound": name in found.fit.at_bounds,
            }
            for name, value in found.fit.constants.items()
        },
        "median_error": found.fit.median_error,
        "p90_error": found.fit.p90_error,
        "bias": found.fit.bias,
        "held_out_median_error": float(np.median(held_out)) if held_out.size else None,
        "held_out_p90_error": float(np.quantile(held_out, 0.9)) if held_out.size else None,
        "moved_by_half": found.moved,
        "remarks": list(remarks(found)),
        "left": [{"reason": reason, "rows": rows} for reason, rows in calibration.left],
    }
    return json.dumps(content, indent=2) + "\n"


def held_out_csv(calibrations: Sequence[StackCalibration]) -> str:
    """Write the held-out times as rows with the columns of ``shardsim validate runs --out``.

    Parameters
    ----------
    calibrations : sequence of StackCalibration

    Returns
    -------
    str
    """
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(ROW_COLUMNS)
    for calibration in calibrations:
        found = calibration.found
        for row, measured, time in zip(calibration.ids, found.measured, found.held_out, strict=True):
            known = bool(np.isfinite(time))
            figures = (float(time), float(time / measured - 1.0)) if known else ("", "")
            reason = "" if known else "too few runs of other models to fit without it"
            writer.writerow([row, float(measured), *figures, "ok" if known else "skipped", reason])
    return buffer.getvalue()
