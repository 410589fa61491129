"""Every problem of a layout at once, with the values that would be legal."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardsim.schema.framework import load_framework
from shardsim.schema.model import load_model
from shardsim.schema.rules import load_rules
from shardsim.values.training import Batch, Layout, Moe
from shardsim.workload.schedules import RULES, make_schedule
from shardsim.workload.stages import chunk_contents
from shardsim.workload.validity import check, verdicts
from shardsim.workload.validity.facts import completed, facts_of
from shardsim.workload.validity.verdicts import legal_values

MID, CORE = load_framework("megatron-2021"), load_framework("megatron-core")
GPT3, LLAMA = load_model("gpt3-175b"), load_model("llama-3-70b")
GOOD = Layout(tp=8, pp=8, dp=16, vpp=3, schedule="interleaved")
BATCH = Batch(1536, 1, 2048)


def messages(layout: Layout, batch: Batch = BATCH, gpus: int = 1024, model: Any = GPT3) -> list[str]:
    return [str(problem) for problem in check(model, layout, batch, gpus, MID)[0]]


def test_the_layout_of_narayanan_for_gpt3_is_valid() -> None:
    assert check(GPT3, GOOD, BATCH, 1024, MID) == ((), ())


@pytest.mark.parametrize(
    ("changes", "batch", "gpus", "expected"),
    [
        ({"tp": 5, "dp": 25}, BATCH, 1000, "layout.tp: 96 attention heads do not divide by tp 5"),
        ({"pp": 5, "vpp": 1, "schedule": "1f1b", "dp": 25}, BATCH, 1000, "96 layers do not divide by pp 5"),
        (
            {"vpp": 5},
            BATCH,
            1024,
            "layout.vpp: 12 layers of a stage do not divide into vpp 5 chunks (one of 1, 2, 3, 4",
        ),
        ({"split": (12,) * 24}, BATCH, 1024, "layout.stage_layers: layers of 24 virtual stages, 288 in all (96 layers"),
        ({}, BATCH, 1000, "gpus: 1000 GPUs do not divide into replicas of tp 8 x pp 8 x cp 1 = 64"),
        ({"dp": 8}, BATCH, 1024, "layout.dp: dp 8 x 64 ranks a replica is not 1024 GPUs (16)"),
        ({}, replace(BATCH, global_batch=1500), 1024, "batch.global: a global batch of 1500 does not divide"),
        (
            {},
            replace(BATCH, global_batch=1552),
            1024,
            "batch.global: 97 micro-batches do not divide by 8 pipeline stages",
        ),
        ({"pp": 1, "dp": 128}, BATCH, 1024, "layout.pp: interleaved on 1 pipeline stage"),
        ({"vpp": 1}, BATCH, 1024, "layout.vpp: interleaved needs several chunks a stage"),
        ({"schedule": "1f1b"}, BATCH, 1024, "layout.vpp: 1f1b holds one chunk a stage, not 3"),
        ({"group": 4}, BATCH, 1024, "layout.group: groups of 4 micro-batches on 8 pipeline stages"),
        ({"sp": True}, replace(BATCH, seq_len=2044), 1024, "sequences of 2044 tokens do not divide by tp 8"),
        (
            {},
            replace(BATCH, seq_len=4096),
            1024,
            "4096 tokens are longer than the model's 2048 positions (2048 or less)",
        ),
        ({"cp": 2, "dp": 8}, BATCH, 1024, "layout.cp: context parallelism (cp 2) with unfused attention (1, or"),
        ({"ep": 2}, BATCH, 1024, "layout.ep: expert parallelism (ep 2) of a model without experts (1)"),
        ({"shard": 3, "zero": 1}, BATCH, 1024, "layout.shard: dp 16 does not divide into groups of 3 replicas"),
        ({"shard": 4}, BATCH, 1024, "layout.zero: a group of 4 replicas that share a model state, and ZeRO stage 0"),
        (
            {"recompute_layers": 2},
            BATCH,
            1024,
            "recompute_layers says how full recompute is done, and recompute is none",
        ),
        ({"recompute": "selective", "recompute_modules": ("moe_act",)}, BATCH, 1024, "names a part of experts"),
        (
            {"order": ("tp", "dp", "dp", "pp")},
            BATCH,
            1024,
            "the rank order tp, dp, dp, pp does not name each axis once",
        ),
        ({"tp": 0}, BATCH, 1024, "layout.tp: 0 is not a count (a whole number, 1 or more)"),
        ({}, replace(BATCH, micro_batch=1.5), 1024, "batch.micro: 1.5 is not a count"),
    ],
)
def test_each_rule_says_what_is_wrong(changes: dict[str, Any], batch: Batch, gpus: int, expected: str) -> None:
    assert any(expected in message for message in messages(replace(GOOD, **changes), batch, gpus))


def test_legal_values_satisfy_the_other_rules_too() -> None:
    (message,) = messages(replace(GOOD, tp=64, pp=1, vpp=1, dp=16, schedule="1f1b"))
    # tp 1 would leave 1,024 replicas, and the global batch of 1,536 does not divide by them
    assert message == "layout.tp: 96 attention heads do not divide by tp 64 (one of 2, 4, 8, 16, 32)"
    found = "\n".join(messages(Layout(3, 1, 16), Batch(1024, 1, 4096), 1024, LLAMA))
    assert "64 attention heads do not divide by tp 3 (one of 1, 2, 4, 8, 16, 32, 64)" in found
    assert "the MLP width 28672 does not divide by tp 3 (one of 1, 2, 4, 8, 16, 32, 64)" in found
    # a batch of 16 leaves no more than 16 replicas
    found = "\n".join(messages(Layout(3, 1, 16), Batch(16, 1, 4096), 1024, LLAMA))
    assert "64 attention heads do not divide by tp 3 (one of 64)" in found


def test_values_that_break_a_rule_besides_are_named_where_nothing_mends_all() -> None:
    layout = Layout(tp=7, pp=5, dp=1)
    found = "\n".join(messages(layout, Batch(64, 1, 2048), 64))
    assert "96 attention heads do not divide by tp 7 (one of 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 96)" in found


def test_key_value_heads_may_be_a_multiple_or_a_divisor_of_tp() -> None:
    for tp, good in ((4, True), (8, True), (16, True), (64, True), (3, False), (12, False)):
        layout = Layout(tp, 1, 1)
        found = messages(layout, Batch(1, 1, 4096), tp, replace(LLAMA, heads=192, ffn=192 * 64))
        assert (not any("key-value heads" in message for message in found)) is good


def test_all_problems_come_at_once() -> None:
    layout = Layout(tp=7, pp=9, dp=1, vpp=1, cp=2, zero=1, shard=5)
    found = messages(layout, Batch(10, 3, 4095), 1000)
    for where in ("gpus", "layout.tp", "layout.pp", "layout.cp", "batch.seq"):
        assert any(message.startswith(f"{where}: ") for message in found)
    assert len(messages(replace(layout, tp=-1, pp=0), Batch(0, 0, 0), 0)) == 6


def test_sequence_parallelism_without_tensor_parallelism_is_switched_off_with_a_warning() -> None:
    layout = Layout(1, 1, 8, sp=True)
    problems, warnings = check(GPT3, layout, Batch(8, 1, 2047), 8, MID)
    assert problems == ()
    assert "tp is 1" in warnings[0]
    assert check(GPT3, layout, Batch(8, 1, 2047), 8, CORE)[1] == ()  # on by default there: nobody asked


MIXTRAL = replace(LLAMA, name="moe", moe=Moe(experts=8, top_k=2, ffn=14336))


def rules_broken(model: Any, layout: Layout, batch: Batch, gpus: int, framework: str = "megatron-core") -> list[str]:
    found = check(model, layout, batch, gpus, load_framework(framework), priced=False)[0]
    return [str(problem) for problem in found]


def test_experts_follow_megatron_cores_rules() -> None:
    good = Layout(4, 4, 4, ep=4, etp=4, sp=True)
    batch = Batch(64, 1, 4096)
    assert rules_broken(MIXTRAL, good, batch, 64) == []
    for changes, said in (
        ({"sp": False}, "layout.sp: experts with tensor parallelism (tp 4) and without sequence parallelism"),
        ({"ep": 3}, "layout.ep: 8 experts do not divide by ep 3 (one of 1, 2, 4)"),
        ({"ep": 8, "etp": 4}, "layout.ep: 64 GPUs do not divide into etp 4 x ep 8 x pp 4 = 128 ranks of all experts"),
        ({"etp": 3}, "layout.etp: the width 14336 of an expert does not divide by etp 3"),
    ):
        assert any(said in message for message in rules_broken(MIXTRAL, replace(good, **changes), batch, 64))
    assert "of a model without experts" in rules_broken(LLAMA, good, batch, 64)[0]
    fp16 = check(MIXTRAL, good, batch, 64, CORE, precision="fp16", priced=False)[0]
    assert [problem.what for problem in fp16] == ["expert parallelism (ep 4) in fp16"]


def test_replicas_that_share_a_state_hold_whole_groups_of_experts() -> None:
    """github NVIDIA/Megatron-LM, parallel_state.py: the expert replicas divide by the optimizer's instances."""
    layout, batch = Layout(1, 1, 16, ep=8, zero=1), Batch(64, 1, 4096)
    assert rules_broken(MIXTRAL, replace(layout, shard=8), batch, 16) == []
    (found,) = rules_broken(MIXTRAL, replace(layout, shard=2), batch, 16)
    assert found.startswith("layout.shard: 2 replicas that share a model state do not hold whole groups of ep 8")
    assert found.endswith("(one of 8, 16)")


