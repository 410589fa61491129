"""Schedules by name: what each asks of a pipeline, refusals, counts that do not divide, speed."""

from __future__ import annotations

import time

import pytest

from shardsim.errors import InputError
from shardsim.values.pipeline import order_text, v_shaped
from shardsim.values.program import Pair, Pass, PipelineSchedule, passes_of
from shardsim.values.training import Batch, Layout
from shardsim.workload.schedules import (
    NAMES,
    RULES,
    make_schedule,
    peak_in_flight,
    schedule_of,
    schedule_problems,
    schedule_problems_of,
)


def problems(*asked: object) -> list[str]:
    return [str(problem) for problem in schedule_problems(*asked)]  # type: ignore[arg-type]


def test_virtual_stages_go_round_the_stages() -> None:
    assert make_schedule("interleaved", 2, 4, 3).places == ((0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2))


@pytest.mark.parametrize("name", ["zb-v", "v-half", "v-min", "dualpipev"])
def test_virtual_stages_of_a_v_go_down_and_back_up(name: str) -> None:
    assert make_schedule(name, 3, 6, 2).chains == (((0, 0), (1, 0), (2, 0), (2, 1), (1, 1), (0, 1)),)


def test_dualpipe_runs_half_of_the_micro_batches_each_way_through_a_copy_of_its_own() -> None:
    schedule = make_schedule("dualpipe", 4, 10, 2)
    assert schedule.chains == (((0, 0), (1, 0), (2, 0), (3, 0)), ((3, 1), (2, 1), (1, 1), (0, 1)))
    assert schedule.copies == RULES["dualpipe"].copies == 2
    for order in schedule.orders:
        assert {one.microbatch for one in passes_of(order) if one.chunk == 0} == set(range(5))
        assert {one.microbatch for one in passes_of(order) if one.chunk == 1} == set(range(5, 10))


@pytest.mark.parametrize("name", NAMES)
def test_the_rules_say_what_a_schedule_holds(name: str) -> None:
    rule = RULES[name]
    schedule = make_schedule(name, 4, 12, rule.chunks or 3)
    kinds = {one.kind for order in schedule.orders for one in passes_of(order)}
    assert (schedule.name, schedule.stages, schedule.microbatches) == (name, 4, 12)
    assert (schedule.chunks, schedule.copies) == (rule.chunks or 3, rule.copies)
    assert ("I" in kinds and "W" in kinds) is rule.splits_backward


def test_the_same_schedule_is_the_same_object() -> None:
    assert make_schedule("1f1b", 4, 8) is make_schedule("1f1b", 4, 8)


def test_a_layout_makes_its_schedule_or_brings_its_own() -> None:
    layout, batch = Layout(1, 4, 2, vpp=2, schedule="interleaved", group=6), Batch(24, 1, 2048)
    assert schedule_of(layout, batch) is make_schedule("interleaved", 4, 12, 2, 6)
    own = PipelineSchedule("own", ((Pass("F", 0), Pass("B", 0)),), (((0, 0),),), 1)
    assert schedule_of(Layout(1, 1, 1, schedule="custom", custom=own), Batch(1, 1, 2048)) is own


def test_few_micro_batches_leave_1f1b_with_nothing_but_warm_up() -> None:
    assert peak_in_flight(make_schedule("1f1b", 8, 2)) == ((2,),) * 7 + ((1,),)


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "zb-h1", "zb-h2", "zb-v", "v-half", "v-min"])
def test_one_micro_batch_runs_through_any_number_of_stages(name: str) -> None:
    for stages in (1, 2, 9):
        assert schedule_problems_of(make_schedule(name, stages, 1, RULES[name].chunks)) == []


def test_breadth_first_runs_all_micro_batches_through_a_chunk_before_the_next() -> None:
    order = make_schedule("interleaved", 2, 5, 2, 5).orders[0]
    assert [one.chunk for one in order if one.kind == "F"] == [0] * 5 + [1] * 5


def test_micro_batches_that_leave_a_smaller_last_group_run_as_in_megatron() -> None:
    """m mod N = 5 >= p: the last group goes through each chunk with the 5 that are left."""
    order = make_schedule("interleaved", 4, 11, 2, 6).orders[0]
    forwards = [(one.microbatch, one.chunk) for one in order if one.kind == "F"]
    assert forwards == [*((i, c) for c in (0, 1) for i in range(6)), *((i, c) for c in (0, 1) for i in range(6, 11))]
    assert [one.kind for one in order].index("B") == 3 * 2 + 6 + 1


