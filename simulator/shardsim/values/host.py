"""What launching work costs the host: the constants of a host profile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from shardsim.values.num import Num
from shardsim.values.provenance import Provenance


@dataclass(frozen=True, slots=True)
class HostConstants:
    """Host time of one software stack on the processors it was measured on (a calibration profile).

    Parameters
    ----------
    name : str
        Profile name.
    forward : Num
        Time to launch one kernel of a forward pass, or of one that is recomputed, with its share of the Python of the
        modules around it [s].
    backward : Num
        Time in which automatic differentiation launches one kernel of a backward pass [s].
    collective : Num
        Time to launch one collective [s].
    passes : Num
        Further time of one forward or backward pass before its first kernel: schedule, batch, messages [s].
    optimizer : Num
        Time to launch one kernel of the optimizer step [s].
    member : Num
        Further time to launch a collective inside a layer, for each member of its group, in a job over several NVLink
        domains [s].
    provenance : mapping of str to Provenance
        By constant.
    """

    name: str
    forward: Num
    backward: Num
    collective: Num
    passes: Num
    optimizer: Num
    member: Num = 0.0
    provenance: Mapping[str, Provenance] = field(default_factory=dict)


LAUNCHES = tuple(item.name for item in fields(HostConstants) if item.name not in ("name", "provenance"))
"""Names of the constants, in the order of a profile."""

NO_HOST_TIME = HostConstants("none", 0.0, 0.0, 0.0, 0.0, 0.0)
"""A host that is never late."""
