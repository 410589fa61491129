"""Split backward passes, pairs, chains, first and last passes, against times worked out by hand, on every engine."""

from dataclasses import replace

import pytest

from shardsim.engine.des import simulate
from shardsim.engine.listing import listing
from shardsim.values.program import Block, Pair, Pass, PipelineSchedule
from shardsim.values.results import PASS_KINDS


def account(execution, stage=0):
    return {category: value for category, value in execution.stages[stage].seconds.items() if value}


def two_ways(orders, microbatches=2):
    """Two stages of two chunks; micro-batches of chunk 0 come in at stage 0, those of chunk 1 at stage 1."""
    return PipelineSchedule("two ways", orders, (((0, 0), (1, 0)), ((1, 1), (0, 1))), microbatches)


@pytest.fixture
def block(task):
    def make(seconds, category="gemm"):
        return Block("made", (task(seconds, category=category),))

    return make


def test_a_gradient_goes_on_before_the_weight_gradient_is_computed(engine, schedule, pipeline):
    split = ((Pass("F", 0), Pass("I", 0), Pass("W", 0)),) * 2
    program = pipeline(
        replace(schedule("1f1b", 2, 1), orders=split), comm=0.25, input_gradient=1.5, weight_gradient=4.0
    )
    # Stage 0: F 0-1; stage 1: F 1.25-2.25, I 2.25-3.75, W 3.75-7.75; stage 0: I 4-5.5, W 5.5-9.5.
    execution = engine(program)
    assert execution.iteration_s == 9.5
    assert account(execution, 0) == {"gemm": 6.5, "pp": 0.25, "bubble": 2.75}
    assert account(execution, 1) == {"gemm": 6.5, "pp": 0.25, "bubble": 1.0 + 1.75}


def test_a_stage_may_take_a_whole_gradient_from_one_that_splits_its_own(engine, schedule, pipeline):
    orders = ((Pass("F", 0), Pass("B", 0)), (Pass("F", 0), Pass("I", 0), Pass("W", 0)))
    program = pipeline(replace(schedule("1f1b", 2, 1), orders=orders), weight_gradient=7.0)
    # F 0-1, F 1-2, I 2-3; then B 3-5 on stage 0 beside W 3-10 on stage 1.
    assert engine(program).iteration_s == 10.0


def test_a_pair_waits_for_the_inputs_of_both_and_sends_the_outputs_of_both_when_it_ends(engine, pipeline):
    orders = (
        (Pass("F", 0, 0), Pass("F", 0, 1), Pair(Pass("F", 1, 0), Pass("B", 0, 1)), Pass("B", 0, 0), Pass("B", 1, 0)),
        (Pass("F", 0, 1), Pass("F", 0, 0), Pass("B", 0, 0), Pass("F", 1, 0), Pass("B", 1, 0), Pass("B", 0, 1)),
    )
    program = pipeline(two_ways(orders, 3), comm=0.5, pair=2.5)
    # Stage 0: F0 0-1, F0.1 1.5-2.5, pair 2.5-5; stage 1: F0.1 0-1, F0 1.5-2.5, B0 2.5-4.5, then at 5.5 the messages
    # of the pair: F1 5.5-6.5, B1 6.5-8.5, B0.1 8.5-10.5. Stage 0: B0, whose message came at 5, 5-7, and B1 9-11.
    execution = engine(program)
    assert execution.iteration_s == 11.0
    assert account(execution, 0) == {"gemm": 1 + 1 + 2.5 + 2 + 2, "pp": 0.5 + 0.5, "bubble": 1.5}
    assert account(execution, 1) == {"gemm": 9.0, "pp": 0.5 + 0.5, "bubble": 0.5 + 0.5}


def test_a_pair_waits_for_whichever_message_comes_last(engine, pipeline):
    orders = (
        (Pass("F", 0, 0), Pair(Pass("F", 0, 1), Pass("B", 0, 0)), Pass("B", 0, 1)),
        (Pass("F", 0, 1), Pass("F", 0, 0), Pass("B", 0, 0), Pass("B", 0, 1)),
    )
    program = pipeline(two_ways(orders), comm=0.5)
    # Stage 1: F0.1 0-1, F0 1.5-2.5, B0 2.5-4.5; its gradient reaches stage 0 at 5: pair 5-8,
    # B0.1 8-10 on stage 0. Stage 1: B0.1 10.5-12.5.
    execution = engine(program)
    assert execution.iteration_s == 12.5
    # It waits for the gradient from 1 to 5, half a second of it on its way; the other message is there by then.
    assert account(execution, 0) == {"gemm": 6.0, "pp": 0.5, "bubble": 3.5 + 2.5}


