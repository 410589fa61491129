"""Memory over the order of passes."""

from dataclasses import replace

import pytest

from shardsim.engine.memory import memory_profile
from shardsim.errors import InputError
from shardsim.values.program import Pair, Pass, PipelineSchedule
from shardsim.workload.allocations import ChunkAllocation, StageAllocation
from shardsim.workload.occupancy import Held, moments_of, peak_bytes, tensors_between
from shardsim.workload.schedules import make_schedule

ONE = ChunkAllocation(kept=1.0)
NOTHING = StageAllocation(weights=0.0, gradients=0.0, optimizer=0.0, chunks=(ONE,))


def activations(schedule, allocation=NOTHING):
    profile = memory_profile([allocation] * schedule.stages, schedule, 100.0)
    return [items["activations"] for items in profile.stages]


@pytest.mark.parametrize(
    ("name", "v", "in_flight"),
    [("gpipe", 1, [8, 8, 8, 8]), ("1f1b", 1, [4, 3, 2, 1]), ("interleaved", 2, [11, 9, 7, 5])],
)
def test_four_stages_hold_as_many_micro_batches_as_the_schedule_diagrams_show(schedule, name, v, in_flight):
    assert activations(schedule(name, 4, 8, v), replace(NOTHING, chunks=(ONE,) * v)) == in_flight


@pytest.mark.parametrize(("p", "m"), [(1, 1), (4, 2), (8, 8), (8, 64)])
def test_1f1b_holds_p_minus_stage_micro_batches(schedule, p, m):
    assert activations(schedule("1f1b", p, m)) == [min(m, p - stage) for stage in range(p)]


@pytest.mark.parametrize(("p", "groups", "v"), [(2, 2, 2), (4, 4, 3), (8, 2, 4)])
def test_interleaving_holds_one_plus_p_minus_1_over_p_v_as_much_on_the_first_stage(schedule, p, groups, v):
    """Korthikanti et al., arXiv 2205.05198 §4.2.3: L (1 + (p - 1)/(p v)) layers, and so v (p + (p - 1)/v) chunks."""
    assert (
        activations(schedule("interleaved", p, groups * p, v), replace(NOTHING, chunks=(ONE,) * v))[0] == p * v + p - 1
    )


@pytest.mark.parametrize("m_w", [0.25, 0.5, 1.0])
def test_zero_bubble_schedules_hold_what_their_paper_says_on_every_worker(m_w):
    """Qi et al., arXiv 2401.10241, Table 2: worker i of p holds (p - i + 1) M_B + (i - 1) M_W with ZB-H1,
    (2p - 2i + 1) M_B + (2i - 2) M_W with ZB-H2."""  # one sentence
    p, m = 4, 16
    allocation = replace(NOTHING, chunks=(ChunkAllocation(kept=1.0, weight_gradient=m_w),))
    h1, h2 = (activations(make_schedule(name, p, m), allocation) for name in ("zb-h1", "zb-h2"))
    assert h1 == [p - i + 1 + (i - 1) * m_w for i in range(1, p + 1)]
    assert h2 == [2 * p - 2 * i + 1 + (2 * i - 2) * m_w for i in range(1, p + 1)]


def test_an_input_gradient_pass_frees_what_no_weight_gradient_needs_and_the_weight_gradient_pass_the_rest():
    order = (Pass("F", 0), Pass("I", 0), Pass("W", 0))
    allocation = replace(NOTHING, chunks=(ChunkAllocation(kept=10.0, weight_gradient=4.0),))
    held = [tensors_between(allocation, moment.after)["activations"] for moment in moments_of(order, 1)]
    assert held == [10.0, 4.0, 0.0]


def test_a_pair_holds_the_activations_of_both_its_passes():
    order = (Pass("F", 0), Pair(Pass("F", 1), Pass("B", 0)), Pass("B", 1))
    schedule = PipelineSchedule("pair", (order,), (((0, 0),),), 2)
    allocation = replace(NOTHING, chunks=(ChunkAllocation(kept=1.0, working_set=0.5),))
    profile = memory_profile([allocation], schedule, 10.0)
    assert profile.stages[0]["activations"] == 2.5
    assert profile.moments == (order[1],)


@pytest.mark.parametrize("name", ["1f1b", "gpipe", "zb-h1", "zb-h2", "zb-v", "v-half", "dualpipe", "dualpipev"])
def test_every_schedule_gives_back_all_that_it_took(name):
    schedule = make_schedule(name, 4, 16, {"zb-v": 2, "v-half": 2, "dualpipe": 2, "dualpipev": 2}.get(name, 1))
    nothing = Held((0,) * schedule.chunks, (0,) * schedule.chunks)
    assert [moments_of(order, schedule.chunks)[-1].after for order in schedule.orders] == [nothing] * 4


