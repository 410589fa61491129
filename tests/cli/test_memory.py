"""``shardsim memory``: options, files and exit statuses."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from shardsim.cli.main import main

TOO_MUCH = ["--cluster", "dgx-a100-40gb", "--recompute", "none"]
STATES = [
    *("--model", "megatron-4.2b", "--cluster", "dgx-2h", "--gpus", "4", "--framework", "megatron-2021"),
    *("--recompute", "full", "--global-batch", "4", "--seq", "1024"),
]
"""20 bytes for each of 4.2 billion parameters on every GPU of 32 GB."""
MIXTRAL = [
    *("--model", "mixtral-8x7b", "--cluster", "dgx-h100", "--gpus", "64", "--framework", "megatron-core"),
    *("--tp", "2", "--pp", "4", "--ep", "8", "--global-batch", "64", "--seq", "4096"),
]


def _run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["memory", *map(str, arguments)])


def _json(*arguments: object) -> dict[str, Any]:
    result = _run(*arguments, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)  # type: ignore[no-any-return]


def test_a_run_that_fits(run_file: Path) -> None:
    result = _run(run_file, "--require-fit")
    assert result.exit_code == 0, result.stderr
    assert result.stderr == ""
    assert "fits: stage" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_a_run_that_does_not_fit_is_no_error_unless_it_has_to_fit(run_file: Path) -> None:
    assert _run(run_file, *TOO_MUCH, "--no-advise").exit_code == 0
    result = _run(run_file, *TOO_MUCH, "--no-advise", "--require-fit")
    assert result.exit_code == 1
    assert "DOES NOT FIT" in result.stdout
    assert result.stderr == ""


def test_memory_is_what_simulate_says(run_file: Path) -> None:
    found = _json(run_file)
    simulated = CliRunner().invoke(main, ["simulate", str(run_file), "--engine", "closed", "--json"])
    expected = json.loads(simulated.stdout)
    assert {str(stage["stage"]): stage["items_gib"] for stage in found["stages"]} == expected["memory_gib"]
    assert found["run"] == expected["run"]
    assert (found["peak_gib"], found["worst_stage"]) == (expected["memory_peak_gib"], expected["memory_worst_stage"])


def test_allocated_and_reserved_are_the_sums_of_their_items(run_file: Path) -> None:
    for stage in _json(run_file)["stages"]:
        items = stage["items_gib"]
        tensors = sum(size for name, size in items.items() if name not in ("fragmentation", "context"))
        assert stage["allocated_gib"] == pytest.approx(tensors, rel=1e-12)
        assert stage["reserved_gib"] == pytest.approx(sum(items.values()), rel=1e-12)
        assert stage["headroom_gib"] == pytest.approx(_json(run_file)["capacity_gib"] - stage["reserved_gib"], rel=1e-9)


def test_advice_is_given_in_json_too() -> None:
    found = _json(*STATES)
    assert found["fits"] is False
    assert found["advice"]["changes"]
    assert all(change["fits"] and change["flags"] for change in found["advice"]["changes"])


def test_simulate_points_here_where_a_run_does_not_fit(run_file: Path) -> None:
    result = CliRunner().invoke(main, ["simulate", str(run_file), *TOO_MUCH, "--engine", "closed", "--json"])
    assert any("shardsim memory" in warning for warning in json.loads(result.stdout)["warnings"])


def test_experts_are_counted_though_their_time_is_not_priced() -> None:
    found = _json(*MIXTRAL)
    assert found["fits"] is True
    assert found["run"]["layout"]["ep"] == 8


def test_memory_over_time_needs_a_price_and_says_so_before_anything_is_written(tmp_path: Path) -> None:
    too_long = ("--global-batch", "1200000")
    result = _run(*MIXTRAL, *too_long, "--over-time", tmp_path / "memory.csv", "--plot", tmp_path / "memory.png")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert list(tmp_path.iterdir()) == []


def test_files_are_written_for_every_form(run_file: Path, tmp_path: Path) -> None:
    table, plot, drawing = tmp_path / "time.csv", tmp_path / "stages.png", tmp_path / "time.svg"
    assert _run(run_file, "--over-time", table, "--plot", plot).exit_code == 0
    assert _run(run_file, "--over-time", drawing).exit_code == 0
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in drawing.read_bytes()
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert {int(row["stage"]) for row in rows} == set(range(8))
    highest = {stage: max(int(r["allocated_bytes"]) for r in rows if int(r["stage"]) == stage) for stage in range(8)}
    for stage in _json(run_file)["stages"]:
        assert highest[stage["stage"]] / 2**30 == pytest.approx(stage["allocated_gib"], rel=1e-9)


@pytest.mark.parametrize(
    ("option", "name", "message"),
    [
        ("--plot", "memory.csv", "does not end in .png or .svg"),
        ("--over-time", "memory.txt", "does not end in .png, .svg or .csv"),
        ("--over-time", "missing/memory.csv", "folder"),
    ],
)
def test_a_file_that_cannot_be_written_is_refused_before_the_work(
    run_file: Path, tmp_path: Path, option: str, name: str, message: str
) -> None:
    result = _run(run_file, option, tmp_path / name)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize("option", ["--plot", "--over-time"])
def test_a_folder_in_the_place_of_a_file_is_named(run_file: Path, option: str) -> None:
    assert "'.' does not end in .png" in _run(run_file, option, ".").stderr


def test_two_outputs_in_one_file_are_refused(run_file: Path, tmp_path: Path) -> None:
    result = _run(run_file, "--plot", tmp_path / "memory.png", "--over-time", tmp_path / "memory.png")
    assert "also written by --plot" in result.stderr


def test_bad_input_lists_every_problem(run_file: Path) -> None:
    result = _run(run_file, "--tp", "7", "--pp", "5")
    assert "attention heads do not divide" in result.stderr
    assert "layers do not divide" in result.stderr
    assert result.exit_code == 2


def test_json_is_the_same_bytes_each_time(run_file: Path) -> None:
    assert _run(run_file, "--json").stdout == _run(run_file, "--json").stdout
