"""Cases that others met: what their framework said of a layout, and what our rules and formulas say."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from shardsim.errors import InputError, Problem
from shardsim.schema.catalog import names
from shardsim.schema.rules import load_rules
from shardsim.validate.accounting import ACCOUNTS
from shardsim.validate.casefacts import Case, read_case, stack
from shardsim.validate.csvfile import read_csv
from shardsim.values.rules import Fact, Rule, RuleSet
from shardsim.workload.pipeline_split import SplitRequest, layout_sections, stage_split
from shardsim.workload.schedules import RULES as SCHEDULES
from shardsim.workload.validity.facts import completed
from shardsim.workload.validity.limits import named_schedule
from shardsim.workload.validity.verdicts import verdicts

KINDS = ("validity", "accounting")
"""Kinds of cases that can be decided from rules and formulas alone."""

_UNSTATED: Mapping[str, Fact] = MappingProxyType(
    {
        "cp": 1,
        "ep": 1,
        "vpp": 1,
        "group": 0,
        "shard": 0,
        "split": False,
        "head_dim": 0,
        "recompute_layers": 0,
        "max_positions": 0,
        "sp_default": False,
        "cuda_graphs": "none",
        "bias": False,
    }
)
"""What a layout has that does not say otherwise."""


@dataclass(frozen=True, slots=True)
class CaseRow:
    """One case against our answer.

    Parameters
    ----------
    id, kind, framework : str
        As the table has them.
    measured : str
        The stated outcome.
    predicted : str
        Ours; empty for a skipped row.
    error : float or None
        0 where they agree; for figures the largest of predicted / stated - 1; 1 where words differ.
    status : {"ok", "skipped"}
    reason : str
        Why the row was skipped, or what our answer rests on: depends on the inputs only.
    """

    id: str
    kind: str
    framework: str
    measured: str
    predicted: str
    error: float | None
    status: Literal["ok", "skipped"]
    reason: str


@dataclass(frozen=True, slots=True)
class CaseTable:
    """Every case of a table.

    Parameters
    ----------
    file : str
        Name of the table.
    rows : tuple of CaseRow
        In the order of the input.
    """

    file: str
    rows: tuple[CaseRow, ...]

    @property
    def decided(self) -> tuple[CaseRow, ...]:
        """Rows with an answer of ours."""
        return tuple(row for row in self.rows if row.status == "ok")

    @property
    def right(self) -> tuple[CaseRow, ...]:
        """Those whose answer is the stated one, figures within 0.5 %."""
        return tuple(row for row in self.decided if row.error is not None and abs(row.error) <= CLOSE)


CLOSE = 0.005
"""Figures that agree to so much are the same: they are stated with three digits (-)."""


def validate_cases(path: Path, data: Sequence[Path] = ()) -> CaseTable:
    """Decide every case of a table that rules and formulas can decide.

    Parameters
    ----------
    path : Path
        CSV file with at least the columns ``kind``, ``framework`` and ``outcome``.
    data : sequence of Path
        A user's own data folders.

    Returns
    -------
    CaseTable
        One row for every row of the file, in order.

    Raises
    ------
    InputError
        Every problem of the file.
    """
    table = read_csv(path, ("kind", "framework", "outcome"))
    sets = [load_rules(name, data) for name in names("rules", data)]
    cases = (read_case(number, row.cells, data) for number, row in enumerate(table.rows, start=1))
    return CaseTable(path.name, tuple(_row(case, sets) for case in cases))


def rules_called(framework: str, sets: Sequence[RuleSet]) -> RuleSet | None:
    """Find the rule set of a software stack: that of the first part that one is called by.

    Parameters
    ----------
    framework : str
        Such as ``SimAI/Megatron`` or ``DeepSpeed elastic v0.2``.
    sets : sequence of RuleSet

    Returns
    -------
    RuleSet or None
    """
    for part in stack(framework):
        for rules in sets:
            # The name, or the name and a version or component after a blank.
            if any(part == name or part.startswith(f"{name} ") for name in rules.called):
                return rules
    return None


def _row(case: Case, sets: Sequence[RuleSet]) -> CaseRow:
    rules = rules_called(case.framework, sets)
    if case.kind not in KINDS:
        return _skipped(case, f"cases of kind {case.kind or 'unknown'} are not decided by rules")
    if rules is None:
        return _skipped(case, f"no rules for the framework {case.framework or 'that is not stated'}")
    return _validity(case, rules) if case.kind == "validity" else _accounting(case)


def _skipped(case: Case, reason: str) -> CaseRow:
    return CaseRow(case.id, case.kind, case.framework, _stated(case), "", None, "skipped", reason)


def _stated(case: Case) -> str:
    return case.outcome if case.kind == "validity" else case.value or case.outcome


def _validity(case: Case, rules: RuleSet) -> CaseRow:
    if _meant(case.outcome) is None:
        said = f"the outcome {case.outcome!r} is none of error, warning and ok"
        return _skipped(case, said if case.outcome else "no outcome is stated")
    dense = _judged(case, rules, moe=False)
    found = _judged(case, rules, moe=True) if case.facts.get("moe") else dense
    answer, because = found.answer, found.because
    if case.facts.get("moe") is None and not dense.problems:
        mixed = _judged(case, rules, moe=True)
        if mixed.problems and "iff" in case.outcome.lower():
            found, answer, because = mixed, "error iff MoE", mixed.because
    if case.unread and not found.problems:
        return _skipped(case, _not_read(case))
    if not found.decided and not found.problems and not found.warnings:
        return _skipped(case, "no rule can be decided from what is stated")
    if case.unknown and not found.problems:
        return _skipped(case, f"no rule knows what is stated: {', '.join(case.unknown)}")
    because = "; ".join((because, *((_not_read(case),) if case.unread else ())))
    error = 0.0 if _same(answer, case.outcome) else 1.0
    return CaseRow(case.id, case.kind, case.framework, case.outcome, answer, error, "ok", because)


def _not_read(case: Case) -> str:
    return f"cannot be read: {'; '.join(case.unread)}"


def _meant(outcome: str) -> str | None:
    """Which of our answers a stated outcome means; None where it means none."""
    said = outcome.strip().lower()
    return next((word for word, pattern in _OUTCOMES if re.match(pattern, said)), None)


def _same(answer: str, outcome: str) -> bool:
    """Whether a stated outcome means our answer; nobody states the warnings of a layout that runs."""
    said = outcome.strip().lower()
    if "iff" in answer or "iff" in said:
        return said.startswith(answer.lower())
    stated = _meant(outcome)
    return stated == answer or (stated, answer) == ("ok", "warning")


_OUTCOMES = (
    ("error", r"\w*error|invalid|illegal|fail|reject|assert|refus|rais|crash|not\b"),
    ("warning", r"warn"),
    ("ok", r"ok\b|valid|legal|runs|works|pass|accept|succe"),
)


@dataclass(frozen=True, slots=True)
class _Judgement:
    """What rules say of a case: problems, warnings, and the rules that the stated facts show to hold."""

    problems: tuple[Problem, ...]
    warnings: tuple[Problem, ...]
    decided: tuple[str, ...]

    @property
    def answer(self) -> str:
        return "error" if self.problems else "warning" if self.warnings else "ok"

    @property
    def because(self) -> str:
        said = "; ".join(_sentence(problem) for problem in self.problems or self.warnings)
        return said or f"rules that hold: {', '.join(self.decided)}"


def _sentence(problem: Problem) -> str:
    return f"{problem.what} ({problem.right})" if problem.right else problem.what


def _judged(case: Case, rules: RuleSet, *, moe: bool) -> _Judgement:
    facts: dict[str, Fact] = {**_UNSTATED, **case.facts}
    if facts.get("moe") is None:
        facts |= {"moe": True} if moe else {"moe": False, "experts": 0, "top_k": 0, "expert_ffn": 0}
    facts.setdefault("kv_heads", facts.get("heads"))
    stages = _settle_stages(case, facts)
    facts.setdefault("schedule", case.settings.get("schedule") or _usual_schedule(facts))
    found = verdicts(rules, {key: value for key, value in facts.items() if value is not None})
    held = set(found.held)
    return _Judgement(
        (*case.impossible, *stages, *found.problems, *_schedule_problems(facts, case)),
        found.warnings,
        tuple(rule.name for rule in rules.rules if rule.name in held and _rests_on(rule, facts, set(case.facts))),
    )


def _rests_on(rule: Rule, facts: Mapping[str, Fact], stated: set[str]) -> bool:
    """Whether a rule that holds does so because of what the row states, rather than of what it leaves out."""
    applies = rule.when is None or bool(rule.when.value(completed(facts)))
    names_used = (rule.when.names if rule.when else frozenset()) | (rule.check.names if applies else frozenset())
    if "dp_asked" not in stated and "dp" in names_used:
        names_used = names_used - {"dp"} | {"gpus", "replica"}
    sources = {source for name in names_used for source in _SOURCES.get(name, (name,))}
    return bool(sources & stated) and sources <= stated | set(_UNSTATED)


_SOURCES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "replica": ("tp", "pp", "cp"),
        "dp": ("dp_asked",),
        "virtual_stages": ("pp", "vpp"),
        "chunk_layers": ("layers",),
        "sp": ("sp_asked", "tp"),
    }
)
"""What derived facts follow from."""


def _usual_schedule(facts: Mapping[str, Fact]) -> str | None:
    chunks = facts.get("vpp")
    return None if not isinstance(chunks, int) else "interleaved" if chunks > 1 else "1f1b"


def _settle_stages(case: Case, facts: dict[str, Fact]) -> tuple[Problem, ...]:
    """Find chunks and layers of stages, where something is stated about them."""
    listed, text = case.settings.get("stage_layers"), case.settings.get("pp_layout")
    stage_layers = tuple(int(n) for n in re.findall(r"\d+", listed)) if listed else None
    layers, pp = _count(facts, "layers"), _count(facts, "pp")
    try:
        sections = layout_sections(text or "")
    except InputError as error:
        return error.problems
    if layers is None and text is not None:
        layers = "".join(sections).count("t")
    elif layers is None:
        layers = sum(stage_layers or ())
    if pp is None or not layers or not (listed or text or any(facts.get(name) for name in _SPLITTING)):
        return ()
    facts["vpp"], split, problems = stage_split(
        SplitRequest(
            layers=layers,
            pp=pp,
            vpp=_count(case.facts, "vpp"),
            stage_layers=stage_layers,
            first_layers=_count(facts, "first_layers"),
            last_layers=_count(facts, "last_layers"),
            embedding_as_layer=bool(facts.get("embedding_as_layer")),
            loss_as_layer=bool(facts.get("loss_as_layer")),
            pp_layout=text,
            virtual_stage_layers=_count(facts, "virtual_stage_layers"),
            mtp="".join(sections).count("m"),
        )
    )
    facts["split"] = bool(split) or bool(problems)
    return problems


_SPLITTING = ("first_layers", "last_layers", "virtual_stage_layers", "embedding_as_layer", "loss_as_layer")


def _count(facts: Mapping[str, Fact], name: str) -> int | None:
    value = facts.get(name)
    return value if isinstance(value, int) else None


def _schedule_problems(facts: Mapping[str, Fact], case: Case) -> tuple[Problem, ...]:
    """What the schedule asks, where something is stated about it."""
    stated = set(case.facts) | set(case.settings)
    known = completed(facts)
    name, pp, vpp = str(facts.get("schedule")), _count(facts, "pp"), _count(facts, "vpp")
    if not stated & {"schedule", "vpp", "virtual_stage_layers", "group", "pp_layout"} or pp is None or vpp is None:
        return ()
    rule = SCHEDULES.get(name)
    chunks = rule.chunks if rule is not None and rule.chunks > 1 and "vpp" not in case.facts else vpp
    return tuple(named_schedule(name, pp, chunks, _count(known, "microbatches"), _count(facts, "group") or 0))


def _accounting(case: Case) -> CaseRow:
    account = next((make for name, make in ACCOUNTS.items() if case.outcome.lower().startswith(name)), None)
    if account is None:
        return _skipped(case, f"no formula for {case.outcome or 'an outcome that is not stated'}")
    if case.unread or case.impossible:
        return _skipped(case, "; ".join((*(_not_read(case) for _ in case.unread[:1]), *map(str, case.impossible))))
    found = account(case)
    if found.missing:
        return _skipped(case, f"not stated: {', '.join(found.missing)}")
    row = CaseRow(case.id, case.kind, case.framework, _stated(case), found.text, None, "ok", found.because)
    return replace(row, error=found.error(case.value))
