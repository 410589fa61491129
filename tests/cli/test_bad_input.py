"""Bad input: clear lines on standard error, exit status 2, no traceback, nothing printed, no file left behind."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from shardsim.cli.main import main


def _refused(tmp_path: Path, *arguments: str) -> list[str]:
    """The lines that a refused command prints."""
    before = sorted(tmp_path.rglob("*"))
    result: Result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert lines
    assert all(line.startswith("error: ") for line in lines)
    assert "Traceback" not in result.stderr
    assert len(set(lines)) == len(lines)
    assert sorted(tmp_path.rglob("*")) == before
    return lines


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--model", "gpt3-175"], ["did you mean gpt3-175b"]),
        (["--cluster", "dgx-a10"], ["did you mean dgx-a100"]),
        (["--framework", "megatron2021"], ["did you mean megatron-2021"]),
        (["--tp", "0"], ["--tp", "1 or more"]),
        (["--tp", "two"], ["--tp", "'two'"]),
        (["--tp", "2.5"], ["--tp", "'2.5'"]),
        (["--gpus", "-8"], ["--gpus"]),
        (["--zero", "4"], ["--zero"]),
        (["--gpus", "1000"], ["1000 GPUs do not divide", "960 or 1024"]),
        (["--gpus", "1" + "0" * 40], ["error: "]),
        (["--tp", "7"], ["96 attention heads", "tp 7"]),
        (["--pp", "7", "--gpus", "112"], ["96 layers do not divide"]),
        (["--global-batch", "33"], ["33", "dp 2"]),
        (["--schedule", "1f2b"], ["'1f2b'", "did you mean 1f1b"]),
        (["--schedule", "./own.yaml"], ["own.yaml", "no such file"]),
        (["--recompute", "some"], ["'some'", "selective"]),
        (["--precision", "fp3"], ["'fp3'", "fp16"]),
        (["--engine", "magic"], ["'magic'", "listing"]),
        (["--detail", "fine"], ["'fine'", "operators"]),
        (["--seq", "1" + "0" * 12], ["2048 positions"]),
        (["--set", "cluster.nvlink.bandwidth=450"], ["450 has no unit", "GB/s"]),
        (["--set", "cluster.nvlink.bandwidth=fast"], ["fast"]),
        (["--set", "cluster.nvlink.bandwith=450 GB/s"], ["did you mean bandwidth"]),
        (["--set", "clutser.nvlink.bandwidth=450 GB/s"], ["clutser"]),
        (["--set", "layout.tpp=4"], ["unknown key 'tpp'"]),
        (["--set", "layout.tp=four"], ["'four' is not a whole number"]),
        (["--set", "nonsense"], ["not key=value"]),
        (["--etp", "2"], ["layout.etp", "etp 2", "a model without experts"]),
        (["--first-layers", "2"], ["layout.first_layers", "94 layers remain", "one of"]),
        (["--last-layers", "2"], ["layout.last_layers", "94 layers remain", "one of"]),
        (["--pp-layout", "Et*3|t*2"], ["layout.pp_layout", "2 virtual stages"]),
        (["--pp-layout", "Etx|tL"], ["holds x, which says nothing"]),
        (["--stage-layers", "90,x"], ["'90,x' is not a list of whole numbers"]),
        (["--trace", "t.json", "--engine", "closed"], ["no timeline", "--engine listing"]),
        (["--data", "nowhere"], ["'nowhere' is not a directory"]),
        (["--frobnicate"], ["no such option: --frobnicate"]),
        (["surplus.yaml"], ["unexpected extra argument"]),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else None,
)
def test_a_bad_flag_is_refused(run_file: Path, tmp_path: Path, arguments: list[str], expected: list[str]) -> None:
    text = "\n".join(_refused(tmp_path, "simulate", str(run_file), *arguments))
    for words in expected:
        assert words in text or words.lower() in text.lower()


def test_every_problem_is_listed_at_once(run_file: Path, tmp_path: Path) -> None:
    lines = _refused(tmp_path, "simulate", str(run_file), "--model", "gpt-3", "--cluster", "dgx", "--framework", "x")
    assert len(lines) == 3


def test_missing_flags_are_all_named(tmp_path: Path) -> None:
    text = "\n".join(_refused(tmp_path, "simulate", "--tp", "8"))
    for key in ("model", "cluster", "batch"):
        assert key in text


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "is empty"),
        (b"model: [", "cut off"),
        (b"model: gpt3-175b\ncluster: {", "cut off"),
        (b"- a\n- b\n", "a list at the top"),
        (b"\xff\xfe\x00", "UTF-8"),
        (b"model: a\nmodel: b\n", "twice"),
        (b"a: &a [*a]\n", "contains itself"),
        (b"model: !!python/object/apply:os.system ['true']\n", "tag"),
        (b"[" * 5000, "error"),
    ],
    ids=["empty", "cut off", "cut off later", "list", "binary", "twice", "loop", "code", "deep"],
)
def test_a_broken_file_is_refused(tmp_path: Path, content: bytes, expected: str) -> None:
    path = tmp_path / "run.yaml"
    path.write_bytes(content)
    text = "\n".join(_refused(tmp_path, "simulate", str(path)))
    assert expected in text
    assert "run.yaml" in text


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("gpus: 128", "gpus: 128\ncolour: red", "unknown key 'colour'"),
        ("gpus: 128", "gpu: 128", "did you mean gpus"),
        ("tp: 8", "tp: eight", "'eight' is not a whole number"),
        ("tp: 8", "tp: 8.5", "8.5 is not a whole number"),
        ("tp: 8", "tpp: 8", "unknown key 'tpp'"),
        ("schedule: 1f1b", "recompute_method: some", "is not one of"),
        ("micro: 1", "micro: 0", "1 or more"),
        ("cluster: dgx-a100", "cluster: ../../../etc/passwd.yaml", "leaves the folder"),
        ("gpus: 128", "gpus: .nan", "error"),
        ("gpus: 128", "gpus: no", "is not a whole number"),
    ],
)
def test_a_bad_key_is_refused_with_its_line(run_file: Path, tmp_path: Path, old: str, new: str, expected: str) -> None:
    run_file.write_text(run_file.read_text().replace(old, new))
    text = "\n".join(_refused(tmp_path, "simulate", str(run_file)))
    assert expected in text
    assert "run.yaml:" in text


def test_a_missing_file_suggests_its_neighbour(run_file: Path, tmp_path: Path) -> None:
    (line,) = _refused(tmp_path, "simulate", str(run_file.with_name("rnu.yaml")))
    assert "no such file (did you mean run.yaml?)" in line


def test_a_directory_is_no_run_file(tmp_path: Path) -> None:
    (line,) = _refused(tmp_path, "simulate", str(tmp_path))
    assert "is a directory" in line


@pytest.mark.parametrize("option", ["--trace", "--html"])
def test_outputs_that_cannot_be_written_are_refused_before_the_work(
    run_file: Path, tmp_path: Path, option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from shardsim.program import resolve

    def too_late(*_: object, **__: object) -> None:
        pytest.fail("the work began")

    monkeypatch.setattr(resolve, "resolve", too_late)
    for target, words in ((tmp_path, "is a directory"), (tmp_path / "none" / "x", "does not exist")):
        (line,) = _refused(tmp_path, "simulate", str(run_file), option, str(target))
        assert option in line
        assert words in line


def test_two_outputs_to_one_file_are_refused(run_file: Path, tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    (line,) = _refused(tmp_path, "simulate", str(run_file), "--trace", out, "--html", out)
    assert "also written by --trace" in line


def test_the_run_file_is_never_overwritten(run_file: Path, tmp_path: Path) -> None:
    before = run_file.read_bytes()
    (line,) = _refused(tmp_path, "simulate", str(run_file), "--html", str(run_file))
    assert "read as input" in line
    assert run_file.read_bytes() == before


def test_a_failure_after_the_work_leaves_no_file(
    run_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from shardsim.report import trace

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(trace, "write_trace", full)
    (line,) = _refused(tmp_path, "simulate", str(run_file), "--trace", str(tmp_path / "t.json"))
    assert line == "error: No space left on device"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["show", "dgx-a10"], "did you mean dgx-a100"),
        (["show", "dgx-a100", "--gpus", "30", "--tp", "4", "--pp", "2"], "no multiple of TP x PP x CP = 8"),
        (["show", "dgx-a100", "--gpus", "32", "--tp", "4", "--ep", "3"], "EP x ETP = 3 does not divide the 32 ranks"),
        (["show", "dgx-a100", "--gpus", "32", "--order", "tp-pp"], "rank order"),
        (["show", "dgx-a100", "--gpus", "10000000"], "too many to list"),
        (["show", "selene", "--gpus", "1000000"], "selene has"),
        (["draw", "dgx-a100", "--out", "x.pdf"], "neither PNG nor SVG"),
        (["draw", "dgx-a100", "--out", "none/x.png"], "does not exist"),
        (["draw", "dgx-a100"], "--out"),
    ],
)
def test_a_bad_topology_command_is_refused(tmp_path: Path, arguments: list[str], expected: str) -> None:
    assert expected in "\n".join(_refused(tmp_path, "topology", *arguments))
