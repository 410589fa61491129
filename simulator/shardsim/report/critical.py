"""The critical path of an iteration and what would shorten it, for people and as plain data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from shardsim.report.records import run_record
from shardsim.report.text import bar, run_text
from shardsim.units import format_time
from shardsim.values.critical import CriticalAnswer, CriticalPath, Segment, WhatIf

SCHEMA = "shardsim.critical/1"
"""Name of the schema; the number grows when a key changes its meaning or goes, not when one is added."""
_MANY_STAGES = 16


def critical_record(answer: CriticalAnswer, top: int) -> dict[str, Any]:
    """Lay the critical path of a run out as nested dicts and lists.

    Parameters
    ----------
    answer : CriticalAnswer
    top : int
        How many operators to name (-).

    Returns
    -------
    dict
        Times in seconds, shares and changes as fractions of the iteration.
    """
    path = answer.path
    return {
        "schema": SCHEMA,
        "run": run_record(answer.run),
        "iteration_s": path.iteration_s,
        "categories": [{"name": name, "seconds": seconds} for name, seconds in path.by_category.items()],
        "stages": [{"stage": stage, "seconds": seconds} for stage, seconds in path.by_stage.items()],
        "hops": path.hops,
        "operators": [
            {"name": name, "category": category, "count": count, "seconds": seconds}
            for name, category, count, seconds in _operators(path, top)
        ],
        "legs": [
            {
                "stage": stage,
                "start_s": leg[0].start,
                "seconds": sum(segment.seconds for segment in leg),
                "from": _first_work(leg),
                "to": _first_work(leg[::-1]),
            }
            for stage, leg in _legs(path)
        ],
        "what_if": [
            {
                "name": one.adjustment.name,
                "factor": one.adjustment.factor,
                "on_path_s": one.on_path_s,
                "iteration_s": one.iteration_s,
                "change": _change(one, path),
            }
            for one in answer.what_ifs
        ],
    }


def critical_text(answer: CriticalAnswer, top: int) -> RenderableType:
    """Lay the critical path of a run out for people.

    Parameters
    ----------
    answer : CriticalAnswer
    top : int
        How many operators to name (-).

    Returns
    -------
    RenderableType
        Print it with :func:`shardsim.report.console.show`.
    """
    path = answer.path
    hops = f"{path.hops:,} step{'s' * (path.hops != 1)} from one stage to another"
    parts: list[RenderableType] = [
        run_text(answer.run),
        Text("engine listing: transfers that share links do not slow each other", style="dim"),
        Text(),
        Text.assemble(("Iteration  ", ""), (format_time(path.iteration_s), "bold")),
        _section("What if", "each made free, or as many times as long as it says; the path moves"),
        _what_ifs(answer),
        _section("Critical path by stage", f"{len(path.segments):,} tasks and messages, {hops}"),
        _stages(path),
    ]
    if top:
        parts += [_section("Longest on it", "all of one name together"), _longest(path, top)]
    return Group(*parts)


def _what_ifs(answer: CriticalAnswer) -> RenderableType:
    table = _table("", "on the path", "", "iteration", "change")
    whole = answer.path.iteration_s
    table.add_row(*map(Text, ("as it is", format_time(whole), "100.0%", format_time(whole), "")))
    for one in answer.what_ifs:
        factor = "" if one.adjustment.factor == 0.0 else f" x {one.adjustment.factor:g}"
        table.add_row(
            Text(f"{one.adjustment.name}{factor}"),
            Text(format_time(one.on_path_s)),
            Text(f"{one.on_path_s / whole:.1%}"),
            Text(format_time(one.iteration_s), style="bold"),
            Text(_percent(_change(one, answer.path))),
        )
    return _indented(table)


def _stages(path: CriticalPath) -> RenderableType:
    table = _table("stage", "on the path", "", "")
    table.columns[3].justify = "left"
    largest = sorted(path.by_stage.items(), key=lambda item: -item[1])[:_MANY_STAGES]
    rows = [(str(stage), seconds) for stage, seconds in sorted(largest)]
    left = len(path.by_stage) - len(rows)
    if left:
        rows.append((f"{left:,} more", path.iteration_s - sum(seconds for _, seconds in rows)))
    for name, seconds in rows:
        share = seconds / path.iteration_s
        table.add_row(Text(name), Text(format_time(seconds)), Text(f"{share:.1%}"), Text(bar(share), style="blue"))
    return _indented(table)


def _longest(path: CriticalPath, top: int) -> RenderableType:
    table = _table("operator", "category", "times", "on the path", "")
    table.columns[1].justify = "left"
    for name, category, count, seconds in _operators(path, top):
        share = f"{seconds / path.iteration_s:.1%}"
        table.add_row(*map(Text, (name, category, f"{count:,}", format_time(seconds), share)))
    return _indented(table)


def _operators(path: CriticalPath, top: int) -> list[tuple[str, str, int, float]]:
    """Name, category, how often and seconds of what the path spends longest in."""
    counts: dict[tuple[str, str], int] = {}
    seconds: dict[tuple[str, str], float] = {}
    for segment in path.segments:
        key = segment.name, segment.category
        counts[key] = counts.get(key, 0) + 1
        seconds[key] = seconds.get(key, 0.0) + segment.seconds
    order = sorted(seconds, key=lambda key: (-seconds[key], key))[:top]
    return [(*key, counts[key], seconds[key]) for key in order]


def _legs(path: CriticalPath) -> Iterator[tuple[int, list[Segment]]]:
    """The path from one change of stages to the next."""
    for stage, segments in groupby(path.segments, key=lambda segment: segment.stage):
        yield stage, list(segments)


def _first_work(segments: Sequence[Segment]) -> str | None:
    return next((segment.work for segment in segments if segment.work), None)


def _change(one: WhatIf, path: CriticalPath) -> float:
    return one.iteration_s / path.iteration_s - 1.0


def _percent(change: float) -> str:
    shown = f"{change:+.1%}"
    return "0.0%" if shown in ("+0.0%", "-0.0%") else shown


def _section(title: str, note: str) -> Text:
    return Text.assemble("\n", (title, "bold"), (f"  {note}", "dim"))


def _table(first: str, *others: str) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(overflow="fold")
    for _ in others:
        table.add_column(justify="right", no_wrap=True)
    table.add_row(*(Text(head, style="dim") for head in (first, *others)))
    return table


def _indented(renderable: RenderableType) -> RenderableType:
    return Padding(renderable, (0, 0, 0, 2))
