"""``shardsim validate runs`` with the real engine."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from shardsim.cli.main import main
from shardsim.schema.validation import measured_names
from shardsim.validate.requests import row_request
from shardsim.validate.rows import read_measured_runs
from shardsim.validate.runs import shipped_runs

SHARED = Path(__file__).parents[2] / "../shared/data/measured_runs.csv"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["validate", "runs", *arguments])


def test_without_a_file_the_shipped_runs_are_predicted(tmp_path: Path) -> None:
    out, plot = tmp_path / "rows.csv", tmp_path / "scatter.svg"
    result = run("--out", str(out), "--plot", str(plot))
    assert result.exit_code == 0, result.stderr
    assert "10 of 10 runs predicted" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 100
    rows = list(csv.DictReader(out.read_text().splitlines()))
    assert [row["id"] for row in rows] == [
        row["id"] for row in csv.DictReader(shipped_runs().read_text(encoding="utf-8").splitlines())
    ]
    assert {row["status"] for row in rows} == {"ok"}
    assert plot.read_bytes().startswith(b"<?xml")
    assert sorted(tmp_path.iterdir()) == [out, plot]


def test_json_is_the_summary() -> None:
    result = run("--json", "--engine", "closed")
    assert result.exit_code == 0, result.stderr
    record = json.loads(result.stdout)
    assert record["summary"]["rows"] == record["summary"]["predicted"] == 10
    assert {grouping: len(groups) for grouping, groups in record["groups"].items()} == {
        "source": 1,
        "gpu": 1,
        "framework": 2,
        "profile": 2,
        "model kind": 1,
        "parallelism": 3,
        "precision": 1,
        "sequence length": 1,
        "profile, device and model kind": 2,
    }
    assert record["summary"]["baselines"]["constant_45_percent"]["share_of_peak"] == 0.45
    assert len(record["worst"]) == 10
    errors = [abs(row["error"]) for row in record["worst"]]
    assert errors == sorted(errors, reverse=True)
    assert all(row["largest_term"] and 0 < row["largest_term_share"] < 1 for row in record["worst"])
    assert all(sum(row["seconds"].values()) == pytest.approx(row["predicted_s"]) for row in record["worst"])


def test_several_files_are_one_table_with_rows_in_the_order_of_the_files(tmp_path: Path) -> None:
    rows = list(csv.DictReader(shipped_runs().read_text(encoding="utf-8").splitlines()))[:3]
    first, second = _written(tmp_path / "a.csv", rows[:2]), _written(tmp_path / "b.csv", rows[1:])
    out = tmp_path / "rows.csv"
    result = run(str(second), str(first), "--engine", "closed", "--out", str(out))
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith("b.csv, a.csv: 4 of 4 runs predicted")
    shared = rows[1]["id"]
    ids = [row["id"] for row in csv.DictReader(out.read_text().splitlines())]
    assert ids == [f"b.csv:{shared}", rows[2]["id"], rows[0]["id"], f"a.csv:{shared}"]


def test_a_file_named_twice_is_bad_input(tmp_path: Path) -> None:
    path = _written(tmp_path / "a.csv", list(csv.DictReader(shipped_runs().read_text(encoding="utf-8").splitlines())))
    result = run(str(path), str(path))
    assert result.exit_code == 2
    assert "is named twice" in result.stderr


def test_a_long_table_shows_baselines_and_the_worst_rows_within_100_columns(tmp_path: Path) -> None:
    rows = list(csv.DictReader(shipped_runs().read_text(encoding="utf-8").splitlines()))
    result = run(str(_written(tmp_path / "a.csv", [row | {"id": f"{row['id']}-{i}"} for i in (1, 2) for row in rows])))
    assert result.exit_code == 0, result.stderr
    assert "worst rows" in result.stdout
    assert "best constant" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 100


def test_two_worker_processes_give_what_one_gives(tmp_path: Path) -> None:
    rows = list(csv.DictReader(shipped_runs().read_text(encoding="utf-8").splitlines()))[:5]
    path = str(_written(tmp_path / "runs.csv", rows))
    outs = [tmp_path / "one.csv", tmp_path / "two.csv"]
    for out, workers in zip(outs, ("1", "2"), strict=True):
        assert run(path, "--out", str(out), "--workers", workers).exit_code == 0
    assert outs[0].read_bytes() == outs[1].read_bytes()


def test_a_layout_that_is_not_valid_is_a_skipped_row_with_the_reason(tmp_path: Path) -> None:
    rows = list(csv.DictReader(shipped_runs().read_text(encoding="utf-8").splitlines()))[-2:]
    rows[0]["layers"] = "104"
    path = _written(tmp_path / "runs.csv", rows)
    out = tmp_path / "rows.csv"
    assert run(str(path), "--out", str(out)).exit_code == 0
    found = list(csv.DictReader(out.read_text().splitlines()))
    assert [row["status"] for row in found] == ["skipped", "ok"]
    assert "104 layers" in found[0]["reason"]


def test_nothing_to_draw_is_bad_input_and_leaves_no_file(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(
        "gpu,num_gpus,layers,hidden,heads,vocab,seq_len,global_batch,micro_batch,iteration_time_s\n"
        "TPU,8,24,1024,16,51200,1024,8,1,1.0\n"
    )
    result = run(str(path), "--plot", str(tmp_path / "a.png"), "--out", str(tmp_path / "rows.csv"))
    assert result.exit_code == 2
    assert "nothing to draw" in result.stderr
    assert list(tmp_path.iterdir()) == [path]
    assert run(str(path)).exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["/nowhere.csv"], "no such file"),
        (["/"], "is a directory"),
        (["--plot", "a.gif"], ".png or .svg"),
        (["--out", "/nowhere/rows.csv"], "does not exist"),
        (["--engine", "magic"], "--engine"),
    ],
)
def test_bad_input_is_one_clear_message_and_status_2(arguments: list[str], said: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert said in result.stderr
    assert "Traceback" not in result.output


def test_the_input_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_bytes(shipped_runs().read_bytes())
    assert run(str(path), "--out", str(path)).exit_code == 2
    assert path.read_bytes() == shipped_runs().read_bytes()


@pytest.mark.skipif(not SHARED.is_file(), reason="the table of measured runs is not part of this repository")
def test_rows_of_a_large_table_are_predicted_or_have_a_reason(tmp_path: Path) -> None:
    rows = list(csv.DictReader(SHARED.read_text(encoding="utf-8").splitlines()))
    kept = [row for i, row in enumerate(rows) if "README" in row["source"] or i % 12 == 0]
    path = _written(tmp_path / "runs.csv", kept)
    out = tmp_path / "rows.csv"
    result = run(str(path), "--out", str(out))
    assert result.exit_code == 0, result.stderr
    found = list(csv.DictReader(out.read_text(encoding="utf-8").splitlines()))
    assert [row["id"] for row in found] == [row["id"] for row in kept]
    for row in found:
        assert (row["status"] == "ok") == bool(row["predicted"]) == bool(row["error"]) == (not row["reason"])
    assert 12 <= sum(row["status"] == "ok" for row in found) < len(kept)


@pytest.mark.skipif(not SHARED.is_file(), reason="the table of measured runs is not part of this repository")
def test_there_is_a_rule_for_every_word_of_a_large_table() -> None:
    names = measured_names()
    reasons = {row_request(row, names).reason for row in read_measured_runs(SHARED)}
    assert not [reason for reason in reasons if "no rule for" in reason or "no cluster" in reason]


def _written(path: Path, rows: list[dict[str, str]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)
    return path
