"""What a layer keeps between its passes, by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shardsim.schema.framework import load_framework
from shardsim.schema.model import load_model
from shardsim.values.training import Batch, Layout
from shardsim.workload.activations import chunk_activations, kept_tensors, layer_activations
from shardsim.workload.stages import ChunkContent

MID, CORE = load_framework("megatron-2021"), load_framework("megatron-core")
GPT, LLAMA = load_model("gpt3-175b"), load_model("llama-3-8b")
V3, MIXTRAL = load_model("deepseek-v3"), load_model("mixtral-8x7b")
T = 4096
BATCH = Batch(32, 1, T)
ONE = Layout(1, 1, 8, ep=8)


def sizes(model: Any, layout: Layout = ONE, *, moe: bool = False) -> dict[str, float]:
    """Bytes by tensor."""
    return {one.name: float(one.size) for one in kept_tensors(model, layout, BATCH, CORE, moe=moe)}


@pytest.mark.parametrize("ffn", [4 * 12288, 3 * 12288, 20000])
@pytest.mark.parametrize("tp", [1, 8])
def test_gpt_of_any_width_keeps_what_megatron_estimates_with_selective_recompute(ffn: int, tp: int) -> None:
    """s b h (18 + 4 f/h)/t: github NVIDIA/Megatron-LM, megatron/training/theoretical_memory_usage.py."""
    model, layout = replace(GPT, ffn=ffn), Layout(tp, 1, 1, sp=tp > 1, recompute="selective")
    expected = 2048 * 4 * model.hidden * (18 + 4 * ffn / model.hidden) / tp
    assert layer_activations(model, layout, Batch(8, 4, 2048), MID).kept == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("tp", [1, 8])
def test_weight_gradients_of_gpt_wait_with_32_sbh(tp: int) -> None:
    """Zero Bubble's M_W, arXiv 2401.10241, Table 1; under sequence parallelism all of it is split."""
    layout = Layout(tp, 1, 1, sp=tp > 1)
    found = layer_activations(GPT, layout, BATCH, MID)
    assert found.weight_gradient == 32 * T * GPT.hidden / tp
    kept = T * GPT.hidden * (34 + 5 * GPT.heads * T / GPT.hidden) / tp
    assert found.kept == pytest.approx(kept, rel=1e-12)


def test_a_layer_of_deepseek_v3_tensor_by_tensor() -> None:
    assert sizes(V3, moe=True) == {
        "attention norm input": T * 7168 * 2,
        "attention norm output": T * 7168 * 2,
        "latents": T * (1536 + 512) * 2,
        "latent norm output": T * (1536 + 512) * 2,
        "q, k, v": T * 128 * (192 + 192 + 128) * 2,
        "attention output": T * 128 * 128 * 2,
        "mlp norm input": T * 7168 * 2,
        "mlp norm output": T * 7168 * 2,
        "router scores": 2 * T * 256 * 4,
        "routed tokens": 8 * T * 7168 * 2,
        "experts activation input": 8 * T * 2 * 2048 * 2,
        "experts second input": 8 * T * 2048 * 2,
        "shared activation input": T * 2 * 2048 * 2,
        "shared second input": T * 2048 * 2,
    }


def test_a_dense_layer_of_the_same_model_has_a_plain_mlp() -> None:
    dense, mixed = sizes(V3), sizes(V3, moe=True)
    assert dense["mlp activation input"] == T * 2 * 18432 * 2
    assert dense["mlp second input"] == T * 18432 * 2
    assert {name: size for name, size in dense.items() if name in mixed} == {
        name: size for name, size in mixed.items() if name in dense
    }


def test_experts_work_on_as_many_rows_whatever_the_expert_parallel_degree() -> None:
    one = layer_activations(MIXTRAL, Layout(1, 1, 8, ep=1), BATCH, CORE, moe=True)
    assert one == layer_activations(MIXTRAL, Layout(1, 1, 8, ep=8), BATCH, CORE, moe=True)


def test_expert_tensor_parallelism_gathers_rows_and_splits_experts() -> None:
    own, split = (sizes(MIXTRAL, Layout(4, 1, 2, sp=True, etp=etp), moe=True) for etp in (1, 4))
    assert split["routed tokens"] == 4 * own["routed tokens"] == T * 2 * 4096 * 2
    assert split["experts second input"] == own["experts second input"]


def test_without_sequence_parallelism_experts_work_on_each_token_once() -> None:
    """Every tensor-parallel rank holds all tokens then: their experts' ranks do not get copies of them."""
    scattered, whole = (sizes(MIXTRAL, Layout(4, 1, 2, sp=sp, etp=4), moe=True) for sp in (True, False))
    assert whole["routed tokens"] == scattered["routed tokens"] == T * 2 * 4096 * 2


