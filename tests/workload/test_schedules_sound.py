"""What makes a schedule unsound is found and named, with its stage."""

from __future__ import annotations

import pytest

from shardsim.values.program import Item, Pair, Pass, PipelineSchedule
from shardsim.workload.schedules import make_schedule, schedule_problems_of

F0, B0, I0, W0 = (Pass(kind, 0) for kind in ("F", "B", "I", "W"))
F1, B1 = Pass("F", 1), Pass("B", 1)
ONE, TWO = (((0, 0),),), (((0, 0), (1, 0)),)


def found(*orders: tuple[Item, ...], chains: tuple[tuple[tuple[int, int], ...], ...], microbatches: int = 1) -> str:
    return "\n".join(schedule_problems_of(PipelineSchedule("own", orders, chains, microbatches)))


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ((F0, B0), ""),
        ((F0, I0, W0), ""),
        ((F0, F0, B0), "stage 0: runs F0 F0 B0; right would be F0 B0, or F0 I0 W0"),
        ((F0, B0, B0), "runs F0 B0 B0"),
        ((F0, B0, W0), "runs F0 B0 W0"),
        ((F0, I0), "runs F0 I0;"),
        ((F0, W0, I0), "runs F0 W0 I0"),
        ((B0, F0), "runs B0 F0"),
        ((B0,), "runs B0;"),
        ((), "micro-batches 0 do not run at all"),
        ((F0, F1, B0, B1), "F1.0, counted from 0: there are 1 micro-batches and 1 chunks"),
        ((F0, B0, Pass("F", -1), Pass("B", -1)), "F-1.0, counted from 0"),
        ((F0, Pass("F", 0, 1), Pass("B", 0, 1), B0), "F0.1, counted from 0"),
    ],
)
def test_the_passes_of_one_stage(order: tuple[Item, ...], expected: str) -> None:
    assert (expected in found(order, chains=ONE)) if expected else found(order, chains=ONE) == ""


def test_a_pair_is_a_forward_and_a_whole_backward_pass() -> None:
    good = (F0, Pair(F1, B0), B1)
    assert found(good, chains=ONE, microbatches=2) == ""
    split = (F0, Pair(F1, I0), W0, B1)
    assert "[F1&I0] pairs other than" in found(split, chains=ONE, microbatches=2)
    assert "[F0&B0] pairs passes of the same" in found((Pair(F0, B0),), chains=ONE)


def test_a_micro_batch_runs_through_every_place_of_its_chain() -> None:
    assert "stage 1: micro-batches 1 do not run through chunk 0" in found(
        (F0, F1, B0, B1), (F0, B0), chains=TWO, microbatches=2
    )


def test_a_micro_batch_runs_through_one_chain_only() -> None:
    both = (F0, B0, Pass("F", 0, 1), Pass("B", 0, 1))
    assert "micro-batches 0 run through more than one chain" in found(both, chains=(((0, 0),), ((0, 1),)))


@pytest.mark.parametrize(
    ("chains", "expected"),
    [
        ((((0, 0), (1, 0), (1, 1)),), "no chain goes through stage 0, chunk 1"),
        ((((0, 0), (1, 0), (0, 0)),), "chains go through stage 0, chunk 0 2 times"),
        ((((0, 0), (1, 0), (2, 0)),), "a chain goes through stage 2, chunk 0, which there is not"),
        ((((0, 0),), ((1, 0), (0, 1), (1, 1))), "chains of 1 and 3 places: each runs the whole model"),
    ],
)
def test_chains_hold_every_chunk_of_every_stage_once(
    chains: tuple[tuple[tuple[int, int], ...], ...], expected: str
) -> None:
    assert expected in found((F0, B0), (F0, B0), chains=chains)


def test_orders_that_wait_for_each_other_are_named() -> None:
    message = found((F0, B0, F1, B1), (F0, F1, B0, B1), chains=TWO, microbatches=2)
    assert message.split("\n") == [
        "stage 0: B0 waits for ever for its input: the orders wait for each other in a circle",
        "stage 1: F1 waits for ever for its input: the orders wait for each other in a circle",
    ]


def test_input_gradients_wait_for_each_other_as_whole_backward_passes_do() -> None:
    first = (F0, F1, Pass("I", 1), Pass("W", 1), I0, W0)
    second = (F0, I0, W0, F1, B1)
    assert found(first, second, chains=TWO, microbatches=2) == ""
    swapped = (F0, I0, F1, W0, B1)
    assert found(swapped, second, chains=TWO, microbatches=2) == ""
    stuck = (F0, F1, I0, W0, B1), (F0, F1, Pass("I", 1), I0, W0, Pass("W", 1))
    assert found(*stuck, chains=TWO, microbatches=2) == ""
    assert "stage 0: I0 waits" in found((F0, I0, F1, W0, B1), (F0, F1, I0, W0, B1), chains=TWO, microbatches=2)


def test_a_pair_waits_for_the_inputs_of_both() -> None:
    """Stage 1 cannot give back micro-batch 0 before it has run F1, which the pair on stage 0 sends when it ends."""
    orders = (F0, Pair(F1, B0), B1), (F0, F1, B0, B1)
    assert "stage 0: [F1&B0] waits" in found(*orders, chains=TWO, microbatches=2)


def test_a_pipeline_of_nothing_is_refused() -> None:
    assert "no stages or no micro-batches" in found(chains=())


def test_swapping_two_passes_of_a_named_schedule_is_noticed() -> None:
    schedule = make_schedule("1f1b", 4, 8)
    first = list(schedule.orders[0])
    first[0], first[4] = first[4], first[0]
    broken = PipelineSchedule("own", (tuple(first), *schedule.orders[1:]), schedule.chains, 8)
    assert "stage 0: runs B0 F0" in schedule_problems_of(broken)[0]
