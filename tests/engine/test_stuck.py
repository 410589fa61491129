"""Programs that can never finish, or make no sense, are refused and say where; none of them hangs."""

from dataclasses import replace

import numpy as np
import pytest

from shardsim.engine.des import simulate
from shardsim.engine.listing import listing
from shardsim.errors import ProgramError
from shardsim.values.program import Block, Pair, Pass


def refused(engine, program):
    with pytest.raises(ProgramError) as error:
        engine(program)
    return str(error.value)


def with_order(program, stage, order):
    orders = list(program.schedule.orders)
    orders[stage] = tuple(order)
    return replace(program, schedule=replace(program.schedule, orders=tuple(orders)))


def test_stages_that_wait_for_each_other_are_named(engine, schedule, pipeline):
    # Stage 0 wants B0 back before it sends F1, stage 1 wants F1 before it runs B0.
    program = pipeline(schedule("gpipe", 2, 2))
    program = with_order(program, 0, [Pass("F", 0), Pass("B", 0), Pass("F", 1), Pass("B", 1)])
    assert refused(engine, program).splitlines() == [
        "the program can never finish: 2 of 2 stages are stuck",
        "stage 0 in B0.0: waits for B0.0 of stage 1",
        "stage 1 in F1.0: waits for F1.0 of stage 0",
        "they wait in a circle: stage 0 -> stage 1 -> stage 0",
    ]


def test_a_pass_that_nobody_runs_holds_up_those_after_it(engine, schedule, pipeline):
    program = with_order(pipeline(schedule("1f1b", 3, 1)), 1, [Pass("F", 0)])
    assert "stage 0 in B0.0: waits for B0.0 of stage 1" in refused(engine, program)


def test_a_message_that_the_program_does_not_have_is_named(engine, schedule, pipeline):
    program = pipeline(schedule("1f1b", 2, 2))
    program = replace(program, messages={key: value for key, value in program.messages.items() if key[1] == "B"})
    assert (
        "stage 1 is stuck in its F passes of chunk 0: nobody sends them a message from chunk 0 of stage 0"
        in refused(engine, program)
    )


def test_a_backward_pass_before_its_own_forward_pass_is_named(engine, schedule, pipeline):
    program = with_order(pipeline(schedule("1f1b", 1, 1)), 0, [Pass("B", 0), Pass("F", 0)])
    assert "stage 0 is stuck in B0.0: it needs F0.0" in refused(engine, program)


def test_a_stage_that_waits_for_the_gradient_of_a_split_backward_pass_is_named(engine, schedule, pipeline):
    program = with_order(pipeline(schedule("1f1b", 2, 1)), 1, [Pass("F", 0)])
    program = with_order(program, 0, [Pass("F", 0), Pass("I", 0), Pass("W", 0)])
    program = replace(program, blocks={**program.blocks, **dict.fromkeys([(0, "I", 0), (0, "W", 0)], Block("x", ()))})
    assert refused(engine, program).splitlines()[1:] == [
        "stage 0 in I0.0: waits for B0.0 of stage 1",
        "stage 0 waits for stage 1, which has finished: what it waits for was never sent or attended",
    ]


@pytest.mark.parametrize(
    ("order", "complaint"),
    [
        ([Pass("F", 0), Pass("W", 0), Pass("I", 0)], "stage 0 is stuck in W0.0: it needs I0.0"),
        ([Pass("F", 0), Pass("B", 0), Pass("W", 0)], "stage 0 is stuck in W0.0: it needs I0.0"),
        ([Pass("I", 0), Pass("F", 0)], "stage 0 is stuck in I0.0: it needs F0.0"),
        ([Pass("F", 0), Pass("I", 0), Pass("B", 0)], "stage 0 runs B0.0 twice"),
        ([Pass("F", 0), Pass("B", 0), Pass("I", 0)], "stage 0 runs I0.0 twice"),
        ([Pass("F", 0), Pass("I", 0), Pass("I", 0)], "stage 0 runs I0.0 twice"),
        ([Pass("F", 0), Pass("I", 0), Pass("W", 0), Pass("W", 0)], "stage 0 runs W0.0 twice"),
        ([Pair(Pass("F", 0), Pass("B", 0))], "stage 0 is stuck in B0.0: it needs F0.0"),
        ([Pass("F", 0), Pair(Pass("F", 0), Pass("B", 0))], "stage 0 runs F0.0 twice"),
        ([Pass("F", 0), Pair(Pass("F", 1), Pass("I", 0))], "not a forward and a whole backward pass"),
        ([Pass("F", 0), Pair(Pass("B", 0), Pass("F", 1))], "not a forward and a whole backward pass"),
    ],
)
def test_parts_of_a_backward_pass_and_pairs_in_an_impossible_order_are_named(
    engine, schedule, pipeline, order, complaint
):
    program = pipeline(schedule("1f1b", 1, 1))
    program = replace(program, blocks={**program.blocks, **dict.fromkeys([(0, "I", 0), (0, "W", 0)], Block("x", ()))})
    assert complaint in refused(engine, with_order(program, 0, order))


