"""A fabric drawn: GPUs, switches, adapters, and every cable with its bandwidth per direction."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import TYPE_CHECKING

from shardsim.errors import InputError, Problem
from shardsim.topology.fabric import build_fabric
from shardsim.units import format_bandwidth, format_time
from shardsim.values.hardware import Cluster

if TYPE_CHECKING:
    import networkx as nx
    from matplotlib.axes import Axes

    Graph = nx.DiGraph[str]
    Places = dict[str, tuple[float, float]]

MOST_GPUS = 512
"""GPUs that are still told apart in a drawing."""
_LEGIBLE = 60.0
_MANY = 150
_SHAPES = {"gpu": "s", "nvswitch": "D"}
_LEVELS = {"nvswitch": 0.0, "gpu": 1.0, "pcie switch": 2.0, "nic": 3.0, "leaf": 4.4, "spine": 5.6}
_COLOURS = {
    "gpu": "#4678b4",
    "nvswitch": "#5a9e6f",
    "pcie switch": "#8a8f98",
    "nic": "#c98a3c",
    "leaf": "#a4547a",
    "spine": "#6d5aa8",
}
_LINKS = {
    "nvlink": ("#5a9e6f", "NVLink"),
    "pcie": ("#8a8f98", "PCIe"),
    "nic": ("#c98a3c", "adapter to leaf"),
    "leaf": ("#6d5aa8", "leaf to spine"),
}


def fabric_drawing(cluster: Cluster, nodes: int | None, file_format: str) -> bytes:
    """Draw the fabric of a cluster.

    Parameters
    ----------
    cluster : Cluster
    nodes : int or None
        Nodes to draw (-); by default one NVLink domain and one node more, which has every kind of link below the
        spines.
    file_format : {"png", "svg"}

    Returns
    -------
    bytes
        The file; the same bytes for the same cluster.

    Raises
    ------
    InputError
        More nodes than the cluster has, or than can be told apart.
    """
    shown = _default_nodes(cluster) if nodes is None else nodes
    gpus = shown * cluster.gpus_per_node
    if gpus > MOST_GPUS:
        most = MOST_GPUS // cluster.gpus_per_node
        raise InputError(Problem(f"{shown} nodes ({gpus:,} GPUs) are too many to draw", "--nodes", f"at most {most}"))
    graph = build_fabric(cluster, shown)
    from matplotlib import rc_context  # noqa: PLC0415  # costs half a second: only where something is drawn
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    with rc_context({"svg.hashsalt": "shardsim", "svg.fonttype": "none", "font.size": 8.0}):
        figure = Figure(figsize=(_width(gpus), 6.2), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots()
        _draw(axes, graph, cluster, shown)
        stream = io.BytesIO()
        metadata = {"Date": None} if file_format == "svg" else {"Software": None}
        figure.savefig(stream, format=file_format, dpi=150, metadata=metadata)
    return stream.getvalue()


def _width(gpus: int) -> float:
    """Inches that a row of GPUs takes."""
    return min(max(8.0, 0.33 * gpus), 30.0)


def _default_nodes(cluster: Cluster) -> int:
    whole = max(1, cluster.gpus_per_domain // cluster.gpus_per_node) + 1
    return whole if cluster.max_gpus is None else min(whole, cluster.max_gpus // cluster.gpus_per_node)


def _draw(axes: Axes, graph: Graph, cluster: Cluster, nodes: int) -> None:
    kinds = _by_kind(graph)
    places = _places(graph, cluster, kinds)
    _draw_nodes(axes, cluster, nodes)
    for link, (colour, _) in _LINKS.items():
        _draw_cables(axes, graph, places, link, colour)
    # Points between neighbouring GPUs, squared: the largest marker that leaves a gap.
    room = (0.6 * 72 * _width(nodes * cluster.gpus_per_node) / max(x for x, _ in places.values())) ** 2
    for kind in _LEVELS:
        size = {"gpu": min(room, 90.0), "nvswitch": 150.0}.get(kind, min(room, 40.0))
        _draw_vertices(axes, places, kinds[kind], kind, size)
    title = f"{cluster.name}: {nodes} node{'s' * (nodes != 1)} of {cluster.gpus_per_node} x {cluster.device.name}"
    axes.set_title(title, loc="left", fontweight="bold", fontsize=11)
    _legend(axes, graph, cluster)
    axes.set_axis_off()
    axes.margins(0.02, 0.06)


def _by_kind(graph: Graph) -> dict[str, list[str]]:
    """Vertices by kind, each kind in the order of its numbers."""
    kinds: dict[str, list[str]] = {kind: [] for kind in _LEVELS}
    for name in sorted(graph.nodes, key=_numbers):
        kinds[graph.nodes[name]["kind"]].append(name)
    return kinds


def _places(graph: Graph, cluster: Cluster, kinds: dict[str, list[str]]) -> Places:
    """Where every vertex goes: a node's parts above each other, switches spread over all nodes."""
    gap = 1.5
    width = cluster.gpus_per_node
    total = (len(kinds["gpu"]) // width) * (width + gap) - gap
    places: Places = {}
    for rank, name in enumerate(kinds["gpu"]):
        places[name] = (rank + rank // width * gap, _LEVELS["gpu"])
    for kind in ("pcie switch", "nic"):
        of_node: dict[int, list[str]] = {}
        for name in kinds[kind]:
            of_node.setdefault(graph.nodes[name]["node"], []).append(name)
        for node, names in of_node.items():
            for x, name in zip(_spread(len(names), node * (width + gap) - 0.5, width), names, strict=True):
                places[name] = (x, _LEVELS[kind])
    for name in kinds["nvswitch"]:
        xs = [places[gpu][0] for gpu in graph.successors(name)]
        places[name] = ((min(xs) + max(xs)) / 2, _LEVELS["nvswitch"])
    for kind in ("leaf", "spine"):
        for x, name in zip(_spread(len(kinds[kind]), -0.5, total), kinds[kind], strict=True):
            places[name] = (x, _LEVELS[kind])
    return places


def _numbers(name: str) -> tuple[int, ...]:
    return tuple(int(part) for part in name.split("/")[1:])


def _spread(number: int, left: float, width: float) -> Iterable[float]:
    return (left + width * (index + 0.5) / number for index in range(number))


def _draw_nodes(axes: Axes, cluster: Cluster, nodes: int) -> None:
    from matplotlib.patches import FancyBboxPatch  # noqa: PLC0415

    width, gap = cluster.gpus_per_node, 1.5
    for node in range(nodes):
        corner = (node * (width + gap) - 0.65, _LEVELS["gpu"] - 0.35)
        size = (width + 0.3, _LEVELS["nic"] - _LEVELS["gpu"] + 0.7)
        box = FancyBboxPatch(corner, *size, boxstyle="round,pad=0,rounding_size=0.15", fc="#f4f5f7", ec="#d0d4da")
        axes.add_patch(box)
        blank = {"fc": "white", "ec": "none", "pad": 1.0}
        axes.text(
            corner[0] + 0.1, corner[1] + size[1], f"node {node}", color="#555555", va="center", zorder=3, bbox=blank
        )


def _draw_cables(axes: Axes, graph: Graph, places: Places, link: str, colour: str) -> None:
    from matplotlib.collections import LineCollection  # noqa: PLC0415

    cables = [
        (places[start], places[end])
        for start, end in graph.edges
        if graph.edges[start, end]["link"] == link and places[start][1] < places[end][1]
    ]
    axes.add_collection(LineCollection(cables, colors=colour, linewidths=0.9, alpha=0.65, zorder=1))


def _draw_vertices(axes: Axes, places: Places, names: list[str], kind: str, size: float) -> None:
    if not names:
        return
    xs, ys = zip(*(places[name] for name in names), strict=True)
    axes.scatter(xs, ys, c=_COLOURS[kind], zorder=2, linewidths=0, marker=_SHAPES.get(kind, "o"), s=size)
    axes.annotate(
        _plural(kind), (1.0, ys[0]), xycoords=("axes fraction", "data"), va="center", ha="left", color=_COLOURS[kind]
    )
    if kind == "gpu" and size >= _LEGIBLE:
        for name in names:
            axes.text(*places[name], name.split("/")[1], color="white", fontsize=5.5, ha="center", va="center")


def _plural(kind: str) -> str:
    names = {"gpu": "GPUs", "nvswitch": "NVSwitch", "pcie switch": "PCIe", "nic": "adapters"}
    return names.get(kind, {"leaf": "leaves", "spine": "spines"}.get(kind, kind))


def _legend(axes: Axes, graph: Graph, cluster: Cluster) -> None:
    from matplotlib.lines import Line2D  # noqa: PLC0415

    handles = []
    for link, (colour, title) in _LINKS.items():
        found = next((edge for *_, edge in graph.edges(data=True) if edge["link"] == link), None)
        if found is not None:
            label = f"{title}: {format_bandwidth(found['bandwidth'])}, {format_time(found['latency'])}"
            handles.append(Line2D([], [], color=colour, linewidth=2.0, label=label))
    leaf = "one set of rail switches" if cluster.rail_optimized else "one leaf"
    spine = "cables to neighbours on a torus" if cluster.torus else f"{cluster.oversubscription:g}:1 to the spines"
    axes.figure.legend(
        handles=handles,
        loc="outside lower left",
        ncols=len(handles) if len(graph) > _MANY else 2,
        frameon=False,
        title=f"Per direction. {cluster.nodes_per_leaf} nodes under {leaf}, {spine}.",
        alignment="left",
    )
