"""Names of catalog entries and the files behind them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from shardsim.errors import InputError, Problem
from shardsim.schema.locate import data_roots

CatalogKind = Literal[
    "device",
    "cluster",
    "kernel-profile",
    "gemm-profile",
    "attention-profile",
    "memory-bound-profile",
    "fabric-profile",
    "host-profile",
    "stack-profile",
    "model",
    "framework",
    "rules",
]

FOLDERS: MappingProxyType[CatalogKind, str] = MappingProxyType(
    {
        "device": "topologies/devices",
        "cluster": "topologies/clusters",
        "kernel-profile": "topologies/profiles/kernels",
        "gemm-profile": "topologies/profiles/gemm",
        "attention-profile": "topologies/profiles/attention",
        "memory-bound-profile": "topologies/profiles/memory-bound",
        "fabric-profile": "topologies/profiles/fabrics",
        "host-profile": "topologies/profiles/hosts",
        "stack-profile": "topologies/profiles/stacks",
        "model": "workloads/models",
        "framework": "workloads/frameworks",
        "rules": "workloads/rules",
    }
)
_SUFFIXES = (".yaml", ".yml", ".json")
_FEW = 12
_READABLE = 60


def near(name: str, known: Iterable[str]) -> str:
    """Say which known names come close to a wrong one, or all of them when there are few.

    Parameters
    ----------
    name : str
        What was written.
    known : iterable of str
        What exists.

    Returns
    -------
    str
        Such as ``did you mean dgx-a100 or dgx-a100-40gb?``; empty when nothing exists.

    Examples
    --------
    >>> near("DGX-A10", ["dgx-a100", "dgx-h100"])
    'did you mean dgx-a100 or dgx-h100?'
    """
    names = list(known)
    by_folded = {folded: original for original in reversed(names) for folded in (original.casefold(),)}
    close = get_close_matches(name.casefold(), list(by_folded), n=3, cutoff=0.6)
    if close:
        return f"did you mean {_either([by_folded[match] for match in close])}?"
    if not names:
        return ""
    if len(names) <= _FEW:
        return f"known: {', '.join(names)}"
    return f"known: {', '.join(names[:_FEW])} and {len(names) - _FEW} more"


def _either(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _entries(kind: CatalogKind, extra: Sequence[Path]) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for root in data_roots(extra):
        folder = root / FOLDERS[kind]
        if folder.is_dir():
            for path in sorted(folder.iterdir()):
                if path.suffix in _SUFFIXES and path.is_file():
                    found.setdefault(path.stem, path)
    return found


def _entry(kind: CatalogKind, name: str, extra: Sequence[Path]) -> Path | None:
    """One of the entries, without looking at all the others: a sweep asks for the same few names again and again."""
    for root in data_roots(extra):
        folder = root / FOLDERS[kind]
        listed = {path.name: path for path in folder.iterdir()} if folder.is_dir() else {}
        for file in (f"{name}{suffix}" for suffix in sorted(_SUFFIXES)):
            if file in listed and listed[file].is_file():
                return listed[file]
    return None


def names(kind: CatalogKind, extra: Sequence[Path] = ()) -> tuple[str, ...]:
    """List the entries of a kind.

    Parameters
    ----------
    kind : CatalogKind
    extra : sequence of Path
        A user's own data folders.

    Returns
    -------
    tuple of str
        File stems, sorted.
    """
    return tuple(sorted(_entries(kind, extra)))


def is_path(name: str) -> bool:
    """Tell whether a name means a file rather than a catalog entry.

    It does when it ends in ``.yaml``, ``.yml`` or ``.json``, or holds a path separator.

    >>> is_path("./dgx-a100"), is_path("dgx-a100")
    (True, False)
    """
    separators = {"/", os.sep, os.altsep or "/"}
    return name.lower().endswith(_SUFFIXES) or any(separator in name for separator in separators)


def find(kind: CatalogKind, name: str, extra: Sequence[Path] = (), relative_to: Path | None = None) -> Path:
    """Find the file behind a name.

    Parameters
    ----------
    kind : CatalogKind
    name : str
        Catalog name, or the path of a file (see :func:`is_path`). A name is looked up in the catalog's list, so it
        can never reach outside the catalog's folders.
    extra : sequence of Path
        A user's own data folders, searched first.
    relative_to : Path or None
        Folder from which a relative path starts, such as that of the file which names it; the working directory
        when None.

    Returns
    -------
    Path
        For a path, whatever it names: the loader says whether it can be read.

    Raises
    ------
    InputError
        Unknown name; near names are suggested.
    """
    if is_path(name):
        return Path(name) if relative_to is None else relative_to / name
    found = _entry(kind, name, extra)
    if found is not None:
        return found
    entries = _entries(kind, extra)
    label = kind.replace("-", " ")
    right = near(name, sorted(entries))
    if name in _working_directory():
        right = f"write ./{name} to mean the file; {right}"
    raise InputError(Problem(f"unknown {label} {shorten(name)}", right=right))


def shorten(value: object) -> str:
    """Quote a value for a message, cut to a readable length.

    >>> shorten("dgx-a1000")
    "'dgx-a1000'"
    """
    text = repr(value)
    return text if len(text) <= _READABLE else f"{text[: _READABLE - 3]}..."


def _working_directory() -> set[str]:
    try:
        return set(os.listdir())  # noqa: PTH208  # names, not paths
    except OSError:
        return set()
