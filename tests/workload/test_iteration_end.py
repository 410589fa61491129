"""Gradients, optimizer and pipeline messages: what happens between micro-batches and iterations."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from shardsim.schema.framework import load_framework
from shardsim.schema.model import load_model
from shardsim.values.training import Batch, Layout
from shardsim.workload.data_parallel import (
    embedding_gradient_reduction,
    gradient_norm,
    gradient_packing,
    gradient_reduction,
    gradient_unpacking,
    optimizer_bytes_per_parameter,
    optimizer_step,
    parameter_gather,
)
from shardsim.workload.parameters import embedding_parameters, head_parameters, held_parameters, layer_parameters
from shardsim.workload.pipeline import p2p_message
from shardsim.workload.stages import ChunkContent

OLD, MID, CORE = (load_framework(name) for name in ("megatron-2019", "megatron-2021", "megatron-core"))
GPT, LLAMA = load_model("narayanan-145.6b"), load_model("llama-3-70b")


def test_gradients_are_all_reduced_in_fp16_without_a_distributed_optimizer() -> None:
    (found,) = gradient_reduction(1e9, Layout(1, 1, 64), MID)
    assert (found.kind, found.axis, found.size) == ("all_reduce", "dp", 2e9)


def test_gradients_are_packed_by_the_rules_of_each_data_parallelism() -> None:
    local, torch = (replace(OLD, overlap_grad_reduce=policy) for policy in ("never", "always"))  # type: ignore[arg-type]
    for framework, each, launches in ((local, 12, 102), (torch, 4, 100), (MID, 4, 1), (CORE, 8, 1)):
        found = gradient_packing(1e9, framework, 100)
        assert (found.bytes_moved, found.kernels) == (each * 1e9, launches)
    (back,) = gradient_unpacking(1e9, torch, 100)
    assert (back.bytes_moved, back.kernels) == (4e9, 100)
    assert gradient_unpacking(1e9, CORE, 100) == ()


def test_the_distributed_optimizer_scatters_gradients_and_gathers_parameters() -> None:
    layout = Layout(1, 1, 64, zero=1)
    (found,) = gradient_reduction(1e9, layout, CORE)
    assert (found.kind, found.size) == ("reduce_scatter", 4e9)
    gather = parameter_gather(1e9, layout, CORE)
    assert (gather.kind, gather.axis, gather.size) == ("all_gather", "dp", 2e9)
    assert optimizer_step(1e9, layout, CORE).parameters == 1e9 / 64


def test_the_gradients_of_a_tied_embedding_are_summed_over_two_stages() -> None:
    found = embedding_gradient_reduction(GPT, Layout(8, 8, 24), MID)
    assert (found.kind, found.axis, found.size) == ("all_reduce", "embedding", 51200 / 8 * 12288 * 2)


def test_the_gradient_norm_is_one_number() -> None:
    found = gradient_norm(Layout(8, 8, 24))
    assert (found.axis, found.size) == ("model", 4)


@pytest.mark.parametrize(
    ("recipe", "gradient_bytes", "expected"), [("fp16", 2, 62.0), ("bf16", 4, 50.0), ("fp32", 4, 44.0)]
)
def test_optimizer_traffic_a_parameter(recipe: Any, gradient_bytes: int, expected: float) -> None:
    framework = replace(MID, recipe=recipe, gradient_bytes=gradient_bytes)
    assert optimizer_bytes_per_parameter(framework) == expected


def test_an_optimizer_that_is_not_fused_launches_by_tensor_and_moves_more() -> None:
    layout = Layout(1, 1, 1)
    fused, separate = (
        optimizer_step(1e9, layout, MID, 100),
        optimizer_step(1e9, layout, replace(MID, fused_optimizer=False), 100),
    )
    assert fused.kernels < 10
    assert separate.kernels == 100 * (fused.kernels + 6)
    assert separate.bytes_moved > fused.bytes_moved


def test_messages_between_stages_are_b_s_h_and_less_with_scatter_gather_or_sequence_parallelism() -> None:
    whole = 2 * 2048 * 12288 * 2
    shape = (GPT, Layout(8, 8, 24), Batch(2304, 2, 2048))
    assert (p2p_message(*shape, OLD).size, p2p_message(*shape, OLD).gather) == (whole, 0.0)
    assert (p2p_message(*shape, MID).size, p2p_message(*shape, MID).gather) == (whole / 8, whole)
    split = p2p_message(GPT, Layout(8, 8, 24, sp=True), Batch(2304, 2, 2048), MID)
    assert (split.size, split.gather) == (whole / 8, 0.0)


@pytest.mark.parametrize(("model", "tp", "pp"), [(GPT, 8, 8), (LLAMA, 8, 4), (LLAMA, 4, 1), (GPT, 1, 1), (GPT, 2, 10)])
def test_stages_hold_all_parameters_between_them(model: Any, tp: int, pp: int) -> None:
    layout, framework = Layout(tp, pp, 1), MID if model is GPT else CORE
    parts = [layer_parameters, embedding_parameters, head_parameters]
    layer, first, last = (part(model, layout, framework) for part in parts)
    count = model.layers // pp
    contents = [ChunkContent(count, stage == 0, stage == pp - 1, count * stage) for stage in range(pp)]
    stages = [held_parameters(model, layout, framework, content).total for content in contents]
    assert sum(stages) == model.layers * layer + first + last
    assert stages[0] == count * layer + first + (last if pp == 1 else 0)