def test_units_of_more_layers_than_a_chunk_holds_run_and_are_warned_of() -> None:
    """Megatron Core names the bound in a message and never checks it; a unit ends with its chunk."""
    layout = replace(GOOD, recompute="full", recompute_layers=5)
    problems, warnings = check(GPT3, layout, BATCH, 1024, MID)
    assert (problems, warnings) == ((), ("units of 5 layers, and a chunk holds 4",))


def test_context_parallelism_splits_sequences_twice() -> None:
    layout = Layout(2, 1, 2, cp=4, sp=True)
    assert rules_broken(LLAMA, layout, Batch(8, 1, 4096), 16) == []
    assert "do not divide by 2 x cp 4" in rules_broken(LLAMA, replace(layout, sp=False), Batch(8, 1, 4092), 16)[0]
    assert "tp 2 x cp 4, as sequence parallelism needs" in rules_broken(LLAMA, layout, Batch(8, 1, 4092), 16)[0]


GROUPED = replace(MIXTRAL, moe=Moe(experts=64, top_k=8, ffn=2048, shared_ffn=2048, groups=8, group_limit=4), mtp=1)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"cp": 4, "cp_comm": "a2a"}, "layout.cp: 8 key-value heads do not go over tp 4 x cp 4 ranks, as cp_comm a2a"),
        ({"cp": 3, "cp_comm": "a2a"}, "layout.cp: 64 attention heads do not go over tp 4 x cp 3 ranks"),
        ({"cp": 4, "cp_comm": "a2a+p2p"}, "layout.cp_inner: cp 4 does not divide into groups of cp_inner 0 ranks"),
        (
            {"cp": 4, "cp_comm": "a2a+p2p", "cp_inner": 3},
            "groups of cp_inner 3 ranks that exchange heads (one of 1, 2)",
        ),
        ({"cp": 4, "cp_comm": "a2a+p2p", "cp_inner": 4}, "8 key-value heads do not go over tp 4 x cp_inner 4 ranks"),
        ({"cp": 4, "cp_inner": 2}, "cp_inner 2 says how a2a+p2p exchanges heads, and cp_comm is p2p (leave it out"),
    ],
)
def test_ways_of_context_parallelism_have_limits_of_their_own(changes: dict[str, Any], said: str) -> None:
    layout = replace(Layout(4, 1, 1, sp=True), **changes)
    found = rules_broken(LLAMA, layout, Batch(8, 1, 4096 * 3), int(layout.gpus))
    assert any(said in message for message in found), found
    ring = replace(layout, cp=4, cp_comm="p2p", cp_inner=0)
    assert rules_broken(LLAMA, ring, Batch(8, 1, 4096), 16) == []


