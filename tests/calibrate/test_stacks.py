"""Constants of a stack out of iteration times."""

from __future__ import annotations

import numpy as np
import pytest

from shardsim.calibrate.stackfile import stack_yaml
from shardsim.calibrate.stacks import (
    NAMES,
    StackProblem,
    fit_stack,
    iteration_plane,
    known_constants,
    members,
    starting_values,
    with_constants,
)
from shardsim.engine.listing import listing
from shardsim.program.build import build
from shardsim.program.resolve import resolve
from shardsim.schema.run import nested, request_from_mapping
from shardsim.schema.stacks import load_stack_profile

TRUE = {"products": 1.2, "kernels": 1.5, "inside": 2.0, "forward": 80e-6}
LAYOUTS = ({}, {"tp": 2}, {"pp": 2}, {"tp": 2, "pp": 2}, {"tp": 4})


@pytest.fixture(scope="module")
def runs():
    """Four models under several layouts, some of them launch-bound."""
    found = []
    for hidden, layers in ((512, 4), (1024, 4), (2048, 4), (4096, 2)):
        model = {"name": f"h{hidden}", "layers": layers, "hidden": hidden, "heads": 8, "ffn": 4 * hidden}
        model |= {"vocab": 50257, "max_positions": 512, "activation": "gelu", "norm": "layernorm"}
        model |= {"position": "learned", "tied_embeddings": True, "bias": True}
        for layout in LAYOUTS:
            for micro in (1, 8):
                keys = {"model": model, "cluster": "dgx-a100", "framework": "megatron-2022", "gpus": 8, "seq": 512}
                found.append(
                    resolve(request_from_mapping(nested(keys | layout | {"micro_batch": micro, "global_batch": 64})))
                )
    return found


def _values(run, constants):
    values = starting_values(run)
    for name, value in constants.items():
        values[NAMES.index(name)] = value
    return values


@pytest.fixture(scope="module")
def measured(runs):
    return np.array([listing(build(with_constants(run, _values(run, TRUE)))).iteration_s for run in runs])


@pytest.fixture(scope="module")
def problem(runs, measured):
    return StackProblem(runs, measured, tuple(TRUE), [run.model.name for run in runs])


@pytest.fixture(scope="module")
def found(problem):
    return fit_stack(problem)


def test_a_plane_is_the_time_where_it_was_found_and_no_more_elsewhere(runs):
    rng = np.random.default_rng(1)
    for run in runs[::5]:
        here = _values(run, TRUE)
        seconds, plane = iteration_plane(run, here)
        assert plane.seconds(here) == pytest.approx(seconds, rel=1e-12)
        for _ in range(3):
            there = here * rng.uniform(0.7, 1.5, size=len(here))
            time = listing(build(with_constants(run, there))).iteration_s
            # Interference is no sum of durations: it may give a little back.
            assert plane.seconds(there) <= time * 1.02


def test_a_fit_finds_the_constants_that_made_the_times(found):
    for name, true in TRUE.items():
        assert found.fit.constants[name] == pytest.approx(true, rel=0.05)
    assert found.fit.median_error < 0.01


def test_models_left_out_are_predicted_and_halves_agree(found, measured):
    assert float(np.nanmedian(np.abs(found.held_out / measured - 1.0))) < 0.03
    assert found.moved < 0.1


def test_one_constant_for_all_kernels_stands_for_each(runs, measured):
    assert members("compute") == ("products", "narrow", "attention", "kernels", "experts")
    only = fit_stack(StackProblem(runs, measured, ["compute", "forward"], [run.model.name for run in runs]))
    assert 1.1 < only.fit.constants["compute"] < 1.7


def test_a_constant_of_one_generation_leaves_the_others_alone(runs, measured):
    problem = StackProblem(runs, measured, ["products", "products@h100-sxm"], ["all"] * len(runs))
    assert problem.constants_of(0) == ("products",)
    problem = StackProblem(runs, measured, ["products", "products@a100-sxm"], ["all"] * len(runs))
    assert problem.constants_of(0) == ("products@a100-sxm",)
    assert "compute" in known_constants()


def test_the_written_profile_is_the_fitted_one(found, tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(stack_yaml(found, "mine", "a stack", "runs of ours"), encoding="utf-8")
    stack = load_stack_profile(str(path))
    assert stack.products == pytest.approx(TRUE["products"], rel=0.06)
    assert stack.launches["forward"] == pytest.approx(TRUE["forward"], rel=0.06)
    assert stack.provenance["products"].basis == "fitted"
    assert stack.provenance["products"].points == len(found.measured)
