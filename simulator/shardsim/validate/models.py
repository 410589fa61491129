"""From a row of a measured table to the shape of its model."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shardsim.schema.validation import MeasuredNames, ModelRule
from shardsim.validate.rows import MeasuredRun

_LATENT = re.compile(r"\bMLA q_lora (\d+) kv_lora (\d+)")
_FIRST_DENSE = re.compile(r"\bfirst (?:(\d+) )?layers? dense\b")
_TIED = re.compile(r"\btie(?:d|_word)?_embeddings=(true|false)\b", re.IGNORECASE)
_WIDTHS = ("q_lora", "kv_lora")
_HEADS = {"qk_nope_dim": 128, "qk_rope_dim": 64, "v_dim": 128}


@dataclass(slots=True)
class Reading:
    """What reading one row has found so far.

    Parameters
    ----------
    reasons : list of str
        Against the row.
    notes : list of str
        What had to be assumed.
    """

    reasons: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def model_rule(row: MeasuredRun, names: MeasuredNames) -> ModelRule:
    """Find what a model's name says of it.

    Parameters
    ----------
    row : MeasuredRun
    names : MeasuredNames

    Returns
    -------
    ModelRule
        An empty one where no rule knows it.
    """
    return next((rule for rule in names.models if rule.matches(row.model)), ModelRule(words=()))


def model_of(row: MeasuredRun, names: MeasuredNames, reading: Reading) -> dict[str, Any] | None:
    """Interpret the columns that describe the model.

    Parameters
    ----------
    row : MeasuredRun
    names : MeasuredNames
        Rules for architecture classes and models.
    reading : Reading
        Takes reasons and notes.

    Returns
    -------
    dict or None
        As a model file holds it; None where it cannot be expressed.
    """
    key = row.arch_class.lower() or "dense-gelu"
    traits = names.architectures.get(key)
    if traits is None:
        reading.reasons.append(f"no rule for the architecture class {row.arch_class!r}")
        return None
    if traits.skip is not None:
        reading.reasons.append(traits.skip)
        return None
    named = model_rule(row, names)
    reading.notes += [note for note in (traits.note, named.note) if note]
    if row.hidden is None or row.heads is None or row.seq_len is None:
        return None
    tied = _TIED.search(row.notes)
    shape = {
        **{name: value for name, value in named.model.items() if name not in ("moe", "mla")},
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
        "moe": _experts(row, _part(named, "moe"), reading),
        "mla": _latent(row, _part(named, "mla"), reading) if key.endswith("mla") else None,
    }
    return {key: value for key, value in shape.items() if value is not None}


def _part(rule: ModelRule, name: str) -> Mapping[str, int | bool]:
    part = rule.model.get(name)
    return part if isinstance(part, dict) else {}


def _experts(row: MeasuredRun, known: Mapping[str, int | bool], reading: Reading) -> dict[str, Any] | None:
    if row.experts is None:
        return None
    if row.top_k is None or row.moe_ffn_hidden is None:
        reading.reasons.append("experts without top_k and moe_ffn_hidden")
    first = _FIRST_DENSE.search(row.notes)
    stated = {"first_dense": int(first[1] or 1)} if first else {}
    return {
        "first_dense": 0,
        **known,
        "experts": row.experts,
        "top_k": row.top_k,
        "ffn": row.moe_ffn_hidden,
        "shared_ffn": row.shared_expert_ffn or 0,
        **stated,
    }


def _latent(row: MeasuredRun, known: Mapping[str, int | bool], reading: Reading) -> dict[str, Any] | None:
    widths = _LATENT.search(row.notes)
    if widths is None and not set(_WIDTHS) <= set(known):
        reading.reasons.append("latent attention without its widths (MLA q_lora N kv_lora N in the notes)")
        return None
    reading.notes.append("heads of latent attention taken as DeepSeek's: 128 + 64 for queries and keys, 128 for values")
    stated = dict(zip(_WIDTHS, map(int, widths.groups()), strict=True)) if widths else {}
    return {**_HEADS, **known, **stated}
