"""An answer about memory as plain data with a stable schema, and the words that every form of it shares."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

from shardsim.report.records import _plain, run_record
from shardsim.units import format_size, gib
from shardsim.values.fit import Change, FitAdvice, MemoryAnswer, fits_closely
from shardsim.values.program import Item, Pair
from shardsim.values.results import MemoryHistory, MemoryProfile

SCHEMA = "shardsim.memory/1"
"""Name of the schema; the number grows when a key changes its meaning or goes, not when one is added."""
_KINDS = {"F": "forward", "B": "backward", "I": "input-gradient", "W": "weight-gradient"}


def memory_record(answer: MemoryAnswer) -> dict[str, Any]:
    """Lay an answer out as nested dicts, lists, text, finite numbers, truth values and None.

    Parameters
    ----------
    answer : MemoryAnswer

    Returns
    -------
    dict
        Keys in a fixed order; sizes in GiB.
    """
    memory = answer.memory
    worst = memory.worst_stage
    record = {
        "schema": SCHEMA,
        "run": run_record(answer.run),
        "stages": [_stage(memory, stage) for stage in range(len(memory.stages))],
        "capacity_gib": gib(memory.capacity),
        "peak_gib": gib(memory.peak),
        "headroom_gib": gib(headroom(memory, worst)),
        "worst_stage": worst,
        "biggest_items": [name for name, _ in biggest_items(memory.stages[worst])],
        "fits": memory.fits,
        "close": fits_closely(memory),
        "advice": None if answer.advice is None else _advice(answer.advice),
        "assumptions": list(assumptions(answer)),
    }
    return {key: _plain(value, key) for key, value in record.items()}


def assumptions(answer: MemoryAnswer) -> tuple[str, ...]:
    """Say what the framework profile takes for granted about the allocator, and what else was taken by default.

    Parameters
    ----------
    answer : MemoryAnswer

    Returns
    -------
    tuple of str
    """
    framework = answer.run.framework
    taken = (
        f"framework {framework.name} and its libraries take {format_size(framework.context_bytes)} before the first "
        f"tensor; of what is reserved after that, tensors fill {framework.allocated_share:.0%}"
    )
    if framework.activation_share < 1:
        taken += f", of what is reserved for activations and logits {framework.activation_share:.0%}"
    return taken, *answer.run.warnings


def histories_csv(histories: Sequence[MemoryHistory]) -> str:
    """Write what stages hold over time as CSV: one row for each moment at which it changes, sizes in bytes.

    Parameters
    ----------
    histories : sequence of MemoryHistory

    Returns
    -------
    str
    """
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    names = list(histories[0].items)
    writer.writerow(["stage", "seconds", *(f"{name}_bytes" for name in names), "allocated_bytes"])
    for history in histories:
        columns = [history.items[name] for name in names]
        for index, (moment, total) in enumerate(zip(history.seconds, history.allocated, strict=True)):
            sizes = [round(float(column[index])) for column in columns]
            writer.writerow([history.stage, repr(float(moment)), *sizes, round(float(total))])
    return buffer.getvalue()


def stage_groups(memory: MemoryProfile) -> list[tuple[int, ...]]:
    """Fold stages that hold the same.

    Parameters
    ----------
    memory : MemoryProfile

    Returns
    -------
    list of tuple of int
        Stages of each group, in order of their first.
    """
    groups: dict[tuple[int, ...], list[int]] = {}
    for stage, items in enumerate(memory.stages):
        groups.setdefault(tuple(round(size) for size in items.values()), []).append(stage)
    return [tuple(group) for group in groups.values()]


def stage_names(group: Sequence[int]) -> str:
    """Write stage numbers, those in a row as a range.

    Parameters
    ----------
    group : sequence of int
        Ascending.

    Returns
    -------
    str

    Examples
    --------
    >>> stage_names((0, 2, 3, 4, 7))
    '0, 2-4, 7'
    """
    runs: list[list[int]] = []
    for stage in group:
        if runs and stage == runs[-1][-1] + 1:
            runs[-1].append(stage)
        else:
            runs.append([stage])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)


def headroom(memory: MemoryProfile, stage: int) -> float:
    """What a stage leaves free of its device [bytes]; negative where it does not fit.

    Parameters
    ----------
    memory : MemoryProfile
    stage : int

    Returns
    -------
    float
    """
    return memory.capacity - memory.reserved[stage]


def biggest_items(items: Mapping[str, float], most: int = 3) -> list[tuple[str, float]]:
    """Find what takes the most memory.

    Parameters
    ----------
    items : mapping of str to float
        [bytes].
    most : int
        (-).

    Returns
    -------
    list of (str, float)
        The biggest first; of equals the first in order.
    """
    return sorted(((name, size) for name, size in items.items() if size > 0), key=lambda item: -item[1])[:most]


def pass_words(item: Item | None, *, short: bool = False) -> str:
    """Name a pass.

    Parameters
    ----------
    item : Pass, Pair or None
        None for the optimizer step.
    short : bool
        In a few characters.

    Returns
    -------
    str

    Examples
    --------
    >>> from shardsim.values.program import Pass
    >>> pass_words(Pass("B", 7, 2)), pass_words(Pass("B", 7, 2), short=True)
    ('backward pass of micro-batch 7 through chunk 2', 'B7.2')
    """
    if item is None:
        return "step" if short else "optimizer step"
    if isinstance(item, Pair):
        joint = "+" if short else " beside the "
        return joint.join(pass_words(part, short=short) for part in item)
    chunk = f" through chunk {item.chunk}" if item.chunk else ""
    if short:
        return f"{item.kind}{item.microbatch}" + (f".{item.chunk}" if item.chunk else "")
    return f"{_KINDS[item.kind]} pass of micro-batch {item.microbatch}{chunk}"


def _stage(memory: MemoryProfile, stage: int) -> dict[str, Any]:
    return {
        "stage": stage,
        "items_gib": {name: gib(size) for name, size in memory.stages[stage].items()},
        "allocated_gib": gib(memory.allocated[stage]),
        "reserved_gib": gib(memory.reserved[stage]),
        "headroom_gib": gib(headroom(memory, stage)),
        "fullest_in": pass_words(memory.moments[stage]) if memory.moments else None,
    }


def _advice(advice: FitAdvice) -> dict[str, Any]:
    return {
        "iteration_s": advice.iteration_s,
        "tried": advice.tried,
        "more": advice.more,
        "changes": [_change(change) for change in advice.changes],
        "nearest": [_change(change) for change in advice.nearest],
    }


def _change(change: Change) -> dict[str, Any]:
    return {
        "words": change.words,
        "keys": dict(change.keys),
        "flags": change.flags,
        "count": change.count,
        "fits": change.memory.fits,
        "close": change.close,
        "peak_gib": gib(change.memory.peak),
        "worst_stage": change.memory.worst_stage,
        "iteration_s": change.iteration_s,
        "slowdown": change.slowdown,
        "warnings": list(change.warnings),
    }
