"""A user's own schedule from a file: what is read, and every problem with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardsim.errors import InputError
from shardsim.schema.schedules import load_schedule, schedule_text
from shardsim.values.program import Pair, Pass
from shardsim.workload.schedules import make_schedule


@pytest.fixture
def write(tmp_path: Path):
    def _write(text: str, name: str = "own.yaml") -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return _write


def problems(path: Path) -> list[str]:
    with pytest.raises(InputError) as caught:
        load_schedule(path)
    return [str(problem).replace(f"{path}:", "") for problem in caught.value.problems]


def test_orders_are_read_as_they_stand(write) -> None:
    schedule = load_schedule(write("name: mine\nstages:\n  - F0 F1 I0 W0 B1\n  - F0 B0 F1 B1\n"))
    assert (schedule.name, schedule.microbatches, schedule.chains) == ("mine", 2, (((0, 0), (1, 0)),))
    assert schedule.orders[0] == (Pass("F", 0), Pass("F", 1), Pass("I", 0), Pass("W", 0), Pass("B", 1))


def test_without_a_name_it_is_called_as_its_file(write) -> None:
    assert load_schedule(write("stages: [F0 B0]", "hybrid.yaml")).name == "hybrid"


def test_an_order_may_be_a_list_and_may_go_on_over_lines(write) -> None:
    text = "stages:\n  - - F0 F1\n    - '[F2&B0]'\n    - B1 B2\n  - F0\n    B0 F1 B1\n    F2 B2\n"
    first, second = load_schedule(write(text)).orders
    assert first[2] == Pair(Pass("F", 2), Pass("B", 0))
    assert len(second) == 6


def test_chunks_and_a_v_and_chains_of_one_s_own(write) -> None:
    orders = "stages:\n  - F0.0 F0.1 B0.1 B0.0\n  - F0.0 F0.1 B0.1 B0.0\n"
    assert load_schedule(write("chains: v\n" + orders)).places == ((0, 0), (1, 0), (1, 1), (0, 1))
    own = load_schedule(write("chains: [[[1, 0], [0, 0], [1, 1], [0, 1]]]\n" + orders))
    assert own.places == ((1, 0), (0, 0), (1, 1), (0, 1))
    assert load_schedule(write("chunks: 2\n" + orders)).places == ((0, 0), (1, 0), (0, 1), (1, 1))


def test_two_chains_hold_two_copies_of_the_parameters(write) -> None:
    text = "chains: [[[0, 0], [1, 0]], [[1, 1], [0, 1]]]\nstages:\n  - F0.0 F1.1 B1.1 B0.0\n  - F1.1 F0.0 B0.0 B1.1\n"
    assert load_schedule(write(text)).copies == 2


@pytest.mark.parametrize("name", ["1f1b", "interleaved", "zb-h2", "zb-v", "dualpipe", "dualpipev"])
def test_named_schedules_come_back_from_their_text(write, name: str) -> None:
    chunks = {"1f1b": 1, "zb-h2": 1, "interleaved": 3}.get(name, 2)
    schedule = make_schedule(name, 2, 6, chunks)
    assert load_schedule(write(schedule_text(schedule))) == schedule


def test_every_word_that_cannot_be_read_is_listed_with_its_line(write) -> None:
    text = "stages:\n  - F0 f1 B0\n  - F0 B0\n    F1.1.1\n  - [F0 B0, '[F1B0]']\n"
    assert [line[:32] for line in problems(write(text))] == [
        "2: stages[0]: 'f1' is not a pass",
        "3: stages[1]: 'F1.1.1' is not a ",
        "5: stages[2][1]: '[F1B0]' is not",
    ]


def test_a_chunk_must_be_named_where_there_are_several(write) -> None:
    text = "chains: v\nstages:\n  - F0 F0.1 [F1.0&B0] B0.0\n"
    assert problems(write(text)) == [
        "3: stages[0]: 'F0' does not say which of 2 chunks it runs; for chunk 0 write F0.0",
        "3: stages[0]: '[F1.0&B0]' does not say which of 2 chunks it runs; for chunk 0 write [F1.0&B0.0]",
    ]


def test_what_cannot_run_is_listed_with_its_line(write) -> None:
    text = "stages:\n  - F0 F1 B1\n  - F0 F1 B0 B1\n  - F0 B0 B0 F1 B1\n"
    assert problems(write(text)) == [
        "2: stages[0]: runs F0; right would be F0 B0, or F0 I0 W0, others between them",
        "4: stages[2]: runs F0 B0 B0; right would be F0 B0, or F0 I0 W0, others between them",
    ]


def test_a_gap_in_the_numbers_of_micro_batches_is_found(write) -> None:
    assert problems(write("stages:\n  - F0 B0 F2 B2\n")) == ["1: stages: micro-batches 1 do not run at all"]
    (message,) = problems(write("stages:\n  - F0 B0 F999999999 B999999999\n"))[:1]
    assert message.startswith("2: stages[0]: F999999999.0, counted from 0: there are 4 micro-batches")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("stages: []", "stages"),
        ("stages: [F0 B0]\nchains: w", "2: chains: 'w'"),
        ("stages: [F0 B0]\nchuncks: 2", "2: chuncks: unknown key 'chuncks' (did you mean chunks"),
        ("stages: [F0.0 B0.0]\nchains: v\nchunks: 3", "3: chunks: 3 chunks, but the chains go through 2"),
        ("stages: [F0 B0]\nchains: [[[0, 0], [1, 0]]]", "2: chains: a chain goes through stage 1, chunk 0, which"),
        (
            "stages: [F0.9999999 B0.9999999]\nchains: [[[0, 9999999]]]",
            "2: chains: a chain goes through stage 0, chunk 9999999",
        ),
        ("name: mine", "stages"),
    ],
)
def test_keys_and_chains_are_checked(write, text: str, expected: str) -> None:
    assert any(expected in message for message in problems(write(text)))


def test_stages_that_can_be_read_are_checked_beside_those_that_cannot(write) -> None:
    text = "stages:\n  - F0 F1 B0 B1 F0\n  - X3\n"
    assert [line[:32] for line in problems(write(text))] == [
        "3: stages[1]: 'X3' is not a pass",
        "2: stages[0]: runs F0 B0 F0; rig",
    ]
    text = "chunks: 3\nchains: v\nstages:\n  - F0.0 X3 F0.1 B0.1 B0.0\n"
    assert [line.split(":")[0] for line in problems(write(text))] == ["1", "4"]


def test_more_chunks_than_passes_are_a_slip_of_the_pen(write) -> None:
    (found,) = problems(write("chunks: 1000000000\nstages: [F0.0 B0.0, F0.0 B0.0]\n"))
    assert found.endswith("1000000000 chunks, and no order has passes for more than 1: each runs F and B (1 or less)")


@pytest.mark.parametrize("chains", ["[]", "[[]]", "[[[0, 0], [1, 0]], []]"])
def test_chains_name_places(write, chains: str) -> None:
    (found,) = problems(write(f"chains: {chains}\nstages: [F0 B0, F0 B0]\n"))
    assert "chains is empty, or holds an empty list" in found


def test_problems_without_end_are_cut_short(write) -> None:
    found = problems(write("stages:\n  - " + " ".join(f"X{i}" for i in range(100)) + "\n"))
    assert len(found) == 21
    assert found[-1] == "and 80 more problems"
