"""``shardsim model roofline``: table, JSON and plot."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from shardsim.cli.main import main
from shardsim.report.roofline_plot import _spread


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["model", "roofline", *map(str, arguments)])


@pytest.mark.parametrize(
    "arguments",
    [
        ("llama-3-8b", "--cluster", "dgx-h100", "--seq", 8192),
        ("gpt3-175b", "--cluster", "dgx-a100", "--tp", 8, "--sp", "--recompute", "full"),
        ("megatron-1.2b", "--cluster", "dgx-2h", "--framework", "megatron-2019", "--micro-batch", 8, "--seq", 1024),
    ],
)
def test_the_table_fits_100_columns_and_names_the_bound_of_every_operator(arguments: tuple[object, ...]) -> None:
    result = run(*arguments)
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 100
    record = json.loads(run(*arguments, "--json").stdout)
    for operator in record["operator_costs"]:
        (line, *_) = (text for text in lines if text.startswith(f" {operator['name']} "))
        assert operator["basis"] in line
    assert sum(operator["share"] for operator in record["operator_costs"]) == pytest.approx(1.0)
    assert "time by bound: " in result.stdout


def test_flags_are_those_of_simulate(tmp_path: Path) -> None:
    one, eight = (
        json.loads(run("llama-3-8b", "--cluster", "dgx-h100", "--tp", tp, "--micro-batch", 2, "--json").stdout)
        for tp in (1, 8)
    )
    assert one["run"]["batch"]["micro"] == 2
    assert eight["run"]["gpus"] == 8
    assert one["flop"] == pytest.approx(8 * eight["flop"])
    slow = run(
        "llama-3-8b", "--cluster", "dgx-h100", "--micro-batch", 2, "--set", "kernels.gemm.bf16.sustained=0.1", "--json"
    )
    assert json.loads(slow.stdout)["seconds"] > 2 * one["seconds"]
    result = run("llama-3-8b", "--cluster", "dgx-h100", "--plot", tmp_path / "a.gif")
    assert result.exit_code == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_the_plot_is_the_same_for_the_same_layer(tmp_path: Path, suffix: str) -> None:
    plots = [tmp_path / f"{name}.{suffix}" for name in "ab"]
    for plot in plots:
        result = run("gpt3-175b", "--cluster", "dgx-a100", "--tp", 8, "--sp", "--plot", plot)
        assert result.exit_code == 0, result.stderr
    assert plots[0].read_bytes() == plots[1].read_bytes()


@pytest.mark.parametrize("wanted", [[0.9] * 12, [0.9, 0.5, 0.5, 0.5, 0.1], [1.0, 0.99, 0.98, 0.02, 0.01, 0.0], [0.5]])
def test_labels_never_overlap_and_stay_inside(wanted: list[float]) -> None:
    step = 0.07
    places = _spread(wanted, step)
    assert all(above - below >= step - 1e-9 for above, below in pairwise(places))
    assert all(-1e-9 <= place <= 1.0 + 1e-9 for place in places)


def test_labels_that_have_room_stay_where_they_are() -> None:
    assert _spread([0.9, 0.5, 0.1], 0.1) == pytest.approx([0.9, 0.5, 0.1])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["gpt3-175", "--cluster", "dgx-a100"], "did you mean gpt3-175b"),
        (["gpt3-175b", "--cluster", "dgx-a10"], "did you mean dgx-a100"),
        (["gpt3-175b"], "cluster"),
        (["gpt3-175b", "--cluster", "dgx-a100", "--tp", "7"], "7"),
    ],
)
def test_bad_input_is_told_with_what_would_be_right(arguments: list[str], said: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert said in result.stderr
    assert "Traceback" not in result.output
