"""Compute slows while communication runs behind it: times worked out by hand, on every engine."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardsim.engine.closed import closed_form
from shardsim.engine.des import expected_events, simulate
from shardsim.engine.interference import INTERFERENCE, Slowdown
from shardsim.engine.listing import listing
from shardsim.engine.plan import make_plan
from shardsim.engine.predict import EventOptions, predict
from shardsim.errors import InputError, ProgramError
from shardsim.program.build import build
from shardsim.program.resolve import resolve
from shardsim.schema.hardware import load_fabric_profile
from shardsim.schema.run import request_from_mapping
from shardsim.values.program import Block

TIMELINES = [listing, simulate]


@pytest.fixture
def one_stage(schedule, pipeline):
    """One forward (1 s) and one backward pass, the latter and the epilogue made of the given tasks."""

    def make(backward, epilogue=(), share=0.2):
        program = pipeline(schedule("1f1b", 1, 1), last=tuple(backward))
        return replace(program, epilogues=(Block("epilogue", tuple(epilogue)),), overlap_slowdown=share)

    return make


@pytest.fixture
def bucket(task):
    def make(seconds, **more):
        return task(seconds, "bucket", **{"stream": "dp", "category": "dp", "blocking": False, **more})

    return make


def account(execution, stage=0):
    return {category: value for category, value in execution.stages[stage].seconds.items() if value}


def test_compute_shorter_than_the_communication_behind_it_is_slowed_all_along(engine, one_stage, task, bucket):
    # F 0-1, bucket 1-6, B of 2 s at 0.8 of its rate 1-3.5; the bucket outlasts it by 2.5 s.
    execution = engine(one_stage([bucket(5.0), task(2.0)]))
    assert execution.iteration_s == 6.0
    assert account(execution) == pytest.approx({"gemm": 3.0, "interference": 0.5, "dp": 2.5})


def test_communication_by_copy_engines_slows_nothing(engine, one_stage, task, bucket):
    # F 0-1, the copy 1-6 beside 2 s of B 1-3, which then waits for it; 2 s 6-8; a bucket 8-9 beside 2 s 8-10.2
    second = task(2.0, drains=("dp",))
    execution = engine(one_stage([bucket(5.0, slows=False), task(2.0), second, bucket(1.0), task(2.0)]))
    assert account(execution) == pytest.approx({"gemm": 7.0, "interference": 0.2, "dp": 3.0})


def test_compute_longer_than_the_communication_behind_it_is_slowed_until_that_ends(engine, one_stage, task, bucket):
    # F 0-1, bucket 1-3 while which B does 1.6 of its 4 s, and the rest of it 3-5.4
    execution = engine(one_stage([bucket(2.0), task(4.0)]))
    assert execution.iteration_s == pytest.approx(5.4, rel=1e-12)
    assert account(execution) == pytest.approx({"gemm": 5.0, "interference": 0.4})


def test_compute_that_ends_with_the_communication_is_slowed_all_along(engine, one_stage, task, bucket):
    execution = engine(one_stage([bucket(2.0), task(1.5)], share=0.25))
    assert execution.iteration_s == 3.0
    assert account(execution) == {"gemm": 2.5, "interference": 0.5}


def test_tasks_queued_one_behind_the_other_slow_compute_until_the_last_ends(engine, one_stage, task, bucket):
    # F 0-1, buckets 1-2 and 2-4 while which B does 2.4 of its 3 s, and the rest of it 4-4.6
    execution = engine(one_stage([bucket(1.0), bucket(2.0), task(3.0)]))
    assert execution.iteration_s == pytest.approx(4.6, rel=1e-12)
    assert account(execution) == pytest.approx({"gemm": 4.0, "interference": 0.6})


def test_the_stream_that_ends_last_decides_not_the_one_queued_last(engine, one_stage, task, bucket):
    # F 0-1, bucket 1-4, prefetch 1-2, B of 3 s: 2.4 of it until 4, the rest 4-4.6
    execution = engine(one_stage([bucket(3.0), bucket(1.0, stream="ep"), task(3.0)]))
    assert execution.iteration_s == pytest.approx(4.6, rel=1e-12)


def test_a_queued_task_slows_compute_while_it_waits_for_its_turn(engine, one_stage, task, bucket):
    # F 0-1, gather 1-3 and the bucket that waits for it 3-4, B of 2 s at 0.8 of its rate 1-3.5
    execution = engine(one_stage([bucket(2.0, stream="ep"), bucket(1.0, waits=(0,)), task(2.0)]))
    assert execution.iteration_s == 4.0
    assert account(execution) == pytest.approx({"gemm": 3.0, "interference": 0.5, "dp": 0.5})


def test_what_is_issued_later_slows_only_what_comes_after_it(engine, one_stage, task, bucket):
    # F 0-1, B1 1-3, bucket 3-4 while which B2 does 0.8 of its 2 s, and the rest of it 4-5.2
    execution = engine(one_stage([task(2.0), bucket(1.0), task(2.0)]))
    assert execution.iteration_s == pytest.approx(5.2, rel=1e-12)


def test_a_task_that_drains_the_only_stream_runs_at_full_rate(engine, one_stage, task, bucket):
    # F 0-1, bucket 1-3, B of 0.8 s at 0.8 of its rate 1-2, optimizer 3-5
    execution = engine(one_stage([bucket(2.0), task(0.8)], [task(2.0, category="optimizer", drains=("dp",))]))
    assert execution.iteration_s == pytest.approx(5.0, rel=1e-12)
    assert account(execution) == pytest.approx({"gemm": 1.8, "interference": 0.2, "dp": 1.0, "optimizer": 2.0})


def test_a_task_that_drains_one_of_two_streams_is_slowed_by_the_other(engine, one_stage, task, bucket):
    # F 0-1, gather 1-2, bucket 1-4, B 2-4.4: 1.6 of its 2 s until 4
    execution = engine(one_stage([bucket(1.0, stream="ep", category="ep"), bucket(3.0), task(2.0, drains=("ep",))]))
    assert execution.iteration_s == pytest.approx(4.4, rel=1e-12)
    assert account(execution) == pytest.approx({"gemm": 3.0, "ep": 1.0, "interference": 0.4})


def test_a_task_that_waits_is_slowed_by_what_is_queued_behind_that(engine, one_stage, task, bucket):
    # F 0-1, buckets 1-2 and 2-5, B 2-4.5 at 0.8 of its rate
    execution = engine(one_stage([bucket(1.0), bucket(3.0), task(2.0, waits=(0,))]))
    assert execution.iteration_s == 5.0
    assert account(execution) == pytest.approx({"gemm": 3.0, "dp": 1.5, "interference": 0.5})


def test_the_communication_itself_is_not_slowed(engine, one_stage, bucket):
    execution = engine(one_stage([bucket(2.0), bucket(3.0)], share=0.9))
    assert execution.iteration_s == 6.0
    assert account(execution) == {"gemm": 1.0, "dp": 5.0}


def test_a_stage_is_slowed_by_its_own_communication_only_and_passes_the_delay_on(
    engine, schedule, pipeline, task, bucket
):
    # Stage 1: F 1-2, bucket 2-7 and B of 2 s 2-4.5; stage 0: B 4.5-6.5 at full rate.
    program = pipeline(schedule("1f1b", 2, 1))
    program = replace(program, overlap_slowdown=0.2, last_blocks={(1, "B", 0): Block("B", (bucket(5.0), task(2.0)))})
    execution = engine(program)
    assert execution.iteration_s == 7.0
    assert account(execution, 0) == pytest.approx({"gemm": 3.0, "bubble": 4.0})
    assert account(execution, 1) == pytest.approx({"gemm": 3.0, "interference": 0.5, "bubble": 1.0, "dp": 2.5})


def test_each_of_many_layouts_has_its_own_slowdown(one_stage, task, bucket):
    shares = [0.0, 0.2, 0.5]
    execution = closed_form(one_stage([bucket(2.0), task(4.0)], share=np.array(shares)))
    assert execution.iteration_s == pytest.approx([5.0, 5.4, 6.0], rel=1e-12)
    assert execution.stages[0].seconds[INTERFERENCE] == pytest.approx([0.0, 0.4, 1.0])
    for index, share in enumerate(shares):
        assert execution.iteration_s[index] == closed_form(one_stage([bucket(2.0), task(4.0)], share=share)).iteration_s


def test_without_a_slowdown_interference_is_no_category(engine, one_stage, task, bucket):
    assert INTERFERENCE not in engine(one_stage([bucket(2.0), task(4.0)], share=0.0)).stages[0].seconds


@pytest.mark.parametrize("share", [1.0, -0.1, float("nan"), np.array([0.5, 1.0])])
def test_a_slowdown_that_is_no_share_below_1_is_refused(engine, one_stage, task, share):
    with pytest.raises(ProgramError, match="overlap_slowdown"):
        engine(one_stage([task(1.0)], share=share))


@pytest.mark.parametrize("run", TIMELINES)
def test_starts_inside_a_slowed_run_are_where_the_work_before_them_is_done(run, one_stage, task, bucket):
    # F 0-1, bucket 1-3.5; at 0.8 of the rate B0 1-2.25; B1 has done all of its 1 s at 3.5; B2 3.5-4.5 at full rate
    rows = run(one_stage([bucket(2.5), task(1.0), task(1.0), task(1.0)]), timeline=True).timeline
    assert rows.start.tolist() == pytest.approx([0.0, 1.0, 1.0, 2.25, 3.5])
    assert rows.finish.tolist() == pytest.approx([1.0, 3.5, 2.25, 3.5, 4.5])


@pytest.mark.parametrize("run", TIMELINES)
def test_a_task_during_which_the_communication_ends_is_longer_by_what_it_lost_until_then(run, one_stage, task, bucket):
    # Bucket 1-3; B1 has done 0.6 of its 1 s until then and ends at 3.4.
    rows = run(one_stage([bucket(2.0), task(1.0), task(1.0), task(1.0)]), timeline=True).timeline
    assert rows.start.tolist() == pytest.approx([0.0, 1.0, 1.0, 2.25, 3.4])
    assert rows.finish.tolist() == pytest.approx([1.0, 3.0, 2.25, 3.4, 4.4])


def test_the_number_of_events_does_not_depend_on_the_slowdown(one_stage, task, bucket):
    program = one_stage([bucket(2.0), task(1.0), bucket(1.0), task(1.0)], [task(1.0, drains=("dp",))])
    assert simulate(program).events == simulate(replace(program, overlap_slowdown=0.0)).events
    assert simulate(program).events == expected_events(make_plan(program))


@given(
    share=st.floats(0.0, 0.95),
    work=st.floats(0.0, 1e3),
    begin=st.floats(0.0, 1e3),
    until=st.floats(0.0, 1e3),
    at=st.floats(0.0, 1.0),
)
def test_a_slowed_run_does_its_work_exactly_in_one_piece_or_in_two(share, work, begin, until, at):
    slowdown = Slowdown(share)
    end = begin + work + slowdown.delay(work, begin, until)
    slow = min(max(until - begin, 0.0), end - begin)
    assert (1 - share) * slow + (end - begin - slow) == pytest.approx(work, rel=1e-9, abs=1e-9)
    first = begin + at * work + slowdown.delay(at * work, begin, until)
    rest = (1 - at) * work
    assert first + rest + slowdown.delay(rest, first, until) == pytest.approx(end, rel=1e-9, abs=1e-9)


# From a profile to a prediction.


def request(**layout):
    return request_from_mapping(
        {
            "model": "gpt3-175b",
            "cluster": "dgx-a100",
            "gpus": 1024,
            "layout": {"tp": 8, "pp": 8, **layout},
            "batch": {"global": 1536, "micro": 1, "seq": 2048},
            "set": {"fabric.overlap_multiprocessors": 27},
        }
    )


@pytest.mark.parametrize("name", ["nvlink2-edr", "nvlink3-hdr", "nvlink4-ndr", "nvlink5-ndr", "nvl72-ndr"])
def test_every_fabric_says_how_many_multiprocessors_overlapped_collectives_take_and_on_what_grounds(name):
    fabric = load_fabric_profile(name)
    assert fabric.overlap_multiprocessors in (8, 16)
    assert fabric.overlap_provenance.source


def test_gradients_reduced_behind_the_backward_pass_slow_it_by_the_multiprocessors_they_take():
    """27 of the A100's 108 are a quarter."""
    run = resolve(request(overlap_grad_reduce=True))
    assert build(run).overlap_slowdown == 0.25
    found = predict(run, engine="listing", detail="operators")
    assert [step.name for step in found.waterfall].count("slowed by overlapping communication") == 1
    assert [note.value for note in found.costs if "behind compute" in note.constant] == ["27 of 108"]
    for engine in ("closed", "des"):
        other = predict(run, engine=engine, options=EventOptions(contend=False))
        assert other.iteration_s == pytest.approx(found.iteration_s, rel=1e-9)
    # Where pipeline messages share the adapters with the reduction it takes longer, if little.
    assert found.iteration_s < predict(run).iteration_s < 1.001 * found.iteration_s


def test_gradients_reduced_after_the_backward_pass_slow_nothing():
    run = resolve(request(overlap_grad_reduce=False))
    assert build(run).overlap_slowdown == 0.0
    found = predict(run, engine="closed")
    assert not [step for step in found.waterfall if "slowed" in step.name]
    assert not [note for note in found.costs if "behind compute" in note.constant]


def test_more_multiprocessors_than_the_device_has_are_refused():
    wrong = request(overlap_grad_reduce=True).model_copy(update={"set": {"fabric.overlap_multiprocessors": 108}})
    with pytest.raises(InputError, match="108 multiprocessors"):
        predict(resolve(wrong))
