"""How a software stack runs what was measured one by one: the constants of a stack profile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from shardsim.values.num import Num
from shardsim.values.provenance import Provenance


@dataclass(frozen=True, slots=True)
class StackConstants:
    """Times in training over times alone, of one generation of one framework (a calibration profile).

    Kernels and collectives are measured in loops of their own, with clocks that do not throttle, operands in cache and
    nothing beside them. A stack has its own kernels besides, and launches more of them than a layer's equations name.

    Parameters
    ----------
    name : str
        Profile name.
    products : Num
        Time of matrix products over that of the device's profile, in 16 bits and more (-).
    narrow : Num
        The same, of those below 16 bits (-).
    attention : Num
        The same, of fused attention (-).
    kernels : Num
        The same, of memory-bound kernels and the optimizer (-).
    experts : Num
        The same, of the products of experts (-).
    inside : Num
        Time of collectives of tensor and context parallelism over that of the fabric's profile (-).
    exchange : Num
        The same, of tokens on their way to experts and back (-).
    data : Num
        The same, of data parallelism (-).
    iteration : Num
        Time once an iteration, in which nothing runs on the device: batch, logs, schedulers [s].
    launches : mapping of str to float
        Launch times of the host that were fitted with the others and take the place of the host profile's, by
        constant [s]; see :class:`shardsim.values.host.HostConstants`.
    provenance : mapping of str to Provenance
        By constant.
    """

    name: str
    products: Num = 1.0
    narrow: Num = 1.0
    attention: Num = 1.0
    kernels: Num = 1.0
    experts: Num = 1.0
    inside: Num = 1.0
    exchange: Num = 1.0
    data: Num = 1.0
    iteration: Num = 0.0
    launches: Mapping[str, float] = field(default_factory=dict)
    provenance: Mapping[str, Provenance] = field(default_factory=dict)


COMPUTE = ("products", "narrow", "attention", "kernels", "experts")
"""Constants of kernels: what a fit to few runs ties to one, ``compute``."""

AS_MEASURED = StackConstants("none")
"""A stack that runs everything as it was measured alone."""

_OTHERS = ("name", "launches", "provenance")
STACK_CONSTANTS = tuple(item.name for item in fields(StackConstants) if item.name not in _OTHERS)
"""Names of the constants, in the order of a profile."""
