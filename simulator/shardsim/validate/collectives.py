"""Measured collectives against their predictions: rows of nccl-tests and the like."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from shardsim.cost.collectives import collective_transfer, message_transfer
from shardsim.errors import InputError
from shardsim.schema.collectives import collective_name
from shardsim.schema.dtypes import data_type
from shardsim.schema.hardware import load_cluster, load_fabric_profile
from shardsim.schema.validation import NameRule, first_match, measured_names
from shardsim.topology.blocks import block_shape
from shardsim.units import format_size
from shardsim.validate.csvfile import CsvRow, read_csv
from shardsim.validate.summary import error_summary, skip_reasons
from shardsim.validate.table import ErrorSummary, ValidationRow, ValidationTable
from shardsim.values.hardware import FabricConstants

REQUIRED = ("gpu", "gpus_per_node", "nodes", "collective", "bytes", "time_us")
_MICRO = 1e-6
_CITED = re.compile(r"(?:^|; )([^;]+?) \(\d+ points?\)")
"""In a profile's source, what the points of a fit came from."""
_LINE = re.compile(r":\d+$")
_GIGABIT = 1e9 / 8.0
_LEAST_NEAR, _LEAST_FAR = 2.0**16, 2.0**20
"""Buffers from which errors are grouped, in one node and over several: below, a few microseconds decide [bytes]."""
_REMARKS = (
    (
        f"Groups by source, cluster and GPU: buffers of {format_size(_LEAST_NEAR)} and more in one node, "
        f"{format_size(_LEAST_FAR)} and more over several. GPU x N: N GPUs a node. median: of |error|."
    ),
    (
        "By source: errors of rows that a profile was fitted to are in-sample. A row is taken for one where the "
        "profile names its source for this collective, inside an NVLink domain or across."
    ),
)


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


