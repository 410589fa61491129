"""Published runs of well-known stacks against their predictions, table by table, and the bounds of their errors."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from shardsim.engine.predict import predict
from shardsim.program.resolve import resolve
from shardsim.schema.published import PublishedTable, load_published, run_keys
from shardsim.schema.run import load_run, merged, nested, request_from_mapping
from shardsim.values.results import Prediction
from shardsim.values.training import TrainingRun
from shardsim.workload.flops import hardware_flop, model_flop

SLACK = 0.005
"""A bound is recorded so far above the error, rounded up to a tenth of a per cent (-)."""


@dataclass(frozen=True, slots=True)
class PublishedRow:
    """One published run.

    Parameters
    ----------
    id : str
    measured, predicted : float
        Iteration time [s].
    """

    id: str
    measured: float
    predicted: float

    @property
    def error(self) -> float:
        """Of the prediction, as a share of the measured time (-)."""
        return self.predicted / self.measured - 1.0


@dataclass(frozen=True, slots=True)
class PublishedErrors:
    """One published table.

    Parameters
    ----------
    name, title, source : str
    rows : tuple of PublishedRow
    bound : tuple of (float, float) or None
        Recorded for the mean and for the largest size of the errors (-).
    """

    name: str
    title: str
    source: str
    rows: tuple[PublishedRow, ...]
    bound: tuple[float, float] | None

    @property
    def mean(self) -> float:
        """Mean size of the errors (-)."""
        return float(np.mean([abs(row.error) for row in self.rows]))

    @property
    def worst(self) -> float:
        """Largest size of an error (-)."""
        return max(abs(row.error) for row in self.rows)

    @property
    def bias(self) -> float:
        """Mean error (-)."""
        return float(np.mean([row.error for row in self.rows]))

    @property
    def within(self) -> bool:
        """Whether both figures are within their bounds, which have to be there."""
        return self.bound is not None and self.mean <= self.bound[0] and self.worst <= self.bound[1]


def validate_published(
    data: Sequence[Path] = (), advance: Callable[[], object] = lambda: None
) -> tuple[PublishedErrors, ...]:
    """Predict every published run.

    Parameters
    ----------
    data : sequence of Path
        A user's own data folders, searched first.
    advance : callable
        Called after each run.

    Returns
    -------
    tuple of PublishedErrors
        In the order of the file.

    Raises
    ------
    InputError
        Every problem of the file or of a run.
    """
    path, tables = load_published(data)
    found = []
    for name, table in tables.items():
        rows = []
        for run in table.runs:
            prediction = _predicted(path, table, run, data)
            measured = _measured(run, prediction.run)
            rows.append(PublishedRow(str(run["id"]), measured, prediction.iteration_s))
            advance()
        bound = None if table.bound is None else (table.bound.mean, table.bound.worst)
        found.append(PublishedErrors(name, table.title, table.source, tuple(rows), bound))
    return tuple(found)


def published_count(data: Sequence[Path] = ()) -> int:
    """How many published runs there are (-)."""
    return sum(len(table.runs) for table in load_published(data)[1].values())


def _predicted(
    path: Path, table: PublishedTable, run: Mapping[str, str | int | float | bool], data: Sequence[Path]
) -> Prediction:
    keys = nested(run_keys(table, run))
    if "file" in run:
        # The file's own folder, so that nothing outside the data folder can be named.
        request = load_run(path.parents[1] / "runs" / Path(str(run["file"])).name, keys)
    else:
        request = request_from_mapping(merged({}, keys), f"{path.name}: {run['id']}")
    return predict(resolve(request, data), engine="listing")


def _measured(run: Mapping[str, str | int | float | bool], resolved: TrainingRun) -> float:
    """Time of an iteration, as it is printed or as it follows from a printed rate [s]."""
    if "seconds" in run:
        return float(run["seconds"])
    counts = "model_tflops" in run
    flop = model_flop(resolved.model, resolved.batch)
    if not counts:
        flop = hardware_flop(resolved.model, resolved.batch, resolved.layout)
    rate = float(run["model_tflops" if counts else "hardware_tflops"]) * 1e12
    return float(flop) / (rate * int(resolved.layout.gpus))


def recorded(text: str, found: Sequence[PublishedErrors]) -> str:
    """Write today's errors into the text of the file as its bounds.

    Parameters
    ----------
    text : str
        The file as it stands.
    found : sequence of PublishedErrors

    Returns
    -------
    str
    """
    for table in found:
        bound = f"    bound: {{mean: {_up(table.mean)}, worst: {_up(table.worst)}}}\n"
        head = re.compile(rf"(^  {re.escape(table.name)}:\n(?:    (?:title|source): .*\n)*)(?:    bound: .*\n)?", re.M)
        match = head.search(text)
        if match is not None:
            text = text[: match.start()] + match[1] + bound + text[match.end() :]
    return text


def _up(error: float) -> str:
    return f"{np.ceil((error + SLACK) * 1000) / 1000:.3f}"
