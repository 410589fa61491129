"""Side streams, drains, waits, meetings and messages, against times worked out by hand, on every engine."""

from dataclasses import replace

import pytest

from shardsim.engine.listing import listing
from shardsim.values.program import Block, Pass, PipelineSchedule


@pytest.fixture
def one_stage(schedule, pipeline):
    """One forward (1 s) and one backward pass, the latter and the epilogue made of the given tasks."""

    def make(backward, epilogue=()):
        program = pipeline(schedule("1f1b", 1, 1), last=tuple(backward))
        return replace(program, epilogues=(Block("epilogue", tuple(epilogue)),))

    return make


def account(execution, stage=0):
    return {category: value for category, value in execution.stages[stage].seconds.items() if value}


def test_gradient_reduction_hides_behind_the_backward_pass_and_its_rest_is_exposed(engine, one_stage, task):
    reduce = task(1.5, "bucket", stream="dp", category="dp", blocking=False)
    program = one_stage(
        [task(1.0, "B1"), reduce, task(1.0, "B2"), reduce],
        [task(0.25, "adam", category="optimizer", drains=("dp",))],
    )
    # F 0-1, B1 1-2, first bucket 2-3.5, B2 2-3, second bucket 3.5-5, optimizer 5-5.25
    execution = engine(program)
    assert execution.iteration_s == 5.25
    assert account(execution) == {"gemm": 3.0, "dp": 2.0, "optimizer": 0.25}


def test_reduction_that_ends_before_it_is_needed_costs_nothing(engine, one_stage, task):
    program = one_stage(
        [task(0.5, "bucket", stream="dp", category="dp", blocking=False), task(2.0, "B")],
        [task(0.25, "adam", category="optimizer", drains=("dp",))],
    )
    execution = engine(program)
    assert execution.iteration_s == 3.25
    assert account(execution) == {"gemm": 3.0, "optimizer": 0.25}


def test_a_prologue_runs_before_the_first_pass_and_what_it_queues_is_waited_for(engine, one_stage, task):
    gather = task(2.0, "gather", stream="dp", category="dp", blocking=False)
    program = one_stage([task(1.0, "B")])
    waiting = task(1.0, "F", drains=("dp",))
    program = replace(
        program, prologues=(Block("prologue", (gather,)),), first_blocks={(0, "F", 0): Block("first", (waiting,))}
    )
    # gather 0-2, F 2-3, B 3-4
    execution = engine(program)
    assert execution.iteration_s == 4.0
    assert account(execution) == {"gemm": 2.0, "dp": 2.0}


def test_a_task_waits_for_the_one_it_names_and_no_other(engine, one_stage, task):
    program = one_stage(
        [
            task(2.0, "prefetch", stream="ep", category="ep", blocking=False),
            task(5.0, "bucket", stream="dp", category="dp", blocking=False),
            task(0.5, "B1"),
            task(1.0, "B2", waits=(0,)),
        ]
    )
    # F 0-1, prefetch 1-3, bucket 1-6, B1 1-1.5, B2 3-4; the bucket outlasts the stage by 2 s
    execution = engine(program)
    assert execution.iteration_s == 6.0
    assert account(execution) == {"gemm": 2.5, "ep": 1.5, "dp": 2.0}


def test_a_queued_task_may_wait_for_another_stream(engine, one_stage, task):
    program = one_stage(
        [
            task(2.0, "gather", stream="ep", category="ep", blocking=False),
            task(1.0, "bucket", stream="dp", category="dp", blocking=False, waits=(0,)),
            task(0.5, "norm", stream="cp", category="cp", blocking=False, drains=("dp",)),
        ]
    )
    # F 0-1, gather 1-3, bucket 3-4, norm 4-4.5
    execution = engine(program)
    assert execution.iteration_s == 4.5
    assert account(execution) == {"gemm": 1.0, "ep": 2.0, "dp": 1.0, "cp": 0.5}


def test_waits_between_three_streams_and_a_drain_of_two_of_them(engine, one_stage, task):
    def queued(stream, seconds, **more):
        return task(seconds, stream, stream=stream, category=stream, blocking=False, **more)

    program = one_stage(
        [
            queued("tp", 2.0),
            queued("dp", 1.0, waits=(0,)),
            queued("ep", 4.0),
            queued("tp", 1.0, waits=(1,)),
            queued("dp", 3.0, drains=("ep",)),
            task(0.5),
            task(0.5, waits=(3,)),
            task(0.5, drains=("ep", "tp")),
        ],
        [task(0.25, category="optimizer", drains=("dp",))],
    )
    # F 0-1; tp 1-3, dp 3-4, ep 1-5, tp 4-5, dp 5-8; blocking 1-1.5, 5-5.5, 5.5-6, and the step 8-8.25.
    execution = engine(program)
    assert execution.iteration_s == 8.25
    assert account(execution) == {"gemm": 2.5, "tp": 3.5, "dp": 2.0, "optimizer": 0.25}


def test_waits_limit_how_many_gathers_are_under_way(engine, one_stage, task):
    def gather(**more):
        return task(1.0, "gather", stream="dp", category="dp", blocking=False, **more)

    # The parameters of a layer are gathered while the one before it is computed, and no earlier: what the third
    # gather would fill is in use until the first layer is through.
    program = one_stage(
        [
            gather(),
            gather(),
            task(3.0, "layer 0", waits=(0,)),
            gather(),
            task(0.25, "layer 1", waits=(1,)),
            task(3.0, "layer 2", waits=(3,)),
        ]
    )
    # F 0-1; gathers 1-2, 2-3; layer 0 2-5; gather 5-6; layer 1 5-5.25; layer 2 6-9.
    execution = engine(program)
    assert execution.iteration_s == 9.0
    assert account(execution) == {"gemm": 7.25, "dp": 1.0 + 0.75}