def test_peaks_count_the_forward_pass_of_a_pair_first() -> None:
    order = (Pass("F", 0), Pair(Pass("F", 1), Pass("B", 0)), Pass("B", 1))
    assert peak_in_flight(PipelineSchedule("own", (order,), (((0, 0),),), 2)) == ((2,),)


def test_an_unknown_schedule_suggests_a_known_one() -> None:
    with pytest.raises(InputError, match=r"unknown schedule 'interleave' \(did you mean interleaved\?\)"):
        make_schedule("interleave", 4, 8, 2)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (("interleaved", 4, 10, 2), "10 micro-batches do not divide by 4 pipeline stages.*8 or 12; or a group of 5"),
        (("interleaved", 4, 7, 2), "7 micro-batches do not divide by 4.*4 or 8; or a group of 7"),
        (("interleaved", 4, 3, 2), "3 micro-batches do not fill 4 pipeline stages.*4 or more"),
        (("interleaved", 4, 8, 2, 3), r"groups of 3 micro-batches.*4 \(depth first\) to 8 \(breadth first\)"),
        (("interleaved", 4, 8, 2, 9), r"groups of 9 micro-batches.*4 \(depth first\) to 8 \(breadth first\)"),
        (("interleaved", 4, 15, 2, 6), "15 micro-batches in groups of 6 leave 3, fewer than 4.*12 or 16"),
        (("interleaved", 1, 4, 2), "pp: interleaved on 1 pipeline stage .2 or more"),
        (("interleaved", 4, 8, 1), "vpp: interleaved needs several chunks"),
        (("1f1b", 4, 8, 2), "vpp: 1f1b holds one chunk a stage, not 2 .1, or schedule interleaved"),
        (("1f1b", 1, 8, 2), "vpp: 1f1b holds one chunk a stage, not 2 .1.$"),
        (("1f1b", 1, 8, 1, 2), "group: 1f1b runs no groups of micro-batches .0.$"),
        (("interleaved", 1, 8, 2), "pp: interleaved on 1 pipeline stage .2 or more, or 1f1b with vpp 1"),
        (("zb-v", 4, 8, 1), "vpp: zb-v holds 2 chunks a stage, not 1 .2"),
        (("zb-h1", 4, 8, 1, 4), "group: zb-h1 runs no groups"),
        (("dualpipe", 3, 8, 2), "pp: dualpipe on 3 pipeline stages .2 or 4"),
        (("dualpipe", 4, 9, 2), "9 micro-batches do not split into two directions .8 or 10"),
        (("dualpipe", 4, 6, 2), "6 micro-batches on 4 pipeline stages .8 or more"),
        (("dualpipev", 4, 7, 2), "7 micro-batches on 4 pipeline stages .8 or more"),
    ],
)
def test_each_refusal_says_what_would_be_right(asked: tuple[object, ...], expected: str) -> None:
    with pytest.raises(InputError, match=expected):
        make_schedule(*asked)  # type: ignore[arg-type]


@pytest.mark.parametrize(("asked", "right"), [
    (("interleaved", 4, 10, 2), [(8, 0), (12, 0), (10, 5)]),
    (("interleaved", 4, 7, 2), [(4, 0), (8, 0), (7, 7)]),
    (("interleaved", 4, 15, 2, 6), [(12, 6), (16, 6)]),
])  # fmt: skip
def test_what_a_refusal_names_as_right_is_right(asked: tuple[object, ...], right: list[tuple[int, int]]) -> None:
    assert problems(*asked) != []
    assert [problems(*asked[:2], count, asked[3], group) for count, group in right] == [[]] * len(right)


def test_every_problem_is_listed_at_once() -> None:
    assert len(problems("1f2b", 0, 0, 0)) == 4
    assert len(problems("dualpipe", 3, 8, 1, 4)) == 3
    assert len(problems("dualpipe", 6, 9, 3)) == 3
    assert schedule_problems("1f1b", 4, 8, 2)[0].where == "vpp"


@pytest.mark.parametrize("name", ["v-half", "v-min"])
@pytest.mark.parametrize("stages", [2, 3, 4, 6])
def test_more_micro_batches_repeat_the_middle_of_a_v_schedule(name: str, stages: int) -> None:
    """Both ends are those of fewer micro-batches; what lies between is six passes for each more."""
    few, more = 2 * stages + 4, 2 * stages + 9
    for short, long in zip(make_schedule(name, stages, few, 2).orders, make_schedule(name, stages, more, 2).orders,
                           strict=True):  # fmt: skip
        assert len(long) - len(short) == 6 * 5
        begin = next(at for at, (a, b) in enumerate(zip(short, long, strict=False)) if a != b)
        end = [one._replace(microbatch=one.microbatch + 5) for one in short[begin:]]
        assert list(long[-len(end) :]) == end