def test_windows_and_sinks_leave_few_ways_of_context_parallelism() -> None:
    layout, batch = Layout(1, 1, 1, cp=2), Batch(8, 1, 4096)
    windowed = replace(LLAMA, window=128, full_every=2)
    assert "layout.cp_comm: sliding-window attention with cp_comm p2p (all_gather or a2a)" in rules_broken(
        windowed, layout, batch, 2
    )
    gathered = replace(layout, cp_comm="all_gather")
    assert rules_broken(windowed, gathered, batch, 2) == []
    assert (
        "attention sinks with cp_comm all_gather (a2a)"
        in rules_broken(replace(windowed, sinks=True), gathered, batch, 2)[0]
    )
    assert rules_broken(replace(windowed, sinks=True), replace(layout, cp_comm="a2a"), batch, 2) == []


def test_latent_attention_is_only_warned_of_where_the_library_passes_no_latent_keys() -> None:
    deepseek, batch = load_model("deepseek-v3"), Batch(64, 1, 4096)
    layout = Layout(1, 1, 4, cp=2, ep=8, cp_comm="all_gather")
    problems, warnings = check(deepseek, replace(layout, split=()), batch, 8, CORE)
    assert problems == ()
    assert warnings == ("Transformer Engine has no cp_comm all_gather for latent attention; simulated as if it had",)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"pads_capacity": True}, "layout.capacity_factor: experts padded to their capacity, and no capacity factor"),
        (
            {"pads_capacity": True, "capacity_factor": 1.25, "dispatcher": "deepep"},
            "layout.dispatcher: experts padded to their capacity with the deepep dispatcher (alltoall, allgather or",
        ),
        ({"ep": 1, "dispatcher": "deepep"}, "layout.dispatcher: the deepep dispatcher on one rank (alltoall or"),
        (
            {"ep": 8, "etp": 5, "dispatcher": "deepep"},
            "layout.ep: the deepep dispatcher on etp 5 x ep 8 = 40 ranks",
        ),
        (
            {"ep": 1, "overlap_experts": True},
            "layout.overlap_experts: overlap_experts hides tokens on their way behind",
        ),
        (
            {"overlap_experts": True, "pp": 4, "dp": 4},
            "layout.vpp: overlap_experts in a pipeline (pp 4) without chunks",
        ),
        (
            {"overlap_experts": True, "dispatcher": "allgather"},
            "layout.dispatcher: overlap_experts with the allgather dispatcher (alltoall, deepep or hybridep)",
        ),
        (
            {"overlap_experts": True, "recompute": "full"},
            "layout.recompute: overlap_experts where whole layers of experts are repeated (none, or selective without",
        ),
        (
            {"overlap_experts": True, "recompute": "selective", "recompute_modules": ("moe",)},
            "layout.recompute: overlap_experts where whole layers of experts are repeated",
        ),
    ],
)
def test_experts_and_their_tokens_have_limits(changes: dict[str, Any], said: str) -> None:
    good = Layout(1, 1, 16, ep=8)
    assert rules_broken(GROUPED, good, Batch(64, 1, 4096), 16) == []
    found = rules_broken(GROUPED, replace(good, **changes), Batch(64, 1, 4096), 16)
    assert any(said in message for message in found), found


