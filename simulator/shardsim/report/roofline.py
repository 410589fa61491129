"""The operators of a layer for people and programs: what each costs, what bounds it, and where the price comes from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from shardsim.program.roofline import LayerCosts, OperatorCost
from shardsim.report.records import _plain, _provenance, run_record
from shardsim.units import format_bandwidth, format_flop_rate, format_size, format_time, tflops

SCHEMA = "shardsim.roofline/1"
"""Name of the schema; the number grows when a key changes its meaning or goes, not when one is added."""
_HEADS = ("operator", "n", "GFLOP", "moves", "FLOP/B", "time", "%", "bound by", "reached", "basis")
_LEGEND = (
    "n: kernels; %: share of the time. Each operator alone: what runs beside another counts all the same",
    "bound by tiles: filling the device with tiles keeps it off the sustained rate; launch: the host, or",
    "fixed times; latency: the steps of a collective",
    "reached: of the dense peak (F), of the datasheet bandwidth of memory (M) or of the link (L)",
)


def roofline_text(costs: LayerCosts) -> RenderableType:
    """Lay the operators of a layer out for the screen, within 100 columns.

    Parameters
    ----------
    costs : LayerCosts

    Returns
    -------
    RenderableType
    """
    run = costs.run
    device = run.cluster.device.name
    title = Text(f"One layer{_kind_words(costs)} of {run.model.name} on one {device}", "bold").append(
        f"  {layout_words(costs)}", "not bold dim"
    )
    rate = costs.flop / costs.seconds
    total = (
        f"{format_time(costs.seconds)} a micro-batch, {costs.flop / 1e12:,.4g} TFLOP: {format_flop_rate(rate)}, "
        f"{rate / costs.peak:.1%} of the dense {run.peak_type} peak"
    )
    roofs = (
        f"roofs: {format_flop_rate(costs.peak)} dense, {format_flop_rate(costs.sustained)} sustained; "
        f"memory {format_bandwidth(costs.bandwidth)}, {format_bandwidth(costs.reached)} reached"
    )
    parts: list[RenderableType] = [
        title,
        Text(total),
        Text(roofs),
        Text(),
        _table(costs),
        Text(),
        _bounds(costs),
        Text(),
    ]
    parts += [Text(f"note: {warning}") for warning in run.warnings]
    return Group(*parts, *(Text(line, "dim") for line in _LEGEND))


def _kind_words(costs: LayerCosts) -> str:
    """What sets the layer apart from others of its model."""
    words = ["with experts"] if costs.kind.moe else ["without experts"] if costs.run.model.moe is not None else []
    words += [f"with a window of {costs.kind.window:,} keys"] if costs.kind.window else []
    return " ".join(["", *words])


def layout_words(costs: LayerCosts) -> str:
    """Say what the costs hold for, such as ``TP8 with SP, micro-batch 1, 2,048 tokens, bf16, megatron-core``.

    Parameters
    ----------
    costs : LayerCosts
    """
    run = costs.run
    cp = f" CP{run.layout.cp:g}" if run.layout.cp != 1 else ""
    experts = f" EP{run.layout.ep:g} by {run.layout.dispatcher}" if costs.kind.moe and run.layout.ep != 1 else ""
    parallel = f"TP{run.layout.tp:g}{' with SP' * run.layout.sp}{cp}{experts}"
    batch = f"micro-batch {run.batch.micro_batch:g}, {run.batch.seq_len:,} tokens"
    return f"{parallel}, {batch}, {run.precision}, {run.framework.name}"


def _table(costs: LayerCosts) -> Table:
    grid = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for index, head in enumerate(_HEADS):
        grid.add_column(head, justify="left" if index in (0, 7, 9) else "right", no_wrap=True)
    for phase in ("forward", "recompute", "backward"):
        own = [one for one in costs.operators if one.phase == phase]
        if own:
            _phase(grid, phase, own, costs.seconds)
    return grid


def _phase(grid: Table, phase: str, operators: Sequence[OperatorCost], total: float) -> None:
    seconds = sum(one.seconds for one in operators)
    work = sum(one.flop for one in operators)
    heading = (phase, "", _gflop(work), "", "", format_time(seconds), _share(seconds / total), "", "", "")
    grid.add_row(*(Text(cell, "bold") for cell in heading))
    for one in operators:
        grid.add_row(
            f" {one.name}"[:29],
            f"{one.kernels}",
            _gflop(one.flop),
            format_size(one.bytes_moved),
            f"{one.intensity:,.0f}" if one.flop else "",
            format_time(one.seconds),
            _share(one.seconds / total),
            one.bound,
            f"{100 * one.achieved:.0f}% {_of(one)}",
            one.provenance.basis,
        )


def _of(one: OperatorCost) -> str:
    """What the achieved share is a share of."""
    if one.bound in ("network", "latency"):
        return "L"
    return "F" if one.flop and one.bound != "memory" else "M"


def _gflop(flop: float) -> str:
    return f"{flop / 1e9:,.1f}" if flop else ""


def _share(share: float) -> str:
    return f"{100 * share:.1f}"


def _bounds(costs: LayerCosts) -> Text:
    """Time by what bounds it."""
    seconds: dict[str, float] = {}
    for one in costs.operators:
        seconds[one.bound] = seconds.get(one.bound, 0.0) + one.seconds
    ordered = sorted(seconds.items(), key=lambda item: -item[1])
    words = ", ".join(f"{name} {100 * value / costs.seconds:.1f} %" for name, value in ordered)
    return Text(f"time by bound: {words}")


def roofline_record(costs: LayerCosts) -> dict[str, Any]:
    """Lay the operators of a layer out as plain data.

    Parameters
    ----------
    costs : LayerCosts

    Returns
    -------
    dict
    """
    record = {
        "schema": SCHEMA,
        "run": run_record(costs.run),
        "layer": {"experts": costs.kind.moe, "window": costs.kind.window},
        "seconds": costs.seconds,
        "flop": costs.flop,
        "peak_tflops": tflops(costs.peak),
        "sustained_tflops": tflops(costs.sustained),
        "memory_bytes_per_s": costs.bandwidth,
        "reached_memory_bytes_per_s": costs.reached,
        "operator_costs": [
            {
                "name": one.name,
                "phase": one.phase,
                "kind": one.kind,
                "kernels": one.kernels,
                "flop": one.flop,
                "bytes": one.bytes_moved,
                "flop_per_byte": one.intensity,
                "seconds": one.seconds,
                "share": one.seconds / costs.seconds,
                "bound": one.bound,
                "achieved": one.achieved,
                "achieved_of": {"F": "peak", "M": "memory bandwidth", "L": "link bandwidth"}[_of(one)],
                **_provenance(one.provenance),
            }
            for one in costs.operators
        ],
        "warnings": list(costs.run.warnings),
    }
    return {key: _plain(value, key) for key, value in record.items()}
