"""From a row of a table of cases to facts: numbers where they are stated, nothing where they are not."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from math import isfinite
from pathlib import Path

from shardsim.errors import Problem
from shardsim.schema.catalog import names
from shardsim.schema.megatron import MEGATRON_NAMES
from shardsim.schema.model import load_model
from shardsim.values.rules import FACTS, Fact
from shardsim.values.training import Model
from shardsim.workload.pipeline_split import SplitRequest
from shardsim.workload.schedules import RULES as SCHEDULES
from shardsim.workload.validity.facts import facts_of_model

_COLUMNS = {
    "layers": "layers",
    "hidden": "hidden",
    "ffn": "ffn",
    "heads": "heads",
    "kv_heads": "kv_heads",
    "seq": "seq",
    "gpus": "gpus",
    "tp": "tp",
    "pp": "pp",
    "vpp": "vpp",
    "cp": "cp",
    "ep": "ep",
    "dp": "dp_asked",
    "mbs": "micro_batch",
    "gbs": "global_batch",
}
_KEYS = {
    **{name: path[-1] for name, path in MEGATRON_NAMES.items()},
    "num_microbatches": "microbatches",
    "num_experts": "experts",
    "moe_router_topk": "top_k",
    "moe_ffn_hidden_size": "expert_ffn",
    "num_query_groups": "kv_heads",
    "num_attention_heads": "heads",
    "num_layers": "layers",
    "hidden_size": "hidden",
    "ffn_hidden_size": "ffn",
    "kv_channels": "head_dim",
    "zero_stage": "zero",
    "gradient_accumulation_steps": "accumulation",
    "gas": "accumulation",
    "layout": "pp_layout",
}
"""Words before ``=`` in the column ``other``, besides our own keys; section names of a run file aside."""
_DEGREES = frozenset(
    {"layers", "hidden", "heads", "seq", "gpus", "tp", "pp", "dp_asked", "micro_batch", "global_batch"}
)
"""Counts that every layout has, of which 0 is none; elsewhere 0 may stand for what is not there."""
_TRUTHS = frozenset(
    {"sp_asked", "moe", "mla", "bias", "split", "shared_experts", "embedding_as_layer", "loss_as_layer"}
)
_CHOICES = {"recompute": ("none", "selective", "full"), "cuda_graphs": ("none", "layers", "full")}
_NOTHING = frozenset({"", "-", "?", "na", "n/a", "nan", "none", "null"})
_TEXTS = frozenset({"pp_layout", "micro_batch_sizes", "stage_layers", "schedule"})
_SAME = {"global": "global_batch", "micro": "micro_batch", "sp": "sp_asked", "dp": "dp_asked"}
_WORDS = {"on": True, "true": True, "yes": True, "off": False, "false": False, "no": False}
_SETTING = re.compile(r"(?:--)?([A-Za-z][\w-]*)\s*=\s*(\[[^\]]*\]|[^\s;,]+)|\b(layout)\s+(\S+)")
_ZERO = (
    (r"zero[- ]?(?:stage[- ]?)?([0-3])", None),
    (r"distributed optimizer", 1),
    (r"full[_ ]shard|fsdp", 3),
)
_SPLIT_SEQUENCE = re.compile(
    r"(?P<not>\b(?:no|without)\s+)?\b(?:sp|sequence[ _-]parallel(?:ism)?)\b(?:\s*[:=]?\s*(?P<said>on|off)\b)?",
    re.IGNORECASE,
)
_EXPERTS = re.compile(r"\bmoe\b|\d+x\d+b|-a\d+b\b|\bmixtral\b", re.IGNORECASE)
_STACK = re.compile(r"[/,+&]|\band\b")


@dataclass(frozen=True, slots=True)
class Case:
    """One row, read.

    Parameters
    ----------
    id, kind, framework, outcome, value : str
        As the table has them.
    facts : mapping of str to Fact
        What validity rules may speak of, as far as it is stated or follows.
    settings : mapping of str to str
        Of the column ``other``, what is no fact, as text.
    vocab : tuple of (int, int) or None
        Smallest and largest vocabulary that is meant (-).
    recompute : str
    unknown : tuple of str
        Settings of the column ``other`` that no rule and no formula knows.
    unread : tuple of str
        What is stated and cannot be read, or stated twice and differently; such facts are None.
    impossible : tuple of Problem
        Numbers that are no counts; such facts are None too.
    model : Model or None
        Of the catalog, where a name and no contradicting number says so.
    notes : tuple of str
        What had to be assumed.
    """

    id: str
    kind: str
    framework: str
    outcome: str
    value: str
    facts: Mapping[str, Fact]
    settings: Mapping[str, str] = field(default_factory=dict)
    vocab: tuple[int, int] | None = None
    recompute: str = ""
    unknown: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    impossible: tuple[Problem, ...] = ()
    model: Model | None = None
    notes: tuple[str, ...] = ()


def read_case(number: int, cells: Mapping[str, str], data: Sequence[Path] = ()) -> Case:
    """Read one row.

    Parameters
    ----------
    number : int
        Of the row, from 1: its name where it has none.
    cells : mapping of str to str
        By column.
    data : sequence of Path
        A user's own data folders.

    Returns
    -------
    Case
    """
    said = _Said()
    _stated(cells, said)
    facts, settings = said.facts, said.settings
    model = _catalog_model(cells.get("model", ""), facts, data)
    vocab = _vocabulary(cells.get("vocab", ""))
    if vocab is not None and vocab[0] == vocab[1]:
        facts["vocab"] = vocab[0]
    return Case(
        id=cells.get("id") or cells.get("case_id") or str(number),
        kind=cells.get("kind", ""),
        framework=cells.get("framework", ""),
        outcome=cells.get("outcome", ""),
        value=cells.get("value", ""),
        facts=facts | ({} if model is None else _of_model(model, facts)),
        settings=settings,
        vocab=vocab,
        recompute=cells.get("recompute", "").lower(),
        unknown=tuple(name for name in (*facts, *settings) if name not in _KNOWN),
        unread=tuple(said.unread),
        impossible=tuple(said.impossible),
        model=model,
        notes=() if model is None else (f"shape of {model.name} taken from the catalog where the row does not say",),
    )


_KNOWN = {*FACTS, *_TEXTS, *(f.name for f in fields(SplitRequest)), "make_vocab_size_divisible_by"}
_COUNTS = _KNOWN - _TRUTHS - set(_CHOICES) - _TEXTS - {"precision"}
_LONE = re.compile(r"(?<![<>=!])=(?![=>])")
"""An equals sign that is no comparison."""
_SHOWN = 40


@dataclass(slots=True)
class _Said:
    """What a row states, while it is read."""

    facts: dict[str, Fact] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    unread: list[str] = field(default_factory=list)
    impossible: list[Problem] = field(default_factory=list)

    def fact(self, name: str, text: str, shown: str) -> None:
        """Take a fact from text; ``shown`` is what the row says."""
        value = _value(name, text)
        if value == 0 and value is not False and name not in (*_DEGREES, "zero", "experts", "shard", "group"):
            return  # 0 stands for what is not there
        number = value if isinstance(value, int | float) and not isinstance(value, bool) else None
        least = 1 if name in _DEGREES else 0
        if number is not None and not (number >= least and number == int(number)):
            self.impossible.append(Problem(f"{shown} is not a count", right=f"a whole number, {least} or more"))
            value = None
        elif value is None:
            self.unread.append(shown)
        elif self.facts.get(name, value) not in (value, None):
            self.unread.append(f"{shown} beside {name} {self.facts[name]}")
            value = None
        self.facts[name] = None if self.facts.get(name, value) is None else value


def _value(name: str, text: str) -> Fact:
    """Read a fact; None where the text means nothing that it could be."""
    word = text.lower()
    if name in _CHOICES:
        return word if word in _CHOICES[name] else None
    if name == "precision":
        return word
    if word in _WORDS:
        return _WORDS[word] if name not in _COUNTS else None
    number = _number(text)
    if name in _TRUTHS:
        return bool(number) if number in (0, 1) else None
    return number


def _stated(cells: Mapping[str, str], said: _Said) -> None:
    """Read facts that columns state, and settings that are no facts."""
    for column, name in _COLUMNS.items():
        text = cells.get(column, "").strip()
        if text.lower() not in _NOTHING:
            said.fact(name, text, f"{column} {text[:_SHOWN]}")
    other = cells.get("other", "")
    for key, text in _settings(other):
        shown = f"{key}={text[:_SHOWN]}"
        numberless = key in ("stage_layers", "micro_batch_sizes") and not re.search(r"\d", text)
        if "=" in text or numberless or (key == "schedule" and text.lower() not in SCHEDULES):
            said.unread.append(shown)
        elif key in _TEXTS:
            said.settings[key] = text.lower() if key == "schedule" else text
        elif key in _KNOWN:
            said.fact(key, text, shown)
        else:
            said.settings[key] = text
    said.unread += (word[:_SHOWN] for word in _SETTING.sub(" ", other).split() if _LONE.search(word))
    spoken = _SPLIT_SEQUENCE.search(other)
    if spoken and "sp_asked" not in said.facts:
        said.facts["sp_asked"] = not spoken["not"] and (spoken["said"] or "on").lower() == "on"
    zero = _zero(cells.get("optimizer_sharding", ""))
    precision = re.match(r"[a-z]+\d+", cells.get("precision", "").lower())
    said.facts |= {} if zero is None else {"zero": zero}
    said.facts |= {"precision": precision[0]} if precision else {}
    said.facts |= _experts(cells, said.facts)


def _experts(cells: Mapping[str, str], facts: Mapping[str, Fact]) -> dict[str, Fact]:
    """What a row says of experts: ``256/8`` in its column, a model's name, or expert parallelism."""
    stated = re.match(r"\s*(\d+)\s*(?:/\s*(\d+))?", cells.get("experts_topk", ""))
    found: dict[str, Fact] = {}
    if stated:
        found = {"experts": int(stated[1]), **({"top_k": int(stated[2])} if stated[2] else {})}
    ep, count = facts.get("ep"), found.get("experts", facts.get("experts"))
    if count is not None:
        found["moe"] = bool(count)
    elif _EXPERTS.search(cells.get("model", "")) or (isinstance(ep, int) and ep > 1):
        found["moe"] = True
    return found


