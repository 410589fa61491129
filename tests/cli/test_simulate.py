"""``shardsim simulate``: every option does what it says, and every output is whole."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from shardsim.cli.main import main

FLAGS = [
    *("--model", "gpt3-175b", "--cluster", "dgx-a100", "--gpus", "128", "--framework", "megatron-2021"),
    *("--tp", "8", "--pp", "8", "--schedule", "1f1b", "--recompute", "full"),
    *("--micro-batch", "1", "--global-batch", "32", "--seq", "2048"),
]


def _run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["simulate", *arguments])


def _json(*arguments: str) -> dict[str, Any]:
    result = _run(*arguments, "--json")
    assert result.exit_code == 0, result.stderr
    assert result.stderr == ""
    return json.loads(result.stdout)  # type: ignore[no-any-return]


def test_a_file_is_simulated_and_shown(run_file: Path) -> None:
    result = _run(str(run_file))
    assert result.exit_code == 0, result.stderr
    assert result.stderr == ""
    assert result.stdout.startswith("gpt3-175b on dgx-a100: 128 GPUs (a100-sxm-80gb) in 16 nodes\nTP8 x PP8 x DP2")
    assert max(map(len, result.stdout.splitlines())) <= 100
    for words in (
        "Iteration",
        "MFU",
        "HFU",
        "Bubble",
        "Exposed comm.",
        "From peak to achieved",
        "Memory",
        "Costs used",
    ):
        assert words in result.stdout


def test_flags_say_the_same_as_a_file(run_file: Path) -> None:
    assert _json(*FLAGS) == _json(str(run_file))


def test_flags_override_the_file(run_file: Path) -> None:
    found = _json(str(run_file), "--gpus", "64", "--tp", "4", "--zero", "1", "--no-sp")
    assert found["run"]["layout"] | {"tp": 4, "pp": 8, "dp": 2, "zero": 1, "sp": False} == found["run"]["layout"]
    assert found["run"]["batch"]["global"] == 32


@pytest.mark.parametrize(
    ("arguments", "path", "expected"),
    [
        (["--model", "gpt3-175b"], ("model", "name"), "gpt3-175b"),
        (["--cluster", "selene"], ("cluster", "name"), "selene"),
        (["--gpus", "256"], ("layout", "dp"), 4),
        (["--tp", "4"], ("layout", "tp"), 4),
        (["--pp", "4"], ("layout", "pp"), 4),
        (["--vpp", "2", "--schedule", "interleaved"], ("layout", "vpp"), 2),
        (["--cp", "1"], ("layout", "cp"), 1),
        (["--ep", "1"], ("layout", "ep"), 1),
        (["--sp"], ("layout", "sp"), True),
        (["--zero", "1"], ("layout", "zero"), 1),
        (["--schedule", "gpipe"], ("layout", "schedule"), "gpipe"),
        (["--recompute", "none"], ("layout", "recompute"), "none"),
        (["--micro-batch", "2"], ("batch", "micro"), 2),
        (["--global-batch", "64"], ("batch", "global"), 64),
        (["--seq", "1024"], ("batch", "seq"), 1024),
        (["--precision", "bf16"], ("precision",), "bf16"),
        (["--framework", "megatron-2019"], ("framework",), "megatron-2019"),
        (["--set", "layout.tp=4"], ("layout", "tp"), 4),
        (["--set", "cluster.nvlink.bandwidth=150 GB/s"], ("cluster", "nvlink_gb_per_s"), 150.0),
    ],
)
def test_every_flag_reaches_the_run(
    run_file: Path, arguments: list[str], path: tuple[str, ...], expected: object
) -> None:
    found: Any = _json(str(run_file), "--engine", "closed", *arguments)["run"]
    for part in path:
        found = found[part]
    assert found == expected


@pytest.mark.parametrize("engine", ["closed", "listing", "des"])
@pytest.mark.parametrize("detail", ["stages", "operators"])
def test_every_engine_at_every_detail_gives_the_same_iteration(run_file: Path, engine: str, detail: str) -> None:
    found = _json(str(run_file), "--engine", engine, "--detail", detail)
    assert found["engine"] == engine
    assert (found["events"] is not None) == (engine == "des")
    assert found["iteration_s"] == pytest.approx(_json(str(run_file))["iteration_s"], rel=1e-9)


def test_json_is_the_same_bytes_each_time(run_file: Path) -> None:
    assert _run(str(run_file), "--json").stdout == _run(str(run_file), "--json").stdout


def test_slower_links_make_a_slower_iteration(run_file: Path) -> None:
    slow = _json(str(run_file), "--set", "cluster.nvlink.bandwidth=75 GB/s")
    fast = _json(str(run_file))
    assert slow["exposed_s"]["tp"] > 2 * fast["exposed_s"]["tp"]
    assert slow["iteration_s"] > fast["iteration_s"]


def test_the_waterfall_sums_to_the_named_peak(run_file: Path) -> None:
    found = _json(str(run_file))
    lost = sum(step["tflops_lost"] for step in found["waterfall"])
    assert lost + found["tflops_per_gpu"] == pytest.approx(found["peak_tflops"], rel=1e-9)
    assert found["peak_name"] == "a100-sxm-80gb dense fp16"


def test_each_stage_accounts_for_the_whole_iteration(run_file: Path) -> None:
    found = _json(str(run_file))
    for stage in found["stages"]:
        assert sum(stage["seconds"].values()) == pytest.approx(found["iteration_s"], rel=1e-9)


def test_a_layout_that_does_not_fit_is_still_simulated(run_file: Path) -> None:
    too_much = ["--cluster", "dgx-a100-40gb", "--recompute", "none"]
    result = _run(str(run_file), *too_much)
    assert result.exit_code == 0, result.stderr
    assert "DOES NOT FIT" in result.stdout
    assert _json(str(run_file), *too_much)["fits"] is False


def test_require_fit_answers_no_after_printing(run_file: Path) -> None:
    too_much = ["--cluster", "dgx-a100-40gb", "--recompute", "none", "--require-fit"]
    result = _run(str(run_file), *too_much)
    assert result.exit_code == 1
    assert "DOES NOT FIT" in result.stdout
    assert result.stderr == ""


def test_require_fit_answers_yes(run_file: Path) -> None:
    assert _run(str(run_file), "--require-fit").exit_code == 0


def test_a_trace_loads_and_covers_the_iteration(run_file: Path, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    found = _json(str(run_file), "--trace", str(path))
    events = json.loads(path.read_text())["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    assert {event["pid"] for event in slices} == set(range(8))
    assert max(event["ts"] + event["dur"] for event in slices) == pytest.approx(found["iteration_s"] * 1e6, abs=1e-2)
    for event in slices:
        assert event["dur"] >= 0
        assert event["ts"] >= 0


def test_tasks_of_a_stream_never_overlap_in_a_trace(run_file: Path, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    _json(str(run_file), "--trace", str(path), "--detail", "operators")
    by_thread: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for event in json.loads(path.read_text())["traceEvents"]:
        if event["ph"] == "X":
            start = round(event["ts"] * 1000)
            by_thread.setdefault((event["pid"], event["tid"]), []).append((start, start + round(event["dur"] * 1000)))
    for spans in by_thread.values():
        spans.sort()
        assert all(finish <= start for (_, finish), (start, _) in pairwise(spans))


def test_a_page_and_a_trace_can_be_written_at_once(run_file: Path, tmp_path: Path) -> None:
    trace, page = tmp_path / "trace.json", tmp_path / "page.html"
    result = _run(str(run_file), "--trace", str(trace), "--html", str(page))
    assert result.exit_code == 0, result.stderr
    assert page.read_text().startswith("<!DOCTYPE html>")
    assert {path.name for path in tmp_path.iterdir()} == {"run.yaml", "trace.json", "page.html"}


def test_a_users_own_data_comes_first(run_file: Path, tmp_path: Path) -> None:
    folder = tmp_path / "mine" / "topologies" / "clusters"
    folder.mkdir(parents=True)
    nvlink = "{product: mine, bandwidth: {value: 75 GB/s, source: a b}, latency: {value: 1 us, source: a b}}"
    (folder / "mine.yaml").write_text(f"based_on: dgx-a100\ntitle: mine\nnvlink: {nvlink}\n")
    found = _json(str(run_file), "--cluster", "mine", "--data", str(tmp_path / "mine"))
    assert found["run"]["cluster"]["nvlink_gb_per_s"] == 75.0


def test_without_arguments_help_is_shown() -> None:
    result = _run()
    assert "Usage: shardsim simulate" in result.output
