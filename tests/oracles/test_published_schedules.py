"""Pipeline orders, makespans and bubble rates (facts C.1, C.2, C.3), by an executor of ten lines."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from shardsim.values.program import PipelineSchedule
from shardsim.workload.schedules import make_schedule, peak_in_flight

P4_M8_1F1B = """
F0 F1 F2 F3 B0 F4 B1 F5 B2 F6 B3 F7 B4 B5 B6 B7
F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 F6 B4 F7 B5 B6 B7
F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 F6 B5 F7 B6 B7
F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7
"""
P4_M8_V2_FIRST = (
    "F0.0 F1.0 F2.0 F3.0 F0.1 F1.1 F2.1 F3.1 F4.0 F5.0 F6.0 B0.1 F7.0 B1.1 F4.1 B2.1 "
    "F5.1 B3.1 F6.1 B0.0 F7.1 B1.0 B2.0 B3.0 B4.1 B5.1 B6.1 B7.1 B4.0 B5.0 B6.0 B7.0"
)
P4_M8_V2_LAST = (
    "F0.0 F1.0 F2.0 F3.0 F0.1 B0.1 F1.1 B1.1 F2.1 B2.1 F3.1 B3.1 F4.0 B0.0 F5.0 B1.0 "
    "F6.0 B2.0 F7.0 B3.0 F4.1 B4.1 F5.1 B5.1 F6.1 B6.1 F7.1 B7.1 B4.0 B5.0 B6.0 B7.0"
)
ZERO_BUBBLE_TABLE_6_AND_5 = [
    (8, 24, 18.522, 18.086, 9.337, 0.601, 0.2431),
    (8, 32, 18.513, 18.086, 9.331, 0.626, 0.1985),
    (8, 64, 18.546, 18.097, 9.321, 0.762, 0.1240),
    (8, 24, 29.718, 29.444, 19.927, 0.527, 0.2347),
    (8, 32, 29.802, 29.428, 19.530, 0.577, 0.1898),
    (8, 64, 29.935, 29.621, 19.388, 0.535, 0.1091),
    (16, 48, 11.347, 11.248, 8.132, 0.377, 0.2552),
    (16, 64, 11.307, 11.254, 8.101, 0.379, 0.2082),
    (16, 128, 11.325, 11.308, 8.109, 0.378, 0.1251),
    (32, 96, 10.419, 10.207, 7.715, 0.408, 0.2646),
    (32, 128, 10.408, 10.204, 7.703, 0.408, 0.2168),
    (32, 256, 10.402, 10.248, 7.698, 0.460, 0.1352),
]


def finish_times(schedule: PipelineSchedule, seconds: Mapping[str, float], message: float = 0.0) -> dict[object, float]:
    """When each pass ends: a stage runs its order, a message takes time but holds up nobody."""
    places = {place: index for index, place in enumerate(schedule.virtual_stages)}
    done: dict[object, float] = {}
    clock, position = [0.0] * schedule.stages, [0] * schedule.stages
    while any(position[s] < len(schedule.orders[s]) for s in range(schedule.stages)):
        moved = False
        for stage, order in enumerate(schedule.orders):
            while position[stage] < len(order):
                kind, microbatch, chunk = order[position[stage]]
                at = places[stage, chunk]
                before = at - 1 if kind == "F" else at + 1
                need = ("F", microbatch, at) if kind == "B" and before == len(places) else (kind, microbatch, before)
                if before >= 0 and need not in done:
                    break
                ready = 0.0
                if before >= 0:
                    other = stage if need[2] == at else schedule.virtual_stages[before][0]
                    ready = done[need] + (message if other != stage else 0.0)
                clock[stage] = max(clock[stage], ready) + seconds[kind]
                done[kind, microbatch, at] = clock[stage]
                position[stage] += 1
                moved = True
        assert moved, "deadlock"
    return done


def makespan(schedule: PipelineSchedule, forward: float, backward: float) -> float:
    return max(finish_times(schedule, {"F": forward, "B": backward}).values())


def test_the_1f1b_orders_for_four_stages_and_eight_micro_batches() -> None:
    orders = make_schedule("1f1b", 4, 8).orders
    assert [" ".join(f"{kind}{m}" for kind, m, _ in order) for order in orders] == P4_M8_1F1B.split("\n")[1:-1]


def test_every_gpipe_stage_runs_all_forward_passes_first() -> None:
    expected = " ".join([*(f"F{i}" for i in range(8)), *(f"B{i}" for i in range(8))])
    for order in make_schedule("gpipe", 4, 8).orders:
        assert " ".join(f"{kind}{m}" for kind, m, _ in order) == expected


@pytest.mark.parametrize(("stage", "expected"), [(0, P4_M8_V2_FIRST), (3, P4_M8_V2_LAST)])
def test_the_interleaved_orders_for_four_stages_eight_micro_batches_two_chunks(stage: int, expected: str) -> None:
    order = make_schedule("interleaved", 4, 8, 2).orders[stage]
    assert " ".join(f"{kind}{m}.{chunk}" for kind, m, chunk in order) == expected


@pytest.mark.parametrize(
    ("name", "chunks", "forward", "backward", "expected"),
    [("gpipe", 1, 1.0, 2.0, 33.0), ("1f1b", 1, 1.0, 2.0, 33.0), ("interleaved", 2, 0.5, 1.0, 28.5)],
)
def test_makespans_for_four_stages_and_eight_micro_batches(
    name: str, chunks: int, forward: float, backward: float, expected: float
) -> None:
    assert makespan(make_schedule(name, 4, 8, chunks), forward, backward) == expected


def test_1f1b_idles_nine_units_on_every_stage() -> None:
    schedule = make_schedule("1f1b", 4, 8)
    assert makespan(schedule, 1.0, 2.0) - 8 * 3.0 == 9.0


@pytest.mark.parametrize(("p", "m"), [(1, 1), (2, 5), (4, 8), (8, 24), (16, 3)])
def test_gpipe_and_1f1b_bubbles_are_p_minus_1_passes(p: int, m: int) -> None:
    for name in ("gpipe", "1f1b"):
        assert makespan(make_schedule(name, p, m), 1.0, 2.0) == (p - 1 + m) * 3.0


@pytest.mark.parametrize(("p", "m", "v"), [(2, 4, 2), (4, 8, 2), (4, 16, 3), (8, 32, 4), (6, 6, 5)])
def test_interleaving_divides_the_bubble_by_the_chunks(p: int, m: int, v: int) -> None:
    found = makespan(make_schedule("interleaved", p, m, v), 1.0, 2.0)
    assert found - 3.0 * m * v == 3.0 * (p - 1)


def test_peak_in_flight_for_four_stages_and_eight_micro_batches() -> None:
    peaks = {name: peak_in_flight(make_schedule(name, 4, 8, v)) for name, v in (("gpipe", 1), ("1f1b", 1))}
    assert peaks == {"gpipe": ((8,),) * 4, "1f1b": ((4,), (3,), (2,), (1,))}
    assert [sum(chunks) for chunks in peak_in_flight(make_schedule("interleaved", 4, 8, 2))] == [11, 9, 7, 5]


@pytest.mark.parametrize(("p", "m", "v"), [(4, 8, 2), (8, 64, 3), (35, 70, 3)])
def test_the_first_interleaved_stage_holds_the_layers_that_korthikanti_says(p: int, m: int, v: int) -> None:
    chunks = sum(peak_in_flight(make_schedule("interleaved", p, m, v))[0])
    assert chunks / (p * v) == pytest.approx(1 + (p - 1) / (p * v))


@pytest.mark.parametrize(("p", "m", "t_f", "t_b", "t_w", "t_comm", "rate"), ZERO_BUBBLE_TABLE_6_AND_5)
def test_zero_bubble_table_5_rates_of_1f1b_to_four_decimals(
    p: int, m: int, t_f: float, t_b: float, t_w: float, t_comm: float, rate: float
) -> None:
    done = finish_times(make_schedule("1f1b", p, m), {"F": t_f, "B": t_b + t_w}, t_comm)
    cost = max(
        max(t for (_, _, at), t in done.items() if at == stage) - (done["F", 0, stage] - t_f) for stage in range(p)
    )
    assert round((cost - m * (t_f + t_b + t_w)) / cost, 4) == rate
