"""Rules applied to facts: what does not hold, and the values that would be legal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shardsim.errors import Problem
from shardsim.values.rules import Expression, Fact, Rule, RuleSet
from shardsim.workload.validity.facts import completed

_SHOWN = 12
_MOST_TRIED = 1024
_DERIVED = ("replica", "dp", "dp_asked", "microbatches", "virtual_stages", "chunk_layers", "sp")


@dataclass(frozen=True, slots=True)
class Verdicts:
    """What a rule set says of some facts.

    Parameters
    ----------
    problems, warnings : tuple of Problem
        Of the rules that do not hold.
    held, undecided : tuple of str
        Names of the rules that hold, and of those that the facts do not decide.
    """

    problems: tuple[Problem, ...]
    warnings: tuple[Problem, ...]
    held: tuple[str, ...]
    undecided: tuple[str, ...]


def verdicts(rules: RuleSet, given: Mapping[str, Fact]) -> Verdicts:
    """Apply rules to facts, of which some may not be known.

    Parameters
    ----------
    rules : RuleSet
    given : mapping of str to Fact
        See :data:`shardsim.values.rules.FACTS`; what follows from others may be left out.

    Returns
    -------
    Verdicts
    """
    facts = completed(given)
    found = [(rule, rule.holds(facts)) for rule in rules.rules]
    errors = [(other, held) for other, held in found if other.level == "error"]
    every, held_so_far = [other for other, _ in errors], [other for other, held in errors if held]
    broken = [
        (rule, _problem(rule, facts, (every, [*held_so_far, *_on_the_same(rule, every)], held_so_far)))
        for rule, held in found
        if held is False
    ]
    return Verdicts(
        problems=tuple(problem for rule, problem in broken if rule.level == "error"),
        warnings=tuple(problem for rule, problem in broken if rule.level == "warning"),
        held=tuple(rule.name for rule, held in found if held),
        undecided=tuple(rule.name for rule, held in found if held is None),
    )


def _on_the_same(rule: Rule, others: Sequence[Rule]) -> list[Rule]:
    """Rules that list legal values of the same fact: their lists should not contradict each other."""
    return [other for other in others if rule.choose and other.choose and other.choose[0] == rule.choose[0]]


def _problem(rule: Rule, facts: Mapping[str, Fact], besides: Sequence[Sequence[Rule]]) -> Problem:
    right = "" if rule.right is None else rule.right.filled(facts)
    if rule.choose is not None:
        right = choices(legal_values(rule, facts, besides))
    elif rule.multiple is not None:
        right = _multiples(rule.multiple, facts)
    return Problem(rule.what.filled(facts), rule.where, right)


def legal_values(rule: Rule, facts: Mapping[str, Fact], besides: Sequence[Sequence[Rule]] = ()) -> list[int]:
    """Try the values of the fact that a rule would have changed.

    Parameters
    ----------
    rule : Rule
        With ``choose``.
    facts : mapping of str to Fact
    besides : sequence of sequence of Rule
        Rules that should hold as well: all of the first of these lists for which there is such a value.

    Returns
    -------
    list of int
        Ascending (-).
    """
    if rule.choose is None:
        return []
    name, largest = rule.choose
    bound = largest.value(facts)
    tried = range(1, min(int(bound), _MOST_TRIED) + 1) if isinstance(bound, int | float) else range(0)
    given = {key: value for key, value in facts.items() if key not in _DERIVED}
    if facts.get("gpus") is None:
        given["dp_asked"] = facts.get("dp_asked")
    if facts.get("schedule") == "custom":
        given["virtual_stages"] = facts.get("virtual_stages")
    changed = [(value, completed({**given, name: value})) for value in tried]
    alone = [(value, then) for value, then in changed if rule.holds(then)]
    for others in besides:
        fitting = [value for value, then in alone if all(other.holds(then) is not False for other in others)]
        if fitting:
            return fitting
    return [value for value, _ in alone]


def choices(values: list[int]) -> str:
    """List legal values, the first few and the last; empty when there are none."""
    if not values:
        return ""
    more = f" ... {values[-1]}" if len(values) > _SHOWN else ""
    return "one of " + ", ".join(str(value) for value in values[:_SHOWN]) + more


def _multiples(multiple: tuple[str, Expression], facts: Mapping[str, Fact]) -> str:
    name, of = multiple
    value, step = facts.get(name), of.value(facts)
    if not isinstance(value, int) or not isinstance(step, int):
        return ""
    below = value // step * step
    return f"a multiple of {step}, such as " + (f"{below} or {below + step}" if below else str(step))
