"""Fit the constants of a software stack to measured iterations.

An iteration is the longest of many chains of kernels, launches and messages, and a constant stretches those of its own
kind. So its time is a convex, piecewise linear function of the constants, and each evaluation gives one of the planes
it consists of (:mod:`shardsim.engine.sensitivity`). The fit works on the planes found so far, whose maximum is a lower
bound of the time, and evaluates again where it ended, until both agree (cutting planes; Kelley 1960,
doi:10.1137/0108053).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from shardsim.calibrate.fit import Array, Constant, Fit, fit_times
from shardsim.engine.listing import listing
from shardsim.engine.sensitivity import path_sums
from shardsim.program.build import build
from shardsim.program.coalesce import coalesce
from shardsim.values.host import LAUNCHES, HostConstants
from shardsim.values.num import Num
from shardsim.values.program import Block, Program, Task
from shardsim.values.stack import COMPUTE, STACK_CONSTANTS
from shardsim.values.training import TrainingRun

NAMES = (*STACK_CONSTANTS, *LAUNCHES)
"""Constants that a fit may ask for: those of the stack profile, and those of its host."""

_BOUNDS: Mapping[str, tuple[float, float, float]] = {
    **dict.fromkeys(("compute", *COMPUTE), (1.0, 0.8, 4.0)),
    **dict.fromkeys(("inside", "exchange"), (1.0, 0.5, 6.0)),
    "data": (1.0, 0.5, 30.0),
    "iteration": (1e-3, 1e-4, 2.0),
    "forward": (50e-6, 2e-6, 1e-3),
    "backward": (20e-6, 2e-6, 1e-3),
    "collective": (30e-6, 2e-6, 5e-3),
    "passes": (300e-6, 1e-6, 1e-1),
    "optimizer": (10e-6, 2e-6, 1e-3),
    "member": (20e-6, 1e-6, 2e-3),
}
"""Where the search starts, and how far from that is thinkable: factors (-), times [s]."""

MOST_CONSTANTS = 8
"""Of one stack (-)."""

LEAST_ROWS = 10
"""For each constant (-)."""

TETHER = 1e-3
"""Share of the measurements' weight that keeps a constant near its start where they do not determine it (-)."""

LEAST_WEIGHT = 0.01
"""Below this weight a constant counts as assumed (-)."""

_ROUNDS = 6
_CLOSE = 2e-3
"""Planes and evaluation agree when no time differs by more (-)."""


@dataclass(frozen=True, slots=True)
class Planes:
    """Lower bounds of the iteration time of one run, each exact somewhere.

    Parameters
    ----------
    fixed : ndarray of float
        What no constant changes [s], shape (planes,).
    slopes : ndarray of float
        Seconds for each unit of each constant of ``NAMES``, shape (planes, constants).
    """

    fixed: Array
    slopes: Array

    def seconds(self, values: Array) -> float:
        """The largest of the bounds [s]."""
        return float(np.max(self.fixed + self.slopes @ values))

    def with_plane(self, other: Planes) -> Planes:
        """Both together."""
        return Planes(np.concatenate([self.fixed, other.fixed]), np.concatenate([self.slopes, other.slopes]))


@dataclass(frozen=True, slots=True)
class StackFit:
    """Constants of a stack, and how they do on runs that they were not fitted to.

    Parameters
    ----------
    fit : Fit
        To all runs; a constant of one generation of devices is named ``products@h100-sxm``.
    held_out : ndarray of float
        Time of each run by constants fitted without its group [s], shape (runs,); NaN where too few are left.
    halves : ndarray of float
        By how much predictions of all runs differ when only one half of the groups is fitted, as a share of those by
        all (-), shape (halves, runs).
    weight : mapping of str to float
        Share by which the times of the runs that have a constant grow, in the mean, when it doubles (-).
    rows : mapping of str to int
        Runs that have a constant (-).
    measured : ndarray of float
        [s], shape (runs,).
    """

    fit: Fit
    held_out: Array
    halves: Array
    weight: Mapping[str, float]
    rows: Mapping[str, int]
    measured: Array

    @property
    def held_out_errors(self) -> Array:
        """Of the runs left out in turn, predicted / measured - 1 (-), shape (runs,); NaN where too few were left."""
        return self.held_out / self.measured - 1.0

    @property
    def moved(self) -> float:
        """By how much a fit to one half moves 9 of 10 predictions at most (-); 0 where there are no halves."""
        return float(np.quantile(np.abs(self.halves), 0.9)) if self.halves.size else 0.0


