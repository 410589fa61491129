"""``shardsim calibrate stack``: from measured runs to a stack profile that simulate takes."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from shardsim.cli.main import main

HEADER = (
    "id,gpu,num_gpus,model,layers,hidden,heads,vocab,seq_len,tp,dp,global_batch,micro_batch,framework,iteration_time_s"
)


def _run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["calibrate", "stack", *arguments])


def _table(path: Path, factor: float = 1.0) -> Path:
    """Twelve runs of three models, each slower than predicted with nothing fitted by one factor."""
    rows = [
        f"h{hidden}-{tp}-{micro},A100 80GB,{tp},h{hidden},{layers},{hidden},16,50257,1024,{tp},1,{4 * micro},{micro},"
        "Megatron-LM 2022,"
        for hidden, layers in ((1024, 8), (2048, 8), (4096, 4))
        for tp in (1, 2)
        for micro in (4, 8)
    ]
    path.write_text("\n".join([HEADER, *(f"{row}1.0" for row in rows)]) + "\n", encoding="utf-8")
    priced = path.with_name("priced.csv")
    result = CliRunner().invoke(main, ["validate", "runs", str(path), "--out", str(priced)])
    assert result.exit_code == 0, result.output
    with priced.open(newline="") as stream:
        times = [float(row["predicted"]) * factor for row in csv.DictReader(stream)]
    lines = [f"{row}{time}" for row, time in zip(rows, times, strict=True)]
    path.write_text("\n".join([HEADER, *lines]) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _table(tmp_path_factory.mktemp("stack") / "runs.csv", factor=1.25)


def test_a_fit_is_shown_and_written_and_brings_predictions_to_what_was_measured(table: Path, tmp_path: Path) -> None:
    profile, errors = tmp_path / "mine.yaml", tmp_path / "held-out.csv"
    result = _run(
        str(table),
        *("--framework", "megatron-2022", "--constants", "compute,inside"),
        *("--fit", str(profile), "--errors", str(errors), "--source", "runs of ours"),
    )
    assert result.exit_code == 0, result.output
    assert "held out" in result.stdout
    assert "fewer than 10 each" in result.stdout
    assert "source: runs" in profile.read_text()
    with errors.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 12
    asked = ["simulate", "--model", "megatron-1.2b", "--cluster", "dgx-a100", "--framework", "megatron-2022"]
    asked += ["--gpus", "1", "--micro-batch", "8", "--global-batch", "8", "--seq", "1024", "--json"]
    plain = json.loads(CliRunner().invoke(main, asked).stdout)["iteration_s"]
    slower = json.loads(CliRunner().invoke(main, [*asked, "--set", f"stack={profile}"]).stdout)["iteration_s"]
    assert slower == pytest.approx(1.25 * plain, rel=0.03)


def test_recipes_write_a_profile_each(table: Path, tmp_path: Path) -> None:
    recipes = tmp_path / "recipes.yaml"
    recipes.write_text(
        "stacks:\n  ours:\n    title: ours\n    stack: ours\n    frameworks: [megatron-2022]\n"
        "    constants: [compute]\n    source: runs of ours\n",
        encoding="utf-8",
    )
    folder = tmp_path / "profiles"
    folder.mkdir()
    result = _run(str(table), "--recipes", str(recipes), "--to", str(folder), "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["constants"]["compute"]["value"] == pytest.approx(1.25, rel=0.02)
    assert "attention: {value: 1.2" in (folder / "ours.yaml").read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "--framework"),
        (("--framework", "megatron-2022", "--constants", "computer"), "did you mean compute?"),
        (("--framework", "nanotron"), "rows can be used"),
        (("--framework", "megatron-2022", "--fit", "mine.txt"), "does not end in .yaml"),
        (("--recipes", "none.yaml", "--to", "."), "none.yaml"),
    ],
)
def test_what_cannot_be_fitted_ends_with_status_2(table: Path, arguments: tuple[str, ...], said: str) -> None:
    result = _run(str(table), *arguments)
    assert result.exit_code == 2
    assert said in " ".join(result.output.split())
