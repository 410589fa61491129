"""The JSON that ``-J FILE`` writes, versions 1 to 3: named keys are taken, the environment in it never is."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from shardsim.calibrate.nccl.rows import DTYPE_BYTES, Columns, Figure, RawHalf, RawRow, figure
from shardsim.calibrate.nccl.segments import Arguments, RankLine, Segment, collective_name, library_version, printable
from shardsim.calibrate.nccl.table import Refusal
from shardsim.errors import InputError, Problem

VERSIONS = (1, 2, 3)
_DROPPED = frozenset({"env", "times_us", "per_process_max_times_us"})
"""Keys that are thrown away while the document is read: secrets, and what would fill the memory."""
_COLUMNS = Columns(
    has_redop=True, has_root=True, halves=2, per_iteration=False, is_first_format=False, counts_wrong=True
)


def documents(text: str) -> Iterator[Mapping[str, Any]]:
    """Decode JSON documents that stand one after the other.

    Parameters
    ----------
    text : str

    Yields
    ------
    mapping
        Without the environment.

    Raises
    ------
    InputError
        Not JSON, cut off, or no document of nccl-tests.
    """
    decoder = json.JSONDecoder(object_pairs_hook=_object, parse_constant=lambda _name: None)
    at = 0
    while at < len(text):
        if text[at].isspace():
            at += 1
            continue
        try:
            document, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            raise InputError(Problem(_reason(error, text))) from None
        if not is_nccl_tests(document):
            raise InputError(Problem("is JSON, but not what nccl-tests -J writes"))
        yield document


def _reason(error: Exception, text: str) -> str:
    if not isinstance(error, json.JSONDecodeError):
        return "is not valid JSON: nested too deeply, or a number that is too long"
    rest = text[error.pos : error.pos + 6].rstrip()
    is_begun = len(rest) < 6 and any(word.startswith(rest) for word in ("true", "false", "null"))
    if is_begun or error.msg.startswith("Unterminated"):
        return "is JSON that is cut off"
    return f"is not valid JSON: {error.msg}, line {error.lineno}"


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    return {key: value for key, value in pairs if key not in _DROPPED}


def is_nccl_tests(document: object) -> bool:
    """Whether a decoded document has the form of nccl-tests."""
    return isinstance(document, dict) and "version" in document and isinstance(document.get("results"), list)


def json_segment(document: Mapping[str, Any], line: int) -> Segment:
    """Bring a document to the form that text has.

    Parameters
    ----------
    document : mapping
        As :func:`documents` gives it.
    line : int
        Where it began.

    Returns
    -------
    Segment
        Rows have the line of the document.

    Raises
    ------
    InputError
        A version that is not known.
    """
    version = document.get("version")
    if version not in VERSIONS:
        known = ", ".join(map(str, VERSIONS))
        raise InputError(Problem(f"is JSON of nccl-tests, version {str(version)[:20]!r}", right=f"known are {known}"))
    segment = Segment(line, columns=_COLUMNS, headers=1, has_banner=True, form=f"JSON {version}")
    program = next((str(word) for word in _list(document, "args")[:1]), "")
    segment.named = collective_name(program)
    if isinstance(code := document.get("nccl_version"), int) and 1000 <= code < 1_000_000:
        segment.nccl_version = library_version(code)
    config = document.get("config")
    if isinstance(config, dict):
        segment.ranks = [rank for device in _list(config, "devices") if (rank := _rank(device)) is not None]
        segment.arguments = _arguments(config)
    segment.failed = any(str(error).strip() for error in _list(document, "errors"))
    for number, result in enumerate(_list(document, "results"), start=1):
        row = _row(result, line)
        if isinstance(row, RawRow):
            segment.rows.append(row)
        else:
            segment.refused.append(Refusal(line, f"result {number} {row}"))
    return segment


def _list(record: Mapping[str, Any], key: str) -> Sequence[Any]:
    value = record.get(key)
    return value if isinstance(value, list) else ()


def _rank(device: object) -> RankLine | None:
    if not isinstance(device, dict):
        return None
    rank, group, number = (_whole(device.get(key)) for key in ("rank", "group", "device"))
    if rank is None or number is None:
        return None
    return RankLine(
        rank, group or 0, str(device.get("hostname", ""))[:256], number, printable(str(device.get("device_info", "")))
    )


def _arguments(config: Mapping[str, Any]) -> Arguments | None:
    by_factor = "step_factor" in config
    keys = ("minimum_bytes", "maximum_bytes", "step_factor" if by_factor else "step_bytes")
    smallest, largest, step = (_whole(config.get(key)) for key in keys)
    if smallest is None or largest is None or step is None:
        return None
    return Arguments(smallest, largest, step, by_factor=by_factor)


def _row(result: object, line: int) -> RawRow | str:
    """One result; what is wrong with it as a string."""
    if not isinstance(result, dict):
        return "is no object"
    size, count, root = (_whole(result.get(key)) for key in ("size", "count", "root"))
    dtype, redop = result.get("type"), result.get("redop")
    if size is None or count is None:
        return "has no size or count"
    if not isinstance(dtype, str) or dtype.strip() not in DTYPE_BYTES:
        return f"has the unknown data type {str(dtype)[:20]!r}"
    halves = [_half(result.get(key)) for key in ("out_of_place", "in_place")]
    bad = next((half for half in halves if isinstance(half, str)), None)
    if bad is not None:
        return bad
    out, in_place = (half if isinstance(half, RawHalf) else None for half in halves)
    if out is None and in_place is None:
        return "holds no time"
    name = redop.strip() if isinstance(redop, str) else ""
    return RawRow(line, size, count, dtype.strip(), name or "none", -1 if root is None else root, out, in_place)


def _half(record: object) -> RawHalf | str | None:
    if record is None:
        return None
    if not isinstance(record, dict):
        return "has a half that is no object"
    time, algbw, busbw = (_figure(record.get(key)) for key in ("time", "alg_bw", "bus_bw"))
    if time is None or algbw is None or busbw is None or not time.value:
        if "time" not in record and "cpu_time" in record:
            return "holds CPU times (-C 1), not times of the operation"
        return None if time is algbw is busbw is None else "lacks a time or a bandwidth"
    wrong = _figure(record.get("nwrong"))
    return RawHalf(time, algbw, busbw, None if wrong is None else wrong.value)


def _figure(value: object) -> Figure | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        return None
    return figure(repr(value)) if value < 1e15 else None


def _whole(value: object) -> int | None:
    """A whole number of reasonable size, also as a padded string."""
    if isinstance(value, str) and len(value) < 24:
        try:
            value = int(value)
        except ValueError:
            return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not -1 <= value < 10**18:
        return None
    return value