def stack(framework: str) -> tuple[str, ...]:
    """Split the name of a software stack into its parts, in lower case.

    Parameters
    ----------
    framework : str

    Returns
    -------
    tuple of str

    Examples
    --------
    >>> stack("SimAI/Megatron"), stack("DeepSpeed elastic v0.2")
    (('simai', 'megatron'), ('deepspeed elastic v0.2',))
    """
    return tuple(part for part in (piece.strip().lower() for piece in _STACK.split(framework)) if part)


def _settings(text: str) -> list[tuple[str, str]]:
    found = []
    for key, value, word, after in _SETTING.findall(text):
        name = (key or word).lower().replace("-", "_")
        name = _KEYS.get(name, name)
        found.append(
            (_SAME.get(name, name), (value or after).rstrip(",;") if name != "pp_layout" else (value or after))
        )
    return found


def _number(text: str) -> int | float | None:
    """Read a number: ``30``, ``30.0``, ``2,048``, ``-2``."""
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return None
    return int(value) if value.is_integer() else value if isfinite(value) else None


def _whole(text: str) -> int | None:
    """Read a whole number that is not negative."""
    value = _number(text)
    return value if isinstance(value, int) and value >= 0 else None


def _zero(text: str) -> int | None:
    for pattern, stage in _ZERO:
        match = re.search(pattern, text, re.IGNORECASE)
        if match:
            return int(match[1]) if stage is None else stage
    return None


