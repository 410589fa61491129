"""Device memory of one rank beyond the published equations."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardsim.errors import InputError
from shardsim.schema.framework import load_framework
from shardsim.schema.model import load_model
from shardsim.values.num import Num
from shardsim.values.training import Batch, Framework, Layout, Model
from shardsim.workload.activations import activation_bytes_per_layer
from shardsim.workload.allocations import StageAllocation, stage_allocations
from shardsim.workload.cost_split import split_by_cost
from shardsim.workload.occupancy import peak_bytes
from shardsim.workload.parameters import held_parameters, layer_parameters, table_parameters
from shardsim.workload.schedules import schedule_of
from shardsim.workload.stages import ChunkContent

OLD, MID, CORE, NANO = (
    load_framework(name) for name in ("megatron-2019", "megatron-2021", "megatron-core", "nanotron")
)
GPT, LLAMA = load_model("megatron-8.3b"), load_model("llama-3-8b")
GIB = 2.0**30


def allocations(model: Model, layout: Layout, batch: Batch, framework: Framework) -> tuple[StageAllocation, ...]:
    return stage_allocations(model, layout, batch, framework, schedule_of(layout, batch))


def test_a_llama_layer_tensor_by_tensor() -> None:
    tokens = 8192
    expected = tokens * (
        2 * 4096 * 2  # inputs of both norms
        + 2 * 4096 * 2  # their outputs
        + (32 + 2 * 8) * 128 * 2  # Q, K, V
        + 4096 * 2  # attention output
        + 3 * 14336 * 2  # gate, up and their product
    )
    batch = Batch(1, 1, 8192)
    assert activation_bytes_per_layer(LLAMA, Layout(1, 1, 1), batch, CORE) == expected
    assert activation_bytes_per_layer(LLAMA, Layout(8, 1, 1, sp=True), batch, CORE) == expected / 8


def test_flash_attention_keeps_what_selective_recompute_keeps() -> None:
    flash, batch = replace(MID, attention="flash"), Batch(8, 8, 1024)
    layout = Layout(8, 1, 1)
    kept = activation_bytes_per_layer(GPT, layout, batch, flash)
    assert kept == activation_bytes_per_layer(GPT, replace(layout, recompute="selective"), batch, MID)


def test_sequence_parallelism_splits_the_checkpoints_of_full_recompute() -> None:
    batch, layout = Batch(8, 8, 1024), Layout(8, 1, 1, recompute="full")
    whole = activation_bytes_per_layer(GPT, layout, batch, MID)
    assert activation_bytes_per_layer(GPT, replace(layout, sp=True), batch, MID) == whole / 8


def test_states_of_every_stage_are_those_of_its_parameters() -> None:
    layout = Layout(8, 4, 2)
    for stage, found in enumerate(allocations(GPT, layout, Batch(64, 8, 1024), MID)):
        content = ChunkContent(GPT.layers // 4, stage == 0, stage == 3, GPT.layers // 4 * stage)
        parameters = held_parameters(GPT, layout, MID, content).total
        states = (found.weights, found.gradients, found.optimizer)
        assert states == pytest.approx((2 * parameters, 2 * parameters, 16 * parameters), rel=1e-12)
        assert found.context == MID.context_bytes


def test_the_last_chunk_alone_holds_the_loss() -> None:
    layout, batch = Layout(8, 4, 2, vpp=2, schedule="interleaved"), Batch(64, 8, 1024)
    model = replace(GPT, layers=16)
    found = allocations(model, layout, batch, MID)
    logits = 8192 * 51200 / 8
    first, last = found[3].chunks
    assert (last.loss, last.logits, last.kept - first.kept) == (4 * logits, 2 * logits, 2 * 8192 * 3072 * 2)
    others = [chunk for stage in found for chunk in stage.chunks if chunk is not last]
    assert not any(chunk.loss or chunk.logits for chunk in others)
    copying = allocations(model, layout, batch, replace(MID, loss_in_place=False))
    assert copying[3].chunks[1].logits == 8 * logits
    beside = allocations(model, layout, batch, replace(MID, loss_moment_bytes=4))
    assert beside[3].chunks[1].logits == 4 * logits


def test_a_v_shape_has_both_ends_on_its_first_stage_and_a_tied_table_there_once() -> None:
    layout, batch = Layout(8, 4, 1, vpp=2, schedule="zb-v"), Batch(64, 8, 1024)
    found = allocations(replace(GPT, layers=16), layout, batch, MID)
    assert [bool(chunk.loss) for stage in found for chunk in stage.chunks] == [False, True, *[False] * 6]
    layer, table = (float(count(GPT, layout, MID)) for count in (layer_parameters, table_parameters))
    assert found[1].weights == pytest.approx(2 * 4 * layer)
    ends = GPT.max_positions * GPT.hidden + 2 * GPT.hidden
    assert found[0].weights == pytest.approx(2 * (4 * layer + table + ends))
    untied = allocations(replace(GPT, layers=16, tied_embeddings=False), layout, batch, MID)
    assert untied[0].weights == pytest.approx(2 * (4 * layer + 2 * table + ends))


def test_dualpipe_holds_two_copies_of_the_parameters() -> None:
    batch = Batch(64, 8, 1024)
    model = replace(GPT, layers=16, tied_embeddings=False)
    once = allocations(model, Layout(8, 4, 1), batch, MID)
    twice = allocations(model, Layout(8, 4, 1, vpp=2, schedule="dualpipe"), batch, MID)
    assert sum(stage.weights for stage in twice) == pytest.approx(2 * sum(stage.weights for stage in once))


def test_uneven_stages_hold_what_their_layers_take() -> None:
    batch, layers = Batch(64, 8, 1024), (17, 19, 19, 17)
    found = allocations(GPT, Layout(8, 4, 1, split=layers), batch, replace(MID, dropout=False))
    kept = [stage.chunks[0].kept / count for stage, count in zip(found, layers, strict=True)]
    assert kept[:3] == pytest.approx([kept[0]] * 3)


def test_recomputation_rebuilds_one_layer() -> None:
    batch, layout = Batch(8, 8, 1024), Layout(8, 1, 1)
    one_layer = activation_bytes_per_layer(GPT, layout, batch, MID)
    core = one_layer - activation_bytes_per_layer(GPT, replace(layout, recompute="selective"), batch, MID)
    for recompute, expected in (("none", 0.0), ("selective", core), ("full", one_layer)):
        changed = replace(layout, recompute=recompute)  # type: ignore[arg-type]
        assert allocations(GPT, changed, batch, MID)[0].chunks[0].working_set == pytest.approx(expected)


def test_overlap_in_buckets_takes_a_second_copy_of_the_gradients_where_buckets_are_copies() -> None:
    layout, batch = Layout(8, 1, 64, recompute="full"), Batch(512, 8, 1024)
    never, always = (replace(OLD, overlap_grad_reduce=policy) for policy in ("never", "always"))  # type: ignore[arg-type]
    without, within = (allocations(GPT, layout, batch, framework)[0] for framework in (never, always))
    assert within.buffers - without.buffers == within.gradients
    core = allocations(LLAMA, replace(layout, zero=1), batch, CORE)[0]
    assert core.buffers < core.gradients


@pytest.mark.parametrize(
    ("size", "tp", "overlaps"), [("1.2b", 1, False), ("2.5b", 2, False), ("4.2b", 4, True), ("8.3b", 8, True)]
)
def test_gradient_buckets_suit_the_models_of_2019_that_the_readme_of_megatron_says(
    size: str, tp: int, *, overlaps: bool
) -> None:
    """All four train on a 32 GB card; a second copy of the gradients is too much for the two smaller models."""
    model, layout, batch = load_model(f"megatron-{size}"), Layout(tp, 1, 64, recompute="full"), Batch(512, 8, 1024)
    card = 31.75 * GIB
    plain, bucketed = (
        peak_bytes(
            allocations(model, layout, batch, replace(OLD, overlap_grad_reduce=policy)),  # type: ignore[arg-type]
            schedule_of(layout, batch),
        )
        for policy in ("never", "always")
    )
    assert plain <= card
    assert (bucketed <= card) is overlaps


def test_fully_sharded_weights_are_there_once_and_two_units_besides() -> None:
    """Zhao et al., arXiv 2304.11277 §3.2.1: a peak of sum ψ/F + max ψ parameters; prefetching makes it two."""
    model, batch, ranks = replace(LLAMA, layers=4), Batch(64, 1, 1024), 16
    framework = replace(CORE, weights_are_masters=True)
    layout = Layout(1, 1, ranks, zero=3)
    (found,) = allocations(model, layout, batch, framework)
    layer, table = layer_parameters(model, layout, framework), table_parameters(model, layout, framework)
    total = 4 * layer + 2 * table + model.hidden
    assert (found.weights, found.gradients, found.optimizer) == (
        4 * total / ranks,
        4 * total / ranks,
        8 * total / ranks,
    )
    assert found.gathered == 2 * (layer + table + model.hidden)
    (alone,) = allocations(model, layout, batch, replace(framework, gathers_ahead=0))
    assert alone.gathered == 2 * (table + model.hidden)
    (kept,) = allocations(model, replace(layout, reshard=False), batch, framework)
    assert kept.gathered == 2 * total
    (hybrid,) = allocations(model, replace(layout, shard=4), batch, framework)
    assert hybrid.weights == 4 * total / 4
    (single,) = allocations(model, replace(layout, dp=1), Batch(4, 1, 1024), framework)
    assert single.gathered == 0.0


def test_narrow_copies_of_weights_go_with_the_layer_that_is_given_up() -> None:
    """Not 2 bytes for each of all parameters on every rank of fully sharded training."""
    layer = (2 * 32 + 2 * 8) * 128 * 4096 + 3 * 4096 * 14336
    batch = Batch(64, 1, 1024)

    def narrow(**changes: Any) -> float:
        layout = replace(Layout(1, 1, 16, zero=3), **changes)
        found = (
            allocations(LLAMA, layout, batch, replace(CORE, low_precision=low))[0].weights
            for low in ("fp8-delayed", None)
        )
        return float(next(found) - next(found))

    assert narrow() == 2 * layer
    for kept in ({"reshard": False}, {"zero": 2}, {"dp": 1}):
        assert narrow(**kept) == 32 * 2 * layer


@pytest.mark.parametrize(("zero", "policy", "count"), [(2, "always", 2), (2, "never", 1), (3, "always", 1)])
def test_deepspeed_copies_gradients_into_flat_buffers(zero: int, policy: str, count: int) -> None:
    """github deepspeedai/DeepSpeed, stage3.py: reduce_bucket_size elements, 500 million of 2 bytes by default."""
    framework = replace(load_framework("deepspeed"), overlap_grad_reduce=policy)  # type: ignore[arg-type]
    (found,) = allocations(GPT, Layout(1, 1, 8, zero=zero), Batch(8, 1, 1024), framework)
    (alone,) = allocations(GPT, Layout(1, 1, 1, zero=zero), Batch(1, 1, 1024), framework)
    assert found.buffers - alone.buffers == count * 500e6 * 2


def test_a_pipeline_of_fsdp_holds_whole_gradients_and_no_part_of_them_beside() -> None:
    """github pytorch/pytorch, _fsdp_param_group.py and pipelining/stage.py: added up in fp32, scattered after the last.

    ZeRO 3 differs by weights alone: not at all where they stay gathered, 2 + 12/F bytes a parameter either way.
    """
    titan, batch = load_framework("torchtitan"), Batch(64, 1, 4096)
    layout = Layout(1, 4, 8, zero=2)
    whole = float(stage_held_of(LLAMA, layout, titan))
    one, two, kept, given_up = (
        allocations(LLAMA, replace(layout, **changes), batch, titan)[0]
        for changes in ({"zero": 1}, {"zero": 2}, {"zero": 3, "reshard": False}, {"zero": 3})
    )
    assert one.gradients == two.gradients == kept.gradients == given_up.gradients == 4 * whole
    assert one.buffers == two.buffers == kept.buffers == given_up.buffers
    weights = [found.weights + found.optimizer + found.gathered for found in (one, two, kept)]
    assert weights == pytest.approx([(2 + 12 / 8) * whole] * 3)
    assert given_up.gathered < kept.gathered == 2 * whole
    assert two.stepping == kept.stepping == 4 * table_parameters(LLAMA, layout, titan)
    (alone,) = allocations(LLAMA, replace(layout, pp=1), batch, titan)
    assert (alone.stepping, alone.gradients) == (0.0, 4 * float(stage_held_of(LLAMA, Layout(1, 1, 8), titan)) / 8)


def stage_held_of(model: Model, layout: Layout, framework: Framework) -> Num:
    layers = model.layers // layout.pp
    return held_parameters(model, layout, framework, ChunkContent(layers, embedding=True, head=layout.pp == 1)).total


FRAMEWORKS = sorted(path.stem for path in Path(__file__).parents[2].glob("workloads/frameworks/*.yaml"))
MODELS = [load_model(name) for name in ("llama-3-8b", "gpt3-175b", "mixtral-8x7b")]


@pytest.mark.parametrize("name", FRAMEWORKS)
@settings(max_examples=12, deadline=None)
@given(
    model=st.sampled_from(MODELS),
    tp=st.sampled_from([1, 2, 8]),
    pp=st.sampled_from([1, 2, 4]),
    dp=st.sampled_from([4, 16, 64]),
    cp=st.sampled_from([1, 2]),
    hybrid=st.booleans(),
    schedule=st.sampled_from([("1f1b", 1), ("interleaved", 2), ("zb-v", 2), ("gpipe", 1)]),
    recompute=st.sampled_from(["none", "selective"]),
    reshard=st.booleans(),
)
def test_memory_does_not_grow_with_the_zero_stage(  # type: ignore[no-untyped-def]
    name, model, tp, pp, dp, cp, hybrid, schedule, recompute, reshard
) -> None:
    """But for buffers of a fixed size, and for parts of weights that are gathered whole and stay."""
    framework, (order, chunks) = load_framework(name), schedule if pp > 1 else ("1f1b", 1)
    batch = Batch(8 * dp, 1, 2048 if model.max_positions else 4096)
    base = Layout(tp, pp, dp, cp=cp, vpp=chunks, sp=tp > 1, schedule=order, recompute=recompute, etp=tp)
    base = replace(base, ep=2 if model.moe else 1, reshard=reshard)
    peaks = []
    for zero in range(4):
        layout = replace(base, zero=zero, shard=dp // 2 if hybrid and zero and dp > 4 else 0)
        peaks.append(peak_bytes(allocations(model, layout, batch, framework), schedule_of(layout, batch)))
    flat = 0.0 if framework.reduces_units else 2 * framework.bucket_bytes / framework.allocated_share
    for zero, extra in ((1, 0.0), (2, flat), (3, 0.0)):
        if zero < 3 or reshard or framework.weights_are_masters:
            assert peaks[zero] <= (peaks[zero - 1] + extra) * (1 + 1e-12)


@pytest.mark.parametrize(("zero", "shared"), [(0, ()), (1, ("optimizer",)), (2, ("optimizer", "gradients"))])
def test_zero_splits_state_by_state(zero: int, shared: tuple[str, ...]) -> None:
    (whole,) = allocations(LLAMA, Layout(1, 1, 1), Batch(8, 1, 1024), CORE)
    (found,) = allocations(LLAMA, Layout(1, 1, 8, zero=zero), Batch(64, 1, 1024), CORE)
    for state in ("weights", "gradients", "optimizer"):
        assert getattr(found, state) == getattr(whole, state) / (8 if state in shared else 1)


def test_deepseek_v3_keeps_moments_in_bf16_and_masters_and_gradients_in_fp32() -> None:
    """DeepSeek-V3, arXiv 2412.19437 §3.3.3: 2 + 4 bytes for weight and gradient, 4 + 2 + 2 for master and moments."""
    (wide,), (narrow,) = (
        allocations(LLAMA, Layout(1, 1, 1), Batch(8, 1, 1024), replace(CORE, moment_bytes=size)) for size in (4, 2)
    )
    assert narrow.weights / 2 == narrow.gradients / 4 == narrow.optimizer / 8 == wide.optimizer / 12


@pytest.mark.parametrize(
    ("dp", "zero", "after_step"), [(128, 0, 25.07), (16, 1, 13.66), (32, 1, 13.12), (128, 1, 12.71)]
)
def test_nanotron_holds_after_a_step_what_its_benchmark_sweep_logs(dp: int, zero: int, after_step: float) -> None:
    """Memory allocated after a step, GiB, 1.34 B parameters: huggingface/nanotron sweep on H100, TP 1, micro-batch 1.

    20 bytes a parameter without ZeRO, buckets of DistributedDataParallel counted; 6 + 12/d and the copies of the
    gathering, 4 + 2/d, with it.
    """
    model = Model("1.34B", 16, 2048, 32, 32, 64, 8192, 131072, "swiglu", "rmsnorm", "rope", 0, True, False, False, "")
    (found,) = allocations(model, Layout(1, 1, dp, zero=zero), Batch(2 * dp, 1, 4096), NANO)
    held = found.weights + found.gradients + found.optimizer + found.buffers + found.stepping
    assert held / GIB == pytest.approx(after_step, abs=0.02)


def test_nanotron_deals_layers_out_by_cost_and_counts_the_head() -> None:
    assert split_by_cost([1.0] * 16, 4.0, 2) == (10, 6)
    assert split_by_cost([1.0] * 28, 3.56, 8) == (4, 4, 4, 4, 4, 4, 4, 0)
    assert split_by_cost([1.0] * 5, 0.0, 1) == (5,)


@pytest.mark.parametrize(
    ("policy", "pp", "tensors"),
    [("without_pipeline", 1, 32), ("without_pipeline", 4, 0), ("warm_up", 1, 0), ("warm_up", 2, 0), ("warm_up", 4, 16)],
)
def test_a_host_that_runs_ahead_leaves_freed_tensors_to_communication_streams(policy, pp, tensors) -> None:  # type: ignore[no-untyped-def]
    framework = replace(NANO, runs_ahead=policy)
    layout, batch = Layout(8, pp, 1, sp=True), Batch(64, 1, 4096)
    first = allocations(replace(LLAMA, layers=16), layout, batch, framework)[0]
    assert first.passing == tensors * 4096 * 4096 * 2


def test_layers_that_do_not_divide_are_refused() -> None:
    with pytest.raises(InputError, match="do not divide"):
        allocations(GPT, Layout(8, 5, 1), Batch(64, 8, 1024), MID)


def test_arrays_of_layouts_give_what_each_layout_gives() -> None:
    tp, dp, micro = np.array([1, 2, 4, 8]), np.array([1, 2, 4, 8]), np.array([4, 2, 1, 1])
    schedule = schedule_of(Layout(1, 2, 1), Batch(32, 4, 1024))
    for zero, recompute in ((0, "none"), (1, "selective"), (2, "full"), (3, "full")):
        layout = Layout(1, 2, 1, zero=zero, sp=True, recompute=recompute)  # type: ignore[arg-type]
        for framework in (OLD, CORE, NANO):
            together = stage_allocations(
                GPT,
                replace(layout, tp=tp, dp=dp),  # type: ignore[arg-type]
                Batch(32, micro, 1024),  # type: ignore[arg-type]
                framework,
                schedule,
            )
            for index in range(4):
                one = replace(layout, tp=int(tp[index]), dp=int(dp[index]))
                alone = stage_allocations(GPT, one, Batch(32, int(micro[index]), 1024), framework, schedule)
                for mine, other in zip(_figures(alone), _figures(together), strict=True):
                    assert mine == (other if np.isscalar(other) else other[index])


def _figures(stages: tuple[StageAllocation, ...]) -> list[Num]:
    names = ("weights", "gradients", "optimizer", "buffers", "gathered", "passing", "stepping")
    chunks = ("kept", "weight_gradient", "working_set", "loss", "logits", "gradients")
    return [getattr(stage, name) for stage in stages for name in names] + [
        getattr(chunk, name) for stage in stages for chunk in stage.chunks for name in chunks
    ]


def test_zero_splits_optimizer_states_over_both_copies_that_dualpipe_holds() -> None:
    layout = Layout(tp=8, pp=4, dp=8, vpp=2, zero=1, sp=True)
    model, batch = replace(GPT, layers=16, tied_embeddings=False), Batch(64, 1, 1024)
    whole = allocations(model, replace(layout, vpp=1), batch, MID)
    twice = allocations(model, replace(layout, schedule="dualpipe"), batch, MID)
    # Ranks 0 and 3 hold the layers of stages 0 and 3, each of which has two copies.
    assert twice[0].optimizer == pytest.approx((whole[0].optimizer + whole[3].optimizer) / 2)
    assert twice[0].weights == pytest.approx(whole[0].weights + whole[3].weights)
