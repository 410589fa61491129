from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardsim.validate.summary import equal_sources, error_summary, summarise
from shardsim.validate.table import ValidationRow

Row = Callable[..., ValidationRow]


def rows(*errors: float | None) -> list[ValidationRow]:
    return [
        ValidationRow(
            str(i), "s", "g", "f", "m", 1.0, None if e is None else 1 + e, e, "ok" if e is not None else "skipped", ""
        )
        for i, e in enumerate(errors)
    ]


def test_median_and_p90_are_of_the_absolute_error_and_bias_is_the_signed_median() -> None:
    found = error_summary("all", rows(-0.5, -0.1, 0.2, 0.3, None))
    assert (found.rows, found.predicted) == (5, 4)
    assert found.median == pytest.approx(0.25)
    assert found.p90 == pytest.approx(0.3 + 0.7 * 0.2)
    assert found.bias == pytest.approx(0.05)


def test_a_group_without_predictions_has_no_error() -> None:
    found = error_summary("all", rows(None, None))
    assert (found.median, found.p90, found.bias, found.predicted) == (None, None, None, 0)


@given(st.lists(st.floats(-0.9, 5), min_size=1, max_size=30))
def test_bias_never_exceeds_p100_and_median_never_exceeds_p90(errors: list[float]) -> None:
    found = error_summary("all", rows(*errors))
    assert 0 <= found.median <= found.p90 <= max(abs(e) for e in errors) + 1e-12
    assert min(errors) <= found.bias <= max(errors)
    assert error_summary("all", rows(*reversed(errors))) == found


def test_every_source_weighs_alike_however_many_rows_it_has(row: Row) -> None:
    found = equal_sources("equal", [*(row(str(i), 1.0, 1.1, source="many") for i in range(99)), row("x", 1.0, 1.5)])
    assert found.median == pytest.approx(0.1)
    assert found.p90 == pytest.approx(0.5)
    assert (found.rows, found.predicted) == (100, 100)
    assert len(found.baselines) == 2


def test_rows_of_sick_machines_are_a_group_and_left_out_of_a_view(row: Row) -> None:
    sick = [row(f"s{i}", 2.0, 1.0, condition="sick") for i in range(3)]
    table = summarise("t.csv", [*sick, row("h", 1.0, 1.0, condition="healthy"), row("o", 1.0, 1.0, source="else")])
    groups = dict(table.groups)
    assert [(group.name, group.rows) for group in groups["condition"]] == [("sick", 3), ("healthy", 1)]
    assert [view.name for view in table.views] == [
        "every source weighted equally",
        "without sick",
        "without sick, sources equally",
    ]
    assert [view.predicted for view in table.views] == [5, 2, 2]
    assert table.views[1].median == 0.0


def test_the_worst_rows_come_first_with_their_largest_term(row: Row) -> None:
    table = summarise("t.csv", [row(str(i), 1.0, 1.0 + i / 100) for i in range(15)])
    assert [found.id for found in table.worst] == [str(i) for i in range(14, 4, -1)]
    assert table.worst[0].facts is not None
    assert table.worst[0].facts.largest_term == ("data-parallel communication", pytest.approx(0.4))
