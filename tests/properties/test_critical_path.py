"""On any program that can finish, the critical path is a chain without gaps, and what it says of a gain holds."""

from __future__ import annotations

import sys
from dataclasses import replace
from math import fsum
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardsim.engine.accounts import HOST, PIPELINE
from shardsim.engine.critical import critical_path
from shardsim.engine.interference import INTERFERENCE
from shardsim.engine.listing import listing
from shardsim.engine.what_if import changeable, what_if
from shardsim.values.critical import Adjustment

sys.path.insert(0, str(Path(__file__).parent))

from test_engines_agree import programs, with_tasks  # the random programs on which the engines are compared

thorough = settings(max_examples=40, deadline=None)
AXES = {"tp": "all_reduce", "dp": "reduce_scatter", "zero": "all_gather"}


def with_kinds(program):
    """The same program with communication that says what it does."""
    return with_tasks(
        program,
        lambda task: replace(task, moves=(task.category, AXES[task.category])) if task.category in AXES else task,
    )


@thorough
@given(program=programs())
def test_the_path_leads_from_the_beginning_to_the_end_without_a_gap(program):
    path = critical_path(program)
    assert path.iteration_s == listing(program).iteration_s
    assert fsum(one.seconds for one in path.segments) == pytest.approx(path.iteration_s, rel=1e-9)
    assert sum(path.by_category.values()) == pytest.approx(path.iteration_s, rel=1e-9)
    assert sum(path.by_stage.values()) == pytest.approx(path.iteration_s, rel=1e-9)
    end = 0.0
    for one in path.segments:
        assert one.start == pytest.approx(end, rel=1e-9, abs=1e-12)
        assert one.seconds > 0.0
        end = one.start + one.seconds


@thorough
@given(program=programs(share=st.just(0.0)))
def test_what_is_on_the_path_ran_when_the_timeline_says(program):
    rows = listing(program, timeline=True).timeline
    names = np.array([rows.labels[label][0] for label in rows.label])
    for one in critical_path(program).segments:
        if one.category in (PIPELINE, HOST):
            continue
        mine = (names == one.name) & (rows.stage == one.stage)
        found = np.abs(rows.start[mine] - one.start) + np.abs(rows.finish[mine] - one.start - one.seconds)
        assert found.min() <= 1e-9


@thorough
@given(program=programs(), factor=st.floats(0.0, 1.0))
def test_no_gain_is_larger_than_the_path_allows(program, factor):
    path = critical_path(program)
    slowed = path.by_category.get(INTERFERENCE, 0.0)
    changes = [Adjustment((name,), factor) for name in changeable(program)]
    for one in what_if(program, changes, path):
        gain = path.iteration_s - one.iteration_s
        assert gain >= -1e-12 * path.iteration_s
        taken = 0.0 if one.adjustment.names == (INTERFERENCE,) else (1.0 - factor) * one.on_path_s
        # Without interference what is taken from the path is all; else work that is slowed less gains besides.
        assert gain <= taken + slowed + 1e-9 * path.iteration_s


@thorough
@given(program=programs(), factor=st.floats(0.0, 3.0), data=st.data())
def test_a_what_if_is_the_listing_of_the_changed_program(program, factor, data):
    program = with_kinds(program)
    names = [name for name in changeable(program) if name != INTERFERENCE]
    if not names:
        return
    name = data.draw(st.sampled_from(names))

    def slower(task):
        kind = f"{task.category}:{task.moves[1].replace('_', '-')}" if task.moves else ""
        if name == "host":
            return replace(task, host=task.host * factor)
        return replace(task, seconds=task.seconds * factor) if name in (task.category, kind) else task

    expected = with_tasks(program, slower)
    if name == "pp":
        messages = {key: replace(one, latency=one.latency * factor) for key, one in program.messages.items()}
        expected = replace(expected, messages=messages)
    (found,) = what_if(program, [Adjustment((name,), factor)], critical_path(program))
    assert found.iteration_s == listing(expected).iteration_s


@thorough
@given(program=programs())
def test_with_everything_free_nothing_is_left_and_with_nothing_changed_nothing_changes(program):
    names = changeable(program)
    free, same = what_if(program, [Adjustment(names), Adjustment(names, 1.0)], critical_path(program))
    assert free.iteration_s == 0.0
    assert same.iteration_s == listing(program).iteration_s
    assert free.on_path_s == pytest.approx(same.iteration_s, rel=1e-9)
