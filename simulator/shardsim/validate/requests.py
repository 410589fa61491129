"""From a row of a measured table to the run it describes, or to the reason why this version cannot express it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardsim.schema.framework import load_framework
from shardsim.schema.hardware import load_cluster
from shardsim.schema.validation import MeasuredNames, NameRule, first_match
from shardsim.validate.models import Reading, model_of, model_rule
from shardsim.validate.rows import MeasuredRun
from shardsim.workload.cost_split import split_by_cost
from shardsim.workload.pipeline_split import spread

_NEEDED = ("num_gpus", "layers", "hidden", "heads", "vocab", "seq_len", "global_batch", "micro_batch")
_TRUTHS = {"yes": True, "true": True, "1": True, "no": False, "false": False, "0": False}
_UNSTATED = ("", "nan", "none stated", "unknown")
_CAPACITY = re.compile(r"\bcapacity factor (\d+(?:\.\d+)?)( padded)?")
_MODULES = re.compile(r"\brecompute_modules=\[([^\]]*)\]")
_PP_LAYOUT = re.compile(r"\bpp_layout=[\"']?([^;\s\"']+)")
_OFFLOADED = re.compile(r"\bcpu_offloading_num_layers=[1-9]")
_CHUNKED = ("1f1b", "interleaved", None)


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
        Whether its time is to be predicted. Without, a measured time is not needed.

    Returns
    -------
    RowRequest
        With every reason against the row, or its run.
    """
    reading = Reading()
    empty = [name for name in _NEEDED if getattr(row, name) is None]
    if empty:
        reading.reasons.append(f"not stated: {', '.join(empty)}")
    if priced:
        reading.reasons += _unpriced(row)
    model = model_of(row, names, reading)
    cluster, settings = _cluster(row, names, data, reading)
    layout = _layout(row, names, reading)
    precision = _named(row.precision, names.precisions, "precision", reading)
    rule = _framework(row, names, reading)
    if reading.reasons:
        return RowRequest(None, "; ".join(dict.fromkeys(reading.reasons)), ())
    noted = _noted(row, names, reading)
    if layout.get("recompute", "selective") != "selective":
        noted.pop("recompute_modules", None)
    if rule is not None:
        dealt = {} if "pp_layout" in noted else _stages(row, rule, layout.get("schedule"), names, data, reading)
        noted = dealt | rule.layout | noted
    layout = noted | layout
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
    if _OFFLOADED.search(row.notes):
        reasons.append("activations kept in host memory are not priced in this version")
    return reasons


def _cluster(
    row: MeasuredRun, names: MeasuredNames, data: Sequence[Path], reading: Reading
) -> tuple[str | None, dict[str, str | int | float | bool]]:
    if row.cluster:
        return row.cluster, {}
    text = row.gpu
    if row.gpu_mem_gb is not None and not re.search(r"\d\s*g(i?b)?\b", text.lower()):
        text = f"{text} {row.gpu_mem_gb:g}GB"
    rule = first_match(names.clusters, text, row.interconnect, row.year)
    name = _apply(rule, f"no cluster of the catalog has the GPU {row.gpu!r}", reading)
    if rule is None or name is None:
        return name, {}
    return name, {**rule.set, **(_segments(name, row.num_gpus or 0, data) if rule.segments else {})}


def _segments(name: str, gpus: int, data: Sequence[Path]) -> dict[str, str | int | float | bool]:
    """GPUs that a job takes in each NVLink domain, where it does not fit into one and domains do not divide it."""
    cluster = load_cluster(name, data)
    node, domain = cluster.gpus_per_node, cluster.gpus_per_domain
    most = max((size for size in range(node, domain + 1, node) if gpus % size == 0), default=domain)
    return {"cluster.gpus_per_domain": most} if gpus > domain and most < domain else {}


def _layout(row: MeasuredRun, names: MeasuredNames, reading: Reading) -> dict[str, Any]:
    degrees = {"tp": row.tp or 1, "pp": row.pp or 1, "cp": row.cp or 1, "ep": row.ep or 1, "vpp": row.vpp or 1}
    usual = None if row.vpp else model_rule(row, names).usual_chunks(degrees["pp"], row.framework)
    if usual is not None:
        degrees["vpp"] = usual
        reading.notes.append(f"chunks not stated: {usual} taken, as in NVIDIA's recipe of the model")
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


