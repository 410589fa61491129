"""``shardsim topology``: facts, placement, drawing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from shardsim.cli.main import main


def _run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["topology", *arguments])


def test_a_cluster_alone_shows_its_facts() -> None:
    result = _run("show", "dgx-a100")
    assert result.exit_code == 0, result.stderr
    assert "300 GB/s" in result.stdout
    assert "Who talks to whom" not in result.stdout


def test_the_worked_example_says_who_talks_to_whom() -> None:
    result = _run("show", "nvlink300-ib100", "--gpus", "32", "--tp", "4", "--pp", "2")
    assert result.exit_code == 0, result.stderr
    assert "TP4 x PP2 x DP4 on 32 GPUs in 4 nodes" in result.stdout
    assert "Who talks to whom" in result.stdout


def test_gpus_follow_from_the_degrees() -> None:
    found = json.loads(_run("show", "dgx-a100", "--tp", "4", "--cp", "2", "--pp", "2", "--json").stdout)
    assert found["layout"] == {"tp": 4, "pp": 2, "dp": 1, "cp": 2, "ep": 1, "etp": 1}


def test_experts_lie_within_the_replicas() -> None:
    found = json.loads(_run("show", "dgx-a100", "--gpus", "32", "--tp", "4", "--ep", "2", "--json").stdout)
    assert {item["axis"]: item["ranks"] for item in found["conversations"]} == {
        "tp": 4, "dp": 8, "ep": 2, "edp": 16,
    }  # fmt: skip


def test_experts_that_are_split_have_groups_of_their_own() -> None:
    arguments = ("show", "dgx-h100", "--gpus", "64", "--tp", "4", "--cp", "4", "--cp-inner", "2")
    found = json.loads(_run(*arguments, "--ep", "8", "--etp", "2", "--json").stdout)
    ranks = {item["axis"]: item["ranks"] for item in found["conversations"]}
    assert ranks == {"tp": 4, "cp_inner": 2, "cp_outer": 2, "dp": 4, "etp": 2, "ep": 8, "edp": 4}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--gpus", "4", "--tp", "4", "--ep", "3"), "EP x ETP = 3 does not divide the 4 ranks of a pipeline stage"),
        (("--cp", "4", "--cp-inner", "3"), "3 inner ranks do not divide CP 4"),
    ],
)
def test_groups_that_do_not_divide_are_refused(arguments: tuple[str, ...], expected: str) -> None:
    result = _run("show", "dgx-h100", *arguments)
    assert result.exit_code == 2
    assert expected in result.stderr


def test_without_a_number_of_gpus_there_are_the_fewest_that_hold_the_degrees() -> None:
    found = json.loads(_run("show", "dgx-h100", "--tp", "4", "--ep", "6", "--pp", "2", "--json").stdout)
    assert found["layout"]["dp"] == 3


def test_the_rank_order_decides_who_shares_a_node() -> None:
    arguments = ("show", "dgx-a100", "--gpus", "32", "--tp", "4", "--json")
    usual = json.loads(_run(*arguments).stdout)["conversations"]
    odd = json.loads(_run(*arguments, "--order", "dp-cp-pp-tp").stdout)["conversations"]
    assert next(item for item in usual if item["axis"] == "tp")["nodes"] == 1
    assert next(item for item in odd if item["axis"] == "tp")["nodes"] == 4


@pytest.mark.parametrize("suffix", ["png", "svg", "PNG"])
def test_a_fabric_is_drawn_into_a_file(tmp_path: Path, suffix: str) -> None:
    out = tmp_path / f"fabric.{suffix}"
    result = _run("draw", "dgx-a100", "--nodes", "1", "--out", str(out))
    assert result.exit_code == 0, result.stderr
    assert result.stdout == ""
    assert out.stat().st_size > 5000
    assert list(tmp_path.iterdir()) == [out]


def test_a_drawing_that_is_refused_leaves_no_file(tmp_path: Path) -> None:
    result = _run("draw", "dgx-a100", "--nodes", "1000", "--out", str(tmp_path / "x.png"))
    assert result.exit_code == 2
    assert result.stderr == "error: --nodes: 1000 nodes (8,000 GPUs) are too many to draw (at most 64)\n"
    assert list(tmp_path.iterdir()) == []
