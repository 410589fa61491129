"""``topologies/profiles/hosts/NAME.yaml``: what launching work costs the host under one software stack."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Annotated

from pydantic import Field

from shardsim.schema.base import Duration, Text
from shardsim.schema.changes import Changes
from shardsim.schema.sourced import Constant, SourcedFile, open_file, provenances
from shardsim.values.host import HostConstants

LaunchTime = Annotated[Duration, Field(ge=0.0, le=1.0)]


class HostFile(SourcedFile):
    """Host times of one software stack, and what the fit saw."""

    stack: Text = Field(description="software and processors that were measured")
    forward: Constant[LaunchTime] = Field(description="one kernel of a forward pass, launched from Python")
    backward: Constant[LaunchTime] = Field(description="one kernel of a backward pass, launched by autograd")
    collective: Constant[LaunchTime] = Field(description="one collective")
    passes: Constant[LaunchTime] = Field(description="one forward or backward pass, before its first kernel")
    optimizer: Constant[LaunchTime] = Field(description="one kernel of the optimizer step")
    member: Constant[LaunchTime] | None = Field(
        default=None,
        description="a collective inside a layer, for each member of its group, in a job over several domains",
    )


def load_host_profile(
    name: str, extra: Sequence[Path] = (), relative_to: Path | None = None, changes: Changes = MappingProxyType({})
) -> HostConstants:
    """Read the host times of a software stack.

    Parameters
    ----------
    name : str
        Catalog name or path.
    extra : sequence of Path
        A user's own data folders.
    relative_to : Path or None
        Folder from which a relative path starts.
    changes : mapping of str to value
        Figures to replace, by dotted key (see :mod:`shardsim.schema.changes`), such as ``host.forward``.

    Returns
    -------
    HostConstants

    Raises
    ------
    InputError
        Unknown name, a file that cannot be read, or every problem of it.

    Examples
    --------
    >>> load_host_profile("none").forward
    0.0
    """
    path, _, file = open_file("host-profile", name, HostFile, extra, relative_to, changes)
    return HostConstants(
        name=path.stem,
        forward=file.forward.value,
        backward=file.backward.value,
        collective=file.collective.value,
        passes=file.passes.value,
        optimizer=file.optimizer.value,
        member=0.0 if file.member is None else file.member.value,
        provenance=provenances(file, file),
    )
