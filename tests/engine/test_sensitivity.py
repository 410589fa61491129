"""Seconds on the critical path by constant: derivatives of the iteration time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from shardsim.engine.critical import critical_path
from shardsim.engine.sensitivity import path_sums
from shardsim.program.build import build
from shardsim.program.resolve import resolve
from shardsim.schema.run import nested, request_from_mapping

LAYOUTS = (
    {"tp": 2, "pp": 2},
    {"tp": 4, "pp": 2, "vpp": 2},
    {"pp": 4, "schedule": "zb-h1"},
    {"zero": 3, "framework": "fsdp"},
)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_sums_on_the_path_are_those_of_its_segments(layout: dict[str, object]) -> None:
    keys = {"model": "llama-2-7b", "cluster": "dgx-h100", "gpus": 16, "micro_batch": 1, "global_batch": 32}
    keys |= {"seq": 1024, "framework": "megatron-core"}
    program = build(resolve(request_from_mapping(nested(keys | layout))))

    def work(task):
        return np.array([float(task.seconds), 0.0])

    def launch(task):
        return np.array([0.0, float(task.host)])

    seconds, sums = path_sums(program, work, launch)
    path = critical_path(program)
    assert seconds == path.iteration_s
    by = path.by_category
    elsewhere = sum(s.seconds for s in path.segments if s.name in ("message", "interference"))
    assert float(sums.sum()) + elsewhere == pytest.approx(seconds, rel=1e-9)
    assert float(sums[1]) == pytest.approx(by.get("host", 0.0), rel=1e-9, abs=1e-12)


def test_the_sum_of_a_kind_of_work_is_the_derivative_by_its_duration() -> None:
    keys = {"model": "llama-2-7b", "cluster": "dgx-h100", "gpus": 16, "micro_batch": 1, "global_batch": 32}
    keys |= {"seq": 2048, "framework": "megatron-core", "tp": 4, "pp": 2}
    run = resolve(request_from_mapping(nested(keys)))

    def at(products: float) -> tuple[float, float]:
        stack = replace(run.profile.stack, products=products)
        program = build(replace(run, profile=replace(run.profile, stack=stack)))
        seconds, sums = path_sums(
            program,
            lambda task: np.array([float(task.seconds) if task.term == "products" else 0.0]),
            lambda _: np.array([0.0]),
        )
        return seconds, float(sums[0]) / products

    (before, slope), (after, _) = at(1.0), at(1.0 + 1e-6)
    assert (after - before) / 1e-6 == pytest.approx(slope, rel=1e-3)
