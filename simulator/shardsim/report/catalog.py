"""The catalog for people and programs: what there is, in a line each, and where its figures come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from shardsim.units import format_bandwidth, format_flop_rate, format_size
from shardsim.values.hardware import Cluster, Device, FabricConstants
from shardsim.values.kernels import KernelConstants
from shardsim.values.training import Framework, Model
from shardsim.workload.parameters import model_parameters

CatalogValue: TypeAlias = Cluster | Device | Model | Framework | KernelConstants | FabricConstants


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """One entry of the catalog.

    Parameters
    ----------
    name : str
    summary : str
        One line.
    source : str
        Where its figures come from.
    """

    name: str
    summary: str
    source: str


def catalog_entry(name: str, value: CatalogValue) -> CatalogEntry:
    """Describe an entry in a line.

    Parameters
    ----------
    name : str
    value : Cluster, Device, Model, Framework, KernelConstants or FabricConstants

    Returns
    -------
    CatalogEntry
    """
    if isinstance(value, Cluster):
        return CatalogEntry(name, _cluster(value), value.source)
    if isinstance(value, Device):
        return CatalogEntry(name, _device(value), value.source)
    if isinstance(value, Model):
        return CatalogEntry(name, _model(value), value.source)
    if isinstance(value, Framework):
        return CatalogEntry(name, _framework(value), value.source)
    if isinstance(value, KernelConstants):
        return CatalogEntry(name, _kernels(value), _sources(value.provenance.values()))
    notes = [link.provenance for link in value.links.values()]
    return CatalogEntry(name, _fabric(value), _sources(notes))


def catalog_text(sections: Mapping[str, Sequence[CatalogEntry]]) -> RenderableType:
    """Lay the catalog out for people.

    Parameters
    ----------
    sections : mapping of str to sequence of CatalogEntry
        By kind. With one kind alone, sources are written out.

    Returns
    -------
    RenderableType
    """
    parts: list[RenderableType] = []
    for kind, entries in sections.items():
        title = Text(f"{kind} ", style="bold").append(f"({len(entries)})", style="not bold dim")
        parts += [Text(), title] if parts else [title]
        parts.append(_written_out(entries) if len(sections) == 1 else _in_lines(entries))
    if len(sections) > 1:
        parts += [Text("\nbandwidths per direction; sources in full: shardsim catalog KIND", style="dim")]
    return Group(*parts)


def catalog_record(sections: Mapping[str, Sequence[CatalogEntry]]) -> dict[str, Any]:
    """Lay the catalog out as plain data: ``schema``, and by kind a list of ``name``, ``summary``, ``source``.

    Parameters
    ----------
    sections : mapping of str to sequence of CatalogEntry

    Returns
    -------
    dict
    """
    listed: dict[str, Any] = {
        kind: [{"name": entry.name, "summary": entry.summary, "source": entry.source} for entry in entries]
        for kind, entries in sections.items()
    }
    return {"schema": "shardsim.catalog/1", **listed}


def _in_lines(entries: Sequence[CatalogEntry]) -> RenderableType:
    table = Table.grid(padding=(0, 2), expand=True)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, overflow="ellipsis", style="dim", ratio=1)
    for entry in entries:
        table.add_row(Text(f"  {entry.name}"), Text(entry.summary), Text(entry.source))
    return table


def _written_out(entries: Sequence[CatalogEntry]) -> RenderableType:
    parts: list[RenderableType] = []
    for entry in entries:
        parts.append(Text(f"  {entry.name}  ").append(entry.summary, style="bold"))
        parts.append(Padding(Text(entry.source, style="dim", overflow="fold"), (0, 0, 0, 6)))
    return Group(*parts)


def _cluster(cluster: Cluster) -> str:
    domain = f", domain of {cluster.gpus_per_domain}" * (cluster.gpus_per_domain != cluster.gpus_per_node)
    return (
        f"{cluster.gpus_per_node} x {cluster.device.name}{domain}, "
        f"NVLink {format_bandwidth(cluster.nvlink.bandwidth)}, "
        f"NIC {cluster.nics_per_node} x {format_bandwidth(cluster.nic.bandwidth)}"
    )


def _device(device: Device) -> str:
    peaks = [
        f"{kind} {format_flop_rate(device.peak_flops[kind])}" for kind in ("fp16", "bf16") if kind in device.peak_flops
    ]
    return f"{format_size(device.memory_bytes)} at {format_bandwidth(device.memory_bandwidth)}, {peaks[-1]}"


def _model(model: Model) -> str:
    return (
        f"{model_parameters(model) / 1e9:.4g}B, {model.layers} layers, h {model.hidden}, "
        f"{model.heads}/{model.kv_heads} heads"
    )


def _framework(framework: Framework) -> str:
    return (
        f"{framework.recipe} recipe, {framework.attention} attention, recompute {framework.default_recompute}, "
        f"ZeRO {framework.default_zero}"
    )


def _kernels(kernels: KernelConstants) -> str:
    return (
        "GEMM "
        + ", ".join(f"{kind} {constants.sustained:.0%}" for kind, constants in kernels.gemm.items())
        + " of peak"
    )


def _fabric(fabric: FabricConstants) -> str:
    links = ", ".join(
        f"{name} {link.efficiency['default']:.0%} ({link.provenance.basis})" for name, link in fabric.links.items()
    )
    return f"collectives: {links}"


def _sources(notes: Any) -> str:
    return "; ".join(dict.fromkeys(f"{note.source} ({note.basis})" for note in notes))
