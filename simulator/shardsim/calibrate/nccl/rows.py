"""The grammar of one data row, in every vintage: whole, or torn, or no row at all."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

DTYPE_BYTES = {
    "int8": 1,
    "char": 1,
    "uint8": 1,
    "int32": 4,
    "int": 4,
    "uint32": 4,
    "int64": 8,
    "uint64": 8,
    "half": 2,
    "float": 4,
    "double": 8,
    "bfloat16": 2,
    "f8e4m3": 1,
    "f8e5m2": 1,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
}
"""Bytes of one element, by the names that nccl-tests and rccl-tests print [bytes]."""

_WHOLE = re.compile(r"\d{1,18}|\d{1,3}(?:[_,]\d{3}){1,5}")
_ROOT = re.compile(r"-?\d{1,6}")
_NUMBER = re.compile(r"\d{1,18}(?:\.\d{1,18})?(?:e[+-]?\d{1,2})?")
_REDOP = re.compile(r"[a-z]{2,9}")
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_CLOCK = re.compile(r"\d\d:\d\d:\d\d")
_PIECE = re.compile(r"\s*\S+")
_NONE = frozenset({"N/A", "nan", "-nan", "inf", "-inf"})
_PLAIN_WRONG = re.compile(r"\d+|[1-9]\.?\d*e\+\d+")
_LEAST_NUMBERS = 3


class Figure(NamedTuple):
    """A printed number and half a unit of its last digit."""

    value: float
    half: float


@dataclass(frozen=True, slots=True)
class RawHalf:
    """One half of a row as printed: time in the table's unit, bandwidths in GB/s."""

    time: Figure
    algbw: Figure
    busbw: Figure
    wrong: float | None


@dataclass(frozen=True, slots=True)
class RawRow:
    """One whole row as printed; redop and root are None where the vintage or the collective prints none."""

    line: int
    size: int
    count: int
    dtype: str
    redop: str | None
    root: int | None
    out_of_place: RawHalf | None
    in_place: RawHalf | None
    type_width: int = 0
    wrong_width: int = 0

    @property
    def halves(self) -> tuple[RawHalf, ...]:
        """The halves that hold a time."""
        return tuple(half for half in (self.out_of_place, self.in_place) if half is not None)


@dataclass(frozen=True, slots=True)
class TornRow:
    """A line that begins like a row, or goes on like one, and is not whole."""

    reason: str


@dataclass(frozen=True, slots=True)
class Columns:
    """What a header line announces."""

    has_redop: bool
    has_root: bool
    halves: int
    per_iteration: bool
    is_first_format: bool
    """``bytes N type op``: NCCL 1 tests and nccl-tests 1.0, times in milliseconds."""
    counts_wrong: bool
    """``#wrong`` (2.13 and newer), not ``error`` or ``res``."""


def parse_columns(words: Sequence[str]) -> Columns | None:
    """Read a header line.

    Parameters
    ----------
    words : sequence of str
        Without the leading ``#``.

    Returns
    -------
    Columns or None
        None when it is no header.
    """
    if len(words) < 6 or tuple(words[:3]) not in (("size", "count", "type"), ("bytes", "N", "type")):
        return None
    halves = words.count("algbw")
    if halves not in (1, 2) or words.count("busbw") != halves:
        return None
    return Columns(
        has_redop="redop" in words or "op" in words,
        has_root="root" in words,
        halves=halves,
        per_iteration=any(word.startswith(("i_min", "i_max")) for word in words),
        is_first_format=words[0] == "bytes",
        counts_wrong="#wrong" in words,
    )


def parse_row(text: str, line: int, columns: Columns | None) -> RawRow | TornRow | None:
    """Read one line as a data row.

    Parameters
    ----------
    text : str
        The line, freed of prefixes.
    line : int
        Its number.
    columns : Columns or None
        The header above it; None when there was none.

    Returns
    -------
    RawRow, TornRow or None
        None when the line has nothing to do with a row.
    """
    words = text.split()
    if words and words[0].startswith("#"):
        words = [words[0].lstrip("#"), *words[1:]] if words[0] != "#" else words[1:]
    if len(words) < _LEAST_NUMBERS:
        return None
    if not _WHOLE.fullmatch(words[0]):
        return TornRow("has the numbers of a row without its beginning") if _is_remainder(words) else None
    if not _WHOLE.fullmatch(words[1]):
        return _torn_beginning(words)
    dtype = words[2]
    if dtype not in DTYPE_BYTES:
        return _unknown_type(words)
    return _row(text, line, words, columns)


def _torn_beginning(words: Sequence[str]) -> TornRow | None:
    if "X" in words[1] and set(words[1]) == {"X"}:
        return TornRow("holds placeholders, not numbers")
    return TornRow("has the numbers of a row without its beginning") if _is_remainder(words) else None


def _is_remainder(words: Sequence[str]) -> bool:
    """Whether a line is nothing but times and bandwidths, as the rest of a row is."""
    return (
        len(words) in (4, 8)
        and all(word in _NONE or _NUMBER.fullmatch(word) for word in words)
        and "." in words[1]
        and "." in words[2]
    )


