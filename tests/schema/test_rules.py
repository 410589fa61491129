"""Validity rules as data: expressions over facts, sets that extend each other, every mistake named."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardsim.errors import InputError
from shardsim.schema.catalog import names
from shardsim.schema.framework import load_framework
from shardsim.schema.rules import load_rules
from shardsim.values.rules import FACTS, Expression, Wording

RULES = """
title: ours
sources: {us: our cluster}
extends: [megatron-core]
rules:
  - {name: small, check: tp <= 8, what: "tp {tp} leaves the node", where: layout.tp, choose: {tp: 8}, source: us}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "workloads" / "rules").mkdir(parents=True)
    return tmp_path


def write(folder: Path, text: str, name: str = "ours") -> Path:
    path = folder / "workloads" / "rules" / f"{name}.yaml"
    path.write_text(text)
    return path


def test_every_shipped_set_loads_and_says_where_its_rules_stand() -> None:
    for name in names("rules"):
        rules = load_rules(name).rules
        assert len({rule.name for rule in rules}) == len(rules)
        assert all(rule.source and rule.where for rule in rules)


def test_every_framework_names_a_set_that_exists() -> None:
    assert {load_framework(name).rules for name in names("framework")} <= set(names("rules"))


def test_a_set_extends_another_and_may_leave_rules_out(folder: Path) -> None:
    write(folder, RULES.replace("rules:", "without: [ffn]\nrules:"))
    found = [rule.name for rule in load_rules("ours", (folder,)).rules]
    assert "ffn" not in found
    assert found[0] == "devices"
    assert found[-1] == "small"


def test_a_rule_of_the_same_name_replaces_the_one_it_extends(folder: Path) -> None:
    write(folder, RULES.replace("name: small", "name: heads"))
    (rule,) = (rule for rule in load_rules("ours", (folder,)).rules if rule.name == "heads")
    assert rule.check.text == "tp <= 8"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("tp <= 8", "tpp <= 8"), "'tpp' is no fact that rules know"),
        (("tp <= 8", "__import__('os')"), "Call is not allowed"),
        (("tp <= 8", "tp.real"), "Attribute is not allowed"),
        (("tp <= 8", "tp <="), "is no expression"),
        (("{tp} leaves", "{tp!r} leaves"), "is no expression"),
        (("choose: {tp: 8}", "choose: {tpp: 8}"), "did you mean tp"),
        (("source: us}", "source: them}"), "no source is called them"),
        (("choose: {tp: 8}", "choose: {tp: 8}, right: less"), "one of right, choose and multiple"),
        (("extends: [megatron-core]", "extends: [megatron-cor]"), "did you mean megatron-core"),
        (("extends: [megatron-core]", "extends: [ours]"), "ours extends ours, and so on"),
        (("rules:", "without: [haeds]\nrules:"), "no rule 'haeds' to leave out"),
    ],
)
def test_a_mistake_in_a_file_is_named(folder: Path, change: tuple[str, str], said: str) -> None:
    write(folder, RULES.replace(*change))
    with pytest.raises(InputError, match=said):
        load_rules("ours", (folder,))


def test_an_edited_file_is_read_again(folder: Path) -> None:
    write(folder, RULES)
    before = load_rules("ours", (folder,)).rules[-1].check.text
    write(folder, RULES.replace("tp <= 8", "tp <= 4"))
    assert (before, load_rules("ours", (folder,)).rules[-1].check.text) == ("tp <= 8", "tp <= 4")


def test_what_is_not_known_decides_nothing_that_depends_on_it() -> None:
    rule = Expression("heads % tp == 0")
    assert rule.value({"heads": 96, "tp": 8}) is True
    assert rule.value({"heads": 96, "tp": 5}) is False
    assert rule.value({"heads": 96}) is None
    assert Expression("moe and sp").value({"sp": False}) is False
    assert Expression("moe or sp").value({"sp": True}) is True
    assert Expression("moe or sp").value({"sp": False}) is None
    assert Expression("pp <= group <= microbatches").value({"pp": 8, "group": 4}) is False
    assert Expression("heads % tp == 0").value({"heads": 96, "tp": 0}) is None


def test_words_may_be_compared() -> None:
    assert Expression('schedule in ("1f1b", "gpipe")').value({"schedule": "1f1b"}) is True
    assert Expression('schedule not in ("1f1b", "gpipe")').value({"schedule": "zb-v"}) is True
    assert Expression("-tp + 3 == 1").value({"tp": 2}) is True


def test_wording_holds_values_and_a_mark_for_what_is_not_known() -> None:
    text = Wording("{heads} heads over tp {tp}: {heads / tp} each, {ep}")
    assert text.filled({"heads": 96, "tp": 8}) == "96 heads over tp 8: 12 each, ?"


@given(st.integers(0, 300), st.integers(0, 300), st.integers(0, 300))
def test_expressions_mean_what_python_means(heads: int, tp: int, pp: int) -> None:
    facts = {"heads": heads, "tp": tp, "pp": pp}
    for text in ("heads + tp * 2 > pp", "heads % (tp + 1) == 0 or pp > tp", "not heads // (pp + 1) - tp <= 3"):
        assert Expression(text).value(facts) == eval(text, {}, facts)  # noqa: S307  # the oracle of our own texts


def test_every_fact_is_explained() -> None:
    assert all(text for text in FACTS.values())
