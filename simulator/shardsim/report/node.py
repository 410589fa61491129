"""An imported node for people and for programs, and the cluster file made from it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from shardsim.topology.imports.cluster import ClusterDraft, Entry, LinkEntry
from shardsim.topology.imports.node import Nic, Node
from shardsim.units import format_bandwidth, format_time, gigabytes_per_second

_CPU_WIDTH = 24
_FEW = 6


def node_text(node: Node, name: str) -> RenderableType:
    """Lay a node out for people.

    Parameters
    ----------
    node : Node
    name : str
        Name of the dump.

    Returns
    -------
    RenderableType
    """
    facts = Table.grid(padding=(0, 2))
    facts.add_column(no_wrap=True)
    facts.add_column(overflow="fold")
    facts.add_row(Text("  GPUs"), Text(f"{len(node.gpus)}; {nvlink_words(node)}"))
    facts.add_row(Text("  adapters"), Text(_adapter_words(node)))
    for note in node.notes:
        facts.add_row(Text("  note"), Text(note))
    parts: list[RenderableType] = [Text(name, style="bold").append(f"  {node.kind}", style="not bold dim"), facts]
    if node.gpus:
        parts.append(_gpu_table(node))
    return Group(*parts)


def nvlink_words(node: Node) -> str:
    """Say how NVLink joins the GPUs of a node.

    Parameters
    ----------
    node : Node

    Returns
    -------
    str
        Such as ``18 NVLinks each, through NVSwitch``.
    """
    if not node.gpus or not node.nvlink_known:
        return "NVLinks not listed"
    counts = sorted({node.links_of(gpu) for gpu in range(len(node.gpus))})
    if counts == [0]:
        return "no NVLink"
    each = f"{counts[0]} NVLinks each" if len(counts) == 1 else f"{counts[0]} to {counts[-1]} NVLinks each"
    groups = [len(group) for group in node.nvlink_groups]
    if node.switches:
        return f"{each}, through NVSwitch"
    joined = "" if len(groups) == 1 else f", in groups of {' + '.join(map(str, groups))}"
    return f"{each}, direct{joined}"


def _adapter_words(node: Node) -> str:
    if not node.nics:
        return "none"
    speeds = sorted({nic.speed for nic in node.nics if nic.speed is not None})
    told = f" of {' or '.join(format_bandwidth(speed) for speed in speeds)}" if speeds else ""
    cards = {nic.card for nic in node.nics if nic.card}
    ports = f" on {len(cards)} cards" if cards and len(cards) < len(node.nics) else ""
    beside = len(node.nics_beside_gpus)
    near = f"{beside or 'none'} under a PCIe switch with a GPU"
    return f"{len(node.nics)}{told}{ports}; {near}"


def _gpu_table(node: Node) -> RenderableType:
    """Each GPU: NVLinks, nearest adapters, affinity."""
    table = Table.grid(padding=(0, 2))
    for _ in range(3):
        table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row(*(Text(head, style="dim") for head in ("  GPU", "NUMA", "CPUs", "NVLinks; nearest adapters")))
    for number, gpu in enumerate(node.gpus):
        distance, nics = node.nearest(number)
        near = f"{distance} {_names(node.nics, nics)}" if nics else "no adapter told"
        table.add_row(
            Text(f"  {gpu.name}", style="bold"),
            Text("-" if gpu.numa is None else _ranges([(one, one) for one in gpu.numa])),
            Text("-" if gpu.cpus is None else _ranges(gpu.cpus)),
            Text(f"{_links_words(node, number)}; {near}"),
        )
    return table


def _links_words(node: Node, gpu: int) -> str:
    one = node.gpus[gpu]
    parts = [f"{one.switch_links} to NVSwitch"] if one.switch_links else []
    parts += [f"{one.cpu_links} to the CPU"] if one.cpu_links else []
    peers = [(other, node.nvlinks.get((min(gpu, other), max(gpu, other)), 0)) for other in range(len(node.gpus))]
    parts += [f"{count} to {node.gpus[other].name}" for other, count in peers if count]
    return ", ".join(parts) or ("none" if node.nvlink_known else "not listed")


def _names(nics: Sequence[Nic], positions: Sequence[int]) -> str:
    shown = [nics[position].name for position in positions[:_FEW]]
    more = f" and {len(positions) - _FEW} more" if len(positions) > _FEW else ""
    return ", ".join(shown) + more


def _ranges(ranges: Sequence[tuple[int, int]]) -> str:
    """Number ranges in short; adjoining ones are joined."""
    joined: list[list[int]] = []
    for low, high in ranges:
        if joined and low == joined[-1][1] + 1:
            joined[-1][1] = high
        else:
            joined.append([low, high])
    text = ",".join(f"{low}-{high}" if low < high else f"{low}" for low, high in joined)
    return text if len(text) <= _CPU_WIDTH else f"{text[: _CPU_WIDTH - 2]}.."


def draft_text(draft: ClusterDraft, saved: str = "") -> RenderableType:
    """Say what a cluster of such nodes is, and what of it is not in the dump.

    Parameters
    ----------
    draft : ClusterDraft
    saved : str
        File it was written to, if any.

    Returns
    -------
    RenderableType
    """
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    gpus, domain = int(draft.gpus_per_node.value), int(draft.gpus_per_domain.value)
    size = "" if draft.max_gpus is None else f", {int(draft.max_gpus.value) // gpus:,} nodes"
    rows = [
        ("node", f"{gpus} x {draft.device}, {domain} in a domain{size}"),
        ("NVLink", f"{_link_words(draft.nvlink)} a GPU"),
        ("PCIe", _link_words(draft.pcie)),
        ("adapters", f"{int(draft.nics_per_node.value)} x {_link_words(draft.nic)} a node"),
        *(("note", note) for note in draft.notes),
        *(("assumed", words) for words in draft.assumed),
    ]
    if saved:
        rows.append(("written", saved))
    for head, words in rows:
        table.add_row(Text(f"  {head}"), Text(words))
    return Group(Text("\nCluster of such nodes", style="bold"), table)


def _link_words(link: LinkEntry) -> str:
    return f"{link.product}, {format_bandwidth(link.bandwidth.value)}, {format_time(link.latency.value)}"


def node_record(node: Node, name: str, draft: ClusterDraft | None = None) -> dict[str, Any]:
    """Lay a node out as plain data, bandwidths in GB/s per direction.

    Parameters
    ----------
    node : Node
    name : str
        Name of the dump.
    draft : ClusterDraft or None
        The cluster of such nodes, if one was asked for.

    Returns
    -------
    dict
    """
    record: dict[str, Any] = {
        "schema": "shardsim.node/1",
        "name": name,
        "kind": node.kind,
        "gpus": [
            {
                "name": gpu.name,
                "bus": gpu.bus,
                "pci_id": gpu.pci_id,
                "compute": gpu.compute,
                "numa": None if gpu.numa is None else list(gpu.numa),
                "cpus": None if gpu.cpus is None else [list(pair) for pair in gpu.cpus],
                "memory_numa": gpu.memory_numa,
                "switch_links": gpu.switch_links,
                "cpu_links": gpu.cpu_links,
                "pcie_gb_per_s": _gigabytes(gpu.pcie),
            }
            for gpu in node.gpus
        ],
        "nics": [
            {
                "name": nic.name,
                "device": nic.device,
                "bus": nic.bus,
                "kind": nic.kind,
                "gb_per_s": _gigabytes(nic.speed),
                "card": nic.card,
                "pcie_gb_per_s": _gigabytes(nic.pcie),
                "beside_gpu": position in node.nics_beside_gpus,
            }
            for position, nic in enumerate(node.nics)
        ],
        "nvlink_known": node.nvlink_known,
        "nvlinks": [
            {"a": node.names[a], "b": node.names[b], "links": count} for (a, b), count in sorted(node.nvlinks.items())
        ],
        "nvswitch_groups": [[node.names[gpu] for gpu in group] for group in node.switches],
        "distances": [
            {"a": node.names[a], "b": node.names[b], "distance": distance}
            for (a, b), distance in sorted(node.distances.items())
        ],
        "notes": list(node.notes),
    }
    if draft is not None:
        record["cluster"] = {
            "device": draft.device,
            "gpus_per_node": int(draft.gpus_per_node.value),
            "gpus_per_domain": int(draft.gpus_per_domain.value),
            "nvlink_gb_per_s": gigabytes_per_second(draft.nvlink.bandwidth.value),
            "pcie_gb_per_s": gigabytes_per_second(draft.pcie.bandwidth.value),
            "nic_gb_per_s": gigabytes_per_second(draft.nic.bandwidth.value),
            "nics_per_node": int(draft.nics_per_node.value),
            "fabric_profile": draft.fabric_profile,
            "max_gpus": None if draft.max_gpus is None else int(draft.max_gpus.value),
            "assumed": list(draft.assumed),
            "notes": list(draft.notes),
        }
    return record


def _gigabytes(bandwidth: float | None) -> float | None:
    return None if bandwidth is None else gigabytes_per_second(bandwidth)


def cluster_yaml(draft: ClusterDraft) -> str:
    """Write a draft as a cluster file.

    Parameters
    ----------
    draft : ClusterDraft

    Returns
    -------
    str
        A file for ``topologies/clusters``, every figure with its source.
    """
    used = _used(draft)
    lines = [
        "# Made by `shardsim topology import`. What has the source `assumed` is not in the dump: put your own figures.",
        f"title: {_quoted(draft.title)}",
        "sources:",
        *(f"  {key}: {_quoted(text)}" for key, text in draft.sources.items() if key in used),
        f"device: {_quoted(draft.device)}",
        f"gpus_per_node: {_figure(draft.gpus_per_node)}",
        f"gpus_per_domain: {_figure(draft.gpus_per_domain)}",
        *_link_lines("nvlink", draft.nvlink, bits=False),
        *_link_lines("pcie", draft.pcie, bits=False),
        *_link_lines("nic", draft.nic, bits=True),
        f"nics_per_node: {_figure(draft.nics_per_node)}",
        f"nodes_per_leaf: {_figure(draft.nodes_per_leaf)}",
        f"oversubscription: {_figure(draft.oversubscription)}",
        f"rail_optimized: {_truth(draft.rail_optimized)}",
        f"fabric_profile: {_quoted(draft.fabric_profile)}",
        f"fabric_assumed: {_truth(draft.fabric_assumed)}  # false with a profile of your own",
        *([] if draft.max_gpus is None else [f"max_gpus: {_figure(draft.max_gpus)}"]),
        f"default_framework: {_quoted(draft.default_framework)}",
    ]
    return "\n".join(lines) + "\n"


def _used(draft: ClusterDraft) -> set[str]:
    links = (draft.nvlink, draft.pcie, draft.nic)
    entries = [entry for link in links for entry in (link.bandwidth, link.latency)]
    entries += [value for name in ClusterDraft.__slots__ if isinstance(value := getattr(draft, name), Entry)]
    return {entry.source for entry in entries}


def _figure(entry: Entry) -> str:
    return f"{{value: {entry.value:.15g}, source: {entry.source}}}"


def _truth(entry: Entry) -> str:
    return f"{{value: {str(bool(entry.value)).lower()}, source: {entry.source}}}"


def _link_lines(name: str, link: LinkEntry, *, bits: bool) -> list[str]:
    """One class of link; adapters are sold by the bit."""
    rate = f"{link.bandwidth.value * 8 / 1e9:.15g} Gb/s" if bits else f"{link.bandwidth.value / 1e9:.15g} GB/s"
    return [
        f"{name}:",
        f"  product: {_quoted(link.product)}",
        f"  bandwidth: {{value: {rate}, source: {link.bandwidth.source}}}",
        f"  latency: {{value: {link.latency.value * 1e6:.15g} us, source: {link.latency.source}}}",
    ]


def _quoted(text: str) -> str:
    """Text as YAML reads it back, whatever is in it: JSON's quotes are YAML's."""
    return json.dumps(text)
