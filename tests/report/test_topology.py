"""Who talks to whom, for people and for programs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardsim.report.console import to_text
from shardsim.report.topology import CARRIES, cluster_text, placement_text, ranks_text, topology_record
from shardsim.schema.hardware import load_cluster
from shardsim.topology.placement import who_talks_to_whom
from shardsim.values.training import Layout

SEED = Layout(tp=4, pp=2, dp=4)


def _placed(name: str, layout: Layout) -> str:
    cluster = load_cluster(name)
    return to_text(placement_text(cluster, layout, who_talks_to_whom(cluster, layout)))


def test_tp4_pp2_dp4_keeps_tensor_parallelism_inside_the_node() -> None:
    """The worked example: TP over NVLink alone, DP over both, PP over the network alone."""
    lines = _placed("nvlink300-ib100", SEED).splitlines()
    rows = {line.split()[0]: " ".join(line.split()[1:]) for line in lines if line.startswith(("  TP", "  DP", "  PP"))}
    assert rows == {
        "TP": "8 of 4 0-3 NVLink 150",
        "DP": "8 of 4 0, 4 .. 12 NVLink 150, PCIe 31.5, NIC 12.5",
        "PP": "16 of 2 0, 16 PCIe 31.5, NIC 12.5",
    }


def test_every_rank_of_a_small_run_is_on_the_map() -> None:
    lines = [line for line in _placed("nvlink300-ib100", SEED).splitlines() if line.startswith("  node ")]
    assert lines[0] == "  node 0  0-3 stage 0 replica 0; 4-7 stage 0 replica 1"
    assert lines[3] == "  node 3  24-27 stage 1 replica 2; 28-31 stage 1 replica 3"
    assert len(lines) == 4


def test_a_large_run_has_no_map_and_fits_100_columns() -> None:
    shown = _placed("gb200-nvl72", Layout(tp=8, pp=8, dp=16))
    assert "  node 0" not in shown
    assert max(map(len, shown.splitlines())) <= 100


def test_context_parallel_ranks_are_told_apart() -> None:
    assert "4-7 stage 0 replica 0 context 1" in _placed("dgx-a100", Layout(tp=4, pp=1, dp=1, cp=2))


def test_a_single_rank_talks_to_nobody() -> None:
    assert "nobody" in _placed("dgx-a100", Layout(tp=1, pp=1, dp=1))


@pytest.mark.parametrize("name", ["dgx-2h", "gb200-nvl72", "nvlink900-ib100"])
def test_the_facts_of_a_cluster_fit_100_columns(name: str) -> None:
    shown = to_text(cluster_text(load_cluster(name)))
    assert max(map(len, shown.splitlines())) <= 100
    assert "e+" not in shown
    for words in ("GPUs", "NVLink", "PCIe", "adapters", "fabric", "source"):
        assert words in shown


def test_dgx_2h_has_100_gigabytes_a_second_a_node() -> None:
    """arXiv 1909.08053, section 5: eight adapters of 100 Gb/s for 16 GPUs, 6.25 GB/s a GPU."""
    shown = to_text(cluster_text(load_cluster("dgx-2h")))
    assert "8 x InfiniBand EDR, 12.5 GB/s" in shown
    assert "6.25 GB/s a GPU" in shown


def test_the_record_is_complete_and_in_gigabytes_a_second() -> None:
    cluster = load_cluster("dgx-2h")
    found = topology_record(cluster, SEED, who_talks_to_whom(cluster, SEED))
    assert found["links"]["nvlink"]["gb_per_s"] == 150.0
    assert found["nic_gb_per_s_per_gpu"] == 6.25
    assert found["layout"] == {"tp": 4, "pp": 2, "dp": 4, "cp": 1, "ep": 1, "etp": 1}
    assert [item["axis"] for item in found["conversations"]] == ["tp", "dp", "pp"]
    assert found["conversations"][0]["example"] == [0, 1, 2, 3]


def test_without_a_layout_there_are_no_conversations() -> None:
    assert "conversations" not in topology_record(load_cluster("dgx-2h"), None, ())


def test_every_axis_says_what_it_carries() -> None:
    layout = Layout(tp=2, pp=2, dp=4, cp=4, ep=4, etp=2, cp_comm="a2a+p2p", cp_inner=2)
    talking = {item.axis for item in who_talks_to_whom(load_cluster("dgx-h100"), layout)}
    assert talking == {"tp", "cp_inner", "cp_outer", "dp", "pp", "etp", "ep", "edp"}
    assert set(CARRIES) == talking | {"cp"}


@given(st.lists(st.integers(0, 10_000), min_size=1, unique=True).map(sorted))
def test_ranks_are_written_in_short_with_both_ends(ranks: list[int]) -> None:
    shown = ranks_text(ranks)
    assert shown.startswith(str(ranks[0]))
    assert shown.endswith(str(ranks[-1]))
    assert len(shown) < 50
