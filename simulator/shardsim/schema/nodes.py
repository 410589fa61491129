"""YAML text to nodes, and what a plain scalar means by YAML 1.2's core schema."""

from __future__ import annotations

import re
from contextlib import suppress
from types import MappingProxyType

import yaml
from yaml.composer import Composer
from yaml.resolver import BaseResolver

TAG = "tag:yaml.org,2002:"
_BOOL = re.compile(r"true|True|TRUE|false|False|FALSE")
PATTERNS = MappingProxyType(
    {
        "null": re.compile(r"~|null|Null|NULL|"),
        "bool": _BOOL,
        "int": re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+"),
        "float": re.compile(  # YAML 1.2, 10.3.2
            r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
        ),
    }
)
"""What plain text is not text, by kind; tried in this order."""


class _CoreResolver(BaseResolver):
    """Which scalar means what."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012  # PyYAML's own form


for _name, _pattern in PATTERNS.items():
    _CoreResolver.add_implicit_resolver(TAG + _name, re.compile(rf"(?:{_pattern.pattern})$"), None)


class _Loader(_CoreResolver, yaml.SafeLoader):
    """Only composes nodes."""


if yaml.__with_libyaml__:  # PyYAML may be built without
    from yaml._yaml import CParser

    class _FastLoader(Composer, _CoreResolver, CParser):
        """The same on libyaml's parser, but not its composer, which would not survive deep nesting."""

        def __init__(self, text: str) -> None:
            CParser.__init__(self, text)
            Composer.__init__(self)
            _CoreResolver.__init__(self)


def compose(text: str) -> yaml.Node | None:
    """Compose the nodes of one document.

    Parameters
    ----------
    text : str

    Returns
    -------
    yaml.Node or None
        None for a document without content.

    Raises
    ------
    yaml.YAMLError
        Not YAML, or more than one document; in PyYAML's words, whether or not libyaml is there.
    RecursionError
        Nested too deeply.
    """
    if yaml.__with_libyaml__:
        with suppress(yaml.YAMLError, UnicodeEncodeError):
            return _FastLoader(text).get_single_node()
    return yaml.compose(text, Loader=_Loader)


def scalar(text: str, kind: str) -> str | int | float | bool | None:
    """Read a scalar of a kind.

    Parameters
    ----------
    text : str
    kind : {"str", "null", "bool", "int", "float"}

    Raises
    ------
    KeyError
        Another kind.
    ValueError
        Not of that kind.

    Examples
    --------
    >>> scalar("0x10", "int"), scalar("True", "bool")
    (16, True)
    """
    match kind:
        case "str":
            return text
        case "null":
            return None
        case "bool" if _BOOL.fullmatch(text):
            return text.lower() == "true"
        case "int":
            return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))
        case "float":
            return float(text.replace(".", "") if text[-1].isalpha() else text)
        case "bool":
            raise ValueError(text)
    raise KeyError(kind)
