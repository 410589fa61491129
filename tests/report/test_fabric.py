"""The drawing of a fabric: every part in its place, the same bytes each time, and no global state touched."""

from __future__ import annotations

import re

import pytest

from shardsim.errors import InputError
from shardsim.report.fabric import fabric_drawing
from shardsim.schema.hardware import load_cluster


def test_a_picture_is_a_picture() -> None:
    assert fabric_drawing(load_cluster("dgx-a100"), None, "png").startswith(b"\x89PNG\r\n")
    assert b"<svg" in fabric_drawing(load_cluster("dgx-a100"), None, "svg")


def test_it_names_every_gpu_every_node_and_every_link() -> None:
    drawn = fabric_drawing(load_cluster("dgx-a100"), 2, "svg").decode()
    words = re.findall(r">([^<>]+)</text>", drawn)
    assert {str(rank) for rank in range(16)} <= set(words)
    assert {"node 0", "node 1", "GPUs", "NVSwitch", "PCIe", "adapters", "leaves", "spines"} <= set(words)
    assert "NVLink: 300 GB/s, 1.665 us" in words
    assert any("adapter to leaf: 25 GB/s" in word for word in words)


@pytest.mark.parametrize("name", ["dgx-2h", "gb200-nvl72", "hgx-h800"])
def test_clusters_of_every_shape_can_be_drawn(name: str) -> None:
    assert b"<svg" in fabric_drawing(load_cluster(name), None, "svg")


@pytest.mark.parametrize("file_format", ["png", "svg"])
def test_the_same_cluster_gives_the_same_bytes(file_format: str) -> None:
    cluster = load_cluster("dgx-a100")
    assert fabric_drawing(cluster, 1, file_format) == fabric_drawing(cluster, 1, file_format)


def test_more_than_can_be_told_apart_is_refused() -> None:
    with pytest.raises(InputError, match=r"too many to draw \(at most 64\)"):
        fabric_drawing(load_cluster("dgx-a100"), 65, "svg")


def test_drawing_leaves_matplotlibs_state_alone() -> None:
    import matplotlib as mpl

    before = dict(mpl.rcParams)
    fabric_drawing(load_cluster("dgx-a100"), 1, "svg")
    assert dict(mpl.rcParams) == before
