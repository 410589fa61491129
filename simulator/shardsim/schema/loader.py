"""Read YAML and JSON files, and check them against a schema with every problem in plain language."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar, cast

import yaml
from pydantic import BaseModel, ValidationError

from shardsim.errors import InputError, Problem
from shardsim.schema.explain import explain
from shardsim.schema.nodes import PATTERNS, TAG, compose, scalar
from shardsim.schema.textfile import encoding

Model = TypeVar("Model", bound=BaseModel)
KeyPath = tuple[str | int, ...]

MAX_BYTES = 4_000_000
_MAX_NODES = 400_000
_CUT_OFF = "it ends too early: is the file cut off?"


@dataclass(frozen=True, slots=True)
class Document:
    """The content of a file, and the line on which each key stands.

    Parameters
    ----------
    data : dict
        Plain mappings with text keys, lists, text, numbers, truth values and None.
    file : str
        Name for messages; empty when the data came from no file.
    lines : mapping of tuple to int
        Line of each key and list item, by its path (-); the top is the empty path.
    origins : mapping of tuple to str
        For values that did not come from the file, what to say in its place, by the path of their key.
    """

    data: dict[str, Any]
    file: str = ""
    lines: Mapping[KeyPath, int] = field(default_factory=dict)
    origins: Mapping[KeyPath, str] = field(default_factory=dict)

    def where(self, keys: KeyPath = ()) -> str:
        """Name the place of a key: ``run.yaml:3: layout.tp``.

        Parameters
        ----------
        keys : tuple of str and int
            Path of the key; the nearest one above it that has a line gives the line.
        """
        origin = next((self.origins[keys[:n]] for n in range(len(keys), 0, -1) if keys[:n] in self.origins), None)
        if origin is not None:
            return origin
        line = next((self.lines[keys[:n]] for n in range(len(keys), -1, -1) if keys[:n] in self.lines), None)
        place = f"{self.file}:{line}" if self.file and line is not None else self.file
        return ": ".join(part for part in (place, dotted(keys)) if part)


def dotted(keys: KeyPath) -> str:
    """Write a path of keys for people.

    >>> dotted(("stages", 2, "layers"))
    'stages[2].layers'
    """
    text = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys)
    return text.removeprefix(".")


class _Walk:
    """Turn composed nodes into plain data: keys are text, aliases are expanded within a bound."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.lines: dict[KeyPath, int] = {}
        self.nodes = 0
        self.open: set[int] = set()

    def refuse(self, node: yaml.Node, keys: KeyPath, what: str, right: str = "") -> InputError:
        where = f"{self.file}:{node.start_mark.line + 1}"
        return InputError(Problem(what, ": ".join(part for part in (where, dotted(keys)) if part), right))

    def value(self, node: yaml.Node, keys: KeyPath) -> Any:
        self.nodes += 1
        if self.nodes > _MAX_NODES:
            raise self.refuse(node, (), f"more than {_MAX_NODES:,} values once aliases are expanded")
        if id(node) in self.open:
            raise self.refuse(node, keys, "an alias that contains itself", "write the value out")
        self.lines.setdefault(keys, node.start_mark.line + 1)
        if isinstance(node, yaml.ScalarNode):
            return self.scalar(node, keys)
        if node.tag not in (TAG + "map", TAG + "seq"):
            raise self.refuse(node, keys, f"the tag {node.tag!r} is not allowed", "leave the tag out")
        self.open.add(id(node))
        result = self.mapping(node, keys) if isinstance(node, yaml.MappingNode) else self.sequence(node, keys)
        self.open.remove(id(node))
        return result

    def sequence(self, node: yaml.Node, keys: KeyPath) -> list[Any]:
        return [self.value(item, (*keys, index)) for index, item in enumerate(node.value)]

    def mapping(self, node: yaml.Node, keys: KeyPath) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise self.refuse(key_node, keys, "a key that is not plain text", "write each key as one word")
            key = key_node.value
            path = (*keys, key)
            if key in result:
                first = self.lines[path]
                raise self.refuse(key_node, path, f"the key {key!r} stands here twice", f"first on line {first}")
            self.lines[path] = key_node.start_mark.line + 1
            result[key] = self.value(value_node, path)
        return result

    def scalar(self, node: yaml.ScalarNode, keys: KeyPath) -> str | int | float | bool | None:
        text = node.value
        kind = node.tag.removeprefix(TAG)
        try:
            return scalar(text, kind)
        except KeyError:
            raise self.refuse(node, keys, f"the tag {node.tag!r} is not allowed", "leave the tag out") from None
        except ValueError:
            raise self.refuse(node, keys, f"{text[:40]!r} cannot be read as {kind}") from None


def read_text(path: Path) -> str:
    """Read a text file of a user.

    Parameters
    ----------
    path : Path

    Returns
    -------
    str
        Not empty.

    Raises
    ------
    InputError
        Not a readable file of at most 4 MB, empty, or neither UTF-8 nor UTF-16.
    """
    file = str(path)
    try:
        if path.is_dir():
            raise InputError(Problem("is a directory", file, "name a file"))
        with path.open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise InputError(Problem("no such file", file, _neighbours(path))) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise InputError(Problem(f"cannot be read: {reason.lower()}", file)) from None
    if len(raw) > MAX_BYTES:
        raise InputError(Problem(f"is larger than {MAX_BYTES / 1e6:g} MB", file, "is it the file you meant?"))
    try:
        text = raw.decode(encoding(raw))
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise InputError(
            Problem("is neither UTF-8 nor UTF-16 text", f"{file}:{line}", "is it the file you meant?")
        ) from None
    if not text.strip():
        raise InputError(Problem("is empty", file))
    return text


