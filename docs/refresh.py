"""Run every example of README.md and docs/, and write what came out into the page.

    python docs/refresh.py            rewrite the pages
    python docs/refresh.py --check    say which pages are out of date, and exit with status 1 if any is

A page is an ordinary Markdown file with three kinds of example, run from top to bottom in one copy of the checkout's
data folders:

- a ``console`` block: each line that begins with ``$`` is a command (continued while lines end in a backslash), what
  follows is its output. A command without output is run all the same. ``<!-- status: 2 -->`` on the line before the
  block is the exit status that its commands have.
- a ``pycon`` block: a Python session.
- any block after ``<!-- file: NAME -->``: the content of a file that later commands use.

Text between ``<!-- generated: NAME -->`` and ``<!-- end -->`` comes from ``generated.py``.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import doctest
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from generated import GENERATED

ROOT = Path(__file__).resolve().parents[1]
COPIED = ("topologies", "workloads")
NOT_RUN = ("git", "make", "pip", "python3")
"""First words of commands that install or download; they are checked for what they name, not run."""
TIMEOUT = 300
_FENCE = re.compile(r"^```(\w*)\s*$")
_NOTE = re.compile(r"^<!-- (file|status): (.+) -->$")
_REGION = re.compile(r"^<!-- generated: ([\w-]+) -->$")
_END = "<!-- end -->"


class ExampleError(Exception):
    """An example does not do what its page says."""


@dataclass(frozen=True)
class Command:
    """A command of a console block, and the output that the page shows."""

    text: str
    shown: tuple[str, ...]

    @property
    def is_run(self) -> bool:
        """Whether it is run at all."""
        return self.text.split()[0] not in NOT_RUN


@dataclass(frozen=True)
class Fence:
    """A fenced block: its lines are ``lines[start:end]`` of the page, fences left out."""

    kind: str
    start: int
    end: int
    notes: Mapping[str, str] = field(default_factory=dict)


def pages() -> tuple[Path, ...]:
    """README.md and every page of the documentation."""
    found = sorted((ROOT / "docs").rglob("*.md"))
    return (ROOT / "README.md", *(page for page in found if "_build" not in page.parts))


def fences(lines: Sequence[str]) -> Iterator[Fence]:
    """Find the fenced blocks of a page, with the notes on the lines before them."""
    start, kind = None, ""
    notes: dict[str, str] = {}
    for index, line in enumerate(lines):
        match = _FENCE.match(line)
        if start is None and match:
            start, kind = index + 1, match[1]
        elif start is not None and line.strip() == "```":
            yield Fence(kind, start, index, notes)
            start, notes = None, {}
        elif start is None:
            note = _NOTE.match(line)
            notes = notes | {note[1]: note[2]} if note else notes if not line.strip() else {}


def commands(body: Sequence[str]) -> tuple[Command, ...]:
    """Split a console block into commands and what they print."""
    found: list[tuple[list[str], list[str]]] = []
    for line in body:
        if found and not found[-1][1] and found[-1][0][-1].endswith("\\"):
            found[-1][0].append(line)
        elif line.startswith("$ "):
            found.append(([line.removeprefix("$ ")], []))
        elif found:
            found[-1][1].append(line)
        else:
            raise ExampleError(f"a console block begins with output: {line}")
    return tuple(Command("\n".join(text), tuple(_trimmed(shown))) for text, shown in found)


def _trimmed(lines: Sequence[str]) -> list[str]:
    lines = list(lines)
    while lines and not lines[-1].strip():
        lines.pop()
    return lines


class Sandbox:
    """A copy of the data folders in which the examples of one page run, one after the other."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.names: dict[str, Any] = {"__name__": "__main__"}
        for part in COPIED:
            shutil.copytree(ROOT / part, folder / part)
        keep = {key: value for key, value in os.environ.items() if not key.startswith(("SHARDSIM_", "FORCE_"))}
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        self.environment = keep | {"PATH": path, "COLUMNS": "100", "NO_COLOR": "1", "LC_ALL": "C.UTF-8"}

    def write(self, name: str, body: Sequence[str]) -> None:
        """Write a file that later commands use."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(body) + "\n", encoding="utf-8")

    def run(self, command: str, status: int = 0) -> list[str]:
        """Run a command; what it printed on either stream, line by line."""
        result = subprocess.run(  # noqa: S602  # the pages' own commands, as a reader would type them
            command,
            shell=True,
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            timeout=TIMEOUT,
            check=False,
        )
        printed = _trimmed([line.rstrip() for line in result.stdout.splitlines()])
        if result.returncode != status:
            raise ExampleError(
                "\n".join([f"exit status {result.returncode}, not {status}: $ {command}", *printed[-20:]])
            )
        return printed

    def session(self, body: Sequence[str]) -> list[str]:
        """Run a Python session again; the block with what it printed this time."""
        text = "\n".join(body) + "\n"
        lines: list[str] = []
        for part in doctest.DocTestParser().parse(text):
            if isinstance(part, str):
                lines += part.splitlines() if part.strip() else [""] * part.count("\n")
                continue
            printed = self._evaluate(part.source)
            source = part.source.splitlines()
            lines += [f"{'>>>' if index == 0 else '...'} {line}".rstrip() for index, line in enumerate(source)]
            lines += printed
        return _trimmed(lines)

    def _evaluate(self, source: str) -> list[str]:
        stream = io.StringIO()
        with contextlib.chdir(self.folder), contextlib.redirect_stdout(stream):
            try:
                exec(compile(source, "<page>", "single"), self.names)  # noqa: S102  # the page's own session
            except Exception as error:
                raise ExampleError(f"{type(error).__name__}: {error}: >>> {source}") from error
        return [line.rstrip() for line in stream.getvalue().splitlines()]


@contextlib.contextmanager
def sandbox() -> Iterator[Sandbox]:
    """Provide a fresh copy of the data folders."""
    with tempfile.TemporaryDirectory(prefix="shardsim-docs-") as folder:
        yield Sandbox(Path(folder))


def refreshed(page: Path) -> str:
    """Return the text of a page with every output as it is today.

    Raises
    ------
    ExampleError
        An example fails.
    """
    result: list[str] = []
    done = 0
    lines = _regions(page.read_text(encoding="utf-8").splitlines())
    with sandbox() as place:
        for fence in fences(lines):
            body = lines[fence.start : fence.end]
            try:
                new = _run(fence, body, place)
            except ExampleError as error:
                raise ExampleError(f"{page.relative_to(ROOT)}:{fence.start}: {error}") from error
            result += [*lines[done : fence.start], *new]
            done = fence.end
    return "\n".join([*result, *lines[done:]]) + "\n"


def _run(fence: Fence, body: list[str], place: Sandbox) -> list[str]:
    """One block as it is today."""
    if "file" in fence.notes:
        place.write(fence.notes["file"], body)
        return body
    if fence.kind == "pycon":
        return place.session(body)
    if fence.kind != "console":
        return body
    status = int(fence.notes.get("status", "0"))
    lines: list[str] = []
    for command in commands(body):
        first, *rest = command.text.splitlines()
        lines += [f"$ {first}", *rest]
        if command.is_run:
            printed = place.run(command.text, status)
            lines += printed if command.shown else []
    return lines


@cache
def _generated(name: str) -> tuple[str, ...]:
    """Make a region once, however many pages have it."""
    with sandbox() as place:
        return tuple(GENERATED[name](place))


def _regions(lines: list[str]) -> list[str]:
    result: list[str] = []
    inside = False
    for line in lines:
        if inside and line != _END:
            continue
        inside = False
        result.append(line)
        match = _REGION.match(line)
        if match:
            result += ["", *_generated(match[1]), ""]
            inside = True
    return result


def main() -> int:
    """Refresh or check the pages that are named, or all of them."""
    parser = argparse.ArgumentParser(description="Run the examples of the pages and write what came out.")
    parser.add_argument("pages", nargs="*", type=Path)
    parser.add_argument(
        "--check", action="store_true", help="change nothing; exit with status 1 if a page would change"
    )
    arguments = parser.parse_args()
    status = 0
    for page in [page.resolve() for page in arguments.pages] or pages():
        name = page.relative_to(ROOT)
        try:
            before, after = page.read_text(encoding="utf-8"), refreshed(page)
        except ExampleError as error:
            sys.stderr.write(f"{error}\n")
            status = 1
            continue
        if before == after:
            continue
        if arguments.check:
            status = 1
            sys.stdout.writelines(
                difflib.unified_diff(
                    before.splitlines(keepends=True), after.splitlines(keepends=True), f"{name}", f"{name}, refreshed"
                )
            )
        else:
            page.write_text(after, encoding="utf-8")
            sys.stdout.write(f"{name}\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
