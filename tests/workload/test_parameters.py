"""Which parameters a rank holds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from shardsim.schema.framework import load_framework
from shardsim.schema.model import load_model
from shardsim.values.training import Layout, Model
from shardsim.workload.kinds import is_expert_layer
from shardsim.workload.parameters import (
    active_parameters,
    expert_layers,
    held_parameters,
    layer_parameters,
    layer_tensors,
    linear_weights,
    model_parameters,
    unsplit_layer_parameters,
)
from shardsim.workload.stages import ChunkContent

CORE = replace(load_framework("megatron-core"), vocab_multiple=1)
V3, MIXTRAL, LLAMA, GPT = (load_model(n) for n in ("deepseek-v3", "mixtral-8x7b", "llama-3-8b", "gpt3-175b"))


def whole(model: Model) -> ChunkContent:
    return ChunkContent(model.layers, True, True)


@pytest.mark.parametrize("model", [V3, MIXTRAL, LLAMA, GPT], ids=lambda model: model.name)
def test_one_rank_alone_holds_the_model(model: Model) -> None:
    assert held_parameters(model, Layout(1, 1, 1), CORE, whole(model)).total == model_parameters(model)


@pytest.mark.parametrize("layers", [[61], [3, 58], [1, 20, 39, 1], [0, 61]])
def test_chunks_hold_the_model_between_them(layers: list[int]) -> None:
    first, total, expert = 0, 0.0, 0.0
    for index, count in enumerate(layers):
        content = ChunkContent(count, index == 0, index == len(layers) - 1, first)
        held = held_parameters(V3, Layout(1, len(layers), 1), CORE, content)
        total, expert, first = total + held.total, expert + held.expert, first + count
    assert total == model_parameters(V3)
    assert expert == 58 * 256 * 3 * 7168 * 2048


def test_expert_parallelism_deals_out_experts_alone() -> None:
    one, eight = (held_parameters(V3, Layout(1, 1, 8, ep=ep), CORE, whole(V3)) for ep in (1, 8))
    assert eight.expert == one.expert / 8
    assert eight.shared == one.shared


def test_expert_tensor_parallelism_splits_each_expert_and_tensor_parallelism_the_rest() -> None:
    tp, etp, both = (
        held_parameters(MIXTRAL, Layout(t, 1, 8, etp=e), CORE, whole(MIXTRAL)) for t, e in ((4, 1), (1, 4), (4, 4))
    )
    assert tp.expert == 4 * etp.expert == 4 * both.expert
    assert tp.shared == both.shared < etp.shared


def test_tensor_parallelism_leaves_latent_projections_routers_and_norms_whole() -> None:
    content = ChunkContent(1, False, False, first=10)
    one, eight = (held_parameters(V3, Layout(t, 1, 1), CORE, content).shared for t in (1, 8))
    split = 128 * (1536 * 192 + 512 * 256 + 128 * 7168) + 3 * 7168 * 2048
    assert one - eight == pytest.approx(split * 7 / 8, rel=1e-12)
    kept = 7168 * (1536 + 512 + 64) + 1536 + 512 + 7168 * 256 + 2 * 7168
    assert one == split + kept


def test_experts_begin_behind_the_dense_layers() -> None:
    assert [is_expert_layer(V3, index) for index in range(5)] == [False, False, False, True, True]
    assert expert_layers(V3) == 58
    assert not is_expert_layer(LLAMA, 0)


def test_one_in_so_many_layers_may_have_experts() -> None:
    assert MIXTRAL.moe is not None
    model = replace(MIXTRAL, moe=replace(MIXTRAL.moe, first_dense=2, every=3))
    assert [index for index in range(model.layers) if is_expert_layer(model, index)] == list(range(4, 32, 3))
    plain, mixed = unsplit_layer_parameters(model), unsplit_layer_parameters(model, moe=True)
    rest = 2 * 32000 * 4096 + 4096
    assert model_parameters(model) == 22 * plain + 10 * mixed + rest


def test_a_gate_for_shared_experts_is_one_more_row_of_the_router() -> None:
    assert V3.moe is not None
    gated = replace(V3, moe=replace(V3.moe, shared_gate=True))
    assert model_parameters(gated) - model_parameters(V3) == 58 * 7168


def test_a_token_meets_the_experts_it_goes_to() -> None:
    assert active_parameters(LLAMA) == model_parameters(LLAMA)
    assert model_parameters(MIXTRAL) - active_parameters(MIXTRAL) == 32 * 6 * 3 * 4096 * 14336


def test_a_tied_head_is_a_copy_of_the_embedding_on_another_stage() -> None:
    content = ChunkContent(1, True, True)
    one, two = (held_parameters(GPT, Layout(8, pp, 2), CORE, content) for pp in (1, 2))
    assert two.shared - one.shared == 51200 / 8 * 12288
    assert one.expert == two.expert == 0


def test_attention_and_mlp_side_by_side_have_one_norm() -> None:
    """arXiv 2402.15627 §3.1; a LayerNorm of GPT is two tensors of h."""
    beside = replace(CORE, parallel_block=True)
    apart, shared = (layer_parameters(GPT, Layout(8, 1, 1), framework) for framework in (CORE, beside))
    assert apart - shared == 2 * 12288
    assert layer_tensors(GPT, CORE) - layer_tensors(GPT, beside) == 2
    content = ChunkContent(3, False, False)
    held = [held_parameters(GPT, Layout(8, 1, 1), framework, content).shared for framework in (CORE, beside)]
    assert held[0] - held[1] == 3 * 2 * 12288


def test_linear_layers_are_all_but_norms_routers_and_tables() -> None:
    layout, content = Layout(2, 1, 8, ep=4, etp=2), ChunkContent(4, True, True, first=1)
    held = held_parameters(V3, layout, CORE, replace(content, embedding=False, head=False))
    others = 4 * (2 * 7168 + 1536 + 512) + 2 * 7168 * 256
    assert linear_weights(V3, layout, content) == held.total - others
    assert linear_weights(LLAMA, Layout(1, 1, 1), ChunkContent(1, False, False)) == 218_112_000 - 2 * 4096


def test_arrays_of_layouts_give_what_each_layout_gives() -> None:
    tp, ep = np.array([1, 2, 4]), np.array([8, 4, 2])
    content = ChunkContent(5, True, True, first=1)
    together = held_parameters(V3, Layout(tp, 1, 8, ep=ep), CORE, content)  # type: ignore[arg-type]
    for index in range(3):
        alone = held_parameters(V3, Layout(int(tp[index]), 1, 8, ep=int(ep[index])), CORE, content)
        assert together.shared[index] == alone.shared  # type: ignore[index]
        assert together.expert[index] == alone.expert  # type: ignore[index]
