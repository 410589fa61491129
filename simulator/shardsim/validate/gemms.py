"""Measured matrix products against their predictions: a row of numbers each, priced a kind at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardsim.cost.gemm import PEAK_OF, gemm_seconds
from shardsim.schema.catalog import names
from shardsim.schema.changes import Changes
from shardsim.schema.hardware import load_device
from shardsim.schema.kernels import load_kernel_profile
from shardsim.schema.validation import LAYOUTS, MeasuredNames, data_type, first_match, measured_names
from shardsim.validate.gemmtable import read_gemms
from shardsim.validate.table import ErrorSummary
from shardsim.values.hardware import Device
from shardsim.values.kernels import KernelConstants
from shardsim.values.measured import MeasuredGemms
from shardsim.values.operators import Gemm, MatrixLayout

Array = NDArray[np.float64]
Codes = NDArray[np.int64]

LARGE = 1024.0
"""Least m, n and k of a large product (-)."""
SMALL = 256.0
"""Most rows of a small one (-)."""
SIZES = ("m, n, k >= 1024", "m <= 256", "other shapes")


@dataclass(frozen=True, slots=True)
class GemmValidation:
    """Every row of a table against its prediction.

    Parameters
    ----------
    table : MeasuredGemms
    predicted : ndarray of float
        [s], shape (rows,); NaN where there is none.
    reason : ndarray of int
        Number of the reason why a row was skipped, shape (rows,); 0 for none.
    reasons : tuple of str
        By that number; the first is empty.
    kind : ndarray of int
        Number of the row's GPU and data type, shape (rows,).
    kinds : tuple of str
        By that number.
    overall : ErrorSummary
    groups : tuple of (str, tuple of ErrorSummary)
        By GPU, data type, size, and all of them.
    notes : tuple of (str, int)
        What had to be assumed, and of how many rows.
    """

    table: MeasuredGemms
    predicted: Array
    reason: Codes
    reasons: tuple[str, ...]
    kind: Codes
    kinds: tuple[str, ...]
    overall: ErrorSummary
    groups: tuple[tuple[str, tuple[ErrorSummary, ...]], ...]
    notes: tuple[tuple[str, int], ...]

    @property
    def error(self) -> Array:
        """Error: predicted / measured - 1 (-), shape (rows,); NaN where there is none."""
        return self.predicted / self.table.seconds - 1.0

    @property
    def skipped(self) -> tuple[tuple[str, int], ...]:
        """Reasons and how many rows each, the most frequent first."""
        counts = np.bincount(self.reason, minlength=len(self.reasons))[1:].tolist()
        found = [(reason, rows) for reason, rows in zip(self.reasons[1:], counts, strict=True) if rows]
        return tuple(sorted(found, key=lambda item: (-item[1], item[0])))


@dataclass(frozen=True, slots=True)
class _Meaning:
    """What the words of a row mean: the device and its constants, or why it cannot be predicted."""

    gpu: str
    dtype: str
    layout: MatrixLayout = "tn"
    note: str = ""
    reason: str = ""
    device: Device | None = None
    constants: KernelConstants | None = None


def validate_gemms(path: Path, data: Sequence[Path] = (), changes: Changes = MappingProxyType({})) -> GemmValidation:
    """Predict every row of a table of measured matrix products, as bursts on the shipped profile of its GPU.

    Parameters
    ----------
    path : Path
        CSV file; see :func:`shardsim.validate.gemmtable.read_gemms`.
    data : sequence of Path
        A user's own data folders.
    changes : mapping of str to value
        Figures of devices and of their kernel profiles to replace, such as ``kernels.gemm``, by dotted key.

    Returns
    -------
    GemmValidation
        One row for every row of the file, in order.

    Raises
    ------
    InputError
        Every problem of the file, or of a profile in one of the user's folders.
    """
    table = read_gemms(path)
    coded, words = codes(list(zip(table.gpu, table.dtype, table.layout, strict=True)))
    rules = measured_names(data)
    meanings = [_meaning(gpu, dtype, layout, rules, data, changes) for gpu, dtype, layout in words]
    predicted = np.full(len(table), np.nan)
    reasons, reason = ["", *_LACKING], _lacking(table)
    for index, meaning in enumerate(meanings):
        some = np.flatnonzero((coded == index) & (reason == 0))
        if not meaning.reason:
            predicted[some] = _burst_seconds(table, some, meaning)
            continue
        if meaning.reason not in reasons:
            reasons.append(meaning.reason)
        reason[some] = reasons.index(meaning.reason)
    kind, kinds = codes([f"{meaning.gpu}, {meaning.dtype}" for meaning in meanings])
    notes: dict[str, int] = {}
    for index, meaning in enumerate(meanings):
        rows = int(((coded == index) & (reason == 0)).sum())
        if meaning.note and rows:
            notes[meaning.note] = notes.get(meaning.note, 0) + rows
    errors = predicted / table.seconds - 1.0
    return GemmValidation(
        table=table,
        predicted=predicted,
        reason=reason,
        reasons=tuple(reasons),
        kind=kind[coded],
        kinds=kinds,
        overall=error_statistics("all", errors),
        groups=_groups(table, coded, meanings, errors),
        notes=tuple(sorted(notes.items(), key=lambda item: (-item[1], item[0]))),
    )


def codes(items: Sequence[str] | Sequence[tuple[str, str, str]]) -> tuple[Codes, tuple[Any, ...]]:
    """Number what occurs, in the order of its first occurrence.

    Parameters
    ----------
    items : sequence
        Anything that can be compared.

    Returns
    -------
    numbers : ndarray of int
        Of each item, shape (items,).
    found : tuple
        What the numbers stand for.

    Examples
    --------
    >>> codes(["b", "a", "b"])
    (array([0, 1, 0]), ('b', 'a'))
    """
    known: dict[Any, int] = {}
    numbers = np.fromiter((known.setdefault(item, len(known)) for item in items), np.int64, len(items))
    return numbers, tuple(known)


def size_class(m: Array, n: Array, k: Array) -> Codes:
    """Class of each shape, as a number into :data:`SIZES` (-), shape (rows,).

    Parameters
    ----------
    m, n, k : ndarray of float
        (-), shape (rows,).
    """
    large = np.minimum(np.minimum(m, n), k) >= LARGE
    return np.where(large, 0, np.where(m <= SMALL, 1, 2))


_LACKING = ("m, n or k not stated", "no measured time")


def _lacking(table: MeasuredGemms) -> Codes:
    no_shape = np.isnan(table.m + table.n + table.k)
    return np.where(no_shape, 1, np.where(np.isnan(table.seconds), 2, 0))


def _meaning(
    gpu: str, dtype: str, layout: str, rules: MeasuredNames, data: Sequence[Path], changes: Changes
) -> _Meaning:
    """Look up what a row names."""
    rule = first_match(rules.devices, gpu)
    name = gpu if gpu in names("device", data) else None if rule is None else rule.name
    if name is None:
        reason = f"no device of the catalog is {gpu!r}" if rule is None else rule.skip
        return _Meaning(gpu or "not stated", dtype or "not stated", reason=(reason if gpu else None) or "no GPU stated")
    device = load_device(name, data, changes=changes)
    constants = load_kernel_profile(device.compute_profile, data, changes=changes)
    note = "" if rule is None or gpu == name else rule.note
    own = data_type(dtype, constants.gemm, rules)
    if own not in constants.gemm or PEAK_OF.get(own, own) not in device.peak_flops:
        what = f"data type {dtype!r} is not in the profile of {name}" if dtype else "no data type stated"
        return _Meaning(name, dtype or "not stated", reason=what)
    if layout.casefold() not in LAYOUTS:
        return _Meaning(name, own, reason=f"layout {layout!r} is none of {', '.join(word for word in LAYOUTS if word)}")
    return _Meaning(name, own, LAYOUTS[layout.casefold()], note, device=device, constants=constants)


def _burst_seconds(table: MeasuredGemms, some: Codes, meaning: _Meaning) -> Array:
    if meaning.device is None or meaning.constants is None or not len(some):
        return np.empty(0)
    m, n, k, batch = (getattr(table, name)[some] for name in ("m", "n", "k", "batch"))
    product = Gemm("measured", m, k, n, batch, layout=meaning.layout)
    found = gemm_seconds(product, meaning.device, meaning.constants, meaning.dtype, regime="burst")
    return np.asarray(found, dtype=np.float64)


def _groups(
    table: MeasuredGemms, coded: Codes, meanings: Sequence[_Meaning], errors: Array
) -> tuple[tuple[str, tuple[ErrorSummary, ...]], ...]:
    size = size_class(table.m, table.n, table.k)
    gpu, gpus = codes([meaning.gpu for meaning in meanings])
    dtype, dtypes = codes([meaning.dtype for meaning in meanings])
    layout, layouts = codes([meaning.layout for meaning in meanings])
    gpu, dtype, layout = gpu[coded], dtype[coded], layout[coded]
    both = (gpu * len(dtypes) + dtype) * len(SIZES) + size
    labels = [f"{g}, {d}, {s}" for g in gpus for d in dtypes for s in SIZES]
    return tuple(
        (grouping, _summaries(numbers, names_of, errors))
        for grouping, numbers, names_of in (
            ("GPU", gpu, gpus),
            ("data type", dtype, dtypes),
            ("layout", layout, layouts),
            ("size", size, SIZES),
            ("GPU, data type and size", both, labels),
        )
    )


def _summaries(numbers: Codes, labels: Sequence[str], errors: Array) -> tuple[ErrorSummary, ...]:
    """Statistics of each group that occurs, in the order of the labels."""
    order = np.argsort(numbers, kind="stable")
    ends = np.cumsum(np.bincount(numbers, minlength=len(labels)))
    groups = zip(labels, np.split(errors[order], ends[:-1]), strict=True)
    return tuple(error_statistics(label, group) for label, group in groups if len(group))


def error_statistics(name: str, errors: Array) -> ErrorSummary:
    """Summarise errors.

    Parameters
    ----------
    name : str
        Of the group.
    errors : ndarray of float
        predicted / measured - 1 (-), shape (rows,); NaN for rows without a prediction.

    Returns
    -------
    ErrorSummary
    """
    known = errors[np.isfinite(errors)]
    if not len(known):
        return ErrorSummary(name, len(errors), 0, None, None, None)
    median, p90 = np.percentile(np.abs(known), [50, 90])
    return ErrorSummary(name, len(errors), len(known), float(median), float(p90), float(np.median(known)))
