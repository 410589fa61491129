"""MegaScale's ablation (Jiang et al. 2024, arXiv 2402.15627, section 6): what each overlap brings.

175 billion parameters on 256 GPUs, 256 sequences: MFU 47.7 % as Megatron-LM runs it; a parallel block adds 4.6 points,
overlap of tensor, pipeline and data parallelism 2.2, 2.5 and 1.5.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardsim.engine.predict import predict
from shardsim.program.resolve import resolve
from shardsim.schema.framework import load_framework
from shardsim.schema.run import nested, request_from_mapping

RUN = {"model": "megascale-175b", "cluster": "dgx-a100", "framework": "megatron-2023", "tp": 8, "pp": 8, "vpp": 6}
RUN |= {"micro_batch": 1, "seq": 2048, "recompute": "selective", "sp": True, "gpus": 256, "global_batch": 256}


@pytest.fixture(scope="module")
def points() -> dict[str, float]:
    """Points of MFU that each step adds to those before it."""
    run, own = resolve(request_from_mapping(nested(RUN))), load_framework("megascale")
    steps = {
        "baseline": {},
        "block": {"parallel_block": True},
        "tp": {"tp_overlap": own.tp_overlap},
        "pp": {"synchronous_messages": "never"},
        "dp": {
            "overlap_grad_reduce": "always",
            "overlap_param_gather": True,
            "bucket_bytes": own.bucket_bytes,
            "buckets_first_chunk_only": own.buckets_first_chunk_only,
        },
    }
    found, flags, before = {}, {}, 0.0
    for name, changed in steps.items():
        flags |= changed
        mfu = 100 * predict(replace(run, framework=replace(run.framework, **flags)), engine="listing").mfu
        found[name], before = mfu - before, mfu
    return found


def test_the_baseline_reaches_what_was_measured(points: dict[str, float]) -> None:
    assert points["baseline"] == pytest.approx(47.7, abs=1.5)


@pytest.mark.parametrize(("axis", "published"), [("pp", 2.5), ("dp", 1.5)])
def test_overlap_gains_what_was_measured(points: dict[str, float], axis: str, published: float) -> None:
    assert points[axis] == pytest.approx(published, abs=1.5)


def test_overlap_of_tensor_parallelism_gains_less_than_was_measured(points: dict[str, float]) -> None:
    """2.2 points: outside 1.5 of it by 0.2, since products cut into eight pieces lose two thirds of what they hide."""
    assert 0.4 < points["tp"] < 2.2 - 1.5


def test_a_parallel_block_gains_less_than_was_measured(points: dict[str, float]) -> None:
    """4.6 points are published, of which 2.9 are predicted."""
    assert 2.5 < points["block"] < 4.6
