"""Collectives for people and programs: time, bandwidths, the way each is done and why; a table of many."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from shardsim.cost.algorithms import bus_factor
from shardsim.program.ask import CollectiveAnswer
from shardsim.report.records import record_json
from shardsim.units import format_bandwidth, format_size, format_time
from shardsim.values.num import Num
from shardsim.values.provenance import Provenance

SCHEMA = "shardsim.collective/1"
"""Name of the JSON schema; the number grows when a key changes its meaning or goes, not when one is added."""

TABLE_SCHEMA = "shardsim.collectives/1"
"""Name of the JSON schema of several collectives."""

COLUMNS = (
    "collective",
    "bytes",
    "dtype",
    "cluster",
    "fabric",
    "ranks",
    "nodes",
    "nvlink_domains",
    "algorithm",
    "bound_by",
    "time_s",
    "repeat",
    "total_s",
    "busbw_bytes_per_s",
    "datasheet_ring_s",
    "basis",
    "error",
    "points",
)
"""Columns of the CSV file, in order. The last three say what the constants rest on."""

_BOUNDS = {"latency": "latency", "nvlink": "NVLink", "nic": "the adapters"}


def ring_bandwidth(answer: CollectiveAnswer) -> float:
    """Datasheet bandwidth of the slowest link that a ring over the group passes, per direction.

    Parameters
    ----------
    answer : CollectiveAnswer

    Returns
    -------
    float
        NVLink of one GPU inside an NVLink domain; beyond it no more than the group's share of a domain's adapters,
        of which a message has the sender's part [bytes/s].
    """
    nvlink = answer.cluster.nvlink.bandwidth
    if answer.kind == "send_recv" and answer.shape.domains > 1:
        return min(nvlink, answer.cluster.nic_bandwidth_per_gpu)
    return nvlink if answer.shape.domains == 1 else min(nvlink, float(answer.shape.nic_share))


def ring_seconds(answer: CollectiveAnswer) -> float | None:
    """Time of one ring that pays no latency and gets the whole datasheet bandwidth of its slowest link.

    Parameters
    ----------
    answer : CollectiveAnswer

    Returns
    -------
    float or None
        ``2 (n - 1)/n S / bandwidth`` for an all-reduce [s]; None for an all-to-all, which is no ring. A tree, or a
        switch that adds, can be faster: they send less over that link.
    """
    if answer.kind == "all_to_all":
        return None
    return float(bus_factor(answer.kind, answer.shape.ranks)) * answer.size / ring_bandwidth(answer)


def collective_record(answer: CollectiveAnswer, repeat: int = 1) -> dict[str, Any]:
    """Lay an answer out as plain data.

    Parameters
    ----------
    answer : CollectiveAnswer
    repeat : int
        How many in a row (-).

    Returns
    -------
    dict
        Times in seconds, sizes in bytes, bandwidths in bytes/s, as each key's ending says.
    """
    shape, transfer = answer.shape, answer.transfer
    return {
        "schema": SCHEMA,
        "collective": answer.kind,
        "bytes": answer.size,
        "dtype": answer.dtype,
        "cluster": answer.cluster.name,
        "fabric": answer.fabric.name,
        "ranks": shape.ranks,
        "nodes": shape.nodes,
        "nvlink_domains": shape.domains,
        "leaves": shape.leaves,
        "time_s": answer.seconds,
        "repeat": repeat,
        "total_s": repeat * answer.seconds,
        "datasheet_ring_s": ring_seconds(answer),
        "algbw_bytes_per_s": answer.algorithm_bandwidth,
        "busbw_bytes_per_s": answer.bus_bandwidth,
        "algorithm": transfer.algorithm,
        "bound_by": answer.bound,
        "latency_s": float(transfer.latency),
        "wire_bytes": {link: float(size) for link, size in transfer.wire.items()},
        "rate_bytes_per_s": {link: float(rate) for link, rate in transfer.rate.items()},
        "correction": answer.correction,
        "candidates": [
            {
                "algorithm": candidate.transfer.algorithm,
                "expected_by_library_s": float(candidate.believed),
                "achieved_s": float(candidate.transfer.seconds),
            }
            for candidate in answer.candidates
        ],
        "provenance": _provenance(transfer.provenance),
    }


def collective_json(answer: CollectiveAnswer, repeat: int = 1) -> str:
    """Write an answer as JSON."""
    return record_json(collective_record(answer, repeat))


def collectives_json(answers: Sequence[CollectiveAnswer], repeat: int = 1) -> str:
    """Write several answers as JSON."""
    record = {"schema": TABLE_SCHEMA, "answers": [collective_record(answer, repeat) for answer in answers]}
    return record_json(record)


def collectives_csv(answers: Sequence[CollectiveAnswer], repeat: int = 1) -> str:
    """Write several answers as CSV: figures in full, in the units of the JSON keys.

    Parameters
    ----------
    answers : sequence of CollectiveAnswer
    repeat : int
        How many in a row (-).

    Returns
    -------
    str
    """
    buffer = io.StringIO(newline="")
    writer = csv.DictWriter(buffer, COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for answer in answers:
        record = collective_record(answer, repeat)
        writer.writerow(record | record["provenance"])
    return buffer.getvalue()


def collectives_text(answers: Sequence[CollectiveAnswer], repeat: int = 1) -> RenderableType:
    """Lay several answers out as a table for the screen, within 100 columns.

    Parameters
    ----------
    answers : sequence of CollectiveAnswer
        Of the same collective and size.
    repeat : int
        How many in a row (-).

    Returns
    -------
    RenderableType
    """
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("cluster", "ranks", "nodes", "way", "time", "busbw", "datasheet\nring", "basis", "fit\nerror"):
        text = name in ("cluster", "way", "basis")
        grid.add_column(name, justify="left" if text else "right", no_wrap=not text, overflow="fold", vertical="bottom")
    for answer in answers:
        ring, trust = ring_seconds(answer), answer.transfer.provenance
        grid.add_row(
            answer.cluster.name,
            f"{answer.shape.ranks:,}",
            f"{answer.shape.nodes:,}",
            answer.transfer.algorithm if answer.shape.ranks > 1 else "-",
            format_time(repeat * answer.seconds),
            format_bandwidth(answer.bus_bandwidth),
            "-" if ring is None else format_time(repeat * ring),
            trust.basis,
            f"{100 * trust.error:.1f} %" if trust.error and trust.basis != "assumed" else "-",
        )
    note = "datasheet ring: without latency, at the datasheet bandwidth of its slowest link; fit error: median"
    return Group(Text(collectives_title(answers, repeat), "bold"), Text(), grid, Text(), Text(note, "dim"))


def collectives_title(answers: Sequence[CollectiveAnswer], repeat: int = 1) -> str:
    """Name what several answers have in common: collective, size, type, and how many in a row."""
    first = answers[0]
    times = f"{repeat} x " if repeat > 1 else ""
    return f"{times}{first.kind.replace('_', '-')} of {format_size(first.size)} {first.dtype}"


def _provenance(provenance: Provenance) -> dict[str, Any]:
    return {
        "basis": provenance.basis,
        "source": provenance.source,
        "error": provenance.error,
        "points": provenance.points,
    }


def collective_text(answer: CollectiveAnswer, repeat: int = 1) -> RenderableType:
    """Lay an answer out for the screen, within 100 columns.

    Parameters
    ----------
    answer : CollectiveAnswer
    repeat : int
        How many in a row (-).

    Returns
    -------
    RenderableType
    """
    shape, transfer = answer.shape, answer.transfer
    title = Text.assemble(
        (f"{answer.kind.replace('_', '-')} of {format_size(answer.size)}", "bold"),
        f" {answer.dtype}, {_counted(shape.ranks)} on {_place(answer)} of {answer.cluster.name}",
    )
    facts = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    facts.add_column()
    facts.add_column()
    facts.add_row("time", format_time(answer.seconds))
    if repeat > 1:
        facts.add_row(f"{repeat} in a row", format_time(repeat * answer.seconds))
    facts.add_row("algbw", format_bandwidth(answer.algorithm_bandwidth))
    facts.add_row("busbw", format_bandwidth(answer.bus_bandwidth))
    facts.add_row("algorithm", f"{transfer.algorithm}, bound by {_BOUNDS[answer.bound]}")
    facts.add_row("profile", f"{answer.fabric.name} ({_trust(transfer.provenance)})")
    if abs(answer.correction - 1.0) > 5e-4:
        facts.add_row("correction", f"{100 * (answer.correction - 1.0):+.1f} % by measurements, beyond the equations")
    return Group(title, Text(), facts, Text(), *_why(answer))


def _counted(ranks: Num) -> str:
    return "1 rank" if ranks == 1 else f"{ranks:,} ranks"


def _place(answer: CollectiveAnswer) -> str:
    shape = answer.shape
    text = "one node" if shape.nodes == 1 else f"{shape.nodes} nodes"
    if answer.cluster.gpus_per_domain > answer.cluster.gpus_per_node:
        text += " in one NVLink domain" if shape.domains == 1 else f" in {shape.domains} NVLink domains"
    return text + (f" under {shape.leaves} leaf switches" if shape.leaves > 1 else "")


def _trust(provenance: Provenance) -> str:
    text = str(provenance.basis)
    if provenance.points:
        text += f" from {provenance.points} points"
    return text + (f", median error {100 * provenance.error:.1f} %" if provenance.error else "")


def _why(answer: CollectiveAnswer) -> list[RenderableType]:
    if answer.shape.ranks <= 1:
        return [Text("A group of one has nothing to do.", "dim")]
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for index, name in enumerate(("way", "library expects", "achieves")):
        grid.add_column(name, justify="right" if index else "left", no_wrap=True)
    for candidate in answer.candidates:
        times = (format_time(float(candidate.believed)), format_time(float(candidate.transfer.seconds)))
        grid.add_row(candidate.transfer.algorithm, *times)
    return [grid, Text(), Text("The way from which the library expects the least time is taken, as NCCL does.", "dim")]
