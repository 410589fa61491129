"""Measured collectives against their predictions: rows of nccl-tests and the like."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from shardsim.cost.collectives import collective_transfer, message_transfer
from shardsim.errors import InputError
from shardsim.schema.hardware import load_cluster, load_fabric_profile
from shardsim.schema.validation import NameRule, first_match, measured_names
from shardsim.topology.blocks import block_shape
from shardsim.validate.csvfile import CsvRow, read_csv
from shardsim.validate.summary import error_summary
from shardsim.validate.table import ErrorSummary, ValidationRow, ValidationTable
from shardsim.values.operators import CollectiveKind

REQUIRED = ("gpu", "gpus_per_node", "nodes", "collective", "bytes", "time_us")
KINDS: Mapping[str, CollectiveKind | str] = {
    "all_reduce": "all_reduce",
    "allreduce": "all_reduce",
    "all_gather": "all_gather",
    "allgather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "all_to_all": "all_to_all",
    "broadcast": "broadcast",
    "sendrecv": "send_recv",
    "send_recv": "send_recv",
}
_MICRO = 1e-6
_GIGABIT = 1e9 / 8.0
_SIZES = ((65536.0, "under 64 KiB"), (1048576.0, "64 KiB to 1 MiB"), (67108864.0, "1 MiB to 64 MiB"))


@dataclass(frozen=True, slots=True)
class _Request:
    """What one row asks: the cluster it ran on and the collective, or why it cannot be predicted."""

    row: CsvRow
    reason: str = ""
    note: str = ""
    cluster: str = ""
    fabric: str = ""
    kind: str = ""
    dtype: str = ""
    size: float = 0.0
    nodes: float = 0.0
    per_node: float = 0.0
    nic_per_gpu: float = math.nan
    measured: float | None = None


def validate_collectives(path: Path, data: Sequence[Path] = ()) -> ValidationTable:
    """Predict every row of a table of measured collectives.

    Parameters
    ----------
    path : Path
        CSV file with the columns gpu, gpus_per_node, nodes, collective, bytes (the whole buffer, as nccl-tests counts
        it) and time_us. Used where they are: id, source, log_file, note, dtype, inter_node_gbps_per_gpu, healthy, and
        cluster and fabric, which name entries of the catalog.
    data : sequence of Path
        A user's own data folders.

    Returns
    -------
    ValidationTable
        One row for every row of the file, in order. Groups other than ``healthy`` hold healthy rows only.

    Raises
    ------
    InputError
        Every problem of the file.
    """
    table = read_csv(path, REQUIRED)
    rules = measured_names(data).collectives
    requests = [_request(row, rules) for row in table.rows]
    times = _predictions(requests, data)
    rows = [_row(number, request, time) for number, (request, time) in enumerate(zip(requests, times, strict=True), 1)]
    return _summarised(path.name, rows, requests)


def _request(row: CsvRow, rules: Sequence[NameRule]) -> _Request:
    cells = row.cells
    size, time, nodes, per_node = (_number(cells[name]) for name in ("bytes", "time_us", "nodes", "gpus_per_node"))
    measured = None if time is None or time <= 0 else time * _MICRO
    request = _Request(row, measured=measured, dtype=cells.get("dtype", "") or "float")
    kind = KINDS.get(cells["collective"].lower().removesuffix("_perf"))
    if not size or measured is None or not nodes or not per_node or nodes * per_node < 2 or kind is None:
        return replace(request, reason=_lacking(size, measured, nodes, per_node, cells["collective"]))
    gbps = _number(cells.get("inter_node_gbps_per_gpu", ""))
    cluster = cells.get("cluster", "")
    note = ""
    if not cluster:
        rule = first_match(rules, cells["gpu"], _hints(cells, gbps, nodes, per_node))
        if rule is None:
            return replace(request, reason=f"no cluster of the catalog has {cells['gpu']!r}")
        if rule.name is None:
            return replace(request, reason=rule.skip or "")
        cluster, note = rule.name, rule.note
    return replace(
        request,
        cluster=cluster,
        note=note,
        fabric=cells.get("fabric", ""),
        kind=kind,
        size=size,
        nodes=nodes,
        per_node=per_node,
        nic_per_gpu=math.nan if gbps is None else gbps * _GIGABIT,
    )


def _lacking(
    size: float | None, measured: float | None, nodes: float | None, per_node: float | None, collective: str
) -> str:
    """Why a row says too little, or nothing that is modelled."""
    if not size:
        return "no bytes"
    if measured is None:
        return "no measured time"
    if not nodes or not per_node:
        return "number of nodes or of GPUs a node not stated"
    if nodes * per_node < 2:
        return "a group of one rank"
    return f"collective {collective!r} is not modelled"


def _hints(cells: Mapping[str, str], gbps: float | None, nodes: float, per_node: float) -> str:
    words = [cells.get(name, "") for name in ("source", "log_file", "note")]
    words += [f"{per_node:g}gpus", f"{nodes:g}nodes"]
    words += [] if gbps is None else [f"{gbps:g}gbps"]
    return " ".join(words)


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _predictions(requests: Sequence[_Request], data: Sequence[Path]) -> list[float | str]:
    """Seconds of each row, or why there are none; rows of one kind on one fabric together."""
    found: list[float | str] = [request.reason for request in requests]
    groups: dict[tuple[str, str, str, str], list[int]] = {}
    for index, request in enumerate(requests):
        if not request.reason:
            key = (request.cluster, request.fabric, request.kind, request.dtype)
            groups.setdefault(key, []).append(index)
    for (cluster, fabric, kind, dtype), members in groups.items():
        try:
            times: Sequence[float | str] = _group_seconds(
                [requests[index] for index in members], cluster, fabric, kind, dtype, data
            )
        except InputError as error:
            times = [error.problems[0].what] * len(members)
        for index, time in zip(members, times, strict=True):
            found[index] = time
    return found


def _group_seconds(
    requests: Sequence[_Request], cluster_name: str, fabric_name: str, kind: str, dtype: str, data: Sequence[Path]
) -> list[float]:
    cluster = load_cluster(cluster_name, data)
    fabric = load_fabric_profile(fabric_name or cluster.fabric_profile, data)
    size, nodes, per_node, nic = (
        np.array([getattr(request, name) for request in requests])
        for name in ("size", "nodes", "per_node", "nic_per_gpu")
    )
    nic = np.where(np.isfinite(nic), nic, cluster.nic_bandwidth_per_gpu)
    shape = block_shape(cluster, per_node, nodes, nic)
    if kind == "send_recv":
        far = np.asarray(shape.domains > 1, dtype=np.float64)
        sent = message_transfer(size, leaves_domain=far, nic_share=nic, cluster=cluster, fabric=fabric)
        return [float(time) for time in np.atleast_1d(np.asarray(sent.seconds))]
    transfer = collective_transfer(kind, size, shape, cluster, fabric, dtype=dtype)  # type: ignore[arg-type]
    return [float(time) for time in np.atleast_1d(np.asarray(transfer.seconds))]


def _row(number: int, request: _Request, outcome: float | str) -> ValidationRow:
    cells = request.row.cells
    known = not isinstance(outcome, str) and request.measured is not None
    predicted = float(outcome) if known else None
    error = predicted / request.measured - 1.0 if predicted is not None and request.measured else None
    return ValidationRow(
        id=cells.get("id", "") or str(number),
        source=cells.get("source", ""),
        gpu=f"{cells['gpu']} x {cells['gpus_per_node']} a node, {request.dtype}",
        framework=request.fabric or request.cluster,
        model=cells["collective"],
        measured=request.measured,
        predicted=predicted,
        error=error,
        status="ok" if known else "skipped",
        reason="" if known else str(outcome),
        notes=(request.note,) if known and request.note else (),
    )


def _summarised(file: str, rows: Sequence[ValidationRow], requests: Sequence[_Request]) -> ValidationTable:
    health = [request.row.cells.get("healthy", "") or "not stated" for request in requests]
    healthy = [index for index, state in enumerate(health) if state in ("yes", "not stated")]
    groupings: list[tuple[str, Callable[[int], str], Sequence[int]]] = [
        ("healthy", lambda index: health[index], range(len(rows))),
        ("GPU, GPUs a node, dtype (healthy)", lambda index: rows[index].gpu, healthy),
        ("collective and nodes (healthy)", lambda index: f"{rows[index].model}, {_reach(requests[index])}", healthy),
        ("size (healthy)", lambda index: f"{_size(requests[index].size)}, {_reach(requests[index])}", healthy),
        ("cluster (healthy)", lambda index: f"{rows[index].framework}, {_reach(requests[index])}", healthy),
    ]
    groups: list[tuple[str, tuple[ErrorSummary, ...]]] = []
    for name, key, chosen in groupings:
        members: dict[str, list[ValidationRow]] = {}
        for index in chosen:
            members.setdefault(key(index) or "not stated", []).append(rows[index])
        groups.append((name, tuple(error_summary(label, group) for label, group in members.items())))
    reasons = Counter(row.reason for row in rows if row.status == "skipped")
    return ValidationTable(
        file=file,
        rows=tuple(rows),
        overall=error_summary("all", rows),
        groups=tuple(groups),
        skipped=tuple(sorted(reasons.items(), key=lambda item: (-item[1], item[0]))),
        noun="rows",
    )


def _reach(request: _Request) -> str:
    return "one node" if request.nodes <= 1 else "several nodes"


def _size(size: float) -> str:
    return next((name for least, name in _SIZES if size < least), "64 MiB and more")