def _neighbours(path: Path) -> str:
    try:
        known = sorted(other.name for other in path.parent.iterdir() if other.suffix == path.suffix)
    except OSError:
        return f"there is no directory {str(path.parent)!r}"
    from difflib import get_close_matches  # noqa: PLC0415  # only on the way to an error

    close = get_close_matches(path.name, known, n=3)
    return f"did you mean {' or '.join(close)}?" if close else ""


def load_yaml(path: Path) -> Document:
    """Read a YAML file, or a JSON file if its name ends in ``.json``.

    Scalars follow YAML 1.2's core schema: ``450e9`` and ``2e-6`` are numbers, only ``true`` and ``false`` are truth
    values, ``no``, ``010:20`` and dates are text. Keys are text always.

    Parameters
    ----------
    path : Path

    Returns
    -------
    Document

    Raises
    ------
    InputError
        Not a readable file of at most 4 MB, empty, not UTF-8, not YAML (the file may be cut off), more than one
        document, a duplicate key, a custom tag, aliases that expand without bound, or no mapping at the top.
    """
    path = Path(path)
    return _parse(read_text(path), str(path), path.suffix.lower())


@lru_cache(maxsize=128)
def _parse(text: str, file: str, suffix: str) -> Document:
    """Parse the same text once: a sweep reads the same few files for every layout. Nobody changes a Document."""
    return parse_json(text, file) if suffix == ".json" else parse_yaml(text, file)


def parse_yaml(text: str, file: str) -> Document:
    """Read YAML from text; as :func:`load_yaml`.

    Parameters
    ----------
    text : str
    file : str
        Name for messages.
    """
    walk = _Walk(file)
    try:
        root = compose(text)
        data = None if root is None else walk.value(root, ())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{file}:{mark.line + 1}" if mark else file
        reason = ", ".join(part for part in (error.context, error.problem) if part)
        cut = mark is not None and mark.index >= len(text.rstrip()) - 1
        raise InputError(Problem(f"is not valid YAML: {reason}", where, _CUT_OFF if cut else "")) from None
    except yaml.YAMLError as error:
        raise InputError(Problem(f"is not valid YAML: {str(error).splitlines()[0]}", file)) from None
    except RecursionError:
        raise InputError(Problem("is nested too deeply", file)) from None
    return _document(data, file, walk.lines)


def parse_json(text: str, file: str) -> Document:
    """Read JSON from text; as :func:`load_yaml`, without the lines of keys.

    Parameters
    ----------
    text : str
    file : str
        Name for messages.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) < len(pairs):
            keys = [key for key, _ in pairs]
            twice = next(key for key in keys if keys.count(key) > 1)
            raise InputError(Problem(f"the key {twice!r} stands twice in one object", file))
        return result

    try:
        data = json.loads(text, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        reason = f"is not valid JSON: {error.msg.lower()}"
        cut = error.pos >= len(text.rstrip()) - 1
        raise InputError(Problem(reason, f"{file}:{error.lineno}", _CUT_OFF if cut else "")) from None
    except (RecursionError, ValueError):
        raise InputError(Problem("is nested too deeply or holds a number of thousands of digits", file)) from None
    return _document(data, file, {})


def parse_scalar(text: str) -> str | int | float | bool | None:
    """Read one value as YAML would, for ``--set key=value``; anything else stays text.

    >>> parse_scalar("450e9"), parse_scalar("no"), parse_scalar("true")
    (450000000000.0, 'no', True)
    """
    for kind, pattern in PATTERNS.items():
        if pattern.fullmatch(text):
            try:
                return scalar(text, kind)
            except ValueError:
                return text
    return text


def _document(data: object, file: str, lines: dict[KeyPath, int]) -> Document:
    if data is None:
        raise InputError(Problem("is empty", file))
    if not isinstance(data, dict):
        kind = "a list" if isinstance(data, list) else "a single value"
        raise InputError(Problem(f"holds {kind} at the top", file, "write keys and values, such as `name: value`"))
    return Document(data, file, MappingProxyType(lines))


def check(document: Document, model: type[Model]) -> Model:
    """Check a document against a schema.

    Parameters
    ----------
    document : Document
    model : type of pydantic model

    Returns
    -------
    instance of ``model``

    Raises
    ------
    InputError
        Every problem at once, each with file, line and key, and what would be right.
    """
    try:
        # Through JSON text, because pydantic's strict mode takes a list for a tuple there and only there.
        return cast("Model", _checked(model, json.dumps(document.data, default=str)))
    except ValidationError as error:
        raise InputError(
            Problem(found.what, document.where(found.keys), found.right)
            for found in explain(error, document.data, model)
        ) from None


@lru_cache(maxsize=128)
def _checked(model: type[BaseModel], text: str) -> BaseModel:
    """Check the same content once, as :func:`_parse`; models are frozen, and nobody changes what they hold."""
    return model.model_validate_json(text)


def check_mapping(data: Mapping[str, Any], model: type[Model], where: str) -> Model:
    """Check data that came from no file: command-line options, JSON, a call from Python.

    Parameters
    ----------
    data : mapping
    model : type of pydantic model
    where : str
        Name for messages, such as ``command line``.

    Returns
    -------
    instance of ``model``

    Raises
    ------
    InputError
        Every problem at once.
    """
    return check(Document(dict(data), where), model)
