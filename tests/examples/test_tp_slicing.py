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


def priced(micro_batch):
    """Rows with SP of some size of micro-batch, by cluster, hidden size, tokens and TP."""
    with (REPORT / "slices.csv").open(newline="") as stream:
        found = [{k: v if k == "cluster" else float(v) for k, v in row.items()} for row in csv.DictReader(stream)]
    return {
        (row["cluster"], row["hidden"], row["seq"], row["tp"]): row
        for row in found
        if row["sp"] and row["micro_batch"] == micro_batch
    }


@pytest.fixture(scope="module")
def rows():
    return priced(1)


def efficiencies(rows, cluster, tp):
    """Efficiency of the doubling to a TP, by hidden size and tokens."""
    return {
        key[1:3]: rows[*key[:3], tp / 2]["layer_s"] / row["layer_s"] / 2
        for key, row in rows.items()
        if key[0] == cluster and key[3] == tp and (*key[:3], tp / 2) in rows
    }


def test_collectives_cost_at_least_twice_what_thin_products_lose(rows):
    sliced = [row for row in rows.values() if row["tp"] > 1]
    assert {row["tp"] for row in sliced} >= {2, 4, 8, 16, 32, 64, 72}
    assert all(row["network_s"] > 2 * row["gemm_loss_s"] for row in sliced)
    assert sum(row["network_s"] > 10 * row["gemm_loss_s"] for row in sliced) > len(sliced) / 2


def test_thin_products_hurt_small_models_on_a100(rows):
    small = rows["dgx-a100", 2048, 2048, 8]
    assert 0.60 < 1 - small["gemm_loss_s"] / small["gemm_s"] < 0.73
    assert 3 < small["network_s"] / small["gemm_loss_s"] < 5
    large = [row for row in rows.values() if row["tp"] == 8 and row["hidden"] >= 8192]
    assert all(row["gemm_loss_s"] < 0.03 * row["layer_s"] for row in large)


def test_products_are_the_smallest_loss_from_h100_on(rows):
    for row in rows.values():
        if row["cluster"] != "dgx-a100" and row["tp"] > 1:
            assert row["gemm_loss_s"] < row["others_loss_s"] < row["network_s"]


def test_inside_an_nvl72_a_doubling_pays_to_tp_16_of_large_models_only(rows):
    to_16 = efficiencies(rows, NVL72, 16)
    assert {size for size, reached in to_16.items() if reached >= 0.75} == {(12288, 8192), (16384, 2048), (16384, 8192)}
    assert max(to_16.values()) < 0.9
    wide = [efficiencies(rows, NVL72, tp) for tp in (18, 32, 36, 64, 72)]
    assert all(found and max(found.values()) < 0.75 for found in wide)
    assert min(reached for found in wide for reached in found.values()) > 0.5  # each still makes a layer faster
    cuts = [1 - 0.5 / reached for (hidden, _), reached in efficiencies(rows, NVL72, 32).items() if hidden >= 8192]
    assert 0.1 < min(cuts) < max(cuts) < 0.33
    assert all(1 - 0.5 / reached < 0.2 for reached in efficiencies(rows, NVL72, 64).values())


def test_at_equal_activation_memory_tp_16_is_cheaper_than_recomputing_and_tp_32_is_not(rows):
    def kept(tp):
        return {
            key[1]: row["efficiency"] / rows[*key[:3], 8]["efficiency"]
            for key, row in priced(tp / 8).items()
            if key[3] == tp
        }

    assert min(share for hidden, share in kept(16).items() if hidden >= 8192) > 0.75
    assert max(kept(32).values()) < 0.75


def test_across_infiniband_wide_groups_are_slower_than_one_of_16(rows):
    times = [rows["dgx-h100", 8192, 2048, tp]["layer_s"] for tp in (16, 32, 64)]
    assert times == sorted(times)


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
