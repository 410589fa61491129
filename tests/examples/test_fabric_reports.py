"""What the reports on SAKURAONE, on tensor parallelism across nodes and on oversubscription say is in their tables."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2] / "reports"
NAMES = ("sakuraone", "tp-across-nodes", "oversubscription")


def read(report: str, name: str) -> list[dict[str, str]]:
    with (ROOT / report / name).open(newline="") as stream:
        return list(csv.DictReader(stream))


@pytest.mark.parametrize("name", NAMES)
def test_the_page_shows_the_tables_of_its_folder(name: str) -> None:
    quoted = re.findall(r"<!-- (\S+) -->\n```\n(.*?)```", (ROOT / name / "README.md").read_text(), re.DOTALL)
    assert sorted(each for each, _ in quoted) == sorted(path.name for path in (ROOT / name).glob("*.txt"))
    for each, text in quoted:
        assert text == (ROOT / name / each).read_text(), each


def test_eos_takes_for_a_step_of_gpt_3_what_its_logs_say() -> None:
    """github mlcommons/training_results_v4.1, NVIDIA/results/eos_n32_ngc24.09_nemo and eos_n64: seconds a step.

    Predicted 4 to 5 % too slow: a submission tuned by hand, priced by the profile of NVIDIA's public recipes.
    """
    found = {
        int(row["gpus"]): row
        for row in read("sakuraone", "jobs.csv")
        if (row["cluster"], row["pp"]) == ("dgx-h100", "8")
    }
    for gpus, seconds in {256: 18.37, 512: 9.49}.items():
        assert float(found[gpus]["iteration_s"]) == pytest.approx(seconds, rel=0.055)


def test_sakuraones_fabric_costs_nothing_and_its_layout_does() -> None:
    found = {
        (row["cluster"], row["gpus"], row["pp"]): float(row["iteration_s"]) for row in read("sakuraone", "jobs.csv")
    }
    for (cluster, gpus, pp), seconds in found.items():
        if cluster == "sakuraone":
            assert seconds == pytest.approx(found["dgx-h100", gpus, pp], rel=1e-3)
    slower = [found["sakuraone", gpus, "16"] / found["sakuraone", gpus, "8"] for gpus in ("256", "512", "768")]
    assert slower == sorted(slower)
    assert 1.03 < slower[0] < slower[1] < 1.08
    assert 1.15 < slower[2] < 1.22


def test_only_a_tenth_of_an_adapter_would_explain_what_was_published() -> None:
    found = {row["what"]: float(row["iteration_s"]) for row in read("sakuraone", "worse.csv")}
    first = found["as it is"]
    assert found["12.5 GB/s a flow"] < 1.05 * first
    assert found["5 GB/s a flow"] > 1.15 * first


def test_leaving_the_node_is_the_smaller_part_of_what_tp_16_costs() -> None:
    found = {(row["what"], row["tp"]): row for row in read("tp-across-nodes", "layouts.csv")}
    seconds = {key: float(row["iteration_s"]) for key, row in found.items()}
    tp = {key: float(row["tp_s"]) for key, row in found.items()}
    assert 1 < seconds["as it is", "16"] / seconds["as it is", "8"] < 1.1
    assert seconds["as it is", "64"] > 2 * seconds["as it is", "8"]
    more = tp["as it is", "16"] - tp["as it is", "8"]
    assert tp["as it is", "16"] - tp["one domain", "16"] < more / 3
    assert seconds["racks of 72", "16"] > 1.2 * seconds["racks of 64", "16"]
    assert all(row["fits"] == "True" for row in found.values())


def test_a_group_that_does_not_fill_its_nodes_slows_all_and_one_rank_alone_most() -> None:
    rows = {
        row["what"]: float(row["iteration_s"]) for row in read("tp-across-nodes", "layouts.csv") if row["tp"] == "8"
    }
    first = rows["as it is"]
    assert 1.08 < rows["every group 4 + 4"] / first < 1.16
    assert first < rows["two groups of stage 0 4 + 4"] < rows["two groups of stage 8 4 + 4"] < rows["every group 4 + 4"]
    assert rows["two groups of stage 8 7 + 1"] > 1.3 * first


def test_rings_between_neighbours_bear_1_to_4_and_all_to_alls_over_leaves_do_not() -> None:
    def times(kind: str, leaf: int, ranks: int, oversubscription: int) -> float:
        rows = read("oversubscription", f"{kind}-1-GiB.csv")
        found = {(row["cluster"], int(row["ranks"])): float(row["time_s"]) for row in rows}
        return found[f"leaf{leaf}-{oversubscription}", ranks] / found[f"leaf{leaf}-1", ranks]

    assert times("all-reduce", 4, 32, 4) == pytest.approx(1)
    assert times("all-reduce", 4, 32, 7) == pytest.approx(7 / 4, rel=0.03)
    assert times("all-reduce", 1, 32, 7) == pytest.approx(7, rel=0.04)
    assert times("all-to-all", 4, 32, 7) == pytest.approx(1)  # under one leaf
    assert times("all-to-all", 4, 64, 7) == pytest.approx(7 * 4 / 7, rel=0.02)
    assert times("all-to-all", 4, 128, 7) == pytest.approx(7 * 12 / 15, rel=0.02)


def test_what_fewer_up_links_cost_depends_on_where_groups_lie() -> None:
    rows = read("oversubscription", "iterations.csv")
    found = {(row["run"], row["fabric"], int(row["oversubscription"])): float(row["iteration_s"]) for row in rows}

    def slower(run: str, fabric: str, oversubscription: int) -> float:
        return found[run, fabric, oversubscription] / found[run, fabric, 1]

    rails, plain = "rails, 32 nodes", "plain, 4 nodes"
    near, far, moe = "dense, replicas side by side", "dense, stages side by side", "MoE, 8 nodes of experts"
    assert slower(near, plain, 4) < 1.01
    assert 1.05 < slower(near, plain, 7) < 1.12
    assert 1.05 < slower(far, plain, 2) < 1.5 < slower(far, plain, 7)
    assert 1.3 < slower(moe, plain, 4) < 1.6
    assert slower(moe, plain, 7) > 2
    assert all(slower(run, rails, 7) < 1.08 for run in (near, far, moe))
    for (run, fabric, times), seconds in found.items():
        if times > 1:
            assert seconds >= found[run, fabric, times - 1] * (1 - 1e-3)
