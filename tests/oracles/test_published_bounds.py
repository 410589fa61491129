"""Published runs of well-known stacks: errors stay within their recorded bounds, and bounds follow the errors."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from shardsim.cli.main import main
from shardsim.errors import InputError
from shardsim.schema.published import load_published
from shardsim.validate.published import recorded, validate_published

TIGHT = 0.015
"""A bound further than this above its error hides what was gained (-)."""


@pytest.fixture(scope="module")
def tables():
    return {table.name: table for table in validate_published()}


@pytest.mark.parametrize("name", sorted(load_published()[1]))
def test_errors_are_within_their_bounds_and_bounds_are_tight(tables, name: str) -> None:
    table = tables[name]
    assert table.bound is not None, "record it: shardsim validate published --record"
    assert table.within, f"mean {table.mean:.1%}, worst {table.worst:.1%} of {table.bound}"
    assert table.bound[0] - table.mean <= TIGHT
    assert table.bound[1] - table.worst <= TIGHT


@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("megatron-2019", 0.06),
        ("megatron-2020", 0.06),
        ("narayanan-2021-table-1", 0.05),
        ("narayanan-2021-table-2", 0.05),
        ("korthikanti-2022-table-5", 0.04),
    ],
)
def test_means_of_megatrons_tables_are_what_they_should_be(tables, name: str, most: float) -> None:
    assert tables[name].mean <= most


def test_strong_scaling_of_megascales_baseline_is_within_8_percent(tables) -> None:
    """Jiang et al. 2024, arXiv 2402.15627, Table 2, 256 to 12,288 GPUs."""
    assert tables["megascale-table-2"].worst <= 0.08


def test_recording_changes_nothing_but_bounds(tables) -> None:
    path, _ = load_published()
    text = path.read_text(encoding="utf-8")
    again = recorded(text, list(tables.values()))
    assert [line for line in again.splitlines() if "bound:" not in line] == [
        line for line in text.splitlines() if "bound:" not in line
    ]


def test_an_error_past_its_bound_ends_with_status_1_and_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "workloads" / "measured"
    folder.mkdir(parents=True)
    text = """
tables:
  mine:
    title: mine
    source: a run of ours
    bound: {mean: 0.001, worst: 0.001}
    common: {model: llama-2-7b, cluster: dgx-h100, gpus: 8, micro_batch: 1, global_batch: 8, seq: 4096}
    runs:
      - {id: first, seconds: 1000}
"""
    (folder / "published.yaml").write_text(text, encoding="utf-8")
    result = CliRunner().invoke(main, ["validate", "published", "--check", "--data", str(tmp_path)])
    assert result.exit_code == 1
    assert "mine is not within its bound" in result.stdout


def test_a_run_without_a_measurement_and_one_with_two_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "workloads" / "measured"
    folder.mkdir(parents=True)
    text = "tables:\n  mine:\n    title: t\n    source: s\n    runs:\n      - {id: a, model: b}\n"
    (folder / "published.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as caught:
        load_published([tmp_path])
    assert "seconds" in str(caught.value)
