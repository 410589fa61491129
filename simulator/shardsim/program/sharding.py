"""Parameters and gradients on their way during a pass: gathered before they are needed, reduced when they are ready.

None of it holds up computation of its own accord. A gather is queued ahead of what it serves, which waits for it; a
reduction is queued when its gradients are there, and the end of the pass or of the iteration waits for it. What stays
exposed is what the timeline leaves.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

from shardsim.program.machine import Machine
from shardsim.program.overlap import joined
from shardsim.values.num import Num, any_of, larger, smaller, where
from shardsim.values.operators import Collective, Operator
from shardsim.values.program import Task
from shardsim.values.training import TrainingRun
from shardsim.workload.data_parallel import gathered_copy, gradient_packing, gradient_reduction, parameter_gather
from shardsim.workload.parameters import layer_tensors


class Unit(NamedTuple):
    """A part of a pass, and the parameters that it uses.

    Parameters
    ----------
    tasks : tuple of Task
        What they wait for counts from the first of them.
    parameters : Num
        Gathered before it starts, or with gradients that it finishes (-).
    """

    tasks: tuple[Task, ...]
    parameters: Num


class Gather(NamedTuple):
    """Parameters that are gathered during a pass.

    Parameters
    ----------
    before : int
        Unit before which it is queued.
    needed : int or None
        Unit that waits for it; None where that is in a later pass.
    parameters : Num
        (-).
    times : Num
        How many collectives of that size follow each other (-).
    copied : bool
        Whether the unit copies them to where it uses them.
    experts : bool
        Whether they are of experts, which other ranks hold parts of.
    """

    before: int
    needed: int | None
    parameters: Num
    times: Num = 1.0
    copied: bool = False
    experts: bool = False


class Reduction(NamedTuple):
    """Gradients that are reduced during a pass.

    Parameters
    ----------
    after : int
        Unit that finishes them.
    parameters : Num
        (-).
    times : Num
        How many reductions of that size follow each other (-).
    experts : bool
        Whether they are of experts, which other ranks hold the same of.
    """

    after: int
    parameters: Num
    times: Num = 1.0
    experts: bool = False


def gathers_of_units(parameters: Sequence[Num], ahead: int, *, copied: bool) -> tuple[Gather, ...]:
    """Gather what each unit needs as one, so many units ahead of the one that computes (ZeRO 3).

    Parameters
    ----------
    parameters : sequence of Num
        That each unit needs (-); 0 for nothing.
    ahead : int
        (-).
    copied : bool
        Whether they are copied to where they are used.

    Returns
    -------
    tuple of Gather

    Notes
    -----
    The gather of unit i starts when unit i - ahead - 1 has ended: the host runs ahead of the device, and is held back
    by how many gathered units may be alive (PyTorch, FSDP1: ``_limiter_utils.py``, two; FSDP2:
    ``_fsdp_param_group.py``, one more in the forward pass, one ahead in the backward pass).
    """
    return tuple(
        Gather(max(0, unit - ahead), unit, size, copied=copied)
        for unit, size in enumerate(parameters)
        if any_of(size > 0)
    )


def gathers_in_buckets(parameters: Sequence[Num], elements: Num) -> tuple[Gather, ...]:
    """Gather the parameters of a chunk behind its first pass, one bucket ahead of the one in use (ZeRO 1 and 2).

    Parameters
    ----------
    parameters : sequence of Num
        Of each unit, in the order of use (-).
    elements : Num
        Parameters in a bucket (-).

    Returns
    -------
    tuple of Gather
        All but the first bucket, which has arrived: while each unit runs, as much as it uses itself, counted in
        buckets, which need not be whole ones. The next unit waits for it.

    Notes
    -----
    Megatron-LM core, ``param_and_grad_buffer.py``: whoever waits for a bucket launches the next.
    """
    used = list(accumulate(parameters))
    bucket = smaller(used[-1], elements)
    launched = [smaller(used[-1], bucket + size) for size in used]
    return tuple(
        Gather(unit, unit + 1 if unit + 1 < len(used) else None, bucket, (now - before) / bucket)
        for unit, (before, now) in enumerate(zip([bucket, *launched], launched, strict=False))
        if any_of(parameters[unit] > 0)
    )


def reductions_of_units(parameters: Sequence[Num]) -> tuple[Reduction, ...]:
    """Reduce the gradients of each unit as one.

    Parameters
    ----------
    parameters : sequence of Num
        Whose gradients each unit finishes (-); 0 for none.

    Returns
    -------
    tuple of Reduction
    """
    return tuple(Reduction(unit, size) for unit, size in enumerate(parameters) if any_of(size > 0))


def reductions_in_buckets(parameters: Sequence[Num], elements: Num, first: Num = 0.0) -> tuple[Reduction, ...]:
    """Reduce gradients bucket by bucket, each when its last gradient is there.

    Parameters
    ----------
    parameters : sequence of Num
        Whose gradients each unit finishes, in that order (-). They fill one bucket after the other: a bucket may hold
        those of several units, a unit may fill several.
    elements : Num
        Gradients in a bucket (-).
    first : Num
        Gradients in the first bucket (-); 0 where it is like the others.

    Returns
    -------
    tuple of Reduction
        At most one for each unit, whatever the sizes, and what is left over after the last.

    Examples
    --------
    >>> [(r.after, r.parameters, r.times) for r in reductions_in_buckets([3.0, 3.0, 3.0], 4.0)]
    [(0, 4.0, 0.0), (1, 4.0, 1.0), (2, 4.0, 1.0), (2, 1.0, 1.0)]
    """
    if not parameters:  # weight gradients of a chunk without layers
        return ()
    done = list(accumulate(parameters))
    head = smaller(first, done[-1])
    elements = larger(smaller(elements, done[-1] - head), 1.0)  # exactly all that is left, where that is less
    full = [larger(size - head, 0.0) // elements for size in done]
    start = next((unit for unit, size in enumerate(parameters) if any_of(size > 0)), 0)
    found = [Reduction(start, head)] if first else []
    found += [
        Reduction(unit, elements, now - before)
        for unit, (before, now) in enumerate(zip([0.0, *full], full, strict=False))
        if any_of(parameters[unit] > 0)
    ]
    rest = done[-1] - head - full[-1] * elements
    return (*found, Reduction(len(done) - 1, rest, where(rest > 0, 1.0, 0.0)))


def pause(name: str, drains: tuple[str, ...] = ()) -> Task:
    """A moment at which computation waits for parameters or gradients.

    Parameters
    ----------
    name : str
    drains : tuple of str
        Streams that must be empty.

    Returns
    -------
    Task
    """
    return Task(name, "compute", "dp", 0.0, drains=drains)


@dataclass(frozen=True)
class Sharding:
    """Puts gathers and reductions between the parts of a pass.

    Parameters
    ----------
    run : TrainingRun
    machine : Machine
    streams : tuple of str
        On which parameters and gradients travel.
    """

    run: TrainingRun
    machine: Machine
    streams: tuple[str, ...]

    def joined(
        self,
        units: Sequence[Unit],
        gathers: Sequence[Gather] = (),
        reductions: Sequence[Reduction] = (),
        *,
        drains: bool = False,
        copies: bool = True,
    ) -> tuple[Task, ...]:
        """The tasks of a pass with its gathers and reductions.

        Parameters
        ----------
        units : sequence of Unit
        gathers : sequence of Gather
        reductions : sequence of Reduction
            Before them, each unit's gradients are averaged and carried to where they are reduced. Computation waits for
            the oldest where more would be under way than the framework allows, and for each where it overlaps none.
        drains : bool
            Whether the pass ends when all its reductions have.
        copies : bool
            Whether replicas that hold copies of a part add up what has been reduced.

        Returns
        -------
        tuple of Task
        """
        framework = self.run.framework
        line, arrived, unpacking = _Line(), dict[int, list[int]](), dict[int, tuple[Task, ...]]()
        reduced: list[int] = []
        for at, unit in enumerate(units):
            for gather in gathers:
                if gather.before == at:
                    queued = line.queue(self.gather(gather.parameters, gather.times, experts=gather.experts))
                    if gather.needed is not None:
                        arrived.setdefault(gather.needed, []).append(queued)
                    if gather.needed is not None and gather.copied:
                        copy = self._tasks(gathered_copy(gather.parameters, framework))
                        unpacking[gather.needed] = (*unpacking.get(gather.needed, ()), *copy)
            line.put(joined(unpacking.get(at, ()), unit.tasks), arrived.get(at, ()))
            ready = [reduction for reduction in reductions if reduction.after == at]
            if ready:
                tensors = layer_tensors(self.run.model, framework)
                line.put(self._tasks(gradient_packing(unit.parameters, framework, tensors)))
            for reduction in ready:
                if framework.reductions_in_flight and len(reduced) >= framework.reductions_in_flight:
                    line.put((pause("wait for gradients"),), (reduced[-framework.reductions_in_flight],))
                reduced.append(self._reduce(line, reduction, copies=copies))
        if drains and reduced:
            line.put((pause("wait for gradients", self.streams),))
        return tuple(line.tasks)

    def gather(self, parameters: Num, times: Num = 1.0, *, experts: bool = False) -> Task:
        """The gather of parameters, behind computation.

        Parameters
        ----------
        parameters : Num
            (-).
        times : Num
            How many of that size follow each other (-).
        experts : bool
            Whether they are of experts.

        Returns
        -------
        Task
        """
        gather = parameter_gather(parameters, self.run.layout, self.run.framework, experts=experts)
        return replace(self._repeated(gather, parameters, times), name="gather parameters")

    def _reduce(self, line: _Line, reduction: Reduction, *, copies: bool) -> int:
        """Queue a reduction, and return the place of its first collective, which frees the gradients it reads.

        A sum over copies behind it holds up no other reduction (github pytorch/pytorch, _fsdp_param_group.py).
        """
        framework = self.run.framework
        queued: list[int] = []
        collectives = gradient_reduction(reduction.parameters, self.run.layout, framework, experts=reduction.experts)
        for collective in collectives if copies else collectives[:1]:
            task = self._repeated(collective, reduction.parameters, reduction.times)
            queued.append(line.queue(replace(task, name="reduce gradients"), queued[-1:]))
        if framework.overlap_grad_reduce == "never":
            line.put((pause("wait for gradients"),), queued[-1:])
        return queued[0]

    def _repeated(self, collective: Collective, parameters: Num, times: Num) -> Task:
        """One collective after another, alike, as one task behind computation."""
        task = self._priced(collective, parameters)
        transfer = task.transfer or self.machine.transfer(collective)
        several = replace(
            transfer,
            latency=transfer.latency * times,
            wire={link: size * times for link, size in transfer.wire.items()},
        )
        host = task.host * times
        return replace(task, seconds=several.seconds, transfer=several, host=host, blocking=False)

    def _priced(self, collective: Collective, parameters: Num) -> Task:
        """A collective as a task; of layers that are alike, and so hold the same number, once."""
        key = (collective.name, id(parameters))
        if key not in self._prices:
            self._prices[key] = (parameters, self.machine.task(collective))
        return self._prices[key][1]

    @cached_property
    def _prices(self) -> dict[tuple[str, int], tuple[Num, Task]]:
        """Tasks by the number of parameters, which is kept so that no other takes its identity."""
        return {}

    def _tasks(self, operator: Operator) -> tuple[Task, ...]:
        return self.machine.tasks((operator,))


@dataclass
class _Line:
    """A pass while it is put together."""

    tasks: list[Task] = field(default_factory=list)

    def queue(self, task: Task, waits: Iterable[int] = ()) -> int:
        """Append a task that waits for others by their places."""
        self.tasks.append(replace(task, waits=tuple(waits)))
        return len(self.tasks) - 1

    def put(self, tasks: Sequence[Task], waits: Iterable[int] = ()) -> None:
        """Append tasks whose waits count from the first of them, and let the first that blocks wait for others.

        What stands in front of that one is only queued: tokens are gathered whether parameters have arrived or not.
        """
        start, others = len(self.tasks), tuple(waits)
        for task in tasks:
            own = (others if task.blocking else ()) + tuple(start + wait for wait in task.waits)
            self.tasks.append(replace(task, waits=own) if own else task)
            others = () if task.blocking else others
        if others:
            self.tasks.append(replace(pause("wait for parameters"), waits=others))