@dataclass(frozen=True, slots=True)
class _Outcome:
    """Predicted time [s] or why there is none, and whether the row's source is one that the profile was fitted to."""

    seconds: float | None = None
    reason: str = ""
    is_fitted: bool = False


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
        One row for every row of the file, in order. The headline and all groups other than ``healthy`` hold the
        rows that are marked healthy or not judged; where every row's health is unknown, all that are not marked
        ``no``.

    Raises
    ------
    InputError
        Every problem of the file.
    """
    table = read_csv(path, REQUIRED)
    rules = measured_names(data).collectives
    requests = [_request(row, rules) for row in table.rows]
    outcomes = _predictions(requests, data)
    rows = [_row(number, *pair) for number, pair in enumerate(zip(requests, outcomes, strict=True), 1)]
    return _summarised(path.name, rows, requests, outcomes)


def _request(row: CsvRow, rules: Sequence[NameRule]) -> _Request:
    cells = row.cells
    size, time, nodes, per_node = (_number(cells[name]) for name in ("bytes", "time_us", "nodes", "gpus_per_node"))
    measured = None if time is None or time <= 0 else time * _MICRO
    request = _Request(row, measured=measured, size=size or 0.0, nodes=nodes or 0.0, dtype=cells.get("dtype", ""))
    try:
        request = replace(request, dtype=data_type(request.dtype or "float"))
        kind = collective_name(cells["collective"])
    except InputError as error:
        return replace(request, reason=error.problems[0].what)
    if not size or measured is None or not nodes or not per_node or nodes * per_node < 2:
        return replace(request, reason=_lacking(size, measured, nodes, per_node))
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
        per_node=per_node,
        nic_per_gpu=math.nan if gbps is None else gbps * _GIGABIT,
    )


def _lacking(size: float | None, measured: float | None, nodes: float | None, per_node: float | None) -> str:
    """Why a row says too little."""
    if not size:
        return "no bytes"
    if measured is None:
        return "no measured time"
    if not nodes or not per_node:
        return "number of nodes or of GPUs a node not stated"
    return "a group of one rank"


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


def _predictions(requests: Sequence[_Request], data: Sequence[Path]) -> list[_Outcome]:
    """Seconds of each row, or why there are none; rows of one kind on one fabric together."""
    found = [_Outcome(reason=request.reason) for request in requests]
    groups: dict[tuple[str, str, str, str], list[int]] = {}
    for index, request in enumerate(requests):
        if not request.reason:
            key = (request.cluster, request.fabric, request.kind, request.dtype)
            groups.setdefault(key, []).append(index)
    for key, members in groups.items():
        try:
            outcomes = _priced([requests[index] for index in members], *key, data)
        except InputError as error:
            outcomes = [_Outcome(reason=error.problems[0].what)] * len(members)
        for index, outcome in zip(members, outcomes, strict=True):
            found[index] = outcome
    return found


def _priced(
    requests: Sequence[_Request], cluster_name: str, fabric_name: str, kind: str, dtype: str, data: Sequence[Path]
) -> list[_Outcome]:
    cluster = load_cluster(cluster_name, data)
    fabric = load_fabric_profile(fabric_name or cluster.fabric_profile, data)
    size, nodes, per_node, nic = (
        np.array([getattr(request, name) for request in requests])
        for name in ("size", "nodes", "per_node", "nic_per_gpu")
    )
    nic = np.where(np.isfinite(nic), nic, cluster.nic_bandwidth_per_gpu)
    shape = block_shape(cluster, per_node, nodes, nic)
    far = np.asarray(shape.domains > 1, dtype=np.float64)
    if kind == "send_recv":
        transfer = message_transfer(size, leaves_domain=far, nic_share=nic, cluster=cluster, fabric=fabric)
    else:
        transfer = collective_transfer(kind, size, shape, cluster, fabric, dtype=dtype)  # type: ignore[arg-type]
    cited = _cited(fabric, kind)
    sources = [_repository(request.row.cells.get("source", "")) for request in requests]
    times = np.broadcast_to(np.asarray(transfer.seconds), size.shape)
    return [
        _Outcome(float(time), is_fitted=bool(source) and source in cited[bool(beyond)])
        for time, source, beyond in zip(times, sources, far, strict=True)
    ]


def _cited(fabric: FabricConstants, kind: str) -> dict[bool, frozenset[str]]:
    """Sources of the measurements that a profile was fitted to, for groups across domains and inside one."""
    ways = fabric.ways.get(kind, ())
    known = {
        False: [fabric.links["nvlink"].provenance_of(kind), *(way.near for way in ways)],
        True: [fabric.links["nic"].provenance_of(kind), *(way.far for way in ways)],
    }
    return {
        beyond: frozenset(name for one in places for name in _CITED.findall(one.source))
        for beyond, places in known.items()
    }


def _repository(source: str) -> str:
    """What profiles cite of a source: of an address the repository, ``owner/name``; of a log its file, not its line."""
    return "/".join(source.split("/")[3:5]) if source.startswith("https://") else _LINE.sub("", source)


def _row(number: int, request: _Request, outcome: _Outcome) -> ValidationRow:
    cells, predicted = request.row.cells, outcome.seconds
    known = predicted is not None
    error = predicted / request.measured - 1.0 if predicted is not None and request.measured else None
    return ValidationRow(
        id=cells.get("id", "") or str(number),
        source=cells.get("source", ""),
        gpu=f"{cells['gpu']} x {cells['gpus_per_node']}, {request.dtype}",
        framework=request.fabric or request.cluster,
        model=cells["collective"],
        measured=request.measured,
        predicted=predicted,
        error=error,
        status="ok" if known else "skipped",
        reason=outcome.reason,
        notes=(request.note,) if known and request.note else (),
    )


def _summarised(
    file: str, rows: Sequence[ValidationRow], requests: Sequence[_Request], outcomes: Sequence[_Outcome]
) -> ValidationTable:
    health = [request.row.cells.get("healthy", "").lower() or "not stated" for request in requests]
    chosen, word = [index for index, state in enumerate(health) if state in ("yes", "not stated")], "healthy"
    if not chosen:
        # Rows that `shardsim calibrate nccl` wrote: nobody has judged them, and only what was wrong is marked.
        chosen, word = [index for index, state in enumerate(health) if state != "no"], "not marked no"
    large = [index for index in chosen if requests[index].size >= _least(requests[index])]

    def summary(name: str, members: Sequence[int]) -> ErrorSummary:
        sizes = [requests[index].size for index in members if rows[index].error is not None]
        return replace(
            error_summary(name, [rows[index] for index in members]),
            sizes=(min(sizes), max(sizes)) if sizes else None,
        )

    def grouped(key: Callable[[int], str], members: Sequence[int]) -> tuple[ErrorSummary, ...]:
        found: dict[str, list[int]] = {}
        for index in members:
            found.setdefault(key(index), []).append(index)
        return tuple(summary(name, found[name]) for name in sorted(found))

    groups = [
        ("healthy", grouped(lambda index: health[index], range(len(rows)))),
        (f"size ({word})", grouped(lambda index: _size_class(requests[index]), chosen)),
        (f"source ({word})", grouped(lambda index: _FITTED[outcomes[index].is_fitted], large)),
        (f"cluster ({word})", grouped(lambda index: f"{rows[index].framework}, {_reach(requests[index])}", large)),
        (
            f"GPU, dtype, reach, collective ({word})",
            grouped(lambda index: f"{rows[index].gpu}, {_reach(requests[index])}, {requests[index].kind}", large),
        ),
    ]
    return ValidationTable(
        file=file,
        rows=tuple(rows),
        overall=error_summary("all", rows),
        groups=tuple(groups),
        skipped=skip_reasons(rows),
        noun="rows",
        headline=summary(word, chosen),
        remarks=_REMARKS,
    )


_FITTED = {True: "one that the profile was fitted to", False: "others"}


def _reach(request: _Request) -> str:
    return "1 node" if request.nodes <= 1 else "nodes"


def _least(request: _Request) -> float:
    return _LEAST_NEAR if request.nodes <= 1 else _LEAST_FAR


def _size_class(request: _Request) -> str:
    least = _least(request)
    size = f"{format_size(least)} and more" if request.size >= least else f"under {format_size(least)}"
    return f"{_reach(request)}, {size}"
