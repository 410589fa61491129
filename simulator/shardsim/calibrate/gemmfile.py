"""Write a fitted profile of matrix products as the YAML that the loader reads."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from shardsim.calibrate.gemm import LAYOUTS, TILE_NAMES
from shardsim.calibrate.notes import constant_text, note_text, time_text
from shardsim.values.kernels import GemmResidual, GroupedConstants
from shardsim.values.provenance import Provenance

product_constant = partial(constant_text, digits=3)
product_note = partial(note_text, digits=3)
"""Constants of products and where they come from, errors to three digits."""


@dataclass(frozen=True, slots=True)
class ProductFit:
    """Fitted products of one data type.

    Parameters
    ----------
    constants : mapping of str to float
        As :func:`shardsim.calibrate.gemm.fit_tiles` names them, SI units.
    note : Provenance
        Of them; ``source`` is an entry of the file's sources, ``error`` of whole pairs (n, k) held out.
    sustained : float
        Share of the dense peak that long products hold (-).
    sustained_note : Provenance
    residual : GemmResidual or None
    grouped : tuple of (GroupedConstants, Provenance) or None
    kept : mapping of str to Provenance
        Constants that were not fitted but taken over.
    """

    constants: Mapping[str, float]
    note: Provenance
    sustained: float
    sustained_note: Provenance
    residual: GemmResidual | None = None
    grouped: tuple[GroupedConstants, Provenance] | None = None
    kept: Mapping[str, Provenance] = field(default_factory=dict)


def gemm_yaml(
    title: str,
    measured_on: Sequence[str],
    sources: Mapping[str, str],
    alignment: Mapping[str, tuple[tuple[float, Provenance], tuple[float, Provenance]]],
    products: Mapping[str, ProductFit | str],
    header: Sequence[str] = (),
) -> str:
    """Write a profile.

    Parameters
    ----------
    title : str
    measured_on : sequence of str
        Devices that were measured.
    sources : mapping of str to str
        Citations; those that nothing names are left out.
    alignment : mapping of str to ((float, Provenance), (float, Provenance))
        Usual and worst share of misaligned products (-), by the bytes that divide their worst leading dimension.
    products : mapping of str to ProductFit or str
        By data type; a name for another data type's constants.
    header : sequence of str
        Comment lines.

    Returns
    -------
    str
    """
    shared = {other for other in products.values() if isinstance(other, str)}
    body = ["alignment:"]
    for least, ((usual, usual_note), (worst, worst_note)) in alignment.items():
        body += [f'  "{least}":']
        body += [
            f"    usual: {product_constant(f'{usual:g}', usual_note)}",
            f"    worst: {product_constant(f'{worst:g}', worst_note)}",
        ]
    for dtype, fit in products.items():
        if isinstance(fit, str):
            body += [f"{dtype}: *{fit}"]
        else:
            body += [f"{dtype}: &{dtype}" if dtype in shared else f"{dtype}:", *_product(fit)]
    text = "\n".join(body)
    lines = [f"# {line}" for line in header]
    lines += [f"title: {json.dumps(title)}", "sources:"]
    lines += [
        f"  {name}: {json.dumps(cited, ensure_ascii=False)}"
        for name, cited in sources.items()
        if f"source: {name}," in text or f"source: {name}}}" in text
    ]
    return "\n".join([*lines, f"measured_on: [{', '.join(measured_on)}]", text]) + "\n"


def _product(fit: ProductFit) -> list[str]:
    found, note = fit.constants, fit.note
    lines = [
        f"  sustained: {product_constant(f'{fit.sustained:.3g}', fit.sustained_note)}",
        f"  memory_efficiency: {product_constant(_share(found['gemm_memory_efficiency']), note)}",
        f"  overhead: {product_constant(time_text(found['gemm_overhead']), note)}",
        "  tile:",
        "    efficiency:",
        *(f"      {name}: {product_constant(_share(found[name]), note)}" for name in TILE_NAMES if name in found),
    ]
    lines += [f"    {name}: {product_constant(time_text(found[name]), note)}" for name in ("fill", "split_overhead")]
    scalars = ("wave_quantization", "burst_cap", "burst_decay", "sharpness")
    lines += [f"    {name}: {product_constant(_share(found[name]), fit.kept.get(name, note))}" for name in scalars]
    if any(name in found for name in LAYOUTS):
        lines += ["  layout_time:"]
        lines += [f"    {name}: {product_constant(_share(found[name]), note)}" for name in LAYOUTS if name in found]
    if fit.grouped is not None:
        grouped, grouped_note = fit.grouped
        lines += ["  grouped:", f"    slowdown: {product_constant(_share(grouped.slowdown), grouped_note)}"]
        lines += [f"    overhead: {product_constant(time_text(grouped.overhead), grouped_note)}"]
    if fit.residual is not None:
        lines += ["  residual:", *(f"    {part}" for part in product_note(note).split(", ")), "    value:"]
        grid = fit.residual
        for side, knots in (("m", grid.log2_m), ("n", grid.log2_n), ("k", grid.log2_k)):
            lines.append(f"      {side}: [{', '.join(f'{2.0**x:.0f}' for x in knots)}]")
        lines.append("      log_ratio:")
        for plane in grid.log_ratio:
            rows = (f"[{', '.join(f'{value:.3f}' for value in row)}]" for row in plane)
            lines.append(f"        - [{', '.join(rows)}]")
    return lines


def _share(value: float) -> str:
    return f"{value:.4g}"