def test_shared_experts_are_hidden_behind_one_thing_only() -> None:
    behind = replace(CORE, overlap_shared_experts=True)
    layout, batch = Layout(1, 1, 16, ep=8), Batch(64, 1, 4096)

    def broken(**changes: Any) -> list[str]:
        return [str(problem) for problem in check(GROUPED, replace(layout, **changes), batch, 16, behind)[0]]

    assert broken() == []
    assert "with the allgather dispatcher" in broken(dispatcher="allgather")[0]
    assert "overlap_experts, and shared experts computed while tokens travel" in broken(overlap_experts=True)[0]
    again = broken(recompute="selective", recompute_modules=("shared_experts",))
    assert "selective recompute of shared experts that are computed while tokens travel" in again[0]


@pytest.mark.parametrize(
    ("moe", "said"),
    [
        ({"groups": 7}, "model.moe.groups: 64 experts do not fall into 7 groups (one of 4, 8, 16, 32)"),
        ({"group_limit": 9}, "model.moe.group_limit: tokens limited to 9 of 8 groups of experts (1 to 8)"),
        (
            {"groups": 16, "group_limit": 1},
            "model.moe.group_limit: each token goes to 8 experts, and 1 groups hold 4 (one of 2, 3, 4",
        ),
        ({"top_k": 65, "groups": 0}, "model.top_k: each token goes to 65 experts, a layer has 64"),
    ],
)
def test_node_limited_routing_leaves_a_token_enough_experts(moe: dict[str, int], said: str) -> None:
    assert GROUPED.moe is not None
    model = replace(GROUPED, moe=replace(GROUPED.moe, **moe))
    found = rules_broken(model, Layout(1, 1, 16, ep=8), Batch(64, 1, 4096), 16)
    assert any(said in message for message in found), found


