"""An input error carries every problem, and each says what, where and what would be right."""

import pytest

from shardsim.errors import InputError, Problem, ProgramError, ShardsimError


def test_a_problem_says_where_what_and_what_would_be_right():
    assert str(Problem("heads are not divisible by 7", "run.yaml:3: layout.tp", "1, 2, 4, 8")) == (
        "run.yaml:3: layout.tp: heads are not divisible by 7 (1, 2, 4, 8)"
    )
    assert str(Problem("is empty")) == "is empty"


def test_all_problems_stand_in_the_message_in_order():
    error = InputError([Problem("first", "a"), "second"])
    assert error.problems == (Problem("first", "a"), Problem("second"))
    assert str(error) == "a: first\nsecond"


@pytest.mark.parametrize("problem", ["one", Problem("one")])
def test_one_problem_needs_no_list(problem):
    assert InputError(problem).problems == (Problem("one"),)


def test_problems_from_a_generator_are_kept():
    error = InputError(Problem(str(n)) for n in range(3))
    assert [problem.what for problem in error.problems] == ["0", "1", "2"]
    assert str(error) == "0\n1\n2"


@pytest.mark.parametrize("kind", [InputError, ProgramError])
def test_every_error_raised_on_purpose_has_one_base(kind):
    assert issubclass(kind, ShardsimError)
