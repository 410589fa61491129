"""``Transfer``: what a message does to the links, from which its uncontended time follows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from shardsim.values.num import Num, Truth, larger, smaller
from shardsim.values.provenance import Provenance

_NO_LIMIT = float("inf")
_INSTANT = 1e-30
"""Keeps the share of a transfer of no bytes, which takes no time, at zero [s]."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """A collective or a message, before anything contends with it.

    Parameters
    ----------
    latency : Num
        Time that passes whatever the size [s].
    wire : mapping of str to Num
        Bytes that cross the most loaded link of each class, per direction [bytes]: ``nvlink``, ``nic``.
    rate : mapping of str to Num
        Rate that this transfer reaches on each class when alone [bytes/s].
    algorithm : str
        Such as ``ring``.
    provenance : Provenance
    capacity : mapping of str to Num
        Datasheet capacity that its group has of each class [bytes/s]; of the leaf switches' up-links (``leaf``), for
        every byte that crosses an adapter. Empty where the transfer meets nothing.
    """

    latency: Num
    wire: Mapping[str, Num]
    rate: Mapping[str, Num]
    algorithm: str
    provenance: Provenance
    capacity: Mapping[str, Num] = field(default_factory=dict)

    @property
    def seconds(self) -> Num:
        """Uncontended time: the latency and the slowest link class; classes work as a pipeline [s]."""
        slowest: Num = 0.0
        for link, size in self.wire.items():
            slowest = larger(slowest, size / self.rate[link])
        return self.latency + slowest

    def uses(self, link: str) -> Truth:
        """Whether it moves anything over a link class whose capacity is known."""
        if link not in self.capacity:
            return False
        if link == "leaf":
            return (self.wire["nic"] > 0) & (self.capacity["leaf"] < _NO_LIMIT)
        return self.wire[link] > 0

    def need(self, link: str) -> Num:
        """Share of the time in which its bytes move, when alone, that a class of links needs for them (-)."""
        if link not in self.rate:
            return 0.0
        return self.wire[link] / self.rate[link] / larger(self.seconds - self.latency, _INSTANT)

    def share(self, link: str) -> Num:
        """Share of its group's capacity of a link class that it takes after its latency, when alone (-), at most 1."""
        if link not in self.capacity:
            return 0.0
        moving = self.seconds - self.latency
        size = self.wire["nic" if link == "leaf" else link]
        return smaller(size / (larger(moving, _INSTANT) * self.capacity[link]), 1.0)