def _unknown_type(words: Sequence[str]) -> TornRow | None:
    if len(words) >= 11 and words[2].isalnum() and not words[2].isdigit() and _is_remainder(words[-4:]):
        return TornRow(f"has the unknown data type {words[2][:20]!r}")
    return None


def _row(text: str, line: int, words: Sequence[str], columns: Columns | None) -> RawRow | TornRow:
    rest = list(words[3:])
    if len(rest) >= 2 and _DATE.fullmatch(rest[-2]) and _CLOCK.fullmatch(rest[-1]):
        rest = rest[:-2]
    redop = rest.pop(0) if rest and _REDOP.fullmatch(rest[0]) and rest[0] not in _NONE else None
    shape = _shape(len(rest), columns)
    if shape is None:
        return TornRow(_what_is_missing(len(rest), columns))
    has_root, width, halves = shape
    root = None
    if has_root:
        if not _ROOT.fullmatch(rest[0]):
            return TornRow("has no root where its columns need one")
        root = int(rest.pop(0))
    problem = _misfit(redop, root, rest, columns)
    if problem:
        return TornRow(problem)
    parsed = [_half(rest[start : start + 4]) for start in range(0, width * halves, width)]
    bad = next((half for half in parsed if isinstance(half, str)), None)
    if bad is not None:
        return TornRow(bad)
    out, in_place = (*parsed, None)[:2]
    if out is None and in_place is None:
        return TornRow("holds no time")
    pieces = _PIECE.findall(text.replace("#", " ", 1) if text.lstrip().startswith("#") else text)
    wrong_at = 3 + (redop is not None) + (root is not None) + 3
    return RawRow(
        line,
        _integer(words[0]),
        _integer(words[1]),
        words[2],
        redop,
        root,
        out if isinstance(out, RawHalf) else None,
        in_place if isinstance(in_place, RawHalf) else None,
        type_width=len(pieces[2]) - 2,
        wrong_width=len(pieces[wrong_at]) - 2,
    )


def _shape(numbers: int, columns: Columns | None) -> tuple[bool, int, int] | None:
    """Whether there is a root, numbers of a half, and halves, from how many numbers follow type and redop."""
    if columns is None:
        return {8: (False, 4, 2), 9: (True, 4, 2), 16: (False, 8, 2), 17: (True, 8, 2)}.get(numbers)
    width = 8 if columns.per_iteration else 4
    expected = width * columns.halves + columns.has_root
    return (columns.has_root, width, columns.halves) if numbers == expected else None


def _what_is_missing(numbers: int, columns: Columns | None) -> str:
    width = 8 if columns is not None and columns.per_iteration else 4
    has_root = columns is None or columns.has_root
    if numbers <= has_root:
        return "breaks off before its times"
    if numbers <= width + has_root:
        return "breaks off before its in-place half"
    return "has other columns than its header" if columns is not None else "has other columns than nccl-tests prints"


def _misfit(redop: str | None, root: int | None, rest: Sequence[str], columns: Columns | None) -> str:
    """Why the words cannot be a row of this vintage; empty when they can."""
    plain = any(_PLAIN_WRONG.fullmatch(rest[at]) for at in (3, 7) if at < len(rest))
    if columns is None:
        # Only from 2.13 on are wrong values counted, and there every row has a redop and a root.
        complete = redop is not None and root is not None
        return "" if complete or not plain else "has lost its redop or root"
    if columns.counts_wrong and columns.has_redop and redop is None:
        return "has lost its redop"
    if redop is not None and not columns.has_redop:
        return "has a redop that its header does not announce"
    return ""


def _half(words: Sequence[str]) -> RawHalf | str | None:
    """One half; None where it was not measured, and what is wrong with it as a string."""
    time, algbw, busbw, wrong = words
    if all(word in _NONE for word in (time, algbw, busbw)):
        return None
    if not all(_NUMBER.fullmatch(word) for word in (time, algbw, busbw)):
        return "has something other than numbers where its times and bandwidths should be"
    if wrong not in _NONE and not _NUMBER.fullmatch(wrong):
        return "has something other than a number of wrong values"
    duration = figure(time)
    if not 0 < duration.value < 1e15:
        return "has a time of 0"
    return RawHalf(duration, figure(algbw), figure(busbw), None if wrong in _NONE else float(wrong))


def figure(text: str) -> Figure:
    """Read a printed number with half a unit of its last digit.

    Parameters
    ----------
    text : str

    Returns
    -------
    Figure

    Examples
    --------
    >>> figure("12.25")
    Figure(value=12.25, half=0.005)
    """
    mantissa, _, exponent = text.partition("e")
    decimals = len(mantissa.partition(".")[2])
    return Figure(float(text), 0.5 * 10.0 ** (int(exponent or 0) - decimals))


def _integer(text: str) -> int:
    return int(text.replace("_", "").replace(",", ""))
