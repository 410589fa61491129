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
from shardsim.values.program import Block, Pair, Pass, PipelineSchedule, Program, Task, passes_of
from shardsim.values.provenance import Provenance
from shardsim.values.transfer import Transfer

LAYOUTS = 3
thorough = settings(max_examples=60, deadline=None)


@st.composite
def schedules(draw):
    """Any order in which every pass comes after those it needs; chunks lie anywhere, on one chain or on two."""
    p, v, m = draw(st.integers(1, 4)), draw(st.integers(1, 3)), draw(st.integers(1, 4))
    places = tuple(draw(st.permutations([(stage, chunk) for stage in range(p) for chunk in range(v)])))
    cut = draw(st.integers(0, len(places) - 1))
    chains = (places[:cut], places[cut:]) if cut else (places,)
    split = draw(st.sampled_from([lambda *_: False, lambda *_: True, lambda stage, i: (stage + i) % 2 == 0]))
    needs = {}
    for chain in chains:
        for k, place in enumerate(chain):
            for i in range(m):
                needs["F", place, i] = ("F", chain[k - 1], i) if k else None
                needs["B", place, i] = ("B", chain[k + 1], i) if k + 1 < len(chain) else ("F", place, i)
                if split(place[0], i):
                    needs["W", place, i] = ("B", place, i)

    def as_pass(kind, place, i):
        return Pass("I" if kind == "B" and split(place[0], i) else kind, i, place[1])

    orders = [[] for _ in range(p)]
    while needs:
        ready = sorted(item for item, needed in needs.items() if needed not in needs)
        one = draw(st.sampled_from(ready))
        stage = one[1][0]
        beside = [other for other in ready if other[1][0] == stage and as_pass(*other).kind == "B"]
        if one[0] == "F" and beside and draw(st.booleans()):
            orders[stage].append(Pair(as_pass(*one), as_pass(*beside[-1])))
            del needs[beside[-1]]
        else:
            orders[stage].append(as_pass(*one))
        del needs[one]
    return PipelineSchedule("random", tuple(map(tuple, orders)), chains, m * len(chains))


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
            more["drains"] = tuple(draw(st.lists(st.sampled_from(["dp", "ep", "tp"]), max_size=2, unique=True)))
        if queued and draw(st.booleans()):
            more["waits"] = tuple(draw(st.lists(st.sampled_from(queued), max_size=2, unique=True)))
        blocking = draw(st.integers(0, 3)) > 0
        stream = draw(st.sampled_from(["compute", "compute", "tp", "dp"] if blocking else ["dp", "dp", "ep", "tp"]))
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
    keys = [(stage, kind, chunk) for stage, chunk in schedule.places for kind in "FBIW"]
    transfers = {
        key: Transfer(draw(number), {}, {}, "direct", Provenance("assumed", "test")) for key in keys if key[1] in "FB"
    }
    agenda = draw(st.lists(st.sampled_from(["embedding", "norm"]), max_size=3))
    meetings = [Task(name, "tp", "embedding", draw(number), rendezvous=name, host=draw(host)) for name in agenda]
    pool = st.sampled_from([draw(blocks(f"pass {index} ", number, host)) for index in range(4)])
    some_keys = st.lists(st.sampled_from(keys), max_size=4, unique=True)
    step = draw(blocks("step ", number, host))
    return Program(
        schedule=schedule,
        blocks={key: draw(pool) for key in keys},
        first_blocks={key: draw(pool) for key in draw(some_keys)},
        last_blocks={key: draw(pool) for key in draw(some_keys)},
        pairs={
            (stage, item.forward.chunk, item.backward.chunk): draw(pool)
            for stage, order in enumerate(schedule.orders)
            for item in order
            if isinstance(item, Pair)
        },
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


def with_tasks(program, change):
    """The same program with every task changed."""

    def changed(block):
        return replace(block, tasks=tuple(map(change, block.tasks)))

    return replace(
        program,
        blocks={key: changed(block) for key, block in program.blocks.items()},
        first_blocks={key: changed(block) for key, block in program.first_blocks.items()},
        last_blocks={key: changed(block) for key, block in program.last_blocks.items()},
        pairs={key: changed(block) for key, block in program.pairs.items()},
        epilogues=tuple(map(changed, program.epilogues)),
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

    return replace(
        with_tasks(program, lambda task: scalar(replace(task, flop=task.flop + np.zeros(LAYOUTS)))),
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
    program = with_tasks(program, lambda task: replace(task, blocking=True, waits=(), drains=()))
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
    return with_tasks(program, lambda task: replace(task, host=number(task.host)))


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


def busy(block):
    return sum(task.seconds for task in block.tasks if task.blocking)


def block_of(program, stage, index):
    """What a stage runs at one place of its order."""
    order, item = program.schedule.orders[stage], program.schedule.orders[stage][index]
    if isinstance(item, Pair):
        return program.pairs[stage, item.forward.chunk, item.backward.chunk]
    key = (stage, item.kind, item.chunk)
    alike = [place for place, other in enumerate(order) for one in passes_of([other]) if one[::2] == item[::2]]
    if index == alike[-1] and key in program.last_blocks:
        return program.last_blocks[key]
    if index == alike[0] and key in program.first_blocks:
        return program.first_blocks[key]
    return program.blocks[key]


def inputs(program, stage, part):
    """What a pass needs: kind, place and micro-batch of another, and how long its message takes."""
    place, i = (stage, part.chunk), part.microbatch
    if part.kind == "W":
        return [("B", place, i, 0.0)]
    (chain,) = (chain for chain in program.schedule.chains if place in chain)
    kind, k = ("F", chain.index(place) - 1) if part.kind == "F" else ("B", chain.index(place) + 1)
    if k == len(chain):
        return [("F", place, i, 0.0)]
    if k < 0:
        return []
    sender, chunk = chain[k]
    return [(kind, chain[k], i, program.messages[sender, kind, chunk].seconds if sender != stage else 0.0)]


def longest_path(program, *, in_order):
    """When the last pass or epilogue ends, by what passes need alone, or also by the order in which stages run them.

    Blocking work and messages only: nothing here comes from the engines.
    """
    orders = program.schedule.orders
    ends, clock = {}, {}
    left = [(stage, index) for stage, order in enumerate(orders) for index in range(len(order))]
    while left:
        for stage, index in list(left):
            parts = list(passes_of([orders[stage][index]]))
            needed = [needed for part in parts for needed in inputs(program, stage, part)]
            before = (stage, index - 1)
            if any(item[:3] not in ends for item in needed) or (index and before not in clock):
                continue
            begin = max([ends[item[:3]] + item[3] for item in needed], default=0.0)
            if in_order and index:
                begin = max(begin, clock[before])
            clock[stage, index] = begin + busy(block_of(program, stage, index))
            for part in parts:
                ends["B" if part.kind == "I" else part.kind, (stage, part.chunk), part.microbatch] = clock[stage, index]
            left.remove((stage, index))
    return max(
        max([end for (at, _), end in clock.items() if at == stage], default=0.0) + busy(program.epilogues[stage])
        for stage in range(len(orders))
    )


@thorough
@given(program=programs())
def test_no_program_ends_before_the_longest_path_through_its_passes(program):
    found = listing(program).iteration_s * (1 + 1e-9)
    assert found >= longest_path(program, in_order=True) >= longest_path(program, in_order=False) * (1 - 1e-9)


@thorough
@given(program=programs(share=st.just(0.0), hosts=st.just(0.0)))
def test_a_program_that_does_one_thing_at_a_time_ends_with_its_longest_path(program):
    def alone(task):
        return replace(task, blocking=True, waits=(), drains=(), rendezvous="")

    plain = with_tasks(program, alone)
    for engine in (closed_form, listing, simulate):
        assert engine(plain).iteration_s == pytest.approx(longest_path(plain, in_order=True), rel=1e-9)


@thorough
@given(program=programs(), factor=st.floats(0.0, 1.0))
def test_more_bandwidth_never_makes_an_iteration_longer(program, factor):
    """Every message and every transfer shorter, where they share no links."""

    def quicker(task):
        return (
            replace(task, seconds=task.seconds * factor) if task.category in {"tp", "dp", "zero", "embedding"} else task
        )

    messages = {key: replace(value, latency=value.latency * factor) for key, value in program.messages.items()}
    faster = replace(with_tasks(program, quicker), messages=messages)
    for engine in (closed_form, simulate):
        assert engine(faster).iteration_s <= engine(program).iteration_s * (1 + 1e-12)


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
