"""From a row of a measured table to the run it describes, or to the reason why this version cannot express it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from shardsim.schema.validation import MeasuredNames, NameRule, first_match
from shardsim.validate.rows import MeasuredRun

_NEEDED = ("num_gpus", "layers", "hidden", "heads", "vocab", "seq_len", "global_batch", "micro_batch")
_TRUTHS = {"yes": True, "true": True, "1": True, "no": False, "false": False, "0": False}
_UNSTATED = ("", "nan", "none stated", "unknown")


@dataclass(slots=True)
class _Reading:
    """What reading one row has found so far."""

    reasons: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class RowRequest:
    """The run that a row describes.

    Parameters
    ----------
    run : dict or None
        As a run file holds it; None where the row cannot be expressed.
    reason : str
        Why it cannot be expressed.
    notes : tuple of str
        What had to be assumed.
    """

    run: dict[str, Any] | None
    reason: str
    notes: tuple[str, ...]


def row_request(row: MeasuredRun, names: MeasuredNames) -> RowRequest:
    """Interpret a row.

    Parameters
    ----------
    row : MeasuredRun
    names : MeasuredNames
        Rules for the words of the table.

    Returns
    -------
    RowRequest
        With every reason against the row, or its run.
    """
    reading = _Reading()
    empty = [name for name in _NEEDED if getattr(row, name) is None]
    if empty:
        reading.reasons.append(f"not stated: {', '.join(empty)}")
    if row.iteration_s is None:
        reading.reasons.append("no measured iteration time")
    model = _model(row, names, reading)
    cluster, settings = _cluster(row, names, reading)
    layout = _layout(row, names, reading)
    precision = _named(row.precision, names.precisions, "precision", reading)
    framework = _named(row.framework, names.frameworks, "framework", reading)
    if framework is None:
        reading.notes.append("framework not stated: the cluster's usual one taken")
    if reading.reasons:
        return RowRequest(None, "; ".join(dict.fromkeys(reading.reasons)), ())
    run: dict[str, Any] = {
        "model": model,
        "cluster": cluster,
        "gpus": row.num_gpus,
        "layout": layout,
        "batch": {"global": row.global_batch, "micro": row.micro_batch, "seq": row.seq_len},
        "precision": precision,
        "framework": framework,
        "set": settings,
    }
    return RowRequest({key: value for key, value in run.items() if value not in (None, {})}, "", tuple(reading.notes))


def _model(row: MeasuredRun, names: MeasuredNames, reading: _Reading) -> dict[str, Any] | None:
    key = row.arch_class.lower() or "dense-gelu"
    traits = names.architectures.get(key)
    if traits is None:
        reading.reasons.append(f"no rule for the architecture class {row.arch_class!r}")
        return None
    if traits.skip is not None:
        reading.reasons.append(traits.skip)
        return None
    if row.experts is not None:
        reading.reasons.append("mixture of experts is not modelled in this version")
        return None
    if traits.note:
        reading.notes.append(traits.note)
    if row.hidden is None or row.heads is None or row.seq_len is None:
        return None
    shape = {
        "name": row.model or "unnamed",
        "layers": row.layers,
        "hidden": row.hidden,
        "heads": row.heads,
        "kv_heads": row.kv_heads,
        "ffn": row.ffn_hidden,
        "vocab": row.vocab,
        "activation": traits.activation,
        "norm": traits.norm,
        "position": traits.position,
        "max_positions": row.seq_len if traits.position == "learned" else None,
        "tied_embeddings": traits.tied_embeddings,
        "bias": traits.bias,
    }
    return {key: value for key, value in shape.items() if value is not None}


def _cluster(
    row: MeasuredRun, names: MeasuredNames, reading: _Reading
) -> tuple[str | None, dict[str, str | int | float | bool]]:
    if row.cluster:
        return row.cluster, {}
    text = row.gpu
    if row.gpu_mem_gb is not None and not re.search(r"\d\s*g(i?b)?\b", text.lower()):
        text = f"{text} {row.gpu_mem_gb:g}GB"
    rule = first_match(names.clusters, text, row.interconnect, row.year)
    return _apply(rule, f"no cluster of the catalog has the GPU {row.gpu!r}", reading), rule.set if rule else {}


def _layout(row: MeasuredRun, names: MeasuredNames, reading: _Reading) -> dict[str, Any]:
    degrees = {"tp": row.tp or 1, "pp": row.pp or 1, "cp": row.cp or 1, "vpp": row.vpp or 1}
    if degrees["cp"] > 1:
        reading.reasons.append("context parallelism is not modelled in this version")
    if row.ep is not None and row.ep > 1:
        reading.reasons.append("expert parallelism is not modelled in this version")
    ranks = degrees["tp"] * degrees["pp"] * degrees["cp"]
    if row.num_gpus is not None and row.dp is not None and ranks * row.dp != row.num_gpus:
        reading.reasons.append(f"tp x pp x cp x dp = {ranks * row.dp} is not {row.num_gpus} GPUs")
    layout: dict[str, Any] = {axis: degree for axis, degree in degrees.items() if degree > 1}
    sharding = _named(row.zero_stage, names.sharding, "sharding", reading)
    schedule = _named(row.schedule, names.schedules, "schedule", reading)
    layout["recompute"] = _named(row.recompute, names.recompute, "recompute", reading)
    layout["zero"] = None if sharding is None else int(sharding)
    if degrees["vpp"] > 1:
        layout["schedule"] = "interleaved"
    elif schedule == "interleaved" and degrees["pp"] > 1:
        reading.reasons.append("an interleaved schedule without its number of chunks")
    elif degrees["pp"] > 1:
        layout["schedule"] = schedule
    if row.sp.lower() in _TRUTHS:
        layout["sp"] = _TRUTHS[row.sp.lower()] and degrees["tp"] > 1
    elif row.sp.lower() not in _UNSTATED:
        reading.reasons.append(f"no rule for the sequence parallelism {row.sp!r}")
    return {key: value for key, value in layout.items() if value is not None}


def _named(cell: str, rules: Sequence[NameRule], what: str, reading: _Reading) -> str | None:
    if cell.lower() in _UNSTATED:
        return None
    return _apply(first_match(rules, cell), f"no rule for the {what} {cell!r}", reading)


def _apply(rule: NameRule | None, otherwise: str, reading: _Reading) -> str | None:
    """Take the name of a rule; note what it assumes, or why the row is skipped."""
    if rule is None:
        reading.reasons.append(otherwise)
        return None
    if rule.skip is not None:
        reading.reasons.append(rule.skip)
    elif rule.note:
        reading.notes.append(rule.note)
    return rule.name
