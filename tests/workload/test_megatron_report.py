"""Megatron-LM's memory report, where people quote figures from it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardsim.schema.model import load_model
from shardsim.values.training import Batch, Layout
from shardsim.workload.megatron_report import megatron_report

LLAMA, BATCH = load_model("llama-2-7b"), Batch(128, 2, 4096)


def test_llama_2_7b_on_eight_gpus_needs_77_gib() -> None:
    """github NVIDIA/Megatron-LM, issue 597: 6.738e9 (6 + 12/8) = 50.5e9 bytes, 32.1e9 bytes of activations."""
    found = megatron_report(LLAMA, Layout(1, 1, 8, zero=1), BATCH, 32000, lean=True)
    assert found.parameters == pytest.approx(6_738_415_616)  # as the model's own count
    assert found.weights_and_optimizer == pytest.approx(50.5e9, rel=1e-3)
    assert found.activations == pytest.approx(32.1e9, rel=1e-3)
    assert found.total / 2**30 == pytest.approx(76.9, rel=1e-3)


def test_without_the_distributed_optimizer_a_parameter_takes_18_bytes() -> None:
    found = megatron_report(LLAMA, Layout(1, 1, 8), BATCH, 32000, lean=True)
    assert found.weights_and_optimizer == 18 * found.parameters


def test_the_fullest_rank_of_a_pipeline_holds_one_end() -> None:
    whole = megatron_report(LLAMA, Layout(1, 1, 8), BATCH, 32000, lean=True).parameters
    half = megatron_report(LLAMA, Layout(1, 2, 8), BATCH, 32000, lean=True).parameters
    ends = 32000 * 4096
    assert half == (whole - 2 * ends) / 2 + ends


def test_korthikantis_layer_takes_34_bytes_a_token_and_width() -> None:
    """arXiv 2205.05198, Table 2: 34 s b h / t with sequence parallelism and selective recompute."""
    gpt = load_model("gpt3-175b")
    found = megatron_report(gpt, Layout(8, 8, 1, sp=True), Batch(64, 1, 2048), 51200, lean=True).activations
    per_layer = 34 * 2048 * gpt.hidden / 8
    assert found == pytest.approx(96 * per_layer + 8 * 2048 * (8 + gpt.hidden) / 8)


def test_interleaving_and_few_micro_batches_change_what_is_in_flight() -> None:
    gpt = load_model("gpt3-175b")
    full = megatron_report(gpt, Layout(8, 8, 1), Batch(64, 1, 2048), 51200, lean=True).activations
    few = megatron_report(gpt, Layout(8, 8, 1), Batch(4, 1, 2048), 51200, lean=True).activations
    chunks = megatron_report(gpt, Layout(8, 8, 1, vpp=3), Batch(64, 1, 2048), 51200, lean=True).activations
    assert few == full / 2
    assert chunks == pytest.approx(full * (1 + 7 / 24))


def test_without_sequence_parallelism_ten_parts_are_not_split() -> None:
    gpt = load_model("gpt3-175b")
    found = megatron_report(gpt, Layout(8, 8, 1), Batch(64, 1, 2048), 51200, lean=False).activations
    tokens = 2048
    assert found == pytest.approx(1.05 * (96 * tokens * gpt.hidden * (10 + 24 / 8) + 8 * tokens * (8 + gpt.hidden)))


def test_experts_are_counted_in_full() -> None:
    from shardsim.values.training import Moe

    moe = replace(LLAMA, moe=Moe(experts=8, top_k=2, ffn=14336, first_dense=2))
    more = megatron_report(moe, Layout(1, 1, 1), BATCH, 32000, lean=True).parameters
    dense = megatron_report(LLAMA, Layout(1, 1, 1), BATCH, 32000, lean=True).parameters
    assert more - dense == 30 * 3 * 4096 * (8 * 14336 - 11008)
