"""Parameters of one rank by parts of a pass and by chunks, and who holds copies of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from shardsim.program.passes import Part, Segment
from shardsim.values.num import Num, any_of
from shardsim.values.program import PassKind, PipelineSchedule, Place
from shardsim.values.training import TrainingRun
from shardsim.workload.kinds import LayerKind, kinds_of
from shardsim.workload.parameters import (
    HeldParameters,
    embedding_parameters,
    head_parameters,
    held_parameters,
    layer_held,
    layer_tensors,
    mtp_parameters,
    table_parameters,
)
from shardsim.workload.stages import ChunkContent
from shardsim.workload.states import copies_table

NOTHING = HeldParameters(0.0, 0.0)


def by_replicas(sizes: Sequence[HeldParameters]) -> list[tuple[bool, list[Num]]]:
    """Parameters by the ranks that hold the same: whether they are of experts, and how many each unit has (-)."""
    experts = [size.expert for size in sizes]
    shared = (False, [size.shared for size in sizes])
    return [shared, (True, experts)] if any(any_of(size > 0) for size in experts) else [shared]


@dataclass(frozen=True)
class Holdings:
    """Counts what ranks hold.

    Parameters
    ----------
    run : TrainingRun
    schedule : PipelineSchedule
    contents : mapping of (int, int) to ChunkContent
    """

    run: TrainingRun
    schedule: PipelineSchedule
    contents: Mapping[Place, ChunkContent]

    def of_segments(self, segments: Sequence[Segment]) -> list[HeldParameters]:
        """Parameters that each segment uses, both ends counted with the embedding where they go together."""
        sizes = [self._of_part(segment.part, segment.kind) for segment in segments]
        parts = [segment.part for segment in segments]
        if self._ends_together(parts):
            embedding, head = parts.index("embedding"), parts.index("head")
            sizes[embedding] = HeldParameters(sizes[embedding].shared + sizes[head].shared, 0.0)
            sizes[head] = NOTHING
        return sizes

    def gathered(
        self, segments: Sequence[Segment], sizes: Sequence[HeldParameters], kind: PassKind
    ) -> list[HeldParameters]:
        """Parameters that each segment gathers: what it uses, but for what is there."""
        parts = [segment.part for segment in segments]
        kept = set(self.run.framework.kept_parts) if kind != "F" else set()
        if kept and self._ends_together(parts):
            kept |= {"embedding", "head"}
        needed = [NOTHING if part in kept else size for part, size in zip(parts, sizes, strict=True)]
        if self._shares_table(parts) and not self._ends_together(parts) and "head" not in kept:
            table = table_parameters(self.run.model, self.run.layout, self.run.framework)
            head = parts.index("head")
            needed[head] = HeldParameters(needed[head].shared + table, 0.0)
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

    @cached_property
    def ends(self) -> tuple[int, ...]:
        """Stages that hold copies of one table, each one of them; none where no two have to agree.

        A tied head is one, and so is the embedding in front of multi-token prediction.
        """
        embedding = self._stages_with("embedding")
        others = self._stages_with("mtp") | (self._stages_with("head") if self.run.model.tied_embeddings else set())
        return tuple(sorted(embedding | others)) if others and others != embedding else ()

    def _stages_with(self, end: str) -> set[int]:
        return {place[0] for place, content in self.contents.items() if getattr(content, end)}

    def _of_part(self, part: Part, kind: LayerKind) -> HeldParameters:
        """Parameters of one rank in one part of a pass, of like parts the same object."""
        if (part, kind) not in self._known:
            self._known[part, kind] = self._count(part, kind)
        return self._known[part, kind]

    @cached_property
    def _known(self) -> dict[tuple[Part, LayerKind], HeldParameters]:
        return {}

    def _count(self, part: Part, kind: LayerKind) -> HeldParameters:
        model, layout, framework = self.run.model, self.run.layout, self.run.framework
        if part == "layer":
            return layer_held(model, layout, framework, kind)
        if part == "mtp":
            module = mtp_parameters(model, layout, framework)
            return HeldParameters(module.shared + self._copied_table / model.mtp, module.expert)
        if part == "embedding":
            return HeldParameters(embedding_parameters(model, layout, framework), 0.0)
        if part == "head":
            return HeldParameters(head_parameters(model, layout, framework) - self._shared_table, 0.0)
        return NOTHING

    @cached_property
    def _shared_table(self) -> Num:
        """What a head counts of its own and has not (-): where every stage with it has the embedding, too, and tied."""
        run = self.run
        same = self._stages_with("head") == self._stages_with("embedding")
        shared = run.model.tied_embeddings and self.schedule.stages > 1 and same
        return table_parameters(run.model, run.layout, run.framework) if shared else 0.0

    @cached_property
    def _copied_table(self) -> Num:
        """What stages hold for multi-token prediction alone (-): a copy of the embedding, where that is elsewhere."""
        run = self.run
        table = table_parameters(run.model, run.layout, run.framework)
        stages = [[one for place, one in self.contents.items() if place[0] == at] for at in self._stages_with("mtp")]
        return table if any(copies_table(run.model, stage) for stage in stages) else 0.0 * table

    def of_place(self, place: Place) -> HeldParameters:
        """Parameters of one rank of a stage in one chunk."""
        run, content = self.run, self.contents[place]
        held = held_parameters(run.model, run.layout, run.framework, content)
        less = self._shared_table if content.head else 0.0
        more = self._copied_table if content.mtp else 0.0
        return HeldParameters(held.shared - less + more, held.expert)

    def of_places(self, places: Sequence[Place]) -> HeldParameters:
        """Parameters of one rank of a stage in several chunks."""
        shared: Num = 0
        expert: Num = 0
        for held in map(self.of_place, places):
            shared, expert = shared + held.shared, expert + held.expert
        return HeldParameters(shared, expert)

    def tensors(self, places: Sequence[Place]) -> int:
        """Parameter tensors of several chunks, near enough: those of their layers (-)."""
        model, framework = self.run.model, self.run.framework
        return sum(
            layer_tensors(model, framework, kind) for at in places for kind in kinds_of(model, self.contents[at])
        )
