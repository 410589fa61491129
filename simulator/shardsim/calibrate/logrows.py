"""Rows of published collective benchmarks, in the columns of a table of measurements, as points by catalog cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from shardsim.calibrate.points import Points, points
from shardsim.schema.validation import first_match, measured_names

_KINDS = {"alltoall": "all_to_all", "sendrecv": "send_recv", "reduce": "broadcast"}
_BITS = 8.0
_GIGA = 1e9
_MICRO = 1e-6


def read_log_rows(path: Path, data: Sequence[Path] = (), *, healthy_only: bool = True) -> Points:
    """Read a CSV of measurements.

    Parameters
    ----------
    path : Path
        Columns source, gpu, gpus_per_node, nodes, inter_node_gbps_per_gpu, collective, bytes, time_us, healthy,
        log_file, dtype, wrong, note.
    data : sequence of Path
        A user's own data folders, for the rules from words to clusters.
    healthy_only : bool
        Take rows marked as healthy only; otherwise leave out only those marked ``no``, as for rows that
        ``shardsim calibrate nccl --out`` wrote, whose health nobody has judged.

    Returns
    -------
    Points
        ``device`` is the catalog cluster; rows of unknown machines, with wrong values and without a time are left
        out.
    """
    table = pd.read_csv(path, dtype=str, keep_default_na=False)
    rules = measured_names(data).collectives
    found: list[dict[str, Any]] = []
    for row in table.to_dict("records"):
        # Old versions print the largest relative error in place of a count: below 1, nothing is wrong.
        is_healthy = row["healthy"] == "yes" if healthy_only else row["healthy"] != "no"
        if not is_healthy or (_number(row["wrong"]) or 0.0) >= 1.0:
            continue
        size, time, nodes, per_node = (_number(row[key]) for key in ("bytes", "time_us", "nodes", "gpus_per_node"))
        if not size or not time or not nodes or not per_node or nodes * per_node < 2:
            continue
        gbps = _number(row["inter_node_gbps_per_gpu"])
        rule = first_match(rules, row["gpu"], hints(row, gbps, nodes, per_node))
        if rule is None or rule.name is None:
            continue
        found.append(
            {
                "kind": _KINDS.get(row["collective"], row["collective"]),
                "size": size,
                "seconds": time * _MICRO,
                "dtype": row["dtype"],
                "nodes": nodes,
                "gpus_per_node": per_node,
                "nic_per_gpu": np.nan if gbps is None else gbps * _GIGA / _BITS,
                "device": rule.name,
                "origin": row["source"],
            }
        )
    return points(found)


def hints(row: Mapping[Any, Any], gbps: float | None, nodes: float, per_node: float) -> str:
    """Words by which rules tell fabrics apart: source, log and note, GPUs a node, nodes, and Gb/s a GPU."""
    words = [row.get("source", ""), row.get("log_file", ""), row.get("note", "")]
    words += [f"{per_node:g}gpus", f"{nodes:g}nodes"]
    words += [] if gbps is None else [f"{gbps:g}gbps"]
    return " ".join(words)


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if np.isfinite(value) else None
