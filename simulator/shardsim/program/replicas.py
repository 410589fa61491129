"""What data parallelism adds to a stage: parameters and gradients on their way, the end of an iteration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf

from shardsim.program.machine import Machine
from shardsim.program.overlap import joined
from shardsim.program.passes import Part, Segment
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
from shardsim.workload.parameters import (
    embedding_parameters,
    head_parameters,
    held_parameters,
    layer_parameters,
    layer_tensors,
    table_parameters,
)
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
        sizes = self._sizes(segments)
        units = [Unit(segment.tasks, size) for segment, size in zip(segments, sizes, strict=True)]
        gathers: tuple[Gather, ...] = ()
        reductions: tuple[Reduction, ...] = ()
        copies = True
        if self._gathers_units(kind, first=first):
            needed = self._needed(segments, sizes, kind)
            ahead = self.run.framework.gathers_ahead if kind == "F" else 1
            gathers = gathers_of_units(needed, ahead, copied=self.run.framework.copies_gathered)
        elif place is not None and first and kind == "F" and self._gathers_behind:
            units, gathers = self._first_forward(units, place)
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

    def _sizes(self, segments: Sequence[Segment]) -> list[Num]:
        """Parameters that each segment uses (-), both ends counted with the embedding where they go together."""
        of = self._parameters
        sizes = [0.0 if segment.part == "arrival" else of[segment.part] for segment in segments]
        parts = [segment.part for segment in segments]
        if self._ends_together(parts):
            sizes[parts.index("embedding")] = of["embedding"] + of["head"]
            sizes[parts.index("head")] = 0.0
        return sizes

    def _needed(self, segments: Sequence[Segment], sizes: Sequence[Num], kind: PassKind) -> list[Num]:
        """Parameters that each segment gathers (-): what it uses, but for what is there."""
        parts = [segment.part for segment in segments]
        kept = set(self.run.framework.kept_parts) if kind != "F" else set()
        if kept and self._ends_together(parts):
            kept |= {"embedding", "head"}
        needed = [0.0 if part in kept else size for part, size in zip(parts, sizes, strict=True)]
        if self._shares_table(parts) and not self._ends_together(parts) and "head" not in kept:
            table = table_parameters(self.run.model, self.run.layout, self.run.framework)
            needed[parts.index("head")] = needed[parts.index("head")] + table
        return needed

    def _ends_together(self, parts: Sequence[Part]) -> bool:
        """Whether a pass gathers and reduces both ends of the model as one unit.

        A table that both use belongs to one unit of FSDP2, which stays gathered like the head: torchtitan wraps
        embedding, norm and head by one ``fully_shard`` where they are tied.
        """
        framework = self.run.framework
        tied = self._shares_table(parts) and "head" in framework.kept_parts
        both = "embedding" in parts and "head" in parts
        return self.run.layout.zero > 1 and both and (framework.gathers_ends_together or tied)

    def _shares_table(self, parts: Sequence[Part]) -> bool:
        return self.run.model.tied_embeddings and "embedding" in parts and "head" in parts

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
        whole = self._of_place(place)
        if second is None or stage == 0:
            bucket = smaller(self._elements(place), whole)
            return Block("prologue", (self._sharding.gather(bucket),) if any_of(bucket > 0) else ())
        wait = pause("wait for parameters", self._streams)
        return Block("prologue", (*self._whole(place), wait, *self._whole(second)))

    def _second(self, stage: int) -> Place | None:
        """The second chunk of a stage in turn."""
        chunks = self._chunks_in_turn(stage)
        return (stage, chunks[1]) if len(chunks) > 1 else None

    def _whole(self, place: Place) -> tuple[Task, ...]:
        """The gather of a chunk, bucket after bucket."""
        whole = self._of_place(place)
        if not any_of(whole > 0):
            return ()
        bucket = smaller(self._elements(place), whole)
        return (self._sharding.gather(bucket, whole / bucket),)

    def _first_forward(self, units: list[Unit], place: Place) -> tuple[list[Unit], tuple[Gather, ...]]:
        """The first forward pass of a chunk, which waits for its parameters; from the second on, the next are gathered.

        Megatron starts them when the first stage begins that pass, a few passes earlier than the last stage does.
        """
        stage, chunk = place
        chunks = self._chunks_in_turn(stage)
        turn, second = chunks.index(chunk), self._second(stage)
        if turn == 0 and stage > 0 and second is not None:  # all of it has been seen to in the prologue
            return units, ()
        units = [Unit((pause("wait for parameters", self._streams),), 0.0), *units]
        gathers: tuple[Gather, ...] = ()
        if turn == 0:
            gathers = gathers_in_buckets([unit.parameters for unit in units], self._elements(place))
            if second is not None:
                gathers = tuple(gather._replace(before=1) for gather in gathers)
        following = (stage, chunks[turn + 1]) if turn + 1 < len(chunks) else None
        if following is not None and any_of(self._of_place(following) > 0):
            whole = self._of_place(following)
            bucket = smaller(self._elements(following), whole)
            gathers += (Gather(1, None, bucket, whole / bucket),)
        return units, gathers

    def _chunks_in_turn(self, stage: int) -> list[int]:
        """Chunks of a stage in the order of their first forward passes."""
        passes = (item.forward if isinstance(item, Pair) else item for item in self.schedule.orders[stage])
        return list(dict.fromkeys(item.chunk for item in passes if item.kind == "F"))

    @property
    def _scatters(self) -> bool:
        """Whether every backward pass reduces its gradients."""
        return self._replicated and scatters_every_microbatch(self.run.layout, self.run.framework)

    @property
    def _sums_copies_last(self) -> bool:
        """Whether copies of a part are added up once, while gradients are reduced in every backward pass."""
        layout = self.run.layout
        return self._scatters and layout.shard > 0 and not self.run.framework.sums_copies_every_pass

    def _reductions(self, sizes: Sequence[Num], elements: Num) -> tuple[Reduction, ...]:
        framework = self.run.framework
        if self.run.layout.zero > 1 and framework.reduces_units:
            return reductions_of_units(sizes)
        return reductions_in_buckets(sizes, elements, framework.first_bucket_bytes / framework.gradient_bytes)

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
        if len(self._ends) > 1:
            meetings["tied embedding"] = self._ends
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
        parameters, tensors = self._of_places(places), self._tensors(places)
        tasks: tuple[Task, ...] = ()
        if late:
            rest = self._of_places(late)
            tasks += machine.tasks([gradient_packing(rest, framework, self._tensors(late))])
            # Also with one replica, where it takes no time: the number of events must not depend on DP.
            tasks += tuple(machine.task(reduction) for reduction in gradient_reduction(rest, layout, framework))
        paired = [place for place in places if self._sums_copies_last and self._last_kind(place) is None]
        if paired:
            _, add_copies = gradient_reduction(self._of_places(paired), layout, framework)
            tasks += (machine.task(add_copies),)
        early = [place for place in places if place not in late]
        if early:
            # A bucket is copied back while others are still reduced.
            back = gradient_unpacking(self._of_places(early), framework, self._tensors(early))
            tasks += (*machine.tasks(back), pause("wait for gradients", self._streams))
        if stage in self._ends:
            reduce = machine.task(embedding_gradient_reduction(run.model, layout, framework))
            tasks += (replace(reduce, category="dp", rendezvous="tied embedding"),)
        together = self._same_layers(stage)
        add, share = copy_reduction(parameters, layout, framework)
        if len(together) > 1:
            tasks += (replace(machine.task(add), rendezvous=_copies(together)),)
        norm = machine.task(gradient_norm(layout))
        # The host reads the norm, to clip by it and to see whether the step is to be skipped.
        tasks += (replace(norm, category="optimizer", rendezvous="gradient norm", synchronises=True),)
        tasks += (machine.task(optimizer_step(parameters, layout, framework, tensors, len(together))),)
        if share is not None and len(together) > 1:
            tasks += (replace(machine.task(share), rendezvous=_copies(together)),)
        if layout.zero in (1, 2) and not self._gathers_behind:
            tasks += (machine.task(parameter_gather(parameters, layout, framework)),)
        return Block("epilogue", tasks)

    @cached_property
    def _ends(self) -> tuple[int, ...]:
        """Stages that hold a tied embedding and head apart, each one of them; none where no two have to agree."""
        embedding, head = (
            {place[0] for place, content in self.contents.items() if getattr(content, end)}
            for end in ("embedding", "head")
        )
        tied = self.run.model.tied_embeddings and embedding != head
        return tuple(sorted(embedding | head)) if tied else ()

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
        return any_of(self.run.layout.dp * self.run.layout.cp > 1)

    @cached_property
    def _sharding(self) -> Sharding:
        return Sharding(self.run, self.machine, self._streams)

    @property
    def _streams(self) -> tuple[str, ...]:
        """Streams on which parameters and gradients travel."""
        return ("dp", "replicas") if self.run.layout.zero and self.run.layout.shard else ("dp",)

    @cached_property
    def _parameters(self) -> Mapping[Part, Num]:
        """Parameters of one rank, by part (-)."""
        shape = (self.run.model, self.run.layout, self.run.framework)
        return {
            "layer": layer_parameters(*shape),
            "embedding": embedding_parameters(*shape),
            "head": head_parameters(*shape) - self._shared_table,
        }

    @cached_property
    def _shared_table(self) -> Num:
        """What a head counts of its own and has not (-): where every stage with it has the embedding, too, and tied."""
        run = self.run
        shared = run.model.tied_embeddings and self.schedule.stages > 1 and not self._ends
        return table_parameters(run.model, run.layout, run.framework) if shared else 0.0

    def _of_place(self, place: Place) -> Num:
        """Parameters of one rank of a stage in one chunk (-)."""
        run, content = self.run, self.contents[place]
        held = held_parameters(run.model, run.layout, run.framework, content).total
        return held - self._shared_table if content.head else held

    def _of_places(self, places: Sequence[Place]) -> Num:
        """Parameters of one rank of a stage in several chunks (-)."""
        total: Num = sum(self._of_place(place) for place in places)
        return total

    def _tensors(self, places: Sequence[Place]) -> int:
        """Parameter tensors of several chunks, near enough: those of their layers (-)."""
        layers = sum(self.contents[place].layers for place in places)
        return layers * layer_tensors(self.run.model, self.run.framework)


def _copies(stages: tuple[int, ...]) -> str:
    return f"copies on stages {', '.join(map(str, stages))}"
