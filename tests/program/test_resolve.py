"""From a request to a run: what follows is filled in, and every problem is told at once."""

from __future__ import annotations

import pytest

from shardsim.errors import InputError
from shardsim.program.resolve import resolve
from shardsim.schema.run import nested, request_from_mapping

GOOD = {
    "model": "gpt3-175b", "cluster": "selene", "gpus": 128, "tp": 8, "pp": 16, "micro_batch": 1, "global_batch": 16,
    "seq": 2048,
}  # fmt: skip


EXPERTS = {
    "model": "mixtral-8x7b",
    "cluster": "dgx-h100",
    "gpus": 16,
    "ep": 8,
    "global_batch": 32,
    "seq": 4096,
    "framework": "megatron-core",
}


def resolved(**keys):
    return resolve(request_from_mapping(nested(GOOD | keys)))


def problems(**keys):
    with pytest.raises(InputError) as caught:
        resolved(**keys)
    return [str(problem) for problem in caught.value.problems]


def test_data_parallel_degree_is_derived():
    assert resolved(gpus=1024, global_batch=128).layout.dp == 8


def test_a_cluster_names_the_framework_its_runs_used():
    assert resolved().framework.name == "megatron-2021"
    assert resolved(cluster="dgx-2h", gpus=128).framework.name == "megatron-2019"
    assert resolved(cluster="dgx-h100").framework.name == "megatron-core"


def test_precision_and_recompute_follow_the_framework_unless_asked_for():
    run = resolved()
    assert (run.precision, run.layout.recompute) == ("fp16", "full")
    run = resolved(precision="bf16", recompute="selective")
    assert (run.precision, run.layout.recompute) == ("bf16", "selective")


def test_chunks_mean_the_interleaved_schedule():
    assert resolved(vpp=3).layout.schedule == "interleaved"
    assert resolved().layout.schedule == "1f1b"


@pytest.mark.parametrize(
    ("schedule", "chunks"),
    [("gpipe", 1), ("zb-h1", 1), ("zb-h2", 1), ("zb-v", 2), ("dualpipe", 2), ("dualpipev", 2)],
)
def test_a_schedule_brings_its_number_of_chunks(schedule, chunks):
    layout = resolved(schedule=schedule, pp=8, gpus=64, global_batch=64).layout
    assert (layout.schedule, layout.vpp) == (schedule, chunks)
    assert resolved(schedule=schedule, pp=8, gpus=64, global_batch=64, vpp=chunks).layout.vpp == chunks


def test_a_number_of_chunks_that_a_schedule_does_not_hold_is_refused():
    for schedule, chunks in (("zb-v", 3), ("zb-v", 1), ("v-half", 1), ("v-min", 1), ("dualpipe", 1)):
        (found,) = problems(schedule=schedule, vpp=chunks, pp=8, gpus=64, global_batch=64)
        assert found == f"layout.vpp: {schedule} holds 2 chunks a stage, not {chunks} (2, or leave it out)"
    (several,) = problems(schedule="1f1b", vpp=3)
    assert several.endswith("1f1b holds one chunk a stage, not 3 (1, or schedule interleaved)")
    (alone,) = problems(schedule="1f1b", vpp=2, pp=1, gpus=8)
    assert alone.endswith("1f1b holds one chunk a stage, not 2 (1)")  # a pipeline of one stage does not interleave
    assert "did you mean dualpipe" in problems(schedule="dualpip")[0]


def test_layers_of_stages_follow_from_what_is_said():
    assert resolved(first_layers=5, last_layers=7).layout.split == (5, *[6] * 14, 7)
    layout = resolved(pp=14, gpus=112, embedding_as_layer=True, loss_as_layer=True).layout
    assert layout.split == (6, *[7] * 12, 6)
    layout = resolved(pp=8, gpus=64, pp_layout="Et*5|(t*6|)*14,t*7,L").layout
    assert (layout.schedule, layout.vpp, layout.split) == ("interleaved", 2, (5, *[6] * 14, 7))
    assert resolved(pp=8, gpus=64, virtual_stage_layers=4).layout.vpp == 3
    both_ways = resolved(schedule="dualpipe", pp=8, gpus=64, first_layers=10, last_layers=14, global_batch=64)
    assert both_ways.layout.split == (10, *[12] * 6, 14)


