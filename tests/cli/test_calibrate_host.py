"""``shardsim calibrate host``: from measured runs to a host profile that simulate takes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from shardsim.cli.main import main

HEADER = (
    "gpu,num_gpus,model,layers,hidden,heads,vocab,seq_len,tp,dp,global_batch,micro_batch,framework,iteration_time_s"
)


def _run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["calibrate", "host", *arguments])


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Two small models whose passes take a millisecond a layer however small the batch is."""
    rows = [
        f"A100 80GB,{tp},h{hidden},{layers},{hidden},8,50257,512,{tp},1,{4 * micro},{micro},Megatron-DeepSpeed,"
        f"{4 * layers * 4e-3}"
        for hidden, layers in ((512, 8), (768, 12))
        for tp in (1, 2)
        for micro in (1, 2)
    ]
    path = tmp_path / "runs.csv"
    path.write_text("\n".join([HEADER, *rows, rows[0].replace("Megatron-DeepSpeed", "NeMo")]) + "\n", encoding="utf-8")
    return path


def test_a_fit_is_shown_and_written_and_can_be_simulated_with(table: Path, tmp_path: Path) -> None:
    profile = tmp_path / "mine.yaml"
    result = _run(str(table), "--framework", "megatron-deepspeed", "--fit", str(profile), "--source", "runs of ours")
    assert result.exit_code == 0, result.stderr
    assert "8 runs" in result.stdout
    assert "of another framework" in result.stdout
    assert "runs of ours" in profile.read_text(encoding="utf-8")
    small = ["simulate", "--model", "megatron-1.2b", "--cluster", "dgx-a100", "--gpus", "1", "--micro-batch", "1"]
    small += ["--global-batch", "4", "--seq", "512", "--framework", "megatron-deepspeed", "--set", f"host={profile}"]
    simulated = CliRunner().invoke(main, small)
    assert simulated.exit_code == 0, simulated.stderr
    assert "of the host (mine)" in " ".join(simulated.stdout.split())


def test_json_has_the_constants_in_seconds(table: Path) -> None:
    result = _run(str(table), "--framework", "megatron-deepspeed", "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert 2e-6 <= found["constants_s"]["forward"] <= 1e-3
    assert found["median_error"] < 0.1
    assert found["runs"] == 8


def test_too_few_runs_and_an_output_that_is_no_yaml_are_refused(table: Path) -> None:
    few = _run(str(table), "--framework", "megatron-core")
    assert few.exit_code == 2
    assert "1 rows can be used" in few.stderr
    wrong = _run(str(table), "--framework", "megatron-deepspeed", "--fit", "mine.csv")
    assert wrong.exit_code == 2
    assert "--fit" in wrong.stderr
