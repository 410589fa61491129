"""What ranks send in an iteration, against volumes worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from shardsim.program.build import build
from shardsim.program.resolve import resolve
from shardsim.program.traffic import Traffic, blocks_run, mean_of_stages, traffic
from shardsim.schema.run import RunRequest
from shardsim.values.training import TrainingRun

GIB = 2.0**30


def run_of(layout: dict[str, Any], gpus: int, **keys: Any) -> TrainingRun:
    asked = {"cluster": "dgx-a100", "framework": "megatron-core", "gpus": gpus, "layout": layout}
    return resolve(RunRequest.model_validate(asked | keys))


def rows_of(rows: tuple[Traffic, ...], axis: str, stage: int = 0) -> dict[str, Traffic]:
    return {row.operation: row for row in rows if (row.stage, row.axis) == (stage, axis)}


@pytest.fixture(scope="module")
def dense() -> TrainingRun:
    """GPT of 24 layers: TP 8 in the node, PP 2 and DP 2 on four nodes, 8 micro-batches of 4 x 2048 tokens."""
    batch = {"global": 64, "micro": 4, "seq": 2048}
    layout = {"tp": 8, "pp": 2, "sp": False, "recompute": "none", "zero": 0}
    return resolve(
        RunRequest.model_validate(
            {"model": "narayanan-1.7b", "cluster": "dgx-a100", "framework": "megatron-2021", "gpus": 32,
             "layout": layout, "batch": batch}
        )
    )  # fmt: skip


@pytest.fixture(scope="module")
def rows(dense: TrainingRun) -> tuple[Traffic, ...]:
    return traffic(dense)


def test_tensor_parallelism_sends_four_activations_a_layer_around_the_ring(
    dense: TrainingRun, rows: tuple[Traffic, ...]
) -> None:
    """2 (t - 1)/t of b s h elements, twice forward and twice backward, in 12 layers and 8 micro-batches."""
    sums = rows_of(rows, "tp")["all_reduce"]
    whole = 4 * 2048 * dense.model.hidden * 2
    layers = 4 * dense.model.layers / 2 * 8
    embedding = 8  # its sum, forward
    expected = 2 * 7 / 8 * whole * (layers + embedding)
    assert sums.sent["nvlink"] == pytest.approx(expected, rel=1e-6)
    assert (sums.sent["nic"], sums.times) == (0.0, layers + embedding)


def test_stages_send_one_activation_a_micro_batch_each_way(dense: TrainingRun, rows: tuple[Traffic, ...]) -> None:
    share = 4 * 2048 * dense.model.hidden * 2 / (8 if dense.framework.scatter_gather else 1)
    for stage in (0, 1):
        row = rows_of(rows, "pp", stage)["message"]
        assert (row.times, row.sent["nvlink"]) == (8, 0.0)
        assert row.sent["nic"] == 8 * share


def test_blocks_of_a_stage_are_as_many_as_its_passes(dense: TrainingRun) -> None:
    program = build(dense)
    for stage in (0, 1):
        blocks = blocks_run(program, stage)
        assert sum(times for block, times in blocks if block.name in ("forward", "backward")) == 16


def test_the_mean_of_stages_adds_up_to_all(rows: tuple[Traffic, ...]) -> None:
    for row in mean_of_stages(rows):
        alike = [one for one in rows if (one.axis, one.operation) == (row.axis, row.operation)]
        assert row.sent["nvlink"] * 2 == pytest.approx(sum(one.sent["nvlink"] for one in alike))
        assert row.seconds * 2 == pytest.approx(sum(one.seconds for one in alike))


def test_deepseek_v3_sends_each_token_to_three_and_a_half_other_nodes() -> None:
    """EP 64 on 8 nodes, at most 4 of them a token (facts F.1): 3.5 T h bytes a dispatch, twice that a combine.

    In FP8 every 128 elements bring a scale of 4 bytes. A stage of four layers of 32 micro-batches does so forward and
    backward.
    """
    layout = {"pp": 16, "ep": 64, "schedule": "dualpipe", "stage_layers": (*(4,) * 15, 1)}
    batch = {"global": 4096, "micro": 1, "seq": 4096}
    run = run_of(layout, 2048, model="deepseek-v3", cluster="hgx-h800", framework="deepseek", batch=batch)
    rows = traffic(run)
    ep = rows_of(rows, "ep", stage=7)
    passes = 4 * 32 * 2
    tokens = 3.5 * 4096 * 7168
    assert ep["dispatch"].times == ep["combine"].times == passes
    assert ep["dispatch"].sent["nic"] == pytest.approx(passes * tokens * (1 + 4 / 128), rel=0.01)
    assert ep["combine"].sent["nic"] == pytest.approx(passes * tokens * 2, rel=0.01)
    assert ep["combine"].sent["leaf"] == 0.0  # its eight nodes hang on one leaf
    assert rows_of(rows, "tp") == {}
    assert rows_of(rows, "edp", stage=7)["reduce_scatter"].sent["nvlink"] == 0.0


def test_messages_cross_leaves_where_the_next_stage_hangs_on_another() -> None:
    """128 ranks a stage are 16 nodes, 32 of which share a leaf: every other message leaves it."""
    layout = {"pp": 16, "schedule": "1f1b", "stage_layers": (7, *(8,) * 14, 7), "tp": 8}
    batch = {"global": 128, "micro": 1, "seq": 8192}
    run = run_of(layout, 2048, model="llama-3-405b", cluster="hgx-h100", batch=batch)
    rows = traffic(run)
    leaves = {stage: rows_of(rows, "pp", stage)["message"] for stage in (0, 1, 15)}
    assert leaves[0].sent["leaf"] == 0.0
    assert leaves[1].sent["leaf"] == leaves[1].sent["nic"] / 2
    assert leaves[15].sent["leaf"] == 0.0
