"""The critical path of programs whose path is known, and what shortens it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardsim.engine.critical import critical_path
from shardsim.engine.listing import listing
from shardsim.engine.what_if import changeable, read_change, what_if
from shardsim.errors import InputError, ProgramError
from shardsim.values.critical import Adjustment
from shardsim.values.program import Block


def told(path):
    """Stage, pass, name, start and length of every segment."""
    return [(one.stage, one.work, one.name, one.start, one.seconds) for one in path.segments]


def on_one_stage(pipeline, schedule, *tasks, epilogue=(), **more):
    """One forward pass of these tasks, and nothing else but an epilogue."""
    program = pipeline(schedule("1f1b", 1, 1), backward=0.0, epilogue=epilogue)
    return replace(program, blocks={**program.blocks, (0, "F", 0): Block("F", tasks)}, **more)


def test_of_two_stages_the_path_goes_to_the_last_and_back(pipeline, schedule):
    path = critical_path(pipeline(schedule("1f1b", 2, 2), forward=1.0, backward=2.0, comm=0.25))
    assert told(path) == [
        (0, "F0.0", "F0", 0.0, 1.0),
        (0, "F0.0", "message", 1.0, 0.25),
        (1, "F0.0", "F0", 1.25, 1.0),
        (1, "B0.0", "B0", 2.25, 2.0),
        (1, "F1.0", "F0", 4.25, 1.0),
        (1, "B1.0", "B0", 5.25, 2.0),
        (1, "B1.0", "message", 7.25, 0.25),
        (0, "B1.0", "B0", 7.5, 2.0),
    ]
    assert path.iteration_s == 9.5
    assert path.hops == 2
    assert path.by_category == {"gemm": 9.0, "pp": 0.5}
    assert path.by_stage == {0: 3.25, 1: 6.25}


def test_what_is_queued_is_on_the_path_where_the_end_waits_for_it(pipeline, schedule, task):
    reduce = task(5.0, "reduce", stream="dp", category="dp", blocking=False)
    tasks = (task(1.0, "one"), reduce, task(2.0, "two"))
    step = task(0.5, "step", category="optimizer", drains=("dp",))
    path = critical_path(on_one_stage(pipeline, schedule, *tasks, epilogue=(step,)))
    assert [segment.name for segment in path.segments] == ["one", "reduce", "step"]
    assert path.by_category == {"dp": 5.0, "gemm": 1.0, "optimizer": 0.5}


def test_what_is_queued_is_off_the_path_where_it_ends_early(pipeline, schedule, task):
    reduce = task(1.5, "reduce", stream="dp", category="dp", blocking=False)
    step = task(0.5, "step", category="optimizer", drains=("dp",))
    program = on_one_stage(pipeline, schedule, task(1.0, "one"), reduce, task(2.0, "two"), epilogue=(step,))
    assert [segment.name for segment in critical_path(program).segments] == ["one", "two", "step"]


def test_a_queue_that_nobody_waits_for_ends_the_iteration(pipeline, schedule, task):
    copy = task(5.0, "copy", stream="dp", category="dp", blocking=False)
    path = critical_path(on_one_stage(pipeline, schedule, task(1.0, "one"), copy, task(2.0, "two")))
    assert [segment.name for segment in path.segments] == ["one", "copy"]


def test_the_last_to_arrive_at_a_meeting_is_on_the_path(pipeline, schedule, task):
    meet = task(0.5, "norm", category="optimizer", rendezvous="norm")
    program = pipeline(schedule("1f1b", 2, 1), comm=0.0, epilogue=(meet,), members={"norm": (0, 1)})
    late = {(1, "B", 0): Block("B", (task(2.0, "B"), task(7.0, "late", stream="tp", category="tp")))}
    # Stage 0 goes on as soon as stage 1 has sent its gradients: both do at the same time what is left to do.
    path = critical_path(replace(program, blocks=program.blocks | late, epilogues=(Block("end", (meet,)),) * 2))
    assert path.by_category["tp"] == 7.0
    assert path.segments[-1].name == "norm"
    assert path.iteration_s == 1.0 + 1.0 + 9.0 + 2.0 + 0.5


def test_work_behind_a_slow_host_is_not_on_the_path(pipeline, schedule, task):
    """Three kernels of 1 s; the host takes 3 s for the second, so it starts at 0.5 + 3 = 3.5 s and not at 1.5."""
    tasks = (task(1.0, "one", host=0.5), task(1.0, "two", host=3.0), task(1.0, "three", host=0.25))
    path = critical_path(on_one_stage(pipeline, schedule, *tasks))
    assert [(one.name, one.category, one.start, one.seconds) for one in path.segments] == [
        ("launch", "host", 0.0, 3.5),
        ("two", "gemm", 3.5, 1.0),
        ("three", "gemm", 4.5, 1.0),
    ]


def test_what_takes_no_time_but_the_hosts_hides_nothing_behind_it(pipeline, schedule, task):
    """The first pass only keeps the host busy, for 1 s; the second runs both its kernels after that."""
    program = pipeline(schedule("1f1b", 1, 1), epilogue=())
    blocks = {
        (0, "F", 0): Block("F", (task(0.0, "nothing", host=1.0),)),
        (0, "B", 0): Block("B", (task(0.5, "one", host=0.0), task(0.0, "two", host=1.0))),
    }
    path = critical_path(replace(program, blocks=program.blocks | blocks))
    assert sum(one.seconds for one in path.segments) == path.iteration_s == 2.0


def test_a_host_that_waits_for_the_device_puts_both_on_the_path(pipeline, schedule, task):
    tasks = (task(2.0, "norm", host=0.5, synchronises=True), task(1.0, "two", host=0.75))
    path = critical_path(on_one_stage(pipeline, schedule, *tasks))
    assert [(one.name, one.seconds) for one in path.segments] == [
        ("launch", 0.5),
        ("norm", 2.0),
        ("launch", 0.75),
        ("two", 1.0),
    ]


def test_what_is_slowed_by_what_runs_behind_it_is_interference(pipeline, schedule, task):
    """Half as fast while 2 s of reduction run: 3 s of work take 4 s."""
    reduce = task(2.0, "reduce", stream="dp", category="dp", blocking=False)
    program = on_one_stage(pipeline, schedule, reduce, task(3.0, "work"), overlap_slowdown=0.5)
    path = critical_path(program)
    assert [(one.name, one.category, one.work, one.seconds) for one in path.segments] == [
        ("work", "gemm", "F0.0", 3.0),
        ("interference", "interference", "F0.0", 1.0),
    ]
    # What is not on the path gains nothing by itself, but the work beside it is slowed no more.
    (free,) = what_if(program, [Adjustment(("dp",))], path)
    assert (free.on_path_s, free.iteration_s) == (0.0, 3.0)
    # Held up half as long as it works: 4/3 s done in the 2 s of reduction, the rest after.
    half, free = what_if(program, [Adjustment(("interference",), factor) for factor in (0.5, 0.0)], path)
    assert (half.iteration_s, free.iteration_s) == (pytest.approx(2.0 + 3.0 - 4.0 / 3.0), 3.0)


def test_a_long_chain_is_walked_and_forgotten_without_a_stack(pipeline, schedule):
    path = critical_path(pipeline(schedule("gpipe", 2, 3_000), forward=1.0, backward=1.0))
    assert len(path.segments) == 6_002


def test_kinds_are_told_apart_by_what_they_do(pipeline, schedule, task):
    gather = task(1.0, "gather", stream="tp", category="tp", moves=("tp", "all_gather"))
    reduce = task(2.0, "reduce", stream="tp", category="tp", moves=("tp", "all_reduce"))
    program = on_one_stage(pipeline, schedule, gather, task(4.0, "work"), reduce)
    assert changeable(program) == ("gemm", "tp", "tp:all-gather", "tp:all-reduce")
    changes = [Adjustment(("tp",)), Adjustment(("tp:all-reduce",), 0.5), Adjustment(("tp", "tp:all-gather"), 2.0)]
    found = what_if(program, changes, critical_path(program))
    assert [(one.on_path_s, one.iteration_s) for one in found] == [(3.0, 4.0), (2.0, 6.0), (3.0, 10.0)]


def test_another_path_takes_over_when_the_first_is_shortened(pipeline, schedule, task):
    """A reduction of 5 s beside work of 4 s: without it the work alone is left, 1 s less."""
    reduce = task(5.0, "reduce", stream="dp", category="dp", blocking=False)
    program = on_one_stage(pipeline, schedule, reduce, task(4.0, "work"))
    both = what_if(
        program, [Adjustment(("dp",)), Adjustment(("gemm",)), Adjustment(("dp", "gemm"))], critical_path(program)
    )
    assert [(one.on_path_s, one.iteration_s) for one in both] == [(5.0, 4.0), (0.0, 5.0), (5.0, 0.0)]


def test_the_path_is_that_of_the_listing(pipeline, schedule):
    program = pipeline(schedule("interleaved", 4, 8, 2), forward=0.3, backward=0.7, comm=0.1, tasks=3)
    assert critical_path(program).iteration_s == listing(program).iteration_s


def test_arrays_have_no_one_path(pipeline, schedule):
    import numpy as np

    with pytest.raises(ProgramError, match="one layout"):
        critical_path(pipeline(schedule("1f1b", 2, 2), forward=np.array([1.0, 2.0])))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("tp", Adjustment(("tp",), 0.0)),
        ("tp:all_reduce=0.5", Adjustment(("tp:all-reduce",), 0.5)),
        ("tp + pp=2", Adjustment(("tp", "pp"), 2.0)),
        ("memory-bound=1e-1", Adjustment(("memory-bound",), 0.1)),
    ],
)
def test_a_what_if_is_read(text, expected):
    assert read_change(text) == expected


@pytest.mark.parametrize("text", ["tp=", "tp=fast", "tp=-1", "tp=nan", "tp=inf", "tp=1=2"])
def test_a_what_if_without_a_number_is_refused(text):
    with pytest.raises(InputError, match="is not a number of at least 0"):
        read_change(text)
