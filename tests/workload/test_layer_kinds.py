"""Layers of several kinds: experts in the place of the MLP, windows, norms of heads, biases and sinks."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardsim.schema.framework import load_framework
from shardsim.schema.model import load_model
from shardsim.values.operators import Attention, Collective, Elementwise, Gemm, Operator, TokenExchange
from shardsim.values.training import Batch, Framework, Layout, Mla, Model, Moe
from shardsim.workload.flops import (
    attention_core_flop,
    attention_flop,
    executed_flop,
    head_forward_flop,
    layer_forward_flop,
    layers_forward_flop,
    model_flop,
    prediction_forward_flop,
)
from shardsim.workload.kinds import PLAIN, LayerKind, layer_kind
from shardsim.workload.layer import layer_backward, layer_forward, recomputed_forward
from shardsim.workload.parameters import layer_held, layer_tensors, mtp_parameters, unsplit_layer_parameters
from shardsim.workload.validity import check

CORE = load_framework("megatron-core")
UNFUSED = replace(CORE, attention="unfused")
V3, MIXTRAL, OSS, QWEN = (load_model(n) for n in ("deepseek-v3", "mixtral-8x7b", "gpt-oss-120b", "qwen3-30b-a3b"))
MOE = LayerKind(moe=True)
BATCH = Batch(8, 1, 4096)
ONE = Layout(1, 1, 1)


def flop(operators: tuple[Operator, ...]) -> float:
    return float(sum(one.flop for one in operators if isinstance(one, Gemm | Attention)))


def named(operators: tuple[Operator, ...], kind: type = object) -> list[str]:
    return [one.name for one in operators if isinstance(one, kind)]


# ---- FLOP ---------------------------------------------------------------------------------------------------------


@given(
    heads=st.sampled_from([8, 16]),
    kv_heads=st.sampled_from([8, 4]),
    latent=st.booleans(),
    experts=st.sampled_from([8, 32]),
    top_k=st.integers(1, 4),
    shared=st.sampled_from([0, 1024]),
    gate=st.booleans(),
    moe=st.booleans(),
    tp=st.sampled_from([1, 2, 4]),
    ep=st.sampled_from([1, 2, 8]),
    etp=st.sampled_from([1, 2]),
)
def test_products_of_a_layer_over_all_ranks_are_the_closed_form(
    *,
    heads: int, kv_heads: int, latent: bool, experts: int, top_k: int, shared: int, gate: bool, moe: bool,
    tp: int, ep: int, etp: int,
) -> None:  # fmt: skip
    mla = Mla(384, 256, 64, 32, 64) if latent else None
    model = replace(
        MIXTRAL,
        hidden=2048,
        heads=heads,
        kv_heads=heads if latent else kv_heads,
        head_dim=96 if latent else 64,
        mla=mla,
        moe=Moe(experts, top_k, 512, shared, shared_gate=gate and shared > 0),
    )
    layout, kind = Layout(tp, 1, 8, sp=tp > 1, ep=ep, etp=min(etp, tp)), LayerKind(moe=moe)
    shape = (model, layout, Batch(16, 2, 1024), UNFUSED, kind)
    there, back = flop(layer_forward(*shape)), flop(layer_backward(*shape))
    assert tp * there == pytest.approx(layer_forward_flop(model, 2, 1024, kind), rel=1e-12)
    assert back == pytest.approx(2 * there, rel=1e-12)


@pytest.mark.parametrize("model", [V3, MIXTRAL, OSS, QWEN], ids=lambda model: model.name)
def test_flop_of_a_model_are_those_of_its_layers_and_heads(model: Model) -> None:
    batch = Batch(3, 1, 4096)
    layers = [layer_forward_flop(model, 3, 4096, layer_kind(model, index)) for index in range(model.layers)]
    assert layers_forward_flop(model, 3, 4096) == pytest.approx(sum(layers), rel=1e-12)
    head = head_forward_flop(model, 3, 4096) + prediction_forward_flop(model, 3, 4096)
    assert model_flop(model, batch) == pytest.approx(3 * (sum(layers) + head), rel=1e-12)


def test_multi_token_prediction_is_a_layer_a_projection_and_a_head_more() -> None:
    """arXiv 2412.19437 §2.2."""
    more = prediction_forward_flop(V3, 1, 4096) - layer_forward_flop(V3, 1, 4096, MOE)
    assert more == 2 * 4096 * (2 * 7168**2 + 7168 * 129280)
    assert prediction_forward_flop(replace(V3, mtp=0), 1, 4096) == 0
    core = attention_core_flop(V3, 8, 4096)
    assert attention_flop(V3, BATCH) == 3 * 62 * core
    held = mtp_parameters(V3, ONE, CORE)
    assert held.total == unsplit_layer_parameters(V3, moe=True) + 2 * 7168**2 + 3 * 7168


def test_a_query_in_a_window_counts_the_keys_of_the_window() -> None:
    assert attention_core_flop(OSS, 1, 4096, 128) == attention_core_flop(OSS, 1, 4096) / 32
    assert attention_core_flop(OSS, 1, 64, 128) == attention_core_flop(OSS, 1, 64)
    kinds = [LayerKind(moe=True, window=128), LayerKind(moe=True)]
    assert [layer_kind(OSS, index) for index in range(4)] == 2 * kinds
    assert attention_flop(OSS, BATCH) == 3 * 18 * (1 + 1 / 32) * attention_core_flop(OSS, 8, 4096)


@pytest.mark.parametrize("modules", [("core_attn",), ("mlp", "core_attn"), ("moe",), ("mla_up_proj", "moe")])
@pytest.mark.parametrize("model", [replace(V3, mtp=0), MIXTRAL], ids=lambda model: model.name)
def test_what_is_repeated_is_executed_once_more(model: Model, modules: tuple[str, ...]) -> None:
    layout = replace(ONE, recompute="selective", recompute_modules=modules)
    again = [
        flop(recomputed_forward(model, layout, BATCH, UNFUSED, layer_kind(model, index)))
        for index in range(model.layers)
    ]
    more = executed_flop(model, BATCH, layout) - model_flop(model, BATCH)
    assert more == pytest.approx(8 * sum(again), rel=1e-9)


# ---- operators ----------------------------------------------------------------------------------------------------


def test_experts_stand_between_the_second_norm_and_the_second_residual() -> None:
    layout = Layout(1, 1, 8, ep=8)
    names = named(layer_forward(MIXTRAL, layout, BATCH, CORE, MOE))
    plain = named(layer_forward(MIXTRAL, layout, BATCH, CORE))
    start, end = names.index("mlp norm"), names.index("mlp bias dropout add")
    assert names[: start + 1] == plain[: start + 1]
    assert names[end:] == plain[plain.index("mlp bias dropout add") :]
    assert not set(names) & {"mlp up", "mlp down"}
    assert [one for one in names if one in ("dispatch", "experts up", "experts down", "combine")] == [
        "dispatch", "experts up", "experts down", "combine",
    ]  # fmt: skip


def test_dispatch_and_combine_are_each_others_mirror() -> None:
    layout = Layout(1, 1, 8, ep=8)
    there, back = (
        [one for one in each(V3, layout, BATCH, CORE, MOE) if isinstance(one, TokenExchange)]
        for each in (layer_forward, layer_backward)
    )
    assert [one.direction for one in there] == [one.direction for one in back] == ["dispatch", "combine"]


def test_a_window_reaches_the_attention_kernel_forward_and_backward() -> None:
    kind = LayerKind(moe=True, window=128)
    for each in (layer_forward, layer_backward):
        (core,) = (one for one in each(OSS, ONE, BATCH, CORE, kind) if isinstance(one, Attention))
        assert core.window == 128


def test_queries_and_keys_are_normalised_head_by_head() -> None:
    layout = Layout(4, 1, 2, sp=True, ep=8)
    norms = {one.name: one for one in layer_forward(QWEN, layout, BATCH, CORE, MOE) if isinstance(one, Elementwise)}
    assert norms["query norm"].bytes_moved == 2 * 2 * 4096 * 8 * 128
    assert norms["key norm"].bytes_moved == 2 * 2 * 4096 * 1 * 128
    back = named(layer_backward(QWEN, layout, BATCH, CORE, MOE))
    assert {"query norm wgrad", "query norm dgrad", "key norm wgrad", "key norm dgrad"} <= set(back)
    assert back.index("key norm dgrad") < back.index("query norm dgrad") < back.index("qkv dgrad")


def test_biases_of_experts_are_added_by_them_and_not_once_more_to_their_sum() -> None:
    names = named(layer_backward(OSS, ONE, BATCH, CORE, MOE), Elementwise)
    biases = [name for name in names if "bias" in name]
    assert biases == ["experts down bias wgrad", "experts up bias wgrad", "attention bias wgrad", "qkv bias wgrad"]


def test_norms_of_heads_and_sinks_and_biases_are_parameters() -> None:
    bare = replace(OSS, bias=False, sinks=False)
    whole = unsplit_layer_parameters(OSS, moe=True) - unsplit_layer_parameters(bare, moe=True)
    attention = (64 + 2 * 8) * 64 + 2880 + 64  # of QKV and the projection; a sink a head
    experts = 128 * (2 * 2880 + 2880) + 128  # of both products of each, and of the router
    assert whole == attention + experts
    assert unsplit_layer_parameters(QWEN, moe=True) - unsplit_layer_parameters(
        replace(QWEN, qk_norm=False), moe=True
    ) == 2 * 128  # fmt: skip


def test_a_rank_holds_its_part_of_biases_and_all_of_those_added_to_sums() -> None:
    layout = Layout(8, 1, 16, ep=32, etp=4)
    held, bare = (layer_held(model, layout, CORE, MOE) for model in (OSS, replace(OSS, bias=False, sinks=False)))
    assert held.expert - bare.expert == 4 * (2 * 2880 / 4 + 2880)
    assert held.shared - bare.shared == (64 + 2 * 8) * 64 / 8 + 64 / 8 + 2880 + 128


def test_tensors_of_a_layer_are_counted_without_its_experts() -> None:
    assert layer_tensors(V3, CORE, MOE) == 2 + 6 + 1 + 1 + 2  # norms, latent, output, router, shared experts
    assert layer_tensors(V3, CORE) == 2 + 6 + 1 + 2
    assert layer_tensors(QWEN, CORE, MOE) == 2 + 3 + 1 + 1


def test_the_layer_of_a_dense_model_is_of_the_plain_kind() -> None:
    llama = load_model("llama-3-8b")
    assert {layer_kind(llama, index) for index in range(llama.layers)} == {PLAIN}
    assert layer_forward(llama, ONE, BATCH, CORE) == layer_forward(llama, ONE, BATCH, CORE, PLAIN)


@pytest.mark.parametrize("framework", [CORE, replace(CORE, low_precision="fp8-block")], ids=["bf16", "fp8"])
@pytest.mark.parametrize("model", [V3, OSS, QWEN], ids=lambda model: model.name)
def test_arrays_of_layouts_give_what_each_layout_gives(model: Model, framework: Framework) -> None:
    tp, ep = np.array([2, 4, 8]), np.array([8, 4, 2])
    layout: Any = Layout(tp, 1, 8, sp=True, ep=ep, etp=np.array([1, 2, 2]))  # type: ignore[arg-type]
    kind = layer_kind(model, 4)
    for each in (layer_forward, layer_backward):
        together = each(model, layout, BATCH, framework, kind)
        for index in range(3):
            one = Layout(int(tp[index]), 1, 8, sp=True, ep=int(ep[index]), etp=int(layout.etp[index]))
            alone = each(model, one, BATCH, framework, kind)
            assert [at(operator, index) for operator in together] == [at(operator, 0) for operator in alone]


def at(operator: Operator, index: int) -> dict[str, Any]:
    values = {field.name: getattr(operator, field.name) for field in fields(operator)}
    return {
        name: float(value[index] if isinstance(value, np.ndarray) else value)
        if isinstance(value, np.ndarray | int | float)
        else value
        for name, value in values.items()
    }


def test_every_collective_forward_has_a_mirror_backward() -> None:
    """Under sequence parallelism: what is gathered forward is scattered backward, and the other way round."""
    layout = Layout(4, 1, 2, sp=True, ep=4, etp=2)
    mirror = {"all_gather": "reduce_scatter", "reduce_scatter": "all_gather"}
    there, back = (
        [one for one in each(V3, layout, BATCH, CORE, MOE) if isinstance(one, Collective) and one.role != "wgrad"]
        for each in (layer_forward, layer_backward)
    )
    assert sorted((mirror[one.kind], one.axis, one.size) for one in there) == sorted(
        (one.kind, one.axis, one.size) for one in back
    )


def test_attention_and_mlp_stand_side_by_side_in_plain_layers_only() -> None:
    beside = replace(CORE, parallel_block=True)
    for model, refused in ((MIXTRAL, True), (replace(V3, moe=None), True), (load_model("llama-3-8b"), False)):
        problems = [str(problem) for problem in check(model, Layout(1, 1, 8), BATCH, 8, beside)[0]]
        assert bool([problem for problem in problems if "side by side" in problem]) is refused


# ---- recomputation ------------------------------------------------------------------------------------------------


def repeated(model: Model, framework: Framework, kind: LayerKind, *modules: str) -> list[str]:
    layout = replace(ONE, recompute="selective", recompute_modules=modules)
    return named(recomputed_forward(model, layout, BATCH, framework, kind))


def test_experts_may_be_repeated_whole_or_in_part() -> None:
    whole = repeated(V3, CORE, MOE, "moe")
    assert {"router", "dispatch", "experts up", "experts down", "combine", "shared up"} <= set(whole)
    assert repeated(V3, CORE, MOE, "moe", "moe_act", "shared_experts") == whole
    assert repeated(V3, CORE, MOE, "moe_act") == ["experts activation"]
    assert {"shared up", "shared down"} <= set(repeated(V3, CORE, MOE, "shared_experts"))
    assert repeated(V3, CORE, PLAIN, "moe", "moe_act", "shared_experts") == []
    assert repeated(V3, CORE, MOE, "mlp") == []


@pytest.mark.parametrize(
    ("model", "kind", "fused", "names"),
    [
        (MIXTRAL, MOE, False, ["input norm", "mlp norm"]),
        (MIXTRAL, MOE, True, ["mlp norm"]),
        (V3, MOE, True, ["input norm", "mlp norm"]),
        (V3, PLAIN, True, ["input norm"]),
        (QWEN, PLAIN, True, []),
    ],
)
def test_norms_in_front_of_experts_and_latent_attention_stand_by_themselves(
    model: Model, kind: LayerKind, fused: bool, names: list[str]
) -> None:
    assert repeated(model, replace(CORE, fused_norms=fused), kind, "layernorm") == names
