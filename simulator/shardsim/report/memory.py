"""Device memory stage by stage, and what would make it fit: for the screen, within 80 columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich.console import Group, RenderableType
from rich.constrain import Constrain
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from shardsim.report.memory_records import assumptions, biggest_items, headroom, pass_words, stage_groups, stage_names
from shardsim.report.text import run_text
from shardsim.units import format_size, format_time, gib
from shardsim.values.fit import CLOSE, Change, FitAdvice, MemoryAnswer, fits_closely
from shardsim.values.results import MemoryProfile

WIDTH = 80
"""Columns that the report fits into."""
_COLUMNS = 6
"""Groups of stages side by side."""
_MOST_GROUPS = 12
"""Groups of stages shown; of more, the ends and the fullest."""
_CLOSE = (
    f"fits with less than {CLOSE:.0%} of the device to spare, closer than this model is exact (nine in ten measured "
    "peaks of one stack were met within 15%)"
)
"""Measured: docs/equations/memory.md."""


def memory_text(answer: MemoryAnswer) -> RenderableType:
    """Lay an answer out for people.

    Parameters
    ----------
    answer : MemoryAnswer

    Returns
    -------
    RenderableType
        Print it with :func:`shardsim.report.console.show`.
    """
    memory = answer.memory
    groups = stage_groups(memory)
    shown = _shown(groups, memory.worst_stage)
    ranks = round(float(answer.run.layout.gpus)) // len(memory.stages)
    title = f"GiB per GPU; the {ranks:,} GPUs of a stage hold the same" if ranks > 1 else "GiB per GPU"
    parts: list[RenderableType] = [run_text(answer.run), _section("Memory", title)]
    for start in range(0, len(shown), _COLUMNS):
        parts += [Text()] * (start > 0) + [_block(memory, shown[start : start + _COLUMNS])]
    if len(shown) < len(groups):
        parts.append(_indented(Text(_left_out(memory, groups, shown), "dim")))
    parts += [Text(), *_verdict(memory)]
    if answer.advice is not None:
        parts += _advice(answer.advice, memory)
    parts += [_section("Assumed"), *(_indented(Text(note, "yellow")) for note in assumptions(answer))]
    return Constrain(Group(*parts), WIDTH)


def _section(title: str, note: str = "") -> Text:
    return Text("\n").append(title, style="bold").append(f"  {note}" if note else "", style="dim")


def _indented(part: RenderableType) -> RenderableType:
    return Padding(part, (0, 0, 0, 2))


def _shown(groups: Sequence[tuple[int, ...]], worst: int) -> list[tuple[int, ...]]:
    """All groups of stages, or the ends and the fullest where there are many."""
    if len(groups) <= _MOST_GROUPS:
        return list(groups)
    fullest = next(index for index, group in enumerate(groups) if worst in group)
    kept = sorted({0, 1, 2, fullest, len(groups) - 2, len(groups) - 1})
    return [groups[index] for index in kept]


def _left_out(memory: MemoryProfile, groups: Sequence[tuple[int, ...]], shown: Sequence[tuple[int, ...]]) -> str:
    totals = [gib(memory.reserved[group[0]]) for group in groups if group not in shown]
    return f"the other stages reserve {min(totals):.2f} to {max(totals):.2f} GiB; --json has every one"


def _block(memory: MemoryProfile, groups: Sequence[tuple[int, ...]]) -> Table:
    """Items as rows, groups of stages as columns."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    for _ in groups:
        table.add_column(justify="right", no_wrap=True)
    worst = memory.worst_stage
    heads = [(stage_names(group), worst in group) for group in groups]
    table.add_row(
        Text("  stage", "dim"), *(Text(f"{name} *" if bad else name, "bold" if bad else "dim") for name, bad in heads)
    )
    for name, values, style in _rows(memory, groups):
        table.add_row(Text(f"  {name}", style), *(Text(value, style) for value in values))
    return table


