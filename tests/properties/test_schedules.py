"""One battery of checks on every schedule, over random stages, micro-batches, chunks and group sizes."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from shardsim.schema.schedules import load_schedule, schedule_text
from shardsim.values.program import Pair, Pass, PipelineSchedule, passes_of
from shardsim.workload.schedules import NAMES, RULES, make_schedule, schedule_problems, schedule_problems_of

quarters = st.integers(1, 12).map(lambda n: n / 4)


@st.composite
def schedules(draw: st.DrawFn, name: str) -> PipelineSchedule:
    rule = RULES[name]
    stages = draw(st.integers(rule.least_stages, 7)) * (2 if rule.even_stages else 1)
    microbatches = draw(st.integers(1, 24 + 4 * stages)) if name != "dualpipe" else 2 * draw(st.integers(stages, 20))
    chunks = rule.chunks or draw(st.integers(2, 4))
    group = draw(st.integers(0, microbatches)) if name == "interleaved" else 0
    assume(not schedule_problems(name, stages, microbatches, chunks, group))
    paired = draw(st.booleans()) and not schedule_problems(name, stages, microbatches, chunks, group, paired=True)
    return make_schedule(name, stages, microbatches, chunks, group, paired=paired)


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data(), seconds=st.tuples(quarters, quarters, quarters), message=st.sampled_from([0.0, 0.25]))
@settings(max_examples=25, deadline=None)
def test_every_schedule_passes_the_battery(execute, name, data, seconds, message) -> None:
    schedule = data.draw(schedules(name))
    forward, split, weight = seconds
    times = {"F": forward, "I": split, "W": weight, "B": split + weight, "pair": forward + split + weight}
    ran = execute(schedule, times, message)

    assert schedule_problems_of(schedule) == []
    every_pass_once_on_one_chain(schedule)
    memory_returns_to_its_start(schedule)
    dependencies_are_respected(schedule, ran, message)
    makespan = max(stage[-1].end for stage in ran)
    work = schedule.microbatches * schedule.chunks / schedule.copies * (forward + split + weight)
    assert all(sum(one.end - one.start for one in stage) == pytest.approx(work) for stage in ran)
    one_way = len(schedule.chains[0]) * (forward + split) + weight
    assert makespan >= max(work, one_way) - 1e-9


def every_pass_once_on_one_chain(schedule: PipelineSchedule) -> None:
    courses: dict[tuple[int, int, int], str] = {}
    for stage, order in enumerate(schedule.orders):
        for kind, microbatch, chunk in passes_of(order):
            courses[stage, microbatch, chunk] = courses.get((stage, microbatch, chunk), "") + kind
    assert set(courses.values()) <= {"FB", "FIW"}
    ways = Counter(frozenset((s, c) for s, i, c in courses if i == one) for one in range(schedule.microbatches))
    assert set(ways) == {frozenset(chain) for chain in schedule.chains}
    assert set(ways.values()) == {schedule.microbatches // schedule.copies}


def memory_returns_to_its_start(schedule: PipelineSchedule) -> None:
    for order in schedule.orders:
        held = 0
        for kind, _, _ in passes_of(order):
            held += {"F": 2, "B": -2, "I": -1, "W": -1}[kind]
            assert held >= 0
        assert held == 0


def dependencies_are_respected(schedule: PipelineSchedule, ran, message: float) -> None:
    when = {
        (one.kind.replace("I", "B"), one.microbatch, (stage, one.chunk)): (start, end)
        for stage, order in enumerate(ran)
        for item, start, end in order
        for one in passes_of([item])
    }
    for chain in schedule.chains:
        for microbatch in range(schedule.microbatches):
            if ("F", microbatch, chain[0]) not in when:
                continue
            way = [("F", microbatch, place) for place in chain] + [("B", microbatch, place) for place in chain[::-1]]
            for (*_, here), (*_, there), sent, taken in zip(way, way[1:], way, way[1:], strict=False):
                delay = message if here[0] != there[0] else 0.0
                assert when[taken][0] >= when[sent][1] + delay - 1e-9


@given(data=st.data(), name=st.sampled_from(NAMES))
@settings(max_examples=30, deadline=None)
def test_a_schedule_written_to_a_file_reads_back_as_it_was(tmp_path_factory, data, name) -> None:
    schedule = data.draw(schedules(name))
    path = tmp_path_factory.mktemp("schedules") / "own.yaml"
    path.write_text(schedule_text(schedule), encoding="utf-8")
    assert load_schedule(path) == schedule


@given(data=st.data(), name=st.sampled_from(NAMES))
@settings(max_examples=60, deadline=None)
def test_no_schedule_with_a_pass_left_out_or_run_twice_is_sound(data, name) -> None:
    schedule = data.draw(schedules(name))
    stage = data.draw(st.integers(0, schedule.stages - 1))
    order = list(schedule.orders[stage])
    at = data.draw(st.integers(0, len(order) - 1))
    if data.draw(st.booleans()):
        del order[at]
    else:
        order.insert(data.draw(st.integers(0, len(order))), next(passes_of([order[at]])))
    broken = (*schedule.orders[:stage], tuple(order), *schedule.orders[stage + 1 :])
    assert schedule_problems_of(PipelineSchedule("own", broken, schedule.chains, schedule.microbatches)) != []


@st.composite
def sound_or_not(draw: st.DrawFn) -> PipelineSchedule:
    """Small schedules whose stages run the right passes in any order, paired or not."""
    stages, microbatches = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    orders = []
    for _ in range(stages):
        kinds = draw(st.sampled_from(["FB", "FIW"]))
        order = list(draw(st.permutations([Pass(kind, i) for i in range(microbatches) for kind in kinds])))
        for at in range(len(order) - 1):
            one, two = order[at : at + 2]
            paired = isinstance(one, Pass) and (one.kind, two.kind) == ("F", "B") and one.microbatch != two.microbatch
            if paired and draw(st.booleans()):
                order[at : at + 2] = [Pair(one, two), None]
        orders.append(tuple(one for one in order if one is not None))
    return PipelineSchedule("own", tuple(orders), (tuple((s, 0) for s in range(stages)),), microbatches)


@given(schedule=sound_or_not())
@settings(max_examples=300, deadline=None)
def test_what_is_sound_runs_to_its_end_and_what_is_not_gets_stuck(execute, schedule) -> None:
    courses = {
        "".join(one.kind for one in passes_of(order) if one.microbatch == i)
        for order in schedule.orders
        for i in range(schedule.microbatches)
    }
    try:
        execute(schedule, {"F": 1.0, "B": 1.0, "I": 1.0, "W": 1.0, "pair": 1.0})
        ends = True
    except AssertionError:
        ends = False
    assert (schedule_problems_of(schedule) == []) is (ends and courses <= {"FB", "FIW"})
