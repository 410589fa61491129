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
    model = asdict(replace(full, layers=4, moe=replace(full.moe, first_dense=1)))
    for key in ("head_dim", "max_positions"):
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
