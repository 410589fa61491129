"""``Transfer``: what a message does to the links, from which its uncontended time follows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shardsim.values.num import Num, larger
from shardsim.values.provenance import Provenance


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
    """

    latency: Num
    wire: Mapping[str, Num]
    rate: Mapping[str, Num]
    algorithm: str
    provenance: Provenance

    @property
    def seconds(self) -> Num:
        """Uncontended time: the latency and the slowest link class; classes work as a pipeline [s]."""
        slowest: Num = 0.0
        for link, size in self.wire.items():
            slowest = larger(slowest, size / self.rate[link])
        return self.latency + slowest
