"""An imported node for people."""

from __future__ import annotations

import pytest

from shardsim.errors import InputError
from shardsim.report.console import to_text
from shardsim.report.node import node_text, nvlink_words
from shardsim.report.node_drawing import MOST_DEVICES, node_drawing
from shardsim.topology.imports.node import Gpu, Nic, Node
from shardsim.topology.imports.read import read_text


def _matrix(*rows: str) -> Node:
    return read_text("".join(f"{row}\n" for row in rows), "x")


@pytest.mark.parametrize(
    ("node", "words"),
    [
        (_matrix("  GPU0 GPU1", "GPU0 X PIX", "GPU1 PIX X"), "no NVLink"),
        (_matrix("  GPU0 GPU1", "GPU0 X NV4", "GPU1 NV4 X"), "4 NVLinks each, direct"),
        (
            _matrix("  GPU0 GPU1 GPU2", "GPU0 X NV4 SYS", "GPU1 NV4 X SYS", "GPU2 SYS SYS X"),
            "0 to 4 NVLinks each, direct, in groups of 2 + 1",
        ),
        (_matrix("  GPU0 GPU1 GPU2", "GPU0 X NV12 NV12", "GPU1 NV12 X NV12", "GPU2 NV12 NV12 X"), "through NVSwitch"),
        (Node("", (), (Nic("NIC0"),), {}, {}), "NVLinks not listed"),
        (Node("", (Gpu("GPU0"),), (), {}, {}, nvlink_known=False), "NVLinks not listed"),
    ],
)
def test_nvlink_is_put_into_words(node: Node, words: str) -> None:
    assert words in nvlink_words(node)


def test_a_node_fits_into_100_columns_however_many_adapters_it_has() -> None:
    names = [f"NIC{number}" for number in range(40)]
    rows = [f"{a} {' '.join('X' if a == b else 'PIX' for b in ['GPU0', *names])}" for a in ["GPU0", *names]]
    shown = to_text(node_text(_matrix(" ".join(["  GPU0", *names]), *rows), "x"))
    assert "PIX NIC0, NIC1, NIC2, NIC3, NIC4, NIC5 and 34 more" in shown
    assert max(map(len, shown.splitlines())) <= 100


def test_notes_are_shown() -> None:
    assert "the header is missing" in to_text(node_text(_matrix("GPU0 X PIX", "GPU1 PIX X"), "x"))


def test_more_devices_than_can_be_told_apart_are_not_drawn() -> None:
    node = Node("", tuple(Gpu(f"GPU{number}") for number in range(MOST_DEVICES + 1)), (), {}, {})
    with pytest.raises(InputError, match="129 devices are too many to draw"):
        node_drawing(node, "x", "png")
