"""What a rank sends in an iteration: by stage, axis and link, from the transfers of a program."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from shardsim.program.build import build
from shardsim.program.machine import Machine
from shardsim.topology.placement import axis_spans, leaf_of
from shardsim.values.num import first_of
from shardsim.values.program import Block, Pair, Pass, Program, passes_of
from shardsim.values.training import TWO_LEVEL, TrainingRun
from shardsim.values.transfer import Transfer

LINKS = ("nvlink", "nic", "leaf")
"""NVLink; out of the NVLink domain through an adapter; of that, from one leaf switch to another through a spine."""

_AXIS = {"shard": "dp", "replica": "dp", "edp_shard": "edp"}
"""Axis of the layout that groups with a name of their own lie along."""
_EACH_TO_EACH = frozenset({"all_to_all", "dispatch", "combine"})


@dataclass(frozen=True, slots=True)
class Traffic:
    """What one rank of a stage sends along one axis for one purpose, in one iteration.

    Parameters
    ----------
    stage : int or None
        None for the mean of all stages.
    axis : str
        ``tp``, ``cp``, ``cp_inner``, ``cp_outer``, ``etp``, ``ep``, ``edp``, ``dp``, ``pp``; ``embedding`` and
        ``copies``, stages that hold the same tables or layers; ``model``, all stages.
    operation : str
        Kind of the collective, ``dispatch``, ``combine``, or ``message`` to another stage.
    sent : mapping of str to float
        By link of :data:`LINKS` [bytes]: the mean over the ranks of a group. What goes through an adapter may cross
        leaf switches; ``leaf`` is the part that does.
    times : float
        Transfers (-).
    seconds : float
        That they take one after another with nothing beside them [s].
    algorithms : tuple of str
    """

    stage: int | None
    axis: str
    operation: str
    sent: Mapping[str, float]
    times: float
    seconds: float
    algorithms: tuple[str, ...]


def traffic(run: TrainingRun) -> tuple[Traffic, ...]:
    """List what ranks send in an iteration.

    Parameters
    ----------
    run : TrainingRun
        Of scalar degrees.

    Returns
    -------
    tuple of Traffic
        Stage by stage; within one in order of first appearance. What takes no time (groups of one rank) is left out.

    Notes
    -----
    Bytes out of an NVLink domain are those of :class:`shardsim.values.transfer.Transfer`: what the algorithm that wins
    puts on the adapters. A ring of a group that leaves a leaf does so once on each leaf; an all-to-all with every
    member on another one.
    """
    return _Counted(run, build(run)).rows()


def mean_of_stages(rows: Sequence[Traffic]) -> tuple[Traffic, ...]:
    """Average over stages what their ranks send.

    Parameters
    ----------
    rows : sequence of Traffic
        Of every stage.

    Returns
    -------
    tuple of Traffic
        Without a stage, in order of first appearance.
    """
    stages = len({row.stage for row in rows})
    alike: dict[tuple[str, str], list[Traffic]] = {}
    for row in rows:
        alike.setdefault((row.axis, row.operation), []).append(row)
    return tuple(
        Traffic(
            stage=None,
            axis=axis,
            operation=operation,
            sent={link: sum(row.sent[link] for row in several) / stages for link in LINKS},
            times=sum(row.times for row in several) / stages,
            seconds=sum(row.seconds for row in several) / stages,
            algorithms=tuple(dict.fromkeys(name for row in several for name in row.algorithms)),
        )
        for (axis, operation), several in alike.items()
    )


@dataclass(frozen=True)
class _Counted:
    run: TrainingRun
    program: Program

    @cached_property
    def machine(self) -> Machine:
        return Machine(self.run)

    def rows(self) -> tuple[Traffic, ...]:
        return tuple(row for stage in range(self.program.schedule.stages) for row in self.of_stage(stage))

    def of_stage(self, stage: int) -> Iterator[Traffic]:
        found: dict[tuple[str, str], list[tuple[int, Transfer, Mapping[str, float]]]] = {}
        for block, times in blocks_run(self.program, stage):
            for task in block.tasks:
                if task.transfer is not None and task.moves is not None:
                    axis, operation = task.moves
                    one = (times, task.transfer, self.sent(axis, operation, task.transfer))
                    found.setdefault((_AXIS.get(axis, axis), operation), []).append(one)
        for (kind, chunk), times in _messages(self.program, stage).items():
            transfer = self.program.messages[stage, kind, chunk]
            found.setdefault(("pp", "message"), []).append((times, transfer, self.message(stage, kind, chunk)))
        for (axis, operation), several in found.items():
            yield Traffic(
                stage=stage,
                axis=axis,
                operation=operation,
                sent={link: sum(times * sent[link] for times, _, sent in several) for link in LINKS},
                times=sum(times for times, _, _ in several),
                seconds=sum(times * float(transfer.seconds) for times, transfer, _ in several),
                algorithms=tuple(dict.fromkeys(transfer.algorithm for _, transfer, _ in several)),
            )

    def sent(self, axis: str, operation: str, transfer: Transfer) -> dict[str, float]:
        """What the mean rank of a group sends over each link [bytes]."""
        shape = self.machine.shapes[axis]
        near, far = (float(first_of(transfer.wire.get(link, 0.0))) for link in ("nvlink", "nic"))
        members, domains, leaves = (
            float(first_of(count)) for count in (shape.ranks_per_domain, shape.domains, shape.leaves)
        )
        if operation == "send_recv" and domains > 1:  # of a domain's members one sends to the next domain
            near, far = far * (members - 1) / members, far / members
        elif transfer.algorithm not in TWO_LEVEL:  # whose transfers say what one rank sends, not all of a domain
            far /= members
        if leaves <= 1:
            return {"nvlink": near, "nic": far, "leaf": 0.0}
        across = domains * (1 - 1 / leaves) / (domains - 1) if operation in _EACH_TO_EACH else leaves / domains
        return {"nvlink": near, "nic": far, "leaf": far * across}

    def message(self, stage: int, kind: str, chunk: int) -> dict[str, float]:
        """What the mean rank of a stage sends to a neighbouring one [bytes]."""
        transfer = self.program.messages[stage, kind, chunk]
        near, far = (float(first_of(transfer.wire[link])) for link in ("nvlink", "nic"))
        return {"nvlink": near, "nic": far, "leaf": far * self.leaving(stage, self.receiver(stage, kind, chunk))}

    def receiver(self, stage: int, kind: str, chunk: int) -> int:
        """Stage that a pass sends its output to."""
        for places in self.program.schedule.chains:
            if (stage, chunk) in places:
                return places[places.index((stage, chunk)) + (1 if kind == "F" else -1)][0]
        raise ValueError(f"no chain runs through stage {stage}, chunk {chunk}")

    def leaving(self, stage: int, other: int) -> float:
        """Share of a stage's ranks whose counterpart on another stage hangs on another leaf (-)."""
        span = axis_spans(self.run.layout)["pp"]
        ranks = np.arange(int(self.run.layout.gpus))
        own = ranks[ranks // int(span.stride) % int(span.count) == stage]
        leaf, there = (leaf_of(one, self.run.cluster) for one in (own, own + (other - stage) * int(span.stride)))
        return float(np.mean(leaf != there))


def blocks_run(program: Program, stage: int) -> tuple[tuple[Block, int], ...]:
    """List the blocks that a stage runs in an iteration.

    Parameters
    ----------
    program : Program
    stage : int

    Returns
    -------
    tuple of (Block, int)
        With how many times each (-).
    """
    order = program.schedule.orders[stage]
    ends: dict[int, Block] = {}
    forwards = list(enumerate(order))
    for blocks, items in ((program.first_blocks, forwards), (program.last_blocks, forwards[::-1])):
        for (where, kind, chunk), block in blocks.items():
            if where == stage:
                index, item = next((at, one) for at, one in items if _has(one, kind, chunk))
                if isinstance(item, Pass):
                    ends[index] = block
    usual: Counter[tuple[str, int, int]] = Counter()
    for index, item in enumerate(order):
        if isinstance(item, Pair):
            usual["pair", item.forward.chunk, item.backward.chunk] += 1
        elif index not in ends:
            usual[item.kind, 0, item.chunk] += 1
    found = [
        (program.pairs[stage, first, chunk] if kind == "pair" else program.blocks[stage, kind, chunk], times)
        for (kind, first, chunk), times in usual.items()
    ]
    around = (*program.prologues[stage : stage + 1], program.epilogues[stage])
    return (*found, *((block, 1) for block in (*ends.values(), *around)))


def _has(item: Pass | Pair, kind: str, chunk: int) -> bool:
    return any(one.kind == kind and one.chunk == chunk for one in passes_of((item,)))


def _messages(program: Program, stage: int) -> Counter[tuple[str, int]]:
    """Messages that a stage sends, by the kind and chunk of the pass as ``Program.messages`` names them."""
    sent: Counter[tuple[str, int]] = Counter()
    for kind, _, chunk in passes_of(program.schedule.orders[stage]):
        name = "F" if kind == "F" else "B"
        if kind != "W" and (stage, name, chunk) in program.messages:
            sent[name, chunk] += 1
    return sent