def test_a_schedule_of_ones_own_is_read_and_held_against_the_layout(tmp_path):
    path = tmp_path / "own.yaml"
    path.write_text("chunks: 2\nchains: v\nstages: [F0.0 F0.1 B0.1 B0.0, F0.0 F0.1 B0.1 B0.0]\n")
    asked = {"schedule": str(path), "pp": 2, "gpus": 16, "global_batch": 1}
    layout = resolved(**asked).layout
    assert (layout.schedule, layout.vpp, layout.custom.microbatches) == ("custom", 2, 1)
    text = "\n".join(problems(**asked | {"pp": 4, "gpus": 32, "global_batch": 2}))
    assert "own.yaml is a schedule of 2 stages, pp is 4" in text
    assert "the schedule runs 1 micro-batches, the batch makes 2 a replica" in text
    assert "the first stage of this schedule holds the first and the last" in problems(**asked, first_layers=40)[0]
    (missing,) = problems(**asked | {"schedule": str(tmp_path / "none.yaml")})
    assert "no such file" in missing
    for folder in (str(tmp_path), "."):
        assert problems(**asked | {"schedule": folder})[0] == f"{folder}: is a directory (name a file)"


def test_a_schedule_for_other_stages_says_nothing_of_layers(tmp_path):
    path = tmp_path / "own.yaml"
    path.write_text("stages: [F0 B0, F0 B0, F0 B0, F0 B0, F0 B0]\n")  # 96 layers do not divide by 5
    (found,) = problems(schedule=str(path), pp=2, gpus=16, global_batch=1)
    assert found == "layout.pp: own.yaml is a schedule of 5 stages, pp is 2 (5)"


def test_problems_of_stages_come_with_all_others():
    found = "\n".join(problems(first_layers=5, last_layers=6, tp=5, zero=1, shard=3))
    for where in ("layout.first_layers: ", "layout.tp: ", "gpus: "):
        assert where in found
    assert len(problems(pp=10, gpus=80, first_layers=5)) == 1  # 96 layers over 10 stages are nobody's wish


def test_choices_of_sharding_and_recompute_reach_the_layout():
    layout = resolved(
        gpus=1024, global_batch=128, zero=3, shard=4, reshard=False, recompute="full", recompute_method="block",
        recompute_layers=2, vpp=2, group=16,
    ).layout  # fmt: skip
    assert (layout.zero, layout.shard, layout.reshard, layout.group) == (3, 4, False, 16)
    assert (layout.recompute_method, layout.recompute_layers) == ("block", 2)
    assert resolved(recompute="selective", recompute_modules=["mlp"]).layout.recompute_modules == ("mlp",)
    plain = resolved().layout
    assert (plain.shard, plain.reshard, plain.group, plain.recompute_modules) == (0, True, 0, ("core_attn",))


def test_how_something_is_recomputed_needs_that_it_is():
    assert (
        "recompute_method says how full recompute is done"
        in problems(recompute="selective", recompute_method="block")[0]
    )
    assert "recompute_modules says what selective recompute repeats" in problems(recompute_modules=["mlp"])[0]
    assert "recompute_layers says how full recompute is done" in problems(recompute="none", recompute_layers=2)[0]
    assert any("reshard changes nothing under ZeRO 0" in warning for warning in resolved(reshard=True).warnings)


def test_what_has_no_price_can_be_resolved_for_its_memory():
    """No constants of this dispatcher on the fabric of A100."""
    asked = request_from_mapping(nested(EXPERTS | {"cluster": "selene", "dispatcher": "hybridep"}))
    with pytest.raises(InputError, match="has no constants of the dispatcher hybridep"):
        resolve(asked)
    assert resolve(asked, priced=False).layout.dispatcher == "hybridep"


