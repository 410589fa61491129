"""Multi-head latent attention: its operators against closed forms, and backward against forward."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardsim.schema.framework import load_framework
from shardsim.schema.model import load_model
from shardsim.values.operators import Attention, Collective, Gemm, Operator
from shardsim.values.training import Batch, Layout, Mla, Model
from shardsim.workload.flops import attention_core_flop
from shardsim.workload.latent import latent_backward, latent_forward, up_forward
from shardsim.workload.layer import layer_forward, recomputed_forward
from shardsim.workload.parameters import attention_parameters, up_projection_weights
from shardsim.workload.shapes import shapes

CORE = load_framework("megatron-core")
V3 = load_model("deepseek-v3")
BATCH = Batch(8, 1, 4096)
T = 4096


def layout_of(tp: int, **changes: bool) -> Layout:
    return Layout(tp, 1, 1, **changes)  # type: ignore[arg-type]


def forward(model: Model, layout: Layout) -> tuple[Operator, ...]:
    return latent_forward(model, layout, shapes(model, layout, BATCH, CORE), BATCH.micro_batches(layout))


def backward(model: Model, layout: Layout) -> tuple[Operator, ...]:
    return latent_backward(model, layout, shapes(model, layout, BATCH, CORE))


def products(operators: tuple[Operator, ...]) -> dict[str, tuple[float, float, float]]:
    return {one.name: (one.m, one.k, one.n) for one in operators if isinstance(one, Gemm)}


def flop(operators: tuple[Operator, ...]) -> float:
    return float(sum(one.flop for one in operators if isinstance(one, Gemm)))


def moved(operators: tuple[Operator, ...]) -> list[tuple[str, str, float]]:
    return [(one.kind, one.axis, one.size) for one in operators if isinstance(one, Collective)]


def test_products_of_deepseek_v3_are_down_to_latent_vectors_and_up_to_heads() -> None:
    assert products(forward(V3, layout_of(1))) == {
        "q down": (T, 7168, 1536),
        "kv down": (T, 7168, 512 + 64),
        "q up": (T, 1536, 128 * 192),
        "kv up": (T, 512, 128 * (128 + 128)),
    }


def test_projections_down_are_on_every_rank_alike_and_only_sequence_parallelism_splits_their_tokens() -> None:
    whole, scattered = (products(forward(V3, layout_of(8, sp=sp))) for sp in (False, True))
    assert whole["q down"] == (T, 7168, 1536)
    assert scattered["q down"] == (T / 8, 7168, 1536)
    assert whole["q up"] == scattered["q up"] == (T, 1536, 16 * 192)


def test_latent_vectors_and_the_rotary_part_of_keys_are_gathered_in_the_place_of_hidden_states() -> None:
    """github NVIDIA/Megatron-LM, multi_latent_attention.py: 1536 + 512 + 64 elements a token, 29 % of 7168."""
    gathered = moved(forward(V3, layout_of(8, sp=True)))
    assert {(kind, axis) for kind, axis, _ in gathered} == {("all_gather", "tp")}
    assert sum(size for *_, size in gathered) == T * (1536 + 512 + 64) * 2


@pytest.mark.parametrize("model", [V3, replace(V3, mla=Mla(0, 512, 128, 64, 128))], ids=["latent", "at once"])
def test_what_is_gathered_forward_is_scattered_backward_and_gathered_again(model: Model) -> None:
    layout = layout_of(8, sp=True)
    there, back = moved(forward(model, layout)), moved(backward(model, layout))
    sizes = sorted(size for _, _, size in there)
    assert sorted(size for kind, _, size in back if kind == "reduce_scatter") == sizes
    # the rotary part of keys is no input of a product, so no weight gradient needs it again
    assert sorted(size for kind, _, size in back if kind == "all_gather") == sizes[1:]


def test_without_sequence_parallelism_gradients_of_what_all_ranks_hold_are_summed() -> None:
    assert moved(forward(V3, layout_of(8))) == []
    summed = moved(backward(V3, layout_of(8)))
    assert {kind for kind, *_ in summed} == {"all_reduce"}
    assert sum(size for *_, size in summed) == T * (1536 + 512 + 64) * 2


def test_queries_may_be_projected_at_once() -> None:
    """As in DeepSeek-V2-Lite (arXiv 2405.04434, appendix B)."""
    model = replace(V3, mla=Mla(0, 512, 128, 64, 128))
    assert products(forward(model, layout_of(8, sp=True)))["q"] == (T, 7168, 16 * 192)
    assert (("all_gather", "tp", T * 7168 * 2)) in moved(forward(model, layout_of(8, sp=True)))


@given(
    heads=st.sampled_from([8, 16, 128]),
    q_lora=st.sampled_from([0, 384, 1536]),
    kv_lora=st.sampled_from([256, 512]),
    dims=st.tuples(st.sampled_from([64, 128]), st.sampled_from([32, 64]), st.sampled_from([64, 128])),
    tp=st.sampled_from([1, 2, 8]),
    micro=st.integers(1, 3),
)
def test_flop_are_the_closed_form_of_the_weights(
    heads: int, q_lora: int, kv_lora: int, dims: tuple[int, int, int], tp: int, micro: int
) -> None:
    """Under sequence parallelism all of them are split: 2 a token and weight forward, twice that backward."""
    mla = Mla(q_lora, kv_lora, *dims)
    model = replace(V3, heads=heads, kv_heads=heads, head_dim=mla.qk_dim, mla=mla)
    batch, layout = Batch(micro, micro, 4096), layout_of(tp, sp=True)
    z = shapes(model, layout, batch, CORE)
    norms = q_lora + kv_lora
    output = heads * mla.v_dim * model.hidden
    weights = attention_parameters(model) - norms - output
    there, back = flop(latent_forward(model, layout, z, None)), flop(latent_backward(model, layout, z))
    assert tp * there == pytest.approx(2 * batch.tokens * weights, rel=1e-12)
    assert back == pytest.approx(2 * there, rel=1e-12)
    assert tp * flop(up_forward(model, layout, z, None)) == pytest.approx(
        2 * batch.tokens * up_projection_weights(model), rel=1e-12
    )


def test_every_product_has_its_two_gradients() -> None:
    there = products(forward(V3, layout_of(8, sp=True)))
    back = products(backward(V3, layout_of(8, sp=True)))
    assert set(back) == {f"{name} {role}" for name in there for role in ("dgrad", "wgrad")}
    for name, (rows, inner, width) in there.items():
        assert back[f"{name} dgrad"] == (rows, width, inner)
        assert back[f"{name} wgrad"] == (inner, rows, width)


def test_the_core_has_wider_queries_and_keys_than_values() -> None:
    layer = layer_forward(V3, layout_of(8, sp=True), BATCH, CORE)
    (core,) = (one for one in layer if isinstance(one, Attention))
    assert (core.heads, core.kv_heads, core.head_dim, core.value_dim) == (16, 16, 192, 128)
    # Megatron's convention counts the masked half too
    assert 8 * 2 * core.flop == attention_core_flop(V3, 1, 4096)
    assert products(layer)["attention output"] == (T, 16 * 128, 7168)


def test_unfused_attention_multiplies_the_same_shapes() -> None:
    layer = products(layer_forward(V3, layout_of(8), BATCH, replace(CORE, attention="unfused")))
    assert layer["scores"] == (4096, 192, 4096)
    assert layer["attention values"] == (4096, 4096, 128)


def test_the_projections_up_may_be_repeated_alone() -> None:
    layout = Layout(8, 1, 1, sp=True, recompute="selective", recompute_modules=("mla_up_proj",))
    again = recomputed_forward(V3, layout, BATCH, CORE)
    assert set(products(again)) == {"q up", "kv up"}
    assert sum(size for *_, size in moved(again)) == T * (1536 + 512) * 2
