"""``topologies/profiles/stacks/NAME.yaml``: how a software stack runs what was measured alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import Field

from shardsim.schema.base import Duration, StrictModel, Text
from shardsim.schema.changes import Changes
from shardsim.schema.hosts import LaunchTime
from shardsim.schema.sourced import Constant, SourcedFile, open_file, provenances
from shardsim.values.host import LAUNCHES, HostConstants
from shardsim.values.provenance import Provenance
from shardsim.values.stack import STACK_CONSTANTS, StackConstants

_CONSTANTS = (*STACK_CONSTANTS, *LAUNCHES)
Factor = Annotated[float, Field(ge=0.1, le=30.0)]
Seconds = Annotated[Duration, Field(ge=0.0, le=60.0)]


class _StackTimes(StrictModel):
    """What of a stack takes longer or shorter. What is left out is 1, and no time."""

    products: Constant[Factor] | None = Field(
        default=None, description="time of matrix products in 16 bits and more over that of the device's profile"
    )
    narrow: Constant[Factor] | None = Field(default=None, description="the same, of those below 16 bits")
    attention: Constant[Factor] | None = Field(default=None, description="the same, of fused attention")
    kernels: Constant[Factor] | None = Field(default=None, description="the same, of memory-bound kernels")
    experts: Constant[Factor] | None = Field(default=None, description="the same, of the products of experts")
    inside: Constant[Factor] | None = Field(
        default=None, description="time of collectives of TP and CP over that of the fabric profile"
    )
    exchange: Constant[Factor] | None = Field(default=None, description="the same, of tokens on their way to experts")
    data: Constant[Factor] | None = Field(default=None, description="the same, of data parallelism")
    iteration: Constant[Seconds] | None = Field(
        default=None, description="time once an iteration, in which nothing runs on the device"
    )
    forward: Constant[LaunchTime] | None = Field(default=None, description="in place of the host profile's")
    backward: Constant[LaunchTime] | None = Field(default=None, description="in place of the host profile's")
    collective: Constant[LaunchTime] | None = Field(default=None, description="in place of the host profile's")
    passes: Constant[LaunchTime] | None = Field(default=None, description="in place of the host profile's")
    optimizer: Constant[LaunchTime] | None = Field(default=None, description="in place of the host profile's")
    member: Constant[LaunchTime] | None = Field(default=None, description="in place of the host profile's")


class StackFile(SourcedFile, _StackTimes):
    """Constants of one software stack, and what the fit saw."""

    stack: Text = Field(description="software and machines that were measured")
    on: Mapping[str, _StackTimes] = Field(
        default_factory=dict,
        description="constants that hold on one generation of devices, by the name of its kernel profile, "
        "or for one kind of model: dense or experts",
    )


def load_stack_profile(
    name: str,
    extra: Sequence[Path] = (),
    relative_to: Path | None = None,
    changes: Changes = MappingProxyType({}),
    marks: Sequence[str] = (),
) -> StackConstants:
    """Read the constants of a software stack.

    Parameters
    ----------
    name : str
        Catalog name or path.
    extra : sequence of Path
        A user's own data folders.
    relative_to : Path or None
        Folder from which a relative path starts.
    changes : mapping of str to value
        Figures to replace, by dotted key (see :mod:`shardsim.schema.changes`), such as ``stack.products``.
    marks : sequence of str
        Kernel profile of the device and kind of model (``dense`` or ``experts``): what a stack has for one of them
        takes precedence, the later one most.

    Returns
    -------
    StackConstants

    Raises
    ------
    InputError
        Unknown name, a file that cannot be read, or every problem of it.

    Examples
    --------
    >>> load_stack_profile("none").products
    1.0
    """
    path, _, file = open_file("stack-profile", name, StackFile, extra, relative_to, changes)
    # What a user sets holds for every device and model.
    mine = {name.partition(".")[2]: None for name in changes}
    holders = (file, *(file.on[mark].model_copy(update=mine) for mark in marks if mark in file.on))
    stated = {key: getattr(holder, key) for holder in holders for key in _set(holder)}
    origins = {key: origin for holder in holders for key, origin in _origins(file, holder)}
    values = {key: constant.value for key, constant in stated.items()}
    factors = {key: value for key, value in values.items() if key in STACK_CONSTANTS}
    launches = {key: value for key, value in values.items() if key in LAUNCHES}
    return StackConstants(path.stem, **factors, launches=launches, provenance=MappingProxyType(origins))


def with_launches(host: HostConstants, stack: StackConstants, changes: Changes) -> HostConstants:
    """Take the launch times that were fitted with a stack.

    Parameters
    ----------
    host : HostConstants
    stack : StackConstants
    changes : mapping of str to value
        What a user set of the host stays: ``host`` itself, or ``host.forward``.

    Returns
    -------
    HostConstants
    """
    taken: dict[str, Any] = (
        {} if "host" in changes else {k: v for k, v in stack.launches.items() if f"host.{k}" not in changes}
    )
    if not taken:
        return host
    origins = {**host.provenance, **{key: stack.provenance[key] for key in taken}}
    return replace(host, **taken, provenance=MappingProxyType(origins))


def _set(holder: _StackTimes) -> Iterator[str]:
    return (key for key in _CONSTANTS if getattr(holder, key) is not None)


def _origins(file: StackFile, holder: _StackTimes) -> Iterator[tuple[str, Provenance]]:
    return ((key, origin) for key, origin in provenances(file, holder).items() if key in _CONSTANTS)