def _of_experts(**changes):
    return resolve(request_from_mapping(nested(EXPERTS | changes)))


def test_experts_are_split_like_the_rest_only_where_the_framework_does_so():
    """Megatron-LM's expert_tensor_parallel_size is the tensor-parallel degree by default, torchtitan's is 1."""
    assert _of_experts(tp=2).layout.etp == 2
    assert _of_experts(tp=2, framework="torchtitan", ep=4).layout.etp == 1
    assert _of_experts(tp=2, etp=1).layout.etp == 1
    assert resolved().layout.etp == 1


def test_the_framework_decides_how_tokens_and_keys_travel_where_the_layout_does_not():
    assert (_of_experts().layout.dispatcher, _of_experts().layout.cp_comm) == ("alltoall", "p2p")
    assert _of_experts(dispatcher="allgather").layout.dispatcher == "allgather"
    assert _of_experts(framework="torchtitan").layout.cp_comm == "all_gather"
    alone = _of_experts(framework="deepseek", ep=1, model="mixtral-8x7b", precision="bf16", zero=1).layout
    assert alone.dispatcher == "alltoall"  # nothing travels


def test_balanced_routing_is_said_to_be_assumed_where_tokens_travel():
    assert any("balanced routing assumed" in warning for warning in _of_experts().warnings)
    assert not any("balanced" in warning for warning in _of_experts(routing="balanced").warnings)
    assert not any("balanced" in warning for warning in _of_experts(ep=1, gpus=8).warnings)


def test_the_busiest_rank_is_the_imbalance():
    skewed = _of_experts(routing={"loads": [4, 1, 1, 1, 1, 1, 1, 2]}, ep=4)
    assert skewed.layout.imbalance == pytest.approx(5 * 4 / 12)
    assert any("busiest of 4 expert-parallel ranks gets 1.67 times" in warning for warning in skewed.warnings)
    zipf = _of_experts(routing={"power_law": 1.0}, ep=8)
    assert zipf.layout.imbalance == pytest.approx(8 / sum(1 / rank for rank in range(1, 9)))


def test_what_full_experts_do_not_take_is_dropped_and_said():
    """Loads 4 1 1 1 1 1 1 2 of a mean of 1.5: an expert takes 3 at most, so 1 of 12 copies is dropped."""
    run = _of_experts(routing={"loads": [4, 1, 1, 1, 1, 1, 1, 2]}, ep=8, capacity_factor=2.0)
    assert run.layout.imbalance == pytest.approx(2.0)
    assert any("8.3% of all copies of tokens are dropped" in warning for warning in run.warnings)


def test_loads_of_another_number_of_experts_are_refused_with_every_other_problem():
    with pytest.raises(InputError) as caught:
        _of_experts(routing={"loads": [1, 2, 3]}, ep=3, dispatcher="hybridep", cluster="selene")
    text = str(caught.value)
    assert "loads of 3 experts, and a layer of mixtral-8x7b has 8" in text
    assert "layout.ep" in text
    assert "layout.dispatcher" in text


def test_keys_of_experts_change_nothing_without_experts():
    warnings = resolved(dispatcher="alltoall", routing="balanced", cp_comm="p2p").warnings
    assert any("dispatcher and routing change nothing: gpt3-175b has no experts" in warning for warning in warnings)
    assert any("cp_comm changes nothing: there is no context parallelism" in warning for warning in warnings)


def test_further_tokens_to_predict_may_be_asked_for():
    assert _of_experts(mtp=1).model.mtp == 1
    assert _of_experts().model.mtp == 0


def test_a_framework_may_say_what_selective_recompute_repeats():
    modules = ("layernorm", "mla_up_proj", "moe_act")
    run = _of_experts(model="deepseek-v2", framework="deepseek", cluster="hgx-h800", precision="bf16")
    assert (run.layout.recompute, run.layout.recompute_modules) == ("selective", modules)
    dense = resolved(framework="deepseek", cluster="hgx-h800", model="llama-3-8b", pp=1, tp=1, gpus=16).layout
    assert dense.recompute_modules == ("layernorm",)


