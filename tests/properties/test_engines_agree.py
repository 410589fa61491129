"""Closed form, listing and event engine are three ways to the same answer, on any program that can finish."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from shardsim.engine.accounts import HOST
from shardsim.engine.closed import closed_form
from shardsim.engine.des import expected_events, simulate
from shardsim.engine.interference import INTERFERENCE
from shardsim.engine.listing import listing
from shardsim.engine.plan import make_plan
from shardsim.errors import ProgramError
from shardsim.program.coalesce import coalesce
from shardsim.values.program import Block, Pass, PipelineSchedule, Program, Task
from shardsim.values.provenance import Provenance
from shardsim.values.transfer import Transfer

LAYOUTS = 3
thorough = settings(max_examples=60, deadline=None)


@st.composite
def schedules(draw):
    """Any order in which every pass comes after those it needs; chunks lie anywhere."""
    p, v, m = draw(st.integers(1, 4)), draw(st.integers(1, 3)), draw(st.integers(1, 4))
    virtual = draw(st.permutations([(stage, chunk) for stage in range(p) for chunk in range(v)]))
    last, kinds = len(virtual) - 1, draw(st.sampled_from(["FB", "FBW"]))
    todo = {(kind, k, i) for kind in kinds for k in range(last + 1) for i in range(m)}
    needs = {
        **{("F", k, i): ("F", k - 1, i) for k in range(1, last + 1) for i in range(m)},
        **{("B", k, i): ("B", k + 1, i) for k in range(last) for i in range(m)},
        **{("B", last, i): ("F", last, i) for i in range(m)},
        **{("W", k, i): ("B", k, i) for k in range(last + 1) for i in range(m)},
    }
    orders = [[] for _ in range(p)]
    while todo:
        ready = sorted(item for item in todo if needs.get(item) not in todo)
        kind, k, i = draw(st.sampled_from(ready))
        todo.discard((kind, k, i))
        orders[virtual[k][0]].append(Pass(kind, i, virtual[k][1]))
    return PipelineSchedule("random", tuple(map(tuple, orders)), tuple(virtual), m)


def layouts_of(number):
    """One value for each of a few layouts."""
    return st.lists(number, min_size=LAYOUTS, max_size=LAYOUTS).map(np.array)


seconds = st.one_of(st.just(0.0), st.floats(1e-6, 2.0))
shares = st.one_of(st.just(0.0), st.floats(1e-3, 0.9))


@st.composite
def blocks(draw, name, number, host):
    tasks: list[Task] = []
    for index in range(draw(st.integers(0, 5))):
        queued = [place for place, task in enumerate(tasks) if not task.blocking]
        more = {}
        if draw(st.integers(0, 3)) == 0:
            more["drains"] = tuple(draw(st.lists(st.sampled_from(["dp", "ep"]), max_size=2, unique=True)))
        if queued and draw(st.booleans()):
            more["waits"] = tuple(draw(st.lists(st.sampled_from(queued), max_size=2, unique=True)))
        blocking = draw(st.integers(0, 3)) > 0
        stream = draw(st.sampled_from(["compute", "compute", "tp", "dp"] if blocking else ["dp", "dp", "ep"]))
        category = draw(st.sampled_from(["gemm", "tp", "recompute"] if blocking else ["dp", "zero"]))
        if blocking and draw(st.integers(0, 5)) == 0:
            more["synchronises"] = True
        more["host"] = draw(host)
        tasks.append(Task(f"{name}{index}", stream, category, draw(number), draw(number), blocking=blocking, **more))
    return Block(name, tuple(tasks))


@st.composite
def programs(draw, number=seconds, share=shares, hosts=None):
    """``hosts``: of which strategy the times to issue tasks are; by default those of tasks, or nothing."""
    schedule = draw(schedules())
    host = draw(st.sampled_from([number, st.just(0.0)])) if hosts is None else hosts
    stages = range(schedule.stages)
    members = {
        name: tuple(sorted(draw(st.sets(st.sampled_from(stages), min_size=1)))) for name in ("embedding", "norm")
    }
    keys = [(stage, kind, chunk) for stage, chunk in schedule.virtual_stages for kind in "FBW"]
    transfers = {
        key: Transfer(draw(number), {}, {}, "direct", Provenance("assumed", "test")) for key in keys if key[1] != "W"
    }
    agenda = draw(st.lists(st.sampled_from(["embedding", "norm"]), max_size=3))
    meetings = [Task(name, "tp", "embedding", draw(number), rendezvous=name, host=draw(host)) for name in agenda]
    pool = st.sampled_from([draw(blocks(f"pass {index} ", number, host)) for index in range(4)])
    step = draw(blocks("step ", number, host))
    return Program(
        schedule=schedule,
        blocks={key: draw(pool) for key in keys},
        last_blocks={key: draw(pool) for key in keys if key[1] == "B" and draw(st.booleans())},
        epilogues=tuple(
            replace(step, tasks=step.tasks + tuple(task for task in meetings if stage in members[task.name]))
            for stage in stages
        ),
        messages=transfers,
        multiplicity=1,
        rendezvous_members=members,
        overlap_slowdown=draw(share),
        synchronous_messages=draw(st.booleans()),
    )


def assert_same(one, other):
    assert one.iteration_s == pytest.approx(other.iteration_s, rel=1e-9)
    for mine, theirs in zip(one.stages, other.stages, strict=True):
        assert mine.flop == pytest.approx(theirs.flop, rel=1e-9)
        for category in mine.seconds.keys() | theirs.seconds.keys():
            assert mine.seconds.get(category, 0.0) == pytest.approx(
                theirs.seconds.get(category, 0.0), rel=1e-9, abs=1e-9 * one.iteration_s
            )


def layout(program, index):
    """Take one layout out of a program of arrays."""

    def scalar(task):
        parts = {category: float(part[index]) for category, part in task.parts.items()}
        host = float(np.broadcast_to(task.host, LAYOUTS)[index])
        return replace(task, seconds=float(task.seconds[index]), flop=float(task.flop[index]), parts=parts, host=host)

    def block(value):
        return replace(value, tasks=tuple(scalar(replace(t, flop=t.flop + np.zeros(LAYOUTS))) for t in value.tasks))

    return replace(
        program,
        blocks={key: block(value) for key, value in program.blocks.items()},
        last_blocks={key: block(value) for key, value in program.last_blocks.items()},
        epilogues=tuple(map(block, program.epilogues)),
        messages={key: replace(value, latency=float(value.latency[index])) for key, value in program.messages.items()},
        overlap_slowdown=float(np.broadcast_to(program.overlap_slowdown, LAYOUTS)[index]),
    )


@thorough
@given(program=programs())
def test_three_engines_give_one_answer_on_operators_and_on_coalesced_runs(program):
    reference = simulate(program)
    merged = coalesce(program)
    for other in (listing(program), closed_form(program), simulate(merged), listing(merged), closed_form(merged)):
        assert_same(reference, other)


@thorough
@given(program=programs())
def test_every_second_of_every_stage_is_accounted_for(program):
    for engine in (closed_form, listing, simulate):
        execution = engine(program)
        for stage in execution.stages:
            assert sum(stage.seconds.values()) == pytest.approx(execution.iteration_s, rel=1e-9)
            assert min(stage.seconds.values()) >= -1e-12


@thorough
@given(program=programs(layouts_of(seconds), st.one_of(shares, layouts_of(shares))))
def test_an_array_of_layouts_gives_what_each_of_them_gives_alone(program):
    together = closed_form(program)
    merged = closed_form(coalesce(program))
    for index in range(LAYOUTS):
        alone = closed_form(layout(program, index))
        assert together.iteration_s[index] == alone.iteration_s == merged.iteration_s[index]
        for mine, theirs in zip(together.stages, alone.stages, strict=True):
            assert mine.flop[index] == theirs.flop
            # Where others are slowed or wait, a layout that does not has the category too, with nothing in it.
            nothing = dict.fromkeys({INTERFERENCE, HOST} & mine.seconds.keys(), 0.0)
            assert {category: value[index] for category, value in mine.seconds.items()} == nothing | theirs.seconds


@thorough
@given(program=programs(share=st.just(0.0)))
def test_a_slowdown_of_nothing_changes_nothing_bit_for_bit(program):
    for engine in (closed_form, listing, simulate):
        assert INTERFERENCE not in engine(program).stages[0].seconds
    for detail in (program, coalesce(program)):
        plain, zeros = closed_form(detail), closed_form(replace(detail, overlap_slowdown=np.zeros(LAYOUTS)))
        beside = closed_form(replace(detail, overlap_slowdown=np.array([0.0, 0.5, 0.9])))
        assert plain.iteration_s == zeros.iteration_s[0] == beside.iteration_s[0]
        for mine, alike, other in zip(plain.stages, zeros.stages, beside.stages, strict=True):
            assert {category: value[0] for category, value in alike.seconds.items()} == mine.seconds
            assert {category: value[0] for category, value in other.seconds.items()} == {
                INTERFERENCE: 0.0,
                **mine.seconds,
            }


@thorough
@given(program=programs(share=st.floats(1e-3, 0.9)))
def test_a_slowdown_without_anything_to_overlap_changes_nothing_bit_for_bit(program):
    def blocking(block):
        return replace(block, tasks=tuple(replace(task, blocking=True, waits=(), drains=()) for task in block.tasks))

    program = replace(
        program,
        blocks={key: blocking(block) for key, block in program.blocks.items()},
        last_blocks={key: blocking(block) for key, block in program.last_blocks.items()},
        epilogues=tuple(map(blocking, program.epilogues)),
    )
    for engine in (closed_form, listing, simulate):
        slowed, plain = engine(program), engine(replace(program, overlap_slowdown=0.0))
        assert slowed.iteration_s == plain.iteration_s
        for mine, theirs in zip(slowed.stages, plain.stages, strict=True):
            assert mine.seconds == {INTERFERENCE: 0.0, **theirs.seconds}


@thorough
@given(program=programs(share=st.just(0.0)), some=st.floats(0.0, 0.9), more=st.floats(0.0, 0.9))
def test_the_iteration_grows_with_the_slowdown_but_not_beyond_everything_slowed(program, some, more):
    some, more = sorted((some, more))
    plain = listing(program).iteration_s
    slower, slowest = (listing(replace(program, overlap_slowdown=share)).iteration_s for share in (some, more))
    rounding = 1 + 1e-12
    assert plain <= slower * rounding
    assert slower <= slowest * rounding
    assert slowest <= plain / (1 - more) * rounding


@thorough
@given(program=programs(hosts=st.just(0.0)))
def test_what_does_not_block_takes_its_own_time_and_what_blocks_no_less(program):
    blocking, alone = [], []
    for stage in make_plan(program).stages:
        for item in stage.passes:
            blocking += [task.blocking for task in item.block.tasks]
            alone += [task.seconds for task in item.block.tasks]
    rows = listing(program, timeline=True).timeline
    lasting, alone = rows.finish - rows.start, np.array(alone, dtype=float)
    free = np.array(blocking, dtype=bool)
    np.testing.assert_allclose(lasting[~free], alone[~free], rtol=1e-9, atol=1e-12)
    assert np.all(lasting >= alone - 1e-12)
    lost = sum(stage.seconds.get(INTERFERENCE, 0.0) for stage in listing(program).stages)
    assert np.sum(lasting[free] - alone[free]) == pytest.approx(lost, rel=1e-9, abs=1e-9)


def with_host(program, number):
    """The same program with another time to issue each task; ``number`` makes it from the task's own."""

    def block(value):
        return replace(value, tasks=tuple(replace(task, host=number(task.host)) for task in value.tasks))

    return replace(
        program,
        blocks={key: block(value) for key, value in program.blocks.items()},
        last_blocks={key: block(value) for key, value in program.last_blocks.items()},
        epilogues=tuple(map(block, program.epilogues)),
    )


