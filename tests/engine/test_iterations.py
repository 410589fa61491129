"""Iterations that follow each other: warm-up, steady state, and the batch that each begins with."""

from dataclasses import replace

import pytest

from shardsim.engine.iterations import iterations_of
from shardsim.engine.listing import listing
from shardsim.engine.predict import predict
from shardsim.program.resolve import resolve
from shardsim.schema.run import request_from_mapping
from shardsim.values.program import Block
from shardsim.workload.schedules import make_schedule

SMALL = {
    "model": "llama-2-7b",
    "cluster": "dgx-a100",
    "gpus": 8,
    "layout": {"tp": 2, "pp": 4},
    "batch": {"global": 8, "micro": 1, "seq": 2048},
}


def predicted(iterations=1, engine="listing", **more):
    return predict(resolve(request_from_mapping(SMALL | more)), engine=engine, iterations=iterations)


def test_a_stage_begins_again_while_others_still_finish(engine, schedule, pipeline):
    """GPipe of 4 stages, 8 micro-batches, F = 1, B = 2: the first stage is the last to end, and never waits long."""
    execution = engine(pipeline(schedule("gpipe", 4, 8)), iterations=3)
    assert execution.ends == (33.0, 66.0, 99.0)


def test_stages_that_do_not_meet_overlap_the_edges_of_iterations(engine, pipeline):
    """ZB-H2 idles only at the edges of an iteration: later ones take m (F + B + W), with no bubble at all."""
    execution = engine(pipeline(make_schedule("zb-h2", 4, 8)), iterations=4)
    first, *others = execution.ends
    assert first == 27.0
    assert [later - earlier for earlier, later in zip(execution.ends, others, strict=False)] == [24.0, 24.0, 24.0]


@pytest.mark.parametrize(("p", "m"), [(4, 8), (8, 24), (16, 48)])
def test_a_synchronised_optimizer_costs_an_iteration_without_a_bubble_p_minus_1_passes(pipeline, task, p, m):
    """ZB-H2 with F = B = W: stages end p - 1 passes apart, and a meeting lets none begin its next iteration before."""
    steady = {}
    for epilogue in ((), (task(0.0, "norm", rendezvous="norm"),)):
        program = pipeline(make_schedule("zb-h2", p, m), epilogue=epilogue, members={"norm": tuple(range(p))})
        ends = listing(program, iterations=3).ends
        steady[bool(epilogue)] = ends[-1] - ends[-2]
    assert steady == {False: 3.0 * m, True: 3.0 * m + p - 1}


def test_a_batch_that_takes_less_than_an_iteration_shows_in_the_first_alone():
    usual = predicted(3)
    loaded = predicted(3, loading={"seconds": f"{usual.iteration_s / 2!r} s"})
    found, plain = iterations_of(loaded), iterations_of(usual)
    assert found.data_exposed_s == 0.0
    assert found.steady_s == pytest.approx(plain.steady_s, rel=1e-9)
    assert found.first_s - plain.first_s == pytest.approx(usual.iteration_s / 2, rel=1e-9)


@pytest.mark.parametrize("engine", ["closed", "listing", "des"])
@pytest.mark.parametrize("iterations", [1, 3])
def test_a_batch_that_takes_longer_is_what_an_iteration_takes(engine, iterations):
    usual = predicted()
    slow = predicted(iterations, engine, loading={"seconds": f"{2 * usual.iteration_s!r} s"})
    found = iterations_of(slow)
    assert slow.iteration_s == pytest.approx(2 * usual.iteration_s, rel=1e-9)
    assert found.steady_s == pytest.approx(2 * usual.iteration_s, rel=1e-9)
    assert found.first_s == pytest.approx(3 * usual.iteration_s, rel=1e-2)
    assert found.data_exposed_s == pytest.approx(usual.iteration_s, rel=1e-2)


def test_workers_share_the_batches():
    usual = predicted()
    slow = f"{2 * usual.iteration_s!r} s"
    assert predicted(loading={"seconds": slow, "workers": 2}).iteration_s == pytest.approx(usual.iteration_s, rel=1e-9)


def test_only_stages_that_read_wait_for_data():
    slow = predicted(loading={"seconds": "100 s"})
    assert ["data" in account.seconds for account in slow.execution.stages] == [True, False, False, True]


def test_one_iteration_is_the_same_however_it_is_asked_for(pipeline, schedule):
    program = replace(pipeline(schedule("1f1b", 3, 4)), prologues=(Block("prologue", ()),) * 3)
    assert listing(program) == listing(program, iterations=1)


def test_a_checkpoint_costs_its_share_of_every_iteration():
    saved = predicted(checkpoint={"every": 10, "bandwidth": "10 GB/s"})
    found = iterations_of(saved)
    assert found.checkpoint is not None
    assert found.checkpoint.exposed_s == pytest.approx(found.checkpoint.bytes / 10e9)
    assert found.with_checkpoints_s == pytest.approx(found.steady_s + found.checkpoint.exposed_s / 10)
