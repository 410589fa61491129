"""The host's clock beside the device's: times worked out by hand, on every engine."""

from dataclasses import replace

import numpy as np
import pytest

from shardsim.engine.closed import closed_form
from shardsim.engine.des import expected_events, simulate
from shardsim.engine.listing import listing
from shardsim.engine.plan import make_plan
from shardsim.errors import ProgramError
from shardsim.program.coalesce import coalesce
from shardsim.values.program import Block

TIMELINES = [listing, simulate]


@pytest.fixture
def one_stage(schedule, pipeline):
    """Nothing forward; the backward pass and the epilogue made of the given tasks."""

    def make(backward, epilogue=(), share=0.0):
        program = pipeline(schedule("1f1b", 1, 1), forward=0.0, last=tuple(backward))
        return replace(program, epilogues=(Block("epilogue", tuple(epilogue)),), overlap_slowdown=share)

    return make


@pytest.fixture
def kernel(task):
    """A kernel that the host takes ``host`` seconds to launch."""

    def make(seconds, host, name="kernel", **more):
        return task(seconds, name, host=host, **more)

    return make


@pytest.fixture
def bucket(task):
    def make(seconds, **more):
        return task(seconds, "bucket", **{"stream": "dp", "category": "dp", "blocking": False, **more})

    return make


def account(execution, stage=0):
    return {category: value for category, value in execution.stages[stage].seconds.items() if value}


def test_a_stream_of_short_kernels_takes_as_long_as_launching_them(engine, one_stage, kernel):
    # Launched at 2, 4, 6 and 8; the last runs 8-9.
    execution = engine(one_stage([kernel(1.0, 2.0)] * 4))
    assert execution.iteration_s == 9.0
    assert account(execution) == {"gemm": 4.0, "host": 5.0}


def test_a_stream_of_long_kernels_waits_for_the_first_launch_only(engine, one_stage, kernel):
    execution = engine(one_stage([kernel(2.0, 1.0)] * 4))
    assert execution.iteration_s == 9.0
    assert account(execution) == {"gemm": 8.0, "host": 1.0}


def test_a_long_kernel_lets_the_host_run_ahead_for_the_short_ones_behind_it(engine, one_stage, kernel):
    # Launched at 1, 2, 3, 4, 5: long 1-6, then three short ones 6-6.75, and the next is waited for by nobody.
    execution = engine(one_stage([kernel(5.0, 1.0), *[kernel(0.25, 1.0)] * 4]))
    assert execution.iteration_s == 7.0
    # Short ones first: launched at 1, 2, 3, 4 and 5, the long one runs 5-10.
    assert engine(one_stage([*[kernel(0.25, 1.0)] * 4, kernel(5.0, 1.0)])).iteration_s == 10.0


def test_coalesced_kernels_run_from_when_they_need_no_longer_break(one_stage, kernel):
    merged = coalesce(one_stage([kernel(1.0, 2.0), kernel(4.0, 2.0), kernel(1.0, 2.0)]))
    (task,) = merged.last_blocks[0, "B", 0].tasks
    # Starts 2, 4, 8; the second may start no earlier than 4, so that the run could as well be 3-9.
    assert (task.seconds, task.host, task.lag) == (6.0, 6.0, 3.0)
    assert listing(merged).iteration_s == simulate(merged).iteration_s == 9.0
    rows = listing(merged, timeline=True).timeline
    assert (rows.start[-1], rows.finish[-1]) == (3.0, 9.0)


@pytest.mark.parametrize("run", TIMELINES)
def test_starts_are_where_the_device_is_free_and_the_launch_done(run, one_stage, kernel):
    kernels = [kernel(1.0, 2.0), kernel(4.0, 1.0), kernel(0.5, 1.0), kernel(0.5, 5.0)]
    rows = run(one_stage(kernels), timeline=True).timeline
    assert rows.start.tolist() == [0.0, 2.0, 3.0, 7.0, 9.0]
    assert rows.finish.tolist() == [0.0, 3.0, 7.0, 7.5, 9.5]


def test_the_host_runs_ahead_from_pass_to_pass(engine, schedule, pipeline, kernel):
    # One stage, two micro-batches: F launched at 1, B at 2, F at 3, B at 4; they run 1-3, 3-6, 6-8, 8-11.
    program = pipeline(schedule("1f1b", 1, 2))
    program = replace(
        program,
        blocks={(0, "F", 0): Block("F", (kernel(2.0, 1.0),)), (0, "B", 0): Block("B", (kernel(3.0, 1.0),))},
        synchronous_messages=True,
    )
    assert engine(program).iteration_s == 11.0


def test_a_message_that_synchronises_makes_the_device_wait_for_the_launch_after_it(engine, schedule, pipeline, kernel):
    def run(*, synchronous):
        program = pipeline(schedule("gpipe", 2, 2), comm=0.5)
        blocks = {key: Block(key[1], (kernel(2.0, 1.0),)) for key in program.blocks}
        return engine(replace(program, blocks=blocks, synchronous_messages=synchronous))

    # Stage 0: F 1-3, 3-5; stage 1: messages at 3.5 and 5.5: F 3.5-5.5, 5.5-7.5, B 7.5-9.5, 9.5-11.5;
    # stage 0: B 10-12 and 12-14. Nobody waits for a launch but the first time.
    assert run(synchronous=False).iteration_s == 14.0
    # Stage 0: F 1-3, 4-6; stage 1: F 4.5-6.5 (launched after 3.5), 7.5-9.5 (after 6.5), B launched ahead 9.5-11.5,
    # after which the message is sent and the host waits: B 12.5-14.5. Stage 0: B 13-15 (after 12), 16-18.
    execution = run(synchronous=True)
    assert execution.iteration_s == 18.0
    assert account(execution, 1) == {"gemm": 8.0, "host": 3.0, "pp": 0.5, "bubble": 6.5}


