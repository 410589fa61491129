"""Write a fitted fabric profile as the YAML that the loader reads."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from shardsim.calibrate.notes import constant_text, note_text, time_text
from shardsim.values.hardware import Correction, FabricConstants, LinkConstants, WayConstants


def fabric_yaml(
    fabric: FabricConstants, title: str, base: str, sources: Mapping[str, str], header: Sequence[str] = ()
) -> str:
    """Write a profile.

    Parameters
    ----------
    fabric : FabricConstants
        Provenances name entries of ``sources``.
    title : str
    base : str
        Profile that it inherits the library's own constants from.
    sources : mapping of str to str
        Citations; those that nothing names are left out.
    header : sequence of str
        Comment lines.

    Returns
    -------
    str
    """
    body = [*_links(fabric.links), "collectives:"]
    body += [line for kind, ways in fabric.ways.items() for line in _collective(kind, ways)]
    if fabric.corrections:
        body += ["corrections:"]
        body += [line for key, correction in fabric.corrections.items() for line in _correction(key, correction)]
    text = "\n".join(body)
    # Constants that were taken over carry their citation in full.
    for name, citation in sources.items():
        if citation:
            text = text.replace(f"source: {citation}", f"source: {name}")
    used = {
        name: citation
        for name, citation in sources.items()
        if f"source: {name}," in text or f"source: {name}}}" in text
    }
    lines = [f"# {line}" for line in header]
    lines += [f"based_on: {base}", f"title: {json.dumps(title)}"]
    lines += ["sources:", *(f"  {name}: {json.dumps(cited, ensure_ascii=False)}" for name, cited in used.items())]
    return "\n".join([*lines, text]) + "\n"


def _links(links: Mapping[str, LinkConstants]) -> list[str]:
    lines = ["links:"]
    for name, link in links.items():
        lines += [f"  {name}:"]
        if link.measured_on:
            lines.append(f"    measured_on: {json.dumps(link.measured_on)}")
        lines.append("    efficiency:")
        for kind, share in link.efficiency.items():
            lines.append(f"      {kind}: {constant_text(f'{share:.4g}', link.provenance_of(kind))}")
        values = {
            "base_latency": time_text(link.base_latency),
            "step_latency": time_text(link.step_latency),
            "half_bandwidth": _size(link.half_bandwidth_bytes),
        }
        for key, value in values.items():
            lines.append(f"    {key}: {constant_text(value, link.constants.get(key, link.provenance))}")
    return lines


def _collective(kind: str, ways: Sequence[WayConstants]) -> list[str]:
    lines = [
        f"  {kind}:",
        f"    near: {{{note_text(ways[0].near)}}}",
        f"    far: {{{note_text(ways[0].far)}}}",
        "    ways:",
    ]
    for way in ways:
        figures = (
            f"base: {time_text(way.base_latency)}, step: {time_text(way.near_step)}, share: {way.near_share:.4g}, "
            f"half: {_size(way.near_half)}, far_base: {time_text(way.far_base)}, far_step: {time_text(way.far_step)}, "
            f"far_share: {way.far_share:.4g}, far_half: {_size(way.far_half)}"
        )
        lines.append(f"      - {{algorithm: {way.algorithm}, protocol: {way.protocol}, {figures}}}")
    return lines


def _correction(key: tuple[str, str, str], correction: Correction) -> list[str]:
    kind, dtypes, place = key
    members = ", ".join(f"{2.0**x:.0f}" for x in correction.log2_members)
    sizes = ", ".join(_binary(2.0**x) for x in correction.log2_bytes)
    lines = [
        f"  - collective: {kind}",
        f"    dtypes: {dtypes}",
        f"    place: {place}",
        *(f"    {part}" for part in note_text(correction.provenance).split(", ")),
        f"    members: [{members}]",
        f"    sizes: [{sizes}]",
        "    log_ratio:",
    ]
    return lines + [f"      - [{', '.join(f'{value:.3f}' for value in row)}]" for row in correction.log_ratio]


def _size(size: float) -> str:
    return f"{size:.4g} B" if size < 1e4 else f"{size / 1e3:.4g} KB" if size < 1e7 else f"{size / 1e6:.4g} MB"


def _binary(size: float) -> str:
    for unit, scale in (("GiB", 2.0**30), ("MiB", 2.0**20), ("KiB", 2.0**10)):
        if size >= scale:
            return f"{size / scale:g} {unit}"
    return f"{size:g} B"
