"""What ranks send in an iteration, for people and as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from shardsim.program.traffic import LINKS, Traffic, mean_of_stages
from shardsim.report.records import run_record
from shardsim.report.text import layout_text
from shardsim.topology.placement import Conversation, conversations, who_talks_to_whom
from shardsim.units import format_time, gib
from shardsim.values.results import Prediction
from shardsim.values.training import TrainingRun

SCHEMA = "shardsim.traffic/1"
"""Name of the schema; the number grows when a key changes its meaning or goes, not when one is added."""
EXPOSED_AS = {"cp_inner": "cp", "cp_outer": "cp", "etp": "ep", "edp": "dp"}
"""Axis under which a prediction counts what is exposed of another."""
_OPERATIONS = {"send_recv": "ring step"}


def traffic_record(prediction: Prediction, rows: Sequence[Traffic]) -> dict[str, Any]:
    """Lay the traffic of a run out as nested dicts and lists.

    Parameters
    ----------
    prediction : Prediction
        Of the same run: its seconds and what of them is exposed.
    rows : sequence of Traffic
        Of every stage.

    Returns
    -------
    dict
        Bytes are those that one rank sends in an iteration, seconds of transfers one after another.
    """
    run = prediction.run
    return {
        "schema": SCHEMA,
        "run": run_record(run),
        "iteration_s": prediction.iteration_s,
        "exposed_s": dict(prediction.exposed_s),
        "groups": [
            {
                "axis": one.axis,
                "groups": one.groups,
                "ranks": one.ranks,
                "example": list(one.example),
                "domains": one.domains,
                "nodes": one.nodes,
                "leaves": one.leaves,
                "links": list(one.links),
            }
            for several in groups_of_traffic(run).values()
            for one in several
        ],
        "mean": [_row(row) for row in mean_of_stages(rows)],
        "stages": [{"stage": row.stage, **_row(row)} for row in rows],
    }


def _row(row: Traffic) -> dict[str, Any]:
    return {
        "axis": row.axis,
        "operation": row.operation,
        "sent_bytes": dict(row.sent),
        "transfers": row.times,
        "seconds": row.seconds,
        "algorithms": list(row.algorithms),
    }


def groups_of_traffic(run: TrainingRun) -> dict[str, tuple[Conversation, ...]]:
    """Find the groups that traffic of each axis goes between.

    Parameters
    ----------
    run : TrainingRun

    Returns
    -------
    dict of str to tuple of Conversation
        As :func:`shardsim.topology.placement.who_talks_to_whom`; gradients and parameters, ``dp``, go between all ranks
        that hold the same ones, over CP as well.
    """
    found: dict[str, tuple[Conversation, ...]] = {}
    for one in who_talks_to_whom(run.cluster, run.layout):
        found[one.axis] = (*found.get(one.axis, ()), one)
    same = tuple(replace(one, axis="dp") for one in conversations("dp_cp", run.cluster, run.layout))
    return {**found, "dp": same} if same else found


def traffic_text(prediction: Prediction, rows: Sequence[Traffic], stage: int | None = None) -> RenderableType:
    """Lay the traffic of a run out for people.

    Parameters
    ----------
    prediction : Prediction
        Of the same run.
    rows : sequence of Traffic
        Of every stage.
    stage : int or None
        The one to show; None for the mean of all.

    Returns
    -------
    RenderableType
    """
    run = prediction.run
    shown = mean_of_stages(rows) if stage is None else [row for row in rows if row.stage == stage]
    lies = {axis: several[0] for axis, several in groups_of_traffic(run).items()}
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("axis", "what", "groups"):
        table.add_column(name, no_wrap=True)
    for name in ("NVLink", "adapter", "spine", "times", "alone", "exposed"):
        table.add_column(name, justify="right", no_wrap=True)
    told: set[str] = set()
    for row in sorted(shown, key=lambda row: -sum(row.sent[link] for link in LINKS[:2])):
        axis = EXPOSED_AS.get(row.axis, row.axis)
        exposed = "" if axis in told or axis not in prediction.exposed_s else format_time(prediction.exposed_s[axis])
        told.add(axis)
        table.add_row(
            row.axis,
            _OPERATIONS.get(row.operation, row.operation.replace("_", "-")),
            _groups(lies.get(row.axis)),
            *(_size(row.sent[link]) for link in LINKS),
            f"{row.times:,.0f}",
            format_time(row.seconds),
            exposed,
        )
    where = "the mean rank" if stage is None else f"a rank of stage {stage}"
    title = Text(f"{run.model.name} on {run.layout.gpus:,} GPUs of {run.cluster.name}, ", style="bold")
    title.append(layout_text(run.layout))
    note = (
        f"GiB that {where} sends in an iteration of {format_time(prediction.iteration_s)}; its transfers one after "
        "another, and what the mean stage waits for an axis"
    )
    return Group(title, Text(note, style="dim"), table)


def _size(size: float) -> str:
    return f"{gib(size):,.2f}" if size else "-"


def _groups(lie: Conversation | None) -> str:
    if lie is None:
        return ""
    return f"{lie.groups:,} x {lie.ranks}, {lie.nodes} node{'s' * (lie.nodes != 1)}"
