"""What all hardware files share: figures beside their source, inheritance, and how a file is opened and checked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Generic, TypeVar

from pydantic import Field

from shardsim.errors import InputError, Problem
from shardsim.schema.base import Bandwidth, Count, FlopRate, Power, Size, StrictModel, Text
from shardsim.schema.catalog import CatalogKind, find, near
from shardsim.schema.changes import SOURCE, Changes, changed
from shardsim.schema.loader import Document, KeyPath, check, load_yaml
from shardsim.values.provenance import Basis, Provenance

T = TypeVar("T")

SourceName = Annotated[str, Field(min_length=1, description="an entry of `sources`, or the citation itself")]
_Positive = Field(gt=0.0)
PositiveSize = Annotated[Size, _Positive]
PositiveBandwidth = Annotated[Bandwidth, _Positive]
PositiveFlopRate = Annotated[FlopRate, _Positive]
PositivePower = Annotated[Power, _Positive]


class Figure(StrictModel, Generic[T]):
    """One figure and where it stands in print."""

    value: T
    source: SourceName


class Constant(StrictModel, Generic[T]):
    """One constant of a profile: how it was obtained, and how well it fits."""

    value: T
    basis: Basis = Field(description="measured, interpolated, fitted, datasheet or assumed")
    source: SourceName
    error: Annotated[float, Field(ge=0.0)] | None = None
    points: Count | None = None


class SourcedFile(StrictModel):
    """What all hardware files have: a title, and the table of sources that figures refer to."""

    title: Text = Field(description="a few words for people")
    sources: Mapping[str, Text] = Field(default_factory=dict)


_File = TypeVar("_File", bound=SourcedFile)
_PREFIX: dict[CatalogKind, str] = {
    "device": "device",
    "cluster": "cluster",
    "fabric-profile": "fabric",
    "host-profile": "host",
    "stack-profile": "stack",
}


def open_file(
    kind: CatalogKind,
    name: str,
    model: type[_File],
    extra: Sequence[Path],
    relative_to: Path | None,
    changes: Changes,
) -> tuple[Path, Document, _File]:
    """Find, read, inherit, change and check a hardware file."""
    path = find(kind, name, extra, relative_to)
    document = changed(inherited(kind, path, model, extra, ()), changes, _PREFIX[kind])
    file = check(document, model)
    problems = list(unknown_sources(document, file.sources))
    if problems:
        raise InputError(problems)
    return path, document, file


def inherited(
    kind: CatalogKind, path: Path, model: type[_File], extra: Sequence[Path], below: tuple[Path, ...]
) -> Document:
    """Read a file; with ``based_on: NAME``, its top-level keys replace those of the other file."""
    document = load_yaml(path)
    if "based_on" not in document.data:
        return document
    own = dict(document.data)
    name = own.pop("based_on")
    at = document.where(("based_on",))
    if not isinstance(name, str):
        raise InputError(Problem(f"{name!r} is not a name", at, f"the {kind} that this one is based on"))
    if path.resolve() in below:
        raise InputError(Problem(f"{name!r} is based on this file in turn", at, f"write the {kind} out"))
    try:
        parent = find(kind, name, extra, path.parent)
    except InputError as error:
        raise InputError(Problem(p.what, at, p.right) for p in error.problems) from None
    base = inherited(kind, parent, model, extra, (*below, path.resolve()))
    check(base, model)
    merged = base.data | own
    if isinstance(own.get("sources"), dict):
        merged["sources"] = base.data.get("sources", {}) | own["sources"]
    return Document(merged, document.file, document.lines)


def unknown_sources(document: Document, known: Mapping[str, str]) -> Iterator[Problem]:
    """Find single words that stand as a source but are no entry of ``sources``: slips, not citations."""
    for keys, source in _named_sources(document.data, ()):
        if source not in known and source != SOURCE and " " not in source.strip():
            right = near(source, known) or "write the citation out, or add it to `sources`"
            yield Problem(f"unknown source {source!r}", document.where(keys), right)


def _named_sources(data: Any, keys: KeyPath) -> Iterator[tuple[KeyPath, str]]:
    if isinstance(data, dict):
        for key, value in data.items():
            if key == "source" and isinstance(value, str):
                yield (*keys, key), value
            elif key != "sources":
                yield from _named_sources(value, (*keys, key))


def cited(file: SourcedFile) -> str:
    """Every citation a file rests on, once."""
    used = (source for _, source in _named_sources(file.model_dump(), ()))
    return "; ".join(dict.fromkeys(file.sources.get(source, source) for source in used))


def lacking(document: Document, keys: KeyPath, found: Mapping[Any, object], wanted: Sequence[str]) -> Iterator[Problem]:
    """Find keys that a mapping of a file must have."""
    for name in wanted:
        if name not in found:
            yield Problem(f"the key {name!r} is missing", document.where(keys))


def plain(constants: Mapping[Any, Constant[float]]) -> Mapping[str, float]:
    """Take the values of constants, without where they come from."""
    return MappingProxyType({name: constant.value for name, constant in constants.items()})


def provenances(file: SourcedFile, holder: StrictModel | Mapping[Any, Any]) -> Mapping[str, Provenance]:
    """Where the constants of a file, or of a part of it, come from, by dotted key."""
    found: dict[str, Provenance] = {}
    items = (
        holder.items() if isinstance(holder, Mapping) else ((n, getattr(holder, n)) for n in type(holder).model_fields)
    )
    for name, value in items:
        if isinstance(value, Constant):
            source = file.sources.get(value.source, value.source)
            found[str(name)] = Provenance(value.basis, source, value.error, value.points)
        elif isinstance(value, StrictModel | Mapping):
            found |= {f"{name}.{key}": origin for key, origin in provenances(file, value).items()}
    return MappingProxyType(found)
