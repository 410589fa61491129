"""The Python interface returns what the command line prints."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

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