@thorough
@given(program=programs(hosts=st.just(0.0)))
def test_a_host_that_takes_no_time_changes_nothing_bit_for_bit(program):
    assume(any(block.tasks for stage in make_plan(program).stages for block, _ in stage.uses))
    for engine in (closed_form, listing, simulate):
        assert HOST not in engine(program).stages[0].seconds
    for detail in (program, coalesce(program)):
        plain = closed_form(replace(detail, synchronous_messages=not detail.synchronous_messages))
        beside = closed_form(with_host(detail, lambda _: np.array([0.0, 0.5, 2.0])))
        assert plain.iteration_s == beside.iteration_s[0]
        for mine, other in zip(plain.stages, beside.stages, strict=True):
            assert {category: value[0] for category, value in other.seconds.items()} == {HOST: 0.0, **mine.seconds}


@thorough
@given(program=programs(share=st.just(0.0), hosts=seconds), factor=st.floats(1.0, 3.0))
def test_the_iteration_grows_with_the_time_to_issue_but_not_beyond_all_of_it(program, factor):
    plain = listing(with_host(program, lambda _: 0.0)).iteration_s
    hosted = listing(program).iteration_s
    slower = listing(with_host(program, lambda host: factor * host)).iteration_s
    all_of_it = sum(
        float(task.host) for stage in make_plan(program).stages for item in stage.passes for task in item.block.tasks
    )
    rounding = 1 + 1e-12
    assert plain <= hosted * rounding
    assert hosted <= slower * rounding
    assert hosted <= (plain + all_of_it) * rounding


