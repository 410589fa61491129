"""Several iterations of random programs."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardsim.engine.closed import closed_form
from shardsim.engine.des import simulate
from shardsim.engine.listing import listing
from shardsim.program.coalesce import coalesce
from shardsim.values.program import Block, Task

sys.path.append(str(Path(__file__).parent))
from test_engines_agree import assert_same, programs  # the random programs on which engines are compared


@st.composite
def loaded(draw):
    """Random programs, some stages of which load a batch behind each iteration and wait for it before the next."""
    program = draw(programs())

    def prologue():
        if draw(st.booleans()):
            return Block("prologue", ())
        wait = Task("wait", "compute", "data", 0.0, drains=("data",))
        load = Task("load", "data", "data", draw(st.floats(0.0, 20.0)), blocking=False, slows=False)
        return Block("prologue", (wait, load))

    return replace(program, prologues=tuple(prologue() for _ in range(program.schedule.stages)))


@settings(max_examples=25, deadline=None)
@given(program=loaded(), iterations=st.integers(1, 4))
def test_all_engines_agree_on_several_iterations(program, iterations):
    walked = listing(program, iterations=iterations)
    assert len(walked.ends) == (iterations if iterations > 1 else 0)
    for other in (
        simulate(program, iterations=iterations),
        closed_form(program, iterations=iterations),
        listing(coalesce(program), iterations=iterations),
    ):
        assert_same(other, walked)
        assert other.ends == pytest.approx(walked.ends, rel=1e-9)


@settings(max_examples=15, deadline=None)
@given(program=loaded(), iterations=st.integers(2, 4))
def test_accounts_of_several_iterations_sum_to_their_mean(program, iterations):
    execution = listing(program, iterations=iterations)
    for account in execution.stages:
        assert sum(account.seconds.values()) == pytest.approx(execution.iteration_s, rel=1e-9, abs=1e-12)
