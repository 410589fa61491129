"""What was read from nccl-tests logs, for people and programs: a table on the screen, JSON, rows as CSV."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from shardsim.calibrate.nccl.table import NcclLog, NcclRow, NcclTest, Refusal, Timing
from shardsim.report.records import record_json
from shardsim.units import format_bandwidth, format_size, gigabytes_per_second

SCHEMA = "shardsim.nccl-logs/1"
"""Name of the JSON schema; the number grows when a key changes its meaning or goes, not when one is added."""

ROW_COLUMNS = (
    "source",
    "gpu",
    "gpus_per_node",
    "nodes",
    "ranks",
    "inter_node_gbps_per_gpu",
    "collective",
    "bytes",
    "time_us",
    "algbw_gbs",
    "busbw_gbs",
    "healthy",
    "log_file",
    "dtype",
    "nccl_version",
    "in_place_time_us",
    "wrong",
    "basis",
    "note",
)
"""Columns of the rows file: sizes as nccl-tests counts them, bandwidths out of place."""

_MOST_REASONS = 12
_WIDTHS = ((17, False), (16, False), (8, False), (22, False), (6, True), (12, True))
"""Of each column, and whether it holds numbers."""


def nccl_rows_csv(logs: Sequence[NcclLog], cluster: str | None = None) -> str:
    """Write every row that was read, in order.

    Parameters
    ----------
    logs : sequence of NcclLog
    cluster : str or None
        Name or path of what they were measured on; it then becomes a last column.

    Returns
    -------
    str
    """
    last = [] if cluster is None else [cluster]
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow([*ROW_COLUMNS, "cluster"] if last else ROW_COLUMNS)
    for test in _tests(logs):
        writer.writerows([*_cells(test, row), *last] for row in test.rows)
    return buffer.getvalue()


def _cells(test: NcclTest, row: NcclRow) -> list[object]:
    first = row.out_of_place
    doubt = not test.is_communication or test.is_mixed or row.is_wrong
    name = PurePath(test.file).name
    return [
        f"{name}:{row.line}",
        test.device,
        test.gpus_per_node,
        test.nodes,
        test.ranks,
        None,
        test.collective,
        row.bytes,
        _microseconds(first),
        None if first is None else _plain(gigabytes_per_second(first.algbw)),
        None if first is None else _plain(gigabytes_per_second(first.busbw)),
        "no" if doubt else "unknown",
        name,
        test.dtype,
        test.nccl_version,
        _microseconds(row.in_place),
        None if first is None or first.wrong is None else _plain(first.wrong),
        f"log, {test.form}",
        "; ".join(test.notes),
    ]


def _microseconds(timing: Timing | None) -> str | None:
    return None if timing is None else _plain(timing.time_s * 1e6)


def _plain(value: float) -> str:
    """Ten digits: more than any log prints, few enough to hide the last bit of a conversion."""
    return f"{value:.10g}"


def nccl_logs_json(logs: Sequence[NcclLog], fit: Mapping[str, Any] | None = None) -> str:
    """Write what was found, test by test, and what was not read, as JSON.

    Parameters
    ----------
    logs : sequence of NcclLog
    fit : mapping or None
        Record of what was fitted to them.

    Returns
    -------
    str
    """
    record = {
        "schema": SCHEMA,
        "rows": sum(len(test.rows) for test in _tests(logs)),
        "tests": [_test_record(test) for test in _tests(logs)],
        "refused": [
            {"file": log.file, "line": refusal.line or None, "what": refusal.what, "right": refusal.right or None}
            for log in logs
            for refusal in log.refused
        ],
        "refused_more": sum(log.refused_more for log in logs),
        "fit": fit,
    }
    return record_json(record)


def _test_record(test: NcclTest) -> dict[str, Any]:
    sizes = [row.bytes for row in test.rows]
    peak = test.peak_busbw
    return {
        "file": test.file,
        "collective": test.collective,
        "collective_from": test.collective_from,
        "ranks": test.ranks,
        "ranks_from": test.ranks_from,
        "nodes": test.nodes,
        "gpus_per_node": test.gpus_per_node,
        "dtype": test.dtype,
        "redop": test.redop or None,
        "gpu": test.device or None,
        "nccl_version": test.nccl_version or None,
        "form": test.form,
        "rows": len(test.rows),
        "usable_rows": int(test.usable.sum()),
        "wrong_rows": test.wrong_rows,
        "sizes_asked": test.sizes_asked,
        "smallest_bytes": min(sizes),
        "largest_bytes": max(sizes),
        "peak_busbw_gb_per_s": None if peak is None else float(_plain(gigabytes_per_second(peak))),
        "notes": list(test.notes),
    }


def nccl_logs_text(logs: Sequence[NcclLog]) -> RenderableType:
    """Lay out what was found for the screen, within 100 columns.

    Parameters
    ----------
    logs : sequence of NcclLog

    Returns
    -------
    RenderableType
    """
    tests = list(_tests(logs))
    rows = sum(len(test.rows) for test in tests)
    parts: list[RenderableType] = [
        Text(f"{_count(rows, 'row')} in {_count(len(tests), 'test')} of {_count(len(logs), 'log')}", "bold"),
        Text(),
        *_grids(logs),
    ]
    notes = Counter(note for test in tests for note in test.notes)
    wrong = sum(test.wrong_rows for test in tests)
    if wrong:
        notes["wrong results: such rows are kept and marked, and no fit uses them"] = wrong
    if notes:
        parts += [Text(), Text("Noted", "bold"), _counted(notes)]
    refused = _refused(logs)
    if refused:
        parts += [Text(), Text("Not read", "bold"), _counted(refused)]
    return Group(*parts)


def _grids(logs: Sequence[NcclLog]) -> Iterator[RenderableType]:
    """Each log's name, and below it its tests in columns that are as wide for every log."""
    yield _grid([("  collective", "ranks", "type", "sizes", "rows", "peak busbw")], style="bold")
    for log in logs:
        yield Text(PurePath(log.file).name, overflow="ellipsis", no_wrap=True)
        yield _grid([_figures(test) for test in log.tests] or [("  nothing read", *[""] * 5)])


