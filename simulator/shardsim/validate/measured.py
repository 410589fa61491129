"""Measured rows of several tables as runs that can be priced, with why others were left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from shardsim.errors import ShardsimError
from shardsim.program.resolve import resolve
from shardsim.schema.run import request_from_mapping
from shardsim.schema.validation import measured_names
from shardsim.validate.conditions import condition_of
from shardsim.validate.requests import row_request
from shardsim.validate.rows import MeasuredRun, read_measured_runs
from shardsim.values.training import TrainingRun


@dataclass(frozen=True, slots=True)
class MeasuredRuns:
    """Rows that can be priced.

    Parameters
    ----------
    rows : tuple of MeasuredRun
    runs : tuple of TrainingRun
        One for each row.
    conditions : tuple of str
        What rules say of the machine of each row, such as ``sick``; empty for nothing.
    left : tuple of (str, int)
        Rows not used, by reason, the most frequent first.
    """

    rows: tuple[MeasuredRun, ...]
    runs: tuple[TrainingRun, ...]
    conditions: tuple[str, ...]
    left: tuple[tuple[str, int], ...]

    def of(self, frameworks: Sequence[str]) -> MeasuredRuns:
        """Those of some framework profiles; the others count as left."""
        kept = [index for index, run in enumerate(self.runs) if run.framework.name in frameworks]
        others = len(self.runs) - len(kept)
        left = (*self.left, ("of another framework", others)) if others else self.left
        return self._only(kept, left)

    def unless(self, conditions: Sequence[str]) -> MeasuredRuns:
        """Those in none of some conditions, such as ``sick``; the others count as left."""
        kept = [index for index, state in enumerate(self.conditions) if state not in conditions]
        others = len(self.runs) - len(kept)
        left = (*self.left, (f"condition {' or '.join(conditions)}", others)) if others else self.left
        return self._only(kept, left)

    def _only(self, kept: Sequence[int], left: tuple[tuple[str, int], ...]) -> MeasuredRuns:
        return MeasuredRuns(
            tuple(self.rows[index] for index in kept),
            tuple(self.runs[index] for index in kept),
            tuple(self.conditions[index] for index in kept),
            left,
        )

    @property
    def groups(self) -> tuple[str, ...]:
        """What each row is left out with in cross-validation: source, model and GPU."""
        return tuple(f"{row.source} | {row.model} | {row.gpu}" for row in self.rows)


def measured_as_runs(
    tables: Sequence[Path],
    data: Sequence[Path] = (),
    changes: Mapping[str, str] | None = None,
    advance: Callable[[], object] = lambda: None,
) -> MeasuredRuns:
    """Read tables of measured runs and resolve every row that can be priced.

    Parameters
    ----------
    tables : sequence of Path
    data : sequence of Path
        A user's own data folders.
    changes : mapping of str to str, optional
        Figures to replace in every run, such as ``{"stack": "none"}``.
    advance : callable
        Called after each row.

    Returns
    -------
    MeasuredRuns

    Raises
    ------
    InputError
        Every problem of a table.
    """
    names = measured_names(data)
    rows, runs, left = [], [], Counter[str]()
    for row in (row for table in tables for row in read_measured_runs(table)):
        advance()
        request = row_request(row, names, data)
        if request.run is None or row.iteration_s is None:
            left[request.reason] += 1
            continue
        described = {**request.run, "set": {**request.run.get("set", {}), **(changes or {})}}
        try:
            runs.append(resolve(request_from_mapping(described, "run"), data))
        except ShardsimError as error:
            left["; ".join(str(error).splitlines())] += 1
            continue
        rows.append(row)
    conditions = tuple(condition_of(row, names) for row in rows)
    return MeasuredRuns(tuple(rows), tuple(runs), conditions, tuple(left.most_common()))
