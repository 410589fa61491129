"""`nvidia-smi topo -m` as people paste it."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardsim.errors import InputError
from shardsim.topology.imports.matrix import read_matrix
from shardsim.topology.imports.node import DISTANCES, MATRIX, Node

Text = Callable[[str], str]
CELLS = ("NV1", "NV2", "NV4", "NV12", "NV18", *DISTANCES)


def read(text: str) -> Node:
    return read_matrix(text, "dump.txt")


@pytest.fixture(scope="module")
def quartz(fixture_text: Text) -> str:
    return fixture_text("quartz-8gpu.txt")


@pytest.fixture(scope="module")
def basalt(fixture_text: Text) -> str:
    return fixture_text("basalt-4gpu-old.txt")


def test_a_new_table_gives_gpus_adapters_switch_and_affinities(quartz: str) -> None:
    node = read(quartz)
    assert node.kind == MATRIX
    assert [gpu.name for gpu in node.gpus] == [f"GPU{number}" for number in range(8)]
    assert [gpu.numa for gpu in node.gpus] == [(0,)] * 4 + [(1,)] * 4
    assert node.gpus[7].cpus == ((48, 95), (144, 191))
    assert node.switches == ((0, 1, 2, 3, 4, 5, 6, 7),)
    assert {gpu.switch_links for gpu in node.gpus} == {18}
    assert node.nvlinks == {}
    assert node.nics[8].device == "mlx5_bond_0"
    assert [node.nearest(gpu) for gpu in range(8)] == [("PXB", (near,)) for near in (3, 0, 1, 2, 7, 6, 5, 4)]
    assert node.nics_beside_gpus == (0, 1, 2, 3, 4, 5, 6, 7)
    assert node.notes == ()


def test_an_old_table_has_soc_for_sys_and_device_names_for_columns(basalt: str) -> None:
    node = read(basalt)
    assert [nic.name for nic in node.nics] == ["mlx5_1", "mlx5_0"]
    assert dict(node.nvlinks) == {(0, 1): 2, (0, 2): 1, (1, 3): 1, (2, 3): 2}
    assert [node.links_of(gpu) for gpu in range(4)] == [3, 3, 3, 3]
    assert node.switches == ()
    assert node.distance(0, 3) == "SYS"
    assert node.distance(0, 1) is None, "NVLink hides the PCIe distance"
    assert node.distance(2, 5) == "PHB"
    assert node.gpus[3].cpus == ((10, 19),)
    assert node.gpus[3].numa is None


def test_a_commented_table_that_is_cut_off_gives_what_its_rows_tell(fixture_text: Text) -> None:
    node = read(fixture_text("flint-4gpu-cut.txt"))
    assert (len(node.gpus), len(node.nics)) == (4, 1)
    assert dict(node.nvlinks) == {(0, 1): 4, (2, 3): 4}
    assert node.distance(3, 4) is None
    assert node.distance(2, 4) == "SYS"
    assert node.gpus[3].cpus is None
    assert node.notes == (
        "the rows of GPU3, NIC0 are missing; their cells were taken from the columns",
        "1 of 10 pairs of devices are not in the file",
    )


def test_a_row_that_is_cut_in_the_middle_is_left_out(quartz: str) -> None:
    rows = quartz.splitlines()[:6]
    node = read("\n".join([*rows[:-1], rows[-1][:30]]))
    assert node.notes[0] == "the row of GPU4 is cut off and was left out"
    assert node.distance(4, 8 + 7) is None
    assert node.links(0, 4) == 18
    assert node.links(4, 5) == 18, "every told pair is switched"


def test_a_header_without_rows_is_refused(quartz: str) -> None:
    with pytest.raises(InputError, match="the header on line 1 has no rows: is the file cut off"):
        read(quartz.splitlines()[0])


DRESSES: dict[str, Callable[[str], str]] = {
    "blanks for tabs": lambda text: text.expandtabs(8),
    "one blank for any space": lambda text: re.sub(r"[ \t]+", " ", text),
    "comment signs": lambda text: "".join(f"#{line}\n" for line in text.splitlines()),
    "slashes": lambda text: "".join(f"// {line}\n" for line in text.splitlines()),
    "a star and indentation": lambda text: "".join(f"   * {line}\n" for line in text.splitlines()),
    "a mail quote": lambda text: "".join(f"> {line}\n" for line in text.splitlines()),
    "a launcher's prefix": lambda text: "".join(f"[1,0]<stdout>:{line}\n" for line in text.splitlines()),
    "a host's prefix": lambda text: "".join(f"quartz7: {line}\n" for line in text.splitlines()),
    "time stamps": lambda text: "".join(f"2024-05-06 07:08:09 {line}\n" for line in text.splitlines()),
    "carriage returns": lambda text: text.replace("\n", "\r\n"),
    "colours": lambda text: text.replace("GPU0\tGPU1", "\x1b[4mGPU0\tGPU1", 1).replace("\n", "\x1b[0m\n", 1),
    "colours without escape": lambda text: text.replace("GPU0\tGPU1", "[4mGPU0\tGPU1", 1).replace("\n", "[0m\n", 1),
    "visible colours": lambda text: text.replace("GPU0\tGPU1", "^[[4mGPU0\tGPU1", 1).replace("\n", "^[[0m\n", 1),
    "Markdown bars": lambda text: "".join(f"| {line.replace(chr(9), ' | ')} |\n" for line in text.splitlines()),
    "a code block": lambda text: f"Here is our node:\n\n```\n$ nvidia-smi topo -m\n{text}```\nThanks!\n",
    "no legend": lambda text: text.split("\nLegend:")[0],
    "trimmed rows": lambda text: "".join(f"{line.rstrip()}\n" for line in text.splitlines()),
    "colons behind labels": lambda text: re.sub(r"(?m)^(GPU\d|NIC\d|mlx5_\d)(\s)", r"\1:\2", text),
    "the table twice": lambda text: text + text,
    "a status matrix after it": lambda text: text + "\tGPU0\tGPU1\n GPU0\tX\tOK\n GPU1\tOK\tX\n",
    "no-break spaces": lambda text: text.replace("\t", "\u00a0\u00a0"),
    "a byte order mark": lambda text: "\ufeff" + text,
    "two header names glued": lambda text: text.replace("NIC7\tNIC8", "NIC7NIC8", 1),
    "label and cell glued": lambda text: text.replace("NIC9\tNODE", "NIC9NODE"),
    "cell and affinity glued": lambda text: re.sub(r"(NODE|SYS)\t(\d+-)", r"\1\2", text),
    "every second pair of cells glued": lambda text: re.sub(r"(NV18|NODE|SYS|PXB)\t(NV18|NODE|SYS|PXB)", r"\1\2", text),
    "the cell of the diagonal glued": lambda text: text.replace("\t X \t", "\t X"),
}


@pytest.mark.parametrize("dress", DRESSES)
@pytest.mark.parametrize("name", ["quartz-8gpu.txt", "basalt-4gpu-old.txt"])
def test_whatever_a_table_went_through_it_says_the_same(fixture_text: Text, name: str, dress: str) -> None:
    plain = read(fixture_text(name))
    dressed = read(DRESSES[dress](fixture_text(name)))
    without_names = lambda node: (node.gpus, node.distances, node.nvlinks, node.switches, node.notes)  # noqa: E731
    assert without_names(dressed) == without_names(plain)
    assert [nic.name for nic in dressed.nics] == [nic.name for nic in plain.nics]


@pytest.mark.parametrize("columns", [60, 80, 100, 132])
def test_a_table_that_a_terminal_wrapped_between_words_is_joined(quartz: str, columns: int) -> None:
    lines: list[str] = []
    for line in quartz.split("\nLegend:", maxsplit=1)[0].expandtabs(8).splitlines():
        rest = line
        while len(rest) > columns:
            cut = rest.rindex(" ", 0, columns)
            lines.append(rest[:cut])
            rest = rest[cut + 1 :]
        lines.append(rest)
    assert read("\n".join(lines)).distances == read(quartz).distances
    assert read("\n".join(lines)).switches == read(quartz).switches


@pytest.mark.parametrize("columns", [40, 64, 72, 80, 90, 100, 120, 132, 160, 190])
def test_a_table_that_a_terminal_wrapped_at_a_column_is_joined(quartz: str, columns: int) -> None:
    lines = quartz.split("\nLegend:", maxsplit=1)[0].expandtabs(8).splitlines()
    wrapped = [line[at : at + columns] for line in lines for at in range(0, max(len(line), 1), columns)]
    node, plain = read("".join(f"{line}\n" for line in wrapped)), read(quartz)
    assert node.distances == plain.distances
    assert node.gpus == plain.gpus


def test_without_a_header_the_rows_name_the_columns(quartz: str) -> None:
    node = read("\n".join(quartz.splitlines()[1:]))
    assert node.distances == read(quartz).distances
    assert node.notes == ("the header is missing: columns were named after the rows",)


def test_without_a_header_and_adapter_rows_a_legend_shows_that_the_gpus_are_complete(quartz: str) -> None:
    lines = quartz.splitlines()
    node = read("\n".join([*lines[1:9], "", "Legend:", "  X = Self"]))
    assert (len(node.gpus), len(node.nics)) == (8, 10)
    assert "10 columns behind the GPUs have no name and were taken for adapters" in node.notes


@pytest.mark.parametrize("rows", [3, 8])
def test_without_a_header_and_an_end_nvlinks_tell_gpus_from_adapters(quartz: str, rows: int) -> None:
    node = read("".join(f"{line}\n" for line in quartz.splitlines()[1 : rows + 1]))
    assert (len(node.gpus), len(node.nics)) == (8, 10)
    assert node.nearest(0) == ("PXB", (3,))


def test_without_a_header_an_end_and_nvlinks_nobody_knows_what_the_columns_are(basalt: str) -> None:
    with pytest.raises(InputError, match="the header is missing, and 2 rows cannot say what 6 columns are"):
        read("\n".join(basalt.splitlines()[2:4]))


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        ("GPU2\tNV18\tNV18\t X ", "GPU2\tNV18\t X ", "the row of GPU2 has 17 cells for 18 columns"),
        ("GPU2\tNV18\tNV18\t X ", "GPU2\tNV18\tNV18\tNV18\t X ", "the row of GPU2 has 18 cells for 18 columns"),
        ("GPU2\tNV18\tNV18\t X \tNV18", "GPU2\tNV18\tNV18\tNV18\t X ", "does not meet itself"),
        ("GPU3\tNV18\tNV18\tNV18\t X ", "GPU2\tNV18\tNV18\tSYS\t X ", "the row of GPU2 does not meet itself"),
    ],
)
def test_rows_that_do_not_fit_are_named(quartz: str, before: str, after: str, found: str) -> None:
    assert before in quartz
    with pytest.raises(InputError, match=re.escape(found)):
        read(quartz.replace(before, after))


def test_every_wrong_row_is_named_at_once(quartz: str) -> None:
    broken = quartz.replace("GPU2\tNV18", "GPU2").replace("GPU5\tNV18", "GPU5")
    with pytest.raises(InputError) as caught:
        read(broken)
    assert [problem.where for problem in caught.value.problems] == ["dump.txt:4", "dump.txt:7"]


def test_tables_of_different_nodes_are_refused(quartz: str, basalt: str) -> None:
    with pytest.raises(InputError, match="holds different tables, on line 1 and on line"):
        read(quartz + basalt)


def test_halves_that_differ_give_the_farther_and_say_so(quartz: str) -> None:
    node = read(quartz.replace("NIC8\tNODE", "NIC8\tSYS"))
    assert node.distance(0, 16) == "SYS"
    assert node.notes == ("the two halves of the matrix differ, the farther was taken: GPU0-NIC8 NODE and SYS",)


@pytest.mark.parametrize(
    ("gpus", "cell", "switched"),
    [
        (2, "NV18", False),
        (4, "NV4", False),
        (4, "NV6", False),
        (4, "NV12", True),
        (4, "NV18", True),
        (6, "NV18", True),
        (8, "NV8", True),
        (16, "NV6", True),
    ],
)
def test_a_mesh_that_needs_more_links_than_any_gpu_has_is_switched(
    table: Callable[..., list[str]], gpus: int, cell: str, switched: bool
) -> None:
    names = [f"GPU{number}" for number in range(gpus)]
    node = read("\n".join(table(names, dict.fromkeys(combinations(range(gpus), 2), cell), {}, ("CPU Affinity",))))
    assert bool(node.switches) is switched
    assert {node.links(a, b) for a, b in combinations(range(gpus), 2)} == {int(cell[2:])}


@pytest.mark.parametrize(
    ("tail", "cpus", "numa", "memory"),
    [
        (("0-3", "0", "", "N/A"), ((0, 3),), (0,), None),
        (("0-3,8-11", "0-1", "2"), ((0, 3), (8, 11)), (0, 1), 2),
        (("0-3, 8-11", "1", "", "N/A"), ((0, 3), (8, 11)), (1,), None),
        (("5", "N/A", "", "N/A"), ((5, 5),), None, None),
        (("N/A", "N/A", "", "N/A"), None, None, None),
        (("0-3", "", "", "N/A"), ((0, 3),), None, None),
        (("3-0", "0", "", "N/A"), None, (0,), None),
        (("0-3", "0-999999", "", "N/A"), ((0, 3),), None, None),
        ((), None, None, None),
    ],
)
def test_affinities_are_read_or_unknown(
    table: Callable[..., list[str]], tail: tuple[str, ...], cpus: Any, numa: Any, memory: int | None
) -> None:
    heads = ("CPU Affinity", "NUMA Affinity", "GPU NUMA ID")
    gpu = read("\n".join(table(["GPU0", "GPU1"], {(0, 1): "SYS"}, {"GPU0": tail}, heads))).gpus[0]
    assert (gpu.cpus, gpu.numa, gpu.memory_numa) == (cpus, numa, memory)


def test_affinities_that_are_no_numbers_are_noted(table: Callable[..., list[str]]) -> None:
    node = read("\n".join(table(["GPU0", "GPU1"], {(0, 1): "SYS"}, {"GPU0": ("see below",)}, ("CPU Affinity",))))
    assert node.notes == ("the affinities of GPU0 could not be read",)


@st.composite
def matrices(draw: st.DrawFn) -> tuple[list[str], dict[tuple[int, int], str], int]:
    gpus = draw(st.integers(2, 5))
    nics = draw(st.integers(0, 4))
    style = draw(st.sampled_from(["NIC{}", "mlx5_{}", "rdmap{}s27"]))
    names = [f"GPU{number}" for number in range(gpus)] + [style.format(number) for number in range(nics)]
    cells = {
        pair: draw(st.sampled_from(CELLS if pair[1] < gpus else DISTANCES))
        for pair in combinations(range(len(names)), 2)
    }
    return names, cells, gpus


@given(matrices(), st.sampled_from(sorted(DRESSES)))
def test_what_is_printed_is_what_is_read(
    table: Callable[..., list[str]], matrix: tuple[list[str], dict[tuple[int, int], str], int], dress: str
) -> None:
    names, cells, gpus = matrix
    lines = table(names, cells, {"GPU0": ("0-3", "0")}, ("CPU Affinity", "NUMA Affinity"))
    text = DRESSES[dress]("".join(f"{line}\n" for line in lines))
    node = read(text)
    assert node.names == tuple(names)
    for pair, cell in cells.items():
        links = node.links(*pair) if pair[1] < gpus else 0
        assert (f"NV{links}" if links else node.distance(*pair)) == cell


def test_a_row_of_glued_cells_is_no_header(table: Callable[..., list[str]]) -> None:
    cells = {(0, 1): "NV18", (0, 2): "NV1", (1, 2): "NV18"}
    lines = table(["GPU0", "GPU1", "GPU2"], cells, {"GPU0": ("0-3", "0")}, ("CPU Affinity", "NUMA Affinity"))
    text = DRESSES["the cell of the diagonal glued"]("".join(f"{line}\n" for line in lines))
    assert "GPU1\tNV18\t XNV18\n" in text
    assert read(text).names == ("GPU0", "GPU1", "GPU2")


noise = st.one_of(
    st.sampled_from(
        [
            "",
            "quartz:4711:4711 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.7<0>",
            "WARNING: 3 of 8 fans",
            "Legend:",
            "GPU0",
            "GPU 0: Hypothetical (UUID: GPU-1)",
            "\tGPU0\tGPU1",
            "NIC0 SYS",
            "  NIC0: mlx5_7",
            "#" * 60,
            "+-----+-----+",
            "X X X",
            "mlx5_0",
            "CPU Affinity",
            "\x1b[2J",
        ]
    ),
    st.text(max_size=60),
)


@given(st.lists(st.tuples(st.integers(0, 40), noise), max_size=6))
@settings(deadline=None)
def test_noise_between_lines_changes_nothing_or_is_refused(quartz: str, lines: list[tuple[int, str]]) -> None:
    noisy = quartz.splitlines()
    for place, line in lines:
        noisy.insert(place, line)
    try:
        node = read("\n".join(noisy))
    except InputError:
        return
    plain = read(quartz)
    assert {nic.name for nic in node.nics} == {nic.name for nic in plain.nics}
    assert (node.switches, node.distances) == (plain.switches, plain.distances)


@given(st.data())
@settings(deadline=None)
def test_a_table_cut_anywhere_never_says_what_was_not_in_it(quartz: str, data: st.DataObject) -> None:
    text = quartz[: data.draw(st.integers(0, len(quartz)))]
    try:
        node = read(text)
    except InputError:
        return
    plain = read(quartz)
    numbers = {name: number for number, name in enumerate(plain.names)}
    for pair, distance in node.distances.items():
        a, b = (numbers[node.names[one]] for one in pair)
        assert plain.distance(a, b) == distance