@pytest.mark.parametrize("run", [listing, simulate])
def test_tasks_of_a_pair_carry_the_names_of_both_passes(run, pipeline):
    orders = (
        (Pass("F", 0, 0), Pair(Pass("F", 0, 1), Pass("B", 0, 0)), Pass("B", 0, 1)),
        (Pass("F", 0, 1), Pass("F", 0, 0), Pass("B", 0, 0), Pass("B", 0, 1)),
    )
    rows = run(pipeline(two_ways(orders)), timeline=True).timeline
    mine = rows.stage == 0
    assert [PASS_KINDS[kind] for kind in rows.kind[mine]] == ["F", "F&B", "B"]
    assert rows.microbatch[mine].tolist() == [0, 0, 0]
    assert rows.chunk[mine].tolist() == [0, 1, 1]
    assert rows.paired[mine].tolist() == [[-1, -1], [0, 0], [-1, -1]]
    assert rows.chains == (((0, 0), (1, 0)), ((1, 1), (0, 1)))


def test_micro_batches_of_two_chains_with_one_number_do_not_meet(engine, pipeline):
    orders = (
        (Pass("F", 0, 0), Pass("F", 0, 1), Pass("B", 0, 1), Pass("B", 0, 0)),
        (Pass("F", 0, 1), Pass("F", 0, 0), Pass("B", 0, 0), Pass("B", 0, 1)),
    )
    # Both stages: F 0-1, F 1-2, B 2-4, B 4-6: each has the other's message when it needs it.
    execution = engine(pipeline(two_ways(orders)))
    assert execution.iteration_s == 6.0
    assert [stage.seconds["bubble"] for stage in execution.stages] == [0.0, 0.0]


def test_at_the_turn_of_a_v_a_stage_passes_on_to_itself_without_a_message(engine, pipeline):
    orders = (
        (Pass("F", 0, 0), Pass("F", 0, 1), Pass("I", 0, 1), Pass("W", 0, 1), Pass("B", 0, 0)),
        (Pass("F", 0, 0), Pass("F", 0, 1), Pass("I", 0, 1), Pass("B", 0, 0), Pass("W", 0, 1)),
    )
    chain = ((0, 0), (1, 0), (1, 1), (0, 1))
    program = pipeline(PipelineSchedule("v", orders, (chain,), 1), comm=0.5)
    # Stage 0: F 0-1; stage 1: F 1.5-2.5, F 2.5-3.5; stage 0: F 4-5, I 5-6, W 6-7; stage 1: I 6.5-7.5, B 7.5-9.5,
    # W 9.5-10.5; stage 0: B 10-12.
    execution = engine(program)
    assert execution.iteration_s == 12.0
    assert account(execution, 1) == {"gemm": 6.0, "pp": 1.0, "bubble": 1.0 + 2.5 + 1.5}
    turn = {key: message for key, message in program.messages.items() if key not in {(1, "F", 0), (1, "B", 1)}}
    assert engine(replace(program, messages=turn)) == execution


def test_the_first_and_the_last_pass_of_a_kind_run_blocks_of_their_own(engine, schedule, pipeline, block):
    program = pipeline(schedule("1f1b", 1, 3))
    program = replace(
        program,
        first_blocks={(0, "F", 0): block(10.0, "dp"), (0, "B", 0): block(20.0, "zero")},
        last_blocks={(0, "F", 0): block(30.0, "ep"), (0, "B", 0): block(40.0, "cp")},
    )
    assert account(engine(program)) == {"gemm": 3.0, "dp": 10.0, "zero": 20.0, "ep": 30.0, "cp": 40.0}


def test_a_pass_that_is_the_first_and_the_last_runs_the_block_of_the_last(engine, schedule, pipeline, block):
    program = replace(pipeline(schedule("1f1b", 1, 1)), first_blocks={(0, "F", 0): block(10.0, "dp")})
    assert account(engine(program)) == {"dp": 10.0, "gemm": 2.0}
    program = replace(program, last_blocks={(0, "F", 0): block(30.0, "ep")})
    assert account(engine(program)) == {"ep": 30.0, "gemm": 2.0}


def test_in_a_pair_the_first_and_the_last_pass_are_like_any_other(engine, pipeline, block):
    orders = (
        (Pass("F", 0, 0), Pair(Pass("F", 0, 1), Pass("B", 0, 0)), Pass("B", 0, 1)),
        (Pass("F", 0, 1), Pass("F", 0, 0), Pass("B", 0, 0), Pass("B", 0, 1)),
    )
    program = pipeline(two_ways(orders))
    more = {(0, kind, chunk): block(9.0, "dp") for kind, chunk in (("F", 1), ("B", 0))}
    assert engine(replace(program, first_blocks=more, last_blocks=more)) == engine(program)


def test_the_last_weight_gradient_releases_its_gradients(engine, schedule, pipeline, task):
    orders = ((Pass("F", 0), Pass("F", 1), Pass("I", 0), Pass("W", 0), Pass("I", 1), Pass("W", 1)),)
    bucket = task(3.0, "bucket", stream="dp", category="dp", blocking=False)
    program = pipeline(replace(schedule("1f1b", 1, 2), orders=orders))
    program = replace(program, last_blocks={(0, "W", 0): Block("last W", (task(1.0), bucket))})
    execution = engine(program)
    assert execution.iteration_s == 9.0
    assert account(execution) == {"gemm": 6.0, "dp": 3.0}
