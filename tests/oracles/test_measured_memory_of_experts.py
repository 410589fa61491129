"""Measured memory of DeepSeek-V2 and V3 on B200, cut to four layers: SimuMax release 1.2, github MooreThreads/SimuMax.

Megatron-LM with Transformer Engine on one node, sequences of 4,096, micro-batch 1, the first layer dense, experts
evenly loaded; the largest of all ranks' ``max_memory_allocated`` (docs/b200/b200_release_v1.2_summary.md).
"""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest

from shardsim.engine.memory import memory_of
from shardsim.program.resolve import resolve
from shardsim.schema.model import load_model
from shardsim.schema.run import request_from_mapping
from shardsim.values.results import MemoryProfile


def predicted(name: str, pp: int, microbatches: int) -> MemoryProfile:
    full = load_model(name)
    assert full.moe is not None
    model = asdict(replace(full, layers=4, mtp=0, moe=replace(full.moe, first_dense=1)))
    for key in ("head_dim", "max_positions", "full_every"):
        del model[key]
    run = {
        "model": model,
        "cluster": "dgx-b200",
        "gpus": 8,
        "layout": {"pp": pp, "ep": 8 // pp, "zero": 1, "recompute": "none"},
        "batch": {"global": microbatches * 8 // pp, "micro": 1, "seq": 4096},
        "precision": "bf16",
        "framework": "megatron-core",
    }
    return memory_of(resolve(request_from_mapping(run, "run"), priced=False))


@pytest.mark.parametrize("microbatches", [4, 32])
@pytest.mark.parametrize(
    ("name", "pp", "gib"),
    [("deepseek-v2", 1, 45.63), ("deepseek-v2", 2, 44.70), ("deepseek-v3", 1, 104.30), ("deepseek-v3", 2, 114.00)],
)
def test_tensors_at_the_peak_take_what_was_measured(name: str, pp: int, gib: float, microbatches: int) -> None:
    memory = predicted(name, pp, microbatches)
    assert max(memory.allocated) / 2**30 == pytest.approx(gib, rel=0.025)


def test_the_last_of_two_stages_is_the_fuller_one() -> None:
    """It holds one micro-batch less, but experts in both layers and the LM head."""
    assert predicted("deepseek-v3", 2, 8).worst_stage == 1


@pytest.mark.parametrize(("recompute", "mib"), [("none", 68704), ("full", 60154)])
def test_multi_token_prediction_behind_a_pipeline_of_eight_chunks_takes_what_was_measured(
    recompute: str, mib: float
) -> None:
    """DeepSeek-V3 cut to 14 layers, 64 H100, EP 16: github NVIDIA/Megatron-LM, pull request 6311, memory as logged.

    The last chunk has the module and the loss, away from the embedding, of which its stage has a copy.
    """
    full = load_model("deepseek-v3")
    model = asdict(replace(full, layers=14, mtp=1))
    for key in ("head_dim", "max_positions", "full_every"):
        del model[key]
    layout = {"pp": 4, "vpp": 2, "ep": 16, "zero": 1, "schedule": "interleaved", "pp_layout": "Ett|(tt|)*6mL"}
    run = {
        "model": model,
        "cluster": "dgx-h100",
        "gpus": 64,
        "layout": {**layout, "recompute": recompute},
        "batch": {"global": 256, "micro": 1, "seq": 2048},
        "precision": "bf16",
        "framework": "megatron-core",
    }
    memory = memory_of(resolve(request_from_mapping(run, "run"), priced=False))
    assert max(memory.allocated) / 2**20 == pytest.approx(mib, rel=0.06)


def test_deepseek_v3_fits_on_the_devices_that_it_was_trained_on_and_only_as_it_was() -> None:
    """2,048 H800 of 80 GB (arXiv 2412.19437 section 3); layers of the first and the last stage are assumed."""
    run = {
        "model": "deepseek-v3",
        "cluster": "hgx-h800",
        "gpus": 2048,
        "layout": {"pp": 16, "ep": 64, "zero": 1, "schedule": "dualpipe", "first_layers": 3, "last_layers": 2},
        "batch": {"global": 15360, "micro": 1, "seq": 4096},
        "framework": "deepseek",
    }
    as_it_was = resolve(request_from_mapping(run, "run"), priced=False)
    assert memory_of(as_it_was).fits
    for less in ({"attention_output_bytes": 0.0}, {"narrow_activation_inputs": False}, {"moment_bytes": 4}):
        framework = replace(as_it_was.framework, **less)  # type: ignore[arg-type]
        assert max(memory_of(replace(as_it_was, framework=framework)).reserved) > max(memory_of(as_it_was).reserved)
    for modules in (("layernorm", "mla_up_proj"), ("layernorm", "moe_act"), ("mla_up_proj", "moe_act")):
        kept = replace(as_it_was.layout, recompute_modules=modules)
        assert not memory_of(replace(as_it_was, layout=kept)).fits
