"""``shardsim scale`` with the real engine: the table, the files, and what happens to bad input."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from shardsim.cli.main import main
from shardsim.report.scaling import COLUMNS
from shardsim.schema.locate import data_roots

SMALL = ["--model", "megatron-1.2b", "--cluster", "dgx-2h", "--framework", "megatron-2019", "--seq", "1024"]
TP = [*SMALL, "--grow", "tp", "--micro-batch", "8", "--global-batch", "8"]
DP = [*SMALL, "--micro-batch", "8", "--global-batch", "8"]
MEASURED = data_roots()[-1] / "workloads/measured/megatron-2019.csv"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["scale", *arguments])


def points(*arguments: str) -> list[dict[str, object]]:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)["points"]


def refused(*arguments: str) -> str:
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.stderr
    assert result.stdout == ""
    return result.stderr


def test_the_table_fits_on_the_screen_and_compares_with_measurements() -> None:
    models = "megatron-1.2b,megatron-2.5b,megatron-4.2b,megatron-8.3b"
    result = run(*TP, "--model", models, "--gpus", "1,2,4,8", "--measured", str(MEASURED))
    assert result.exit_code == 0, result.stderr
    assert max(map(len, result.stdout.splitlines())) <= 100
    lines = [line for line in result.stdout.splitlines() if "megatron-" in line]
    assert [line.split()[0] for line in lines] == ["1", "2", "4", "8"]
    for words in (
        "Weak scaling of TP on dgx-2h",
        "8·1·1",
        "77.0",
        "efficiency: model FLOP/s per GPU relative to 1 GPU",
    ):
        assert words in result.stdout


def test_weak_scaling_of_dp_is_less_efficient_with_more_nodes() -> None:
    found = points(*DP, "--gpus", "1,16,32,64")
    assert [p["global_batch"] for p in found] == [8, 128, 256, 512]
    efficiencies = [p["efficiency"] for p in found]
    assert efficiencies[0] == 1.0
    assert efficiencies == sorted(efficiencies, reverse=True)


def test_strong_scaling_shortens_the_iteration_but_less_than_ideally() -> None:
    found = points(*SMALL, "--micro-batch", "2", "--global-batch", "64", "--gpus", "1,2,8", "--strong")
    times = [p["iteration_s"] for p in found]
    assert times == sorted(times, reverse=True)
    assert all(p["iteration_s"] >= p["ideal_iteration_s"] * (1 - 1e-12) for p in found)


def test_files_are_written_whole_and_the_same_each_time(tmp_path: Path) -> None:
    written = []
    for name in ("first", "second"):
        folder = tmp_path / name
        folder.mkdir()
        files = [folder / "a.png", folder / "a.svg", folder / "a.csv"]
        result = run(*TP, "--gpus", "1,2", "--plot", str(files[0]), "--plot", str(files[1]), "--csv", str(files[2]))
        assert result.exit_code == 0, result.stderr
        assert sorted(folder.iterdir()) == sorted(files)
        written.append([path.read_bytes() for path in files])
    assert written[0] == written[1]
    rows = list(csv.DictReader(written[0][2].decode().splitlines()))
    assert list(rows[0]) == list(COLUMNS)
    assert [row["tp"] for row in rows] == ["1", "2"]


def test_two_worker_processes_give_what_one_gives() -> None:
    alone, together = (run(*DP, "--gpus", "1,2,4", "--json", "--workers", n) for n in ("1", "2"))
    assert alone.exit_code == together.exit_code == 0
    assert alone.stdout == together.stdout


def test_a_run_file_gives_the_layout_and_flags_go_on_top(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(
        "model: megatron-8.3b\ncluster: dgx-2h\nframework: megatron-2019\ngpus: 16\n"
        "layout: {tp: 8}\nbatch: {global: 16, micro: 8, seq: 1024}\n",
        encoding="utf-8",
    )
    found = points(str(path), "--gpus", "8,16,32", "--micro-batch", "4")
    assert [(p["tp"], p["dp"], p["global_batch"], p["micro_batch"]) for p in found] == [
        (8, 1, 8, 4),
        (8, 2, 16, 4),
        (8, 4, 32, 4),
    ]


def test_points_that_are_not_valid_are_named_and_the_others_predicted() -> None:
    result = run(*TP, "--gpus", "1,2,3")
    assert result.exit_code == 0, result.stderr
    assert "3 GPUs, megatron-1.2b: " in result.stdout
    assert "no layout" in result.stdout
    found = points(*TP, "--gpus", "1,2,3")
    assert found[2]["iteration_s"] is None
    assert "16 heads" in str(found[2]["reason"]) or "heads" in str(found[2]["reason"])


def test_a_study_without_any_valid_point_is_bad_input_and_leaves_no_file(tmp_path: Path) -> None:
    said = refused(*TP, "--gpus", "3,5", "--csv", str(tmp_path / "a.csv"), "--plot", str(tmp_path / "a.png"))
    assert "3 GPUs, megatron-1.2b" in said
    assert "5 GPUs, megatron-1.2b" in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([*TP, "--gpus", "1,x"], "'1,x' is not a list of GPU counts"),
        ([*TP, "--gpus", "4,2"], "ascending and positive"),
        ([*TP, "--gpus", "0"], "ascending and positive"),
        ([*TP, "--gpus", "1,2", "--tp", "2"], "--tp is the axis that grows"),
        ([*TP, "--gpus", "1,2", "--plot", "a.pdf"], ".png or .svg"),
        ([*TP, "--gpus", "1,2", "--csv", "/nowhere/a.csv"], "does not exist"),
        ([*TP, "--gpus", "1,2", "--measured", "/nowhere.csv"], "no such file"),
        ([*TP, "--gpus", "1,2", "--measured", "/"], "is a directory"),
        ([*TP, "--gpus", "1,2", "--model", "megatron-1.2b,megatron-2.5b,megatron-4.2b"], "3 models for 2 GPU counts"),
        ([*TP, "--gpus", "1,2", "--model", "megatron-1.3b"], "megatron-1.2b"),
        ([*TP, "--gpus", "1,2", "--grow", "up"], "--grow"),
        ([*TP, "--gpus", "1,2", "--baseline-tflops", "0"], "--baseline-tflops"),
        (["--gpus", "1,2"], "model"),
    ],
)
def test_bad_input_is_one_clear_message_and_status_2(arguments: list[str], said: str) -> None:
    assert said in refused(*arguments)
