"""``workloads/measured/bands.yaml``: how predictions erred on validated runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Literal

from pydantic import Field

from shardsim.schema.base import Count, StrictModel, Text
from shardsim.schema.loader import check, load_yaml
from shardsim.schema.locate import data_roots
from shardsim.values.bands import ValidatedGroup

FILE = "workloads/measured/bands.yaml"
Ratio = Annotated[float, Field(gt=0.0)]


class BandGroup(StrictModel):
    """One group of validated runs."""

    framework: str = Field(default="", description="framework profile of all; empty for several")
    generation: str = Field(default="", description="kernel profile of all; empty for several")
    kind: Literal["", "dense", "experts"] = Field(default="", description="kind of model of all; empty for both")
    rows: Count
    models: Count
    sources: Count
    low: Ratio = Field(description="measured over predicted: a tenth of the runs lie below")
    high: Ratio = Field(description="measured over predicted: a tenth of the runs lie above")
    median: Annotated[float, Field(ge=0.0)] = Field(description="median of |predicted / measured - 1|")
    p90: Annotated[float, Field(ge=0.0)] = Field(description="90th percentile of |predicted / measured - 1|")
    ranges: Mapping[str, tuple[Count, Count]] = Field(description="least and most, by figure")
    precisions: tuple[Text, ...]


class BandFile(StrictModel):
    """All groups, and what they were made from."""

    source: Text
    groups: tuple[BandGroup, ...]


def load_bands(extra: Sequence[Path] = ()) -> tuple[ValidatedGroup, ...]:
    """Read the groups of validated runs.

    Parameters
    ----------
    extra : sequence of Path
        A user's own data folders: the first that has bands is taken, instead of the bundled ones.

    Returns
    -------
    tuple of ValidatedGroup
        Those whose runs are most alike first; empty where no folder has bands.

    Raises
    ------
    InputError
        A file that cannot be read, or every problem of it.
    """
    for root in data_roots(extra):
        path = root / FILE
        if path.is_file():
            return _read(path, path.stat().st_mtime_ns)
    return ()


@lru_cache(maxsize=8)
def _read(path: Path, changed_at: int) -> tuple[ValidatedGroup, ...]:  # noqa: ARG001  # a changed file is read again
    """Read once a process: searches resolve many runs."""
    file = check(load_yaml(path), BandFile)
    groups = (
        ValidatedGroup(**{**one.model_dump(exclude={"ranges"}), "ranges": MappingProxyType(dict(one.ranges))})
        for one in file.groups
    )
    return tuple(sorted(groups, key=lambda group: -group.keys))
