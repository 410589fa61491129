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
from shardsim.program.rings import beside_attention
from shardsim.program.shared import beside_exchange
from shardsim.values.num import any_of
from shardsim.values.operators import Collective, Operator, OptimizerStep
from shardsim.values.program import PassKind, Task
from shardsim.values.training import CudaGraphs, TrainingRun
from shardsim.workload.ends import embedding_backward, embedding_forward, head_backward, head_forward
from shardsim.workload.kinds import PLAIN, LayerKind, all_kinds, kinds_of, prediction_kind
from shardsim.workload.layer import layer_backward, layer_forward, recomputed_forward
from shardsim.workload.pipeline import p2p_message
from shardsim.workload.prediction import (
    prediction_backward,
    prediction_forward,
    recomputed_prediction,
)
from shardsim.workload.recompute import recomputed_layers
from shardsim.workload.stages import ChunkContent

Part = Literal["arrival", "embedding", "layer", "mtp", "head"]


class Segment(NamedTuple):
    """The tasks of one part of a pass; what they wait for counts from the first of them.

    Parameters
    ----------
    part : {"arrival", "embedding", "layer", "mtp", "head"}
        The parameters it uses, and in a whole backward or a weight-gradient pass finishes the gradients of;
        ``arrival`` has none.
    tasks : tuple of Task
    kind : LayerKind
        Of a layer.
    """

    part: Part
    tasks: tuple[Task, ...]
    kind: LayerKind = PLAIN


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
        kinds = kinds_of(self.run.model, content)
        if kind == "F":
            start = Segment("embedding", self._embedding_forward) if content.embedding else self._arrival
            end = [Segment("head", self._head_forward)] if content.head else []
            further = [Segment("mtp", self._prediction_forward)] * content.mtp if content.mtp else []
            return (start, *(Segment("layer", self._forward[of], of) for of in kinds), *further, *end)
        first = Segment("head", self._head_backward[kind]) if content.head else self._arrival
        last = [Segment("embedding", self._embedding_backward[kind])] if content.embedding else []
        further = [Segment("mtp", self._prediction_backward[kind])] * content.mtp if content.mtp else []
        repeated = recomputed_layers(self.run.layout, content.layers)
        layers = [
            Segment("layer", (self._repeating if number < repeated else self._backward)[of][kind], of)
            for number, of in enumerate(kinds)
        ]
        return (*([] if first.part == "arrival" and kind == "W" else [first]), *further, *reversed(layers), *last)

    @property
    def graphs(self) -> CudaGraphs:
        """What is captured: layers where whole passes would be, but have experts that take what comes."""
        run = self.run
        graphs, dropless = run.framework.cuda_graphs, run.model.moe is not None and not run.layout.pads_capacity
        return "layers" if graphs == "full" and dropless else graphs

    @cached_property
    def _kinds(self) -> tuple[LayerKind, ...]:
        return all_kinds(self.run.model)

    def _layer(self, of: LayerKind, forward: tuple[Task, ...], backward: tuple[Task, ...] = ()) -> tuple[Task, ...]:
        """A layer's pass as its host issues it: with CUDA graphs, by one launch as far as shapes are known before.

        How many tokens come to an expert is not, unless they are padded: a graph ends in front of the first exchange,
        and begins behind the last one backward (github NVIDIA/Megatron-LM, docs/user-guide/features/cuda_graph.md:
        ``attn moe_router moe_preprocess``, which shared experts belong to). Weight gradients alone are not told apart.
        """
        run = self.run
        if self.graphs != "layers":
            return joined(forward, backward)
        if not of.moe or run.layout.pads_capacity:
            return as_graph(joined(forward, backward), run.profile.host)
        to = next((at for at, task in enumerate(forward) if task.stream == "ep"), len(forward))
        since = next((at for at in range(len(backward), 0, -1) if backward[at - 1].stream == "ep"), len(backward))
        return joined(
            (*as_graph(forward[:to], run.profile.host), *forward[to:]),
            (*backward[:since], *as_graph(backward[since:], run.profile.host)),
        )

    @cached_property
    def _arrival(self) -> Segment:
        run = self.run
        gather = p2p_message(run.model, run.layout, run.batch, run.framework).gather
        whole = (Collective("gather stage input", "all_gather", "tp", gather),)
        return Segment("arrival", self.machine.tasks(whole if any_of(gather > 0) else ()))

    @cached_property
    def _forward(self) -> Mapping[LayerKind, tuple[Task, ...]]:
        run = self.run
        return {
            of: self._layer(of, self._hidden(layer_forward(run.model, run.layout, run.batch, run.framework, of)))
            for of in self._kinds
        }

    @cached_property
    def _backward(self) -> Mapping[LayerKind, Mapping[PassKind, tuple[Task, ...]]]:
        """Layers that repeat nothing, or modules of their own."""
        whole = self.run.layout.recompute == "full"
        return {of: self._after(() if whole else self._repeated[of], of) for of in self._kinds}

    @cached_property
    def _repeating(self) -> Mapping[LayerKind, Mapping[PassKind, tuple[Task, ...]]]:
        """Layers that are repeated whole."""
        return {of: self._after(self._repeated[of], of) for of in self._kinds}

    def _after(self, again: tuple[Task, ...], of: LayerKind) -> Mapping[PassKind, tuple[Task, ...]]:
        """A layer's backward pass behind what it repeats."""
        parts = self._layer_backward[of]
        return {kind: self._layer(of, () if kind == "W" else again, tasks) for kind, tasks in parts.items()}

    @cached_property
    def _repeated(self) -> Mapping[LayerKind, tuple[Task, ...]]:
        run = self.run
        return {
            of: self._hidden(recomputed_forward(run.model, run.layout, run.batch, run.framework, of), recomputed=True)
            for of in self._kinds
        }

    @cached_property
    def _layer_backward(self) -> Mapping[LayerKind, Mapping[PassKind, tuple[Task, ...]]]:
        run = self.run
        return {
            of: self._parts(
                self.machine.pairs(layer_backward(run.model, run.layout, run.batch, run.framework, of)), self._in_parts
            )
            for of in self._kinds
        }

    @cached_property
    def _prediction_forward(self) -> tuple[Task, ...]:
        run = self.run
        tasks = self._hidden(prediction_forward(run.model, run.layout, run.batch, run.framework))
        return self._layer(prediction_kind(run.model), tasks)

    @cached_property
    def _prediction_backward(self) -> Mapping[PassKind, tuple[Task, ...]]:
        run = self.run
        again = recomputed_prediction(run.model, run.layout, run.batch, run.framework)
        pairs = self.machine.pairs(prediction_backward(run.model, run.layout, run.batch, run.framework))
        before = self._hidden(again, recomputed=True)
        parts = self._parts(pairs, self._in_parts)
        of = prediction_kind(run.model)
        return {kind: self._layer(of, () if kind == "W" else before, tasks) for kind, tasks in parts.items()}

    def _hidden(self, operators: tuple[Operator, ...], *, recomputed: bool = False) -> tuple[Task, ...]:
        """The tasks of a layer, with what travels beside its products."""
        pairs = self.machine.pairs(operators, recomputed=recomputed)
        return tuple(task for _, task in self._in_parts(pairs, recomputed=recomputed))

    def _in_parts(self, pairs: Sequence[Priced], *, recomputed: bool = False) -> tuple[Priced, ...]:
        price = partial(self.machine.task, recomputed=recomputed)
        # The backward pass issues kernels from C++, with no module around each: so does a loop within one call.
        launch = self.run.profile.host.backward
        parts = in_parts(pairs, self.run.framework.tp_overlap, self.run.layout.tp, price, launch)
        return beside_exchange(beside_attention(parts))  # last: their tasks count from the first of all

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