def test_norms_inside_the_next_linear_layer_are_not_repeated_by_themselves() -> None:
    """github NVIDIA/Megatron-LM, transformer_layer.py: recompute of layernorm skips a norm that is an IdentityOp."""
    assert CORE.fused_norms
    asked = Layout(1, 1, 8, ep=8, recompute="selective", recompute_modules=("layernorm",))
    output = T * 4096 * 2

    def saved(model: Any, framework: Any, *, moe: bool = False) -> float:
        plain, found = (layer_activations(model, one, BATCH, framework, moe=moe) for one in (ONE, asked))
        return float(plain.kept - found.kept)

    alone = replace(CORE, fused_norms=False)
    assert [saved(LLAMA, framework) for framework in (CORE, alone)] == [0, 2 * output]
    assert [saved(MIXTRAL, framework, moe=True) for framework in (CORE, alone)] == [output, 2 * output]
    assert saved(V3, CORE, moe=True) == 2 * T * 7168 * 2
    whole = replace(asked, recompute_modules=("mlp",))
    inside, before = (layer_activations(LLAMA, whole, BATCH, framework).kept for framework in (CORE, alone))
    assert before - inside == output  # what a checkpoint around the MLP alone begins with


def test_tensor_parallelism_splits_heads_but_not_latent_vectors() -> None:
    whole, split, scattered = (sizes(V3, Layout(tp, 1, 1, sp=sp)) for tp, sp in ((1, False), (8, False), (8, True)))
    assert whole["q, k, v"] == 8 * split["q, k, v"] == 8 * scattered["q, k, v"]
    assert whole["latents"] == split["latents"] == 8 * scattered["latents"]


@pytest.mark.parametrize("moe", [False, True])
def test_context_parallelism_splits_all_of_it(moe: bool) -> None:
    whole = layer_activations(V3, ONE, BATCH, CORE, moe=moe)
    split = layer_activations(V3, replace(ONE, cp=4), BATCH, CORE, moe=moe)
    assert (split.kept, split.weight_gradient) == (whole.kept / 4, whole.weight_gradient / 4)


@pytest.mark.parametrize(
    ("module", "dropped"),
    [
        ("core_attn", set()),  # a fused kernel keeps its output alone, which the projection needs
        ("layernorm", {"attention norm output", "mlp norm output"}),
        ("mla_up_proj", {"latent norm output", "q, k, v"}),
        ("moe_act", {"experts second input"}),
        ("shared_experts", {"shared activation input", "shared second input"}),
        (
            "moe",
            {
                "router scores",
                "routed tokens",
                "experts activation input",
                "experts second input",
                "shared activation input",
                "shared second input",
            },
        ),
        ("mlp", set()),
    ],
)
def test_modules_of_selective_recompute_drop_what_they_rebuild(module: str, dropped: set[str]) -> None:
    """Meaning of the modules: github NVIDIA/Megatron-LM, megatron/core/transformer/transformer_config.py."""
    layout = replace(ONE, recompute="selective", recompute_modules=(module,))
    plain = layer_activations(V3, ONE, BATCH, CORE, moe=True)
    found = layer_activations(V3, layout, BATCH, CORE, moe=True)
    saved = {name: size for name, size in sizes(V3, moe=True).items() if name in dropped}
    assert len(saved) == len(dropped)
    assert plain.kept - found.kept == sum(saved.values())
    # The two halves of a layer are rebuilt one after the other.
    halves = [
        sum(size for name, size in saved.items() if name.startswith(("attention", "latent", "q,")) is first)
        for first in (True, False)
    ]
    assert found.working_set == max(halves)
    assert found.weight_gradient == plain.weight_gradient


def test_the_mlp_of_a_dense_layer_is_rebuilt_with_its_norm() -> None:
    layout = Layout(1, 1, 1, recompute="selective", recompute_modules=("mlp",))
    plain, found = layer_activations(LLAMA, Layout(1, 1, 1), BATCH, CORE), layer_activations(LLAMA, layout, BATCH, CORE)
    assert plain.kept - found.kept == found.working_set == T * (4096 + 3 * 14336) * 2


def test_full_recompute_keeps_an_input_and_rebuilds_the_layer() -> None:
    plain = layer_activations(V3, ONE, BATCH, CORE, moe=True)
    found = layer_activations(V3, replace(ONE, recompute="full"), BATCH, CORE, moe=True)
    assert (found.kept, found.working_set) == (T * 7168 * 2, plain.kept)


