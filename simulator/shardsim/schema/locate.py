"""Where the data folders lie: a user's own, the ones in the wheel, or the checkout's."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from shardsim.errors import InputError, Problem

ENVIRONMENT_VARIABLE = "SHARDSIM_DATA"
_PARTS = ("topologies", "workloads")
_PACKAGE = Path(__file__).resolve().parents[1]


def _bundled() -> Path:
    packaged = _PACKAGE / "_data"
    return packaged if packaged.is_dir() else _PACKAGE.parents[1]


def data_roots(extra: Sequence[Path] = ()) -> tuple[Path, ...]:
    """List the folders that are searched for data, the first one first.

    Parameters
    ----------
    extra : sequence of Path
        A user's own folders (``--data DIR``); each holds ``topologies/``, ``workloads/`` or both. Those named in the
        environment variable ``SHARDSIM_DATA``, separated as in ``PATH``, come next, and the bundled data last.

    Returns
    -------
    tuple of Path

    Raises
    ------
    InputError
        A user's folder does not exist or holds neither of the two.
    """
    named = [(Path(folder), "--data") for folder in extra]
    listed = os.environ.get(ENVIRONMENT_VARIABLE, "").split(os.pathsep)
    named += [(Path(folder), ENVIRONMENT_VARIABLE) for folder in listed if folder]
    problems = [problem for folder, where in named if (problem := _problem(folder, where))]
    if problems:
        raise InputError(problems)
    return (*(folder for folder, _ in named), _bundled())


def _problem(folder: Path, where: str) -> Problem | None:
    if not folder.is_dir():
        return Problem(f"{str(folder)!r} is not a directory", where, "a directory that holds topologies/ or workloads/")
    if not any((folder / part).is_dir() for part in _PARTS):
        return Problem(f"{str(folder)!r} holds neither topologies/ nor workloads/", where, "name the folder above them")
    return None
