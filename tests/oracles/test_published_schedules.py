"""Published orders, makespans, bubbles and peaks of pipeline schedules (facts C), by an executor of forty lines.

Sources: GPipe 1811.06965; Megatron-LM 2104.04473; Korthikanti 2205.05198; Zero Bubble 2401.10241; Controllable Memory
2405.15362; github deepseek-ai/DualPipe.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

import pytest

from shardsim.values.pipeline import order_text
from shardsim.values.program import Item, Pair, Pass, PipelineSchedule, passes_of
from shardsim.workload.schedules import make_schedule, peak_in_flight

WHOLE = {"F": 1.0, "B": 2.0}
SPLIT = {"F": 1.0, "I": 1.0, "W": 1.0}
PAIRED = {**SPLIT, "B": 2.0, "pair": 3.0}

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
P4_M8_ZB_H1_FIRST = "F0 F1 F2 F3 I0 W0 F4 I1 W1 F5 I2 W2 F6 I3 W3 F7 I4 W4 I5 W5 I6 W6 I7 W7"
P4_M8_ZB_H1_LAST = "F0 I0 F1 I1 F2 I2 F3 I3 W0 F4 I4 W1 F5 I5 W2 F6 I6 W3 F7 I7 W4 W5 W6 W7"
R4_M8_DUALPIPE = """
F0.0 F0.1 F0.2 F1.0 I1.0 W1.0 F1.1 [F0.3&B1.1] [F1.2&B0.0] B1.2 [F1.3&B0.1] B1.3 I0.2 W0.2 I0.3 W0.3
F0.0 F1.0 F0.1 F1.1 F0.2 B1.0 [F1.2&B0.0] [F0.3&B1.1] [F1.3&B0.1] B1.2 B0.2 I1.3 I0.3 W1.3 W0.3
"""
# p, m; T_F, T_B, T_W, T_comm in ms of Table 6; chunks of 1F1B-I from the layers of Table 3; then the bubble rates of
# Table 5: 1F1B, 1F1B-I, ZB-H1, ZB-H2.
ZERO_BUBBLE_TABLE_6_AND_5 = [
    (8, 24, 18.522, 18.086, 9.337, 0.601, 3, 0.2431, 0.1055, 0.1585, 0.1083),
    (8, 32, 18.513, 18.086, 9.331, 0.626, 3, 0.1985, 0.0818, 0.1242, 0.0837),
    (8, 64, 18.546, 18.097, 9.321, 0.762, 3, 0.1240, 0.0443, 0.0674, 0.0444),
    (8, 24, 29.718, 29.444, 19.927, 0.527, 4, 0.2347, 0.0808, 0.1323, 0.0698),
    (8, 32, 29.802, 29.428, 19.530, 0.577, 4, 0.1898, 0.0628, 0.1045, 0.0559),
    (8, 64, 29.935, 29.621, 19.388, 0.535, 4, 0.1091, 0.0320, 0.0554, 0.0294),
    (16, 48, 11.347, 11.248, 8.132, 0.377, 3, 0.2552, 0.1104, 0.1397, 0.0672),
    (16, 64, 11.307, 11.254, 8.101, 0.379, 3, 0.2082, 0.0852, 0.1088, 0.0516),
    (16, 128, 11.325, 11.308, 8.109, 0.378, 3, 0.1251, 0.0445, 0.0576, 0.0266),
    (32, 96, 10.419, 10.207, 7.715, 0.408, 2, 0.2646, 0.1493, 0.1421, 0.0641),
    (32, 128, 10.408, 10.204, 7.703, 0.408, 2, 0.2168, 0.1164, 0.1106, 0.0490),
    (32, 256, 10.402, 10.248, 7.698, 0.460, 2, 0.1352, 0.0624, 0.0594, 0.0257),
]


def finishes(ran) -> list[float]:
    return [stage[-1].end for stage in ran]


def spans(ran) -> list[float]:
    """From the first start to the last end of each stage."""
    return [stage[-1].end - stage[0].start for stage in ran]


def activations(order: Sequence[Item], whole: float = 1.0, weight_part: float = 1.0) -> float:
    """Peak of activations: ``whole`` from the forward pass on, ``weight_part`` between I and W.

    A pass frees what it frees when it ends, so the forward pass of a pair finds the activations of its partner.
    """
    held = peak = 0.0
    for kind, _, _ in passes_of(order):
        held += {"F": whole, "B": -whole, "I": weight_part - whole, "W": -weight_part}[kind]
        peak = max(peak, held)
    return peak


def test_the_1f1b_orders_for_four_stages_and_eight_micro_batches() -> None:
    orders = make_schedule("1f1b", 4, 8).orders
    assert [order_text(order) for order in orders] == P4_M8_1F1B.split("\n")[1:-1]


def test_every_gpipe_stage_runs_all_forward_passes_first() -> None:
    expected = " ".join([*(f"F{i}" for i in range(8)), *(f"B{i}" for i in range(8))])
    for order in make_schedule("gpipe", 4, 8).orders:
        assert order_text(order) == expected


@pytest.mark.parametrize(
    ("name", "chunks", "stage", "expected"),
    [
        ("interleaved", 2, 0, P4_M8_V2_FIRST),
        ("interleaved", 2, 3, P4_M8_V2_LAST),
        ("zb-h1", 1, 0, P4_M8_ZB_H1_FIRST),
        ("zb-h1", 1, 3, P4_M8_ZB_H1_LAST),
    ],
)
def test_orders_of_the_first_and_last_of_four_stages(name: str, chunks: int, stage: int, expected: str) -> None:
    assert order_text(make_schedule(name, 4, 8, chunks).orders[stage], chunks) == expected


@pytest.mark.parametrize(
    ("name", "chunks", "forward", "backward", "expected"),
    [("gpipe", 1, 1.0, 2.0, 33.0), ("1f1b", 1, 1.0, 2.0, 33.0), ("interleaved", 2, 0.5, 1.0, 28.5)],
)
def test_makespans_for_four_stages_and_eight_micro_batches(execute, name, chunks, forward, backward, expected) -> None:
    assert max(finishes(execute(make_schedule(name, 4, 8, chunks), {"F": forward, "B": backward}))) == expected


@pytest.mark.parametrize(("p", "m"), [(1, 1), (2, 5), (4, 8), (8, 24), (16, 3)])
def test_gpipe_and_1f1b_bubbles_are_p_minus_1_passes(execute, p: int, m: int) -> None:
    for name in ("gpipe", "1f1b"):
        assert max(finishes(execute(make_schedule(name, p, m), WHOLE))) == (p - 1 + m) * 3.0


@pytest.mark.parametrize(("p", "m", "v"), [(2, 4, 2), (4, 8, 2), (4, 16, 3), (8, 32, 4), (6, 6, 5)])
def test_interleaving_divides_the_bubble_by_the_chunks(execute, p: int, m: int, v: int) -> None:
    found = max(finishes(execute(make_schedule("interleaved", p, m, v), WHOLE)))
    assert found - 3.0 * m * v == 3.0 * (p - 1)


@pytest.mark.parametrize("group", [4, 5, 6, 8, 12, 24])
def test_the_size_of_a_group_changes_memory_and_not_the_bubble(execute, group: int) -> None:
    """Llama 3 (2407.21783 §3.3.2): depth first to breadth first; here 24 micro-batches, four stages, two chunks."""
    schedule = make_schedule("interleaved", 4, 24, 2, group)
    assert max(finishes(execute(schedule, WHOLE))) - 3.0 * 24 * 2 == 9.0
    assert sum(peak_in_flight(schedule)[0]) == 2 * 3 + group + 1


def test_peak_in_flight_for_four_stages_and_eight_micro_batches() -> None:
    peaks = {name: peak_in_flight(make_schedule(name, 4, 8)) for name in ("gpipe", "1f1b")}
    assert peaks == {"gpipe": ((8,),) * 4, "1f1b": ((4,), (3,), (2,), (1,))}
    assert [sum(chunks) for chunks in peak_in_flight(make_schedule("interleaved", 4, 8, 2))] == [11, 9, 7, 5]


@pytest.mark.parametrize(("p", "m", "v"), [(4, 8, 2), (8, 64, 3), (35, 70, 3)])
def test_the_first_interleaved_stage_holds_the_layers_that_korthikanti_says(p: int, m: int, v: int) -> None:
    chunks = sum(peak_in_flight(make_schedule("interleaved", p, m, v))[0])
    assert chunks / (p * v) == pytest.approx(1 + (p - 1) / (p * v))


def test_zb_h1_takes_27_units_where_1f1b_takes_33(execute) -> None:
    ran = execute(make_schedule("zb-h1", 4, 8), SPLIT)
    assert max(finishes(ran)) == 27.0
    assert [span - 24.0 for span in spans(ran)] == [3.0, 2.0, 1.0, 0.0]


def test_zb_h2_has_no_bubble_inside_the_span_of_a_stage(execute) -> None:
    schedule = make_schedule("zb-h2", 4, 8)
    ran = execute(schedule, SPLIT)
    assert spans(ran) == [24.0] * 4
    assert finishes(ran) == [24.0, 25.0, 26.0, 27.0]
    assert [[one.kind for one in order].index("I") for order in schedule.orders] == [7, 5, 3, 1]


@pytest.mark.parametrize(("p", "m"), [(2, 6), (4, 8), (8, 24), (16, 48)])
@pytest.mark.parametrize(("t_f", "t_i", "t_w"), [(1.0, 1.0, 1.0), (1.0, 1.25, 0.75)])
def test_zero_bubble_formulas_of_table_2(execute, p: int, m: int, t_f: float, t_i: float, t_w: float) -> None:
    seconds, work = {"F": t_f, "I": t_i, "W": t_w}, m * (t_f + t_i + t_w)
    assert max(spans(execute(make_schedule("zb-h1", p, m), seconds))) - work == (p - 1) * (t_f + t_i - t_w)
    assert max(spans(execute(make_schedule("zb-h2", p, m), seconds))) - work == (p - 1) * (t_f + t_i - 2 * t_w)


@pytest.mark.parametrize(("p", "m"), [(4, 8), (8, 24), (5, 20)])
@pytest.mark.parametrize("m_w", [0.25, 0.5, 1.0])
def test_zero_bubble_activations_of_table_2(p: int, m: int, m_w: float) -> None:
    """In units of M_B, what forward to input gradient hold; M_W of it waits for the weight gradient."""
    for name, expected in (
        ("zb-h1", [p - i + 1 + (i - 1) * m_w for i in range(1, p + 1)]),
        ("zb-h2", [2 * p - 2 * i + 1 + (2 * i - 2) * m_w for i in range(1, p + 1)]),
    ):
        assert [activations(order, 1.0, m_w) for order in make_schedule(name, p, m).orders] == expected


@pytest.mark.parametrize("row", ZERO_BUBBLE_TABLE_6_AND_5, ids=lambda row: f"p{row[0]}-m{row[1]}")
def test_bubble_rates_of_zero_bubble_table_5_follow_from_table_6(execute, row) -> None:
    """To four decimals; 1F1B-I within 0.0035: the published column is lower by p messages in every row."""
    p, m, f, b, w, message, v, plain, interleaved, h1, h2 = row

    def cost(name: str, chunks: int = 1) -> float:
        seconds = {"F": f / chunks, "B": (b + w) / chunks, "I": b, "W": w}
        return max(spans(execute(make_schedule(name, p, m, chunks), seconds, message)))

    def rate(seconds: float) -> float:
        return (seconds - m * (f + b + w)) / seconds

    assert [round(rate(cost(name)), 4) for name in ("1f1b", "zb-h1", "zb-h2")] == [plain, h1, h2]
    assert rate(cost("interleaved", v)) == pytest.approx(interleaved, abs=0.0035)
    assert round(rate(cost("interleaved", v) - p * message), 4) == interleaved


def by_direction(order: Sequence[Item], half: int) -> str:
    """As the project prints it: direction before the number of the micro-batch within it."""

    def turned(one: Pass) -> Pass:
        return Pass(one.kind, one.chunk, one.microbatch - half * one.chunk)

    items = [Pair(*map(turned, one)) if isinstance(one, Pair) else turned(one) for one in order]
    return order_text(items, chunks=2)


def mirror(item: Item, microbatches: int) -> Item:
    """The same in the other direction."""

    def turned(one: Pass) -> Pass:
        return Pass(one.kind, (one.microbatch + microbatches // 2) % microbatches, 1 - one.chunk)

    return Pair(*map(turned, item)) if isinstance(item, Pair) else turned(item)


def test_the_dualpipe_orders_of_four_ranks_and_eight_micro_batches() -> None:
    expected = R4_M8_DUALPIPE.split("\n")[1:-1]
    orders = make_schedule("dualpipe", 4, 8, 2).orders
    assert [by_direction(order, 4) for order in orders[:2]] == expected
    mirrored = [[mirror(one, 8) for one in order] for order in reversed(orders[2:])]
    assert [by_direction(order, 4) for order in mirrored] == expected


def test_dualpipev_of_two_ranks_and_four_micro_batches_prints_the_same_two_rows() -> None:
    orders = make_schedule("dualpipev", 2, 4, 2).orders
    assert [by_direction(order, 0) for order in orders] == R4_M8_DUALPIPE.split("\n")[1:-1]


@pytest.mark.parametrize(
    ("name", "ranks", "microbatches", "makespan", "depth"),
    [
        ("dualpipe", 8, 20, 66, 4),
        ("dualpipe", 4, 8, 26, 2),
        ("dualpipe", 16, 40, 134, 8),
        ("dualpipe", 16, 120, 374, 8),
        ("dualpipe", 2, 4, 12, 1),
        ("dualpipev", 4, 10, 66, 4),
        ("dualpipev", 2, 4, 26, 2),
        ("dualpipev", 4, 8, 54, 4),
        ("dualpipev", 8, 20, 134, 8),
    ],
)
def test_dualpipe_makespans_bubbles_and_peaks(execute, name, ranks, microbatches, makespan, depth) -> None:
    """F 1, B 2, I 1, W 1, a pair 3: bubble (PP/2 - 1) (F&B + B - 3 W) and PP + 1 chunks, PP stages of the model."""
    schedule = make_schedule(name, ranks, microbatches, 2)
    ran = execute(schedule, PAIRED)
    assert finishes(ran) == [makespan] * ranks
    work = [sum(one.end - one.start for one in stage) for stage in ran]
    assert [makespan - one for one in work] == [(depth - 1) * 2.0] * ranks
    assert [sum(chunks) for chunks in peak_in_flight(schedule)] == [2 * depth + 1] * ranks


def warm_up(schedule: PipelineSchedule, stage: int) -> list[int]:
    """Forward passes of each chunk before the first that an input gradient follows."""
    order = schedule.orders[stage]
    first = [one.kind for one in order].index("I") - 1
    return [sum(one.chunk == chunk for one in order[:first]) for chunk in (0, 1)]


@pytest.mark.parametrize(("p", "m"), [(1, 1), (1, 4), (2, 3), (4, 7), (4, 8), (4, 16), (7, 13), (16, 64)])
def test_zb_v_has_no_bubble_and_the_same_memory_on_every_stage(execute, p: int, m: int) -> None:
    """Zero Bubble §6: worker i warms up with 2p - i and i - 1 forward passes; p M_B, that is 2p half stages."""
    schedule = make_schedule("zb-v", p, m, 2)
    assert spans(execute(schedule, SPLIT)) == [6.0 * m] * p
    assert [warm_up(schedule, i - 1) for i in range(1, p + 1)] == [[2 * p - i, i - 1] for i in range(1, p + 1)]
    assert [activations(order) for order in schedule.orders] == [2 * p] * p


def test_after_its_warm_up_zb_v_runs_forward_and_both_gradients_in_turn() -> None:
    """Zero Bubble §6: then p - i + 1 groups of F, I, W of the second chunk, then groups of either chunk in turn."""
    order = make_schedule("zb-v", 4, 16, 2).orders[0]
    rest = [f"{one.kind}{one.chunk}" for one in order[7:]]
    assert rest[: 4 * 3] == ["F1", "I1", "W1"] * 4
    assert rest[12:24] == ["F0", "I0", "W0", "F1", "I1", "W1"] * 2


def test_the_v_puts_first_and_last_layers_on_the_first_worker() -> None:
    """Sixteen layers on four workers: 1-2 and 15-16, then 3-4 and 13-14."""
    ((*places,),) = make_schedule("zb-v", 4, 8, 2).chains
    layers = {place: (2 * at + 1, 2 * at + 2) for at, place in enumerate(places)}
    assert [layers[0, 0], layers[0, 1], layers[1, 0], layers[1, 1]] == [(1, 2), (15, 16), (3, 4), (13, 14)]


@pytest.mark.parametrize("p", [4, 5, 6, 8, 9, 12, 16, 24])
@pytest.mark.parametrize(("name", "share", "bubble"), [("v-half", 1 / 2, 1 / 2), ("v-min", 1 / 3, 2 / 3)])
def test_v_half_and_v_min_trade_memory_for_a_part_of_the_bubble_of_1f1b(execute, p, name, share, bubble) -> None:
    """Half and a third of 1F1B's 2p half stages, up to two; half and two thirds of its bubble of 6 (p - 1) passes."""
    schedule = make_schedule(name, p, 4 * p, 2)
    held = [activations(order) for order in schedule.orders]
    assert max(held) <= ceil(share * 2 * p) + 2
    found = max(spans(execute(schedule, SPLIT))) - 6.0 * 4 * p
    assert bubble * 6 * (p - 1) - 6 <= found <= bubble * 6 * (p - 1)


@pytest.mark.parametrize(("pair", "expected"), [(3.0, 12.0), (2.0, 9.0)])
def test_pairs_without_a_pipeline_end_to_end(execute, pair: float, expected: float) -> None:
    """Four micro-batches: one forward pass, three pairs, one backward pass."""
    schedule = make_schedule("1f1b", 1, 4, paired=True)
    assert finishes(execute(schedule, {**WHOLE, "pair": pair})) == [expected]


def test_interleaved_pairs_on_two_stages_end_as_worked_out_by_hand(execute) -> None:
    """p = 2, m = 4, v = 2: 24 units of work and p - 1 forward and backward passes of bubble, as without pairs."""
    schedule = make_schedule("interleaved", 2, 4, 2, paired=True)
    ran = execute(schedule, {**WHOLE, "pair": 3.0})
    assert finishes(ran) == [27.0, 25.0]
    assert max(finishes(execute(make_schedule("interleaved", 2, 4, 2), WHOLE))) == 27.0