def _grid(lines: Sequence[Sequence[str]], style: str = "") -> Table:
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    for width, is_number in _WIDTHS:
        grid.add_column(width=width, justify="right" if is_number else "left", no_wrap=True, style=style)
    for line in lines:
        grid.add_row(*line)
    return grid


def _figures(test: NcclTest) -> tuple[str, ...]:
    place = f" ({test.nodes} x {test.gpus_per_node})" if test.nodes and test.gpus_per_node else ""
    sizes = sorted({row.bytes for row in test.rows})
    span = format_size(sizes[0]) if len(sizes) == 1 else f"{format_size(sizes[0])} .. {format_size(sizes[-1])}"
    peak = test.peak_busbw
    return (
        f"  {test.collective}",
        f"{test.ranks}{place}",
        test.dtype,
        span,
        f"{len(test.rows):,}",
        "-" if peak is None else format_bandwidth(peak),
    )


def _refused(logs: Sequence[NcclLog]) -> Counter[str]:
    """Reasons with the file and the first line, and how often each occurred in that file."""
    found: Counter[str] = Counter()
    for log in logs:
        name = PurePath(log.file).name
        first: dict[str, str] = {}
        for refusal in log.refused:
            reason = _reason(refusal)
            place = f"{name}:{refusal.line}" if refusal.line else name
            found[first.setdefault(reason, f"{place}: {reason}")] += 1
        if log.refused_more:
            found[f"{name}: and more"] = log.refused_more
    return found


def _reason(refusal: Refusal) -> str:
    return f"{refusal.what} ({refusal.right})" if refusal.right else refusal.what


def _counted(items: Counter[str]) -> RenderableType:
    grid = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    grid.add_column(justify="right")
    grid.add_column()
    ordered = items.most_common()
    for text, count in ordered[:_MOST_REASONS]:
        grid.add_row(f"{count:,}", Text(text))
    if len(ordered) > _MOST_REASONS:
        rest = ordered[_MOST_REASONS:]
        grid.add_row(f"{sum(count for _, count in rest):,}", f"for {len(rest)} more reasons (--json)")
    return grid


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _tests(logs: Sequence[NcclLog]) -> Iterator[NcclTest]:
    return (test for log in logs for test in log.tests)