def _vocabulary(text: str) -> tuple[int, int] | None:
    """Read ``32000`` or a range such as ``32000<v<=32256``."""
    exact = _whole(text)
    if exact is not None:
        return exact, exact
    match = re.fullmatch(r"\s*(\d+)\s*(<=?)\s*[a-zA-Z]\w*\s*(<=?)\s*(\d+)\s*", text)
    if not match:
        return None
    low, high = int(match[1]) + (match[2] == "<"), int(match[4]) - (match[3] == "<")
    return (low, high) if low <= high else None


def _catalog_model(name: str, facts: Mapping[str, Fact], data: Sequence[Path]) -> Model | None:
    plain = re.sub(r"[^a-z0-9.]", "", name.lower())
    if not plain:
        return None
    known = {re.sub(r"[^a-z0-9.]", "", entry): entry for entry in names("model", data)}
    if plain not in known:
        return None
    model = load_model(known[plain], data)
    shape = facts_of_model(model)
    agrees = all(facts[key] == value for key, value in shape.items() if key in facts and key in _SHAPE)
    return model if agrees else None


_SHAPE = ("layers", "hidden", "heads", "kv_heads", "ffn", "experts")


def _of_model(model: Model, facts: Mapping[str, Fact]) -> dict[str, Fact]:
    return {key: value for key, value in facts_of_model(model).items() if key not in facts}