def test_a_chunk_sums_its_layers_with_and_without_experts() -> None:
    dense, mixed = (layer_activations(V3, ONE, BATCH, CORE, moe=moe) for moe in (False, True))
    found = chunk_activations(V3, ONE, BATCH, CORE, ChunkContent(4, False, False, first=1))
    assert found.kept == 2 * dense.kept + 2 * mixed.kept
    assert found.weight_gradient == 2 * dense.weight_gradient + 2 * mixed.weight_gradient
    assert found.working_set == 0


@pytest.mark.parametrize(
    ("method", "count", "inputs", "rebuilt", "freed", "whole"),
    [
        ("uniform", 0, 5, 1, 0, 0),
        ("uniform", 2, 3, 2, 1, 0),  # the last unit is a layer alone, whose input is gone when two are rebuilt
        ("uniform", 9, 1, 5, 0, 0),
        ("block", 0, 5, 1, 0, 0),
        ("block", 2, 2, 0, 0, 3),  # the three layers behind, which are kept whole, are gone before one is rebuilt
        ("block", 9, 5, 1, 0, 0),
    ],
)
def test_units_and_blocks_of_full_recompute(
    method: Any, count: int, inputs: int, rebuilt: int, freed: int, whole: int
) -> None:
    plain = layer_activations(LLAMA, Layout(1, 1, 1), BATCH, CORE)
    layout = Layout(1, 1, 1, recompute="full", recompute_method=method, recompute_layers=count)
    found = chunk_activations(LLAMA, layout, BATCH, CORE, ChunkContent(5, False, False))
    assert found.kept == inputs * T * 4096 * 2 + whole * plain.kept
    assert found.working_set == rebuilt * plain.kept - freed * T * 4096 * 2
    assert found.weight_gradient == 5 * plain.weight_gradient


def test_the_last_layer_of_an_input_gradient_pass_is_rebuilt_beside_what_the_others_left() -> None:
    """arXiv 2205.05198, Table 2, and 2401.10241, Table 1: of 4 layers, 34 s b h + 5 a s² b beside 3 (32 - 2) s b h."""
    unfused = replace(CORE, attention="unfused", dropout=True, fused_norms=False)
    layout = Layout(1, 1, 1, recompute="full")
    found = chunk_activations(GPT, layout, BATCH, unfused, ChunkContent(4, False, False))
    sbh = T * 12288
    softmax = 5 * 96 * BATCH.seq_len * T
    assert found.working_set == 34 * sbh + softmax
    assert found.input_working_set == 34 * sbh + softmax + 3 * (32 - 2) * sbh
    # The end of the pass, when all layers have left what they leave, is less full by a softmax.
    end = found.weight_gradient - found.kept
    assert found.input_working_set - end == (34 - 32 + 2) * sbh + softmax


def test_a_unit_of_layers_is_rebuilt_with_its_experts() -> None:
    layout = replace(ONE, recompute="full", recompute_layers=2)
    dense, mixed = (layer_activations(V3, ONE, BATCH, CORE, moe=moe) for moe in (False, True))
    found = chunk_activations(V3, layout, BATCH, CORE, ChunkContent(4, False, False, first=0))
    assert found.working_set == dense.kept + mixed.kept  # layers 2 and 3, of which 3 has experts


def test_a_chunk_without_layers_keeps_nothing() -> None:
    found = chunk_activations(LLAMA, Layout(1, 1, 1), BATCH, CORE, ChunkContent(0, True, False))
    assert (found.kept, found.weight_gradient, found.working_set) == (0, 0, 0)


def test_attention_and_mlp_side_by_side_share_one_norm() -> None:
    """MegaScale's block, arXiv 2402.15627 §3.1."""
    beside = replace(CORE, parallel_block=True)
    plain, found = (layer_activations(GPT, Layout(1, 1, 1), BATCH, f) for f in (CORE, beside))
    assert plain.kept - found.kept == 2 * T * GPT.hidden * 2
    assert plain.weight_gradient - found.weight_gradient == 2 * T * GPT.hidden * 2