@thorough
@given(program=programs(hosts=seconds))
def test_tasks_on_one_stream_follow_one_another_and_take_no_less_than_their_time(program):
    plan = make_plan(program)
    rows = listing(program, timeline=True).timeline
    alone = [float(task.seconds) for stage in plan.stages for item in stage.passes for task in item.block.tasks]
    blocking = [task.blocking for stage in plan.stages for item in stage.passes for task in item.block.tasks]
    assert np.all(rows.finish - rows.start >= np.array(alone) - 1e-9)
    for stage in range(len(plan.stages)):
        mine = (rows.stage == stage) & np.array(blocking, dtype=bool)
        assert np.all(rows.start[mine][1:] >= rows.finish[mine][:-1] - 1e-9)


@thorough
@given(program=programs())
def test_the_number_of_events_follows_from_the_program(program):
    for detail in (program, coalesce(program)):
        assert simulate(detail).events == expected_events(make_plan(detail))


@thorough
@given(program=programs())
def test_timelines_of_listing_and_event_engine_agree_row_by_row(program):
    found, expected = simulate(program, timeline=True), listing(program, timeline=True)
    assert simulate(program) == replace(found, timeline=None)
    assert found.timeline.labels == expected.timeline.labels
    for column in ("stage", "microbatch", "chunk", "label"):
        np.testing.assert_array_equal(getattr(found.timeline, column), getattr(expected.timeline, column))
    for column in ("start", "finish"):
        np.testing.assert_allclose(
            getattr(found.timeline, column), getattr(expected.timeline, column), rtol=1e-9, atol=1e-12
        )


@thorough
@given(program=programs())
def test_coalescing_twice_changes_nothing(program):
    merged = coalesce(program)
    assert coalesce(merged) == merged


@settings(max_examples=80, deadline=None)
@given(program=programs(), data=st.data())
def test_a_program_with_passes_in_the_wrong_order_is_refused_or_finishes_but_never_hangs(program, data):
    orders = tuple(tuple(data.draw(st.permutations(order))) for order in program.schedule.orders)
    shuffled = replace(program, schedule=replace(program.schedule, orders=orders))
    results = [outcome(engine, shuffled) for engine in (closed_form, listing, simulate)]
    if "stuck" in results:
        assert results == ["stuck"] * 3
    else:
        assert results == pytest.approx([results[0]] * 3, rel=1e-9)


def outcome(engine, program):
    try:
        return engine(program).iteration_s
    except ProgramError as refused:
        return "stuck" if "stuck" in str(refused) else str(refused)
