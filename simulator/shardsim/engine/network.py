"""Transfers as flows over links that they share: max-min fair, recomputed when one starts or ends.

A flow takes a share of each of its links while it runs at its full speed, alone. Where the shares of all flows on a
link sum to more than the link has, they slow down: all get the same bytes per second, as far as they can use them. A
flow is slowed on all of its links alike, since a collective goes on at the pace of its slowest part.

Only flows that are connected by full links are looked at again, once for everything that happens at one moment, and
only those whose speed changes get a new event for their end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from simpy import Environment, Event
from simpy.events import EventPriority

from shardsim.engine.later import Later

_LAST = EventPriority(2)
"""Priority of events that come after everything else at the same time; SimPy's own are 0 and 1."""

_SPARE = 1.0 + 1e-12
"""What a link is taken to have, so that rounding alone fills none (-)."""

_ALIKE = 1e-12
"""Relative difference below which two speeds are the same."""


class Load(NamedTuple):
    """What a flow does to its links at full speed.

    Parameters
    ----------
    shares : tuple of (int, float)
        Links, and the share of each one's capacity (-).
    weight : float
        Bytes per second at full speed, which max-min fairness compares [bytes/s].
    limit : float
        Speed that it reaches at most (-), at most 1.
    """

    shares: tuple[tuple[int, float], ...]
    weight: float
    limit: float = 1.0


def max_min_speeds(loads: Sequence[Load], capacity: Mapping[int, float]) -> list[float]:
    """Share links fairly: nobody could be faster without making slower one that has no more bytes per second.

    Parameters
    ----------
    loads : sequence of Load
    capacity : mapping of int to float
        What is left of each link (-), 1 for a whole one.

    Returns
    -------
    list of float
        Speed of each flow (-), from 0 to its limit.

    Notes
    -----
    Progressive filling: all rates rise together until a link is full or a flow at its limit; those are then settled,
    and the others rise on (Bertsekas and Gallager, Data Networks, 1992, section 6.5.2).

    Examples
    --------
    Two flows on one link, of which one needs a fifth of it:

    >>> max_min_speeds([Load(((0, 1.0),), 100.0), Load(((0, 0.2),), 20.0)], {0: 1.0})
    [0.8, 1.0]
    """
    speeds = [0.0] * len(loads)
    left = dict(capacity)
    rising = set(range(len(loads)))
    per_rate: dict[int, float] = {}
    on: dict[int, list[int]] = {}
    for index, load in enumerate(loads):
        for link, share in load.shares:
            per_rate[link] = per_rate.get(link, 0.0) + share / load.weight
            on.setdefault(link, []).append(index)
    # ``left`` is counted as if every rising flow stood at rate zero: the level at which a link is full follows.
    while rising:
        top = min(loads[index].weight * loads[index].limit for index in rising)
        level, full = top, -1
        for link, flow in per_rate.items():
            if flow > 0.0 and left[link] / flow < level:
                level, full = left[link] / flow, link
        settled = (
            [index for index in on[full] if index in rising]
            if full >= 0
            else [index for index in rising if loads[index].weight * loads[index].limit <= top]
        )
        for index in settled:
            rising.discard(index)
            speeds[index] = max(level, 0.0) / loads[index].weight
            for link, share in loads[index].shares:
                per_rate[link] -= share / loads[index].weight
                left[link] -= share * speeds[index]
        if full >= 0:
            per_rate[full] = 0.0
    return speeds


class _Flow:
    """A transfer under way."""

    __slots__ = ("done", "load", "remaining", "since", "speed", "timer")

    def __init__(self, load: Load, remaining: float, since: float, done: Callable[[], None]) -> None:
        self.load = load
        self.remaining = remaining
        self.since = since
        self.speed = load.limit
        self.done = done
        self.timer: Event | None = None


