"""Memory over the order of passes."""

from dataclasses import replace

import pytest

from shardsim.engine.memory import memory_profile
from shardsim.errors import InputError
from shardsim.values.program import Pass, PipelineSchedule
from shardsim.workload.allocations import StageAllocation
from shardsim.workload.schedules import make_schedule

NOTHING = StageAllocation(
    weights=0.0,
    gradients=0.0,
    optimizer=0.0,
    activation_per_chunk=(1.0,),
    recompute_working_set=0.0,
    logits=0.0,
    buffers=0.0,
    context=0.0,
)


def activations(schedule, allocation=NOTHING):
    profile = memory_profile([allocation] * schedule.stages, schedule, 100.0)
    return [items["activations"] for items in profile.stages]


@pytest.mark.parametrize(
    ("name", "v", "in_flight"),
    [("gpipe", 1, [8, 8, 8, 8]), ("1f1b", 1, [4, 3, 2, 1]), ("interleaved", 2, [11, 9, 7, 5])],
)
def test_four_stages_hold_as_many_micro_batches_as_the_schedule_diagrams_show(schedule, name, v, in_flight):
    allocation = replace(NOTHING, activation_per_chunk=(1.0,) * v)
    assert activations(schedule(name, 4, 8, v), allocation) == in_flight


@pytest.mark.parametrize(("p", "m"), [(1, 1), (4, 2), (8, 8), (8, 64)])
def test_1f1b_holds_p_minus_stage_micro_batches(schedule, p, m):
    assert activations(schedule("1f1b", p, m)) == [min(m, p - stage) for stage in range(p)]


@pytest.mark.parametrize(("p", "groups", "v"), [(2, 2, 2), (4, 4, 3), (8, 2, 4)])
def test_interleaving_holds_one_plus_p_minus_1_over_p_v_as_much_on_the_first_stage(schedule, p, groups, v):
    """Korthikanti et al., arXiv 2205.05198 §4.2.3: L (1 + (p - 1)/(p v)) layers, and so v (p + (p - 1)/v) chunks."""
    allocation = replace(NOTHING, activation_per_chunk=(1.0,) * v)
    assert activations(schedule("interleaved", p, groups * p, v), allocation)[0] == p * v + p - 1


def test_chunks_of_different_size_peak_where_their_sum_does():
    # Micro-batches of the small chunk pile up first; the large chunk then holds less in number and more in bytes.
    order = (
        *(Pass("F", i, 0) for i in range(3)),
        *(Pass("B", i, 0) for i in range(3)),
        Pass("F", 0, 1),
        Pass("B", 0, 1),
    )
    schedule = PipelineSchedule("two chunks", (order,), ((0, 0), (0, 1)), 3)
    allocation = replace(NOTHING, activation_per_chunk=(1.0, 5.0), logits=0.25)
    profile = memory_profile([allocation], schedule, 100.0)
    assert profile.stages[0]["activations"] == 5.0
    assert profile.stages[0]["logits"] == 0.25


def test_logits_and_the_recompute_working_set_are_never_held_together(schedule):
    allocation = replace(NOTHING, recompute_working_set=2.0, logits=3.0)
    profile = memory_profile([allocation] * 2, schedule("1f1b", 2, 4), 100.0)
    assert profile.stages[0]["activations"] == 2.0 + 2.0
    assert profile.stages[0]["logits"] == 0.0
    assert profile.stages[1]["activations"] == 1.0
    assert profile.stages[1]["logits"] == 3.0


def test_what_is_held_all_the_time_is_passed_on_and_decides_whether_it_fits(schedule):
    allocation = replace(NOTHING, weights=10.0, gradients=20.0, optimizer=30.0, buffers=4.0, context=5.0)
    profile = memory_profile([allocation] * 2, schedule("1f1b", 2, 4), 70.0)
    assert profile.stages[0] == {
        "weights": 10.0,
        "gradients": 20.0,
        "optimizer": 30.0,
        "activations": 2.0,
        "logits": 0.0,
        "buffers": 4.0,
        "fragmentation": 0.0,
        "context": 5.0,
    }
    assert (profile.peak, profile.worst_stage, profile.fits) == (71.0, 0, False)


def test_allocations_of_another_pipeline_are_refused_with_all_problems(schedule):
    with pytest.raises(InputError) as refused:
        memory_profile([replace(NOTHING, activation_per_chunk=(1.0, 1.0))] * 3, schedule("1f1b", 2, 4), 1.0)
    assert len(refused.value.problems) == 4


def test_what_the_allocator_reserves_and_does_not_use_counts_and_the_context_is_not_the_allocators():
    allocation = StageAllocation(6.0, 4.0, 20.0, (0.0,), 0.0, 0.0, 10.0, 5.0, allocated_share=0.8)
    (items,) = memory_profile([allocation], make_schedule("gpipe", 1, 1), 80.0).stages
    assert items["fragmentation"] == pytest.approx(40.0 / 0.8 - 40.0)
    assert sum(items.values()) == pytest.approx(allocation.total_at([1]))
