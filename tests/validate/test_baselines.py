"""Constant shares of peak as predictions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardsim.validate.baselines import FITTED, FIXED, baseline_errors, best_share, error_figures
from shardsim.validate.table import ValidationRow

Row = Callable[..., ValidationRow]

SHARES = st.lists(st.floats(0.01, 1.0), min_size=1, max_size=12)


def test_a_run_at_45_percent_of_peak_has_no_error_at_that_constant(row: Row) -> None:
    fixed, fitted = baseline_errors([row("a", 2.0, 3.0, share=0.45), row("b", 7.0, 7.0, share=0.9)])
    assert (fixed.name, fitted.name) == (FIXED, FITTED)
    assert fixed.median == pytest.approx(0.5)  # errors 0 and +100 %
    assert fixed.bias == pytest.approx(0.5)


def test_runs_at_one_share_are_fitted_exactly(row: Row) -> None:
    _, fitted = baseline_errors([row(str(i), i + 1.0, 1.0, share=0.3) for i in range(5)])
    assert fitted.share == pytest.approx(0.3)
    assert fitted.p90 == pytest.approx(0.0, abs=1e-12)


def test_rows_that_are_no_training_runs_have_no_baselines() -> None:
    assert baseline_errors([]) == ()


@given(shares=SHARES, other=st.floats(0.01, 1.5))
def test_no_other_constant_has_half_of_the_rows_closer(shares: list[float], other: float) -> None:
    values = np.array(shares)
    half = -(-len(shares) // 2)
    largest = [np.sort(np.abs(values / share - 1))[half - 1] for share in (best_share(values), other)]
    assert largest[0] <= largest[1] + 1e-9


@given(shares=SHARES)
def test_equal_weights_are_as_none(shares: list[float]) -> None:
    values = np.array(shares)
    assert best_share(values, np.full(len(shares), 0.25)) == pytest.approx(best_share(values))


def test_a_weighted_median_is_where_half_of_the_weight_is() -> None:
    errors = np.array([0.1, -0.2, 0.3])
    assert error_figures(errors, np.array([1.0, 1.0, 10.0])) == (0.3, 0.3, 0.3)
    assert error_figures(errors, np.array([10.0, 1.0, 1.0]))[0] == 0.1
