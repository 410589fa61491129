"""Fit the host's launch times of a software stack to measured iterations.

The times in which a program's tasks are issued are linear in the constants, so each run is built once, with numbers of
launches in place of seconds. Programs of one shape are priced together by the closed form.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from shardsim.calibrate.fit import Array, Constant, Fit, fit_times
from shardsim.engine.closed import closed_form
from shardsim.program.build import build
from shardsim.program.coalesce import free_runs, side_streams, total
from shardsim.values.host import HostConstants
from shardsim.values.program import Block, Program, Task
from shardsim.values.training import TrainingRun

HOST_CONSTANTS = (
    Constant("forward", 20e-6, 2e-6, 1e-3),
    Constant("backward", 10e-6, 2e-6, 1e-3),
    Constant("collective", 20e-6, 2e-6, 1e-3),
    Constant("passes", 100e-6, 1e-6, 1e-1),
    Constant("optimizer", 10e-6, 2e-6, 1e-3),
)
"""Launch times [s]: what eager PyTorch takes on a quick host, and how far from that is thinkable."""

NAMES = tuple(constant.name for constant in HOST_CONSTANTS)

TETHER = 1e-4
"""Share of the measurements' weight that keeps a constant near its start where they do not determine it (-)."""

LEAST_WEIGHT = 0.01
"""Below this weight a constant counts as assumed (-)."""

_COUNTING = HostConstants("counting", *np.eye(len(NAMES)))
"""Constants with which a task's host time becomes its number of launches of each kind, shape (constants,)."""

Times = Callable[[Mapping[str, float]], Array]


@dataclass(frozen=True, slots=True)
class HostFit:
    """Host constants of a stack, and how they do on models that they were not fitted to.

    Parameters
    ----------
    fit : Fit
        To all runs; constants named as in a host profile.
    held_out : ndarray of float
        Time of each run by constants fitted to runs of other models only [s], shape (runs,); NaN where too few are
        left.
    never_late : ndarray of float
        Time of each run with a host that is never late [s], shape (runs,).
    weight : mapping of str to float
        Share by which the times grow, in the mean, when a constant doubles (-): one with next to none is not determined
        by the runs.
    """

    fit: Fit
    held_out: Array
    never_late: Array
    weight: Mapping[str, float]


def fit_host(runs: Sequence[TrainingRun], measured: Array, advance: Callable[[], object] = lambda: None) -> HostFit:
    """Fit the host constants of one stack.

    Parameters
    ----------
    runs : sequence of TrainingRun
        All of one framework on one kind of host.
    measured : ndarray of float
        Iteration times [s], shape (runs,).
    advance : callable
        Called after the fit to all runs, and after that without each model.

    Returns
    -------
    HostFit

    Raises
    ------
    ValueError
        Fewer runs than constants.
    """
    programs = [build(replace(run, profile=replace(run.profile, host=_COUNTING))) for run in runs]
    times = _times(programs)
    fit = fit_times(times, measured, HOST_CONSTANTS, TETHER)
    advance()
    models = np.array(model_keys(runs))
    held_out = np.full(len(runs), np.nan)
    for model in np.unique(models):
        own, rest = np.flatnonzero(models == model), np.flatnonzero(models != model)
        if len(rest) >= len(NAMES):
            elsewhere = _times([programs[index] for index in rest])
            constants = fit_times(elsewhere, measured[rest], HOST_CONSTANTS, TETHER).constants
            held_out[own] = _times([programs[index] for index in own])(constants)
        advance()
    doubled = {name: times({**fit.constants, name: 2.0 * fit.constants[name]}) for name in NAMES}
    weight = {name: float(np.mean(grown / fit.predicted)) - 1.0 for name, grown in doubled.items()}
    return HostFit(fit, held_out, times(dict.fromkeys(NAMES, 0.0)), weight)


def model_keys(runs: Sequence[TrainingRun]) -> list[str]:
    """Tell models apart, by hidden size and number of layers."""
    return [f"h{run.model.hidden} L{run.model.layers}" for run in runs]


def iteration_times(runs: Sequence[TrainingRun]) -> Times:
    """Make the function from host constants to the iteration times of many runs.

    Parameters
    ----------
    runs : sequence of TrainingRun

    Returns
    -------
    callable
        From constants by name [s] to times [s], shape (runs,); what the closed form says of each run.
    """
    return _times([build(replace(run, profile=replace(run.profile, host=_COUNTING))) for run in runs])


