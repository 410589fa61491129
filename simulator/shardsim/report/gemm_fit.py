"""A GEMM profile fitted to a user's table: constants and residuals on the screen and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from shardsim.calibrate.fit import Array
from shardsim.calibrate.usergemm import SCALED, Error, FittedConstant, GemmRows, UserGemmFit, error_of
from shardsim.report.records import record_json
from shardsim.report.validation import _counted, _grid
from shardsim.units import format_time
from shardsim.validate.gemms import SIZES, size_class
from shardsim.values.hardware import Device
from shardsim.values.kernels import KernelConstants

SCHEMA = "shardsim.gemm-fit/1"
"""Name of the JSON schema; the number grows when a key changes its meaning or goes, not when one is added."""
_TIMES = ("overhead", "tile.fill", "tile.split_overhead")
_LEGEND = (
    "error = predicted / measured - 1: median and p90 of its size, bias its median with its sign",
    "held out: fitted without the product's pair of n and k; what to expect of shapes not measured",
    "constants that the rows do not determine stay as shipped",
)


@dataclass(frozen=True, slots=True)
class GemmCalibration:
    """What a table of matrix products says about a device.

    Parameters
    ----------
    file : str
    device : Device
    kernels : KernelConstants
        The profile that it has.
    rows : GemmRows
    fits : tuple of UserGemmFit
    refused : mapping of str to str
        Data types that could not be fitted, and why.
    """

    file: str
    device: Device
    kernels: KernelConstants
    rows: GemmRows
    fits: tuple[UserGemmFit, ...]
    refused: Mapping[str, str]

    @property
    def left(self) -> tuple[tuple[str, int], ...]:
        """Rows that no fit uses, by reason, the most frequent first."""
        counts = dict(self.rows.left)
        for fit in self.fits:
            for reason, rows in fit.left.items():
                counts[reason] = counts.get(reason, 0) + rows
        return tuple(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _errors(fit: UserGemmFit) -> Iterator[tuple[str, Error, Error, Error | None]]:
    """Errors of all products and by size: shipped, fitted, held out."""
    size = size_class(fit.samples.m, fit.samples.n, fit.samples.k)
    everything = np.ones(len(size), dtype=bool)
    for name, some in (("all", everything), *((name, size == number) for number, name in enumerate(SIZES))):
        if some.any():
            tested = some & np.isfinite(fit.held_out)
            held_out = _of(fit.held_out, fit, tested) if tested.any() else None
            yield name, _of(fit.before, fit, some), _of(fit.after, fit, some), held_out


def _of(predicted: Array, fit: UserGemmFit, some: np.ndarray[Any, np.dtype[np.bool_]]) -> Error:
    return error_of(predicted[some], fit.samples.seconds[some])


def gemm_fit_text(found: GemmCalibration) -> RenderableType:
    """Lay a fit out for the screen, within 100 columns.

    Parameters
    ----------
    found : GemmCalibration

    Returns
    -------
    RenderableType
    """
    parts: list[RenderableType] = []
    for fit in found.fits:
        said = (
            f"{fit.dtype}: {len(fit.samples):,} products on {found.device.name}; shipped: profile {found.kernels.name}"
        )
        parts += [Text(said, "bold"), Text(), _error_table(fit), Text(), _constant_table(fit), Text()]
        parts += [Text(f"residual grid: {fit.grid}"), *(Text(note) for note in fit.notes), Text()]
    for title, items in (("Not fitted", found.refused.values()), ("Noted", found.rows.notes)):
        if items:
            parts += [Text(title, "bold"), *(Text(item) for item in items), Text()]
    if found.left:
        parts += [Text("Left aside", "bold"), _counted(found.left), Text()]
    return Group(*parts, *(Text(line, "dim") for line in _LEGEND))


def _error_table(fit: UserGemmFit) -> Table:
    grid = _grid("|error|", "products", "shipped", "p90", "bias", "fitted", "p90", "bias", "held out", "p90")
    for name, before, after, held_out in _errors(fit):
        last = ("-", "-") if held_out is None else (_percent(held_out.median), _percent(held_out.p90))
        grid.add_row(name, f"{before.products:,}", *_figures(before), *_figures(after), *last)
    return grid


def _figures(error: Error) -> tuple[str, str, str]:
    return _percent(error.median), _percent(error.p90), f"{100.0 * error.bias:+.1f} %"


def _constant_table(fit: UserGemmFit) -> Table:
    grid = _grid("constant", "shipped", "fitted", "")
    grid.columns[-1].justify = "left"
    rows = [*fit.changed, FittedConstant("sustained", fit.base.sustained, fit.constants.sustained, at_bound=False)]
    for layout, ratio in fit.constants.layout_time.items():
        rows.append(
            FittedConstant(f"layout_time.{layout}", fit.base.layout_time.get(layout, 1.0), ratio, at_bound=False)
        )
    for row in rows:
        values = (_value(row.name, value) for value in (row.shipped, row.fitted))
        grid.add_row(row.name, *values, _remark(row, fit))
    return grid


def _remark(row: FittedConstant, fit: UserGemmFit) -> str:
    if row.at_bound:
        return "at a bound of the search"
    if row.name == "sustained" and fit.provenance["sustained"].source == SCALED:
        return "follows the speed: no product is long"
    return ""


def _value(name: str, value: float) -> str:
    return format_time(value) if name in _TIMES else f"{value:.4g}"


def _percent(share: float) -> str:
    return f"{100.0 * share:.1f} %"


def gemm_fit_json(found: GemmCalibration) -> str:
    """Write a fit as JSON.

    Parameters
    ----------
    found : GemmCalibration

    Returns
    -------
    str
    """
    record = {
        "schema": SCHEMA,
        "file": found.file,
        "device": found.device.name,
        "base": found.kernels.name,
        "fits": [_record(fit) for fit in found.fits],
        "refused": [{"dtype": dtype, "reason": reason} for dtype, reason in found.refused.items()],
        "left_aside": [{"reason": reason, "rows": rows} for reason, rows in found.left],
        "notes": list(found.rows.notes),
    }
    return record_json(record)


def _record(fit: UserGemmFit) -> dict[str, Any]:
    sustained = FittedConstant("sustained", fit.base.sustained, fit.constants.sustained, at_bound=False)
    return {
        "dtype": fit.dtype,
        "products": len(fit.samples),
        "errors": [
            {
                "size": name,
                "products": before.products,
                "shipped": _error_record(before),
                "fitted": _error_record(after),
                "held_out": None if held_out is None else _error_record(held_out),
            }
            for name, before, after, held_out in _errors(fit)
        ],
        "constants": [
            {"name": one.name, "shipped": _short(one.shipped), "fitted": _short(one.fitted), "at_bound": one.at_bound}
            for one in (*fit.changed, sustained)
        ],
        "sustained_basis": fit.provenance["sustained"].basis,
        "layout_time": {layout: _short(ratio) for layout, ratio in fit.constants.layout_time.items()},
        "grid": fit.grid,
        "notes": list(fit.notes),
        "residuals": _residuals(fit),
    }


def _error_record(error: Error) -> dict[str, float]:
    return {"median_abs_error": error.median, "p90_abs_error": error.p90, "bias": error.bias}


def _residuals(fit: UserGemmFit) -> list[dict[str, Any]]:
    samples = fit.samples
    columns: Sequence[Sequence[Any]] = (
        *(column.astype(int).tolist() for column in (samples.m, samples.n, samples.k, samples.batch)),
        samples.layout.tolist(),
        *([_short(x) for x in column.tolist()] for column in (samples.seconds, fit.before, fit.after)),
        [None if x != x else _short(x) for x in fit.held_out.tolist()],  # noqa: PLR0124  # NaN
    )
    names = ("m", "n", "k", "batch", "layout", "measured_s", "shipped_s", "fitted_s", "held_out_s")
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _short(value: float) -> float:
    return float(f"{value:.6g}")
