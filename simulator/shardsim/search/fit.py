"""What would make a run fit into device memory, and which way costs the least time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from shardsim.engine.memory import memory_of
from shardsim.engine.predict import execute
from shardsim.errors import InputError
from shardsim.program.build import build
from shardsim.program.coalesce import coalesce
from shardsim.program.resolve import resolve
from shardsim.schema.run import RunRequest, merged, request_from_mapping
from shardsim.search.fit_steps import Step, flags, steps
from shardsim.search.scaling import request_mapping
from shardsim.values.fit import Change, FitAdvice, MemoryAnswer, fits_closely
from shardsim.values.results import MemoryProfile
from shardsim.values.training import TrainingRun
from shardsim.workload.schedules import RULES

CHEAP = 0.02
"""Slowdown up to which a single change is good enough not to look at pairs (-)."""
MOST_CHANGES = 5
"""Changes that advice names (-)."""
MOST_PAIRS = 40
"""Pairs of changes that are looked at (-)."""
_PRICED = 6
"""Pairs that are priced (-): those whose single changes cost the least."""
_CHUNKS = frozenset({"vpp", "stage_layers", "pp_layout", "virtual_stage_layers"})
"""Keys of a layout that say how many chunks a rank holds."""


@dataclass(frozen=True, slots=True, eq=False)
class _Trial:
    """A run with some changes made, whether this version can price it, and the memory that it takes."""

    steps: tuple[Step, ...]
    run: TrainingRun
    priced: bool
    memory: MemoryProfile


def _as_it_is(request: RunRequest, data: Sequence[Path]) -> _Trial:
    """The run without a change, priced if this version can."""
    try:
        run, priced = resolve(request, data), True
    except InputError:
        run, priced = resolve(request, data, priced=False), False
    return _Trial((), run, priced, memory_of(run))


def memory_answer(
    request: RunRequest,
    data: Sequence[Path] = (),
    *,
    advise: bool = True,
    done: Callable[[float], None] = lambda _steps: None,
) -> MemoryAnswer:
    """Say whether a run fits, and where it does not what would make it fit.

    Parameters
    ----------
    request : RunRequest
        Need not be one that this version can price in time.
    data : sequence of Path
        A user's own data folders.
    advise : bool
        Whether changes are looked for.
    done : callable
        As for :func:`cheapest_fit`.

    Returns
    -------
    MemoryAnswer

    Raises
    ------
    InputError
        Every problem of the input, together.
    """
    found = _as_it_is(request, data)
    if found.memory.fits or not advise:
        return MemoryAnswer(found.run, found.memory)
    return MemoryAnswer(found.run, found.memory, _advice(_Study(request, tuple(data), done, found), MOST_CHANGES))


def cheapest_fit(
    request: RunRequest,
    data: Sequence[Path] = (),
    *,
    most: int = MOST_CHANGES,
    done: Callable[[float], None] = lambda _steps: None,
) -> FitAdvice:
    """Find the changes that make a run fit and cost the least time; the least memory where there is no price.

    Single changes are tried first, each only where the outcome is a valid layout; where none of them is cheap, pairs
    of different kinds. GPUs, global batch and sequence length stay. What fits is priced by the closed form.

    Parameters
    ----------
    request : RunRequest
    data : sequence of Path
        A user's own data folders.
    most : int
        Changes to return (-).
    done : callable
        Called with the number of layouts looked at since the last call.

    Returns
    -------
    FitAdvice

    Raises
    ------
    InputError
        The run as it is is not valid: every problem.
    """
    return _advice(_Study(request, tuple(data), done), most)


def _advice(study: _Study, most: int) -> FitAdvice:
    singles = study.singles()
    changes = [study.change(trial) for trial in singles if trial.memory.fits]
    nearest: list[_Trial] = []
    if not any(change.slowdown is None or change.slowdown <= CHEAP for change in changes):
        pairs = study.pairs(singles)
        changes += [study.change(trial) for trial in study.cheapest(pairs, singles)]
        nearest = [] if changes else sorted([*singles, *pairs], key=lambda trial: trial.memory.peak)
    # A stable sort: of equals, the one that changes less about the run stays in front. Without a price memory decides.
    changes.sort(key=lambda change: change.memory.peak if change.iteration_s is None else change.iteration_s)
    useful = _without_idle(changes)
    return FitAdvice(
        iteration_s=study.seconds(study.base),
        changes=useful[:most],
        nearest=tuple(study.change(trial) for trial in nearest[:1]),
        tried=study.tried,
        more=len(useful[most:]),
    )


class _Study:
    """Tries changes to one request."""

    def __init__(
        self,
        request: RunRequest,
        data: tuple[Path, ...],
        done: Callable[[float], None],
        base: _Trial | None = None,
    ) -> None:
        self._data = data
        self._done = done
        self.tried = 0
        self._prices: dict[_Trial, float | None] = {}
        self.base = base or _as_it_is(request, data)
        # The machine stays as large as it is whatever happens to the other axes.
        self._mapping = request_mapping(request)
        self._mapping["gpus"] = int(self.base.run.layout.gpus)
        self._mapping.get("layout", {}).pop("dp", None)
        self._rows = _rows(steps(self.base.run))

    def singles(self) -> list[_Trial]:
        """Every valid single change that needs less memory than the run as it is, and is not more than is needed."""
        found: list[_Trial] = []
        for row in self._rows:
            enough = [trial.steps[0].repeats for trial in found if _fits_well(trial.memory)]
            if any(less and less < row[0].repeats for less in enough):
                continue  # it would repeat the same work and more
            trial = self._first_that_fits([(step,) for step in row])
            if trial is not None and trial.memory.peak < self.base.memory.peak:
                found.append(trial)
        return found

    def pairs(self, singles: Sequence[_Trial]) -> list[_Trial]:
        """Pairs of changes of different kinds that would fit if what they save added up, the first of them."""
        row_of = {step: row for row in self._rows for step in row}  # a lone step is a row of one
        memory = self.base.memory
        places = sorted(combinations(range(len(singles)), 2), key=sum)
        rows = [
            [(first, second) for first in row_of[one.steps[0]] for second in row_of[other.steps[0]]]
            for one, other in ((singles[first], singles[second]) for first, second in places)
            if one.steps[0].kind != other.steps[0].kind
            and one.memory.peak + other.memory.peak - memory.peak <= memory.capacity
        ]
        return [trial for row in rows[:MOST_PAIRS] if (trial := self._first_that_fits(row)) is not None]

    def cheapest(self, pairs: Sequence[_Trial], singles: Sequence[_Trial]) -> list[_Trial]:
        """The pairs that fit and are the cheapest by the sum of what their single changes cost."""
        tried = {trial.steps[0]: trial for trial in singles}
        alone = {step: tried[found] for row in self._rows for found in row if found in tried for step in row}

        def cost(pair: _Trial) -> float:
            parts = [self.seconds(alone[step]) for step in pair.steps]
            return pair.memory.peak if None in parts else sum(part or 0.0 for part in parts)

        def in_vain(pair: _Trial) -> bool:
            """Whether one of the two would do, and the other only costs time."""
            before = self.seconds(self.base) or 0.0
            parts = [alone[step] for step in pair.steps]
            return any(
                part.memory.fits and (self.seconds(other) or before) >= before
                for part, other in zip(parts, reversed(parts), strict=True)
            )

        fitting = [pair for pair in pairs if pair.memory.fits and not in_vain(pair)]
        return sorted(fitting, key=cost)[:_PRICED]

    def seconds(self, trial: _Trial) -> float | None:
        """Predicted iteration time [s]; None where this version cannot price it."""
        if trial not in self._prices:
            # Not a whole prediction: the memory is known already.
            program = coalesce(build(trial.run)) if trial.priced else None
            self._prices[trial] = None if program is None else float(execute(program, "closed").iteration_s)
        return self._prices[trial]

    def change(self, trial: _Trial) -> Change:
        """A trial as people see it."""
        keys = self._needed({key: value for step in trial.steps for key, value in step.keys.items()})
        seconds, before = self.seconds(trial), self.seconds(self.base)
        return Change(
            words=" + ".join(step.words for step in trial.steps),
            keys=keys,
            flags=flags(keys),
            count=len(trial.steps),
            memory=trial.memory,
            iteration_s=seconds,
            slowdown=None if seconds is None or before is None else seconds / before - 1.0,
            warnings=tuple(text for text in trial.run.warnings if text not in self.base.run.warnings),
        )

    def _needed(self, keys: dict[str, object]) -> dict[str, object]:
        """Leave out chunks that come with the schedule, where the run says nothing else about them."""
        rule = RULES.get(str(keys.get("layout.schedule")))
        implied = rule is not None and keys.get("layout.vpp") == rule.chunks
        if not implied or not _CHUNKS.isdisjoint(self._mapping.get("layout", {})):
            return keys
        return {key: value for key, value in keys.items() if key != "layout.vpp"}

    def _first_that_fits(self, row: Sequence[tuple[Step, ...]]) -> _Trial | None:
        """Bisection over a row in which each needs less memory than the one before; the last where none fits."""
        best = self._trial(row[-1])
        if best is None or not best.memory.fits:
            return best
        low, high = 0, len(row) - 1
        while low < high:
            middle = (low + high) // 2
            trial = self._trial(row[middle])
            if trial is not None and trial.memory.fits:
                best, high = trial, middle
            else:
                low = middle + 1
        return best

    def _trial(self, chosen: tuple[Step, ...]) -> _Trial | None:
        """The run with changes made; None where that is not valid."""
        keys: dict[str, Any] = {}
        for step in chosen:
            keys = merged(keys, _nested(step.keys))
        try:
            # What has no price is no advice for a run that has one.
            request = request_from_mapping(merged(self._mapping, keys), "run")
            run = resolve(request, self._data, priced=self.base.priced)
        except InputError:
            return None
        self.tried += 1
        self._done(1)
        return _Trial(chosen, run, self.base.priced, memory_of(run))


def _fits_well(memory: MemoryProfile) -> bool:
    return memory.fits and not fits_closely(memory)


def _without_idle(changes: Sequence[Change]) -> tuple[Change, ...]:
    """Drop what needs as much memory as one before it, which is cheaper: a part of such a change does nothing."""
    first: dict[float, Change] = {}
    for change in changes:
        first.setdefault(change.memory.peak, change)
    return tuple(first.values())


def _rows(chosen: Sequence[Step]) -> list[list[Step]]:
    """Steps that stand alone, each as a row of one, and rows of rungs."""
    rows: list[list[Step]] = []
    for step in chosen:
        if step.rung > 1 and rows:
            rows[-1].append(step)
        else:
            rows.append([step])
    return rows


def _nested(keys: Mapping[str, object]) -> dict[str, Any]:
    """``{"layout.tp": 8}`` as ``{"layout": {"tp": 8}}``."""
    result: dict[str, Any] = {}
    for key, value in keys.items():
        section, _, name = key.partition(".")
        result.setdefault(section, {})[name] = value
    return result
