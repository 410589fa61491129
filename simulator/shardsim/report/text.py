"""A prediction for the screen: compact, within 100 columns, plain where there is no terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from shardsim.report.iterations import iterations_text
from shardsim.report.lanes import conditions_text
from shardsim.report.records import AXES, peak_name
from shardsim.units import format_size, format_time, gib, tflops
from shardsim.values.num import Num
from shardsim.values.provenance import Provenance
from shardsim.values.results import CostNote, MemoryProfile, Prediction
from shardsim.values.training import Layout, TrainingRun

_BAR = 20
_MANY_STAGES = 16
_STYLE_OF_BASIS = {"measured": "green", "interpolated": "green", "fitted": "cyan", "assumed": "bold yellow"}


NO_BAND = "No error band: no validated runs are known. `shardsim validate runs --bands` makes them."
"""What stands below a prediction where there are none."""


def prediction_text(prediction: Prediction) -> RenderableType:
    """Lay a prediction out for people.

    Parameters
    ----------
    prediction : Prediction

    Returns
    -------
    RenderableType
        Print it with :func:`shardsim.report.console.show`.
    """
    parts: list[RenderableType] = [
        run_text(prediction.run),
        Text(_engine(prediction), style="dim"),
        Text(),
        _headline(prediction),
        _section("From peak to achieved", "mean over ranks; the steps sum to the peak"),
        _waterfall(prediction),
        _section("Memory", _memory_title(prediction.memory)),
        _memory(prediction.memory),
    ]
    more = iterations_text(prediction)
    if more:
        parts += [_section("Beyond one iteration"), *map(_indented, more)]
    if prediction.usual_s is not None:
        parts += [_section("Conditions", "what is not as it should be"), *map(_indented, conditions_text(prediction))]
    if prediction.costs:
        parts += [_section("Costs used", "where the seconds come from"), _costs(prediction.costs)]
    if prediction.warnings:
        parts += [
            _section("Warnings"),
            *(_indented(Text(warning, "yellow")) for warning in prediction.warnings),
        ]
    return Group(*parts, Text(), *band_text(prediction))


def band_text(prediction: Prediction) -> tuple[Text, ...]:
    """Say where the measured time would lie, and in what the run lies beyond those that say so.

    Parameters
    ----------
    prediction : Prediction

    Returns
    -------
    tuple of Text
        A line for each.
    """
    band = prediction.band
    if band is None:
        return (Text(NO_BAND, "dim"),)
    between = f"{format_time(band.low_s)} to {format_time(band.high_s)}"
    group = band.group
    first = f"Error band {between}: 8 of 10 of {group.rows:,} validated runs like it lay so, {group.name}"
    if not (group.framework and group.generation):
        first = f"Error band {between}: the widest of validated runs; {group.rows:,} are {group.name}"
    return (Text(first, "bold"), *(Text(f"  extrapolates: {beyond}", "yellow") for beyond in band.extrapolates))


def run_text(run: TrainingRun) -> Text:
    """Say in three lines what is trained, where, and how it is laid out.

    Parameters
    ----------
    run : TrainingRun

    Returns
    -------
    Text
    """
    layout, cluster, batch = run.layout, run.cluster, run.batch
    gpus = round(_scalar(layout.gpus))
    nodes = -(-gpus // cluster.gpus_per_node)
    text = Text()
    text.append(run.model.name, style="bold")
    if run.model.mtp:  # more work than the name of the model says
        text.append(f" with {run.model.mtp} further token{'s' * (run.model.mtp != 1)} predicted")
    text.append(" on ")
    text.append(cluster.name, style="bold")
    text.append(f": {gpus:,} GPUs ({cluster.device.name}) in {nodes:,} node{'s' * (nodes != 1)}\n")
    text.append(f"{layout_text(layout)}\n")
    micro_batches = round(_scalar(batch.micro_batches(layout)))
    text.append(
        f"batch {batch.global_batch:,g} x {batch.seq_len:,} tokens, micro-batch {batch.micro_batch:,g}, "
        f"m = {micro_batches:,} micro-batch{'es' if micro_batches != 1 else ''}; {run.precision}, {run.framework.name}"
    )
    return text


def layout_text(layout: Layout) -> str:
    """Write a layout in a line: ``TP8 x PP8 x DP16, 3 chunks, interleaved, SP, recompute selective, ZeRO 1``.

    Parameters
    ----------
    layout : Layout

    Returns
    -------
    str
        Axes of degree 1 are left out, except the three that everybody looks for.
    """
    axes = [("TP", layout.tp), ("CP", layout.cp), ("EP", layout.ep), ("ETP", layout.etp)]
    axes += [("PP", layout.pp), ("DP", layout.dp)]
    degrees = " x ".join(f"{name}{size:g}" for name, size in axes if size != 1 or name in ("TP", "PP", "DP"))
    notes = [
        f"{layout.vpp:g} chunks" if layout.vpp != 1 else "",
        f"layers {_runs(layout.split)}" if layout.split else "",
        _schedule(layout) if layout.pp != 1 else "",
        "SP" if layout.sp else "",
        _context(layout) if layout.cp != 1 else "",
        *(_experts(layout) if layout.ep != 1 else ()),
        f"recompute {_recompute(layout)}",
        _sharding(layout),
    ]
    return ", ".join([degrees, *filter(None, notes)])


def _schedule(layout: Layout) -> str:
    name = layout.schedule if layout.custom is None else f"{layout.schedule} ({layout.custom.name})"
    return f"{name} in groups of {layout.group}" if layout.group else name


def _context(layout: Layout) -> str:
    inner = f" ({layout.cp_inner} inside)" if layout.cp_comm == "a2a+p2p" else ""
    return f"CP by {layout.cp_comm}{inner}" + ("" if layout.cp_zigzag else " without zig-zag")


def _experts(layout: Layout) -> Iterator[str]:
    yield f"EP by {layout.dispatcher}" + (", overlapped" if layout.overlap_experts else "")
    if layout.capacity_factor:
        yield f"capacity {layout.capacity_factor:g}" + (" padded" if layout.pads_capacity else "")
    if layout.imbalance != 1:
        yield f"imbalance {layout.imbalance:.3g}"


def _recompute(layout: Layout) -> str:
    if layout.recompute == "selective" and layout.recompute_modules != ("core_attn",):
        return f"selective ({', '.join(layout.recompute_modules)})"
    if layout.recompute == "full" and layout.recompute_layers:
        what = "the first" if layout.recompute_method == "block" else "units of"
        return f"full ({what} {layout.recompute_layers} layers)"
    return layout.recompute


def _sharding(layout: Layout) -> str:
    over = f" over {layout.shard} replicas" if layout.zero and layout.shard else ""
    return f"ZeRO {layout.zero}{over}" + (", parameters kept" if layout.zero == 3 and not layout.reshard else "")


def _runs(counts: Sequence[int]) -> str:
    """Write counts with their repetitions: ``7 14x8 7``."""
    runs = [(count, len(list(same))) for count, same in groupby(counts)]
    return " ".join(f"{times}x{count}" if times > 1 else str(count) for count, times in runs)


def bar(share: float, width: int = _BAR) -> str:
    """Draw a share as a bar of blocks, never more than the width and never nothing for something.

    Parameters
    ----------
    share : float
        Between 0 and 1 (-).
    width : int
        Columns of a whole (-).

    Returns
    -------
    str

    Examples
    --------
    >>> bar(0.5, 8)
    '████'
    """
    eighths = round(min(max(share, 0.0), 1.0) * width * 8)
    if share > 0:
        eighths = max(eighths, 1)
    full, rest = divmod(eighths, 8)
    return "█" * full + " ▏▎▍▌▋▊▉"[rest].strip()


def rounded_parts(parts: Sequence[float], decimals: int) -> list[float]:
    """Round parts so that the rounded ones sum to the rounded whole.

    Parameters
    ----------
    parts : sequence of float
    decimals : int

    Returns
    -------
    list of float
        Each within one unit of the last decimal.

    Examples
    --------
    >>> rounded_parts([0.4, 0.4, 0.4], 0)
    [0.0, 1.0, 0.0]
    """
    rounded: list[float] = []
    running = before = 0.0
    for part in parts:
        running += part
        now = round(running, decimals)
        rounded.append(round(now - before, decimals))
        before = now
    return rounded


def provenance_text(provenance: Provenance) -> str:
    """Write a source with what is known of its error: ``aiconfigurator 1.0 (430 points, median error 4 %)``.

    Parameters
    ----------
    provenance : Provenance

    Returns
    -------
    str
    """
    facts = [
        f"{provenance.points:,} point{'s' * (provenance.points != 1)}" if provenance.points is not None else "",
        f"median error {provenance.error:.1%}" if provenance.error is not None else "",
    ]
    known = ", ".join(filter(None, facts))
    return f"{provenance.source} ({known})" if known else provenance.source


def _scalar(value: Num) -> float:
    return float(value)


def _section(title: str, note: str = "") -> Text:
    text = Text("\n")
    text.append(title, style="bold")
    if note:
        text.append(f"  {note}", style="dim")
    return text


def _engine(prediction: Prediction) -> str:
    events = prediction.execution.events
    counted = f", {events:,} events" if events is not None else ""
    return f"engine {prediction.execution.engine}{counted}"


def _rows(rows: Iterable[tuple[str, str, str]]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column()
    table.add_column(style="bold", justify="right", no_wrap=True)
    table.add_column(style="dim")
    for name, value, note in rows:
        table.add_row(Text(name), Text(value), Text(note))
    return table


def _headline(prediction: Prediction) -> RenderableType:
    layout = prediction.run.layout
    gpus = round(_scalar(layout.gpus))
    peak = f"{tflops(prediction.peak_flops):g} TFLOP/s, {peak_name(prediction)}"
    exposed = {axis: prediction.exposed_s.get(axis, 0.0) for axis in dict.fromkeys([*AXES, *prediction.exposed_s])}
    total = sum(exposed.values())
    by_axis = ", ".join(
        f"{axis} {format_time(seconds)} ({seconds / prediction.iteration_s:.1%})"
        for axis, seconds in exposed.items()
        if seconds > 0
    )
    return _rows(
        [
            ("Iteration", format_time(prediction.iteration_s), ""),
            (
                "Throughput",
                f"{prediction.tokens_per_s:,.0f} tokens/s",
                f"{prediction.tokens_per_s_per_gpu:,.1f} per GPU",
            ),
            ("Compute", f"{tflops(prediction.flops_per_gpu):.1f} TFLOP/s", f"per GPU, of {peak}"),
            ("MFU", f"{prediction.mfu:.1%}", f"model FLOP / (iteration x {gpus:,} GPUs x peak)"),
            ("HFU", f"{prediction.hfu:.1%}", "the same with recomputed FLOP; both count masked attention scores"),
            (
                "Bubble",
                f"{prediction.bubble_fraction:.1%}",
                "of the iteration, idle for the schedule or for slower stages",
            ),
            ("Exposed comm.", format_time(total) if total else "none", by_axis),
        ]
    )


def _waterfall(prediction: Prediction) -> RenderableType:
    steps = prediction.waterfall
    losses = rounded_parts([tflops(step.flops_lost) for step in steps], 1)
    peak = tflops(prediction.peak_flops)
    table = Table.grid(padding=(0, 2))
    table.add_column(overflow="fold")
    for _ in range(3):
        table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True)

    def row(name: str, seconds: str, rate: str, left: float, share: float) -> None:
        style = {"peak": "blue", "achieved": "green"}.get(name, "red")
        drawn = Text(" " * round(left * _BAR) + bar(share), style=style)
        table.add_row(Text(name), Text(seconds), Text(rate), Text(f"{share:.1%}"), drawn)

    table.add_row(*(Text(head, style="dim") for head in ("", "time", "TFLOP/s", "share", "")))
    row("peak", format_time(prediction.iteration_s), f"{round(peak, 1):.1f}", 0.0, 1.0)
    remaining = peak
    for step, loss in zip(steps, losses, strict=True):
        lost = tflops(step.flops_lost)
        remaining -= lost
        row(step.name, format_time(step.seconds), f"{-loss:+.1f}", max(remaining / peak, 0.0), lost / peak)
    # The achieved rate is shown as what the rounded steps leave, so that the column adds up as printed.
    row("achieved", "", f"{round(peak, 1) - sum(losses):.1f}", 0.0, tflops(prediction.flops_per_gpu) / peak)
    return _indented(table)


def _memory_title(memory: MemoryProfile) -> str:
    worst, stages = memory.worst_stage, len(memory.stages)
    which = f"stage {worst} of {stages}, the fullest" if stages > 1 else "per rank"
    return f"{which} ({format_size(memory.capacity)} each)"


def _memory(memory: MemoryProfile) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True)
    worst = memory.stages[memory.worst_stage]
    for item, size in worst.items():
        if size > 0:
            table.add_row(Text(f"  {item}"), f"{gib(size):.2f} GiB", Text(bar(size / memory.capacity), style="blue"))
    verdict = Text("fits", style="bold green") if memory.fits else Text("DOES NOT FIT", style="bold red")
    share = Text(f"{memory.peak / memory.capacity:.1%} of {gib(memory.capacity):.1f} GiB: ").append_text(verdict)
    table.add_row(Text("  total"), f"{gib(memory.peak):.2f} GiB", share)
    parts: list[RenderableType] = [table]
    if len(memory.stages) > 1:
        parts.append(_indented(Text(f"by stage: {_by_stage(memory.stages)}", style="dim")))
    return Group(*parts)


def _by_stage(stages: Sequence[Mapping[str, float]]) -> str:
    totals = [sum(items.values()) for items in stages]
    if len(totals) <= _MANY_STAGES:
        return ", ".join(f"{gib(total):.1f}" for total in totals) + " GiB"
    return f"{gib(min(totals)):.1f} to {gib(max(totals)):.1f} GiB over {len(totals)} stages"


def _costs(costs: Sequence[CostNote]) -> RenderableType:
    """Constants with their basis and source; those that share both stand together."""
    together: dict[tuple[str, str], list[str]] = {}
    for note in costs:
        key = (note.provenance.basis, provenance_text(note.provenance))
        together.setdefault(key, []).append(f"{note.constant}: {note.value}")
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for (basis, source), constants in together.items():
        shown = basis.upper() if basis == "assumed" else basis
        body = Text("; ".join(constants)).append(f"\n{source}", style="dim")
        table.add_row(Text(shown, style=_STYLE_OF_BASIS.get(basis, "")), body)
    return _indented(table)


def _indented(part: RenderableType) -> RenderableType:
    return Padding(part, (0, 0, 0, 2))
