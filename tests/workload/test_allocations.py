"""Device memory of one rank beyond the published equations."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from shardsim.errors import InputError
from shardsim.schema.framework import load_framework
from shardsim.schema.model import load_model
from shardsim.values.training import Batch, Layout
from shardsim.workload.allocations import activation_bytes_per_layer, stage_allocations
from shardsim.workload.parameters import stage_parameters

OLD, MID, CORE = (load_framework(name) for name in ("megatron-2019", "megatron-2021", "megatron-core"))
GPT, LLAMA = load_model("megatron-8.3b"), load_model("llama-3-8b")
GIB = 2.0**30


def test_a_llama_layer_tensor_by_tensor() -> None:
    tokens = 8192
    expected = tokens * (
        2 * 4096 * 2  # inputs of both norms
        + 2 * 4096 * 2  # their outputs
        + (32 + 2 * 8) * 128 * 2  # Q, K, V
        + 4096 * 2  # attention output
        + 3 * 14336 * 2  # gate, up and their product
    )
    batch = Batch(1, 1, 8192)
    assert activation_bytes_per_layer(LLAMA, Layout(1, 1, 1), batch, CORE) == expected
    assert activation_bytes_per_layer(LLAMA, Layout(8, 1, 1, sp=True), batch, CORE) == expected / 8


def test_flash_attention_keeps_what_selective_recompute_keeps() -> None:
    flash, batch = replace(MID, attention="flash"), Batch(8, 8, 1024)
    layout = Layout(8, 1, 1)
    kept = activation_bytes_per_layer(GPT, layout, batch, flash)
    assert kept == activation_bytes_per_layer(GPT, replace(layout, recompute="selective"), batch, MID)


def test_sequence_parallelism_splits_the_checkpoints_of_full_recompute() -> None:
    batch, layout = Batch(8, 8, 1024), Layout(8, 1, 1, recompute="full")
    whole = activation_bytes_per_layer(GPT, layout, batch, MID)
    assert activation_bytes_per_layer(GPT, replace(layout, sp=True), batch, MID) == whole / 8


def test_states_of_the_first_stage() -> None:
    layout = Layout(8, 4, 2)
    found = stage_allocations(GPT, layout, Batch(64, 8, 1024), MID, 0)
    parameters = stage_parameters(GPT, layout, MID, 0)
    assert (found.weights, found.gradients, found.optimizer) == (2 * parameters, 2 * parameters, 16 * parameters)
    assert found.context == MID.context_bytes
    assert found.logits == 0


def test_the_last_chunk_alone_holds_the_softmax_of_the_loss() -> None:
    layout, batch = Layout(8, 4, 2, vpp=2, schedule="interleaved"), Batch(64, 8, 1024)
    found = stage_allocations(replace(GPT, layers=16), layout, batch, MID, 3)
    logits = 8192 * 51200 / 8
    extra = found.activation_per_chunk[1] - found.activation_per_chunk[0]
    assert extra == 4 * logits + 2 * 8192 * 3072 * 2
    assert found.logits == 2 * logits
    copying = replace(MID, loss_in_place=False)
    assert stage_allocations(replace(GPT, layers=16), layout, batch, copying, 3).logits == 8 * logits


def test_recomputation_rebuilds_one_layer() -> None:
    batch, layout = Batch(8, 8, 1024), Layout(8, 1, 1)
    one_layer = activation_bytes_per_layer(GPT, layout, batch, MID)
    core = one_layer - activation_bytes_per_layer(GPT, replace(layout, recompute="selective"), batch, MID)
    for recompute, expected in (("none", 0.0), ("selective", core), ("full", one_layer)):
        changed = replace(layout, recompute=recompute)  # type: ignore[arg-type]
        assert stage_allocations(GPT, changed, batch, MID, 0).recompute_working_set == expected


def test_overlap_in_buckets_takes_a_second_copy_of_the_gradients_where_buckets_are_copies() -> None:
    layout, batch = Layout(8, 1, 64, recompute="full"), Batch(512, 8, 1024)
    never, always = (replace(OLD, overlap_grad_reduce=policy) for policy in ("never", "always"))  # type: ignore[arg-type]
    without, within = (stage_allocations(GPT, layout, batch, framework, 0) for framework in (never, always))
    assert within.buffers - without.buffers == within.gradients
    core = stage_allocations(LLAMA, replace(layout, zero=1), batch, CORE, 0)
    assert core.buffers < core.gradients


def test_the_total_counts_the_larger_of_logits_and_working_set() -> None:
    layout, batch = Layout(8, 2, 1, recompute="full"), Batch(64, 8, 1024)
    for stage in (0, 1):
        found = stage_allocations(GPT, layout, batch, MID, stage)
        fixed = found.weights + found.gradients + found.optimizer + found.buffers
        moving = 2 * found.activation_per_chunk[0] + max(found.logits, found.recompute_working_set)
        assert found.total_at((2.0,)) == pytest.approx((fixed + moving) / 0.94 + found.context)


@pytest.mark.parametrize(
    ("size", "tp", "overlaps"), [("1.2b", 1, False), ("2.5b", 2, False), ("4.2b", 4, True), ("8.3b", 8, True)]
)
def test_gradient_buckets_suit_the_models_of_2019_that_the_readme_of_megatron_says(
    size: str, tp: int, *, overlaps: bool
) -> None:
    """All four train on a 32 GB card; a second copy of the gradients is too much for the two smaller models."""
    model, layout = load_model(f"megatron-{size}"), Layout(tp, 1, 64, recompute="full")
    card = 31.75 * GIB
    plain, bucketed = (
        stage_allocations(model, layout, Batch(512, 8, 1024), replace(OLD, overlap_grad_reduce=policy), 0)  # type: ignore[arg-type]
        for policy in ("never", "always")
    )
    assert plain.total_at((1.0,)) <= card
    assert (bucketed.total_at((1.0,)) <= card) is overlaps


def test_there_is_no_stage_beyond_the_last() -> None:
    with pytest.raises(InputError, match="0 to 3"):
        stage_allocations(GPT, Layout(8, 4, 1), Batch(64, 8, 1024), MID, 4)


def test_arrays_of_layouts_give_what_each_layout_gives() -> None:
    tp, dp, micro = np.array([1, 2, 4, 8]), np.array([1, 2, 4, 8]), np.array([1, 2, 3, 4])
    for recompute in ("none", "selective", "full"):
        together = stage_allocations(
            GPT,
            Layout(tp, 2, dp, zero=1, sp=True, recompute=recompute),
            Batch(96, micro, 1024),
            MID,
            1,  # type: ignore[arg-type]
        ).total_at((2.0,))
        for index in range(4):
            layout = Layout(int(tp[index]), 2, int(dp[index]), zero=1, sp=True, recompute=recompute)  # type: ignore[arg-type]
            alone = stage_allocations(GPT, layout, Batch(96, int(micro[index]), 1024), MID, 1).total_at((2.0,))
            assert together[index] == alone  # type: ignore[index]
