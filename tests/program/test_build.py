"""Programs of real runs: what is on them, and that one piece of code prices one layout or many."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from shardsim.engine.closed import closed_form
from shardsim.engine.des import simulate
from shardsim.engine.listing import listing
from shardsim.program.build import _Builder, build
from shardsim.program.coalesce import coalesce
from shardsim.program.resolve import resolve
from shardsim.schema.run import nested, request_from_mapping
from shardsim.values.training import Batch


def run(**keys):
    defaults = {"model": "gpt3-175b", "cluster": "selene", "framework": "megatron-2021", "micro_batch": 1, "seq": 2048}
    return resolve(request_from_mapping(nested(defaults | keys)))


SMALL = {"gpus": 64, "tp": 4, "pp": 4, "global_batch": 32}


def names(block):
    return Counter(task.name for task in block.tasks)


def test_a_layer_has_two_all_reduces_forward_and_two_backward_and_two_more_when_recomputed():
    layers = 96 // 4
    for recompute, backward in (("none", 2), ("full", 4)):
        program = build(run(**SMALL, recompute=recompute))
        forward_tp = [
            t for t in program.blocks[1, "F", 0].tasks if t.stream == "tp" and t.transfer.algorithm.startswith("ring")
        ]
        backward_tp = [
            t for t in program.blocks[1, "B", 0].tasks if t.stream == "tp" and t.transfer.algorithm.startswith("ring")
        ]
        gathers = 1  # scatter-gather: the stage input is gathered on arrival
        assert len(forward_tp) == 2 * layers + gathers
        assert len(backward_tp) == backward * layers + gathers


def test_every_all_reduce_carries_b_s_h_elements():
    program = build(run(**SMALL))
    ring = next(t for t in program.blocks[1, "F", 0].tasks if t.name.startswith("attention") and t.stream == "tp")
    assert ring.transfer.wire["nvlink"] == pytest.approx(2 * 3 / 4 * 1 * 2048 * 12288 * 2)


def test_one_rank_has_no_collective_at_all():
    program = build(run(model="megatron-1.2b", gpus=1, global_batch=1, seq=1024))
    assert {task.stream for block in program.blocks.values() for task in block.tasks} == {"compute"}


def test_executed_flop_are_the_counted_ones():
    """Unfused attention, no padding left over: what the tasks execute is eq. 3 of arXiv 2104.04473 to the last FLOP."""
    from shardsim.workload.flops import executed_flop

    described = run(**SMALL)
    execution = listing(build(described))
    ranks = described.layout.gpus / described.layout.pp
    total = sum(float(account.flop) for account in execution.stages) * ranks
    padded = replace(described.model, vocab=51200)
    assert total == pytest.approx(float(executed_flop(padded, described.batch, described.layout)), rel=1e-12)


def test_gradients_leave_during_the_last_backward_pass_only_where_the_framework_overlaps():
    late = build(run(**SMALL, overlap_grad_reduce=False))
    early = build(run(**SMALL, overlap_grad_reduce=True))
    assert late.last_blocks == {}
    released = [t for t in early.last_blocks[0, "B", 0].tasks if not t.blocking]
    assert len(released) == 96 // 4 + 1 + 1  # every layer, the embedding, and what is left over for the last bucket
    assert {t.stream for t in released} == {"dp"}
    assert any(task.drains == ("dp",) for task in early.epilogues[0].tasks)
    assert listing(early).iteration_s < listing(late).iteration_s


def test_overlapped_and_late_reduction_move_the_same_bytes():
    late = build(run(**SMALL, overlap_grad_reduce=False))
    early = build(run(**SMALL, overlap_grad_reduce=True))

    def moved(tasks):
        return sum(t.transfer.wire["nic"] for t in tasks if t.category == "dp" and t.stream == "dp" and t.transfer)

    assert moved(early.last_blocks[1, "B", 0].tasks) == pytest.approx(moved(late.epilogues[1].tasks), rel=1e-9)


def test_messages_go_forward_and_back_between_all_neighbours():
    program = build(run(**SMALL | {"vpp": 2, "global_batch": 16}))
    forward = {key for key in program.messages if key[1] == "F"}
    assert forward == {(0, "F", 0), (1, "F", 0), (2, "F", 0), (3, "F", 0), (0, "F", 1), (1, "F", 1), (2, "F", 1)}
    assert {key for key in program.messages if key[1] == "B"} == {
        (3, "B", 1), (2, "B", 1), (1, "B", 1), (0, "B", 1), (3, "B", 0), (2, "B", 0), (1, "B", 0),
    }  # fmt: skip


def test_middle_stages_share_their_blocks_tasks():
    program = build(run(**SMALL))
    assert program.blocks[1, "F", 0].tasks == program.blocks[2, "F", 0].tasks
    assert program.blocks[0, "F", 0].tasks != program.blocks[1, "F", 0].tasks


def test_stages_share_their_blocks_only_where_their_layers_are_of_the_same_kinds():
    """GPT-OSS has a window in every other layer: nine layers a stage begin with one or without, six always with one."""
    keys = {"model": "gpt-oss-120b", "cluster": "dgx-h100", "framework": "megatron-core", "precision": "bf16"}
    keys |= {"tp": 1, "ep": 4, "global_batch": 32, "seq": 4096}
    odd, even = (build(run(**keys, pp=pp, gpus=4 * pp)).blocks for pp in (4, 6))
    assert odd[1, "F", 0] is not odd[2, "F", 0]
    assert names(odd[1, "F", 0]) == names(odd[2, "F", 0])
    assert even[1, "F", 0] is even[2, "F", 0]
    five, four = (sum(t.seconds for t in odd[stage, "F", 0].tasks if t.name == "attention") for stage in (1, 2))
    assert five > four  # layers of nine that see everything


@pytest.mark.parametrize(
    "keys",
    [
        {"framework": "megatron-core", "pp": 8, "zero": 1},
        {"framework": "megatron-core", "pp": 4, "vpp": 4, "zero": 1},
        {"framework": "megatron-core", "pp": 4, "vpp": 2, "zero": 0, "overlap_grad_reduce": True},
        {"framework": "torchtitan", "pp": 4, "vpp": 2, "zero": 3, "shard": 2, "reshard": False},
        {"framework": "deepspeed", "pp": 4, "zero": 1, "overlap_grad_reduce": True},
    ],
)
def test_first_and_last_passes_that_stages_share_are_what_each_of_them_would_have_alone(keys, monkeypatch):
    described = run(**SMALL | {"model": "llama-2-7b", "tp": 2} | keys)
    shared = build(described)
    monkeypatch.setattr(_Builder, "situation", lambda _, place: place)
    alone = build(described)
    assert shared.first_blocks == alone.first_blocks
    assert shared.last_blocks == alone.last_blocks
    assert len({id(block) for block in shared.last_blocks.values()}) < max(len(alone.last_blocks), 1)


def test_the_tied_embedding_is_summed_between_first_and_last_stage():
    program = build(run(**SMALL))
    assert program.rendezvous_members["tied embedding"] == (0, 3)
    assert "tied embedding" not in build(run(**SMALL | {"pp": 1})).rendezvous_members


@pytest.mark.parametrize("keys", [
    SMALL,
    SMALL | {"vpp": 3, "global_batch": 64},
    SMALL | {"schedule": "gpipe", "recompute": "selective"},
    SMALL | {"framework": "megatron-core", "sp": True, "zero": 1, "precision": "bf16"},
    SMALL | {"overlap_grad_reduce": True},
    SMALL | {"model": "llama-3-8b", "cluster": "dgx-h100", "framework": "megatron-core", "tp": 2},
])  # fmt: skip
def test_three_engines_agree_on_real_programs(keys):
    program = build(run(**keys))
    prices = coalesce(program)
    reference = listing(program).iteration_s
    for execution in (closed_form(program), closed_form(prices), listing(prices), simulate(program), simulate(prices)):
        assert execution.iteration_s == pytest.approx(reference, rel=1e-9)


@pytest.mark.parametrize("how", ["none", "userbuffers"])
def test_a_price_list_over_many_layouts_gives_what_each_layout_gives_alone(how):
    degrees = [(1, 32), (2, 16), (4, 8), (8, 4)]
    base = run(model="llama-3-8b", cluster="dgx-h100", framework="megatron-core", gpus=64, tp=2, pp=2, global_batch=64)
    base = replace(base, framework=replace(base.framework, tp_overlap=how))
    tp = np.array([float(t) for t, _ in degrees])
    dp = np.array([float(d) for _, d in degrees])
    many = replace(
        base,
        layout=replace(base.layout, tp=tp, dp=dp),
        batch=Batch(global_batch=8.0 * dp, micro_batch=1, seq_len=4096),
    )
    together = closed_form(coalesce(build(many)))
    for index, (t, d) in enumerate(degrees):
        one = replace(
            base, layout=replace(base.layout, tp=t, dp=d), batch=Batch(global_batch=8 * d, micro_batch=1, seq_len=4096)
        )
        alone = closed_form(coalesce(build(one)))
        assert together.iteration_s[index] == pytest.approx(float(alone.iteration_s), rel=1e-12)


def test_the_number_of_events_does_not_depend_on_data_parallelism():
    """GPT-3 175B, TP8 x PP16, 16 micro-batches a replica; `benchmarks/folding.py` times it."""
    layout = {"cluster": "dgx-a100", "tp": 8, "pp": 16}
    programs = [build(run(**layout, gpus=n, global_batch=n // 8)) for n in (128, 16384)]
    assert len({simulate(program).events for program in programs}) == 1
    assert len({simulate(coalesce(program)).events for program in programs}) == 1


def test_a_collective_that_leaves_its_domain_stays_a_task_of_its_own():
    """It crosses links that others use: one day it will contend with them."""
    inside = coalesce(build(run(**SMALL | {"gpus": 16})))
    across = coalesce(build(run(**SMALL | {"gpus": 64, "tp": 16})))
    assert all(task.transfer is None for task in inside.blocks[1, "F", 0].tasks)
    assert sum(task.transfer is not None for task in across.blocks[1, "F", 0].tasks) >= 2 * 24


SPLIT = {"model": "llama-2-13b", "cluster": "dgx-h100", "framework": "megatron-core", "gpus": 16, "tp": 8, "pp": 2,
         "global_batch": 8, "seq": 4096, "zero": 0, "recompute": "none"}  # fmt: skip


def test_inputs_gathered_again_hide_behind_the_input_gradient():
    """Sequence parallelism moves 5/4 of the bytes in its backward pass, and shows little more than without."""
    split, whole = (listing(build(run(**SPLIT, sp=sp))) for sp in (True, False))
    program = build(run(**SPLIT, sp=True))
    tasks = program.blocks[0, "B", 0].tasks
    beside = [task for task in tasks if not task.blocking and "input gather" in task.name]
    assert len(beside) == 2 * 20
    for index, task in enumerate(tasks):
        for waited in task.waits:
            assert waited < index
            assert "wgrad" in task.name
    exposed = split.stages[0].seconds["tp"]
    everything = (
        sum(task.seconds for kind in "FB" for task in program.blocks[0, kind, 0].tasks if task.stream == "tp") * 8
    )  # micro-batches
    assert exposed < everything
    assert whole.stages[0].seconds["tp"] > 0
