"""Files of any kind: read, or said what they are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shardsim.errors import InputError
from shardsim.topology.imports.graph import node_graph
from shardsim.topology.imports.node import MATRIX, XML
from shardsim.topology.imports.read import MOST_BYTES, read_file, read_text

Text = Callable[[str], str]

P2P = "\tGPU0\tGPU1\n GPU0\tX\tNS\n GPU1\tNS\tX\n\nLegend:\n\n  X    = Self\n  OK   = Status Ok\n"
LOOK_ALIKES = {
    "a peer-to-peer status matrix": P2P,
    "a report of p2pBandwidthLatencyTest": "P2P Connectivity Matrix\n     D\\D     0     1\n     0       1     1\n",
    "a report on AMD GPUs": "===== Link Type between two GPUs =====\n       GPU0      GPU1\nGPU0   0         XGMI\n",
    "a report on Intel GPUs": "         GPU 0/0|GPU 1/0|CPU Affinity\nGPU 0/0 |S      |XL16   |0-23\n",
    "a report on Ascend NPUs": "       NPU0   NPU1   CPU Affinity\nNPU0   X      HCCS   0-23\nNPU1   HCCS   X\n",
    "a list of GPUs": "GPU 0: Hypothetical (UUID: GPU-0)\nGPU 1: Hypothetical (UUID: GPU-1)\n",
    "a report on NVLinks": "\t Link 0: 26.562 GB/s\n\t Link 1: 26.562 GB/s\n",
    "the status table of nvidia-smi": "| NVIDIA-SMI 550.1   Driver Version: 550.1   CUDA Version: 12.4 |\n",
    "a log of nccl-tests": "# nThread 1 nGpus 8\n#       size         count      type   redop\n",
    "a log of NCCL": "quartz:1:1 [0] NCCL INFO Channel 00/24 : 0 1 2 3\n",
    "the text of hwloc": "Machine (2015GB total)\n  Package L#0\n    NUMANode L#0 (P#0 1007GB)\n",
    "a list of PCI devices": "0000:18:00.0 3D controller: NVIDIA Corporation Device 2330 (rev a1)\n",
    "a report of numactl": "available: 2 nodes (0-1)\nnode distances:\nnode   0   1\n",
    "a report on InfiniBand": "hca_id: mlx5_0\n\ttransport: InfiniBand (0)\n",
    "a cluster file of shardsim": "based_on: dgx-h100\ntitle: ours\n",
    "JSON": '{"gpus": 8}',
}


@pytest.mark.parametrize("what", LOOK_ALIKES)
def test_look_alikes_are_refused_by_name(what: str) -> None:
    with pytest.raises(InputError, match=f"is {what}"):
        read_text(LOOK_ALIKES[what], "x.txt")


def test_a_log_of_nccl_tests_is_sent_to_the_command_that_reads_it() -> None:
    with pytest.raises(InputError, match="shardsim calibrate nccl reads it"):
        read_text(LOOK_ALIKES["a log of nccl-tests"], "x.txt")


def test_the_kind_is_told_from_the_content(fixture_text: Text) -> None:
    assert read_text(fixture_text("granite-4gpu-dump.xml"), "x").kind == XML
    assert read_text(fixture_text("quartz-8gpu.txt"), "x").kind == MATRIX


def test_a_table_within_a_web_page_or_a_report_is_found(fixture_text: Text) -> None:
    table = fixture_text("quartz-8gpu.txt")
    plain = read_text(table, "x")
    assert read_text(f"<html><pre>\n{table}</pre></html>", "x") == plain
    others = "\n".join(
        LOOK_ALIKES[what] for what in ("a list of GPUs", "a log of NCCL", "the status table of nvidia-smi")
    )
    assert read_text(f"{others}\nGPU topology:\n{table}", "x") == plain


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_files_of_any_usual_encoding_are_read(tmp_path: Path, fixture_text: Text, encoding: str) -> None:
    path = tmp_path / "dump"
    path.write_text(fixture_text("quartz-8gpu.txt"), encoding=encoding)
    assert len(read_file(path).gpus) == 8


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file or directory"):
        read_file(tmp_path / "nothing.txt")
    with pytest.raises(InputError, match="is a directory"):
        read_file(tmp_path)
    (tmp_path / "empty").write_bytes(b" \n")
    with pytest.raises(InputError, match="is empty"):
        read_file(tmp_path / "empty")
    (tmp_path / "binary").write_bytes(bytes(range(256)) * 4)
    with pytest.raises(InputError, match="is not text"):
        read_file(tmp_path / "binary")
    (tmp_path / "large").write_bytes(b"x" * (MOST_BYTES + 1))
    with pytest.raises(InputError, match="is larger than 2 MB"):
        read_file(tmp_path / "large")


@given(st.binary(max_size=400))
@example(b"\xff\xfe\x00")
@example(b"\x00" * 100)
@example(b"<system>")
@example(b"GPU0 GPU1\nGPU0 X")
@settings(deadline=None)
def test_random_bytes_are_read_or_refused(tmp_path_factory: pytest.TempPathFactory, raw: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "random"
    path.write_bytes(raw)
    try:
        node = read_file(path)
    except InputError:
        return
    assert node.names


TABLE_WORDS = (
    "GPU0",
    "GPU1",
    "NIC0",
    "mlx5_0",
    "X",
    "NV4",
    "SYS",
    "PIX",
    "N/A",
    "\t",
    " ",
    "\n",
    "CPU Affinity",
    "0-3",
)
TREE_WORDS = ("<system>", "</system>", "<cpu>", "<pci ", 'class="0x030200"', "/>", "Legend:", "#", "OK")
words = st.sampled_from(TABLE_WORDS + TREE_WORDS)


@given(st.lists(words, max_size=60))
@settings(deadline=None)
def test_any_order_of_a_dumps_own_words_is_read_or_refused(parts: list[str]) -> None:
    try:
        node = read_text("".join(parts), "x")
    except InputError:
        return
    assert len(node_graph(node)) >= len(node.names)