def test_a_blocking_task_keeps_the_order_of_its_own_stream(engine, one_stage, task):
    program = one_stage(
        [
            task(2.0, "bucket 0", stream="dp", category="dp", blocking=False),
            task(1.0, "bucket 1", stream="dp", category="dp"),
        ]
    )
    execution = engine(program)
    assert execution.iteration_s == 4.0
    assert account(execution) == {"gemm": 1.0, "dp": 3.0}


def test_side_streams_go_on_from_one_pass_to_the_next(engine, schedule, pipeline, task):
    bucket = task(4.0, "bucket", stream="dp", category="dp", blocking=False)
    program = pipeline(schedule("1f1b", 1, 2))
    program = replace(program, blocks={**program.blocks, (0, "B", 0): Block("B", (bucket, task(2.0)))})
    # F 0-1, B 1-3 and its bucket 1-5, F 3-4, B 4-6 and its bucket 5-9
    execution = engine(program)
    assert execution.iteration_s == 9.0
    assert account(execution) == {"gemm": 6.0, "dp": 3.0}


def test_only_the_last_pass_of_its_kind_runs_the_last_block(engine, schedule, pipeline, task):
    execution = engine(pipeline(schedule("1f1b", 1, 3), last=(task(10.0, category="recompute"),)))
    assert account(execution) == {"gemm": 7.0, "recompute": 10.0}


def test_waiting_is_pipeline_communication_while_the_message_is_under_way_and_bubble_before(engine, schedule, pipeline):
    # F 0-1 on stage 0, message 1-1.5, F 1.5-2.5 and B 2.5-4.5 on stage 1, message 4.5-5, B 5-7
    execution = engine(pipeline(schedule("1f1b", 2, 1), comm=0.5))
    assert execution.iteration_s == 7.0
    assert account(execution, 0) == {"gemm": 3.0, "pp": 0.5, "bubble": 3.5}
    assert account(execution, 1) == {"gemm": 3.0, "pp": 0.5, "bubble": 3.5}


def test_a_message_that_arrives_during_a_pass_costs_only_what_is_left_of_it(engine, schedule, pipeline):
    # The second micro-batch reaches stage 1 at 2.5, which is busy from 1.5 to 2.25 and waits 0.25 s.
    program = pipeline(schedule("gpipe", 2, 2), comm=0.5)
    short = Block("F", (replace(program.blocks[1, "F", 0].tasks[0], seconds=0.75),))
    execution = engine(replace(program, blocks={**program.blocks, (1, "F", 0): short}))
    assert execution.stages[1].seconds["pp"] == 0.75


def test_chunks_of_one_stage_pass_micro_batches_on_without_a_message(engine, pipeline):
    order = tuple(Pass(kind, 0, chunk) for kind, chunks in (("F", (0, 1)), ("B", (1, 0))) for chunk in chunks)
    schedule = PipelineSchedule("two chunks", (order,), (((0, 0), (0, 1)),), 1)
    program = replace(pipeline(schedule, comm=100.0), messages={})
    assert engine(program).iteration_s == 6.0


def test_a_meeting_starts_when_the_last_member_arrives_and_the_first_idles(engine, schedule, pipeline, task):
    meet = task(0.5, "embedding", stream="pp", category="tp", rendezvous="embedding")
    program = pipeline(schedule("1f1b", 3, 1), members={"embedding": (0, 2)})
    step = task(2.0, "adam", category="optimizer")
    ends = [Block("epilogue", (meet,)), Block("epilogue", ()), Block("epilogue", (meet, step))]
    execution = engine(replace(program, epilogues=tuple(ends)))
    # Stage 2 is through at 5, stage 0 at 9, where the meeting begins.
    assert execution.iteration_s == 11.5
    assert account(execution, 2) == {"gemm": 3.0, "bubble": 6.0, "tp": 0.5, "optimizer": 2.0}
    assert account(execution, 1) == {"gemm": 3.0, "bubble": 8.5}
    assert account(execution, 0) == {"gemm": 3.0, "bubble": 6.0 + 2.0, "tp": 0.5}


def test_stages_that_meet_twice_meet_in_order(engine, schedule, pipeline, task):
    meet = task(1.0, "norm", stream="pp", category="tp", rendezvous="norm")
    program = pipeline(schedule("1f1b", 2, 1), epilogue=(meet, task(2.0), meet), members={"norm": (0, 1)})
    assert engine(program).iteration_s == 6.0 + 1.0 + 2.0 + 1.0


def test_flop_of_all_passes_are_counted(engine, schedule, pipeline):
    execution = engine(pipeline(schedule("1f1b", 2, 3), tasks=4))
    assert [stage.flop for stage in execution.stages] == [3 * 2 * 4.0] * 2


def test_a_run_without_tasks_takes_no_time(engine, schedule, pipeline):
    program = pipeline(schedule("1f1b", 2, 2))
    empty = replace(program, blocks={key: Block("nothing", ()) for key in program.blocks})
    assert engine(empty).iteration_s == 0.0
    assert listing(empty, timeline=True).timeline.start.size == 0
