"""``shardsim collective``: time, bandwidths, the algorithm and why."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from shardsim.cli.main import main


def run(*arguments):
    return CliRunner().invoke(main, ["collective", *arguments])


def answer(*arguments):
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


def test_the_documented_command_names_time_bandwidths_algorithm_and_why():
    result = run("all_reduce", "1GiB", "--cluster", "dgx-h100", "--ranks", "8")
    assert result.exit_code == 0, result.output
    for word in ("time", "algbw", "busbw", "nvls Simple", "library expects", "fitted from"):
        assert word in result.output


def test_json_holds_the_same_in_si_units():
    found = answer("all_reduce", "1GiB", "--cluster", "dgx-h100", "--ranks", "8")
    assert found["algbw_bytes_per_s"] == pytest.approx(2**30 / found["time_s"])
    assert found["busbw_bytes_per_s"] == pytest.approx(1.75 * found["algbw_bytes_per_s"])
    assert found["candidates"][0]["algorithm"] == found["algorithm"]
    assert found["busbw_bytes_per_s"] == pytest.approx(470e9, rel=0.05)


def test_ranks_may_be_spread_over_nodes():
    packed = answer("all_reduce", "1GiB", "--cluster", "dgx-h100", "--ranks", "16")
    spread = answer("all_reduce", "1GiB", "--cluster", "dgx-h100", "--ranks", "16", "--per-node", "1")
    assert (packed["nodes"], spread["nodes"]) == (2, 16)
    assert spread["time_s"] > 4 * packed["time_s"]


def test_an_algorithm_can_be_forced_and_is_then_no_faster_than_the_choice():
    chosen = answer("all_reduce", "1GiB", "--cluster", "dgx-h100", "--ranks", "8")
    ring = answer("all_reduce", "1GiB", "--cluster", "dgx-h100", "--ranks", "8", "--algorithm", "ring")
    assert ring["algorithm"].startswith("ring")
    assert ring["time_s"] > chosen["time_s"]


def test_one_rank_has_nothing_to_do():
    result = run("all_reduce", "1GiB", "--cluster", "dgx-h100", "--ranks", "1")
    assert result.exit_code == 0
    assert "nothing to do" in result.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("all_reduce", "1GiB", "--cluster", "dgx-h100", "--ranks", "80", "--algorithm", "nvls"), "cannot serve"),
        (("all_reduce", "1GiB", "--cluster", "dgx-h100", "--ranks", "8", "--algorithm", "star"), "nvls_tree"),
        (("all_reduce", "4 parsecs", "--cluster", "dgx-h100", "--ranks", "8"), "unit of size"),
        (("all_reduce", "1GiB", "--cluster", "selene", "--ranks", "9000"), "at most 4480"),
        (("all_reduce", "1GiB", "--cluster", "dgx-h100", "--ranks", "9", "--per-node", "2"), "multiple of 2"),
        (("all_reduce", "1GiB", "--cluster", "dgx-h100", "--ranks", "18", "--per-node", "9"), "at most 8"),
        (("all_reduce", "1GiB", "--cluster", "dgx-x", "--ranks", "8"), "dgx"),
        (("shuffle", "1GiB", "--cluster", "dgx-h100", "--ranks", "8"), "all_reduce"),
    ],
)
def test_bad_input_is_told_in_one_line_and_status_2(arguments, words):
    result = run(*arguments)
    assert result.exit_code == 2
    assert words in result.output + result.stderr