def _times(programs: Sequence[Program]) -> Times:
    groups = [(indices, _Group([programs[index] for index in indices])) for indices in _alike(programs)]

    def times(constants: Mapping[str, float]) -> Array:
        weights = np.array([constants[name] for name in NAMES])
        found = np.empty(len(programs))
        for indices, group in groups:
            found[indices] = closed_form(group.program(weights)).iteration_s
        return found

    return times


def _alike(programs: Sequence[Program]) -> Iterator[list[int]]:
    """Numbers of the programs that differ in their figures only."""

    def of(block: Block, side: frozenset[str]) -> object:
        tasks = ((t.name, t.stream, t.blocking, t.waits, t.drains, t.rendezvous) for t in block.tasks)
        return tuple(tasks), tuple(free_runs(block.tasks, side))

    members: dict[object, list[int]] = {}
    for index, program in enumerate(programs):
        side = side_streams(program)
        shape = (
            program.schedule.orders,
            tuple(
                tuple((key, of(block, side[key[0]])) for key, block in getattr(program, name).items())
                for name in _BY_PLACE
            ),
            tuple(tuple(of(block, side[stage]) for stage, block in enumerate(getattr(program, n))) for n in _BY_STAGE),
            program.synchronous_messages,
        )
        members.setdefault(shape, []).append(index)
    yield from members.values()


_BY_PLACE = ("blocks", "last_blocks", "first_blocks", "pairs")
_BY_STAGE = ("epilogues", "prologues")
"""Blocks of a program, by stage and passes and by stage alone."""


class _Group:
    """Programs of one shape, with an array over them in place of each figure, and runs of tasks in one piece."""

    def __init__(self, programs: Sequence[Program]) -> None:
        first = programs[0]
        self.first = replace(
            first,
            messages={
                key: replace(
                    transfer, latency=np.array([float(p.messages[key].seconds) for p in programs]), wire={}, rate={}
                )
                for key, transfer in first.messages.items()
            },
            overlap_slowdown=np.array([float(p.overlap_slowdown) for p in programs]),
        )
        side = side_streams(first)
        self.placed = {
            name: {k: _joined([getattr(p, name)[k] for p in programs], side[k[0]]) for k in getattr(first, name)}
            for name in _BY_PLACE
        }
        self.ends = {
            name: [
                _joined([getattr(p, name)[stage] for p in programs], side[stage])
                for stage in range(len(getattr(first, name)))
            ]
            for name in _BY_STAGE
        }

    def program(self, weights: Array) -> Program:
        """The price list with seconds in place of numbers of launches."""
        placed = {name: {k: _timed(each, weights) for k, each in found.items()} for name, found in self.placed.items()}
        ends = {name: tuple(_timed(pieces, weights) for pieces in found) for name, found in self.ends.items()}
        return replace(
            self.first,
            blocks=placed["blocks"],
            last_blocks=placed["last_blocks"],
            first_blocks=placed["first_blocks"],
            pairs=placed["pairs"],
            epilogues=ends["epilogues"],
            prologues=ends["prologues"],
        )


@dataclass(frozen=True, slots=True)
class _Piece:
    """A run of tasks, or a single one, of several programs.

    Parameters
    ----------
    task : Task
        Its seconds are those of all of it, shape (programs,).
    launches : ndarray of float
        Up to each task and that one included, by kind (-), shape (tasks, programs, constants).
    before : ndarray of float
        Seconds of the tasks before each [s], shape (tasks, programs).
    """

    task: Task
    launches: Array
    before: Array


def _joined(blocks: Sequence[Block], side: frozenset[str]) -> list[_Piece]:
    pieces: list[_Piece] = []
    moved: dict[int, int] = {}
    for free, indices in free_runs(blocks[0].tasks, side):
        columns = [[block.tasks[index] for block in blocks] for index in indices]
        seconds = np.array([[float(task.seconds) for task in column] for column in columns])
        counts = np.array([[np.broadcast_to(task.host, len(NAMES)) for task in column] for column in columns])
        whole = total(seconds)
        task = replace(columns[0][0], seconds=whole, flop=0.0, parts={})
        if free:
            task = replace(task, stream="compute", transfer=None)
        else:
            moved[indices[0]] = len(pieces)
            task = replace(task, waits=tuple(moved[index] for index in task.waits))
        pieces.append(_Piece(task, np.cumsum(counts, axis=0), np.cumsum(seconds, axis=0) - seconds))
    return pieces


def _timed(pieces: Sequence[_Piece], weights: Array) -> Block:
    def timed(piece: _Piece) -> Task:
        issued = piece.launches @ weights
        return replace(piece.task, host=issued[-1], lag=np.max(issued - piece.before, axis=0))

    return Block("timed", tuple(map(timed, pieces)))