class StackProblem:
    """Runs of one stack, their measured times, and the planes found so far.

    Parameters
    ----------
    runs : sequence of TrainingRun
    measured : ndarray of float
        Iteration times [s], shape (runs,).
    names : sequence of str
        Constants to fit; ``products@h100-sxm`` for those of one generation of devices, which then leaves the others'.
    groups : sequence of str
        What each run is left out with.
    """

    def __init__(
        self, runs: Sequence[TrainingRun], measured: Array, names: Sequence[str], groups: Sequence[str]
    ) -> None:
        self.runs, self.measured, self.names, self.groups = runs, measured, tuple(names), np.array(groups)
        self.constants = tuple(_constant(name) for name in names)
        self._own = np.array([starting_values(run) for run in runs])
        self._columns = [_columns(run, self.names) for run in runs]
        self._planes: list[Planes] = []

    def constants_of(self, index: int) -> tuple[str, ...]:
        """Constants to fit that a run has."""
        return tuple(self._columns[index].values())

    def values(self, index: int, constants: Mapping[str, float]) -> Array:
        """The constants of one run: those fitted, and its profile's for the others, shape (constants of NAMES,)."""
        found: Array = self._own[index].copy()
        for position, name in self._columns[index].items():
            found[position] = constants[name]
        return found

    def evaluate(self, constants: Mapping[str, float], advance: Callable[[], object] = lambda: None) -> Array:
        """Price every run, and keep the planes found on the way.

        Parameters
        ----------
        constants : mapping of str to float
        advance : callable
            Called after each run.

        Returns
        -------
        ndarray of float
            [s], shape (runs,).
        """
        seconds, found = [], []
        for index, run in enumerate(self.runs):
            time, plane = iteration_plane(run, self.values(index, constants))
            seconds.append(time)
            found.append(plane)
            advance()
        known: Sequence[Planes | None] = self._planes or [None] * len(found)
        self._planes = [new if old is None else old.with_plane(new) for old, new in zip(known, found, strict=True)]
        return np.array(seconds)

    def exact(self, constants: Mapping[str, float]) -> Array:
        """Price every run as a prediction does [s], shape (runs,)."""
        programs = (build(with_constants(run, self.values(index, constants))) for index, run in enumerate(self.runs))
        return np.array([listing(coalesce(program)).iteration_s for program in programs], dtype=float)

    def by_planes(self, constants: Mapping[str, float], rows: Sequence[int] | None = None) -> Array:
        """Lower bounds of the times from the planes found so far [s]."""
        indices = range(len(self.runs)) if rows is None else rows
        return np.array([self._planes[index].seconds(self.values(index, constants)) for index in indices])

    def fit(self, rows: Sequence[int]) -> Fit:
        """Fit to some of the runs, by the planes found so far."""
        return fit_times(
            lambda constants: self.by_planes(constants, rows), self.measured[list(rows)], self.constants, TETHER
        )


