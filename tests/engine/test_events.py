"""The event engine: how many events, the same ones every time, and an end to every run."""

from dataclasses import replace

import pytest

from shardsim.engine.des import EventLimitError, simulate
from shardsim.engine.timeline import busy_seconds_by_stream, by_start
from shardsim.program.coalesce import coalesce
from shardsim.values.program import Block


@pytest.mark.parametrize(("p", "m", "tasks"), [(1, 1, 1), (1, 4, 3), (4, 8, 1), (4, 8, 50), (16, 16, 10)])
def test_a_plain_pipeline_takes_an_event_a_task_an_event_a_message_and_two_a_stage(schedule, pipeline, p, m, tasks):
    program = pipeline(schedule("1f1b", p, m), comm=0.1, tasks=tasks)
    messages = 2 * (p - 1) * m
    assert simulate(program).events == 2 * p + 2 * p * m * tasks + messages
    assert simulate(coalesce(program)).events == 2 * p + 2 * p * m + messages


def test_messages_inside_a_stage_take_no_events(schedule, pipeline):
    v, p, m = 3, 2, 4
    program = pipeline(schedule("interleaved", p, m, v))
    assert simulate(program).events == 2 * p + 2 * p * v * m + 2 * (p * v - 1) * m


def test_parts_of_a_backward_pass_and_pairs_take_an_event_for_each_message_they_send(schedule, pipeline):
    program = pipeline(schedule("dualpipe", 4, 8, 2), tasks=3)
    items = [item for order in program.schedule.orders for item in order]
    messages = 2 * 8 * 3
    assert simulate(program).events == 2 * 4 + 3 * len(items) + messages
    assert simulate(coalesce(program)).events == 2 * 4 + len(items) + messages


def test_a_queued_task_takes_one_event_and_a_meeting_one_more(schedule, pipeline, task):
    reduce = task(3.0, stream="dp", category="dp", blocking=False)
    meet = task(1.0, rendezvous="embedding", drains=("dp",))
    program = pipeline(
        schedule("1f1b", 2, 2), last=(reduce, task(1.0), reduce), epilogue=(meet,), members={"embedding": (0, 1)}
    )
    plain, last, epilogue = 2 * 3, 2 * 3, 2 * 1
    assert simulate(program).events == 2 * 2 + plain + last + epilogue + 2 * 2 + 1


def test_the_same_program_gives_the_same_run_bit_for_bit(schedule, pipeline):
    program = pipeline(schedule("interleaved", 4, 8, 2), 1 / 3, 2 / 3, 0.1, tasks=7)
    one, other = simulate(program, timeline=True), simulate(program, timeline=True)
    assert one.stages == other.stages
    assert one.timeline.start.tobytes() == other.timeline.start.tobytes()


def test_a_bounded_run_stops_and_says_how_far_it_got(schedule, pipeline):
    program = pipeline(schedule("1f1b", 2, 4), tasks=10)
    with pytest.raises(EventLimitError, match=r"limit of 50 events: .* s simulated, \d of 18 passes") as stopped:
        simulate(program, max_events=50)
    assert stopped.value.events == 50
    assert 0 < stopped.value.reached_s < simulate(program).iteration_s


def test_a_bound_that_is_just_enough_does_not_stop_the_run(schedule, pipeline):
    program = pipeline(schedule("1f1b", 2, 4))
    assert simulate(program, max_events=simulate(program).events) == simulate(program)


def test_an_interrupt_is_passed_on_with_how_far_the_run_got(schedule, pipeline, monkeypatch):
    from simpy import Environment

    step, calls = Environment.step, []

    def interrupted(self):
        calls.append(1)
        if len(calls) > 20:
            raise KeyboardInterrupt
        step(self)

    monkeypatch.setattr(Environment, "step", interrupted)
    with pytest.raises(KeyboardInterrupt) as stopped:
        simulate(pipeline(schedule("1f1b", 2, 4), tasks=10))
    assert stopped.value.__notes__[0].startswith("interrupted after 20 events: ")


def test_a_message_that_nobody_waits_for_does_not_lengthen_the_iteration(schedule, pipeline):
    program = pipeline(schedule("1f1b", 2, 1), comm=100.0)
    forward_only = tuple(tuple(item for item in order if item.kind == "F") for order in program.schedule.orders)
    program = replace(program, schedule=replace(program.schedule, orders=(forward_only[0], ())))
    assert simulate(program).iteration_s == 1.0


def test_the_timeline_has_every_task_in_order_of_issue(schedule, pipeline, task):
    reduce = task(4.0, "bucket", stream="dp", category="dp", blocking=False)
    program = pipeline(schedule("1f1b", 1, 1), last=(task(1.0, "B0"), reduce, task(1.0, "B1")))
    program = replace(program, epilogues=(Block("epilogue", (task(0.5, "adam", drains=("dp",)),)),))
    rows = simulate(program, timeline=True).timeline
    assert [rows.labels[label][0] for label in rows.label] == ["F0", "B0", "bucket", "B1", "adam"]
    assert rows.start.tolist() == [0.0, 1.0, 2.0, 2.0, 6.0]
    assert rows.finish.tolist() == [1.0, 2.0, 6.0, 3.0, 6.5]
    assert rows.microbatch.tolist() == [0, 0, 0, 0, -1]
    assert rows.chunk.tolist() == [0, 0, 0, 0, -1]
    assert busy_seconds_by_stream(rows) == {(0, "compute"): 3.5, (0, "dp"): 4.0}


def test_rows_sorted_by_start_keep_ties_in_order(schedule, pipeline):
    rows = by_start(simulate(pipeline(schedule("1f1b", 2, 2)), timeline=True).timeline)
    assert rows.start.tolist() == [0.0, 1.0, 1.0, 2.0, 4.0, 4.0, 5.0, 7.0]
    assert rows.stage.tolist() == [0, 0, 1, 1, 0, 1, 1, 0]
