"""One collective for people and programs: time, bandwidths, the way it is done and why."""

from __future__ import annotations

import json
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from shardsim.program.ask import CollectiveAnswer
from shardsim.units import format_bandwidth, format_size, format_time
from shardsim.values.num import Num
from shardsim.values.provenance import Provenance

SCHEMA = "shardsim.collective/1"
"""Name of the JSON schema; the number grows when a key changes its meaning or goes, not when one is added."""

_BOUNDS = {"latency": "latency", "nvlink": "NVLink", "nic": "the adapters"}


def collective_record(answer: CollectiveAnswer) -> dict[str, Any]:
    """Lay an answer out as plain data.

    Parameters
    ----------
    answer : CollectiveAnswer

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


def collective_json(answer: CollectiveAnswer) -> str:
    """Write an answer as JSON."""
    return json.dumps(collective_record(answer), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _provenance(provenance: Provenance) -> dict[str, Any]:
    return {
        "basis": provenance.basis,
        "source": provenance.source,
        "error": provenance.error,
        "points": provenance.points,
    }


def collective_text(answer: CollectiveAnswer) -> RenderableType:
    """Lay an answer out for the screen, within 100 columns.

    Parameters
    ----------
    answer : CollectiveAnswer

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