def test_overlap_with_several_modules_of_multi_token_prediction_is_refused() -> None:
    layout = Layout(1, 1, 16, ep=8, overlap_experts=True)
    (found,) = rules_broken(replace(GROUPED, mtp=2), layout, Batch(64, 1, 4096), 16)
    assert found == "model.mtp: overlap_experts with 2 modules of multi-token prediction (1 or 0)"


@pytest.mark.parametrize(
    ("rules", "changes", "said"),
    [
        ("torchtitan", {"cp": 2, "dp": 8, "cp_comm": "a2a"}, "torchtitan has no cp_comm a2a; simulated as if it had"),
        ("torchtitan", {"capacity_factor": 1.5}, "torchtitan drops no tokens; simulated as if capacity_factor 1.5 did"),
        ("torchtitan", {"dispatcher": "allgather"}, "torchtitan has no allgather dispatcher; simulated as if it had"),
        ("deepspeed", {"cp": 2, "dp": 8}, "DeepSpeed has no cp_comm p2p; simulated as if it had"),
        ("deepspeed", {"dispatcher": "deepep"}, "DeepSpeed has no deepep dispatcher; simulated as if it had"),
    ],
)
def test_what_a_framework_has_not_is_simulated_with_a_warning(rules: str, changes: dict[str, Any], said: str) -> None:
    layout = replace(Layout(1, 1, 16, ep=8), **changes)
    found = check(GROUPED, layout, Batch(64, 1, 4096), 16, CORE, rules=load_rules(rules))
    assert found == ((), (said,))


def test_fsdp_alone_computes_every_expert_on_every_rank() -> None:
    (found,) = rules_broken(GROUPED, Layout(1, 1, 16, ep=8), Batch(64, 1, 4096), 16, "fsdp")
    assert found.startswith("layout.ep: ep 8: FSDP alone shards experts over ranks that all compute them (1; or")


def test_each_framework_has_rules_of_its_own() -> None:
    """ZeRO 2 with a pipeline is refused by DeepSpeed alone, seven key-value heads by torchtitan alone."""
    layout, batch = Layout(2, 4, 8, zero=2), Batch(256, 1, 2048)
    assert rules_broken(GPT3, layout, batch, 64) == []
    found = rules_broken(GPT3, layout, batch, 64, "megatron-deepspeed")
    assert [message.split(":")[0] for message in found] == ["layout.zero"]
    few = replace(LLAMA, kv_heads=2)
    assert rules_broken(few, Layout(8, 1, 1, sp=True), Batch(8, 1, 4096), 8) == []
    assert (
        "2 key-value heads do not divide by tp 8"
        in rules_broken(few, Layout(8, 1, 1, sp=True), Batch(8, 1, 4096), 8, "torchtitan")[0]
    )
    assert "FSDP alone has no pipeline" in rules_broken(LLAMA, Layout(1, 2, 4), Batch(8, 1, 4096), 8, "fsdp")[0]


@pytest.mark.parametrize(
    ("framework", "native"),
    [
        ("megatron-core", {"1f1b", "interleaved"}),
        ("megatron-deepspeed", {"1f1b"}),
        ("deepspeed", {"1f1b"}),
        ("nanotron", {"gpipe", "1f1b"}),
        ("torchtitan", {"gpipe", "1f1b", "interleaved", "zb-v", "dualpipev"}),
    ],
)
def test_a_schedule_that_a_framework_does_not_have_runs_with_a_warning(framework: str, native: set[str]) -> None:
    stack = replace(load_framework(framework), rules=framework)
    for name, schedule in RULES.items():
        layout = Layout(2, 4, 8, vpp=schedule.chunks or 2, sp=True, schedule=name)
        problems, warnings = check(LLAMA, layout, Batch(256, 1, 4096), 64, stack)
        assert problems == ()
        foreign = [said for said in warnings if said.endswith(f"has no {name} schedule; simulated as if it had")]
        assert len(foreign) == (name not in native)
    alone = Layout(2, 1, 8, sp=True, schedule="gpipe")
    assert check(LLAMA, alone, Batch(256, 1, 4096), 16, stack) == ((), ())  # without a pipeline, none is run


