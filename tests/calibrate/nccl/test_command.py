"""``shardsim calibrate nccl``: what it prints, writes and refuses."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from shardsim.cli.main import main
from shardsim.report.nccl_logs import ROW_COLUMNS

SHARED = Path(__file__).parents[3] / "../shared/nccl/measurements.csv"
LARGE = tuple(2**exponent for exponent in range(20, 31))


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["calibrate", "nccl", *map(str, arguments)])


@pytest.fixture
def log(job: Any, tmp_path: Path) -> Path:
    path = tmp_path / "quokka.log"
    tests = [job(vintage="2.17.4", sizes=LARGE, wrong={2**22: 5}), job("alltoall", vintage="2.17.4", sizes=LARGE)]
    path.write_text("".join(test.text() for test in tests) + "     1048576        262144     float     sum\n")
    return path


def test_the_screen_names_every_test_and_what_was_not_read(log: Path) -> None:
    result = run(log)
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 100
    assert lines[0] == "22 rows in 2 tests of 1 log"
    assert " ".join(lines[4].split()) == "all_reduce 16 (2 x 8) float 1 MiB .. 1 GiB 11 189.6 GB/s"
    assert "1  wrong results: such rows are kept and marked, and no fit uses them" in lines
    last = len(log.read_text().splitlines())
    assert f"1  quokka.log:{last}: row breaks off before its times" in lines


def test_rows_go_to_a_csv_with_the_columns_of_the_collected_measurements(log: Path, job: Any, tmp_path: Path) -> None:
    out = tmp_path / "rows.csv"
    assert run(log, "--collective", "all_to_all", "--out", out).exit_code == 0
    rows = list(csv.DictReader(out.read_text().splitlines()))
    printed = job("alltoall", vintage="2.17.4", sizes=LARGE).expected()
    assert [(int(row["bytes"]), float(row["time_us"]), float(row["in_place_time_us"])) for row in rows] == [
        (row.bytes, row.time_us, row.in_place_time_us) for row in printed
    ]
    assert {row["collective"] for row in rows} == {"alltoall"}
    assert rows[0]["source"].startswith("quokka.log:")
    assert (rows[0]["nodes"], rows[0]["gpus_per_node"], rows[0]["gpu"]) == ("2", "8", "H100 80GB HBM3")


def test_wrong_rows_are_marked_unhealthy(log: Path, tmp_path: Path) -> None:
    out = tmp_path / "rows.csv"
    run(log, "--collective", "all_reduce", "--out", out)
    rows = csv.DictReader(out.read_text().splitlines())
    assert {row["bytes"] for row in rows if row["healthy"] == "no"} == {str(2**22)}


@pytest.mark.skipif(not SHARED.is_file(), reason="../shared/nccl/measurements.csv is not there")
def test_the_columns_are_those_of_the_collected_measurements() -> None:
    assert tuple(SHARED.read_text(encoding="utf-8").split("\n", 1)[0].split(",")) == ROW_COLUMNS


def test_json_says_what_was_found_and_what_was_refused(log: Path) -> None:
    record = json.loads(run(log, "--json").stdout)
    assert record["schema"] == "shardsim.nccl-logs/1"
    assert record["rows"] == 22
    first = record["tests"][0]
    assert (first["collective"], first["ranks"], first["nodes"], first["rows"]) == ("all_reduce", 16, 2, 11)
    assert (first["wrong_rows"], first["usable_rows"], first["sizes_asked"]) == (1, 10, 11)
    assert first["peak_busbw_gb_per_s"] == 189.62
    assert [refusal["what"] for refusal in record["refused"]] == ["row breaks off before its times"]


def test_nothing_to_read_is_bad_input_and_says_what_would_be_right(job: Any, tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    path.write_text(job("all_gather", checked=False, sizes=LARGE).text())
    result = run(path)
    assert result.exit_code == 2
    assert "--collective all_gather or --collective alltoall" in result.stderr
    assert run(path, "--collective", "all_gather").exit_code == 0
    assert run(tmp_path / "missing.log").exit_code == 2
    assert run().exit_code == 2


def test_the_log_itself_is_never_overwritten(log: Path) -> None:
    before = log.read_bytes()
    assert run(log, "--out", log).exit_code == 2
    assert log.read_bytes() == before


def test_text_from_a_log_reaches_the_screen_without_control_characters(job: Any, tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    path.write_text(job(sizes=LARGE).text().replace("H100 80GB HBM3", "H100 \x07\x9b31m HBM3"))
    for option in ((), ("--json",)):
        assert run(path, *option).stdout.replace("\n", "").isprintable()
