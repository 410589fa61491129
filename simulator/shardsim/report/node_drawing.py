"""An imported node drawn: NVLinks above the devices, the PCIe tree below them."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from shardsim.errors import InputError, Problem
from shardsim.report.node import nvlink_words
from shardsim.topology.imports.graph import node_graph
from shardsim.topology.imports.node import DISTANCES, Node

if TYPE_CHECKING:
    import networkx as nx
    from matplotlib.axes import Axes

    Graph = nx.DiGraph[str]
    Places = dict[str, tuple[float, float]]

MOST_DEVICES = 128
"""Devices that are still told apart in a drawing."""
_COLOURS = {
    "gpu": "#4678b4",
    "nic": "#c98a3c",
    "nvswitch": "#5a9e6f",
    "pcie switch": "#8a8f98",
    "host bridge": "#6d5aa8",
    "numa node": "#a4547a",
    "socket link": "#444444",
}
_LINKS = {"nvlink": "#5a9e6f", "pcie": "#8a8f98", "host": "#6d5aa8", "socket": "#444444"}
_WORDS = {
    "PIX": "one PCIe bridge (PIX)",
    "PXB": "PCIe bridges (PXB)",
    "PHB": "host bridge (PHB)",
    "NODE": "NUMA node (NODE)",
    "SYS": "between NUMA nodes (SYS)",
}
_ARC = 0.75


def node_drawing(node: Node, name: str, file_format: str) -> bytes:
    """Draw a node.

    Parameters
    ----------
    node : Node
    name : str
        Name of the dump.
    file_format : {"png", "svg"}

    Returns
    -------
    bytes
        The file; the same bytes for the same node.

    Raises
    ------
    InputError
        More devices than can be told apart.
    """
    devices = len(node.gpus) + len(node.nics)
    if devices > MOST_DEVICES:
        raise InputError(Problem(f"{devices} devices are too many to draw", "--draw", f"at most {MOST_DEVICES}"))
    from matplotlib import rc_context  # noqa: PLC0415  # costs half a second: only where something is drawn
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    with rc_context({"svg.hashsalt": "shardsim", "svg.fonttype": "none", "font.size": 8.0}):
        figure = Figure(figsize=(min(max(7.0, 0.55 * devices), 40.0), 5.6), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots()
        _draw(axes, node, node_graph(node), name)
        stream = io.BytesIO()
        metadata = {"Date": None} if file_format == "svg" else {"Software": None}
        figure.savefig(stream, format=file_format, dpi=150, metadata=metadata)
    return stream.getvalue()


def _draw(axes: Axes, node: Node, graph: Graph, name: str) -> None:
    from matplotlib.collections import LineCollection  # noqa: PLC0415

    places = _places(graph)
    for link, colour in _LINKS.items():
        cables = [
            (places[a], places[b])
            for a, b, edge in graph.edges(data=True)
            if edge["link"] == link and places[a][1] > places[b][1]
        ]
        axes.add_collection(LineCollection(cables, colors=colour, linewidths=1.0, alpha=0.7, zorder=1))
    arcs = _draw_arcs(axes, node, places)
    for vertex, (x, y) in places.items():
        kind = graph.nodes[vertex]["kind"]
        device = kind in ("gpu", "nic")
        axes.scatter([x], [y], c=_COLOURS[kind], marker="s" if device else "o", s=150 if device else 45, zorder=2)
        if device:
            label = graph.nodes[vertex]["name"]
            axes.text(x, y + 0.28, label, rotation=60, ha="left", va="bottom", fontsize=6.5, color=_COLOURS[kind])
    _label_levels(axes, graph, places)
    axes.set_title(f"{name}: {nvlink_words(node)}", loc="left", fontweight="bold", fontsize=10)
    axes.set_axis_off()
    top = max([y for _, y in places.values()] + [arcs]) + 0.9
    axes.set_ylim(min(y for _, y in places.values()) - 0.5, top)
    axes.margins(x=0.04)


def _places(graph: Graph) -> Places:
    """Devices side by side in the order of the PCIe tree, what joins them below, NVSwitches above."""
    rows = {distance: -1.0 - index for index, distance in enumerate(DISTANCES)}
    joints = [vertex for vertex in graph if "distance" in graph.nodes[vertex]]
    children = {joint: _below(graph, joint) for joint in joints}
    inside = {child for below in children.values() for child in below}
    switches = [vertex for vertex in graph if graph.nodes[vertex]["kind"] == "nvswitch"]
    order: list[str] = []
    roots = [vertex for vertex in graph if vertex not in inside and vertex not in switches]
    pending = list(reversed(roots))
    while pending:
        vertex = pending.pop()
        if vertex in children:
            pending += reversed(children[vertex])
        else:
            order.append(vertex)
    places: Places = {vertex: (float(x), 0.0) for x, vertex in enumerate(order)}
    for joint in sorted(joints, key=lambda vertex: -rows[graph.nodes[vertex]["distance"]]):
        xs = [places[child][0] for child in children[joint]]
        places[joint] = (sum(xs) / len(xs), rows[graph.nodes[joint]["distance"]])
    for switch in switches:
        xs = [places[gpu][0] for gpu in graph.successors(switch)]
        places[switch] = (sum(xs) / len(xs), 2.6)
    return places


def _below(graph: Graph, joint: str) -> list[str]:
    """What a joint joins: neighbours that are devices or nearer joints."""
    own = DISTANCES.index(graph.nodes[joint]["distance"])
    return [
        other
        for other in graph.successors(joint)
        if "distance" not in graph.nodes[other] or DISTANCES.index(graph.nodes[other]["distance"]) < own
    ]


def _draw_arcs(axes: Axes, node: Node, places: Places) -> float:
    """Direct NVLinks as arcs over the devices, as wide as there are links; the height of the highest."""
    from matplotlib.patches import Arc  # noqa: PLC0415

    highest = 0.0
    for (a, b), count in node.nvlinks.items():
        left, right = sorted((places[f"gpu/{a}"][0], places[f"gpu/{b}"][0]))
        height = 1.2 + _ARC * (right - left) ** 0.5
        arc = Arc(
            ((left + right) / 2, 0.15),
            right - left,
            2 * height,
            theta1=0,
            theta2=180,
            color=_LINKS["nvlink"],
            linewidth=0.5 + 0.5 * count,
            alpha=0.6,
            zorder=1,
        )
        axes.add_patch(arc)
        axes.text((left + right) / 2, 0.15 + height, f"{count}", fontsize=6, ha="center", va="center", color="#3d7350")
        highest = max(highest, height)
    return highest


def _label_levels(axes: Axes, graph: Graph, places: Places) -> None:
    levels = {places[vertex][1]: graph.nodes[vertex]["distance"] for vertex in places if vertex in _joints(graph)}
    for y, distance in levels.items():
        place = (1.0, y)
        axes.annotate(_WORDS[distance], place, xycoords=("axes fraction", "data"), va="center", fontsize=7)
    if any(graph.nodes[vertex]["kind"] == "nvswitch" for vertex in places):
        axes.annotate("NVSwitch", (1.0, 2.6), xycoords=("axes fraction", "data"), va="center", fontsize=7)


def _joints(graph: Graph) -> set[str]:
    return {vertex for vertex in graph if "distance" in graph.nodes[vertex]}