def test_a_pair_without_a_block_is_named(engine, schedule, pipeline):
    order = [Pass("F", 0), Pair(Pass("F", 1), Pass("B", 0)), Pass("B", 1)]
    program = with_order(pipeline(schedule("1f1b", 1, 2)), 0, order)
    message = refused(engine, replace(program, pairs={}))
    assert message == "stage 0 runs pairs of chunks 0 and 0, but the program has no pair (0, 0, 0)"


def test_a_pair_that_needs_on_another_stage_what_it_sends_itself_is_named(engine, schedule, pipeline):
    """The gradient that the pair waits for follows from the forward pass beside it."""
    program = with_order(pipeline(schedule("1f1b", 2, 1)), 0, [Pair(Pass("F", 0), Pass("B", 0))])
    assert refused(engine, program).splitlines() == [
        "the program can never finish: 2 of 2 stages are stuck",
        "stage 0 in F0.0 & B0.0: waits for B0.0 of stage 1",
        "stage 1 in F0.0: waits for F0.0 of stage 0",
        "they wait in a circle: stage 0 -> stage 1 -> stage 0",
    ]


def test_chains_that_share_a_chunk_are_refused(engine, schedule, pipeline):
    program = pipeline(schedule("1f1b", 2, 1))
    doubled = replace(program.schedule, chains=(*program.schedule.chains, ((0, 0), (1, 0))))
    assert "have a chunk of a stage in common" in refused(engine, replace(program, schedule=doubled))


def test_a_meeting_that_a_member_never_attends_is_named(engine, schedule, pipeline, task):
    program = pipeline(schedule("1f1b", 2, 1), members={"embedding": (0, 1)})
    meet = Block("epilogue", (task(1.0, rendezvous="embedding"),))
    message = refused(engine, replace(program, epilogues=(meet, Block("epilogue", ()))))
    assert message.splitlines()[1:] == [
        "stage 0 in epilogue: waits for meeting 1 'embedding' of stages 0, 1",
        "stage 0 waits for stage 1, which has finished: what it waits for was never sent or attended",
    ]


@pytest.mark.parametrize(
    ("members", "more", "complaint"),
    [
        ({}, {"rendezvous": "norm"}, "nobody else attends the meeting 'norm'"),
        ({"norm": (1,)}, {"rendezvous": "norm"}, "which is of stages (1,)"),
        ({"norm": (0, 1)}, {"rendezvous": "norm", "blocking": False}, "has to block"),
        ({}, {"waits": (0,)}, "not an earlier task"),
        ({}, {"waits": (-1,)}, "not an earlier task"),
        ({}, {"seconds": -1.0}, "not a finite, non-negative time"),
        ({}, {"seconds": float("nan")}, "not a finite, non-negative time"),
        ({}, {"seconds": np.array([1.0, -1.0])}, "not a finite, non-negative time"),
    ],
)
def test_tasks_that_make_no_sense_are_refused(engine, schedule, pipeline, task, members, more, complaint):
    epilogue = (replace(task(1.0), **more),)
    assert complaint in refused(engine, pipeline(schedule("1f1b", 2, 1), epilogue=epilogue, members=members))


def test_all_problems_are_told_at_once(engine, schedule, pipeline):
    program = pipeline(schedule("1f1b", 2, 1))
    program = with_order(program, 0, [Pass("F", 0), Pass("F", 0), Pass("F", 0, 3), Pass("W", 0), Pass("B", 0)])
    message = refused(engine, program)
    assert "runs F0.0 twice" in message
    assert "F passes of chunk 3, which it does not hold" in message
    assert "has no block (0, 'W', 0)" in message


def test_epilogues_must_be_as_many_as_stages(engine, schedule, pipeline):
    program = pipeline(schedule("1f1b", 2, 1))
    assert "1 epilogues for 2 stages" in refused(engine, replace(program, epilogues=program.epilogues[:1]))
    assert "1 prologues for 2 stages" in refused(engine, replace(program, prologues=program.epilogues[:1]))


def test_a_chunk_that_the_stage_does_not_hold_is_refused(engine, schedule, pipeline):
    program = pipeline(schedule("1f1b", 1, 1))
    program = replace(program, blocks={**program.blocks, (0, "F", 1): program.blocks[0, "F", 0]})
    program = with_order(program, 0, [*program.schedule.orders[0], Pass("F", 0, 1)])
    assert "which it does not hold" in refused(engine, program)


@pytest.mark.parametrize("scalar_engine", [listing, simulate])
def test_engines_for_one_layout_refuse_arrays(scalar_engine, schedule, pipeline):
    assert "use the closed form" in refused(scalar_engine, pipeline(schedule("1f1b", 2, 1), np.array([1.0, 2.0])))


def test_arrays_of_different_lengths_are_refused(engine, schedule, pipeline):
    program = pipeline(schedule("1f1b", 2, 1), np.ones(2), np.ones(3))
    assert "arrays of different shapes" in refused(engine, program)
