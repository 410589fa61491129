"""Operators of layers with experts: products and bytes as published, and a backward pass that mirrors the forward."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardsim.schema.framework import load_framework
from shardsim.schema.model import load_model
from shardsim.values.operators import Collective, Elementwise, Gemm, TokenExchange
from shardsim.values.training import Batch, Layout, Moe
from shardsim.workload.activations import expert_rows
from shardsim.workload.experts import activation_forward, experts_backward, experts_forward
from shardsim.workload.flops import layer_forward_flop
from shardsim.workload.kinds import LayerKind
from shardsim.workload.shapes import shapes

V3 = load_model("deepseek-v3")
MIXTRAL = load_model("mixtral-8x7b")
BATCH = Batch(2048, 1, 4096)
MEGATRON = replace(load_framework("megatron-core"), fused_permute=True, fused_router=True)
PLAIN = Layout(tp=1, pp=16, dp=128, ep=64, dispatcher="deepep")
MIRROR = {"all_gather": "reduce_scatter", "reduce_scatter": "all_gather", "all_reduce": "none"}


def forward(model=V3, layout=PLAIN, framework=MEGATRON, batch=BATCH, uses=1.0):
    return experts_forward(model, layout, batch, framework, shapes(model, layout, batch, framework), uses)


def backward(model=V3, layout=PLAIN, framework=MEGATRON, batch=BATCH):
    return experts_backward(model, layout, batch, framework, shapes(model, layout, batch, framework))


def named(operators, name):
    (found,) = (one for one in operators if one.name == name)
    return found


def exchanges(operators):
    return [one for one in operators if isinstance(one, TokenExchange)]


def test_deepseek_v3_multiplies_32768_rows_by_4_experts_a_rank():
    """facts F.1: 1.924 and 0.962 TFLOP a layer forward, as much again for either gradient."""
    up, down = named(forward(), "experts up"), named(forward(), "experts down")
    assert up.batch == 4
    assert up.batch * up.m == 4096 * 8
    assert (up.k, up.n, down.k, down.n) == (7168, 4096, 2048, 7168)
    assert [round(one.flop / 1e12, 3) for one in (up, down)] == [1.924, 0.962]
    for product, name in ((up, "experts up"), (down, "experts down")):
        for role in ("dgrad", "wgrad"):
            assert named(backward(), f"{name} {role}").flop == product.flop


def test_products_of_a_layer_are_those_that_model_flop_counts():
    """Routed and shared experts, router and gate: all that a token meets between attention and the residual."""
    gated = replace(V3, moe=replace(V3.moe, shared_gate=True))
    for model in (V3, MIXTRAL, gated):
        attention = layer_forward_flop(model, 1, 4096) - 2 * 4096 * 3 * model.hidden * model.ffn
        counted = layer_forward_flop(model, 1, 4096, LayerKind(moe=True)) - attention
        layout = replace(PLAIN, ep=8)
        assert sum(one.flop for one in forward(model, layout) if isinstance(one, Gemm)) == pytest.approx(counted)
        done = sum(one.flop for one in backward(model, layout) if isinstance(one, Gemm))
        assert done == pytest.approx(2 * counted)


def test_dispatch_and_combine_change_places_backward():
    assert [one.direction for one in exchanges(forward())] == ["dispatch", "combine"]
    assert [one.direction for one in exchanges(backward())] == ["dispatch", "combine"]
    assert [one.role for one in exchanges(backward())] == ["dgrad", "dgrad"]


layouts = st.builds(
    Layout,
    tp=st.sampled_from([1, 2, 4, 8]),
    pp=st.just(1),
    dp=st.just(64),
    ep=st.sampled_from([1, 2, 4, 8]),
    etp=st.sampled_from([1, 2, 4]),
    sp=st.booleans(),
    dispatcher=st.sampled_from(["alltoall", "allgather", "deepep", "hybridep"]),
    capacity_factor=st.sampled_from([0.0, 0.7, 1.25]),
    pads_capacity=st.booleans(),
    imbalance=st.sampled_from([1.0, 1.4]),
)
frameworks = st.builds(
    lambda fused, overlapped, products: replace(
        MEGATRON, fused_permute=fused, overlap_shared_experts=overlapped, expert_products=products
    ),
    st.booleans(),
    st.booleans(),
    st.sampled_from(["one_kernel", "streams", "in_turn"]),
)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([V3, MIXTRAL]), layouts, frameworks)
def test_all_that_is_sent_forward_has_its_mirror_backward(model, layout, framework):
    def sent(operators):
        return Counter(
            (one.direction, one.tokens, one.element_bytes, one.share, one.imbalance) for one in exchanges(operators)
        )

    def moved(operators, roles):
        return Counter(
            (one.axis, one.kind, one.size)
            for one in operators
            if isinstance(one, Collective) and one.axis == "etp" and one.role in roles
        )

    there, back = forward(model, layout, framework), backward(model, layout, framework)
    assert sent(there) == sent(back)
    assert moved(there, {"forward"}) == moved(back, {"dgrad"})
    gathers = moved(there, {"forward"})
    assert Counter({(axis, MIRROR[kind], size): n for (axis, kind, size), n in gathers.items()}) == gathers


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([V3, MIXTRAL]), layouts)
def test_rows_of_the_products_are_those_that_memory_counts(model, layout):
    up = named(forward(model, layout), "experts up")
    sizes = shapes(model, layout, BATCH, MEGATRON)
    assert up.batch * up.m * up.imbalance == pytest.approx(expert_rows(model.moe, layout, sizes))


def test_tensor_parallel_ranks_send_a_part_of_the_tokens_each():
    for sp in (False, True):
        dispatch, _ = exchanges(forward(layout=replace(PLAIN, tp=4, sp=sp)))
        assert dispatch.tokens == 1024


def test_without_sequence_parallelism_tokens_are_gathered_when_they_are_back():
    layout = replace(PLAIN, tp=4, dispatcher="alltoall")
    assert named(forward(layout=layout), "experts gather").size == 4096 * 7168 * 2
    assert named(backward(layout=layout), "experts gather").size == 4096 * 7168 * 2
    assert not [one for one in forward(layout=replace(layout, sp=True)) if one.name == "experts gather"]


def test_ranks_that_split_an_expert_gather_the_rows_of_all_of_them():
    layout = Layout(tp=2, pp=1, dp=8, ep=4, etp=2, sp=True)
    operators = forward(MIXTRAL, layout)
    up = named(operators, "experts up")
    assert (up.batch, up.m, up.n) == (2, 4096 * 2 / 2, 14336)
    assert named(operators, "experts tp gather").size == 4096 * 2 * 4096 * 2
    assert named(operators, "experts tp scatter").size == 4096 * 2 * 4096 * 2


def test_gathered_tokens_are_gathered_whole_by_ranks_that_split_an_expert():
    layout = Layout(tp=2, pp=1, dp=8, ep=4, etp=2, sp=True, dispatcher="allgather")
    assert named(forward(MIXTRAL, layout), "experts tp gather").size == 2048 * 4 * 2 * 4096 * 2


def test_an_all_to_all_sends_copies_that_deepep_makes_at_the_other_end():
    flat, levels = forward(layout=replace(PLAIN, dispatcher="alltoall")), forward()
    order = [one.name for one in flat]
    assert order.index("permute") < order.index("dispatch") < order.index("experts sort") < order.index("experts up")
    assert order.index("experts down") < order.index("experts unsort") < order.index("combine")
    assert order.index("combine") < order.index("unpermute")
    order = [one.name for one in levels]
    assert order.index("dispatch") < order.index("permute") < order.index("experts up")
    assert order.index("experts down") < order.index("unpermute") < order.index("combine")
    assert named(flat, "permute").bytes_moved == (1 + 8) * 4096 * 7168 * 2


def test_one_expert_a_rank_needs_no_sorting():
    layout = Layout(tp=1, pp=1, dp=8, ep=np.array([4.0, 8.0]))
    sort = named(forward(MIXTRAL, layout), "experts sort")
    assert sort.bytes_moved.tolist() == [2 * 8192 * 4096 * 2, 0.0]
    assert sort.kernels.tolist() == [1.0, 0.0]


def test_only_where_it_is_asked_for_are_tokens_dispatched_in_fp8():
    """arXiv 2412.19437 §3.3.2: dispatch forward and backward in FP8, combine in BF16."""
    block = replace(MEGATRON, low_precision="fp8-block")
    narrow = replace(block, narrow_dispatch=True)
    for operators in (forward(framework=narrow), backward(framework=narrow)):
        assert [one.element_bytes for one in exchanges(operators)] == [1 + 4 / 128, 2]
    for operators in (forward(framework=block), forward(framework=replace(MEGATRON, narrow_dispatch=True))):
        assert [one.element_bytes for one in exchanges(operators)] == [2, 2]


def test_rows_are_converted_once_whether_before_or_after_dispatch():
    block = replace(MEGATRON, low_precision="fp8-block")
    after = {one.name for one in forward(framework=block)}
    before = {one.name for one in forward(framework=replace(block, narrow_dispatch=True))}
    assert after - before == {"experts up input cast"}
    assert before - after == {"dispatch cast"}
    assert named(forward(framework=block), "experts up").data_type == "fp8_block"
    assert named(forward(framework=block), "router").data_type == ""


def test_weights_are_converted_once_an_iteration_and_never_when_repeated():
    block = replace(MEGATRON, low_precision="fp8-block")
    once, shared = (named(forward(framework=block, uses=uses), "experts up weight cast") for uses in (1.0, 4.0))
    assert shared.bytes_moved == once.bytes_moved / 4
    assert not [one for one in forward(framework=block, uses=None) if "weight cast" in one.name]


def test_the_busiest_rank_is_waited_for_but_work_is_counted_at_the_mean():
    even, uneven = forward(), forward(layout=replace(PLAIN, imbalance=1.5))
    for one, other in zip(even, uneven, strict=True):
        if isinstance(one, Gemm):
            assert one.flop == other.flop
    assert named(uneven, "experts up").imbalance == 1.5
    assert named(uneven, "router").imbalance == named(uneven, "shared up").imbalance == 1.0
    activation = "experts activation"
    assert named(uneven, activation).bytes_moved == 1.5 * named(even, activation).bytes_moved
    assert [one.imbalance for one in exchanges(uneven)] == [1.5, 1.5]


def test_padded_capacity_is_sent_and_multiplied():
    """Mixtral: ceil(1.1 * 4096 * 2 / 8) = 1127 rows an expert and rank, whatever the imbalance."""
    layout = Layout(tp=1, pp=1, dp=8, ep=8, capacity_factor=1.1, pads_capacity=True, imbalance=2.0)
    up = named(forward(MIXTRAL, layout), "experts up")
    assert (up.m, up.imbalance) == (pytest.approx(1127 * 8), 1.0)
    dispatch, _ = exchanges(forward(MIXTRAL, layout))
    assert dispatch.share == pytest.approx(1127 / 1024)


def test_one_product_after_another_is_as_much_work_in_as_many_kernels():
    together, streams, apart = (
        named(forward(framework=replace(MEGATRON, expert_products=how)), "experts up")
        for how in ("one_kernel", "streams", "in_turn")
    )
    assert (apart.flop, apart.bytes_moved) == (together.flop, together.bytes_moved)
    assert (streams.flop, streams.bytes_moved) == (together.flop, together.bytes_moved)
    assert (together.grouped, together.kernels) == ("one_kernel", 1)
    assert (streams.grouped, streams.kernels) == ("streams", 4)
    assert (apart.grouped, apart.kernels) == ("", 4)


def test_unfused_routing_and_permuting_launch_many_kernels():
    def kernels(operators):
        return sum(one.kernels for one in operators if isinstance(one, Elementwise))

    layout = replace(PLAIN, dispatcher="alltoall")
    unfused = replace(MEGATRON, fused_permute=False, fused_router=False)
    assert kernels(forward(layout=layout, framework=unfused)) > 3 * kernels(forward(layout=layout))
    moved = [
        sum(one.bytes_moved for one in forward(layout=layout, framework=each) if isinstance(one, Elementwise))
        for each in (unfused, MEGATRON)
    ]
    assert moved[0] > 1.2 * moved[1]


def test_shared_experts_are_an_mlp_of_their_own_under_tensor_parallelism():
    layout = replace(PLAIN, tp=4, sp=True)
    there, back = forward(layout=layout), backward(layout=layout)
    up = named(there, "shared up")
    assert (up.m, up.k, up.n, named(there, "shared down").k) == (4096, 7168, 1024, 512)
    whole = 4096 * 7168 * 2
    moved = Counter((one.kind, one.size) for one in (*there, *back) if isinstance(one, Collective) and one.axis == "tp")
    assert moved == {("all_gather", whole): 3, ("reduce_scatter", whole): 2}


def test_shared_experts_stand_in_front_or_behind_both_exchanges():
    order = [one.name for one in forward()]
    assert order.index("shared down") < order.index("router")
    overlapped = replace(MEGATRON, overlap_shared_experts=True)
    order = [one.name for one in forward(framework=overlapped)]
    assert order[order.index("dispatch") + 1].startswith("shared")
    assert order[order.index("combine") + 1].startswith("shared")
    assert order.index("dispatch") < order.index("shared up") < order.index("experts up")
    assert order.index("combine") < order.index("shared down") < order.index("experts sum")
    order = [one.name for one in backward(framework=overlapped)]
    assert order.index("dispatch gradients") < order.index("shared down dgrad") < order.index("experts down dgrad")
    assert order.index("combine gradients") < order.index("shared up dgrad") < order.index("router dgrad")
    for direction in (forward, backward):
        assert Counter(direction()) == Counter(direction(framework=overlapped))


def test_a_layer_without_shared_experts_has_none():
    assert not [one for one in (*forward(MIXTRAL), *backward(MIXTRAL)) if one.name.startswith("shared")]
    assert "experts sum" not in {one.name for one in forward(MIXTRAL)}


def test_biases_of_experts_are_added_to_rows():
    biased = replace(MIXTRAL, bias=True)
    layout = replace(PLAIN, ep=8)
    added = {one.name for one in forward(biased, layout)} - {one.name for one in forward(MIXTRAL, layout)}
    assert "experts down bias" in added
    summed = {one.name for one in backward(biased, layout)} - {one.name for one in backward(MIXTRAL, layout)}
    assert summed == {"experts up bias wgrad", "experts down bias wgrad"}


def test_gradients_of_experts_accumulate_apart_where_no_product_does_it():
    apart = replace(MEGATRON, fused_gradient_accumulation=False)
    held = 4 * 3 * 7168 * 2048
    width = 2 + 2 * apart.gradient_bytes
    assert named(backward(framework=apart), "experts accumulation").bytes_moved == held * width
    assert not [one for one in backward() if "accumulation" in one.name]


def test_a_dense_model_has_no_experts():
    dense = load_model("gpt3-175b")
    with pytest.raises(ValueError, match="has no experts"):
        forward(dense)


@pytest.mark.parametrize("dispatcher", ["alltoall", "allgather", "deepep"])
@pytest.mark.parametrize("direction", [forward, backward])
def test_many_layouts_are_like_each_of_them(dispatcher, direction):
    degrees = {"tp": [1, 2, 4], "ep": [1, 4, 8], "etp": [1, 2, 1], "dp": [64, 32, 16], "imbalance": [1.0, 1.3, 1.1]}
    shape = {"pp": 1, "sp": True, "dispatcher": dispatcher, "capacity_factor": 1.2}
    framework = replace(MEGATRON, expert_products="in_turn", fused_gradient_accumulation=False)
    moe = replace(V3, moe=Moe(64, 6, 1408, shared_ffn=2816, groups=8, group_limit=3))
    together = direction(
        moe, Layout(**{key: np.array(v, dtype=float) for key, v in degrees.items()}, **shape), framework
    )
    for index in range(3):
        one = direction(moe, Layout(**{key: float(v[index]) for key, v in degrees.items()}, **shape), framework)
        for many, single in zip(together, one, strict=True):
            for field in ("m", "k", "n", "batch", "kernels", "imbalance", "bytes_moved", "size", "tokens", "share"):
                if hasattr(single, field):
                    values = np.broadcast_to(getattr(many, field), 3)
                    assert values[index] == getattr(single, field), (single.name, field)


def test_what_recomputing_activations_repeats_is_what_stands_between_the_products():
    order = [one.name for one in forward()]
    between = forward()[order.index("experts up") + 1 : order.index("experts down")]
    assert activation_forward(V3, PLAIN, MEGATRON, shapes(V3, PLAIN, BATCH, MEGATRON)) == between
