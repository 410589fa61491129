"""Flows on shared links: fair, never above a link's capacity, and every byte delivered."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog
from simpy import Environment

from shardsim.engine.network import Load, Network, max_min_speeds


def fairest_by_programming(loads: Sequence[Load], capacity: dict[int, float]) -> list[float]:
    """The max-min fair rates as a sequence of linear programs, which shares no idea with progressive filling.

    First the least rate of all is made as large as can be; whoever cannot get more than that is settled; and so on.
    """
    count, links = len(loads), sorted(capacity)
    usage = np.array([[dict(load.shares).get(link, 0.0) / load.weight for load in loads] for link in links])
    room = np.array([capacity[link] for link in links])
    most = [load.weight * load.limit for load in loads]
    settled: dict[int, float] = {}

    def best(rising: list[int], target: int | None, floor: float) -> float:
        # Variables: the rates, and the level. Maximise the level, or the rate of one flow above the level.
        cost = np.zeros(count + 1)
        cost[count if target is None else target] = -1.0
        rows, right = [np.append(row, 0.0) for row in usage], list(room)
        for flow in rising:
            row = np.zeros(count + 1)
            row[flow], row[count] = -1.0, 1.0
            rows.append(row)
            right.append(0.0)
        bounds = [(settled[f], settled[f]) if f in settled else (0.0, most[f]) for f in range(count)]
        found = linprog(cost, A_ub=np.array(rows), b_ub=right, bounds=[*bounds, (floor, None)], method="highs")
        assert found.status == 0
        return float(-found.fun)

    while len(settled) < count:
        rising = [flow for flow in range(count) if flow not in settled]
        level = best(rising, None, 0.0)
        stuck = [flow for flow in rising if best(rising, flow, level * (1 - 1e-9)) <= level * (1 + 1e-6)]
        assert stuck
        settled |= dict.fromkeys(stuck, level)
    return [settled[flow] / load.weight for flow, load in enumerate(loads)]


shares = st.integers(1, 20).map(lambda tenths: tenths / 10)


@st.composite
def crowds(draw: st.DrawFn) -> tuple[list[Load], dict[int, float]]:
    links = draw(st.integers(1, 4))
    loads = []
    for _ in range(draw(st.integers(1, 5))):
        used = draw(st.sets(st.integers(0, links - 1), min_size=1))
        limit = draw(st.sampled_from([1.0, 1.0, 0.5, 0.2]))
        loads.append(
            Load(tuple((link, draw(shares)) for link in sorted(used)), draw(st.sampled_from([1.0, 2.0, 5.0])), limit)
        )
    return loads, {link: draw(st.sampled_from([1.0, 0.5, 0.25])) for link in range(links)}


@given(crowds())
@settings(max_examples=60, deadline=None)
def test_flows_share_links_as_linear_programs_would(crowd):
    loads, capacity = crowd
    assert max_min_speeds(loads, capacity) == pytest.approx(fairest_by_programming(loads, capacity), rel=1e-5)


@given(crowds())
@settings(max_examples=150, deadline=None)
def test_no_link_is_above_its_capacity_and_no_flow_above_its_limit(crowd):
    loads, capacity = crowd
    speeds = max_min_speeds(loads, capacity)
    assert all(0.0 <= speed <= load.limit * (1 + 1e-12) for speed, load in zip(speeds, loads, strict=True))
    for link, room in capacity.items():
        used = sum(dict(load.shares).get(link, 0.0) * speed for load, speed in zip(loads, speeds, strict=True))
        assert used <= room * (1 + 1e-9)


def test_half_of_a_link_that_the_other_does_not_need_is_left_to_whoever_wants_it():
    """Three flows: one takes a tenth at most, two share the rest; the third is on a link of its own besides."""
    loads = [Load(((0, 0.1),), 10.0), Load(((0, 1.0),), 100.0), Load(((0, 1.0), (1, 0.5)), 100.0)]
    assert max_min_speeds(loads, {0: 1.0, 1: 1.0}) == pytest.approx([1.0, 0.45, 0.45])


def run_flows(
    starts: Sequence[tuple[float, Load, float, float]], capacity: Sequence[float]
) -> tuple[dict[int, float], Network]:
    """Start flows at given times, with latency and seconds at full speed; when each ends."""
    env = Environment()
    network = Network(env, capacity, recording=True)
    ends: dict[int, float] = {}

    def begin(number: int, delay: float, load: Load, latency: float, moving: float):
        yield env.timeout(delay)
        network.start(load, latency, moving, lambda: ends.__setitem__(number, env.now))

    for number, start in enumerate(starts):
        env.process(begin(number, *start))
    env.run()
    return ends, network


def test_two_flows_on_one_link_take_twice_as_long_while_both_are_there():
    """The second comes when the first is half done: 1 + 2 s for the first, and then 1 s is left of the second."""
    whole = Load(((0, 1.0),), 1.0)
    ends, _ = run_flows([(0.0, whole, 0.0, 2.0), (1.0, whole, 0.0, 2.0)], [1.0])
    assert ends == pytest.approx({0: 3.0, 1: 4.0})


def test_a_flow_that_leaves_room_is_not_slowed():
    ends, network = run_flows([(0.0, Load(((0, 0.5),), 1.0), 0.0, 2.0), (1.0, Load(((0, 0.5),), 1.0), 0.0, 2.0)], [1.0])
    assert ends == pytest.approx({0: 2.0, 1: 3.0})
    assert network.rerated == 0


def test_latency_is_not_stretched():
    whole = Load(((0, 1.0),), 1.0)
    ends, _ = run_flows([(0.0, whole, 1.0, 2.0)], [0.5])
    assert ends[0] == pytest.approx(1.0 + 4.0)


def test_a_degraded_link_slows_a_flow_that_is_alone():
    ends, _ = run_flows([(0.0, Load(((0, 0.8),), 1.0), 0.0, 1.0)], [0.4])
    assert ends[0] == pytest.approx(2.0)


def test_a_collective_goes_on_at_the_pace_of_its_slowest_link():
    """Its second link is shared with another flow, so that the third flow on its first link gets what it leaves."""
    across, other, third = Load(((0, 1.0), (1, 1.0)), 1.0), Load(((1, 1.0),), 1.0), Load(((0, 1.0),), 1.0)
    ends, _ = run_flows([(0.0, across, 0.0, 1.0), (0.0, other, 0.0, 1.0), (0.0, third, 0.0, 1.0)], [1.0, 1.0])
    assert ends == pytest.approx({0: 2.0, 1: 2.0, 2: 2.0})


@st.composite
def traffic(draw: st.DrawFn) -> tuple[list[tuple[float, Load, float, float]], list[float]]:
    loads, capacity = draw(crowds())
    times = st.integers(0, 12).map(lambda quarters: quarters / 4)
    starts = [(draw(times), load, draw(times) / 4, draw(times) + 0.25) for load in loads]
    return starts, [capacity[link] for link in sorted(capacity)]


@given(traffic())
@settings(max_examples=150, deadline=None)
def test_every_byte_that_is_sent_arrives_and_no_link_carries_more_than_it_can(case):
    starts, capacity = case
    ends, network = run_flows(starts, capacity)
    assert sorted(ends) == list(range(len(starts)))
    assert network.carried == pytest.approx(network.asked, rel=1e-9, abs=1e-12)
    assert network.history is not None
    for link, noted in enumerate(network.history):
        # What is noted last at a moment holds from then on.
        last = dict(noted)
        assert all(used <= capacity[link] * (1 + 1e-9) for used in last.values())
        moments = [*last, max(ends.values())]
        area = sum(used * (after - moment) for (moment, used), after in zip(last.items(), moments[1:], strict=True))
        # A flow holds its links through its latency, when nothing moves.
        assert area >= network.carried[link] * (1 - 1e-9)
    for number, (start, load, latency, moving) in enumerate(starts):
        assert ends[number] >= start + latency + moving / load.limit - 1e-9
