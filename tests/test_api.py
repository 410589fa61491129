"""The Python interface returns what the command line prints."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import shardsim

ROOT = Path(__file__).resolve().parents[1]
RUN = {
    "model": "megatron-8.3b",
    "cluster": "dgx-2h",
    "gpus": 8,
    "tp": 8,
    "micro_batch": 8,
    "global_batch": 8,
    "seq": 1024,
}


def test_a_run_file_and_its_keywords_give_the_same_prediction():
    by_file = shardsim.simulate(ROOT / "workloads" / "runs" / "megatron-8.3b-tp8.yaml")
    assert by_file.iteration_s == shardsim.simulate(**RUN).iteration_s


def test_keywords_replace_what_a_mapping_says():
    base = shardsim.simulate(**RUN)
    other = shardsim.simulate({"model": "megatron-8.3b", "cluster": "dgx-2h", "gpus": 1}, **RUN)
    assert other.iteration_s == base.iteration_s


@pytest.mark.parametrize("engine", ["des", "listing", "closed"])
@pytest.mark.parametrize("detail", ["stages", "operators"])
def test_engines_and_details_agree(engine, detail):
    prediction = shardsim.simulate(**RUN, engine=engine, detail=detail)
    assert prediction.iteration_s == pytest.approx(shardsim.simulate(**RUN).iteration_s, rel=1e-9)


def test_a_prediction_holds_together():
    p = shardsim.simulate(**RUN, timeline=True)
    assert p.peak_flops - sum(step.flops_lost for step in p.waterfall) == pytest.approx(p.flops_per_gpu, rel=1e-12)
    assert p.mfu == pytest.approx(p.flops_per_gpu / p.peak_flops)
    assert p.tokens_per_s == pytest.approx(8 * 1024 / p.iteration_s)
    assert p.hfu > p.mfu
    assert p.execution.timeline.finish.max() == pytest.approx(p.iteration_s)


def test_a_scaling_table_has_a_point_for_every_count():
    table = shardsim.scale(
        gpus=[64, 128], grow="dp", **{key: RUN[key] for key in RUN if key != "gpus"} | {"global_batch": 64}
    )
    assert [(point.dp, point.global_batch) for point in table.points] == [(8, 64), (16, 128)]


def test_measured_runs_can_be_validated():
    table = shardsim.validate_runs(ROOT / "workloads" / "measured" / "narayanan-2021-table1.csv")
    assert len(table.rows) == 10


def test_bad_input_raises_one_error_that_lists_everything():
    with pytest.raises(shardsim.InputError) as caught:
        shardsim.simulate(**RUN | {"model": "megatron-8b", "cluster": "dgx2h"})
    assert len(caught.value.problems) == 2


def test_an_unknown_keyword_is_refused_by_name():
    with pytest.raises(shardsim.InputError, match="tpp"):
        shardsim.simulate(**RUN, tpp=8)


def test_importing_shardsim_loads_nothing_heavy():
    code = "import shardsim, sys; print([m for m in ('numpy', 'pandas', 'simpy', 'pydantic') if m in sys.modules])"
    outcome = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert outcome.stdout.strip() == "[]"


def test_an_engine_or_detail_that_does_not_exist_is_refused():
    with pytest.raises(shardsim.InputError) as caught:
        shardsim.simulate(**RUN, engine="DES", detail="all")
    assert len(caught.value.problems) == 2
    with pytest.raises(shardsim.InputError, match="no timeline"):
        shardsim.simulate(**RUN, engine="closed", timeline=True)


def test_numpy_numbers_are_numbers():
    counted = shardsim.simulate(**RUN | {"gpus": np.int64(8), "tp": np.int32(8)})
    assert counted.iteration_s == shardsim.simulate(**RUN).iteration_s
    keys = {key: RUN[key] for key in RUN if key != "gpus"}
    assert [point.gpus for point in shardsim.scale(gpus=np.array([8, 16]), **keys | {"global_batch": 8}).points] == [
        8,
        16,
    ]
    with pytest.raises(shardsim.InputError, match="GPU counts"):
        shardsim.scale(gpus=[8.5], **keys)


def test_a_layout_that_does_not_fit_says_so_among_the_warnings():
    prediction = shardsim.simulate(model="llama-3-8b", cluster="dgx-2h", gpus=16, tp=4, seq=4096, global_batch=64)
    assert not prediction.memory.fits
    assert any(warning.startswith("does not fit: stage 0 needs") for warning in prediction.warnings)


def test_more_passes_than_can_be_simulated_are_refused():
    with pytest.raises(shardsim.InputError, match="1,000,000 passes"):
        shardsim.simulate(**RUN | {"global_batch": 8_000_000})


def test_a_truth_value_is_no_zero_stage():
    with pytest.raises(shardsim.InputError, match="ZeRO stage"):
        shardsim.simulate(**RUN, zero=True)


def test_memory_is_that_of_the_prediction():
    answer = shardsim.memory(**RUN)
    assert answer.memory == shardsim.simulate(**RUN).memory
    assert answer.memory.fits
    assert answer.advice is None


def test_several_tables_are_one_validation(tmp_path):
    header = "id,gpu,num_gpus,layers,hidden,heads,vocab,seq_len,global_batch,micro_batch,framework,iteration_time_s\n"
    paths = [tmp_path / "a.csv", tmp_path / "b.csv"]
    for path in paths:
        path.write_text(f"{header}{path.stem},A100 80GB,1,2,1024,16,50257,512,2,1,Megatron-LM 2022,0.1\n")
    table = shardsim.validate_runs(*paths)
    assert [row.id for row in table.rows] == ["a", "b"]
