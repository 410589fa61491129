"""Conditions of a machine: slower is never faster, classes of ranks lose nothing, nonsense is refused."""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from shardsim.cli.main import main

FLAGS = [
    *("--model", "llama-3-8b", "--cluster", "dgx-h100", "--gpus", "32", "--tp", "2", "--pp", "2"),
    *("--micro-batch", "1", "--global-batch", "16", "--seq", "4096"),
]
EVERY_KIND = [
    ("--slow-node", "1=1.1"),
    ("--slow-gpu", "9=1.1"),
    ("--slow-host", "1=2"),
    ("--dead-nic", "1/0"),
    ("--slow-nic", "1/0=0.5"),
    ("--slow-nvlink", "9=0.5"),
    ("--swap-ranks", "7,8"),
    ("--speed-spread", "0.01"),
    ("--jitter", "0.02"),
    ("--flow-limit", "5 GB/s"),
]


def _run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["simulate", *FLAGS, *arguments])


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")


@cache
def _json(*arguments: str) -> dict[str, Any]:
    result = _run(*arguments, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout, parse_constant=_refuse_constant)  # type: ignore[no-any-return]


def _seconds(*arguments: str) -> float:
    return float(_json(*arguments)["iteration_s"])


@pytest.fixture(scope="module")
def healthy() -> float:
    return _seconds()


