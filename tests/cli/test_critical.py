"""``shardsim critical``: the critical path on the screen and as JSON, and what-ifs that are none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from shardsim.cli.main import main


def _run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["critical", *map(str, arguments)])


def _json(*arguments: object) -> dict[str, Any]:
    result = _run(*arguments, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)  # type: ignore[no-any-return]


def test_the_path_adds_up_to_the_iteration_and_gains_stand_in_order(run_file: Path) -> None:
    found = _json(run_file)
    for parts in ("categories", "stages", "legs"):
        assert sum(part["seconds"] for part in found[parts]) == pytest.approx(found["iteration_s"], rel=1e-9)
    assert found["hops"] == len(found["legs"]) - 1
    assert all(leg["start_s"] <= later["start_s"] for leg, later in zip(found["legs"], found["legs"][1:], strict=False))
    gains = [-row["change"] for row in found["what_if"]]
    assert gains == sorted(gains, reverse=True)
    names = [row["name"] for row in found["what_if"]]
    assert {part["name"] for part in found["categories"]} <= set(names)
    assert {"tp:all-reduce", "tp+pp+dp"} <= set(names)
    for row in found["what_if"]:
        assert row["iteration_s"] == pytest.approx(found["iteration_s"] * (1 + row["change"]), rel=1e-12)
        assert -row["change"] * found["iteration_s"] <= row["on_path_s"] * (1 + 1e-9)


def test_the_iteration_is_that_of_the_listing(run_file: Path) -> None:
    simulated = CliRunner().invoke(main, ["simulate", str(run_file), "--engine", "listing", "--json"])
    assert _json(run_file)["iteration_s"] == pytest.approx(json.loads(simulated.stdout)["iteration_s"], rel=1e-12)


def test_without_a_pipeline_the_path_is_what_the_one_stage_does(run_file: Path) -> None:
    """Nothing overlaps here, so each category is on the path for as long as the stage spends on it."""
    layout = (run_file, "--pp", 1, "--schedule", "1f1b")
    simulated = CliRunner().invoke(main, ["simulate", *map(str, layout), "--engine", "listing", "--json"])
    account = json.loads(simulated.stdout)["stages"][0]["seconds"]
    found = {part["name"]: part["seconds"] for part in _json(*layout)["categories"]}
    assert found == pytest.approx({name: seconds for name, seconds in account.items() if seconds > 0}, rel=1e-9)


def test_what_was_asked_comes_in_the_order_asked(run_file: Path) -> None:
    rows = _json(run_file, "--what-if", "tp=0.5", "--what-if", "tp", "--what-if", "pp+tp:all_reduce=2")["what_if"]
    assert [(row["name"], row["factor"]) for row in rows] == [("tp", 0.5), ("tp", 0.0), ("pp+tp:all-reduce", 2.0)]
    half, free, slower = (row["change"] for row in rows)
    assert free < half < 0 < slower


def test_the_table_says_how_much_each_would_gain(run_file: Path) -> None:
    result = _run(run_file, "--top", 3)
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 100
    assert any(line.split()[0] == "tp" and line.endswith("%") for line in lines if line.strip())
    named = lines[next(index for index, line in enumerate(lines) if line.startswith("Longest")) + 2 :]
    assert len(named) == 3
    assert "Longest" not in _run(run_file, "--top", 0).stdout


def test_every_what_if_that_is_none_is_named_with_what_would_be_right(run_file: Path) -> None:
    result = _run(run_file, "--what-if", "gem", "--what-if", "tp=fast", "--what-if", "ep+tp", "--what-if", "")
    assert result.exit_code == 2
    errors = result.stderr.splitlines()
    assert len(errors) == 4
    assert "--what-if gem: the run spends no time on 'gem' (did you mean gemm?)" in errors[0]
    assert "'fast' is not a number of at least 0 (0 for free, 0.5 for twice as fast)" in errors[1]
    assert "'ep'" in errors[2]
    assert "known:" in errors[2]
