"""Schedules as data: completeness, refusals, speed."""

from __future__ import annotations

import time

import pytest

from shardsim.errors import InputError
from shardsim.values.program import Pass
from shardsim.workload.schedules import make_schedule, peak_in_flight

CASES = [("gpipe", 4, 3, 1), ("1f1b", 8, 2, 1), ("1f1b", 1, 5, 1), ("interleaved", 4, 12, 3), ("interleaved", 2, 2, 2)]


@pytest.mark.parametrize(("name", "p", "m", "v"), CASES)
def test_every_stage_runs_every_pass_once_and_forward_before_backward(name: str, p: int, m: int, v: int) -> None:
    schedule = make_schedule(name, p, m, v)
    assert (schedule.stages, schedule.chunks, schedule.microbatches) == (p, v, m)
    for order in schedule.orders:
        assert sorted(order) == sorted(Pass(kind, i, c) for kind in ("B", "F") for i in range(m) for c in range(v))
        for i in range(m):
            for c in range(v):
                assert order.index(Pass("F", i, c)) < order.index(Pass("B", i, c))


def test_virtual_stages_go_round_the_stages() -> None:
    assert make_schedule("interleaved", 2, 4, 3).virtual_stages == ((0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2))


def test_the_same_schedule_is_the_same_object() -> None:
    assert make_schedule("1f1b", 4, 8) is make_schedule("1f1b", 4, 8)


def test_few_micro_batches_leave_1f1b_with_nothing_but_warm_up() -> None:
    assert peak_in_flight(make_schedule("1f1b", 8, 2)) == ((2,),) * 7 + ((1,),)


def test_an_unknown_schedule_suggests_a_known_one() -> None:
    with pytest.raises(InputError, match=r"unknown schedule 'interleave' \(did you mean interleaved\?\)"):
        make_schedule("interleave", 4, 8, 2)


def test_micro_batches_that_do_not_divide_are_refused_with_the_nearest_that_do() -> None:
    with pytest.raises(InputError, match=r"10 micro-batches do not divide by 4 pipeline stages.*\(8 or 12\)"):
        make_schedule("interleaved", 4, 10, 2)


def test_every_problem_is_listed_at_once() -> None:
    with pytest.raises(InputError) as caught:
        make_schedule("1f2b", 0, 0, 0)
    assert len(caught.value.problems) == 4
    with pytest.raises(InputError) as caught:
        make_schedule("1f1b", 4, 8, 2)
    assert caught.value.problems[0].where == "vpp"


def test_large_schedules_take_a_fraction_of_a_second() -> None:
    make_schedule.cache_clear()
    start = time.perf_counter()
    make_schedule("interleaved", 64, 1984, 2)
    make_schedule("1f1b", 64, 2000)
    assert time.perf_counter() - start < 3.0  # 0.1 s on an idle core