def test_every_unknown_name_is_reported_together_with_near_ones():
    found = problems(model="gpt3-175", cluster="selen", framework="megatron-202")
    assert len(found) == 3
    assert "gpt3-175b" in found[0]
    assert "selene" in found[1]
    assert "megatron-202" in found[2]


def test_every_thing_wrong_with_a_layout_is_reported_together():
    text = "\n".join(problems(tp=5, pp=7, gpus=100))
    for key in ("layout.tp", "layout.pp", "gpus"):
        assert f"{key}: " in text
    assert "batch.global: " in problems(global_batch=17, gpus=256)[0]


def test_gpus_and_data_parallel_degree_must_agree():
    assert "tp x pp x cp x dp = 256" in problems(dp=2)[0]
    assert resolved(gpus=None, dp=2, global_batch=32).layout.gpus == 256
    assert "neither gpus nor layout.dp" in problems(gpus=None)[0]


def test_a_precision_without_a_measured_rate_is_refused_not_guessed():
    found = problems(precision="fp8", cluster="selene", framework="megatron-core")[0]
    assert "no measured matrix-product rate for precision 'fp8' on a100" in found


def test_fp8_is_what_the_framework_makes_of_it():
    hopper = {"cluster": "dgx-h100", "framework": "megatron-core"}
    run = resolved(precision="fp8", **hopper)
    assert (run.precision, run.framework.low_precision) == ("fp8-delayed", "fp8-delayed")
    assert (run.linear_type, run.peak_type, run.wide_type) == ("fp8", "fp8", "bf16")
    blocks = resolved(precision="fp8-block", **hopper)
    assert (blocks.linear_type, blocks.peak_type, blocks.wide_type) == ("fp8_block", "fp8", "bf16")
    wide = resolved(precision="bf16", **hopper)
    assert (wide.linear_type, wide.peak_type, wide.wide_type, wide.framework.low_precision) == (*["bf16"] * 3, None)
    assert "megatron-2021 has no fp8" in problems(precision="fp8", cluster="dgx-h100", framework="megatron-2021")[0]


def test_scales_of_short_blocks_need_blackwell():
    for precision, peak in (("mxfp8", "fp8"), ("nvfp4", "fp4")):
        assert "one of bf16" in problems(precision=precision, cluster="dgx-h100", framework="megatron-core")[0]
        assert resolved(precision=precision, cluster="dgx-b200", framework="megatron-core").peak_type == peak


def test_a_cluster_larger_than_built_is_priced_with_a_warning():
    assert any("4,480 GPUs" in warning for warning in resolved(gpus=8192, global_batch=1024).warnings)


def test_what_was_taken_by_default_or_changes_nothing_is_said():
    assert "framework megatron-2021 taken" in resolved().warnings[0]
    assert resolved(framework="megatron-2021").warnings == ()
    assert "recipe" in resolved(framework="megatron-2021", precision="bf16").warnings[0]
    said = "\n".join(resolved(framework="megatron-2021", set={"cluster.rail_optimized": False}).warnings)
    assert "cluster.rail_optimized changes no price" in said
    for zero in (0, 1, 2):
        said = "\n".join(resolved(framework="megatron-core", zero=zero, reshard=False).warnings)
        assert f"reshard changes nothing under ZeRO {zero}" in said
    assert not any("reshard" in said for said in resolved(framework="megatron-core", zero=3, reshard=False).warnings)


def test_sequence_parallelism_without_tensor_parallelism_is_switched_off_with_a_warning():
    run = resolved(model="megatron-1.2b", tp=1, pp=1, gpus=16, sp=True, seq=1024)
    assert not run.layout.sp
    assert any("sequence" in warning for warning in run.warnings)