def _rows(memory: MemoryProfile, groups: Sequence[tuple[int, ...]]) -> Iterator[tuple[str, list[str], str]]:
    stages = [group[0] for group in groups]

    def row(name: str, sizes: Sequence[float], style: str = "") -> tuple[str, list[str], str]:
        return name, [f"{gib(size):.2f}" for size in sizes], style

    def item(name: str) -> tuple[str, list[str], str]:
        return row(name, [memory.stages[stage].get(name, 0.0) for stage in stages])

    names = [name for name in memory.stages[0] if any(items.get(name) for items in memory.stages)]
    outside = ("fragmentation", "context")
    yield from (item(name) for name in names if name not in outside)
    yield row("allocated", [memory.allocated[stage] for stage in stages], "bold")
    yield from (item(name) for name in names if name in outside)
    yield row("reserved", [memory.reserved[stage] for stage in stages], "bold")
    yield row("headroom", [headroom(memory, stage) for stage in stages])
    if memory.moments:
        yield "fullest in", [pass_words(memory.moments[stage], short=True) for stage in stages], "dim"


def _verdict(memory: MemoryProfile) -> list[RenderableType]:
    worst = memory.worst_stage
    moment = pass_words(memory.moments[worst]) if memory.moments else ""
    when = f", fullest in the {moment}" if moment else ""
    left = headroom(memory, worst)
    share = f"{memory.peak / memory.capacity:.1%} of {format_size(memory.capacity)}"
    if memory.fits:
        close = fits_closely(memory)
        text = Text("fits", "bold yellow" if close else "bold green").append(
            f": stage {worst} reserves {format_size(memory.peak)}, {share}{when}; headroom {format_size(left)}",
            "not bold default",
        )
        return [text, Text(_CLOSE, "yellow")] if close else [text]
    text = Text("DOES NOT FIT", "bold red").append(
        f": stage {worst} needs {format_size(memory.peak)}, {share}, {format_size(-left)} too much{when}",
        "not bold default",
    )
    items = ", ".join(f"{name} {format_size(size)}" for name, size in biggest_items(memory.stages[worst]))
    return [text, Text(f"biggest items: {items}")]


def _advice(advice: FitAdvice, memory: MemoryProfile) -> list[RenderableType]:
    looked = f"{advice.tried:,} valid layouts looked at, on as many GPUs with the same global batch"
    if not advice.changes:
        title = "No one or two changes make it fit" + ("; nearest" if advice.nearest else "")
    elif all(change.count > 1 for change in advice.changes):
        title = "No single change suffices; together, "
    else:
        title = "What makes it fit, "
    if advice.changes:
        title += "cheapest first" if advice.iteration_s is not None else "least memory first: time is not priced"
    table = Table.grid(padding=(0, 2))
    for justify in ("right", "right", "right", "left"):
        table.add_column(justify=justify, no_wrap=justify == "right")
    table.add_row(*(Text(head, "dim") for head in ("iteration", "", "peak GiB", "")))
    shown = advice.changes or advice.nearest
    marks = {text: f"[{number}]" for number, text in enumerate(_caveats(shown), start=1)}
    if advice.iteration_s is not None:
        seconds, peak = format_time(advice.iteration_s), f"{gib(memory.peak):.2f}"
        table.add_row(seconds, "", peak, Text("the run as it is, if it did fit", "dim"))
    for change in shown:
        table.add_row(*_entry(change, marks))
    if advice.more:
        table.add_row("", "", "", Text(f"{advice.more:,} more fit", "dim"))
    notes = [Text(f"{mark} {text}", "yellow") for text, mark in marks.items()]
    return [_section(title), _indented(Text(looked, "dim")), _indented(table), *map(_indented, notes)]


def _caveats(changes: Sequence[Change]) -> list[str]:
    """What some of the changes warn of, each once; that one fits closely comes first."""
    close = [_CLOSE] * any(change.close for change in changes)
    return list(dict.fromkeys([*close, *(text for change in changes for text in change.warnings)]))


def _entry(change: Change, marks: Mapping[str, str]) -> tuple[Text, Text, Text, Text]:
    """Iteration time, what that is over the present one, fullest stage, and what to do in words and as flags."""
    seconds = "not priced" if change.iteration_s is None else format_time(change.iteration_s)
    slower = "" if change.slowdown is None else f"{change.slowdown:+.1%}"
    what = Text(change.words, "bold")
    caveats = _caveats([change])
    what.append("".join(f" {mark}" for text, mark in marks.items() if text in caveats), "yellow not bold")
    what.append(f"\n{change.flags}", "cyan not bold")
    return Text(seconds), Text(slower), Text(f"{gib(change.memory.peak):.2f}"), what
