"""What the host does in a real program: launches counted kernel by kernel."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from shardsim.engine.predict import EventOptions, predict
from shardsim.program.build import build
from shardsim.program.launch import launch_seconds
from shardsim.program.resolve import resolve
from shardsim.schema.run import nested, request_from_mapping
from shardsim.values.host import HostConstants
from shardsim.values.operators import Attention, Elementwise, Gemm

# A host of one second for one kind of launch at a time: tasks then hold numbers of launches.
KINDS = ("forward", "backward", "collective", "passes", "optimizer")
COUNTING = HostConstants("counting", *np.eye(len(KINDS)))
MODEL = {"name": "small", "layers": 24, "hidden": 1024, "heads": 16, "ffn": 4096, "vocab": 50257, "max_positions": 1024}
MODEL |= {"activation": "gelu", "norm": "layernorm", "position": "learned", "tied_embeddings": True, "bias": True}
KEYS = {"model": MODEL, "cluster": "dgx-a100", "micro_batch": 4, "seq": 1024, "global_batch": 32}


CONSTANTS = HostConstants("some", 100.0, 10.0, 20.0, 300.0, 5.0)


def run(counting=False, **keys):
    found = resolve(request_from_mapping(nested(KEYS | keys)))
    profile = replace(found.profile, host=COUNTING) if counting else found.profile
    return replace(found, profile=profile)


def launches(block):
    counts = sum(np.broadcast_to(task.host, len(KINDS)) for task in block.tasks)
    return dict(zip(KINDS, counts.tolist(), strict=True))


@pytest.fixture
def counted():
    def count(kind="F", stage=0, **keys):
        return launches(build(run(counting=True, **keys)).blocks[stage, kind, 0])

    return count


def test_a_layer_launches_each_of_its_kernels_and_a_pass_starts_once(counted):
    # A middle stage has layers only: two norms, QKV and its bias, scores, softmax, dropout, values, a copy, projection,
    # residual, two of the MLP, its activation, residual.
    forward = counted(stage=1, framework="megatron-deepspeed", gpus=4, pp=4)
    layers = 24 // 4
    assert forward == {"forward": 15 * layers, "backward": 0, "collective": 0, "passes": 1, "optimizer": 0}


def test_full_recomputation_launches_the_forward_kernels_again_from_python(counted):
    keys = {"stage": 1, "framework": "megatron-deepspeed", "gpus": 4, "pp": 4}
    forward, backward = counted(**keys), counted("B", **keys)
    assert backward["forward"] == forward["forward"]
    assert backward["backward"] > backward["forward"]
    assert counted("B", recompute="none", **keys)["forward"] == 0


def test_collectives_of_one_rank_are_not_launched(counted):
    keys = {"framework": "megatron-deepspeed", "stage": 1, "pp": 4}
    assert counted(gpus=4, **keys)["collective"] == 0
    assert counted(gpus=8, tp=2, **keys)["collective"] == 2 * 6


def test_a_graph_of_a_layer_is_one_launch_and_one_of_a_pass_too():
    keys = {"framework": "transformer-engine", "gpus": 2, "pp": 2}
    layers = build(run(counting=True, **keys)).blocks[1, "F", 0]
    found = run(counting=True, **keys)
    whole = replace(found, framework=replace(found.framework, cuda_graphs="full"))
    assert launches(build(whole).blocks[1, "F", 0])["forward"] == 1
    head = launches(layers)["forward"] - 12
    eager = replace(found, framework=replace(found.framework, cuda_graphs="none"))
    assert launches(build(eager).blocks[1, "F", 0])["forward"] > launches(layers)["forward"]
    assert 0 < head < 20


def test_the_host_reads_the_gradient_norm_and_waits_for_it():
    epilogue = build(run(framework="megatron-2021", gpus=2, pp=2)).epilogues[0]
    assert [task.name for task in epilogue.tasks if task.synchronises] == ["gradient norm all-reduce"]


def test_messages_synchronise_where_the_framework_says_so():
    def synchronous(framework, **keys):
        return build(run(framework=framework, gpus=4, pp=4, **keys)).synchronous_messages

    assert synchronous("megatron-2021")
    assert synchronous("megatron-core")
    assert not synchronous("megatron-core", vpp=2)
    assert not synchronous("torchtitan")


def test_small_micro_batches_are_bound_by_the_host_and_large_ones_are_not():
    def host_share(micro):
        found = predict(run(framework="megatron-deepspeed", gpus=1, micro_batch=micro), engine="closed")
        return sum(s.seconds for s in found.waterfall if "host" in s.name) / found.iteration_s

    assert host_share(1) > 0.4
    assert host_share(32) < 0.05


def test_cuda_graphs_take_the_host_out():
    eager = predict(run(framework="megatron-core", gpus=1, micro_batch=1, seq=512), engine="closed")
    graphs = predict(run(framework="transformer-engine", gpus=1, micro_batch=1, seq=512), engine="closed")
    assert graphs.iteration_s < 0.6 * eager.iteration_s


def test_a_prediction_says_which_host_it_took_and_on_what_grounds():
    notes = [note for note in predict(run(gpus=1), engine="closed").costs if note.constant.startswith("launch")]
    assert len(notes) == 4
    assert all("megatron-2021" in note.value for note in notes)
    assert {note.provenance.basis for note in notes} == {"assumed"}


def test_another_host_may_be_asked_for():
    slow = run(framework="megatron-deepspeed", gpus=1, micro_batch=1)
    quick = run(framework="megatron-deepspeed", gpus=1, micro_batch=1, set={"host": "none"})
    assert quick.profile.host.name == "none"
    assert predict(quick, engine="closed").iteration_s < predict(slow, engine="closed").iteration_s


@pytest.mark.parametrize("keys", [{"gpus": 8, "tp": 2, "pp": 2}, {"gpus": 8, "pp": 4, "vpp": 2}, {"gpus": 4, "tp": 4}])
@pytest.mark.parametrize("framework", ["megatron-deepspeed", "megatron-core", "transformer-engine"])
def test_engines_and_details_agree_on_launch_bound_runs(framework, keys):
    found = run(framework=framework, micro_batch=1, **keys)
    alone = EventOptions(contend=False)
    reference = predict(found, engine="des", detail="operators", options=alone)
    assert any("host" in step.name for step in reference.waterfall)
    for engine in ("closed", "listing", "des"):
        for detail in ("stages", "operators"):
            assert predict(found, engine=engine, detail=detail, options=alone).iteration_s == pytest.approx(
                reference.iteration_s, rel=1e-9
            )


def test_casts_to_8_bits_have_no_module_of_their_own():
    host = HostConstants("invented", 100e-6, 9e-6, 20e-6, 300e-6, 10e-6)
    cast = Elementwise("qkv input cast", "quantize", 1e6, kernels=2)
    assert launch_seconds(cast, host, 1e-6) == 2 * host.backward
    assert launch_seconds(replace(cast, kind="gelu"), host, 1e-6) == 2 * host.forward


def test_kernels_that_choose_experts_are_launched_one_by_one_with_no_module_around_each():
    choice = Elementwise("router choice", "routing", 1e6, kernels=24)
    assert launch_seconds(choice, COUNTING, 1e-5).tolist() == [0, 24, 0, 0, 0]


def test_experts_one_after_another_are_launched_each():
    apart = Gemm("experts", 1, 1, 1, 8, kernels=8)
    assert launch_seconds(apart, COUNTING, 1e-5).tolist() == [8, 0, 0, 0, 0]


def test_a_ring_is_one_module_whose_later_blocks_are_launched_within_its_call() -> None:
    block = Attention("attention", 1, 8, 8, 1024, 128, causal=True)
    later = replace(block, keys=512, causal=False)
    assert launch_seconds(block, CONSTANTS, 1.0) == CONSTANTS.forward
    assert launch_seconds(later, CONSTANTS, 1.0) == CONSTANTS.backward


def test_products_of_experts_on_streams_are_one_module_and_a_loop() -> None:
    experts = Gemm("experts up", 512, 1024, 1024, batch=8, kernels=8, grouped="streams")
    assert launch_seconds(experts, CONSTANTS, 1.0) == CONSTANTS.forward + 7 * CONSTANTS.backward
    assert launch_seconds(experts, CONSTANTS, 0.0) == 0.0