@pytest.mark.parametrize(
    ("framework", "native"),
    [
        ("megatron-core", {0, 1}),
        ("nanotron", {0, 1}),
        ("megatron-deepspeed", {0, 1, 2, 3}),
        ("deepspeed", {0, 1, 2, 3}),
        ("fsdp", {0, 2, 3}),
        ("torchtitan", {0, 2, 3}),
    ],
)
def test_a_zero_stage_that_a_framework_does_not_have_runs_with_a_warning(framework: str, native: set[int]) -> None:
    stack = replace(load_framework(framework), rules=framework)
    for zero in range(4):
        problems, warnings = check(LLAMA, Layout(1, 1, 16, zero=zero), Batch(256, 1, 4096), 16, stack)
        assert problems == ()
        foreign = [said for said in warnings if said.endswith(f"has no ZeRO stage {zero}; simulated as if it had")]
        assert len(foreign) == (zero not in native)


def test_a_remainder_of_layers_needs_a_split_where_the_framework_takes_one() -> None:
    batch = Batch(64, 1, 4096)
    assert (
        "how torchtitan spreads a remainder is open (give stage_layers, such as 26 and 27)"
        in rules_broken(LLAMA, Layout(1, 3, 4), batch, 12, "torchtitan")[0]
    )
    assert rules_broken(LLAMA, Layout(1, 3, 4, split=(27, 27, 26)), batch, 12, "torchtitan") == []


def test_a_users_own_schedule_must_fit_the_batch() -> None:
    custom = make_schedule("1f1b", 8, 96)
    layout = replace(GOOD, vpp=1, schedule="custom", custom=custom)
    assert messages(layout) == []
    found = messages(layout, replace(BATCH, global_batch=768))
    assert found == [
        "batch.global: the schedule runs 96 micro-batches, the batch makes 48 a replica (96 micro-batches a replica)"
    ]


@given(
    tp=st.integers(1, 32),
    pp=st.integers(1, 32),
    vpp=st.integers(1, 6),
    dp=st.integers(1, 8),
    micro=st.integers(1, 4),
    count=st.integers(1, 64),
)
def test_a_layout_without_problems_can_be_scheduled_and_divides(
    tp: int, pp: int, vpp: int, dp: int, micro: int, count: int
) -> None:
    layout = Layout(tp, pp, dp, vpp=vpp, schedule="interleaved" if vpp > 1 else "1f1b")
    problems, _ = check(GPT3, layout, Batch(count * micro * dp, micro, 2048), tp * pp * dp, MID)
    divides = 96 % tp == 0 and 96 % (pp * vpp) == 0 and (vpp == 1 or (pp > 1 and count % pp == 0))
    assert (not problems) is divides
    if not problems:
        schedule = make_schedule(layout.schedule, pp, count, vpp)
        assert sum(content.layers for content in chunk_contents(GPT3, layout, schedule).values()) == 96


@given(
    tp=st.integers(1, 16),
    pp=st.integers(1, 12),
    cp=st.integers(1, 3),
    ep=st.integers(1, 9),
    gpus=st.integers(1, 300),
    seq=st.integers(1, 600),
    sp=st.booleans(),
    how=st.fixed_dictionaries(
        {
            "cp_comm": st.sampled_from(["p2p", "all_gather", "a2a", "a2a+p2p"]),
            "cp_inner": st.integers(0, 4),
            "dispatcher": st.sampled_from(["alltoall", "allgather", "deepep", "hybridep"]),
            "overlap_experts": st.booleans(),
            "pads_capacity": st.booleans(),
        }
    ),
)
def test_every_value_that_is_named_mends_its_rule(
    tp: int, pp: int, cp: int, ep: int, gpus: int, seq: int, sp: bool, how: dict[str, Any]
) -> None:
    layout = Layout(tp, pp, gpus / (tp * pp * cp), cp=cp, ep=ep, etp=tp, sp=sp, **how)
    facts = facts_of(GROUPED, layout, Batch(840, 1, seq), gpus, CORE)
    rules = load_rules("megatron-core")
    broken = [rule for rule in rules.rules if rule.holds(facts) is False and rule.choose]
    for rule in broken:
        for value in legal_values(rule, facts, [rules.rules]):
            assert rule.choose is not None
            changed = {**facts, rule.choose[0]: value, "dp": None, "dp_asked": None, "virtual_stages": None}
            assert rule.holds(completed(changed))
    found = verdicts(rules, facts)
    assert {*found.held} | {*found.undecided} | {rule.name for rule in rules.rules if rule.holds(facts) is False} == {
        rule.name for rule in rules.rules
    }