def test_what_is_queued_on_a_side_stream_starts_no_earlier_than_it_is_issued(engine, one_stage, kernel, bucket):
    # B launched at 1 and run 1-2; bucket launched at 4: 4-7
    execution = engine(one_stage([kernel(1.0, 1.0), bucket(3.0, host=3.0)]))
    assert execution.iteration_s == 7.0
    assert account(execution) == {"gemm": 1.0, "host": 1.0, "dp": 5.0}


def test_a_queued_task_takes_the_hosts_time_from_those_behind_it(engine, one_stage, kernel, bucket):
    # Bucket launched at 3: 3-4; B launched at 5: 5-6
    execution = engine(one_stage([bucket(1.0, host=3.0), kernel(1.0, 2.0)]))
    assert execution.iteration_s == 6.0
    assert account(execution) == {"gemm": 1.0, "host": 5.0}


def test_a_stage_attends_a_meeting_when_its_host_has_launched_it(engine, schedule, pipeline, kernel):
    program = pipeline(schedule("gpipe", 2, 1), members={"norm": (0, 1)})
    slow = kernel(1.0, 20.0, rendezvous="norm", category="dp")
    quick = kernel(1.0, 0.5, rendezvous="norm", category="dp")
    # Stage 0: F 0-1, B 4-6; stage 1: F 1-2, B 2-4. The meeting begins at 20, when stage 0 has launched its part.
    execution = engine(replace(program, epilogues=(Block("end", (slow,)), Block("end", (quick,)))))
    assert execution.iteration_s == 21.0
    assert account(execution, 0) == {"gemm": 3.0, "bubble": 3.0, "host": 14.0, "dp": 1.0}
    assert account(execution, 1) == {"gemm": 3.0, "bubble": 17.0, "dp": 1.0}


def test_after_a_task_that_synchronises_the_host_starts_afresh(engine, one_stage, kernel):
    # Launched at 1: 1-5. Without the synchronisation the last would start at 5.
    kernels = [kernel(4.0, 1.0, synchronises=True), kernel(1.0, 2.0)]
    execution = engine(one_stage(kernels))
    assert execution.iteration_s == 8.0
    assert account(execution) == {"gemm": 5.0, "host": 3.0}
    assert engine(coalesce(one_stage(kernels))).iteration_s == 8.0


def test_what_the_host_makes_the_device_wait_hides_what_overlap_slows(engine, one_stage, kernel, bucket):
    # Bucket 0-10 takes a fifth of the rate. Device-bound, 4 s of kernels take 5.
    execution = engine(one_stage([bucket(10.0), kernel(2.0, 0.0), kernel(2.0, 0.0)], share=0.2))
    assert account(execution) == pytest.approx({"gemm": 4.0, "interference": 1.0, "dp": 5.0})
    # Launched at 0.5 and 1: the device idles half a second of its own, and half a second remains of the slowdown.
    execution = engine(one_stage([bucket(10.0), kernel(2.0, 0.5), kernel(2.0, 0.5)], share=0.2))
    assert account(execution) == pytest.approx({"gemm": 4.0, "host": 0.5, "interference": 0.5, "dp": 5.0})
    # Launched at 3 and 6, the second ends at 8: slower kernels would only have filled the gaps.
    execution = engine(one_stage([bucket(10.0), kernel(2.0, 3.0), kernel(2.0, 3.0)], share=0.2))
    assert account(execution) == pytest.approx({"gemm": 4.0, "host": 4.0, "dp": 2.0})


def test_each_of_many_layouts_has_its_own_host(one_stage, kernel):
    hosts = [0.0, 0.5, 2.0]
    execution = closed_form(one_stage([kernel(1.0, np.array(hosts))] * 4))
    assert execution.iteration_s.tolist() == [4.0, 4.5, 9.0]
    assert execution.stages[0].seconds["host"].tolist() == [0.0, 0.5, 5.0]


def test_the_number_of_events_does_not_depend_on_the_host(schedule, pipeline, kernel, bucket):
    program = pipeline(schedule("1f1b", 2, 3), comm=0.25, members={"norm": (0, 1)})
    norm = kernel(0.5, 3.0, rendezvous="norm", synchronises=True)
    step = Block("step", (kernel(1.0, 2.0), bucket(2.0, host=1.0), kernel(1.0, 2.0, drains=("dp",)), norm))
    hosted = replace(program, epilogues=(step, step), synchronous_messages=True)
    free = Block("step", tuple(replace(task, host=0.0) for task in step.tasks))
    assert simulate(hosted).events == simulate(replace(hosted, epilogues=(free, free))).events
    assert simulate(hosted).events == expected_events(make_plan(hosted))
    assert simulate(hosted).iteration_s > simulate(replace(hosted, epilogues=(free, free))).iteration_s


@pytest.mark.parametrize("host", [-1.0, float("nan"), float("inf"), np.array([1.0, -1.0])])
def test_a_time_to_issue_that_is_none_is_refused(engine, one_stage, kernel, host):
    with pytest.raises(ProgramError, match="issue"):
        engine(one_stage([kernel(1.0, host)]))


def test_without_host_times_the_host_is_no_category(engine, one_stage, kernel):
    assert "host" not in engine(one_stage([kernel(1.0, 0.0)])).stages[0].seconds
