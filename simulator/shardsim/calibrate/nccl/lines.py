"""The lines of a log, freed of what terminals, launchers and chat windows put around them."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from shardsim.errors import InputError, Problem
from shardsim.schema.textfile import encoding

LONGEST_LINE = 1 << 16
"""Characters of a line of text; the rest of a longer one is passed over, so that memory stays bounded."""
MOST_JSON = 1 << 28
"""Characters of a JSON document."""

_COMPRESSED = {
    b"\x1f\x8b": "gzip-compressed",
    b"BZh": "bzip2-compressed",
    b"\xfd7zXZ\x00": "xz-compressed",
    b"\x28\xb5\x2f\xfd": "zstd-compressed",
    b"PK\x03\x04": "a zip archive",
}
_BINARY = {b"\x7fELF": "a program", b"%PDF": "a PDF document", b"\x89PNG": "an image", b"\xff\xd8\xff": "an image"}

_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_TIME = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?"
_PREFIX = re.compile(
    r"""\s*(?:
      \[ (?:[\w.@-]*@)? (?P<mpi>\d+,\d+) \] < std(?:out|err|diag) > : (?:[ ](?=\S))?  # mpirun --tag-output
    | (?P<srun>\d{1,7}) : (?=\s|\#|$)                                       # srun -l, jsrun
    | \( [\w.-]+ (?:,?[ ] [\w-]+=[^\s,()]+ )+ \) [ ]?                       # Ray, SkyPilot
    | \[ (?P<hydra>\d{1,6}) \] [ ] (?=[ ]*(?:\#|\d))                        # mpiexec -l
    | \[ (?:pod|container)/ [^\]\s]+ \] [ ]?                                # kubectl logs --prefix
    | """
    + _TIME
    + r"""[ ] (?:std(?:out|err)[ ][FP][ ])? (?=\s*(?:\#|\d+\s|\[|\(|std))   # time stamps, CRI
    | \[ """
    + _TIME
    + r""" \] [ ]?
    | (?P<host>[A-Za-z][\w.-]*) (?: : [ ]? | [ ]+\|[ ]? ) (?=\s*(?:\#|\d+\s+\d+\s))  # pdsh, compose
    | > [ ]?                                                                # quoted in a mail or an issue
    )""",
    re.VERBOSE,
)
_ANCHOR = re.compile(r"#\s*(?:size\s+count\s+type|bytes\s+N\s+type|nThread:?\s+\d|Using devices|Rank\s+\d+\s)")
_NOISE = re.compile(
    r"(?:\[?"
    + _TIME
    + r"\]?\s+)?([\w.-]+):(\d+):(\d+)\s+\[\d+\]\s+(?:\S+\s+)?(?:\S+:\d+\s+)?NCCL\s+(?:INFO|WARN|TRACE|ABORT)\b"
)
_FURTHEST = 600
"""Characters in which a message glued to a row begins: rows are shorter than 300."""
_NUMBER_THEN_NAME = re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]\d+)?(?=[A-Za-z])|N/A(?=[A-Za-z0-9])")


def open_text(path: Path) -> TextIO:
    """Open a log as text, whatever it holds; undecodable bytes become replacement characters.

    Parameters
    ----------
    path : Path

    Returns
    -------
    TextIO
        Lines end at line feeds alone, so that they number as editors number them.

    Raises
    ------
    InputError
        No such file, a directory, not readable, compressed, or plainly not a log.
    """
    where = str(path)
    try:
        if path.is_dir():
            raise InputError(Problem("is a directory", where, "name the logs in it"))
        raw = path.open("rb")
        head = raw.peek(64)[:64]
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(Problem("no such file", where)) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(Problem(f"cannot be read: {reason.lower()}", where)) from None
    for magic, what in (_COMPRESSED | _BINARY).items():
        if head.startswith(magic):
            raw.close()
            right = "unpack it first" if magic in _COMPRESSED else "give the output of nccl-tests as text or JSON"
            raise InputError(Problem(f"is {what}", where, right))
    return io.TextIOWrapper(raw, encoding=encoding(head), errors="replace", newline="\n")


def numbered(stream: TextIO) -> Iterator[tuple[int, str]]:
    """Give the lines with their numbers, from 1, in bounded memory.

    Parameters
    ----------
    stream : TextIO

    Yields
    ------
    tuple of (int, str)
        Without line ends. A carriage return inside a line starts a new piece with the same number. A line that begins
        like a JSON document may be as long as one, every other is cut at 65,536 characters.
    """
    number = 0
    while line := stream.readline(LONGEST_LINE):
        number += 1
        if not line.endswith("\n"):
            if _is_json(line):
                line += stream.readline(MOST_JSON)
            _pass_over_the_rest(stream, line)
        for piece in line.rstrip("\r\n").split("\r"):
            yield number, piece


def _pass_over_the_rest(stream: TextIO, piece: str) -> None:
    while piece and not piece.endswith("\n"):
        piece = stream.readline(LONGEST_LINE)


def _is_json(line: str) -> bool:
    return line.lstrip().startswith('{"')


class Cleaner:
    """Takes away colours, launcher prefixes and NCCL's own messages; learns prefixes it does not know from headers."""

    def __init__(self) -> None:
        self._learned: list[re.Pattern[str]] = []
        self._hosts: set[str] = set()

    def clean(self, line: str) -> tuple[str, str, str]:
        """Clean one line.

        Parameters
        ----------
        line : str

        Returns
        -------
        tuple of (str, str, str)
            Who wrote it, as far as the launcher says; the text, with its leading blanks; and the NCCL message that
            stood behind or instead of it, else empty.
        """
        if "NCCL" in line and (found := _NOISE.match(line)):
            self._hosts.add(found[1])  # most lines of a debug log are this and need no more
            return "", "", line
        if "\x1b" in line:
            line = _ESCAPE.sub("", line)
        if "\0" in line:
            line = line.replace("\0", "")
        stream, text = self._without_prefix(line)
        if "NCCL" not in text:
            return stream, text, ""
        found = _NOISE.search(text[:_FURTHEST])
        if found is None:
            return stream, text, ""
        if not text[: found.start()].strip():
            self._hosts.add(found[1])
            return stream, "", text
        return stream, text[: found.start()] + self._glued(text, found), text[found.start() :]

    def _glued(self, text: str, found: re.Match[str]) -> str:
        """What of a row is glued to the host name of a message: ``-1node1:3442:3442 [0] NCCL INFO``."""
        if found.start() == 0 or text[found.start() - 1].isspace():
            name = found[1]
            for host in self._hosts:
                if name.endswith(host):
                    return name.removesuffix(host)
            number = _NUMBER_THEN_NAME.match(name)
            return number[0] if number else ""
        return ""

    def _without_prefix(self, line: str) -> tuple[str, str]:
        stream = ""
        text = line
        for _ in range(4):
            found = _PREFIX.match(text) or next(filter(None, (known.match(text) for known in self._learned)), None)
            if found is None or found.end() == 0:
                break
            groups = found.groupdict()
            tag = next((name for name in ("mpi", "srun", "hydra", "host") if groups.get(name)), None)
            if tag is not None:
                stream += f"{tag} {groups[tag]} "
            text = text[found.end() :]
        anchor = _ANCHOR.search(text[:200])
        if anchor is not None and text[: anchor.start()].strip():
            self._learn(text[: anchor.start()])
            text = text[anchor.start() :]
        return stream, text

    def _learn(self, prefix: str) -> None:
        if len(self._learned) < 8:
            parts = re.split(r"(\d+|\s+)", prefix.rstrip())
            pattern = "".join(
                r"\d+" if part.isdigit() else r"\s+" if part.isspace() else re.escape(part) for part in parts
            )
            self._learned.append(re.compile(r"\s*" + pattern.removeprefix(r"\s+") + r" ?"))
