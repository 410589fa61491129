"""``shardsim catalog``: everything known by name, with its source."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from shardsim.cli.catalog import KINDS
from shardsim.cli.main import main
from shardsim.schema.catalog import names


def _run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["catalog", *arguments])


def test_every_entry_of_every_kind_has_its_line() -> None:
    result = _run()
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 100
    for kinds in KINDS.values():
        for kind in kinds:
            for name in names(kind):
                assert sum(line.startswith(f"  {name} ") for line in lines) >= 1


def test_json_has_name_summary_and_source_for_every_entry() -> None:
    found = json.loads(_run("--json").stdout)
    assert found.pop("schema") == "shardsim.catalog/1"
    assert list(found) == list(KINDS)
    for kind, entries in found.items():
        assert len(entries) == sum(len(names(folder)) for folder in KINDS[kind])
        assert all(entry["name"] and entry["summary"] and entry["source"] for entry in entries)


@pytest.mark.parametrize("kind", KINDS)
def test_one_kind_alone_in_singular_or_plural_with_sources_in_full(kind: str) -> None:
    plural, singular = _run(kind), _run(kind.removesuffix("s"))
    assert plural.exit_code == 0
    assert plural.stdout == singular.stdout
    assert max(map(len, plural.stdout.splitlines())) <= 100
    assert "…" not in plural.stdout
    schema, entries = json.loads(_run(kind, "--json").stdout).values()
    assert schema == "shardsim.catalog/1"
    words = " ".join(plural.stdout.split())
    assert all(" ".join(entry["source"].split()[:6]) in words for entry in entries)


def test_an_unknown_kind_is_answered_with_the_near_one() -> None:
    result = _run("modls")
    assert result.exit_code == 2
    assert result.stderr == "error: unknown kind 'modls' (did you mean models?)\n"


def test_a_users_own_entries_are_listed_too(tmp_path: Path) -> None:
    folder = tmp_path / "workloads" / "models"
    folder.mkdir(parents=True)
    shape = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 128}
    config = {"model_type": "llama", "intermediate_size": 256, "num_key_value_heads": 2, **shape}
    (folder / "own.json").write_text(json.dumps(config))
    result = _run("models", "--data", str(tmp_path))
    assert result.exit_code == 0, result.stderr
    assert "  own  " in result.stdout


def test_every_broken_file_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "workloads" / "models"
    folder.mkdir(parents=True)
    (folder / "one.yaml").write_text("hidden: [")
    (folder / "two.yaml").write_text("")
    result = _run("models", "--data", str(tmp_path))
    assert result.exit_code == 2
    assert "one.yaml" in result.stderr
    assert "two.yaml" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_data_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    result = _run("--data", str(tmp_path / "none"))
    assert result.exit_code == 2
    assert "is not a directory" in result.stderr
