"""Linear layers below 16 bits: what is converted and how often, what is gathered and kept."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest

from shardsim.schema.framework import load_framework
from shardsim.schema.model import load_model
from shardsim.values.operators import Collective, Elementwise, Gemm, Operator
from shardsim.values.training import NARROW_TYPE, Batch, Framework, Layout, LowPrecision
from shardsim.workload.activations import activation_bytes_per_layer
from shardsim.workload.allocations import stage_allocations
from shardsim.workload.ends import head_backward, head_forward
from shardsim.workload.layer import layer_backward, layer_forward, recomputed_forward
from shardsim.workload.parameters import layer_parameters
from shardsim.workload.quantization import RECIPES
from shardsim.workload.schedules import schedule_of

CORE, MODEL = load_framework("megatron-core"), load_model("llama-3-8b")
T, H, QKV, CONTEXT, F = 8192, 4096, 6144, 4096, 14336
BATCH = Batch(global_batch=16, micro_batch=1, seq_len=T)
ONE, SPLIT = Layout(tp=1, pp=1, dp=1), Layout(tp=4, pp=1, dp=1, sp=True)


def low(name: Any) -> Framework:
    return replace(CORE, low_precision=name)


def both(layout: Layout, framework: Framework) -> tuple[Operator, ...]:
    shape = (MODEL, layout, BATCH, framework)
    return (*layer_forward(*shape), *layer_backward(*shape))


def casts(operators: tuple[Operator, ...]) -> dict[str, float]:
    found = (o for o in operators if isinstance(o, Elementwise) and o.name.endswith((" cast", " transpose")))
    return {o.name: o.bytes_moved for o in found}


def test_every_low_precision_has_a_recipe_and_a_data_type() -> None:
    assert set(RECIPES) == set(NARROW_TYPE) == set(get_args(LowPrecision))


def test_sixteen_bits_convert_nothing() -> None:
    assert casts(both(SPLIT, CORE)) == {}
    assert all(o.data_type == "" for o in both(SPLIT, CORE) if isinstance(o, Gemm))


@pytest.mark.parametrize(("name", "data_type"), NARROW_TYPE.items())
def test_all_twelve_products_of_a_block_are_narrow_and_the_lm_head_is_not(name: str, data_type: str) -> None:
    products = [o for o in both(ONE, low(name)) if isinstance(o, Gemm)]
    assert [o.data_type for o in products] == [data_type] * 12
    assert {o.layout for o in products} == {"tn"}
    shape = (MODEL, ONE, BATCH, low(name))
    assert all(not o.data_type for o in (*head_forward(*shape), *head_backward(*shape)) if isinstance(o, Gemm))


def test_operands_of_delayed_scaling_are_read_once_and_written_twice() -> None:
    found = casts(both(ONE, low("fp8-delayed")))
    assert found == {
        "qkv input cast": 4 * T * H,
        "qkv weight cast": 4 * H * QKV / 16,
        "attention output input cast": 4 * T * CONTEXT,
        "attention output weight cast": 4 * CONTEXT * H / 16,
        "mlp up input cast": 4 * T * H,
        "mlp up weight cast": 4 * H * 2 * F / 16,
        "mlp down input cast": 4 * T * F,
        "mlp down weight cast": 4 * F * H / 16,
        "mlp down gradient cast": 4 * T * H,
        "mlp up gradient cast": 4 * T * 2 * F,
        "attention output gradient cast": 4 * T * H,
        "qkv gradient cast": 4 * T * QKV,
    }


@pytest.mark.parametrize(
    ("name", "bytes_an_element", "kernels"),
    [
        ("fp8-delayed", 2 + 2, 1),
        ("fp8-current", 2 + 2 + 2, 2),
        ("fp8-block", 2 + 2 + 8 / 128, 1),
        ("mxfp8", 2 + 2 + 2 / 32, 1),
        ("nvfp4", 2 + 2 + 1 + 2 / 16, 2),
    ],
)
def test_what_a_conversion_costs(name: str, bytes_an_element: float, kernels: int) -> None:
    (cast,) = (o for o in both(ONE, low(name)) if o.name == "mlp down input cast")
    assert isinstance(cast, Elementwise)
    assert (cast.bytes_moved, cast.kernels) == (bytes_an_element * T * F, kernels)


@pytest.mark.parametrize("micro_batches", [1, 4, 32])
def test_weights_are_converted_once_an_iteration(micro_batches: int) -> None:
    shape = (MODEL, ONE, Batch(micro_batches, 1, T), low("fp8-delayed"))
    weights = [o for o in layer_forward(*shape) if isinstance(o, Elementwise) and "weight" in o.name]
    norms = 2 * H
    assert sum(o.bytes_moved for o in weights) * micro_batches == 4 * (layer_parameters(MODEL, ONE, CORE) - norms)
    assert sum(o.kernels for o in weights) * micro_batches == 4


def test_full_recompute_converts_inputs_again_and_weights_not() -> None:
    shape = (MODEL, replace(ONE, recompute="full"), BATCH, low("fp8-delayed"))
    again, first = casts(recomputed_forward(*shape)), casts(layer_forward(*shape))
    assert again == {name: size for name, size in first.items() if "weight" not in name}


def gathers(framework: Framework) -> list[float]:
    return [o.size for o in both(SPLIT, framework) if isinstance(o, Collective) and o.kind == "all_gather"]


def test_sequence_parallelism_gathers_what_was_converted() -> None:
    sixteen = gathers(CORE)
    assert len(sixteen) == 6
    assert gathers(low("fp8-delayed")) == [size / 2 for size in sixteen]
    # Both backward products take a gradient, and each a copy with scales of its own.
    share = [(1 + 1 / 32) / 2 * copies for copies in (1, 1, 2, 1, 2, 1)]
    assert gathers(low("mxfp8")) == pytest.approx([size * part for size, part in zip(sixteen, share, strict=True)])
    scattered = [
        [o for o in both(SPLIT, f) if getattr(o, "kind", "") == "reduce_scatter"] for f in (CORE, low("mxfp8"))
    ]
    assert scattered[0] == scattered[1]


def test_what_is_gathered_is_converted_by_parts_and_transposed_whole() -> None:
    found = casts(both(SPLIT, low("fp8-delayed")))
    assert found["mlp up input cast"] == 3 * T / 4 * H
    assert found["mlp up input transpose"] == found["mlp down gradient transpose"] == 2 * T * H
    assert found["mlp down input cast"] == 4 * T * F / 4
    with_scales = casts(both(SPLIT, low("mxfp8")))
    assert not any("transpose" in name for name in with_scales)
    assert with_scales["mlp up input cast"] == (2 + 2 + 2 / 32) * T / 4 * H


def test_the_transposed_input_is_made_after_it_was_gathered_and_before_its_weight_gradient() -> None:
    names = [o.name for o in layer_backward(MODEL, SPLIT, BATCH, low("fp8-delayed"))]
    wanted = ["mlp up gradient cast", "mlp input gather", "mlp up dgrad", "mlp up input transpose", "mlp up wgrad"]
    assert sorted(wanted, key=names.index) == wanted


@pytest.mark.parametrize("name", [None, *NARROW_TYPE])
def test_arrays_over_layouts_give_what_each_layout_gives(name: str | None) -> None:
    together = both(replace(SPLIT, tp=np.array([2, 8])), low(name))
    alone = [both(replace(SPLIT, tp=tp), low(name)) for tp in (2, 8)]
    for index, operators in enumerate(alone):
        for one, array in zip(operators, together, strict=True):
            size = "size" if isinstance(one, Collective) else "bytes_moved"
            found = np.broadcast_to(np.asarray(getattr(array, size)), 2)[index]
            assert found == getattr(one, size), one.name


@pytest.mark.parametrize(("name", "kept"), [("fp8-delayed", 1.0), ("mxfp8", 1 + 1 / 32), ("nvfp4", 0.5 + 1 / 16)])
def test_inputs_of_linear_layers_are_kept_narrow_and_the_output_of_attention_twice(name: str, kept: float) -> None:
    sixteen, narrow = (activation_bytes_per_layer(MODEL, ONE, BATCH, framework) for framework in (CORE, low(name)))
    assert sixteen - narrow == pytest.approx((2 - kept) * T * (H + H + F) - kept * T * CONTEXT)


def test_full_recompute_keeps_the_same_whatever_the_precision() -> None:
    full = replace(ONE, recompute="full")
    sizes = [activation_bytes_per_layer(MODEL, full, BATCH, framework) for framework in (CORE, low("fp8-delayed"))]
    assert sizes[0] == sizes[1]


def test_narrow_copies_of_the_weights_are_kept_beside_them() -> None:
    layout = Layout(tp=2, pp=4, dp=1)
    shape = (MODEL, layout, BATCH)
    schedule = schedule_of(layout, BATCH)
    sixteen, narrow = (stage_allocations(*shape, f, schedule)[0].weights for f in (CORE, low("fp8-delayed")))
    norms = 2 * H
    assert narrow - sixteen == 8 * 2 * (layer_parameters(MODEL, layout, CORE) - norms)
