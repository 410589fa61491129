"""pydantic's findings in plain language: what is wrong with the value, and what would be right."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from pydantic import AliasChoices, AliasPath, BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from shardsim.schema.catalog import near, shorten

Keys = tuple[str | int, ...]


class Finding(NamedTuple):
    """One problem: where in the data, what is wrong, what would be right."""

    keys: Keys
    what: str
    right: str


@dataclass(frozen=True, slots=True)
class _Located:
    error: ErrorDetails
    keys: Keys


_KINDS = {
    "string": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "list": "a list",
    "tuple": "a list",
    "set": "a list",
    "frozen_set": "a list",
    "dict": "a mapping of keys to values",
    "mapping": "a mapping of keys to values",
    "model": "a mapping of keys to values",
    "model_attributes": "a mapping of keys to values",
    "dataclass": "a mapping of keys to values",
    "none_required": "nothing",
}
_BOUNDS = {
    "greater_than": ("gt", "above {}"),
    "greater_than_equal": ("ge", "{} or more"),
    "less_than": ("lt", "below {}"),
    "less_than_equal": ("le", "{} or less"),
    "multiple_of": ("multiple_of", "a multiple of {}"),
}
_PLAIN = {"finite_number": "a finite number", "int_from_float": "a whole number"}


def explain(error: ValidationError, data: Mapping[str, Any], model: type[BaseModel]) -> list[Finding]:
    """Rewrite pydantic's errors.

    Parameters
    ----------
    error : ValidationError
    data : mapping
        What was checked.
    model : type of pydantic model
        What it was checked against.

    Returns
    -------
    list of Finding
        In the order found. The branches of a union that the value was not meant for are left out.
    """
    located = [_Located(e, _keys(e, data)) for e in error.errors(include_url=False)]
    findings: list[Finding] = []
    for keys in dict.fromkeys(item.keys for item in located):
        here = [item.error for item in located if item.keys == keys]
        deeper = any(item.keys[: len(keys)] == keys and len(item.keys) > len(keys) for item in located)
        if deeper and all(_expected_kind(e) for e in here):
            continue  # another branch of a union got further into the same value
        findings.extend(_describe(keys, here, data, model))
    return findings


def _keys(error: ErrorDetails, data: Mapping[str, Any]) -> Keys:
    """Drop from pydantic's location whatever is not in the data: the names of union branches."""
    keys: list[str | int] = []
    value: Any = data
    for position, part in enumerate(error["loc"]):
        last = position == len(error["loc"]) - 1
        if _holds(value, part):
            keys.append(part)
            value = value[part]
        elif error["type"] == "missing" and last:
            keys.append(part)
    return tuple(keys)


def _holds(value: Any, part: str | int) -> bool:
    if isinstance(value, Mapping):
        return part in value
    return isinstance(value, list | tuple) and isinstance(part, int) and part < len(value)


def _describe(
    keys: Keys, errors: Sequence[ErrorDetails], data: Mapping[str, Any], model: type[BaseModel]
) -> Iterator[Finding]:
    if len(errors) == 1:
        yield _one(keys, errors[0], model)
        return
    kinds = [_right_of_branch(error) for error in errors]
    if all(kinds):
        value = _lookup(data, keys)
        yield Finding(keys, f"{_shown(value)} is not allowed here", f"write {' or '.join(dict.fromkeys(kinds))}")
        return
    for error in errors:
        yield _one(keys, error, model)


def _right_of_branch(error: ErrorDetails) -> str:
    if error["type"] in ("literal_error", "enum"):
        return _choices(error)
    return _expected_kind(error)


def _one(keys: Keys, error: ErrorDetails, model: type[BaseModel]) -> Finding:
    kind = error["type"]
    if kind == "missing":
        return Finding(keys[:-1], f"the key {str(keys[-1])!r} is missing", _purpose(model, error["loc"]))
    if kind == "extra_forbidden":
        name = str(error["loc"][-1])
        return Finding(keys, f"unknown key {name!r}", near(name, _known_keys(model, error["loc"][:-1])))
    return Finding(keys, *_wrong_value(error))


