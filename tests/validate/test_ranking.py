"""Whether layouts come in the right order."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardsim.validate.ranking import ranked_groups, ranking_summaries
from shardsim.validate.table import ValidationRow

Row = Callable[..., ValidationRow]
Job = Callable[..., list[ValidationRow]]


def test_the_right_order_at_the_wrong_level_is_perfect(job: Job) -> None:
    [group] = ranked_groups(job([1, 2, 3, 4, 5], [10, 20, 30, 40, 50]))
    assert (group.loss, group.spearman, group.chosen) == (0.0, pytest.approx(1.0), "lab-0")


def test_the_wrong_order_is_told_with_what_it_costs(job: Job) -> None:
    [group] = ranked_groups(job([1, 2, 3, 4, 5], [5, 4, 3, 2, 1]))
    assert (group.loss, group.spearman) == (4.0, pytest.approx(-1.0))


def test_a_tie_of_predictions_is_not_to_our_advantage(job: Job) -> None:
    [group] = ranked_groups(job([1, 2, 3, 4, 5], [1, 1, 1, 1, 1]))
    assert (group.loss, group.spearman) == (4.0, 0.0)


def test_four_layouts_are_too_few_and_reports_of_one_layout_count_once(job: Job, row: Row) -> None:
    rows = job([1, 2, 3, 4], [1, 2, 3, 4])
    assert ranked_groups(rows) == ()
    assert ranked_groups([*rows, row("again", 9.0, 4.0, job="j", layout="3")]) == ()
    reports = [row("x", time, 0.5, job="j", layout="new") for time in (1.0, 50.0, 1.02)]
    [group] = ranked_groups([*rows, *reports])
    assert group.layouts == 5
    assert group.loss == pytest.approx(0.02)


def test_jobs_of_other_sources_and_conditions_are_not_mixed(job: Job) -> None:
    good, bad = [1, 2, 3, 4, 5], [5, 4, 3, 2, 1]
    groups = ranked_groups([*job(good, good), *job(good, bad, "mill"), *job(good, bad, condition="sick")])
    assert len(groups) == 3
    found = {summary.name: summary for summary in ranking_summaries(groups)}
    assert list(found) == ["all", "healthy machines", "lab", "mill"]
    assert found["all"].best_within == pytest.approx(1 / 3)
    assert found["healthy machines"].groups == 2
    assert ranking_summaries(()) == ()


@given(times=st.lists(st.floats(0.1, 10), min_size=5, max_size=9, unique=True), level=st.floats(0.1, 10))
def test_ranking_does_not_depend_on_the_level(job: Job, times: list[float], level: float) -> None:
    predicted = [time * level for time in times]
    if len(set(predicted)) == len(times):
        [group] = ranked_groups(job(times, predicted))
        assert group.loss == 0.0
        assert group.spearman == pytest.approx(1.0)
