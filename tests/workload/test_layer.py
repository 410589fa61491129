"""Operators of one layer: shapes, order, communication, and the closed forms that their sums are."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardsim.schema.framework import load_framework
from shardsim.schema.model import load_model
from shardsim.values.operators import Attention, Collective, Elementwise, Gemm, Operator
from shardsim.values.training import Batch, Framework, Layout, Model
from shardsim.workload.flops import attention_core_flop, executed_flop, layer_forward_flop
from shardsim.workload.layer import layer_backward, layer_forward, recomputed_forward
from shardsim.workload.recompute import DENSE_MODULES

OLD, MID = load_framework("megatron-2019"), load_framework("megatron-2021")
DDP, CORE = load_framework("megatron-2021-torch-ddp"), load_framework("megatron-core")
GPT, LLAMA, GQA = load_model("megatron-8.3b"), load_model("llama-2-7b"), load_model("llama-3-8b")
UNFUSED_LLAMA = replace(OLD, dropout=False)


def layout_of(tp: Any, **changes: Any) -> Layout:
    return Layout(tp=tp, pp=1, dp=1, **changes)


def all_operators(model: Model, layout: Layout, batch: Batch, framework: Framework) -> tuple[Operator, ...]:
    shape = (model, layout, batch, framework)
    return (*layer_forward(*shape), *recomputed_forward(*shape), *layer_backward(*shape))


def collectives(operators: tuple[Operator, ...]) -> list[Collective]:
    return [o for o in operators if isinstance(o, Collective)]


def gemm_shapes(operators: tuple[Operator, ...]) -> dict[str, tuple[float, float, float]]:
    return {o.name: (o.m, o.k, o.n) for o in operators if isinstance(o, Gemm)}


# ---- shapes -------------------------------------------------------------------------------------------------------


def test_gemm_shapes_of_a_gpt_layer_under_8_way_tensor_parallelism() -> None:
    shape = (GPT, layout_of(8), Batch(8, 8, 1024), OLD)
    t, h, d, n, f, s = 8192, 3072, 96, 3 * 3072 / 8, 12288 / 8, 1024
    assert gemm_shapes(layer_forward(*shape)) == {
        "qkv": (t, h, n),
        "scores": (s, d, s),
        "attention values": (s, s, d),
        "attention output": (t, h / 8, h),
        "mlp up": (t, h, f),
        "mlp down": (t, f, h),
    }
    assert gemm_shapes(layer_backward(*shape)) == {
        "mlp down dgrad": (t, h, f),
        "mlp down wgrad": (f, t, h),
        "mlp up dgrad": (t, f, h),
        "mlp up wgrad": (h, t, f),
        "attention output dgrad": (t, h, h / 8),
        "attention output wgrad": (h / 8, t, h),
        "probabilities dgrad": (s, d, s),
        "values dgrad": (s, s, d),
        "query dgrad": (s, s, d),
        "key dgrad": (s, s, d),
        "qkv dgrad": (t, n, h),
        "qkv wgrad": (h, t, n),
    }


def test_score_products_are_batched_over_sequences_and_the_heads_of_the_rank() -> None:
    operators = all_operators(GPT, layout_of(8), Batch(8, 8, 1024), OLD)
    batched = {o.name: o.batch for o in operators if isinstance(o, Gemm) and o.attention}
    assert set(batched.values()) == {8 * 32 / 8}
    assert len(batched) == 6


def test_llama_projects_gate_and_up_in_one_product_and_few_keys_and_values() -> None:
    shapes = gemm_shapes(layer_forward(GQA, layout_of(4), Batch(2, 2, 4096), CORE))
    assert shapes["qkv"] == (8192, 4096, (32 + 2 * 8) * 128 / 4)
    assert shapes["mlp up"] == (8192, 4096, 2 * 14336 / 4)
    assert shapes["mlp down"] == (8192, 14336 / 4, 4096)


def test_flash_attention_takes_the_heads_of_the_rank() -> None:
    (kernel,) = [o for o in layer_forward(GQA, layout_of(4), Batch(2, 2, 4096), CORE) if isinstance(o, Attention)]
    assert (kernel.batch, kernel.heads, kernel.kv_heads, kernel.seq, kernel.head_dim) == (2, 8, 2, 4096, 128)
    assert kernel.causal


def test_key_value_heads_are_held_several_times_where_there_are_fewer_than_ranks() -> None:
    shapes = gemm_shapes(layer_forward(GQA, layout_of(16), Batch(1, 1, 4096), CORE))
    assert shapes["qkv"][2] == (32 / 16 + 2 * 1) * 128


# ---- order --------------------------------------------------------------------------------------------------------


def test_the_order_of_issue_of_the_first_megatron_layer() -> None:
    names = [o.name for o in layer_forward(GPT, layout_of(8), Batch(8, 8, 1024), OLD)]
    assert names == [
        "input norm",
        "qkv",
        "qkv bias",
        "heads first",
        "scores",
        "scale scores",
        "mask multiply",
        "mask subtract",
        "softmax",
        "attention dropout",
        "attention values",
        "tokens first",
        "attention output",
        "attention all-reduce",
        "attention bias",
        "attention dropout",
        "attention residual",
        "mlp norm",
        "mlp up",
        "mlp up bias",
        "activation",
        "mlp down",
        "mlp all-reduce",
        "mlp bias",
        "mlp dropout",
        "mlp residual",
    ]


def test_the_order_of_issue_of_a_modern_llama_layer_with_sequence_parallelism() -> None:
    names = [o.name for o in layer_forward(GQA, layout_of(8, sp=True), Batch(1, 1, 8192), CORE)]
    assert names == [
        "input norm",
        "attention gather",
        "qkv",
        "rotary embedding",
        "attention",
        "attention output",
        "attention scatter",
        "attention bias dropout add",
        "mlp norm",
        "mlp gather",
        "mlp up",
        "activation",
        "mlp down",
        "mlp scatter",
        "mlp bias dropout add",
    ]


def test_backward_sums_the_input_gradient_after_the_column_parallel_input_gradient() -> None:
    names = [o.name for o in layer_backward(GPT, layout_of(8), Batch(8, 8, 1024), OLD)]
    for block, product in (("mlp", "mlp up"), ("attention", "qkv")):
        place = names.index(f"{block} gradient all-reduce")
        assert names[place - 1] == f"{product} dgrad"
        assert names[place + 1] == f"{product} wgrad"
    assert names.index("mlp down dgrad") < names.index("mlp down wgrad") < names.index("mlp up dgrad")


# ---- communication ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("framework", [OLD, MID, CORE])
@pytest.mark.parametrize("tp", [1, 2, 8])
def test_four_all_reduces_of_b_s_h_whatever_the_degree(framework: Framework, tp: int) -> None:
    shape = (GPT, layout_of(tp), Batch(8, 4, 1024), framework)
    forward, backward = collectives(layer_forward(*shape)), collectives(layer_backward(*shape))
    assert [(c.kind, c.axis, c.size) for c in forward] == [("all_reduce", "tp", 4 * 1024 * 3072 * 2)] * 2
    assert [(c.kind, c.axis, c.size) for c in backward] == [("all_reduce", "tp", 4 * 1024 * 3072 * 2)] * 2


@given(tp=st.sampled_from([1, 2, 4, 8, 16, 32]), micro=st.integers(1, 16), seq=st.sampled_from([512, 1024, 2048]))
def test_ring_volume_is_8bsh_t_minus_1_over_t_elements_a_layer(tp: int, micro: int, seq: int) -> None:
    found = collectives(all_operators(GPT, layout_of(tp), Batch(micro, micro, seq), MID))
    received = sum(c.size * 2 * (tp - 1) / tp for c in found)
    assert received == pytest.approx(8 * micro * seq * 3072 * (tp - 1) / tp * 2, rel=1e-12)


@given(tp=st.sampled_from([2, 4, 8, 16]), micro=st.integers(1, 8))
def test_sequence_parallelism_moves_as_much_but_for_regathered_inputs(tp: int, micro: int) -> None:
    batch = Batch(micro, micro, 1024)
    plain = collectives(all_operators(GPT, layout_of(tp), batch, MID))
    split = collectives(all_operators(GPT, layout_of(tp, sp=True), batch, MID))
    regathered = [c for c in split if c.role == "wgrad"]
    others = [c for c in split if c.role != "wgrad"]
    assert sorted(c.kind for c in others) == ["all_gather"] * 4 + ["reduce_scatter"] * 4
    assert [(c.kind, c.size) for c in regathered] == [("all_gather", micro * 1024 * 3072 * 2)] * 2
    assert sum(c.size for c in others) == 2 * sum(c.size for c in plain)  # a ring all-reduce is one of each


def test_full_recompute_repeats_the_layer_with_its_all_reduces() -> None:
    shape = (GPT, layout_of(8, recompute="full"), Batch(8, 8, 1024), OLD)
    assert recomputed_forward(*shape) == layer_forward(*shape)
    assert len(collectives(recomputed_forward(*shape))) == 2


def test_selective_recompute_repeats_the_attention_core_alone() -> None:
    shape = (GPT, layout_of(8, recompute="selective"), Batch(8, 8, 1024), OLD)
    assert recomputed_forward(*shape)
    assert all(isinstance(o, Gemm | Elementwise) and o.attention for o in recomputed_forward(*shape))
    assert recomputed_forward(GPT, layout_of(8), Batch(8, 8, 1024), OLD) == ()


def test_selective_recompute_repeats_the_modules_it_names() -> None:
    layout = layout_of(8, sp=True, recompute="selective", recompute_modules=("mlp", "layernorm"))
    mlp = ["mlp gather", "mlp up", "activation", "mlp down", "mlp scatter"]

    def names(framework: Framework, *modules: str) -> list[str]:
        asked = replace(layout, recompute_modules=modules)
        return [o.name for o in recomputed_forward(GQA, asked, Batch(8, 8, 1024), framework)]

    apart = replace(CORE, fused_norms=False)
    assert names(apart, "mlp", "layernorm") == ["input norm", "mlp norm", *mlp]
    assert names(apart, "mlp") == mlp
    assert names(CORE, "mlp", "layernorm") == names(CORE, "mlp") == ["mlp norm", *mlp]
    assert names(CORE, "layernorm") == []


# ---- attention and MLP side by side -------------------------------------------------------------------------------

PARALLEL = replace(CORE, parallel_block=True)


@pytest.mark.parametrize("sp", [False, True])
def test_a_parallel_block_communicates_half_as_much(sp: bool) -> None:
    """Forward one gathering and one scattering in the place of two each, arXiv 2402.15627 §3.1; so backward."""
    batch, layout = Batch(8, 2, 4096), layout_of(8, sp=sp)
    one, two = (collectives(all_operators(GQA, layout, batch, framework)) for framework in (PARALLEL, CORE))
    assert sorted(c.kind for c in one + one) == sorted(c.kind for c in two)
    assert 2 * sum(c.size for c in one) == sum(c.size for c in two)


def test_a_parallel_block_multiplies_the_same_matrices_and_has_one_norm_less() -> None:
    batch, layout = Batch(8, 2, 4096), layout_of(8, sp=True)
    one, two = (all_operators(GQA, layout, batch, framework) for framework in (PARALLEL, CORE))
    assert gemm_shapes(one) == gemm_shapes(two)
    norms = [sum(isinstance(o, Elementwise) and o.kind == "rmsnorm" for o in operators) for operators in (one, two)]
    assert norms == [3, 6]


def test_the_mlp_of_a_parallel_block_is_repeated_with_the_gathering_of_the_block_and_no_sum_of_its_own() -> None:
    layout = layout_of(8, sp=True, recompute="selective", recompute_modules=("mlp",))
    batch = Batch(8, 2, 4096)
    again = recomputed_forward(GQA, layout, batch, PARALLEL)
    assert [o.name for o in again] == ["layer gather", "mlp up", "activation", "mlp down"]
    assert collectives(again) == collectives(layer_forward(GQA, layout, batch, PARALLEL))[:1]


def test_the_mlp_of_a_parallel_block_stands_beside_its_communication() -> None:
    names = [o.name for o in layer_forward(GQA, layout_of(8, sp=True), Batch(8, 2, 4096), PARALLEL)]
    gathered, left = names.index("layer gather"), names.index("layer scatter")
    assert names[gathered + 1] == "mlp up"
    assert names[left - 1] == "mlp down"


# ---- floating point operations ------------------------------------------------------------------------------------

UNFUSED = [(GPT, OLD), (GPT, MID), (load_model("narayanan-1.7b"), MID), (GQA, UNFUSED_LLAMA), (LLAMA, UNFUSED_LLAMA)]


@given(
    case=st.sampled_from(UNFUSED),
    tp=st.sampled_from([1, 2, 4, 8]),
    sp=st.booleans(),
    micro=st.integers(1, 8),
    seq=st.sampled_from([256, 1024, 4096]),
    recompute=st.sampled_from(["none", "selective", "full"]),
    modules=st.sets(st.sampled_from(DENSE_MODULES), min_size=1).map(tuple),
    parallel=st.booleans(),
)
def test_flop_over_all_ranks_is_the_closed_form(
    case: tuple[Model, Framework],
    tp: int,
    sp: bool,
    micro: int,
    seq: int,
    recompute: Any,
    modules: tuple[str, ...],
    parallel: bool,
) -> None:
    model, framework = case
    framework = replace(framework, parallel_block=parallel)
    layout = layout_of(tp, sp=sp, recompute=recompute, recompute_modules=modules)
    operators = all_operators(model, layout, Batch(micro, micro, seq), framework)
    counted = tp * sum(o.flop for o in operators if isinstance(o, Gemm))
    batch = Batch(micro, micro, seq)
    headless = replace(model, layers=1, vocab=0)
    assert counted == pytest.approx(executed_flop(headless, batch, layout), rel=1e-12)


@given(tp=st.sampled_from([1, 2, 4, 8, 16, 32]), micro=st.integers(1, 4))
def test_flop_with_flash_attention_is_the_products_and_the_kernels_own(tp: int, micro: int) -> None:
    operators = all_operators(LLAMA, layout_of(tp), Batch(micro, micro, 4096), replace(CORE, causal_flop_halved=False))
    core = attention_core_flop(LLAMA, micro, 4096)
    products = tp * sum(o.flop for o in operators if isinstance(o, Gemm))
    kernels = tp * sum(o.flop for o in operators if isinstance(o, Attention))
    assert products == pytest.approx(3 * (layer_forward_flop(LLAMA, micro, 4096) - core), rel=1e-12)
    assert kernels == pytest.approx(core * (1 + 2.5), rel=1e-12)


# ---- memory traffic -----------------------------------------------------------------------------------------------


def traffic(operators: tuple[Operator, ...], **wanted: Any) -> float:
    return float(
        sum(
            o.bytes_moved
            for o in operators
            if isinstance(o, Elementwise) and all(getattr(o, key) == value for key, value in wanted.items())
        )
    )


def test_unfused_attention_reads_and_writes_the_scores_in_every_kernel() -> None:
    scores = 8 * 4 * 1024**2
    forward = layer_forward(GPT, layout_of(8), Batch(8, 8, 1024), OLD)
    backward = layer_backward(GPT, layout_of(8), Batch(8, 8, 1024), OLD)
    assert traffic(forward, attention=True) == scores * (4 * 4 + 5)
    assert traffic(backward, attention=True) == scores * (5 + 6 + 4 + 4)


def test_fused_softmax_reads_half_of_the_scores_and_writes_all() -> None:
    scores = 8 * 4 * 1024**2
    assert traffic(layer_forward(GPT, layout_of(8), Batch(8, 8, 1024), MID), attention=True) == scores * (3 + 5)


def test_tensor_parallelism_leaves_norms_and_residuals_whole_and_sequence_parallelism_splits_them() -> None:
    batch = Batch(8, 8, 1024)
    whole = traffic(layer_forward(GPT, layout_of(1), batch, OLD), kind="layernorm")
    assert whole == 2 * 2 * 8192 * 3072 * 2
    assert traffic(layer_forward(GPT, layout_of(8), batch, OLD), kind="layernorm") == whole
    assert traffic(layer_forward(GPT, layout_of(8, sp=True), batch, OLD), kind="layernorm") == whole / 8


def test_fusion_saves_traffic_and_launches() -> None:
    batch = Batch(8, 8, 1024)
    old = [o for o in all_operators(GPT, layout_of(8), batch, OLD) if isinstance(o, Elementwise)]
    new = [o for o in all_operators(GPT, layout_of(8), batch, MID) if isinstance(o, Elementwise)]
    assert sum(o.bytes_moved for o in new) < sum(o.bytes_moved for o in old)
    assert sum(o.kernels for o in new) < sum(o.kernels for o in old)


def test_gradients_are_accumulated_only_where_a_replica_runs_several_micro_batches() -> None:
    one = layer_backward(GPT, layout_of(8), Batch(8, 8, 1024), OLD)
    two = layer_backward(GPT, layout_of(8), Batch(16, 8, 1024), OLD)
    assert one[-1].name == two[-1].name == "layer accumulation"
    parameters = 12 * 3072**2 / 8 + (3 + 4) * 3072 / 8 + 2 * 3072 + 4 * 3072
    assert isinstance(one[-1], Elementwise)
    assert isinstance(two[-1], Elementwise)
    assert (one[-1].bytes_moved, one[-1].kernels) == (0, 0)
    assert (two[-1].bytes_moved, two[-1].kernels) == (parameters * 6, 12)


# ---- arrays -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "framework", "sp"),
    [(GPT, OLD, False), (GPT, MID, True), (GQA, CORE, True), (GQA, UNFUSED_LLAMA, False)],
)
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_arrays_of_layouts_give_what_each_layout_gives(
    model: Model, framework: Framework, sp: bool, recompute: Any
) -> None:
    degrees, micro, dp = np.array([1, 2, 4, 8, 16]), np.array([1, 2, 3, 4, 5]), np.array([1, 2, 4, 8, 16])
    together = all_operators(
        model, Layout(degrees, 1, dp, sp=sp, recompute=recompute), Batch(960, micro, 1024), framework
    )
    for index in range(len(degrees)):
        layout = Layout(int(degrees[index]), 1, int(dp[index]), sp=sp, recompute=recompute)
        alone = all_operators(model, layout, Batch(960, int(micro[index]), 1024), framework)
        assert [at(o, index) for o in together] == [at(o, 0) for o in alone]


def at(operator: Operator, index: int) -> dict[str, Any]:
    """The operator of one layout, by field, with what follows from the fields."""
    values = {field.name: getattr(operator, field.name) for field in fields(operator)}
    if not isinstance(operator, Collective):
        values |= {"flop": operator.flop, "traffic": operator.bytes_moved}
    return {key: value[index] if isinstance(value, np.ndarray) else value for key, value in values.items()}
