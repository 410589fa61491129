"""What data parallelism adds to a stage: parameters and gradients on their way, the end of an iteration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf

from shardsim.program.holdings import NOTHING, Holdings, by_replicas
from shardsim.program.machine import Machine
from shardsim.program.overlap import joined
from shardsim.program.passes import Segment
from shardsim.program.sharding import (
    Gather,
    Reduction,
    Sharding,
    Unit,
    gathers_in_buckets,
    gathers_of_units,
    pause,
    reductions_in_buckets,
    reductions_of_units,
)
from shardsim.values.num import Num, any_of, smaller
from shardsim.values.program import Block, Pair, PassKind, PipelineSchedule, Place, Task
from shardsim.values.training import TrainingRun
from shardsim.workload.data_parallel import (
    bucket_elements,
    copy_reduction,
    embedding_gradient_reduction,
    gradient_norm,
    gradient_packing,
    gradient_reduction,
    gradient_unpacking,
    optimizer_step,
    parameter_gather,
    scatters_every_microbatch,
)
from shardsim.workload.parameters import HeldParameters
from shardsim.workload.stages import ChunkContent
from shardsim.workload.states import adds_up_whole


@dataclass(frozen=True)
class Replicas:
    """Dresses the passes of stages for data parallelism.

    Parameters
    ----------
    run : TrainingRun
    machine : Machine
    schedule : PipelineSchedule
    contents : mapping of (int, int) to ChunkContent
    """

    run: TrainingRun
    machine: Machine
    schedule: PipelineSchedule
    contents: Mapping[Place, ChunkContent]

    # ---- passes -----------------------------------------------------------------------------------------------

    def dressed(
        self,
        segments: Sequence[Segment],
        kind: PassKind,
        place: Place | None = None,
        *,
        first: bool = False,
        last: bool = False,
    ) -> tuple[Task, ...]:
        """The tasks of a pass, with the communication of parameters and gradients.

        Parameters
        ----------
        segments : sequence of Segment
        kind : {"F", "B", "I", "W"}
        place : (int, int) or None
            Stage and chunk; needed for a first or last pass.
        first, last : bool
            Whether it is the first or the last pass of its kind through its chunk in an iteration.
        """
        sizes = self._held.of_segments(segments)
        units = [Unit(segment.tasks, size.total) for segment, size in zip(segments, sizes, strict=True)]
        gathers: tuple[Gather, ...] = ()
        reductions: tuple[Reduction, ...] = ()
        copies = True
        if self._gathers_units(kind, first=first):
            needed = self._held.gathered(segments, sizes, kind)
            ahead = self.run.framework.gathers_ahead if kind == "F" else 1
            copied = self.run.framework.copies_gathered
            gathers = tuple(
                gather._replace(experts=experts)
                for experts, each in by_replicas(needed)
                for gather in gathers_of_units(each, ahead, copied=copied)
            )
        elif place is not None and first and kind == "F" and self._gathers_behind:
            units, gathers = self._first_forward(units, sizes, place)
        if self._scatters and kind in ("B", "W"):
            reductions = self._reductions(sizes, bucket_elements(self.run.layout, self.run.framework))
            copies = not self._sums_copies_last or (place is not None and last and kind == self._last_kind(place))
        elif place is not None and last and kind == self.releasing_kind(place):
            reductions = self._reductions(sizes, self._elements(place))
        if not gathers and not reductions:
            return joined(*(segment.tasks for segment in segments))
        return self._sharding.joined(units, gathers, reductions, drains=self.run.layout.zero > 1, copies=copies)

    def differs(self, place: Place, kind: PassKind, *, first: bool = False, last: bool = False) -> bool:
        """Whether the first or the last pass of a kind through a chunk is unlike the others."""
        if first and kind == "F":
            return self._gathers_behind or (
                self._gathers_units("F", first=True) and not self._gathers_units("F", first=False)
            )
        if self._scatters:
            return last and self._sums_copies_last and kind == self._last_kind(place)
        return last and kind == self.releasing_kind(place)

    def releasing_kind(self, place: Place) -> PassKind | None:
        """The kind of pass that finishes the gradients of a chunk while they are overlapped.

        None where nothing is overlapped, or where the last of them is half of a pair, which is like all others.
        """
        return self._last_kind(place) if self.overlaps_gradients else None

    def _last_kind(self, place: Place) -> PassKind | None:
        """The kind of pass that finishes the gradients of a chunk; None for half of a pair."""
        found: PassKind | None = None
        for item in self.schedule.orders[place[0]]:
            if isinstance(item, Pair):
                found = None if item.backward.chunk == place[1] else found
            elif item.chunk == place[1] and item.kind in ("B", "W"):
                found = item.kind
        return found

    @property
    def overlaps_gradients(self) -> bool:
        """Whether gradients are reduced while the backward pass runs.

        Not where a pipeline adds up whole ones, and splits them when its passes are over (github pytorch/pytorch,
        torch/distributed/pipelining/stage.py, perform_reduce_grad).
        """
        layout, framework = self.run.layout, self.run.framework
        return framework.overlap_grad_reduce == "always" and self._replicated and not adds_up_whole(layout, framework)

    @property
    def overlaps(self) -> bool:
        """Whether parameters or gradients travel while passes run."""
        return self.overlaps_gradients or self._gathers_behind or self._gathers_units("F", first=True)

    def _gathers_units(self, kind: PassKind, *, first: bool) -> bool:
        """Whether a pass gathers parameters layer by layer (ZeRO 3)."""
        layout = self.run.layout
        if layout.zero < 3 or not self._replicated:
            return False
        if kind == "F":
            # What is neither given up after a forward pass nor after a backward pass is gathered once an iteration.
            return first or layout.reshard or self._scatters
        return kind != "W" and layout.reshard

    @property
    def _gathers_behind(self) -> bool:
        """Whether updated parameters are gathered behind the first forward pass (ZeRO 1 and 2)."""
        return self.run.framework.overlap_param_gather and self.run.layout.zero in (1, 2) and self._replicated

    def prologue(self, stage: int) -> Block:
        """What a stage begins an iteration with: the gather of its first chunk, or of a bucket, and of its second one.

        All stages gather their first two chunks at once (github NVIDIA/Megatron-LM,
        megatron/core/pipeline_parallel/schedules.py, param_sync_func). Where a message is to come before the first
        pass, they do so here; the first stage, which has nothing to wait for, in that pass.
        """
        if not self._gathers_behind:
            return Block("prologue", ())
        place, second = (stage, self._chunks_in_turn(stage)[0]), self._second(stage)
        if second is None or stage == 0:
            return Block("prologue", self._gathered(place, first=True))
        wait = pause("wait for parameters", self._streams)
        return Block("prologue", (*self._gathered(place), wait, *self._gathered(second)))

    def _second(self, stage: int) -> Place | None:
        """The second chunk of a stage in turn."""
        chunks = self._chunks_in_turn(stage)
        return (stage, chunks[1]) if len(chunks) > 1 else None

    def _gathered(self, place: Place, *, first: bool = False) -> tuple[Task, ...]:
        """The gather of a chunk, bucket after bucket, or of its first buckets alone."""
        gathers = self._buckets(place)
        return tuple(
            self._sharding.gather(one.parameters, 1.0 if first else one.times, experts=one.experts) for one in gathers
        )

    def _buckets(self, place: Place) -> tuple[Gather, ...]:
        """The gathers of a chunk, for a later pass: one bucket after another, those of experts for themselves."""
        return tuple(
            Gather(1, None, bucket, whole / bucket, experts=experts)
            for experts, (whole,) in by_replicas([self._held.of_place(place)])
            if any_of(whole > 0)
            for bucket in (smaller(self._elements(place), whole),)
        )

    def _first_forward(
        self, units: list[Unit], sizes: Sequence[HeldParameters], place: Place
    ) -> tuple[list[Unit], tuple[Gather, ...]]:
        """The first forward pass of a chunk, which waits for its parameters; from the second on, the next are gathered.

        Megatron starts them when the first stage begins that pass, a few passes earlier than the last stage does.
        """
        stage, chunk = place
        chunks = self._chunks_in_turn(stage)
        turn, second, following = chunks.index(chunk), self._second(stage), self.following(place)
        if turn == 0 and stage > 0 and second is not None:  # all of it has been seen to in the prologue
            return units, ()
        units = [Unit((pause("wait for parameters", self._streams),), 0.0), *units]
        gathers: tuple[Gather, ...] = ()
        if turn == 0:
            gathers = tuple(
                gather._replace(before=gather.before if second is None else 1, experts=experts)
                for experts, each in by_replicas([NOTHING, *sizes])
                for gather in gathers_in_buckets(each, self._elements(place))
            )
        if following is not None:
            gathers += self._buckets(following)
        return units, gathers

    def following(self, place: Place) -> Place | None:
        """The chunk of a stage that begins after another one."""
        stage, chunk = place
        chunks = self._chunks_in_turn(stage)
        after = chunks.index(chunk) + 1
        return (stage, chunks[after]) if after < len(chunks) else None

    def standing(self, place: Place) -> tuple[bool, ...]:
        """What the first and last passes of a chunk depend on, besides what it and the one that follows hold."""
        chunks = self._chunks_in_turn(place[0])
        return place == (0, 0), place[0] == 0, place[1] == chunks[0], len(chunks) > 1, self.following(place) == (0, 0)

    def _chunks_in_turn(self, stage: int) -> list[int]:
        """Chunks of a stage in the order of their first forward passes."""
        if stage not in self._turns:
            passes = (item.forward if isinstance(item, Pair) else item for item in self.schedule.orders[stage])
            self._turns[stage] = list(dict.fromkeys(item.chunk for item in passes if item.kind == "F"))
        return self._turns[stage]

    @cached_property
    def _turns(self) -> dict[int, list[int]]:
        return {}

    @property
    def _scatters(self) -> bool:
        """Whether every backward pass reduces its gradients."""
        return self._replicated and scatters_every_microbatch(self.run.layout, self.run.framework)

    @property
    def _sums_copies_last(self) -> bool:
        """Whether copies of a part are added up once, while gradients are reduced in every backward pass."""
        layout = self.run.layout
        return self._scatters and layout.shard > 0 and not self.run.framework.sums_copies_every_pass

    def _reductions(self, sizes: Sequence[HeldParameters], elements: Num) -> tuple[Reduction, ...]:
        """Reductions of a pass: gradients of experts fill buckets of their own.

        github NVIDIA/Megatron-LM, megatron/core/distributed/distributed_data_parallel.py: two families of buckets of
        one size, each reduced over the ranks that hold the same. Experts come first in a layer's backward pass.
        """
        framework = self.run.framework
        first = framework.first_bucket_bytes / framework.gradient_bytes
        found: tuple[Reduction, ...] = ()
        for experts, each in reversed(by_replicas(sizes)):
            units = self.run.layout.zero > 1 and framework.reduces_units
            made = reductions_of_units(each) if units else reductions_in_buckets(each, elements, first)
            found += tuple(reduction._replace(experts=experts) for reduction in made)
        return found

    def _elements(self, place: Place) -> Num:
        """Parameters in a bucket of a chunk (-); infinite for all of them."""
        if self.run.framework.buckets_first_chunk_only and place != (0, 0):
            return inf
        return bucket_elements(self.run.layout, self.run.framework)

    # ---- end of an iteration -------------------------------------------------------------------------------------

    @property
    def meetings(self) -> dict[str, tuple[int, ...]]:
        """Stages that meet at the end of an iteration, by what for."""
        meetings = {"gradient norm": tuple(range(self.schedule.stages))}
        if len(self._held.ends) > 1:
            meetings["tied embedding"] = self._held.ends
        for stage in range(self.schedule.stages):
            together = self._same_layers(stage)
            if len(together) > 1:
                meetings[_copies(together)] = together
        return meetings

    def epilogue(self, stage: int) -> Block:
        """What follows the last pass of a stage: gradients still to be reduced, their norm, optimizer, parameters."""
        run, machine, layout, framework = self.run, self.machine, self.run.layout, self.run.framework
        places = [place for place in self.contents if place[0] == stage]
        late = [place for place in places if not self._scatters and self.releasing_kind(place) is None]
        held, tensors = self._held.of_places(places), self._held.tensors(places)
        tasks: tuple[Task, ...] = ()
        if late:
            rest = self._held.of_places(late)
            tasks += machine.tasks([gradient_packing(rest.total, framework, self._held.tensors(late))])
            # Also with one replica, where it takes no time: the number of events must not depend on DP.
            for experts, (size,) in by_replicas([rest]):
                reductions = gradient_reduction(size, layout, framework, experts=experts)
                tasks += tuple(machine.task(reduction) for reduction in reductions)
        paired = [place for place in places if self._sums_copies_last and self._last_kind(place) is None]
        if paired:
            for experts, (size,) in by_replicas([self._held.of_places(paired)]):
                _, add_copies = gradient_reduction(size, layout, framework, experts=experts)
                tasks += (machine.task(add_copies),)
        early = [place for place in places if place not in late]
        if early:
            # A bucket is copied back while others are still reduced.
            back = gradient_unpacking(self._held.of_places(early).total, framework, self._held.tensors(early))
            tasks += (*machine.tasks(back), pause("wait for gradients", self._streams))
        if stage in self._held.ends:
            reduce = machine.task(embedding_gradient_reduction(run.model, layout, framework))
            tasks += (replace(reduce, category="dp", rendezvous="tied embedding"),)
        together = self._same_layers(stage)
        add, share = copy_reduction(held.shared, layout, framework, held.expert)
        if len(together) > 1:
            tasks += (replace(machine.task(add), rendezvous=_copies(together)),)
        norm = machine.task(gradient_norm(layout))
        # The host reads the norm, to clip by it and to see whether the step is to be skipped.
        tasks += (replace(norm, category="optimizer", rendezvous="gradient norm", synchronises=True),)
        step = optimizer_step(held.shared, layout, framework, tensors, len(together), held.expert)
        tasks += (machine.task(step),)
        if share is not None and len(together) > 1:
            tasks += (replace(machine.task(share), rendezvous=_copies(together)),)
        if layout.zero in (1, 2) and not self._gathers_behind:
            for experts, (size,) in by_replicas([held]):
                tasks += (machine.task(parameter_gather(size, layout, framework, experts=experts)),)
        return Block("epilogue", tasks)

    def _same_layers(self, stage: int) -> tuple[int, ...]:
        """Stages that hold copies of the layers of a stage, itself among them."""
        places = {
            places[index]
            for chain in self.schedule.chains
            for index, place in enumerate(chain)
            if place[0] == stage
            for places in self.schedule.chains
        }
        return tuple(sorted({place[0] for place in places}))

    # ---- counts ---------------------------------------------------------------------------------------------------

    @property
    def _replicated(self) -> bool:
        """Whether any other rank holds the same parameters, be it of experts only."""
        layout = self.run.layout
        experts = self.run.model.moe is not None and any_of(layout.tp * layout.cp * layout.dp > layout.ep * layout.etp)
        return experts or any_of(layout.dp * layout.cp > 1)

    @cached_property
    def _held(self) -> Holdings:
        return Holdings(self.run, self.schedule, self.contents)

    @cached_property
    def _sharding(self) -> Sharding:
        return Sharding(self.run, self.machine, self._streams)

    @property
    def _streams(self) -> tuple[str, ...]:
        """Streams on which parameters and gradients travel."""
        return ("dp", "replicas") if self.run.layout.zero and self.run.layout.shard else ("dp",)


def _copies(stages: tuple[int, ...]) -> str:
    return f"copies on stages {', '.join(map(str, stages))}"