def _wrong_value(error: ErrorDetails) -> tuple[str, str]:
    kind = error["type"]
    value = _shown(error["input"])
    expected = _expected_kind(error)
    if kind in _BOUNDS:
        name, phrase = _BOUNDS[kind]
        bound = format(error["ctx"][name], "g")
        result = (f"{value} is out of range", f"write {phrase.format(bound)}")
    elif kind in ("value_error", "assertion_error"):
        result = (str(error["ctx"]["error"]), "")
    elif kind in ("literal_error", "enum"):
        result = _not_a_choice(error)
    elif kind in ("string_too_short", "too_short", "string_too_long", "too_long"):
        result = _wrong_length(error)
    elif kind in _PLAIN:
        result = (f"{value} is not {_PLAIN[kind]}", "")
    elif expected:
        result = (f"{value} is not {expected}", _hint(error, expected))
    else:
        result = (f"{value}: {error['msg'].replace('Input should be', 'must be')}", "")
    return result


def _expected_kind(error: ErrorDetails) -> str:
    stem = error["type"]
    for ending in ("_type", "_parsing", "_attributes_type"):
        if stem.endswith(ending):
            return _KINDS.get(stem.removesuffix(ending), "")
    return _KINDS.get(stem, "")


def _hint(error: ErrorDetails, expected: str) -> str:
    value = error["input"]
    if expected == "true or false" and isinstance(value, str):
        return "write true or false"
    if expected in ("a whole number", "a number") and isinstance(value, str):
        return "write digits without quotes or units"
    if expected == "a list" and isinstance(value, str | int | float):
        return f"a list is written as [{', '.join(part.strip() for part in str(value).strip('[]').split(','))}]"
    if expected == "text" and isinstance(value, int | float | bool):
        return "put it into quotes to mean text"
    return ""


def _choices(error: ErrorDetails) -> str:
    return str(error.get("ctx", {}).get("expected", "")).replace("'", "")


def _not_a_choice(error: ErrorDetails) -> tuple[str, str]:
    expected = _choices(error)
    names = expected.replace(" or ", ", ").split(", ")
    value = error["input"]
    close = near(value, names) if isinstance(value, str) else ""
    right = close if close.startswith("did you mean") else ""
    return f"{_shown(value)} is not one of {', '.join(names)}", right


def _wrong_length(error: ErrorDetails) -> tuple[str, str]:
    context = error.get("ctx", {})
    if not error["input"]:
        return "is empty", ""
    least, most = context.get("min_length"), context.get("max_length")
    right = f"at least {least}" if least is not None else f"at most {most}"
    return f"{_shown(error['input'])} has the wrong length", right


def _shown(value: object) -> str:
    if value is None:
        return "an empty value"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "a mapping of keys to values"
    if isinstance(value, list | tuple):
        return "a list"
    return shorten(value)


def _lookup(data: Any, keys: Keys) -> Any:
    for key in keys:
        data = data[key]
    return data


# The schema at a location: which keys it knows, and what a missing one is for.


def _known_keys(model: type[BaseModel], loc: Keys) -> Iterator[str]:
    for candidate in _models_at(model, loc):
        for name, info in candidate.model_fields.items():
            yield from _names(name, info)


def _purpose(model: type[BaseModel], loc: Keys) -> str:
    for candidate in _models_at(model, loc[:-1]):
        for name, info in candidate.model_fields.items():
            if loc[-1] in _names(name, info) and info.description:
                return info.description
    return ""


def _names(name: str, info: FieldInfo) -> list[str]:
    alias = info.validation_alias
    if alias is None:
        return [name]
    choices = alias.choices if isinstance(alias, AliasChoices) else [alias]
    written = [str(c.path[0]) if isinstance(c, AliasPath) else c for c in choices]
    return list(dict.fromkeys(written))


def _models_at(model: type[BaseModel], loc: Keys) -> list[type[BaseModel]]:
    types_here: list[Any] = [model]
    for part in loc:
        branches = [branch for annotation in types_here for branch in _branches(annotation)]
        named = [branch for branch in branches if getattr(branch, "__name__", None) == part]
        types_here = named or [step for branch in branches for step in _step(branch, part)]
    return [t for a in types_here for t in _branches(a) if isinstance(t, type) and issubclass(t, BaseModel)]


def _branches(annotation: Any) -> Iterator[Any]:
    origin = get_origin(annotation)
    if origin is Annotated:
        yield from _branches(get_args(annotation)[0])
    elif origin in (Union, types.UnionType):
        for branch in get_args(annotation):
            yield from _branches(branch)
    else:
        yield annotation


def _step(annotation: Any, part: str | int) -> Iterator[Any]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        for name, info in annotation.model_fields.items():
            if part in _names(name, info):
                yield info.annotation
        return
    arguments = get_args(annotation)
    if arguments and get_origin(annotation) is not Literal:
        yield arguments[-1] if isinstance(part, str) else arguments[0]
