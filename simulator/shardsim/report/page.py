"""A prediction as one HTML file that needs nothing else: no script, no network, everything escaped."""

from __future__ import annotations

from functools import cache
from importlib import resources

from jinja2 import Environment, StrictUndefined, Template

from shardsim.report.memory_records import stage_groups, stage_names
from shardsim.report.records import AXES, peak_name
from shardsim.report.text import band_text, layout_text, provenance_text
from shardsim.units import format_size, format_time, gib, tflops
from shardsim.values.results import Prediction

_PIXELS = 300


@cache
def _template() -> Template:
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    source = resources.files("shardsim.report").joinpath("templates/prediction.html.j2").read_text("utf-8")
    return environment.from_string(source)


def prediction_page(prediction: Prediction) -> str:
    """Lay a prediction out as a page.

    Parameters
    ----------
    prediction : Prediction

    Returns
    -------
    str
        HTML; the same text for the same prediction.
    """
    run, memory = prediction.run, prediction.memory
    peak = prediction.peak_flops
    page = _template().render(
        title=f"{run.model.name} on {run.cluster.name}",
        layout=layout_text(run.layout),
        gpus=f"{round(float(run.layout.gpus)):,} x {run.cluster.device.name}",
        batch=f"{run.batch.global_batch:,g} sequences of {run.batch.seq_len:,} tokens, "
        f"micro-batch {run.batch.micro_batch:,g}, "
        f"{round(float(run.batch.micro_batches(run.layout))):,} micro-batches a replica",
        software=f"{run.framework.name}, {run.precision}, engine {prediction.execution.engine}",
        headline=[
            ("Iteration", format_time(prediction.iteration_s), ""),
            ("Throughput", f"{prediction.tokens_per_s:,.0f}", "tokens/s"),
            ("Per GPU", f"{prediction.tokens_per_s_per_gpu:,.1f}", "tokens/s"),
            ("Compute", f"{tflops(prediction.flops_per_gpu):.1f}", "TFLOP/s per GPU"),
            ("MFU", f"{prediction.mfu:.1%}", f"of {tflops(peak):g} TFLOP/s, {peak_name(prediction)}"),
            ("HFU", f"{prediction.hfu:.1%}", "with recomputed FLOP"),
            ("Bubble", f"{prediction.bubble_fraction:.1%}", "of the iteration"),
            ("Memory", "fits" if memory.fits else "does not fit", f"{format_size(memory.peak)} at the fullest stage"),
        ],
        exposed=[(axis, format_time(prediction.exposed_s.get(axis, 0.0))) for axis in AXES],
        waterfall=[
            ("peak", format_time(prediction.iteration_s), f"{tflops(peak):.1f}", 0.0, float(_PIXELS), "peak"),
            *_steps(prediction),
            (
                "achieved",
                "",
                f"{tflops(prediction.flops_per_gpu):.1f}",
                0.0,
                _PIXELS * prediction.flops_per_gpu / peak,
                "achieved",
            ),
        ],
        pixels=_PIXELS,
        items=list(dict.fromkeys(item for items in memory.stages for item in items)),
        stages=[
            (stage_names(group), {item: f"{gib(size):.2f}" for item, size in items.items()}, f"{gib(total):.2f}")
            for group in stage_groups(memory)
            for items, total in [(memory.stages[group[0]], memory.reserved[group[0]])]
        ],
        capacity=f"{gib(memory.capacity):.1f} GiB",
        costs=[
            (note.constant, note.value, note.provenance.basis, provenance_text(note.provenance))
            for note in prediction.costs
        ],
        band=[line.plain.strip() for line in band_text(prediction)],
        warnings=prediction.warnings,
    )
    return page if page.endswith("\n") else page + "\n"


def _steps(prediction: Prediction) -> list[tuple[str, str, str, float, float, str]]:
    """Name, time, TFLOP/s lost, left edge and width in pixels, and class of each step's bar."""
    rows = []
    remaining = prediction.peak_flops
    for step in prediction.waterfall:
        remaining -= step.flops_lost
        left, right = sorted((remaining, remaining + step.flops_lost))
        scale = _PIXELS / prediction.peak_flops
        kind = "loss" if step.flops_lost >= 0 else "gain"
        rate = f"{-tflops(step.flops_lost):+.1f}"
        rows.append((step.name, format_time(step.seconds), rate, left * scale, (right - left) * scale, kind))
    return rows