def test_below_16_bits_the_inputs_of_experts_are_kept_narrow() -> None:
    narrow = replace(CORE, low_precision="fp8-delayed")
    found = {one.name: one.size for one in kept_tensors(V3, ONE, BATCH, narrow, moe=True)}
    wide = sizes(V3, moe=True)
    for name in ("routed tokens", "experts second input", "latent norm output"):
        assert found[name] == wide[name] / 2
    assert found["experts activation input"] == wide["experts activation input"]


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_arrays_of_layouts_give_what_each_layout_gives(recompute: Any) -> None:
    tp, etp, micro = np.array([1, 2, 4]), np.array([1, 1, 4]), np.array([1, 2, 3])
    content = ChunkContent(3, True, False, first=2)
    fields = {"recompute": recompute, "recompute_modules": ("moe_act", "mla_up_proj"), "sp": True}
    layouts = Layout(tp, 1, 8, ep=2, etp=etp, **fields)  # type: ignore[arg-type]
    together = chunk_activations(V3, layouts, Batch(96, micro, 1024), CORE, content)  # type: ignore[arg-type]
    for index in range(3):
        one = Layout(int(tp[index]), 1, 8, ep=2, etp=int(etp[index]), **fields)
        alone = chunk_activations(V3, one, Batch(96, int(micro[index]), 1024), CORE, content)
        for name in ("kept", "weight_gradient", "working_set"):
            assert getattr(together, name)[index] == getattr(alone, name)


def test_the_busiest_rank_keeps_more_rows_and_a_limit_of_capacity_fewer() -> None:
    """Dropless, rows follow the imbalance; an expert takes no more than its capacity, or, padded, as much as that."""
    rows = {
        name: sizes(MIXTRAL, replace(ONE, **changes), moe=True)["routed tokens"] / (2 * 4096)
        for name, changes in (
            ("balanced", {}),
            ("busy", {"imbalance": 1.5}),
            ("limited", {"imbalance": 1.5, "capacity_factor": 1.25}),
            ("padded", {"capacity_factor": 1.25, "pads_capacity": True}),
        )
    }
    assert rows == {"balanced": 2 * T, "busy": 3 * T, "limited": 2.5 * T, "padded": 2.5 * T}


def test_queries_and_keys_are_kept_before_their_norms_too() -> None:
    normed = sizes(replace(LLAMA, qk_norm=True))
    assert normed.pop("q, k norm input") == T * (32 + 8) * 128 * 2
    assert normed == sizes(LLAMA)


def test_rows_that_are_weighed_by_a_kernel_of_their_own_are_kept_unweighed_too() -> None:
    apart = replace(CORE, fused_bias_activation=False)
    found = {one.name: one.size for one in kept_tensors(MIXTRAL, ONE, BATCH, apart, moe=True)}
    assert found["experts unweighed"] == 2 * T * 14336 * 2


@pytest.mark.parametrize(("comm", "outputs"), [("p2p", 1), ("all_gather", 2), ("a2a", 2)])
def test_context_parallelism_leaves_a_rank_its_share_and_some_ways_the_kernels_own_output(
    comm: str, outputs: int
) -> None:
    """github NVIDIA/TransformerEngine, context_parallel.py: outputs by chunk, or by heads, are saved as they are."""
    whole, split = sizes(LLAMA), sizes(LLAMA, replace(ONE, cp=4, cp_comm=comm))  # type: ignore[arg-type]
    assert split.pop("attention output of the kernel", 0.0) == (outputs - 1) * whole["attention output"] / 4
    assert split == {name: size / 4 for name, size in whole.items()}


def test_deepseek_keeps_activation_inputs_in_fp8_and_the_attention_output_once_in_twelve_bits() -> None:
    """arXiv 2412.19437 section 3.3.3."""
    deepseek = replace(load_framework("deepseek"), low_precision="fp8-block")
    found = {one.name: float(one.size) for one in kept_tensors(V3, ONE, BATCH, deepseek, moe=True)}
    assert found["experts activation input"] == 8 * T * 2 * 2048 * (1 + 4 / 128)
    assert found["attention output"] == T * 128 * 128 * 1.5
    assert "attention output of the kernel" not in found


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_a_module_of_multi_token_prediction_is_one_more_layer_and_what_it_joins(recompute: Any) -> None:
    layout = replace(ONE, recompute=recompute)
    layer = chunk_activations(V3, layout, BATCH, CORE, ChunkContent(1, False, False, first=60))
    alone = chunk_activations(V3, layout, BATCH, CORE, ChunkContent(0, False, True, first=61, mtp=1))
    hidden = T * 7168 * 2
    if recompute == "none":
        assert alone.kept - layer.kept == (2 + 2 + 1) * hidden  # both inputs, both norm outputs, the last norm's input
    else:
        assert alone.kept == 2 * hidden
        assert alone.working_set - layer.working_set == 3 * hidden
    assert alone.weight_gradient - layer.weight_gradient == 3 * hidden
