"""``workloads/rules/NAME.yaml``: which layouts a framework accepts, as rules over facts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from shardsim.errors import InputError, Problem
from shardsim.schema.base import StrictModel, Text
from shardsim.schema.catalog import find, near
from shardsim.schema.loader import check, load_yaml
from shardsim.values.rules import FACTS, Expression, Rule, RuleSet, Wording


class RuleRow(StrictModel):
    """One rule: what must hold, and what to say where it does not."""

    name: Text = Field(description="one word, by which another set may leave the rule out or replace it")
    check: Text = Field(description="what must hold, over facts: heads % tp == 0")
    when: Text | None = Field(default=None, description="where the rule applies; always if left out")
    what: Text = Field(description="what is wrong otherwise; {tp} is the value of a fact or expression")
    where: Text = Field(description="the key of a run file to look at")
    right: Text | None = Field(default=None, description="what would be right, in words")
    choose: dict[str, str | int] | None = Field(
        default=None, min_length=1, max_length=1, description="a fact whose legal values are listed, and the largest"
    )
    multiple: dict[str, str | int] | None = Field(
        default=None, min_length=1, max_length=1, description="a fact that should be a multiple, and of what"
    )
    level: Literal["error", "warning"] = Field(default="error", description="whether it stops a run")
    source: Text = Field(description="a key of sources")

    @field_validator("check", "when")
    @classmethod
    def _expression(cls, text: str | None) -> str | None:
        if text is not None:
            Expression(text)
        return text

    @field_validator("what", "right")
    @classmethod
    def _wording(cls, text: str | None) -> str | None:
        if text is not None:
            Wording(text)
        return text

    @field_validator("choose", "multiple")
    @classmethod
    def _fact(cls, pair: dict[str, str | int] | None) -> dict[str, str | int] | None:
        for name, bound in (pair or {}).items():
            if name not in FACTS:
                raise ValueError(f"{name!r} is no fact that rules know; {near(name, FACTS)}")
            Expression(str(bound))
        return pair

    @model_validator(mode="after")
    def _one_way_out(self) -> Self:
        if sum(way is not None for way in (self.right, self.choose, self.multiple)) > 1:
            raise ValueError("one of right, choose and multiple says what would be right")
        return self

    def rule(self, sources: Mapping[str, str]) -> Rule:
        """Make the rule that the row describes."""
        return Rule(
            name=self.name,
            check=Expression(self.check),
            what=Wording(self.what),
            where=self.where,
            when=None if self.when is None else Expression(self.when),
            right=None if self.right is None else Wording(self.right),
            choose=_pair(self.choose),
            multiple=_pair(self.multiple),
            level=self.level,
            source=sources[self.source],
        )


def _pair(row: Mapping[str, str | int] | None) -> tuple[str, Expression] | None:
    return next(((name, Expression(str(bound))) for name, bound in row.items()), None) if row else None


class RulesFile(StrictModel):
    """The rules of a framework. Those of other sets come first; a rule of the same name replaces theirs."""

    title: Text = Field(description="a few words for people")
    sources: Mapping[str, Text] = Field(min_length=1, description="where the rules stand")
    called: tuple[Text, ...] = Field(default=(), description="what tables of cases call the framework, in lower case")
    extends: tuple[Text, ...] = Field(default=(), description="names of sets whose rules hold too")
    without: tuple[Text, ...] = Field(default=(), description="names of their rules that do not hold here")
    rules: tuple[RuleRow, ...] = Field(default=(), description="the rules")

    @model_validator(mode="after")
    def _sources_exist(self) -> Self:
        missing = sorted({row.source for row in self.rules} - set(self.sources))
        if missing:
            raise ValueError(f"no source is called {', '.join(missing)}")
        names = [row.name for row in self.rules]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"two rules are called {', '.join(twice)}")
        return self


def load_rules(name: str, extra: Sequence[Path] = ()) -> RuleSet:
    """Read a rule set, with the sets that it extends.

    Parameters
    ----------
    name : str
        Catalog name or path.
    extra : sequence of Path
        A user's own data folders.

    Returns
    -------
    RuleSet

    Raises
    ------
    InputError
        Unknown name, every problem of a file, or sets that extend each other.

    Examples
    --------
    >>> [rule.name for rule in load_rules("common").rules][:2]
    ['devices', 'replicas']
    """
    return _load(name, extra, ())


def _load(name: str, extra: Sequence[Path], above: tuple[str, ...]) -> RuleSet:
    path = find("rules", name, extra)
    if path.stem in above:
        raise InputError(Problem(f"{' extends '.join((*above, path.stem))}, and so on", str(path)))
    document = load_yaml(path)
    file = check(document, RulesFile)
    rules: dict[str, Rule] = {}
    for other in file.extends:
        rules |= {rule.name: rule for rule in _load(other, extra, (*above, path.stem)).rules}
    unknown = [rule for rule in file.without if rule not in rules]
    if unknown:
        where = document.where(("without",))
        raise InputError([Problem(f"no rule {rule!r} to leave out", where, near(rule, rules)) for rule in unknown])
    for rule in file.without:
        del rules[rule]
    rules |= {row.name: row.rule(file.sources) for row in file.rules}
    return RuleSet(path.stem, tuple(rules.values()), "; ".join(file.sources.values()), file.called)
