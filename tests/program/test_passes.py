"""Passes as segments: backward passes whole and in two parts, recomputation of some layers, products in parts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from shardsim.program.build import build
from shardsim.program.machine import Machine
from shardsim.program.passes import Passes, Segment
from shardsim.program.resolve import resolve
from shardsim.schema.run import nested, request_from_mapping
from shardsim.values.training import TrainingRun
from shardsim.workload.kinds import LayerKind
from shardsim.workload.recompute import recomputed_in_all, recomputed_layers
from shardsim.workload.stages import ChunkContent

OLD = {"framework": "megatron-2021", "model": "gpt3-175b", "cluster": "selene", "recompute": "none"}
MODERN = {"framework": "megatron-core", "model": "llama-3-8b", "cluster": "dgx-h100", "sp": True, "precision": "bf16"}
WHOLE = ChunkContent(layers=3, embedding=True, head=True)
MIDDLE = ChunkContent(layers=3, embedding=False, head=False)


def run(**keys: Any) -> TrainingRun:
    defaults = {"gpus": 8, "tp": 4, "pp": 2, "global_batch": 8, "micro_batch": 1, "seq": 2048}
    return resolve(request_from_mapping(nested(defaults | keys)))


def passes(described: TrainingRun) -> Passes:
    return Passes(described, Machine(described))


def total(segments: tuple[Segment, ...], what: str) -> float:
    return float(sum(getattr(task, what) for segment in segments for task in segment.tasks))


@pytest.mark.parametrize("keys", [OLD, OLD | {"recompute": "full"}, MODERN, MODERN | {"recompute": "selective"}])
@pytest.mark.parametrize("content", [WHOLE, MIDDLE])
@pytest.mark.parametrize("what", ["seconds", "flop", "host"])
def test_the_two_parts_of_a_backward_pass_are_the_whole(keys: Any, content: ChunkContent, what: str) -> None:
    """Zero Bubble's T_B + T_W is a backward pass (arXiv 2401.10241 §2): nothing is lost, nothing is done twice."""
    made = passes(run(**keys))
    whole, inputs, weights = (total(made.segments(kind, content), what) for kind in "BIW")
    assert inputs + weights == pytest.approx(whole, rel=1e-12)
    assert 0 < weights < whole


def test_a_layers_passes_have_the_flop_of_zero_bubbles_table_1() -> None:
    """arXiv 2401.10241, Table 1: F sbh(24h + 4s), B sbh(24h + 8s), W sbh 24h."""
    made, h, s = passes(run(**OLD)), 12288, 2048
    layer = ChunkContent(1, embedding=False, head=False)
    found = [4 * total(made.segments(kind, layer), "flop") for kind in "FIW"]
    assert found == pytest.approx([s * h * (24 * h + 4 * s), s * h * (24 * h + 8 * s), s * h * 24 * h], rel=1e-12)


def test_weight_gradients_alone_are_products_bias_and_norm_gradients_and_inputs_gathered_for_them() -> None:
    (segment,) = passes(run(**MODERN)).segments("W", ChunkContent(1, embedding=False, head=False))
    assert [task.name for task in segment.tasks] == [
        "mlp down wgrad", "mlp input gather", "mlp up wgrad", "mlp norm wgrad",
        "attention output wgrad", "attention input gather", "qkv wgrad", "input norm wgrad",
    ]  # fmt: skip


def test_the_input_gradient_part_finishes_no_gradient_of_a_parameter() -> None:
    made = passes(run(**MODERN, recompute="full"))
    names = [task.name for segment in made.segments("I", WHOLE) for task in segment.tasks]
    assert not [name for name in names if "wgrad" in name]
    assert "mlp up" in names  # what is repeated comes with it
    assert "mlp up" not in [task.name for segment in made.segments("W", WHOLE) for task in segment.tasks]


def test_weight_gradients_wait_for_no_message() -> None:
    made = passes(run(**OLD))
    assert [segment.part for segment in made.segments("I", MIDDLE)] == ["arrival", "layer", "layer", "layer"]
    assert [segment.part for segment in made.segments("W", MIDDLE)] == ["layer", "layer", "layer"]
    assert [segment.part for segment in made.segments("W", WHOLE)] == ["head", "layer", "layer", "layer", "embedding"]


# ---- recomputation of some layers ---------------------------------------------------------------------------------


def repeated(described: TrainingRun, layers: int = 4) -> list[bool]:
    """Whether the layers of a chunk repeat anything in their backward passes, last layer first."""
    segments = passes(described).segments("B", ChunkContent(layers, embedding=False, head=False))
    return [any(task.category == "recompute" for task in s.tasks) for s in segments if s.part == "layer"]


def blockwise(layers: int) -> TrainingRun:
    described = run(**OLD)
    layout = replace(described.layout, recompute="full", recompute_method="block", recompute_layers=layers)
    return replace(described, layout=layout)


def test_the_block_method_repeats_the_first_layers_of_a_chunk() -> None:
    assert repeated(blockwise(1)) == [False, False, False, True]
    assert repeated(blockwise(3)) == [False, True, True, True]
    assert repeated(blockwise(9)) == [True] * 4


def test_the_uniform_method_repeats_every_layer_whatever_its_units() -> None:
    described = run(**OLD | {"recompute": "full"})
    assert repeated(described) == [True] * 4
    units = replace(described, layout=replace(described.layout, recompute_layers=4))
    assert repeated(units) == [True] * 4
    assert repeated(run(**OLD)) == [False] * 4