def test_the_places_of_a_v() -> None:
    assert v_shaped(1) == ((0, 0), (0, 1))


def test_large_schedules_take_a_second_or_two() -> None:
    make_schedule.cache_clear()
    start = time.process_time()
    make_schedule("interleaved", 64, 1984, 2)
    make_schedule("1f1b", 64, 2000)
    make_schedule("zb-h1", 64, 2000)
    make_schedule("dualpipe", 64, 2000, 2)
    assert time.process_time() - start < 5.0  # 1 s on an idle core
    make_schedule.cache_clear()


# ---- pairs where experts' tokens of one micro-batch travel while another is computed -------------------------------


def test_without_a_pipeline_each_forward_pass_pairs_with_the_backward_pass_before_it() -> None:
    """The phases of four micro-batches as Megatron-LM's combined_1f1b.py lists them."""
    (order,) = make_schedule("1f1b", 1, 4, paired=True).orders
    assert order_text(order) == "F0 [F1&B0] [F2&B1] [F3&B2] B3"


def test_one_more_pass_warms_up_an_interleaved_stage_whose_passes_pair() -> None:
    first, last = make_schedule("interleaved", 2, 4, 2, paired=True).orders
    assert order_text(first, 2) == (
        "F0.0 F1.0 F0.1 F1.1 F2.0 [F3.0&B0.1] [F2.1&B1.1] [F3.1&B0.0] B1.0 B2.1 B3.1 B2.0 B3.0"
    )
    assert order_text(last, 2) == (
        "F0.0 F1.0 F0.1 [F1.1&B0.1] [F2.0&B1.1] [F3.0&B0.0] [F2.1&B1.0] [F3.1&B2.1] B3.1 B2.0 B3.0"
    )


@pytest.mark.parametrize(("p", "v"), [(2, 2), (2, 5), (3, 2), (4, 3), (8, 2)])
def test_pairs_of_any_pipeline_are_sound(p: int, v: int) -> None:
    """Of different micro-batches, with every input there, in every grouping, the last group cut short or not."""
    for m in range(p, 4 * p):
        for group in range(p, m + 1):
            if not schedule_problems("interleaved", p, m, v, group):
                plain = make_schedule("interleaved", p, m, v, group)
                paired = make_schedule("interleaved", p, m, v, group, paired=True)
                assert schedule_problems_of(paired) == []
                for one, other in zip(plain.orders, paired.orders, strict=True):
                    assert sorted(passes_of(one)) == sorted(passes_of(other))


def test_pairs_hold_one_more_chunk_of_activations_on_every_stage() -> None:
    """One more pass warms each stage up; in 1F1B as in a pair, a forward pass comes before its backward pass."""
    plain, paired = (make_schedule("interleaved", 4, 16, 2, paired=pairs) for pairs in (False, True))
    grown = [sum(b) - sum(a) for a, b in zip(peak_in_flight(plain), peak_in_flight(paired), strict=True)]
    assert grown == [1] * 4


def test_a_layout_that_overlaps_experts_asks_for_pairs() -> None:
    layout, batch = Layout(1, 4, 2, vpp=2, schedule="interleaved", overlap_experts=True), Batch(24, 1, 2048)
    assert schedule_of(layout, batch) is make_schedule("interleaved", 4, 12, 2, 0, paired=True)


def test_schedules_with_pairs_of_their_own_stay_as_they_are() -> None:
    for name in ("dualpipe", "dualpipev"):
        assert make_schedule(name, 4, 12, 2, paired=True) == make_schedule(name, 4, 12, 2)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (("1f1b", 4, 8), "1f1b on 4 pipeline stages runs no passes as pairs .no, or schedule interleaved, dualpipe or"),
        (("zb-h1", 1, 8), "zb-h1 runs no passes as pairs .no, or schedule 1f1b or dualpipev"),
        (("gpipe", 2, 8), "overlap_experts: gpipe on 2"),
    ],
)
def test_pairs_that_a_schedule_cannot_run_are_refused(asked: tuple[str, int, int], expected: str) -> None:
    with pytest.raises(InputError, match=expected):
        make_schedule(*asked, paired=True)