class Network:
    """The links of a machine and the flows on them.

    Parameters
    ----------
    env : Environment
    capacity : sequence of float
        Of each link (-): 1, or less where it is degraded.
    recording : bool
        Whether to keep how much of every link is in use, and since when.
    """

    def __init__(self, env: Environment, capacity: Sequence[float], *, recording: bool = False) -> None:
        self.env = env
        self.capacity = tuple(capacity)
        self.wanted = [0.0] * len(self.capacity)
        self.flows: list[dict[_Flow, float]] = [{} for _ in self.capacity]
        self.carried = [0.0] * len(self.capacity)
        self.asked = [0.0] * len(self.capacity)
        self.history: list[list[tuple[float, float]]] | None = [[] for _ in self.capacity] if recording else None
        self.rerated = 0
        self._dirty: set[int] = set()
        self._due = False

    def start(self, load: Load, latency: float, moving: float, done: Callable[[], None]) -> None:
        """Let a transfer begin.

        Parameters
        ----------
        load : Load
        latency : float
            Time before its bytes move; it holds its links meanwhile [s].
        moving : float
            Time that its bytes take at full speed [s].
        done : callable
            Called when it has ended.
        """
        flow = _Flow(load, moving, self.env.now + latency, done)
        crowded = False
        for link, share in load.shares:
            self.flows[link][flow] = share
            self.wanted[link] += share * load.limit
            self.asked[link] += share * moving
            crowded = crowded or self.wanted[link] > self.capacity[link] * _SPARE
        self._note(load)
        if crowded:
            self._look_again(load)
        self._time(flow)

    def _time(self, flow: _Flow) -> None:
        """Give a flow an event for its end; one that cannot move at all waits for others to leave."""
        if flow.speed <= 0.0:
            flow.timer = None
            return
        timer = flow.timer = Later(self.env)
        timer.callbacks.append(partial(self._fire, flow))
        timer.happen(max(flow.since - self.env.now, 0.0) + flow.remaining / flow.speed)

    def _fire(self, flow: _Flow, event: Event) -> None:
        if flow.timer is not event:
            return  # it was slowed or sped up since
        flow.timer = None
        crowded = False
        for link, share in flow.load.shares:
            crowded = crowded or self.wanted[link] > self.capacity[link] * _SPARE
            del self.flows[link][flow]
            self.wanted[link] = self.wanted[link] - share * flow.load.limit if self.flows[link] else 0.0
            self.carried[link] += share * flow.remaining
        self._note(flow.load)
        if crowded:
            self._look_again(flow.load)
        flow.done()

    def _look_again(self, load: Load) -> None:
        self._dirty.update(link for link, _ in load.shares)
        if not self._due:
            self._due = True
            later = Later(self.env)
            later.callbacks.append(self._rerate)
            later.happen(priority=_LAST)

    def _rerate(self, _: Event) -> None:
        """Share anew among the flows that full links connect with what has changed."""
        self._due = False
        flows = self._connected(self._dirty)
        self._dirty.clear()
        links = {link for flow in flows for link, _ in flow.load.shares}
        speeds = max_min_speeds([flow.load for flow in flows], {link: self.capacity[link] for link in links})
        for flow, speed in zip(flows, speeds, strict=True):
            if abs(speed - flow.speed) > _ALIKE * flow.speed:
                self._settle(flow)
                flow.speed = speed
                self.rerated += 1
                self._time(flow)
        for flow in flows:
            self._note(flow.load)

    def _connected(self, links: Iterable[int]) -> list[_Flow]:
        found: dict[_Flow, None] = {}
        seen: set[int] = set()
        ahead = sorted(links)
        while ahead:
            link = ahead.pop()
            if link in seen:
                continue
            seen.add(link)
            for flow in self.flows[link]:
                if flow not in found:
                    found[flow] = None
                    ahead += [
                        other for other, _ in flow.load.shares if self.wanted[other] > self.capacity[other] * _SPARE
                    ]
        return list(found)

    def _settle(self, flow: _Flow) -> None:
        """Book what a flow has moved so far."""
        now = self.env.now
        if now > flow.since:
            moved = min((now - flow.since) * flow.speed, flow.remaining)
            flow.remaining -= moved
            flow.since = now
            for link, share in flow.load.shares:
                self.carried[link] += share * moved

    def _note(self, load: Load) -> None:
        if self.history is None:
            return
        for link, _ in load.shares:
            used = sum(share * flow.speed for flow, share in self.flows[link].items())
            self.history[link].append((self.env.now, used))
