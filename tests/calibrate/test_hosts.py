"""Host constants out of iteration times."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from shardsim.calibrate.hostfile import host_yaml
from shardsim.calibrate.hosts import NAMES, fit_host, iteration_times, model_keys
from shardsim.engine.listing import listing
from shardsim.program.build import build
from shardsim.program.resolve import resolve
from shardsim.schema.hosts import load_host_profile
from shardsim.schema.run import nested, request_from_mapping
from shardsim.validate.runs import validate_runs
from shardsim.values.host import HostConstants

ROWS = Path(__file__).resolve().parents[3] / "shared" / "data" / "vtrain_single_node_a100.csv"
TRUE = {"forward": 60e-6, "backward": 20e-6, "collective": 40e-6, "passes": 500e-6, "optimizer": 10e-6}
LAYOUTS = ({}, {"tp": 2}, {"pp": 4}, {"tp": 2, "pp": 2})


@pytest.fixture(scope="module")
def runs():
    """A model each of two sizes under several layouts and batches, most of them launch-bound."""
    found = []
    for hidden, layers in ((512, 4), (1024, 8)):
        model = {"name": f"h{hidden}", "layers": layers, "hidden": hidden, "heads": 8, "ffn": 4 * hidden}
        model |= {"vocab": 50257, "max_positions": 512, "activation": "gelu", "norm": "layernorm"}
        model |= {"position": "learned", "tied_embeddings": True, "bias": True}
        for layout in LAYOUTS:
            for micro in (1, 4):
                keys = {"model": model, "cluster": "dgx-a100", "framework": "megatron-2021", "gpus": 8, "seq": 512}
                found.append(
                    resolve(request_from_mapping(nested(keys | layout | {"micro_batch": micro, "global_batch": 32})))
                )
    return found


@pytest.fixture(scope="module")
def measured(runs):
    return iteration_times(runs)(TRUE)


@pytest.fixture(scope="module")
def found(runs, measured):
    return fit_host(runs, measured)


def test_many_runs_at_once_take_what_each_takes_alone(runs, measured):
    host = HostConstants("true", **TRUE)
    alone = [listing(build(replace(run, profile=replace(run.profile, host=host)))).iteration_s for run in runs]
    np.testing.assert_allclose(measured, alone, rtol=1e-9)


def test_a_fit_finds_the_times_that_made_the_iterations_and_predicts_other_models(runs, measured, found):
    assert found.fit.median_error < 0.01
    assert found.fit.constants["forward"] == pytest.approx(60e-6, rel=0.15)
    assert np.median(np.abs(found.held_out / measured - 1.0)) < 0.03
    assert np.all(found.never_late <= measured * (1 + 1e-12))
    assert set(model_keys(runs)) == {"h512 L4", "h1024 L8"}
    assert found.weight["optimizer"] < 0.01


def test_what_is_written_is_read_again(tmp_path, found):
    path = tmp_path / "mine.yaml"
    path.write_text(host_yaml(found, "mine", "stack: of mine", "runs of mine"), encoding="utf-8")
    read = load_host_profile(str(path))
    for name in NAMES:
        assert getattr(read, name) == pytest.approx(found.fit.constants[name], rel=1e-3)
    assert read.provenance["forward"].basis == "fitted"
    assert read.provenance["optimizer"].basis == "assumed"


def test_the_shipped_profile_is_within_8_percent_of_vtrains_single_node_rows(tmp_path):
    if not ROWS.exists():
        pytest.skip(f"the measurements are not beside the checkout: {ROWS.name}")
    head, *lines = ROWS.read_text(encoding="utf-8").splitlines()
    few = tmp_path / "few.csv"
    few.write_text("\n".join([head, *lines[::15]]) + "\n", encoding="utf-8")
    errors = [row.error for row in validate_runs(few, engine="closed").rows if row.error is not None]
    assert len(errors) == 60
    assert np.median(np.abs(errors)) < 0.08
    assert np.quantile(np.abs(errors), 0.9) < 0.20
