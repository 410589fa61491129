"""Runs of tasks that touch nothing shared become one task."""

from dataclasses import replace

import numpy as np
import pytest

from shardsim.errors import ProgramError
from shardsim.program.coalesce import coalesce
from shardsim.values.program import Block, Pair, Pass, PipelineSchedule, Program, Task

SCHEDULE = PipelineSchedule("1f1b", ((Pass("F", 0), Pass("B", 0)),), (((0, 0),),), 1)


def kernel(seconds, category="gemm", **more):
    return Task(f"k{seconds}", more.pop("stream", "compute"), category, seconds, **more)


def coalesced(*tasks, epilogue=()):
    block = Block("pass", tasks)
    program = Program(
        schedule=SCHEDULE,
        blocks={(0, "F", 0): block, (0, "B", 0): Block("pass", (kernel(1.0),))},
        last_blocks={},
        epilogues=(Block("epilogue", epilogue),),
        messages={},
        multiplicity=1,
        rendezvous_members={"norm": (0,)},
    )
    return coalesce(program).blocks[0, "F", 0].tasks


def test_a_whole_pass_of_blocking_kernels_is_one_task_with_its_seconds_by_category():
    (task,) = coalesced(
        kernel(1.0, flop=10.0), kernel(0.25, "tp", stream="tp"), kernel(2.0, flop=5.0), kernel(0.5, "memory-bound")
    )
    assert task.seconds == 3.75
    assert task.flop == 15.0
    assert task.parts == {"gemm": 3.0, "tp": 0.25, "memory-bound": 0.5}
    assert task.blocking


def test_kernels_of_one_category_keep_it():
    (task,) = coalesced(kernel(1.0), kernel(2.0))
    assert (task.category, task.parts) == ("gemm", {})


def test_a_single_kernel_stays_as_it_is():
    lone = kernel(1.0)
    assert coalesced(lone) == (lone,)


def test_a_queued_task_splits_the_run_at_its_place_of_issue():
    queued = kernel(3.0, "dp", stream="dp", blocking=False)
    before, kept, after = coalesced(kernel(1.0), kernel(1.0), queued, kernel(2.0), kernel(2.0))
    assert (before.seconds, kept, after.seconds) == (2.0, queued, 4.0)


@pytest.mark.parametrize("shared", [{"drains": ("dp",)}, {"rendezvous": "norm"}])
def test_tasks_that_touch_what_is_shared_stay_apart(shared):
    tasks = coalesced(kernel(1.0), kernel(2.0, **shared), kernel(3.0))
    assert [task.seconds for task in tasks] == [1.0, 2.0, 3.0]


def test_a_blocking_task_on_a_stream_with_queued_tasks_stays_apart():
    queued = kernel(9.0, "dp", stream="dp", blocking=False)
    tasks = coalesced(kernel(1.0), kernel(2.0, stream="dp"), kernel(3.0), epilogue=(queued,))
    assert [task.seconds for task in tasks] == [1.0, 2.0, 3.0]


def test_waits_follow_the_tasks_that_they_name():
    queued = kernel(3.0, "dp", stream="dp", blocking=False)
    tasks = coalesced(kernel(1.0), kernel(1.0), queued, kernel(1.0), kernel(1.0), kernel(1.0, waits=(2,)))
    assert [task.waits for task in tasks] == [(), (), (), (1,)]


def a_program_with_a_pair(*tasks):
    """First passes, last passes and pairs, each made of the given tasks, of a stage that runs two micro-batches."""
    order = (Pass("F", 0), Pair(Pass("F", 1), Pass("B", 0)), Pass("B", 1))
    block = Block("made", tasks)
    return Program(
        schedule=PipelineSchedule("pair", (order,), (((0, 0),),), 2),
        blocks={(0, kind, 0): Block("pass", (kernel(1.0),)) for kind in "FB"},
        last_blocks={(0, "B", 0): block},
        epilogues=(Block("epilogue", ()),),
        messages={},
        multiplicity=1,
        rendezvous_members={},
        first_blocks={(0, "F", 0): block},
        pairs={(0, 0, 0): block},
    )


def test_first_passes_last_passes_and_pairs_are_merged_as_well():
    merged = coalesce(a_program_with_a_pair(kernel(1.0), kernel(2.0)))
    for block in (merged.first_blocks[0, "F", 0], merged.last_blocks[0, "B", 0], merged.pairs[0, 0, 0]):
        assert [task.seconds for task in block.tasks] == [3.0]


def test_a_stream_that_only_a_pair_queues_on_is_a_side_stream_everywhere():
    program = a_program_with_a_pair(kernel(1.0), kernel(2.0, stream="ep"))
    queued = kernel(9.0, "ep", stream="ep", blocking=False)
    merged = coalesce(replace(program, pairs={(0, 0, 0): Block("pair", (queued,))}))
    assert [task.seconds for task in merged.first_blocks[0, "F", 0].tasks] == [1.0, 2.0]


def test_arrays_over_layouts_are_summed_element_by_element():
    (task,) = coalesced(kernel(1.0), kernel(np.array([1.0, 2.0]), "tp"), kernel(np.array([0.5, 0.5])))
    np.testing.assert_array_equal(task.seconds, [2.5, 3.5])
    np.testing.assert_array_equal(task.parts["gemm"], [1.5, 1.5])


def test_a_wait_for_a_blocking_task_is_refused():
    with pytest.raises(ProgramError, match="waits for task number 0"):
        coalesced(kernel(1.0), replace(kernel(1.0), waits=(0,)))
