"""The passes of one stage and chunk as segments: what arrives, the embedding, each layer, the head, as tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Literal, NamedTuple

from shardsim.program.chunks import in_parts
from shardsim.program.launch import as_graph
from shardsim.program.machine import Machine
from shardsim.program.overlap import Priced, behind_products, joined
from shardsim.values.num import any_of
from shardsim.values.operators import Collective, Operator, OptimizerStep
from shardsim.values.program import PassKind, Task
from shardsim.values.training import TrainingRun
from shardsim.workload.ends import embedding_backward, embedding_forward, head_backward, head_forward
from shardsim.workload.layer import layer_backward, layer_forward, recomputed_forward
from shardsim.workload.pipeline import p2p_message
from shardsim.workload.recompute import recomputed_layers
from shardsim.workload.stages import ChunkContent

Part = Literal["arrival", "embedding", "layer", "head"]


class Segment(NamedTuple):
    """The tasks of one part of a pass; what they wait for counts from the first of them.

    Parameters
    ----------
    part : {"arrival", "embedding", "layer", "head"}
        The parameters it uses, and in a whole backward or a weight-gradient pass finishes the gradients of;
        ``arrival`` has none.
    tasks : tuple of Task
    """

    part: Part
    tasks: tuple[Task, ...]


@dataclass(frozen=True)
class Passes:
    """Makes the segments of passes.

    Parameters
    ----------
    run : TrainingRun
    machine : Machine
    """

    run: TrainingRun
    machine: Machine

    def segments(self, kind: PassKind, content: ChunkContent) -> tuple[Segment, ...]:
        """One pass through a chunk, in order of issue.

        Parameters
        ----------
        kind : {"F", "B", "I", "W"}
            A backward pass whole (``B``), or in two parts (arXiv 2401.10241 §2): ``I`` is everything but the gradients
            of parameters, recomputation first; ``W`` is those, with the inputs that sequence parallelism gathers again,
            which nothing else needs.
        content : ChunkContent
            What the chunk holds.

        Returns
        -------
        tuple of Segment
            Together, the segments of ``I`` and ``W`` have the tasks of ``B``.
        """
        if kind == "F":
            start = Segment("embedding", self._embedding_forward) if content.embedding else self._arrival
            end = [Segment("head", self._head_forward)] if content.head else []
            return (start, *[Segment("layer", self._forward)] * content.layers, *end)
        first = Segment("head", self._head_backward[kind]) if content.head else self._arrival
        last = [Segment("embedding", self._embedding_backward[kind])] if content.embedding else []
        repeated = recomputed_layers(self.run.layout, content.layers)
        layers = [Segment("layer", self._backward[kind])] * (content.layers - repeated)
        layers += [Segment("layer", self._repeating[kind])] * repeated if repeated else []
        return (*([] if first.part == "arrival" and kind == "W" else [first]), *layers, *last)

    def _layer(self, tasks: tuple[Task, ...]) -> tuple[Task, ...]:
        run = self.run
        return as_graph(tasks, run.profile.host) if run.framework.cuda_graphs == "layers" else tasks

    @cached_property
    def _arrival(self) -> Segment:
        run = self.run
        gather = p2p_message(run.model, run.layout, run.batch, run.framework).gather
        whole = (Collective("gather stage input", "all_gather", "tp", gather),)
        return Segment("arrival", self.machine.tasks(whole if any_of(gather > 0) else ()))

    @cached_property
    def _forward(self) -> tuple[Task, ...]:
        run = self.run
        return self._layer(self._hidden(layer_forward(run.model, run.layout, run.batch, run.framework)))

    @cached_property
    def _backward(self) -> Mapping[PassKind, tuple[Task, ...]]:
        """A layer that repeats nothing, or modules of its own."""
        run = self.run
        again = () if run.layout.recompute == "full" else self._repeated
        return self._after(again)

    @cached_property
    def _repeating(self) -> Mapping[PassKind, tuple[Task, ...]]:
        """A layer that is repeated whole."""
        return self._after(self._repeated)

    def _after(self, again: tuple[Task, ...]) -> Mapping[PassKind, tuple[Task, ...]]:
        """A layer's backward pass behind what it repeats."""
        parts = self._layer_backward
        return {kind: self._layer(tasks if kind == "W" else joined(again, tasks)) for kind, tasks in parts.items()}

    @cached_property
    def _repeated(self) -> tuple[Task, ...]:
        run = self.run
        again = recomputed_forward(run.model, run.layout, run.batch, run.framework)
        return self._hidden(again, recomputed=True)

    @cached_property
    def _layer_backward(self) -> Mapping[PassKind, tuple[Task, ...]]:
        run = self.run
        pairs = self.machine.pairs(layer_backward(run.model, run.layout, run.batch, run.framework))
        return self._parts(pairs, self._in_parts)

    def _hidden(self, operators: tuple[Operator, ...], *, recomputed: bool = False) -> tuple[Task, ...]:
        """The tasks of a layer, with what sequence parallelism moves beside its products."""
        pairs = self.machine.pairs(operators, recomputed=recomputed)
        return tuple(task for _, task in self._in_parts(pairs, recomputed=recomputed))

    def _in_parts(self, pairs: Sequence[Priced], *, recomputed: bool = False) -> tuple[Priced, ...]:
        price = partial(self.machine.task, recomputed=recomputed)
        # The backward pass issues kernels from C++, with no module around each: so does a loop within one call.
        launch = self.run.profile.host.backward
        return in_parts(pairs, self.run.framework.tp_overlap, self.run.layout.tp, price, launch)

    @cached_property
    def _embedding_forward(self) -> tuple[Task, ...]:
        run = self.run
        return self.machine.tasks(embedding_forward(run.model, run.layout, run.batch, run.framework))

    @cached_property
    def _embedding_backward(self) -> Mapping[PassKind, tuple[Task, ...]]:
        run = self.run
        return self._parts(self.machine.pairs(embedding_backward(run.model, run.layout, run.batch, run.framework)))

    @cached_property
    def _head_forward(self) -> tuple[Task, ...]:
        run = self.run
        return self.machine.tasks(head_forward(run.model, run.layout, run.batch, run.framework))

    @cached_property
    def _head_backward(self) -> Mapping[PassKind, tuple[Task, ...]]:
        run = self.run
        return self._parts(self.machine.pairs(head_backward(run.model, run.layout, run.batch, run.framework)))

    def _parts(
        self, pairs: Sequence[Priced], refined: Callable[[Sequence[Priced]], tuple[Priced, ...]] = tuple
    ) -> Mapping[PassKind, tuple[Task, ...]]:
        """The tasks of a backward pass: whole, without the gradients of parameters, and those alone.

        The two parts hide nothing behind products: a sum has no weight gradient behind it, and weight gradients gather
        their inputs when their turn comes (github sail-sg/zero-bubble-pipeline-parallelism, WeightGradStore.pop).
        """
        inputs = refined([pair for pair in pairs if not _for_weights(pair[0])])
        return {
            "B": behind_products(refined(pairs), sums=self.run.framework.overlap_dgrad),
            "I": tuple(task for _, task in inputs),
            "W": tuple(task for operator, task in pairs if _for_weights(operator)),
        }


def _for_weights(operator: Operator) -> bool:
    return not isinstance(operator, OptimizerStep) and operator.role == "wgrad"