def test_chunks_of_different_size_peak_where_their_sum_does():
    # Micro-batches of the small chunk pile up first; the large chunk then holds less in number and more in bytes.
    order = (
        *(Pass("F", i, 0) for i in range(3)),
        *(Pass("B", i, 0) for i in range(3)),
        Pass("F", 0, 1),
        Pass("B", 0, 1),
    )
    schedule = PipelineSchedule("two chunks", (order,), (((0, 0), (0, 1)),), 3)
    allocation = replace(NOTHING, chunks=(ONE, ChunkAllocation(kept=5.0, logits=0.25)))
    profile = memory_profile([allocation], schedule, 100.0)
    assert profile.stages[0]["activations"] == 5.0
    assert profile.stages[0]["logits"] == 0.25
    assert profile.moments == (Pass("F", 0, 1),)


def test_logits_are_needed_forward_and_the_recompute_working_set_backward(schedule):
    chunk = ChunkAllocation(kept=1.0, working_set=2.0, loss=1.0)
    first, last = (replace(NOTHING, chunks=(one,)) for one in (replace(chunk, loss=0.0), replace(chunk, logits=3.0)))
    profile = memory_profile([first, last], schedule("1f1b", 2, 4), 100.0)
    assert (profile.stages[0]["activations"], profile.stages[0]["logits"]) == (2.0 + 2.0, 0.0)
    assert (profile.stages[1]["activations"], profile.stages[1]["logits"]) == (1.0, 1.0 + 3.0)


def test_an_input_gradient_pass_rebuilds_beside_what_waits_when_the_loss_is_over():
    order = (Pass("F", 0), Pass("I", 0), Pass("W", 0))
    schedule = PipelineSchedule("split", (order,), (((0, 0),),), 1)
    chunk = ChunkAllocation(kept=1.0, weight_gradient=3.0, working_set=1.0, loss=0.5, input_working_set=4.0)
    profile = memory_profile([replace(NOTHING, chunks=(chunk,))], schedule, 100.0)
    assert profile.moments == (Pass("I", 0),)
    assert (profile.stages[0]["activations"], profile.stages[0]["logits"]) == (1.0 + 4.0, 0.0)


@pytest.mark.parametrize(("gradients", "peak"), [(0.5, 2.0), (3.0, 1.0 + 3.0)])
def test_gradients_of_a_pass_take_the_place_of_its_activations(schedule, gradients, peak):
    allocation = replace(NOTHING, chunks=(ChunkAllocation(kept=1.0, gradients=gradients),))
    assert memory_profile([allocation] * 2, schedule("1f1b", 2, 4), 100.0).reserved[0] == peak


def test_the_optimizer_step_is_the_fullest_moment_where_it_needs_more_than_any_pass(schedule):
    allocation = replace(NOTHING, weights=2.0, gathered=1.0, stepping=4.0)
    profile = memory_profile([allocation] * 2, schedule("1f1b", 2, 4), 100.0)
    assert profile.moments == (None, None)
    assert profile.reserved == (6.0, 6.0)
    assert profile.stages[0]["gathered"] == 0.0


def test_what_is_held_all_the_time_is_passed_on_and_decides_whether_it_fits(schedule):
    allocation = replace(NOTHING, weights=10.0, gradients=20.0, optimizer=30.0, buffers=3.0, passing=1.0, context=5.0)
    profile = memory_profile([allocation] * 2, schedule("1f1b", 2, 4), 70.0)
    assert profile.stages[0] == {
        "weights": 10.0,
        "gradients": 20.0,
        "optimizer": 30.0,
        "activations": 2.0,
        "logits": 0.0,
        "gathered": 0.0,
        "buffers": 4.0,
        "fragmentation": 0.0,
        "context": 5.0,
    }
    assert (profile.peak, profile.worst_stage, profile.fits) == (71.0, 0, False)
    assert profile.allocated[0] == 66.0
    assert peak_bytes([allocation] * 2, schedule("1f1b", 2, 4)) == profile.peak


def test_allocations_of_another_pipeline_are_refused_with_all_problems(schedule):
    with pytest.raises(InputError) as refused:
        memory_profile([replace(NOTHING, chunks=(ONE, ONE))] * 3, schedule("1f1b", 2, 4), 1.0)
    assert len(refused.value.problems) == 4


def test_what_the_allocator_reserves_and_does_not_use_counts_and_the_context_is_not_the_allocators():
    allocation = replace(NOTHING, weights=20.0, buffers=19.0, context=5.0, allocated_share=0.8)
    (items,) = memory_profile([allocation], make_schedule("gpipe", 1, 1), 80.0).stages
    assert items["fragmentation"] == pytest.approx(40.0 / 0.8 - 40.0)
    assert sum(items.values()) == pytest.approx(50.0 + 5.0)


def test_activations_may_be_scattered_over_more_memory_than_what_stays():
    allocation = replace(NOTHING, weights=20.0, chunks=(ChunkAllocation(kept=6.0, loss=2.0),), activation_share=0.8)
    (items,) = memory_profile([allocation], make_schedule("gpipe", 1, 1), 80.0).stages
    assert items["fragmentation"] == pytest.approx(8.0 / 0.8 - 8.0)
