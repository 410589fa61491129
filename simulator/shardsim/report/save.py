"""Output files: whole or not at all, and refused before the work when they could not be written."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

from shardsim.errors import InputError, Problem


def save_text(path: Path, text: str) -> None:
    """Write a text file in UTF-8 as it is, whole or not at all.

    Parameters
    ----------
    path : Path
    text : str

    Raises
    ------
    OSError
        It cannot be written; nothing is left behind.
    """
    save_with(path, lambda stream: stream.write(text.encode()))


def save_with(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Let a function write a file, whole or not at all.

    The bytes go to a temporary name in the same folder, which then replaces the file in one step. Where ``path`` is
    a symbolic link, the file it points to is replaced; a device or a pipe is written as it is.

    Parameters
    ----------
    path : Path
    write : callable
        Receives a binary stream.

    Raises
    ------
    OSError
        It cannot be written; nothing is left behind.
    """
    if path.exists() and not path.is_file():
        with path.open("wb") as stream:
            write(stream)
        return
    target = _target(path)
    descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=".shardsim-", suffix=".part")
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            write(stream)
        temporary.chmod(_mode(target))
        temporary.replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def _mode(target: Path) -> int:
    """Permissions as an ordinary ``open`` would have left them: the old file's, or what the umask grants."""
    with contextlib.suppress(FileNotFoundError):
        return stat.S_IMODE(target.stat().st_mode)
    umask = os.umask(0)
    os.umask(umask)
    return 0o666 & ~umask


def check_outputs(outputs: Mapping[str, Path | None], inputs: Sequence[Path] = ()) -> None:
    """Refuse outputs that could not be written, or that would destroy each other, before any work is done.

    Parameters
    ----------
    outputs : mapping of str to Path or None
        By option, such as ``--trace``; None where the option was not given.
    inputs : sequence of Path
        Files that are read and must not be overwritten.

    Raises
    ------
    InputError
        Every problem of every output.
    """
    problems: list[Problem] = []
    taken: dict[Path, str] = {_target(path): "read as input" for path in inputs}
    for option, path in outputs.items():
        if path is None:
            continue
        problem = _obstacle(path)
        target = _target(path)
        if problem is not None:
            problems.append(Problem(problem[0], option, problem[1]))
        elif target in taken and not _is_device(path):
            problems.append(Problem(f"{path} is also {taken[target]}", option, "give each output a file of its own"))
        taken.setdefault(target, f"written by {option}")
    if problems:
        raise InputError(problems)


def _obstacle(path: Path) -> tuple[str, str] | None:
    """What keeps a file from being written, and what would be right; None for nothing."""
    folder = _target(path).parent
    if path.is_dir():
        return f"{path} is a directory", "give the name of a file"
    if path.exists() and not os.access(path, os.W_OK):
        return f"{path} is not writable", "give a file you may write"
    if not folder.is_dir() and not _is_device(path):
        return f"folder {path.parent} does not exist", "create it, or give another"
    if not os.access(folder, os.W_OK | os.X_OK) and not _is_device(path):
        return f"folder {path.parent} is not writable", "give a folder you may write to"
    return None


def _target(path: Path) -> Path:
    """Where a path leads, links followed; a loop of links leads to itself."""
    return Path(os.path.realpath(path))


def _is_device(path: Path) -> bool:
    return path.exists() and not path.is_file() and not path.is_dir()
