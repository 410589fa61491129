"""Whole iterations against published runs; nothing is fitted to them.

Megatron-LM 2019 (arXiv 1909.08053): §5.1 and Figure 5. Narayanan et al. 2021 (arXiv 2104.04473): Table 1.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import shardsim

ROOT = Path(__file__).resolve().parents[2]
SIZES = {1: "megatron-1.2b", 2: "megatron-2.5b", 4: "megatron-4.2b", 8: "megatron-8.3b"}


def flops_per_gpu(tp, dp, **keys):
    prediction = shardsim.simulate(
        model=SIZES[tp], cluster="dgx-2h", framework="megatron-2019", gpus=tp * dp, tp=tp, micro_batch=8,
        global_batch=8 * dp, seq=1024, engine="listing", **keys,
    )  # fmt: skip
    return prediction.flops_per_gpu


@pytest.fixture(scope="module")
def single():
    return flops_per_gpu(1, 1)


def test_one_v100_trains_1_2_billion_parameters_at_39_tflops(single):
    """Published within 15 %; predicted within 3 % when this was recorded."""
    assert single == pytest.approx(39e12, rel=0.05)


@pytest.mark.parametrize(("tp", "published"), [(2, 95), (4, 82), (8, 77)])
def test_tensor_parallel_weak_scaling_on_dgx_2h(single, tp, published):
    assert 100 * flops_per_gpu(tp, 1) / single == pytest.approx(published, abs=4)


@pytest.mark.parametrize(("tp", "published"), [(1, 96), (4, 79), (8, 74)])
def test_tensor_and_data_parallel_weak_scaling_on_up_to_512_gpus(single, tp, published):
    assert 100 * flops_per_gpu(tp, 64) / single == pytest.approx(published, abs=5)


def test_the_known_miss_128_gpus_stays_where_it_is(single):
    """Published 83 %. The network that explains the other three points explains 7 of the 12 points lost here.

    A lower bound too, so that a change that closes the gap is noticed and this becomes an ordinary case above.
    """
    assert 5 < 100 * flops_per_gpu(2, 64) / single - 83 < 8


def test_without_overlap_512_gpus_reach_60_percent(single):
    """Megatron-LM's README: 60 % with its own wrapper, 76 % when gradient reduction overlaps the backward pass."""
    assert 100 * flops_per_gpu(8, 64, overlap_grad_reduce=False) / single == pytest.approx(60, abs=3)


def test_narayanan_2021_table_1_within_15_percent_each():
    table = shardsim.validate_runs(ROOT / "workloads" / "measured" / "narayanan-2021-table1.csv")
    errors = {row.id: row.error for row in table.rows}
    assert len(errors) == 10
    assert max(abs(error) for error in errors.values()) < 0.15
    assert sum(abs(error) for error in errors.values()) / 10 < 0.06
