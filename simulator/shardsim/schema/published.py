"""``workloads/measured/published.yaml``: published runs with their citation, and how far predictions may be off."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from shardsim.errors import InputError, Problem
from shardsim.schema.base import StrictModel, Text
from shardsim.schema.loader import check, load_yaml
from shardsim.schema.locate import data_roots

FILE = "workloads/measured/published.yaml"
Positive = Annotated[float, Field(gt=0.0)]
Scalar = str | int | float | bool
MEASURED = ("seconds", "model_tflops", "hardware_tflops")
"""What a run may have been measured as: time of an iteration [s], or a rate of one GPU [TFLOP/s]."""


class Bound(StrictModel):
    """How far the predictions of a table may be off; recorded, not chosen."""

    mean: Annotated[float, Field(ge=0.0)] = Field(description="mean of |predicted / measured - 1|")
    worst: Annotated[float, Field(ge=0.0)] = Field(description="largest |predicted / measured - 1|")


class PublishedTable(StrictModel):
    """Runs of one table or figure of one publication.

    Parameters
    ----------
    title : str
    source : str
        The citation, and what had to be taken or left out.
    bound : Bound or None
    common : mapping
        Keys of every run, by the names of the command-line flags.
    models : mapping
        Models that no file has, by name.
    runs : sequence of mapping
        Keys of each run, ``id``, and one of ``seconds``, ``model_tflops`` and ``hardware_tflops``; ``file`` names a run
        of ``workloads/runs`` instead of keys.
    """

    title: Text
    source: Text
    bound: Bound | None = None
    common: Mapping[str, Scalar] = Field(default_factory=dict)
    models: Mapping[str, Mapping[str, Scalar]] = Field(default_factory=dict)
    runs: tuple[Mapping[str, Scalar], ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _one_measurement_each(self) -> Self:
        for number, run in enumerate(self.runs, start=1):
            given = [name for name in MEASURED if name in run]
            if "id" not in run or len(given) != 1:
                raise ValueError(f"run {number}: an id and one of {', '.join(MEASURED)} are needed")
            value = run[given[0]]
            if isinstance(value, str | bool) or value <= 0:
                raise ValueError(f"run {number}: {given[0]} is a number above zero")
        return self


class PublishedFile(StrictModel):
    """All tables, by name."""

    tables: Mapping[str, PublishedTable]


def load_published(extra: Sequence[Path] = ()) -> tuple[Path, Mapping[str, PublishedTable]]:
    """Read the published runs that come with shardsim.

    Parameters
    ----------
    extra : sequence of Path
        A user's own data folders, searched first.

    Returns
    -------
    Path
        The file.
    mapping of str to PublishedTable

    Raises
    ------
    InputError
        There is none, it cannot be read, or every problem of it.
    """
    for root in data_roots(extra):
        path = root / FILE
        if path.is_file():
            return path, check(load_yaml(path), PublishedFile).tables
    raise InputError(Problem("the published runs that come with shardsim are missing", FILE, "install it again"))


def run_keys(table: PublishedTable, run: Mapping[str, Scalar]) -> dict[str, Any]:
    """Give the keys of one run by the names of the command-line flags, without what was measured.

    Parameters
    ----------
    table : PublishedTable
    run : mapping

    Returns
    -------
    dict
    """
    keys: dict[str, Any] = {**table.common, **run}
    for name in ("id", "file", *MEASURED):
        keys.pop(name, None)
    model = keys.get("model")
    if isinstance(model, str) and model in table.models:
        keys["model"] = {"name": model, **table.models[model]}
    return keys
