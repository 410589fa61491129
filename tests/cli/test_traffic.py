"""``shardsim topology traffic``: tables, JSON and a drawing of what goes over which link."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from shardsim.cli.main import main

RUN = ("--model", "llama-2-7b", "--cluster", "dgx-h100", "--gpus", "64", "--tp", "2", "--pp", "2", "--cp", "2", "--sp",
       "--framework", "megatron-core", "--global-batch", "64", "--micro-batch", "1", "--seq", "4096")  # fmt: skip


def _run(*arguments: str) -> Any:
    return CliRunner().invoke(main, ["topology", "traffic", *arguments])


def test_a_table_says_how_much_of_each_axis_goes_over_which_link() -> None:
    result = _run(*RUN)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0].startswith("llama-2-7b on 64 GPUs of dgx-h100")
    assert all(len(line) <= 100 for line in lines)
    rows = {tuple(line.split()[:2]): line.split()[2:] for line in lines if line[:2] in ("tp", "cp", "dp", "pp")}
    assert rows["tp", "all-gather"][:5] == ["32", "x", "2,", "1", "node"]
    assert rows["dp", "all-gather"][:5] == ["4", "x", "16,", "4", "nodes"]  # of CP x DP: 2 stages x TP 2 of them
    assert ("pp", "message") in rows


def test_json_has_stages_that_average_to_the_mean() -> None:
    found = json.loads(_run(*RUN, "--json").stdout)
    assert found["schema"] == "shardsim.traffic/1"
    assert set(found) == {"schema", "run", "iteration_s", "exposed_s", "groups", "mean", "stages"}
    for row in found["mean"]:
        alike = [one for one in found["stages"] if (one["axis"], one["operation"]) == (row["axis"], row["operation"])]
        assert sum(one["sent_bytes"]["nic"] for one in alike) / 2 == pytest.approx(row["sent_bytes"]["nic"])
    assert {row["axis"] for row in found["groups"]} == {"tp", "cp", "dp", "pp"}


def test_one_stage_can_be_shown_and_no_other_than_there_are() -> None:
    result = _run(*RUN, "--stage", "1")
    assert "a rank of stage 1" in " ".join(result.stdout.split())
    result = _run(*RUN, "--stage", "2")
    assert (result.exit_code, result.stderr) == (2, "error: --stage: there is no stage 2 (0 to 1)\n")


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_the_layout_is_drawn_on_its_cluster(tmp_path: Path, suffix: str) -> None:
    out = tmp_path / f"layout.{suffix}"
    assert _run(*RUN, "--plot", str(out)).exit_code == 0
    first = out.read_bytes()
    assert len(first) > 5000
    assert _run(*RUN, "--plot", str(out)).exit_code == 0
    assert out.read_bytes() == first
    assert list(tmp_path.iterdir()) == [out]


def test_a_drawing_of_another_kind_is_refused(tmp_path: Path) -> None:
    result = _run(*RUN, "--plot", str(tmp_path / "layout.pdf"))
    assert result.exit_code == 2
    assert "does not end in .png or .svg" in result.stderr
