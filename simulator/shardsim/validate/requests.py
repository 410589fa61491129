"""From a row of a measured table to the run it describes, or to the reason why this version cannot express it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shardsim.schema.framework import load_framework
from shardsim.schema.validation import MeasuredNames, NameRule, first_match
from shardsim.validate.rows import MeasuredRun
from shardsim.workload.cost_split import split_by_cost

_NEEDED = ("num_gpus", "layers", "hidden", "heads", "vocab", "seq_len", "global_batch", "micro_batch")
_TRUTHS = {"yes": True, "true": True, "1": True, "no": False, "false": False, "0": False}
_UNSTATED = ("", "nan", "none stated", "unknown")
_LATENT = re.compile(r"\bMLA q_lora (\d+) kv_lora (\d+)")
_FIRST_DENSE = re.compile(r"\bfirst (?:(\d+) )?layers? dense\b")
_CAPACITY = re.compile(r"\bcapacity factor ([\d.]+)( padded)?")
_TIED = re.compile(r"\btie(?:d|_word)?_embeddings=(true|false)\b", re.IGNORECASE)
_OFFLOADED = re.compile(r"\bcpu_offloading_num_layers=[1-9]")
_CHUNKED = ("1f1b", "interleaved", None)
_DEEPSEEK_HEADS = {"qk_nope_dim": 128, "qk_rope_dim": 64, "v_dim": 128}


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


def row_request(
    row: MeasuredRun, names: MeasuredNames, data: Sequence[Path] = (), *, priced: bool = True
) -> RowRequest:
    """Interpret a row.

    Parameters
    ----------
    row : MeasuredRun
    names : MeasuredNames
        Rules for the words of the table.
    data : sequence of Path
        A user's own data folders.
    priced : bool
        Whether its time is to be predicted. Without, a measured time is not needed, and experts and latent attention,
        which have no price in this version, are no reason against the row.

    Returns
    -------
    RowRequest
        With every reason against the row, or its run.
    """
    reading = _Reading()
    empty = [name for name in _NEEDED if getattr(row, name) is None]
    if empty:
        reading.reasons.append(f"not stated: {', '.join(empty)}")
    if priced:
        reading.reasons += _unpriced(row)
    model = _model(row, names, reading)
    cluster, settings = _cluster(row, names, reading)
    layout = _layout(row, names, reading)
    precision = _named(row.precision, names.precisions, "precision", reading)
    rule = _framework(row, names, reading)
    if reading.reasons:
        return RowRequest(None, "; ".join(dict.fromkeys(reading.reasons)), ())
    if rule is not None:
        layout |= rule.layout | _stages(row, rule, data, reading)
    run: dict[str, Any] = {
        "model": model,
        "cluster": cluster,
        "gpus": row.num_gpus,
        "layout": layout,
        "batch": {"global": row.global_batch, "micro": row.micro_batch, "seq": row.seq_len},
        "precision": precision,
        "framework": None if rule is None else rule.name,
        "set": settings,
    }
    return RowRequest({key: value for key, value in run.items() if value not in (None, {})}, "", tuple(reading.notes))


def _unpriced(row: MeasuredRun) -> list[str]:
    """What stands against a row whose time is to be predicted, but not against one of which memory is."""
    reasons = ["no measured iteration time"] if row.iteration_s is None else []
    if row.experts is not None:
        reasons.append("a mixture of experts is not priced in this version")
    if (row.ep or 1) > 1:
        reasons.append("expert parallelism is not priced in this version")
    if row.arch_class.lower().endswith("mla"):
        reasons.append("latent attention is not priced in this version")
    if _OFFLOADED.search(row.notes):
        reasons.append("activations kept in host memory are not priced in this version")
    return reasons


def _model(row: MeasuredRun, names: MeasuredNames, reading: _Reading) -> dict[str, Any] | None:
    key = row.arch_class.lower() or "dense-gelu"
    traits = names.architectures.get(key)
    if traits is None:
        reading.reasons.append(f"no rule for the architecture class {row.arch_class!r}")
        return None
    if traits.skip is not None:
        reading.reasons.append(traits.skip)
        return None
    if traits.note:
        reading.notes.append(traits.note)
    if row.hidden is None or row.heads is None or row.seq_len is None:
        return None
    tied = _TIED.search(row.notes)
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
        "tied_embeddings": tied[1].lower() == "true" if tied else traits.tied_embeddings,
        "bias": traits.bias,
        "moe": _experts(row, reading),
        "mla": _latent(row, reading) if key.endswith("mla") else None,
    }
    return {key: value for key, value in shape.items() if value is not None}


def _experts(row: MeasuredRun, reading: _Reading) -> dict[str, Any] | None:
    if row.experts is None:
        return None
    if row.top_k is None or row.moe_ffn_hidden is None:
        reading.reasons.append("experts without top_k and moe_ffn_hidden")
    first, capacity = _FIRST_DENSE.search(row.notes), _CAPACITY.search(row.notes)
    if capacity and (float(capacity[1]) != 1 or not capacity[2]):
        reading.notes.append(f"{capacity[0]}: experts taken as evenly loaded, with nothing dropped")
    return {
        "experts": row.experts,
        "top_k": row.top_k,
        "ffn": row.moe_ffn_hidden,
        "shared_ffn": row.shared_expert_ffn or 0,
        "first_dense": int(first[1] or 1) if first else 0,
    }


def _latent(row: MeasuredRun, reading: _Reading) -> dict[str, Any] | None:
    widths = _LATENT.search(row.notes)
    if widths is None:
        reading.reasons.append("latent attention without its widths (MLA q_lora N kv_lora N in the notes)")
        return None
    reading.notes.append("heads of latent attention taken as DeepSeek's: 128 + 64 for queries and keys, 128 for values")
    return {"q_lora": int(widths[1]), "kv_lora": int(widths[2]), **_DEEPSEEK_HEADS}


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
    degrees = {"tp": row.tp or 1, "pp": row.pp or 1, "cp": row.cp or 1, "ep": row.ep or 1, "vpp": row.vpp or 1}
    if degrees["cp"] > 1:
        reading.reasons.append("context parallelism is not modelled in this version")
    ranks = degrees["tp"] * degrees["pp"] * degrees["cp"]
    if row.num_gpus is not None and row.dp is not None and ranks * row.dp != row.num_gpus:
        reading.reasons.append(f"tp x pp x cp x dp = {ranks * row.dp} is not {row.num_gpus} GPUs")
    layout: dict[str, Any] = {axis: degree for axis, degree in degrees.items() if degree > 1}
    if row.etp is not None:
        layout["etp"] = row.etp
    sharding = _rule(row.zero_stage, names.sharding, "sharding", reading)
    if sharding is not None and sharding.name is not None:
        layout |= {"zero": int(sharding.name), **sharding.layout}
    schedule = _named(row.schedule, names.schedules, "schedule", reading)
    layout["recompute"] = _named(row.recompute, names.recompute, "recompute", reading)
    if degrees["vpp"] > 1 and schedule in _CHUNKED:
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


def _framework(row: MeasuredRun, names: MeasuredNames, reading: _Reading) -> NameRule | None:
    if row.framework.lower() in _UNSTATED:
        reading.notes.append("framework not stated: the cluster's usual one taken")
        return None
    rule = first_match(names.frameworks, f"{row.framework}; {row.precision}", notes=row.notes)
    _apply(rule, f"no rule for the framework {row.framework!r}", reading)
    return rule


def _stages(row: MeasuredRun, rule: NameRule, data: Sequence[Path], reading: _Reading) -> dict[str, Any]:
    """Keys of the layout that say how a framework deals out layers to stages."""
    layers, pp = row.layers or 0, row.pp or 1
    stages = pp * (row.vpp or 1)
    if rule.stages == "by_cost" and stages == pp > 1:
        return {"stage_layers": _by_cost(row, load_framework(rule.name or "", data).vocab_multiple)}
    if rule.stages == "ends_as_layers" and layers % stages and (layers + 2) % stages == 0:
        reading.notes.append("embedding and loss counted as layers, with which layers divide over stages")
        return {"embedding_as_layer": True, "loss_as_layer": True}
    return {}


def _by_cost(row: MeasuredRun, vocab_multiple: int) -> list[int]:
    """Layers of each stage; all products of a layer weigh alike, whatever its key-value heads."""
    hidden = row.hidden or 0
    multiple = vocab_multiple * (row.tp or 1)
    vocab = -(-(row.vocab or 0) // multiple) * multiple
    layer = 4 * hidden * hidden + 3 * hidden * (row.ffn_hidden or 4 * hidden)
    return list(split_by_cost([layer] * (row.layers or 0), vocab * hidden, row.pp or 1))


def _named(cell: str, rules: Sequence[NameRule], what: str, reading: _Reading) -> str | None:
    rule = _rule(cell, rules, what, reading)
    return None if rule is None else rule.name


def _rule(cell: str, rules: Sequence[NameRule], what: str, reading: _Reading) -> NameRule | None:
    if cell.lower() in _UNSTATED:
        return None
    rule = first_match(rules, cell)
    _apply(rule, f"no rule for the {what} {cell!r}", reading)
    return rule


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
