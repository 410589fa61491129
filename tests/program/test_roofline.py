"""The operators of a layer: what they cost, and what bounds them."""

from __future__ import annotations

from typing import Any

import pytest

from shardsim.program.machine import Machine
from shardsim.program.resolve import resolve
from shardsim.program.roofline import LayerCosts, OperatorCost, layer_costs
from shardsim.schema.run import request_from_mapping


def costs(model: Any = "llama-3-8b", cluster: str = "dgx-h100", seq: int = 8192, **keys: Any) -> LayerCosts:
    layout = {key: keys.pop(key) for key in ("tp", "sp", "recompute") if key in keys}
    gpus = layout.get("tp", 1)
    batch = {"global": keys.get("micro", 1), "micro": keys.pop("micro", 1), "seq": seq}
    asked = {"model": model, "cluster": cluster, "gpus": gpus, "layout": layout, "batch": batch, **keys}
    return layer_costs(resolve(request_from_mapping(asked)))


def one(found: LayerCosts, name: str, phase: str = "forward") -> OperatorCost:
    (operator,) = (o for o in found.operators if (o.name, o.phase) == (name, phase))
    return operator


def test_the_products_of_a_gpt_layer_are_24_b_s_h_squared_forward_and_twice_that_backward() -> None:
    """Narayanan et al. 2021 (arXiv 2104.04473), appendix: 24 B s h^2 of the linear layers, on each of t ranks 1/t."""
    found = costs("gpt3-175b", "dgx-a100", seq=2048, tp=8)
    linear = {"qkv", "attention output", "mlp up", "mlp down"}
    forward = sum(o.flop for o in found.operators if o.phase == "forward" and o.name in linear)
    backward = sum(o.flop for o in found.operators if o.name.endswith(("dgrad", "wgrad")) and o.name[:-6] in linear)
    assert forward == 24 * 2048 * 12288**2 / 8
    assert backward == 2 * forward


def test_seconds_are_those_that_an_iteration_is_made_of() -> None:
    found = costs(tp=8)
    machine = Machine(found.run)
    assert one(found, "attention gather" if found.run.layout.sp else "attention all-reduce").seconds > 0
    for operator in found.operators:
        assert operator.seconds > 0, operator.name
    from shardsim.workload.layer import layer_forward

    run = found.run
    tasks = machine.tasks(layer_forward(run.model, run.layout, run.batch, run.framework))
    forward = sum(o.seconds for o in found.operators if o.phase == "forward")
    assert forward == pytest.approx(sum(float(task.seconds) for task in tasks), rel=1e-12)


def test_nothing_is_faster_than_the_roofs() -> None:
    for found in (costs(), costs("gpt3-175b", "dgx-a100", seq=2048, tp=8, recompute="full")):
        for operator in found.operators:
            assert 0 < operator.achieved <= 1.0, operator.name
            if operator.kind == "gemm":
                assert operator.rate <= found.sustained * (1 + 1e-9), operator.name


def test_large_products_are_bound_by_arithmetic_norms_by_memory_and_sums_by_the_network() -> None:
    found = costs(tp=8)
    assert one(costs(), "mlp up").bound == "arithmetic"
    assert one(costs(), "input norm").bound == "memory"
    assert {o.bound for o in found.operators if o.kind in ("all_reduce", "all_gather", "reduce_scatter")} == {"network"}


def test_a_product_with_a_short_sum_is_bound_by_its_tiles() -> None:
    """Scores of unfused attention: k is the head dimension, 128, and filling a tile takes as long as its sum."""
    found = costs("gpt3-175b", "dgx-a100", seq=2048, tp=8, framework="megatron-2021")
    assert one(found, "scores").bound in ("tiles", "memory")
    assert one(found, "scores").rate < 0.7 * found.sustained


def test_a_tiny_model_is_bound_by_launches() -> None:
    model = {"layers": 2, "hidden": 256, "heads": 4, "vocab": 1024, "ffn": 1024, "max_positions": 128}
    model |= {"activation": "gelu", "norm": "layernorm", "position": "learned", "tied_embeddings": True, "bias": True}
    found = costs(model, seq=128)
    assert {o.bound for o in found.operators} == {"launch"}


def test_recomputed_operators_are_a_phase_of_their_own() -> None:
    none, full = (costs("gpt3-175b", "dgx-a100", seq=2048, tp=8, recompute=how) for how in ("none", "full"))
    assert {o.phase for o in none.operators} == {"forward", "backward"}
    again = [(o.name, o.seconds) for o in full.operators if o.phase == "recompute"]
    assert again == [(o.name, o.seconds) for o in full.operators if o.phase == "forward"]


def test_constants_measured_on_another_device_are_assumed() -> None:
    assert one(costs(), "mlp up").provenance.basis != "assumed"
    elsewhere = one(costs(cluster="alps-gh200"), "mlp up").provenance
    assert elsewhere.basis == "assumed"
    assert "h100" in elsewhere.source


def test_fp8_products_stand_under_their_own_peak() -> None:
    found = costs(precision="fp8")
    assert found.peak == found.run.cluster.device.peak_flops["fp8"]
    assert one(found, "mlp up").intensity > one(costs(), "mlp up").intensity


def test_below_16_bits_linear_layers_and_their_conversions_have_prices_of_their_own() -> None:
    found = costs(precision="fp8")
    by_name = {one.name: one for one in found.operators}
    wide = {one.name: one for one in costs(precision="bf16").operators}
    assert by_name["mlp up"].seconds < 0.6 * wide["mlp up"].seconds
    assert by_name["mlp up gradient cast"].kind == "quantize"
    attention = next(name for name, one in wide.items() if one.kind == "attention")
    assert by_name[attention].seconds == wide[attention].seconds