def test_hardware_can_be_changed_and_says_so():
    run = resolved(
        set={"cluster.nvlink.bandwidth": "150 GB/s", "device.memory": "40 GiB", "fabric.links.nic.base_latency": "1 us"}
    )
    assert run.cluster.nvlink.bandwidth == 150e9
    assert run.cluster.nvlink.source.startswith("set by the user")
    assert run.cluster.device.memory_bytes == 40 * 2**30
    assert run.profile.fabric.links["nic"].base_latency == 1e-6


@pytest.mark.parametrize(("key", "value", "said"), [
    ("cluster.nvlink.bandwidth", "450", "has no unit"),
    ("cluster.nvlink.bandwith", "450 GB/s", "bandwidth"),
    ("cluster.nvlink", "450 GB/s", "not one figure"),
    ("network.speed", "1 GB/s", "cluster., device., kernels., fabric."),
    ("cluster", "x", "names a whole file"),
])  # fmt: skip
def test_a_change_that_cannot_be_made_is_explained(key, value, said):
    assert said in "\n".join(problems(set={key: value}))


def test_gradients_overlap_only_where_their_buckets_fit():
    """Megatron-LM README: overlapping slows 1.2B and 2-way 2.5B down for want of memory, and speeds 8.3B up."""
    found = {}
    for model, tp in (("1.2b", 1), ("2.5b", 2), ("4.2b", 4), ("8.3b", 8)):
        run = resolved(
            model=f"megatron-{model}", cluster="dgx-2h", gpus=64 * tp, tp=tp, pp=1, micro_batch=8, global_batch=512,
            seq=1024,
        )  # fmt: skip
        found[model] = run.framework.overlap_grad_reduce
    assert found == {"1.2b": "never", "2.5b": "never", "4.2b": "always", "8.3b": "always"}


def saves_nothing(**keys):
    return [said for said in resolved(recompute="selective", **keys).warnings if "saves nothing" in said]


def test_recompute_that_drops_no_byte_is_warned_of():
    fused = {"framework": "megatron-core", "cluster": "dgx-h100"}
    (said,) = saves_nothing(recompute_modules=["core_attn", "layernorm", "mlp"], **fused)
    assert said.startswith("recompute of core_attn and layernorm saves nothing here")
    assert saves_nothing(recompute_modules=["mlp"], **fused) == []
    assert saves_nothing(framework="megatron-2022", recompute_modules=["core_attn", "layernorm"]) == []


def test_fused_attention_kept_in_eight_bits_is_kept_twice_so_that_recompute_saves_it():
    fused = {"framework": "megatron-core", "cluster": "dgx-h100", "recompute_modules": ["core_attn"]}
    assert saves_nothing(precision="fp8", **fused) == []
    assert len(saves_nothing(precision="bf16", **fused)) == 1


def test_a_group_that_straddles_nvlink_domains_it_would_fit_into_is_said() -> None:
    asked = {"model": "qwen3-30b-a3b", "cluster": "gb200-nvl72", "gpus": 256, "layout": {"ep": 32}}
    asked |= {"batch": {"global": 256, "seq": 4096}, "framework": "megatron-bridge"}
    said = [text for text in resolve(request_from_mapping(asked)).warnings if "NVLink domains" in text]
    assert len(said) == 1
    assert "cluster.gpus_per_domain=64" in said[0]
    dealt = resolve(request_from_mapping(asked | {"set": {"cluster.gpus_per_domain": 64}}))
    assert not any("NVLink domains" in text for text in dealt.warnings)


def test_a_capacity_below_balanced_loads_is_said_to_drop_tokens() -> None:
    asked = {"model": "mixtral-8x7b", "cluster": "dgx-h100", "gpus": 8, "framework": "megatron-core"}
    asked |= {"batch": {"global": 8, "seq": 4096}, "layout": {"ep": 8, "capacity_factor": 0.8}}
    assert any("drops 20.0% of all copies" in text for text in resolve(request_from_mapping(asked)).warnings)
