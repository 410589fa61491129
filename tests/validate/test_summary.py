from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardsim.validate.summary import error_summary
from shardsim.validate.table import ValidationRow


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
