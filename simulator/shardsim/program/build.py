"""From a training run to a program: every pass of every stage as tasks, priced on the machine.

Passes of stages that do the same work share one block. Degrees that do not change the pipeline's shape (TP, DP, CP,
micro-batch size) may be arrays: the program is then a price list for many layouts at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TypeAlias

from shardsim.errors import InputError, Problem
from shardsim.program.launch import after, as_graph
from shardsim.program.loading import with_loading
from shardsim.program.machine import Machine
from shardsim.program.overlap import paired
from shardsim.program.passes import Passes
from shardsim.program.replicas import Replicas
from shardsim.program.stack import between_iterations
from shardsim.values.hardware import GroupShape
from shardsim.values.num import any_of, first_of
from shardsim.values.program import Block, Pair, PassKind, PipelineSchedule, Place, Program, Task, passes_of
from shardsim.values.training import TrainingRun
from shardsim.values.transfer import Transfer
from shardsim.workload.kinds import LayerKind, kinds_of
from shardsim.workload.pipeline import p2p_message
from shardsim.workload.schedules import schedule_of
from shardsim.workload.stages import ChunkContent, chunk_contents

_Work: TypeAlias = tuple[tuple[LayerKind, ...], bool, bool, int]
_Situation: TypeAlias = tuple[tuple[bool, ...], _Work | None]
_NAMES: Mapping[PassKind, str] = {"F": "forward", "B": "backward", "I": "input gradients", "W": "weight gradients"}


def build(run: TrainingRun, odd: Mapping[str, GroupShape] | None = None) -> Program:
    """Build the program of one iteration.

    Parameters
    ----------
    run : TrainingRun
        Stages, chunks and micro-batches are scalars; other degrees may be arrays over layouts.
    odd : mapping of str to GroupShape, optional
        By axis, how groups lie that do not lie as usual.

    Returns
    -------
    Program
        At operator level; :func:`shardsim.program.coalesce.coalesce` makes it a price list.

    Raises
    ------
    InputError
        Overlapped collectives occupy more multiprocessors than the device can spare.
    """
    return _Builder(run, odd or {}).program()


@dataclass(frozen=True)
class _Builder:
    run: TrainingRun
    odd: Mapping[str, GroupShape]

    @cached_property
    def machine(self) -> Machine:
        return Machine(self.run, self.odd)

    @cached_property
    def schedule(self) -> PipelineSchedule:
        return schedule_of(self.run.layout, self.run.batch)

    @cached_property
    def contents(self) -> Mapping[Place, ChunkContent]:
        """What each (stage, chunk) holds."""
        return chunk_contents(self.run.model, self.run.layout, self.schedule)

    @cached_property
    def passes(self) -> Passes:
        return Passes(self.run, self.machine)

    @cached_property
    def replicas(self) -> Replicas:
        return Replicas(self.run, self.machine, self.schedule, self.contents)

    def program(self) -> Program:
        schedule, replicas = self.schedule, self.replicas
        layout = self.run.layout
        return Program(
            schedule=schedule,
            blocks=self.blocks(),
            last_blocks=self.blocks(last=True),
            epilogues=tuple(
                between_iterations(replicas.epilogue(stage), self.run.profile.stack) for stage in range(schedule.stages)
            ),
            messages=self.messages(),
            multiplicity=int(first_of(layout.tp * layout.cp * layout.dp)),
            rendezvous_members=replicas.meetings,
            overlap_slowdown=self.overlap_slowdown,
            synchronous_messages=self.synchronous_messages,
            first_blocks=self.blocks(first=True),
            pairs=self.pairs(),
            prologues=tuple(
                with_loading(self.run, schedule, stage, replicas.prologue(stage)) for stage in range(schedule.stages)
            ),
        )

    # ---- passes -----------------------------------------------------------------------------------------------

    def blocks(self, *, first: bool = False, last: bool = False) -> dict[tuple[int, str, int], Block]:
        """Blocks of the kinds of passes that the schedule has, one for all places with the same content.

        Those of first or last passes only where they differ, one for all places in the same situation.
        """
        made: dict[tuple[PassKind, _Work, _Situation | None], Block] = {}
        found: dict[tuple[int, str, int], Block] = {}
        for place, kind in self.kinds:
            if (first or last) and not self.replicas.differs(place, kind, first=first, last=last):
                continue
            content, own = self.contents[place], place if first or last else None
            key = (kind, self.work(content), None if own is None else self.situation(own))
            if key not in made:
                segments = self.passes.segments(kind, content)
                tasks = self.replicas.dressed(segments, kind, own, first=first, last=last)
                made[key] = Block(_NAMES[kind], self.issued(tasks))
            found[place[0], kind, place[1]] = made[key]
        return found

    def pairs(self) -> dict[tuple[int, int, int], Block]:
        """Blocks of the pairs that the schedule has, one for all that join the same content."""
        made: dict[tuple[_Work, _Work], Block] = {}
        found: dict[tuple[int, int, int], Block] = {}
        for stage, order in enumerate(self.schedule.orders):
            for chunks in {(item.forward.chunk, item.backward.chunk) for item in order if isinstance(item, Pair)}:
                forward, backward = (self.contents[stage, chunk] for chunk in chunks)
                key = (self.work(forward), self.work(backward))
                if key not in made:
                    tasks = paired(self.strand("F", forward), self.strand("B", backward), self.beside_compute)
                    made[key] = Block("forward and backward", tasks)
                found[stage, *chunks] = made[key]
        return found

    def situation(self, place: Place) -> _Situation:
        """What sets the first and last passes of a chunk apart, besides what it holds."""
        following = self.replicas.following(place)
        return self.replicas.standing(place), None if following is None else self.work(self.contents[following])

    def work(self, content: ChunkContent) -> _Work:
        """What sets the passes of a chunk apart: the kinds of its layers, its ends, what else it predicts."""
        return kinds_of(self.run.model, content), content.embedding, content.head, content.mtp

    @cached_property
    def beside_compute(self) -> Mapping[str, float]:
        """How many times as long an exchange of tokens takes while another micro-batch computes (-)."""
        return {name: of.beside_compute for name, of in self.run.profile.fabric.exchange.items()}

    def strand(self, kind: PassKind, content: ChunkContent) -> tuple[Task, ...]:
        """One pass of a pair as its host issues it."""
        return self.issued(self.replicas.dressed(self.passes.segments(kind, content), kind))

    @cached_property
    def kinds(self) -> tuple[tuple[Place, PassKind], ...]:
        """The kinds of passes that each place runs."""
        found: dict[tuple[Place, PassKind], None] = {}
        for stage, order in enumerate(self.schedule.orders):
            found |= dict.fromkeys(((stage, item.chunk), item.kind) for item in passes_of(order))
        return tuple(found)

    def issued(self, tasks: tuple[Task, ...]) -> tuple[Task, ...]:
        """A pass as its host issues it."""
        host = self.run.profile.host
        whole = as_graph(tasks, host) if self.passes.graphs == "full" else tasks
        return after(whole, host.passes)

    @property
    def overlap_slowdown(self) -> float:
        """Share of the device's multiprocessors that communication takes from compute beside it (-)."""
        device, fabric = self.run.cluster.device, self.run.profile.fabric
        taken = fabric.overlap_multiprocessors if self.replicas.overlaps or self.overlaps_inside else 0.0
        where, what = "overlap_multiprocessors", "collectives"
        if self.overlaps_exchanges and self.run.layout.dispatcher in fabric.exchange:
            own = fabric.exchange[self.run.layout.dispatcher].multiprocessors
            if own > taken:
                taken, where, what = own, f"exchange {self.run.layout.dispatcher}", "exchanges of tokens"
        if taken >= device.multiprocessors:
            found = f"{what} behind compute occupy {taken:g} multiprocessors, and {device.name} has"
            right = f"write less than {device.multiprocessors}"
            at = f"fabric profile {fabric.name}, {where}"
            raise InputError(Problem(f"{found} {device.multiprocessors}", at, right))
        return taken / device.multiprocessors

    @property
    def overlaps_inside(self) -> bool:
        """Whether collectives inside the model run beside its computation."""
        layout, framework = self.run.layout, self.run.framework
        beside = layout.sp or framework.overlap_dgrad or self.pairs_passes
        ring = layout.cp_comm in ("p2p", "a2a+p2p") and any_of(layout.cp > 1)
        exchanged = self.overlaps_exchanges and layout.dispatcher not in self.run.profile.fabric.exchange
        return exchanged or ring or (beside and any_of(layout.tp > 1))

    @property
    def overlaps_exchanges(self) -> bool:
        """Whether tokens travel beside computation."""
        framework = self.run.framework
        beside = self.pairs_passes or framework.overlap_shared_experts or framework.delays_weights
        return beside and self.run.model.moe is not None and any_of(self.run.layout.ep > 1)

    @property
    def pairs_passes(self) -> bool:
        return any(isinstance(item, Pair) for order in self.schedule.orders for item in order)

    @property
    def synchronous_messages(self) -> bool:
        policy = self.run.framework.synchronous_messages
        return policy == "always" or (policy == "not_interleaved" and self.schedule.chunks == 1)

    # ---- messages ---------------------------------------------------------------------------------------------

    def messages(self) -> dict[tuple[int, str, int], Transfer]:
        """Messages by their sender: forward to the next virtual stage, backward to the one before."""
        run = self.run
        size = p2p_message(run.model, run.layout, run.batch, run.framework).size
        found: dict[tuple[int, str, int], Transfer] = {}
        for places in self.schedule.chains:
            for (stage, chunk), (next_stage, next_chunk) in pairwise(places):
                if stage != next_stage:
                    found[stage, "F", chunk] = self.machine.message(size, stage, next_stage)
                    found[next_stage, "B", next_chunk] = self.machine.message(size, next_stage, stage)
        return found
