"""What reports/tp-slicing says, and its comparison with measured slices where these are at hand."""

from __future__ import annotations

import csv
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
REPORT = ROOT / "reports" / "tp-slicing"
MEASURED = ROOT.parent / "shared" / "operators"
NVL72 = "gb200-nvl72"


def priced(micro_batch, *, sp=1):
    """Rows of some size of micro-batch, with or without SP, by cluster, hidden size, tokens and TP."""
    with (REPORT / "slices.csv").open(newline="") as stream:
        found = [{k: v if k == "cluster" else float(v) for k, v in row.items()} for row in csv.DictReader(stream)]
    return {
        (row["cluster"], row["hidden"], row["seq"], row["tp"]): row
        for row in found
        if row["sp"] == sp and row["micro_batch"] == micro_batch
    }


@pytest.fixture(scope="module")
def rows():
    return priced(1)


@pytest.fixture(scope="module")
def summed():
    """Rows with four all-reduces in place of SP's gathers and scatters."""
    return priced(1, sp=0)


def efficiencies(rows, *degrees):
    """Efficiency of the doubling to a TP inside an NVL72, by hidden size, tokens and TP."""
    return {
        key[1:]: rows[*key[:3], key[3] / 2]["layer_s"] / row["layer_s"] / 2
        for key, row in rows.items()
        if key[0] == NVL72 and key[3] in degrees and (*key[:3], key[3] / 2) in rows
    }


def test_collectives_cost_at_least_twice_what_thin_products_lose(rows):
    sliced = [row for row in rows.values() if row["tp"] > 1]
    assert {row["tp"] for row in sliced} >= {2, 4, 8, 16, 32, 64, 72}
    assert all(row["network_s"] > 2 * row["gemm_loss_s"] for row in sliced)
    assert sum(row["network_s"] > 10 * row["gemm_loss_s"] for row in sliced) > len(sliced) / 2


def test_thin_products_hurt_small_models_on_a100(rows):
    small = rows["dgx-a100", 2048, 2048, 8]
    assert 0.60 < 1 - small["gemm_loss_s"] / small["gemm_s"] < 0.73
    assert small["network_s"] / small["gemm_loss_s"] > 3
    large = [row for row in rows.values() if row["tp"] == 8 and row["hidden"] >= 8192]
    assert all(row["gemm_loss_s"] < 0.035 * row["layer_s"] for row in large)


def test_products_are_the_smallest_loss_from_h100_on(rows):
    for row in rows.values():
        if row["cluster"] != "dgx-a100" and row["tp"] > 1:
            assert row["gemm_loss_s"] < row["others_loss_s"] < row["network_s"]


def test_inside_an_nvl72_tp_16_pays_for_the_largest_layer_and_more_pays_nowhere(rows, summed):
    for layout in (rows, summed):
        to_16 = efficiencies(layout, 16, 18)
        assert to_16[16384, 8192, 16] == max(to_16.values())
        assert 0.77 < max(to_16.values()) < 0.9
        assert 0.7 < to_16[12288, 8192, 16] < 0.8  # at the line
        assert max(reached for (hidden, *_), reached in to_16.items() if hidden <= 9216) < 0.75
        beyond = efficiencies(layout, 32, 36, 64, 72)
        assert {key[2] for key in beyond} == {32, 36, 64, 72}
        assert max(beyond.values()) < 0.75


def test_with_all_reduces_summed_in_switches_each_doubling_inside_an_nvl72_is_faster(rows, summed):
    reached = efficiencies(summed, 16, 18, 32, 36, 64, 72)
    assert min(reached.values()) > 0.5
    ratio = {
        key: row["layer_s"] / rows[key]["layer_s"] for key, row in summed.items() if key[0] == NVL72 and key[3] >= 8
    }
    assert max(ratio.values()) < 1.05
    assert all(value < 1 for key, value in ratio.items() if key[3] >= 32)


def test_at_equal_activation_memory_tp_16_is_cheaper_than_recomputing_large_layers_and_tp_32_is_not(rows):
    def kept(tp):
        return {
            key[1:3]: row["efficiency"] / rows[*key[:3], 8]["efficiency"]
            for key, row in priced(tp / 8).items()
            if key[3] == tp
        }

    assert all(share > 0.75 for (hidden, _), share in kept(16).items() if hidden == 16384)
    assert all(share < 0.75 for (hidden, _), share in kept(16).items() if hidden <= 4096)
    assert max(kept(32).values()) < 0.7


def test_across_infiniband_wide_groups_gain_hardly_anything_on_one_of_16(rows):
    narrow, *wide = (rows["dgx-h100", 8192, 2048, tp]["layer_s"] for tp in (16, 32, 64))
    assert min(wide) > 0.85 * narrow


def test_tp_4_keeps_less_of_gb200_than_of_a100(rows):
    kept = {key[1:3]: row["efficiency"] for key, row in rows.items() if key[0] == NVL72 and key[3] == 4}
    assert kept
    assert all(share < rows["dgx-a100", *size, 4]["efficiency"] for size, share in kept.items())


def test_the_page_shows_the_tables_of_its_folder():
    quoted = re.findall(r"<!-- (\S+) -->\n```\n(.*?)```", (REPORT / "README.md").read_text(), re.DOTALL)
    assert [name for name, _ in quoted] == ["slices.txt", "nvl72.txt", "check.txt"]
    for name, text in quoted:
        assert text == (REPORT / name).read_text(), name


@pytest.mark.skipif(not MEASURED.is_dir(), reason="needs the measured slices, which are not in the repository")
def test_measured_slices_are_predicted_as_well_as_a_second_measurement_does():
    command = [sys.executable, str(REPORT / "check.py"), str(MEASURED)]
    made = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert made == (REPORT / "check.txt").read_text()
    rows = re.findall(r"^  (\S.*?) +(\d+) +([\d.]+) +([\d.]+) +([\d.]+) +([-+][\d.]+) (\S+)$", made, re.MULTILINE)
    medians = {(name, unit): float(median) for name, _, median, *_, unit in rows}
    assert medians["all", "%"] < 3.5 and medians["all", "points"] < 3.5  # noqa: PT018  # of time and of rate
    assert medians["all", "%"] < medians["time", "%"]
    assert medians["all", "points"] < medians["rate against TP 1", "points"]
    assert max(medians["a100", "%"], medians["h100", "%"]) < 2