def _framework(row: MeasuredRun, names: MeasuredNames, reading: Reading) -> NameRule | None:
    if row.framework.lower() in _UNSTATED:
        reading.notes.append("framework not stated: the cluster's usual one taken")
        return None
    said = f"{row.framework}; {row.precision}; {row.arch_class}"
    rule = first_match(names.frameworks, said, notes=row.notes, gpu=row.gpu)
    _apply(rule, f"no rule for the framework {row.framework!r}", reading)
    return rule


def _noted(row: MeasuredRun, names: MeasuredNames, reading: Reading) -> dict[str, Any]:
    """Keys of the layout that the notes speak of."""
    found: dict[str, Any] = {}
    for phrase in names.phrases:
        if phrase.notes in row.notes:
            found = {**phrase.layout, **found}
            reading.notes += [phrase.note] if phrase.note else []
    capacity, modules, text = (pattern.search(row.notes) for pattern in (_CAPACITY, _MODULES, _PP_LAYOUT))
    if capacity:
        found |= {"capacity_factor": float(capacity[1]), "pads_capacity": bool(capacity[2])}
    if modules and (listed := tuple(re.findall(r"\w+", modules[1]))):
        found |= {"recompute": "selective", "recompute_modules": listed}
    if text and text[1] != "None":
        found["pp_layout"] = text[1]
    return found if row.experts is not None else {key: found[key] for key in found if key in _DENSE}


_DENSE = ("recompute", "recompute_modules", "pp_layout")
"""Keys of the layout that a model without experts has too, of those that notes speak of."""


def _stages(
    row: MeasuredRun,
    rule: NameRule,
    schedule: str | None,
    names: MeasuredNames,
    data: Sequence[Path],
    reading: Reading,
) -> dict[str, Any]:
    """Keys of the layout that say how a framework deals out layers to stages."""
    layers, pp = row.layers or 0, row.pp or 1
    stages = pp * (row.vpp or 1)
    listed = model_rule(row, names).pp_layouts.get(stages)
    if listed is not None and rule.stages == "ends_as_layers" and layers % stages:
        reading.notes.append(f"layers of {stages} virtual stages not stated: {listed} taken")
        return {"pp_layout": listed}
    if rule.stages == "by_cost" and stages == pp > 1:
        return {"stage_layers": _by_cost(row, load_framework(rule.name or "", data).vocab_multiple)}
    if rule.stages == "ends_as_layers" and layers % stages and (layers + 2) % stages == 0:
        reading.notes.append("embedding and loss counted as layers, with which layers divide over stages")
        return {"embedding_as_layer": True, "loss_as_layer": True}
    dealt = "embedding_as_layer" in rule.layout
    if layers % stages and layers >= stages and schedule in _CHUNKED and not dealt:
        reading.notes.append("layers that do not divide over stages dealt out as evenly as they go")
        return {"stage_layers": list(spread(layers, stages))}
    return {}


def _by_cost(row: MeasuredRun, vocab_multiple: int) -> list[int]:
    """Layers of each stage; all products of a layer weigh alike, whatever its key-value heads."""
    hidden = row.hidden or 0
    multiple = vocab_multiple * (row.tp or 1)
    vocab = -(-(row.vocab or 0) // multiple) * multiple
    layer = 4 * hidden * hidden + 3 * hidden * (row.ffn_hidden or 4 * hidden)
    return list(split_by_cost([layer] * (row.layers or 0), vocab * hidden, row.pp or 1))


def _named(cell: str, rules: Sequence[NameRule], what: str, reading: Reading) -> str | None:
    rule = _rule(cell, rules, what, reading)
    return None if rule is None else rule.name


def _rule(cell: str, rules: Sequence[NameRule], what: str, reading: Reading) -> NameRule | None:
    if cell.lower() in _UNSTATED:
        return None
    rule = first_match(rules, cell)
    _apply(rule, f"no rule for the {what} {cell!r}", reading)
    return rule


def _apply(rule: NameRule | None, otherwise: str, reading: Reading) -> str | None:
    """Take the name of a rule; note what it assumes, or why the row is skipped."""
    if rule is None:
        reading.reasons.append(otherwise)
        return None
    if rule.skip is not None:
        reading.reasons.append(rule.skip)
    elif rule.note:
        reading.notes.append(rule.note)
    return rule.name