def test_recomputed_layers_of_a_model_are_those_of_its_chunks() -> None:
    described = blockwise(3)
    model, layout = described.model, replace(described.layout, vpp=4)
    assert recomputed_in_all(model, layout) == 3 * 2 * 4
    assert recomputed_in_all(model, replace(layout, recompute_layers=96)) == 96
    assert recomputed_in_all(model, replace(layout, split=(2, 46, 46, 2))) == 2 + 3 + 3 + 2
    assert recomputed_in_all(model, replace(layout, recompute="selective")) == 0
    assert recomputed_layers(replace(layout, recompute_layers=0), 12) == 12


# ---- layers of several kinds --------------------------------------------------------------------------------------

MIXED = MODERN | {"model": "deepseek-v2", "sp": False, "tp": 1, "ep": 4, "recompute": "none"}
FIRST = ChunkContent(layers=3, embedding=False, head=False)  # of which the first has no experts
DENSE, EXPERTS = LayerKind(), LayerKind(moe=True)


def kinds(segments: tuple[Segment, ...]) -> list[LayerKind]:
    return [segment.kind for segment in segments if segment.part == "layer"]


def names(segment: Segment) -> list[str]:
    return [task.name for task in segment.tasks]


def test_layers_come_in_order_forward_and_in_reverse_backward() -> None:
    made = passes(run(**MIXED))
    assert kinds(made.segments("F", FIRST)) == [DENSE, EXPERTS, EXPERTS]
    for kind in "BIW":
        assert kinds(made.segments(kind, FIRST)) == [EXPERTS, EXPERTS, DENSE]
    assert kinds(made.segments("F", replace(FIRST, first=1))) == [EXPERTS] * 3
    *_, last = made.segments("B", FIRST)
    assert "mlp up dgrad" in names(last)
    assert "combine gradients" not in names(last)


def test_the_block_method_repeats_the_first_layers_whatever_kind_they_are_of() -> None:
    described = run(**MIXED)
    layout = replace(described.layout, recompute="full", recompute_method="block", recompute_layers=2)
    layers = passes(replace(described, layout=layout)).segments("B", FIRST)[1:]
    assert ["dispatch" in names(segment) for segment in layers] == [False, True, False]
    assert ["mlp up" in names(segment) for segment in layers] == [False, False, True]


@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("what", ["seconds", "flop"])
def test_both_parts_of_a_backward_pass_with_experts_are_the_whole(recompute: str, what: str) -> None:
    made = passes(run(**MIXED | {"recompute": recompute}))
    whole, inputs, weights = (total(made.segments(kind, FIRST), what) for kind in "BIW")
    assert inputs + weights == pytest.approx(whole, rel=1e-12)


def test_a_graph_holds_a_layer_with_experts_up_to_its_first_exchange_and_behind_its_last_one() -> None:
    """Github NVIDIA/Megatron-LM, cuda_graph.md: attention, router and shared experts; dropless experts are issued."""
    described = run(**MIXED)
    graphs = replace(described, framework=replace(described.framework, cuda_graphs="layers"))
    made = passes(graphs)
    _, forward = made.segments("F", replace(FIRST, first=1))[:2]
    first = names(forward).index("dispatch")
    assert [task.host for task in forward.tasks[1:first]] == [0.0] * (first - 1)
    assert all(task.host > 0 for task in forward.tasks[first:])
    backward = made.segments("B", replace(FIRST, first=1))[1]
    last = names(backward).index("combine gradients")
    assert all(task.host > 0 for task in backward.tasks[: last + 2])
    assert [task.host for task in backward.tasks[last + 2 :]] == [0.0] * (len(backward.tasks) - last - 2)
    full = replace(described, framework=replace(described.framework, cuda_graphs="full"))
    assert passes(full).segments("F", replace(FIRST, first=1))[1] == forward
    padded = replace(graphs, layout=replace(graphs.layout, capacity_factor=1.0, pads_capacity=True))
    whole = passes(padded).segments("F", replace(FIRST, first=1))[1]
    assert [task.host for task in whole.tasks[1:]] == [0.0] * (len(whole.tasks) - 1)


# ---- products in parts --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["own_shard", "ring", "userbuffers"])
def test_overlapped_layers_do_the_same_work_and_move_the_same_bytes(how: Any) -> None:
    described = run(**MODERN, recompute="full")
    beside = replace(described, framework=replace(described.framework, tp_overlap=how))
    for kind in "FBI":
        whole, parts = (passes(one).segments(kind, MIDDLE) for one in (described, beside))
        assert total(parts, "flop") == pytest.approx(total(whole, "flop"), rel=1e-12)
        assert wire(parts) == pytest.approx(wire(whole), rel=1e-12)
        assert len(parts[1].tasks) > len(whole[1].tasks)


def wire(segments: tuple[Segment, ...]) -> float:
    return float(
        sum(task.transfer.wire["nvlink"] for segment in segments for task in segment.tasks if task.transfer is not None)
    )


def test_the_gathering_of_the_lm_head_stays_whole() -> None:
    described = run(**MODERN)
    beside = replace(described, framework=replace(described.framework, tp_overlap="ring"))
    last = ChunkContent(0, embedding=False, head=True)
    assert passes(beside).segments("F", last) == passes(described).segments("F", last)


def test_what_is_captured_of_a_layer_with_experts_ends_at_its_exchange_even_where_it_takes_no_time() -> None:
    """How many rows an expert gets is not known before, on one rank no more than on eight."""
    asked = {"model": "mixtral-8x7b", "cluster": "dgx-h100", "gpus": 8, "framework": "megatron-bridge-layer-graphs"}
    asked |= {"batch": {"global": 8, "seq": 4096}, "layout": {"ep": 1}}
    built = build(resolve(request_from_mapping(asked)))
    tasks = [task for task in built.blocks[0, "F", 0].tasks if task.name == "experts up"]
    assert tasks
    assert all(task.host > 0 for task in tasks)