@pytest.mark.parametrize("flags", EVERY_KIND, ids=lambda flags: flags[0])
def test_whatever_is_wrong_costs_time_and_the_cost_is_the_difference(flags: tuple[str, str], healthy: float) -> None:
    found = _json(*flags)
    assert found["iteration_s"] > healthy
    assert found["conditions"]["cost_s"] == pytest.approx(found["iteration_s"] - healthy, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("kind", ["--slow-node", "--slow-host"])
def test_the_slower_a_node_the_slower_the_iteration(kind: str) -> None:
    times = [_seconds(kind, f"1={factor}") for factor in (1, 1.5, 2, 4)]
    assert times == sorted(times)
    assert times[0] < times[-1]


def test_a_condition_that_changes_nothing_costs_nothing(healthy: float) -> None:
    for flags in (("--slow-node", "1=1"), ("--slow-nic", "1/0=1"), ("--slow-nvlink", "9=1"), ("--seed", "5")):
        assert _seconds(*flags) == pytest.approx(healthy, rel=1e-9)


def test_a_dead_adapter_costs_what_its_neighbour_at_half_bandwidth_costs(healthy: float) -> None:
    # Two GPUs on one adapter, or one GPU on half of one; two flows together reach a little more than one does alone.
    half, dead = _seconds("--slow-nic", "1/0=0.5") - healthy, _seconds("--dead-nic", "1/0") - healthy
    assert 0.0 < 0.5 * half < dead <= half * (1 + 1e-9)


@pytest.mark.parametrize("flags", [EVERY_KIND[0] + EVERY_KIND[3], EVERY_KIND[6] + EVERY_KIND[8]], ids=" ".join)
def test_classes_of_ranks_lose_nothing(flags: tuple[str, ...]) -> None:
    assert _seconds(*flags, "--unfold") == pytest.approx(_seconds(*flags), rel=1e-9)


def test_sharing_links_never_speeds_up() -> None:
    narrow = ("--set", "cluster.oversubscription=8", "--set", "cluster.nodes_per_leaf=1")
    for flags in ((), narrow):
        assert _seconds(*flags) >= _seconds(*flags, "--no-contention") * (1 - 1e-9)


def test_an_uneven_hash_costs_where_up_links_are_used_and_only_there(healthy: float) -> None:
    narrow = ("--set", "cluster.oversubscription=8", "--set", "cluster.nodes_per_leaf=1")
    assert _seconds("--ecmp-imbalance", "4") == pytest.approx(healthy, rel=1e-9)
    assert _seconds(*narrow, "--ecmp-imbalance", "4") > _seconds(*narrow)


def test_the_same_seed_gives_the_same_bytes_and_another_another_time() -> None:
    chance = ("--jitter", "0.02", "--speed-spread", "0.01", "--json")
    assert _run(*chance, "--seed", "1").stdout == _run(*chance, "--seed", "1").stdout
    assert _run(*chance, "--seed", "1").stdout != _run(*chance, "--seed", "2").stdout


def test_what_does_not_exist_is_named_all_at_once_by_the_key_a_user_writes() -> None:
    result = _run(
        *("--slow-node", "4=1.1", "--slow-gpu", "32=1.1", "--slow-host", "4=2", "--dead-nic", "0/8"),
        *("--slow-nic", "4/0=0.5", "--slow-nvlink", "99=0.5", "--swap-ranks", "31,32"),
    )
    assert result.exit_code == 2
    for key in ("slow_nodes", "slow_gpus", "slow_hosts", "dead_nics", "slow_nics", "slow_nvlinks", "swap_ranks"):
        assert f"conditions.{key}: " in result.stderr


@pytest.mark.parametrize(
    "flags",
    [
        ("--slow-node", "1=0"),
        ("--slow-node", "1=-1"),
        ("--slow-node", "1=nan"),
        ("--slow-node", "1=inf"),
        ("--slow-node", "1"),
        ("--slow-node", "1=1.1", "--slow-node", "1=1.2"),
        ("--slow-node", "01=1.1", "--slow-node", "1=1.2"),
        ("--slow-nic", "0/0=0.5", "--slow-nic", "0/00=0.1"),
        ("--slow-nic", "0/0=0"),
        ("--slow-nic", "0/0=1.5"),
        ("--dead-nic", "0"),
        ("--dead-nic", "0/0", "--dead-nic", "0/0"),
        ("--swap-ranks", "7,7"),
        ("--swap-ranks", "7,8", "--swap-ranks", "8,9"),
        ("--jitter", "nan"),
        ("--speed-spread", "0.31"),
        ("--ecmp-imbalance", "0.5"),
        ("--flow-limit", "0 GB/s"),
        ("--max-seconds", "nan"),
    ],
    ids=" ".join,
)
def test_nonsense_is_refused_where_it_stands(flags: tuple[str, ...]) -> None:
    result = _run(*flags)
    assert result.exit_code == 2
    key = flags[0].removeprefix("--")
    assert key in result.stderr.replace("_", "-"), result.stderr
    assert "never finish" not in result.stderr


V100 = (
    *("--cluster", "dgx-2h", "--model", "megatron-8.3b", "--gpus", "64", "--tp", "8", "--seq", "1024"),
    *("--framework", "megatron-2021"),
)


@pytest.mark.parametrize(
    "flags",
    [
        ("--cluster", "aws-p5", "--slow-nic", "1/0=0.5"),
        ("--cluster", "aws-p5", *(f for nic in range(32) for f in ("--slow-nic", f"1/{nic}=0.8"))),
        (*V100, "--slow-nvlink", "9=0.5"),
    ],
    ids=["one adapter of four", "all adapters", "NVLink"],
)
def test_a_link_that_has_lost_bandwidth_costs_time_however_well_it_was_used(flags: tuple[str, ...]) -> None:
    # A collective that reaches 60 % of a whole link does not reach the same rate on half of one.
    kept = flags[: flags.index("--slow-nvlink" if "--slow-nvlink" in flags else "--slow-nic")]
    assert _seconds(*flags) > _seconds(*kept) * (1 + 1e-6)


def test_a_bounded_run_is_labelled_and_has_no_iteration_time() -> None:
    result = _run("--max-events", "100", "--json")
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert found["partial"] is True
    assert "iteration_s" not in found
    assert found["passes_done"] < found["passes"]


def test_a_bounded_run_leaves_a_whole_trace_of_what_finished(tmp_path: Path) -> None:
    path = tmp_path / "trace.json.gz"
    assert _run("--max-events", "200", "--trace", str(path)).exit_code == 1
    assert json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    assert [item.name for item in tmp_path.iterdir()] == ["trace.json.gz"]
