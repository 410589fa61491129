"""Changes to a hardware file from outside it: ``cluster.nvlink.bandwidth=450 GB/s``, to ask "what if"."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

from shardsim.errors import InputError, Problem
from shardsim.schema.catalog import near
from shardsim.schema.loader import Document, KeyPath

Changes = Mapping[str, str | int | float | bool]

PREFIXES = ("cluster", "device", "kernels", "fabric", "host", "stack")
"""What a change begins with: the file that it changes."""

WHOLE = ("host", "stack")
"""Files that a change may replace by another: its value is then a name or a path."""

SOURCE = "set by the user"
"""What stands as the source of a changed figure."""


def unknown_changes(changes: Changes, prefixes: Sequence[str] = PREFIXES) -> list[Problem]:
    """Find changes that name no hardware file.

    Parameters
    ----------
    changes : mapping of str to value
    prefixes : sequence of str

    Returns
    -------
    list of Problem
    """
    right = f"begin with one of {', '.join(f'{prefix}.' for prefix in prefixes)}"
    return [
        Problem(f"unknown key {name!r}", "set", right) for name in changes if name.partition(".")[0] not in prefixes
    ]


def changed(document: Document, changes: Changes, prefix: str) -> Document:
    """Apply the changes that begin with a prefix to the content of a file, before it is checked.

    Parameters
    ----------
    document : Document
    changes : mapping of str to value
        By dotted key. Where the file has a figure with its source, the figure is replaced and the source says so; a
        changed constant of a profile becomes an assumed one.
    prefix : {"cluster", "device", "kernels", "fabric", "host", "stack"}

    Returns
    -------
    Document

    Raises
    ------
    InputError
        A key that the file does not have; every one at once.
    """
    mine = [(name, name.split(".")[1:], value) for name, value in changes.items() if name.split(".")[0] == prefix]
    if not mine:
        return document
    data = deepcopy(document.data)
    problems = [problem for name, path, value in mine if (problem := _put(data, name, path, value)) is not None]
    if problems:
        raise InputError(problems)
    origins: dict[KeyPath, str] = {tuple(path): f"set {name}" for name, path, _ in mine}
    return Document(data, document.file, document.lines, origins)


def _put(data: dict[str, Any], name: str, path: Sequence[str], value: object) -> Problem | None:
    holder: Any = data
    for depth, key in enumerate(path):
        if not isinstance(holder, dict) or key not in holder:
            known = [str(k) for k in holder if k not in ("sources", "title")] if isinstance(holder, dict) else []
            done = ".".join((name.split(".", maxsplit=1)[0], *path[:depth]))
            return Problem(f"{done} has no key {key!r}", f"set {name}", near(key, known))
        if depth < len(path) - 1:
            holder = holder[key]
    if not path:
        return Problem(f"{name!r} names a whole file", "set", "name one figure in it")
    last = holder[path[-1]]
    if isinstance(last, dict) and "value" in last:
        basis = {"basis": "assumed"} if "basis" in last else {}
        holder[path[-1]] = {"value": value, "source": SOURCE, **basis}
    elif isinstance(last, dict):
        return Problem(f"{name} is not one figure", "set", near("", [str(k) for k in last]) or "name one of its keys")
    else:
        holder[path[-1]] = value
    return None
