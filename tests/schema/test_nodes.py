"""YAML text to nodes: what libyaml reads is what PyYAML's own parser reads."""

from __future__ import annotations

import pytest
import yaml

from shardsim.schema import nodes
from shardsim.schema.locate import data_roots
from shardsim.schema.nodes import compose

FILES = [path for root in data_roots(()) for path in sorted(root.glob("*/**/*.yaml"))]


def tree(node: yaml.Node):
    """A node and all below it, with the line of each."""
    if isinstance(node, yaml.ScalarNode):
        return node.tag, node.start_mark.line, node.value
    parts = [part for item in node.value for part in (item if isinstance(item, tuple) else (item,))]
    return node.tag, node.start_mark.line, [tree(part) for part in parts]


def by_python(monkeypatch, text):
    with monkeypatch.context() as patch:
        patch.setattr(yaml, "__with_libyaml__", False)
        return compose(text)


@pytest.mark.skipif(not yaml.__with_libyaml__, reason="PyYAML was built without libyaml")
def test_both_parsers_read_every_tenth_file_of_the_catalog_alike(monkeypatch):
    assert len(FILES) > 100
    for path in FILES[::10]:
        text = path.read_text()
        assert tree(compose(text)) == tree(by_python(monkeypatch, text)), path.name


@pytest.mark.parametrize("text", ["a: [1, 2", "a: 'text\n", "a: 1\n---\nb: 2", "a:\n\t- 1", "a: *nowhere", "a: \x00"])
def test_what_is_wrong_is_said_in_the_same_words(text, monkeypatch):
    with pytest.raises(yaml.YAMLError) as with_it:
        compose(text)
    with pytest.raises(yaml.YAMLError) as without:
        by_python(monkeypatch, text)
    assert str(with_it.value) == str(without.value)


def test_deep_nesting_ends_in_an_error_and_not_in_a_crash():
    for text in ("[" * 100_000, "- " * 100_000):
        with pytest.raises(RecursionError):
            compose(text)


@pytest.mark.parametrize(
    ("text", "kind", "value"), [("0o17", "int", 15), ("-.inf", "float", float("-inf")), ("TRUE", "bool", True)]
)
def test_scalars_follow_the_core_schema(text, kind, value):
    node = compose(text)
    assert node.tag == nodes.TAG + kind
    assert nodes.scalar(node.value, kind) == value
