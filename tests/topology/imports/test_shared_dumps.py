"""Every topology dump that the project keeps beside itself is the node that its index describes, field by field.

The dumps are not part of the project: without them these tests are skipped, and the fixtures here stand alone.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from shardsim.errors import InputError
from shardsim.report.node import cluster_yaml
from shardsim.schema.hardware import load_cluster
from shardsim.schema.products import load_products
from shardsim.topology.fabric import build_fabric
from shardsim.topology.imports.cluster import Asked, draft_cluster
from shardsim.topology.imports.matrix import read_matrix
from shardsim.topology.imports.node import DISTANCES, MATRIX, XML, Node
from shardsim.topology.imports.read import read_file
from shardsim.topology.imports.xml import pcie_bandwidth

FOLDER = Path(__file__).resolve().parents[4] / "shared" / "topo"
INDEX = FOLDER / "index.csv"
ROWS = list(csv.DictReader(INDEX.read_text(encoding="utf-8").splitlines())) if INDEX.is_file() else []
pytestmark = pytest.mark.skipif(not ROWS, reason="the topology dumps are not there: ../shared/topo")
LOOK_ALIKES = [row for row in ROWS if "look-alike" in row["kind"]]
DUMPS = [row for row in ROWS if row not in LOOK_ALIKES]
Check = Callable[[Node, str], bool]


def named(row: dict[str, str]) -> str:
    return row["file"]


def load(row: dict[str, str]) -> tuple[Node, str]:
    return read_file(FOLDER / row["file"]), (FOLDER / row["file"]).read_text(encoding="utf-8")


def near(node: Node, gpu: int) -> set[int]:
    return set(node.nearest(gpu)[1])


def sockets(node: Node) -> int:
    return len({gpu.numa if gpu.numa is not None else gpu.cpus for gpu in node.gpus})


def classes(node: Node, gpu: int, nics: range | list[int]) -> set[str | None]:
    return {node.distance(gpu, len(node.gpus) + nic) for nic in nics}


def gpu_cells(node: Node) -> set[str | None]:
    return {cell for gpu in range(len(node.gpus)) for cell in classes(node, gpu, range(len(node.nics)))}


def cube(node: Node) -> bool:
    """Six links a GPU, not every pair joined, all reached: a hybrid cube mesh."""
    return (
        not node.switches and {node.links_of(gpu) for gpu in range(8)} == {6} and len(node.nvlink_groups) == 1
    ) or any("missing" in note for note in node.notes)


def linked(node: Node, a: int, b: int) -> bool:
    return node.links(a, b) > 0


PAIRED = {0: 4, 1: 1, 2: 0, 3: 3, 4: 6, 5: 7, 6: 5, 7: 2}
PHRASES: dict[str, Check] = {
    # system
    r"NVSwitch|DGX A100 class|H100 SXM|DGX/HGX|GB\d00": lambda n, _: len(n.switches) == 1,
    r"cube[ -]mesh": lambda n, _: cube(n),
    r"two sockets": lambda n, _: sockets(n) == 2,
    r"four NUMA nodes|EPYC NPS4": lambda n, _: sockets(n) == 4,
    r"POWER8": lambda n, _: len(n.gpus[0].cpus or ()) == 10,
    r"4x P100 NVLink pairs": lambda n, _: n.nvlink_groups == ((0, 1), (2, 3)),
    r"2x A100 PCIe NVLink pair": lambda n, _: dict(n.nvlinks) == {(0, 1): 12},
    r"PCIe host bridge": lambda n, _: n.distance(0, 1) == "PHB",
    r"behind PCIe switches on one socket": lambda n, _: {n.distance(0, b) for b in range(1, 8)} == {"PIX", "PXB"},
    r"over two sockets": lambda n, _: n.distance(0, 1) == "PHB" and n.distance(0, 2) == "SYS",
    r"one NIC per GPU|GPUi PIX NICi": lambda n, _: all(n.nearest(gpu) == ("PIX", (gpu,)) for gpu in range(8)),
    r"one EDR NIC on socket 0": lambda n, _: classes(n, 0, [0]) == {"NODE"} and classes(n, 4, [0]) == {"SYS"},
    r"16 RDMA \+ 2 front-end": lambda n, _: len(n.nics_beside_gpus) == 16,
    r"4 of them not for compute": lambda n, _: len(n.nics_beside_gpus) == 8,
    r"hyper-threading CPU ranges|CPU ranges with comma": lambda n, _: len(n.gpus[0].cpus or ()) == 2,
    r"NIC order unrelated": lambda n, _: [near(n, gpu) for gpu in range(8)] != [{gpu} for gpu in range(8)],
    r"on GPU6's bridge": lambda n, _: n.nearest(6) == ("PHB", (0, 1)) and n.nearest(7)[0] == "NODE",
    r"6 of 8 H100 visible": lambda n, _: len(n.gpus) == 6 and n.gpus[0].switch_links == 18,
    r"mlx4_0 \+ 8 mlx5|mixed mlx4": lambda n, _: [nic.name[:4] for nic in n.nics] == ["mlx4"] + ["mlx5"] * 8,
    # The index says 200000 Mb/s; the file itself says 180000, which is what a reader can know.
    r"two net elements": lambda n, _: (
        len({nic.card for nic in n.nics}) == 8 and {nic.speed for nic in n.nics} == {180_000e6 / 8}
    ),
    r"hand-written|flattened PCIe tree": lambda n, _: not n.nvlink_known,
    r"Azure virtual PCIe tree|\(virtual PCIe tree\)": lambda n, _: n.nearest(0) == ("PIX", (0, 1)),
    r"full NCCL dump": lambda n, _: n.nvlink_known and {gpu.switch_links for gpu in n.gpus} == {18},
    r"Ethernet only": lambda n, _: n.nics[0].name == "eth0" and n.nics[0].speed == 12.5e9,
    r"GPUs not listed": lambda n, _: not n.gpus and any("no GPU is listed" in note for note in n.notes),
    r"H200 virtual machine|NVLink target unknown": lambda n, _: n.gpus[0].switch_links == 18,
    r"numaid -1": lambda n, _: n.gpus[0].numa is None,
    r"some link_speed 5\.0": lambda n, text: (
        "5.0 GT/s" in text and {gpu.pcie for gpu in n.gpus} == {pcie_bandwidth(32.0, 16)}
    ),
    # layout
    r"raw tabs": lambda _, text: "\t" in text,
    r"tabs expanded|^spaces": lambda _, text: "GPU0\t" not in text,
    r"NIC Legend": lambda n, _: all(nic.device for nic in n.nics),
    r"ibp\* names": lambda n, _: n.nics[0].device == "ibp33s0",
    r"only CPU Affinity|no NUMA column": lambda n, _: all(gpu.cpus and gpu.numa is None for gpu in n.gpus),
    r"; no NIC;": lambda n, _: n.nics == (),
    r"mlx5_0,2,1,3|not in numeric order": lambda n, _: [nic.name[-1] for nic in n.nics] == list("0213"),
    r"NIC order 2,0,3,1": lambda n, _: [nic.name[-1] for nic in n.nics] == list("2031"),
    r"NIC0 column": lambda n, _: n.nics[0].name == "NIC0",
    r"\bSOC\b": lambda n, text: "SOC" in text and "SYS" in n.distances.values(),
    r"system version 1": lambda n, text: n.kind == XML and '<system version="1">' in text,
    r"each line behind #|COMMENT PREFIX": lambda _, text: all(line.startswith("#") for line in text.splitlines()),
    r"ANSI": lambda n, text: "\x1b[" in text and n.gpus[0].name == "GPU0",
    r"no legend": lambda _, text: "Legend" not in text,
    # quirks
    r"no NIC is PIX, all PXB|no NIC is PIX": lambda n, _: {n.nearest(gpu)[0] for gpu in range(8)} == {"PXB"},
    r"NUMA Affinity N/A": lambda n, _: {gpu.numa for gpu in n.gpus} == {None},
    r"asymmetrical NVLink widths": lambda n, _: set(n.nvlinks.values()) == {1, 2},
    r"same CPU affinity": lambda n, _: len({gpu.cpus for gpu in n.gpus}) == 1,
    r"cross-board links": lambda n, _: all(linked(n, a, b) for a, b in ((0, 6), (1, 7), (2, 4), (3, 5))),
    r"half of the GPUs are SYS": lambda n, _: sum(classes(n, gpu, [0]) == {"SYS"} for gpu in range(8)) == 4,
    r"3,1,7,5 order": lambda n, _: [gpu.numa for gpu in n.gpus[::2]] == [(3,), (1,), (7,), (5,)],
    r"26 columns": lambda n, _: len(n.names) == 26,
    r"GPU pair 0-1": lambda n, _: near(n, 0) == near(n, 1) == {5, 6, 7, 8},
    r"pair 2-3": lambda n, _: near(n, 2) == near(n, 3) == {1, 2, 3, 4},
    r"TWO COLUMNS GLUED": lambda n, text: "NIC7NIC8" in text and [c.name for c in n.nics[7:9]] == ["NIC7", "NIC8"],
    r"GLUED CELLS": lambda n, text: "PXBNODE" in text and n.nearest(2) == ("PXB", (8,)),
    r"SYSSYS": lambda n, text: "SYSSYS" in text and classes(n, 4, [7, 8]) == {"SYS"},
    r"nodes 2 and 3 have no NIC": lambda n, _: (
        {cell for gpu in range(4, 8) for cell in classes(n, gpu, range(3))} == {"SYS"}
    ),
    r"indented|indentation": lambda _, text: text.startswith(" " * 8),
    r"compute NICs are PXB": lambda n, _: n.nics_beside_gpus == (0, 3, 4, 5, 6, 9, 10, 11),
    r"two PIX pairs": lambda n, _: n.distance(9, 10) == n.distance(15, 16) == "PIX",
    r"truncated after 2 NIC rows": lambda n, _: n.distance(8, 23) == "SYS" and n.distance(22, 23) is None,
    r"truncated after GPU5": lambda n, _: n.distance(6, 7) is None and n.links(6, 7) == 0,
    r"not a power of two": lambda n, _: len(n.gpus) == 6,
    r"NICs only on socket 0": lambda n, _: n.nearest(0)[0] == "NODE" and n.nearest(5)[0] == "SYS",
    r"NIC on the other socket|EVERY GPU-NIC CELL IS SYS|as 39": lambda n, _: gpu_cells(n) == {"SYS"},
    r"single-CPU ranges": lambda n, _: all(low == high for gpu in n.gpus for low, high in gpu.cpus or ()),
    r"GPU NUMA ID numeric": lambda n, _: [gpu.memory_numa for gpu in n.gpus] == [2, 10, 18, 26],
    r"GPU NUMA ID N/A": lambda n, _: {gpu.memory_numa for gpu in n.gpus} == {None},
    r"comment before the root": lambda _, text: text.startswith("<!--"),
    r"self-closing <pci>": lambda n, text: "<gpu" not in text and "<net" not in text and len(n.names) > 0,
    r"blank (first )?line": lambda _, text: text.startswith("\n"),
    r"no class attribute": lambda n, text: "class=" not in text and len(n.nics) == 32,
    r"32 GT/s PCIe/s": lambda n, _: {nic.pcie for nic in n.nics} == {pcie_bandwidth(32.0, 16)},
    r"host_hash": lambda n, text: "host_hash" in text and n.domain_gpus is None,
    r"virtual PCIe speed": lambda n, _: n.gpus[0].pcie == pcie_bandwidth(16.0, 16),
    r"GPU\d-NIC\d": lambda n, _: all(n.nearest(gpu) == ("PIX", (nic,)) for gpu, nic in PAIRED.items()),
}
"""What words of the index mean for the node; words that say nothing a dump could show (prompts, makers) are left."""


@pytest.mark.parametrize("row", DUMPS, ids=named)
def test_kind_gpus_and_nics_are_those_of_the_index(row: dict[str, str]) -> None:
    node, _ = load(row)
    assert node.kind == (MATRIX if row["kind"].startswith("nvidia-smi") else XML)
    assert len(node.gpus) == int(row["gpus"])
    assert len(node.nics) == int(row["nics"])


@pytest.mark.parametrize("row", DUMPS, ids=named)
@pytest.mark.parametrize("field", ["system", "layout", "quirks"])
def test_what_the_index_says_of_a_dump_is_so(row: dict[str, str], field: str) -> None:
    node, text = load(row)
    wrong = [phrase for phrase, check in PHRASES.items() if re.search(phrase, row[field]) and not check(node, text)]
    assert wrong == []


def test_every_phrase_is_in_the_index() -> None:
    words = "\n".join(row[field] for row in DUMPS for field in ("system", "layout", "quirks"))
    assert [phrase for phrase in PHRASES if not re.search(phrase, words, re.MULTILINE)] == []


@pytest.mark.parametrize("row", LOOK_ALIKES, ids=named)
def test_look_alikes_of_the_index_are_refused_by_name(row: dict[str, str]) -> None:
    with pytest.raises(InputError, match=r"topo -p2p|NCCL's search"):
        read_file(FOLDER / row["file"])


MATRICES = [row for row in DUMPS if row["kind"].startswith("nvidia-smi")]


@pytest.mark.parametrize("row", MATRICES, ids=named)
def test_every_cell_of_every_matrix_is_in_the_node(row: dict[str, str]) -> None:
    """Against the plainest reading there is: split at blanks; lines with words glued are left to the other tests."""
    node, text = load(row)
    numbers = {name: number for number, name in enumerate(node.names)}
    seen = 0
    for line in text.replace("#", " ").splitlines():
        label, *cells = line.split() or [""]
        known = all(re.fullmatch(r"NV\d+|X|SOC|" + "|".join(DISTANCES), cell) for cell in cells[: len(numbers)])
        if label not in numbers or not known or len(cells) < len(numbers):
            continue
        for other, cell in enumerate(cells[: len(numbers)]):
            a = numbers[label]
            links = node.links(a, other) if max(a, other) < len(node.gpus) and a != other else 0
            told = "X" if a == other else f"NV{links}" if links else node.distance(a, other)
            assert told == cell.replace("SOC", "SYS"), (label, node.names[other])
            seen += 1
    glued = row["file"].startswith(("19", "25"))
    assert seen == len(numbers) ** 2 or glued or "truncated" in row["quirks"]


@pytest.mark.parametrize("row", MATRICES, ids=named)
def test_a_dump_says_the_same_behind_a_comment_sign(row: dict[str, str]) -> None:
    node, text = load(row)
    commented = "".join(f"// {line}\n" for line in text.splitlines())
    assert read_matrix(commented, row["file"]) == node


STAND_INS = {
    "h200": Asked(device="h200-sxm", like="hgx-h200"),
    "gb200": Asked(device="gb200", like="gb200-nvl72", domain=72),
    "h100|hgx|nemo-aws": Asked(device="h100-sxm-80gb", like="dgx-h100"),
    "a100|aws|azure": Asked(device="a100-sxm-80gb", like="dgx-a100"),
    "v100|power8": Asked(device="v100-sxm2-32gb", like="dgx-2h"),
    "pcie|phb": Asked(device="l40s", like="dgx-a100"),
}
"""For each dump a GPU of the catalog, its own or one as near as the catalog has, and what no dump says."""


@pytest.mark.parametrize("row", DUMPS, ids=named)
def test_every_dump_is_a_cluster_of_such_nodes_once_the_rest_is_given(row: dict[str, str], tmp_path: Path) -> None:
    node, _ = load(row)
    stand_in = next(asked for words, asked in STAND_INS.items() if re.search(words, row["file"]))
    asked = replace(stand_in, nodes=4, nic=12.5e9, nics=2, gpus=None if node.gpus else 8)
    path = tmp_path / "ours.yaml"
    path.write_text(cluster_yaml(draft_cluster(node, asked, load_products(), row["file"])), encoding="utf-8")
    cluster = load_cluster(str(path))
    assert cluster.gpus_per_node == (len(node.gpus) or 8)
    assert cluster.max_gpus == 4 * cluster.gpus_per_node
    assert len(build_fabric(cluster, nodes=2)) > 2 * cluster.gpus_per_node
