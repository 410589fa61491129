"""What is not as it should be: slow devices and hosts, degraded links, ranks in each other's places, chance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Conditions:
    """The state of a machine. The default is a machine on which all ranks are alike and nothing is left to chance.

    GPUs and nodes are counted as the machine has them: GPU 17 of nodes of 8 is the second of node 2.

    Parameters
    ----------
    slow_nodes, slow_gpus : mapping of int to float
        How many times as long computation takes on a node, or on a GPU (-).
    slow_hosts : mapping of int to float
        How many times as long the host of a node takes to launch work (-).
    dead_nics : tuple of (int, int)
        Node and adapter; its traffic takes the next one of the node that works.
    slow_nics : mapping of (int, int) to float
        By node and adapter, the share of its bandwidth that is left (-).
    slow_nvlinks : mapping of int to float
        By GPU, the share of its NVLink bandwidth that is left (-).
    swaps : tuple of (int, int)
        Ranks that sit in each other's places. Groups that lie otherwise for that are priced anew; messages, and what
        stages do together at the end of an iteration, keep their usual price.
    spread : float
        Standard deviation of the devices' speeds (-). A device that is faster than the mean gains nothing.
    jitter : float
        Scale of what computation takes longer at random, pass by pass (-).
    seed : int
        Of both (-).
    ecmp_imbalance : float
        What the fullest up-link of a leaf carries, over the mean (-), at least 1.
    flow_limit : float
        What one transfer of a rank gets through its adapter at most [bytes/s].
    """

    slow_nodes: Mapping[int, float] = field(default_factory=dict)
    slow_gpus: Mapping[int, float] = field(default_factory=dict)
    slow_hosts: Mapping[int, float] = field(default_factory=dict)
    dead_nics: tuple[tuple[int, int], ...] = ()
    slow_nics: Mapping[tuple[int, int], float] = field(default_factory=dict)
    slow_nvlinks: Mapping[int, float] = field(default_factory=dict)
    swaps: tuple[tuple[int, int], ...] = ()
    spread: float = 0.0
    jitter: float = 0.0
    seed: int = 0
    ecmp_imbalance: float = 1.0
    flow_limit: float = float("inf")

    @property
    def uniform(self) -> bool:
        """Whether all ranks are alike."""
        odd = (self.slow_nodes, self.slow_gpus, self.slow_hosts, self.dead_nics, self.slow_nics, self.slow_nvlinks)
        return not any(odd) and not self.swaps and not self.chance

    @property
    def of_links(self) -> bool:
        """Whether any link is other than it should be."""
        odd = self.dead_nics or self.slow_nics or self.slow_nvlinks
        return bool(odd) or self.ecmp_imbalance > 1.0 or self.flow_limit < float("inf")

    @property
    def chance(self) -> bool:
        """Whether anything falls by chance."""
        return self.spread > 0.0 or self.jitter > 0.0


NORMAL = Conditions()
"""Everything works as it should."""