def fit_stack(
    problem: StackProblem, advance: Callable[[], object] = lambda: None, halves: int = 6, seed: int = 0
) -> StackFit:
    """Fit the constants of one stack.

    Parameters
    ----------
    problem : StackProblem
    advance : callable
        Called after each run that was priced.
    halves : int
        How many times half of the groups is fitted alone (-).
    seed : int
        Of the choice of halves.

    Returns
    -------
    StackFit

    Raises
    ------
    ValueError
        Fewer runs than constants.
    """
    everyone = range(len(problem.runs))
    constants = {constant.name: constant.start for constant in problem.constants}
    problem.evaluate(constants, advance)
    for _ in range(_ROUNDS):
        fit = problem.fit(everyone)
        if float(np.max(np.abs(fit.predicted / problem.evaluate(fit.constants, advance) - 1.0))) < _CLOSE:
            break
    seconds = problem.exact(fit.constants)
    names = np.unique(problem.groups)
    held_out = np.full(len(everyone), np.nan)
    for group in names:
        own, rest = (np.flatnonzero(same).tolist() for same in (problem.groups == group, problem.groups != group))
        if len(rest) >= LEAST_ROWS * len(problem.names) // 2:
            held_out[own] = problem.by_planes(problem.fit(rest).constants, own)
    drawn = np.random.default_rng(seed)
    moved = []
    for _ in range(halves if len(names) > 1 else 0):
        chosen = drawn.permutation(names)[: len(names) // 2]
        some = np.flatnonzero(np.isin(problem.groups, chosen)).tolist()
        if len(some) > len(problem.names):
            moved.append(problem.by_planes(problem.fit(some).constants) / fit.predicted - 1.0)
    doubled = {name: {**fit.constants, name: 2.0 * fit.constants[name]} for name in problem.names}
    weight, rows = {}, {}
    for name, one in doubled.items():
        has = [index for index in everyone if name in problem.constants_of(index)]
        rows[name] = len(has)
        weight[name] = float(np.mean(problem.by_planes(one, has) / fit.predicted[has])) - 1.0 if has else 0.0
    return StackFit(
        replace(fit, predicted=seconds), held_out, np.array(moved), weight, rows, np.asarray(problem.measured)
    )


def iteration_plane(run: TrainingRun, values: Array) -> tuple[float, Planes]:
    """Price a run with some constants, and say how its time follows from them.

    Parameters
    ----------
    run : TrainingRun
    values : ndarray of float
        Constants of ``NAMES``: factors (-), times [s], shape (constants,).

    Returns
    -------
    float
        The iteration time [s].
    Planes
        One plane.

    Notes
    -----
    In the steady state of a pipeline every round of micro-batches takes as long as the one before. So many of them are
    priced by two short runs, of three and of four rounds.
    """
    few = _fewer(run, 3), _fewer(run, 4)
    micro_batches, short, longer = (_micro_batches(one) for one in (run, *few))
    if micro_batches < 2 * longer:
        return _exact_plane(run, values)
    (first, at_first), (second, at_second) = (_exact_plane(one, values) for one in few)
    times = (micro_batches - short) / (longer - short)
    slopes = at_first.slopes + times * (at_second.slopes - at_first.slopes)
    fixed = at_first.fixed + times * (at_second.fixed - at_first.fixed)
    return first + times * (second - first), Planes(fixed, slopes)


def _micro_batches(run: TrainingRun) -> int:
    return round(float(run.batch.global_batch / (run.batch.micro_batch * run.layout.dp)))


def _fewer(run: TrainingRun, rounds: int) -> TrainingRun:
    """The same run with so many rounds of micro-batches."""
    pipelines = 2 if run.layout.schedule == "dualpipe" else 1
    sequences = rounds * pipelines * run.layout.pp * run.batch.micro_batch * run.layout.dp
    return replace(run, batch=replace(run.batch, global_batch=sequences))


def _exact_plane(run: TrainingRun, values: Array) -> tuple[float, Planes]:
    set_run = with_constants(run, values)
    program = build(set_run)
    counts = _counts(program, build(replace(set_run, profile=replace(set_run.profile, host=_COUNTING))))
    stack_values = dict(zip(STACK_CONSTANTS, values, strict=False))
    none = np.zeros(len(NAMES))
    columns = {name: column for column, name in enumerate(STACK_CONSTANTS)}

    def work(task: Task) -> Array:
        if not task.term:
            return none
        found = none.copy()
        found[columns[task.term]] = task.seconds / stack_values[task.term]
        return found

    def launch(task: Task) -> Array:
        found = none.copy()
        found[len(STACK_CONSTANTS) :] = counts[id(task)]
        return found

    seconds, slopes = path_sums(program, work, launch)
    return seconds, Planes(np.array([seconds - float(slopes @ values)]), slopes[np.newaxis, :])


def with_constants(run: TrainingRun, values: Array) -> TrainingRun:
    """The same run with other constants of its stack and host.

    Parameters
    ----------
    run : TrainingRun
    values : ndarray of float
        Constants of ``NAMES``, shape (constants,).

    Returns
    -------
    TrainingRun
    """
    named = dict(zip(NAMES, values.tolist(), strict=True))
    stack = replace(run.profile.stack, **{name: named[name] for name in STACK_CONSTANTS})
    host = replace(run.profile.host, **{name: named[name] for name in LAUNCHES})
    return replace(run, profile=replace(run.profile, stack=stack, host=host))


def starting_values(run: TrainingRun) -> Array:
    """The constants that a run's own profiles have, shape (constants of NAMES,)."""
    profile = run.profile
    own: list[Num] = [getattr(profile.stack, name) for name in STACK_CONSTANTS]
    own += [getattr(profile.host, name) for name in LAUNCHES]
    return np.array([float(value) for value in own])


_COUNTING = HostConstants("counting", *np.eye(len(LAUNCHES)))
"""Constants with which a task's host time becomes its number of launches of each kind, shape (constants,)."""


def _counts(program: Program, counting: Program) -> dict[int, Array]:
    """Launches of each kind by the identity of each task of a program."""
    found = {}
    for block, counted in zip(_blocks(program), _blocks(counting), strict=True):
        for task, launches in zip(block.tasks, counted.tasks, strict=True):
            found[id(task)] = np.broadcast_to(launches.host, len(LAUNCHES))
    return found


def _blocks(program: Program) -> Iterator[Block]:
    for blocks in (program.blocks, program.last_blocks, program.first_blocks, program.pairs):
        yield from blocks.values()
    yield from program.epilogues
    yield from program.prologues


def _constant(name: str) -> Constant:
    start, least, most = _BOUNDS[name.partition("@")[0]]
    return Constant(name, start, least, most)


def bounds(name: str) -> tuple[float, float]:
    """Between which values a constant stays: factors (-), times [s]."""
    _, least, most = _BOUNDS[name.partition("@")[0]]
    return least, most


def is_time(name: str) -> bool:
    """Whether a constant is a time, not a factor."""
    return name.partition("@")[0] in (*LAUNCHES, "iteration")


def known_constants() -> tuple[str, ...]:
    """Names of what can be fitted."""
    return tuple(_BOUNDS)


def _columns(run: TrainingRun, names: Sequence[str]) -> dict[int, str]:
    """Which fitted constant stands at which place of a run's own; those of its device or kind take precedence."""
    marks = ("", run.cluster.device.compute_profile, "dense" if run.model.moe is None else "experts")
    found: dict[int, str] = {}
    for name in sorted(names, key=_precedence):
        plain, _, mark = name.partition("@")
        if mark in marks:
            found |= {NAMES.index(each): name for each in members(plain)}
    return found


def members(name: str) -> tuple[str, ...]:
    """Constants that one to be fitted stands for: ``compute`` for those of all kernels."""
    return COMPUTE if name == "compute" else (name,)


def _precedence(name: str) -> tuple[bool, bool]:
    plain, _, mark = name.partition("@")
    return bool(mark), plain != "compute"
