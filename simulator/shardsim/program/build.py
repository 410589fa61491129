"""From a training run to a program: every pass of every stage as tasks, priced on the machine.

Passes of stages that do the same work share one block. Degrees that do not change the pipeline's shape (TP, DP, CP,
micro-batch size) may be arrays: the program is then a price list for many layouts at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from shardsim.errors import InputError, Problem
from shardsim.program.launch import after, as_graph, launch_seconds
from shardsim.program.machine import Machine
from shardsim.program.overlap import joined, regather_behind_dgrad
from shardsim.values.num import Num, any_of
from shardsim.values.operators import Collective, Operator
from shardsim.values.program import Block, PassKind, PipelineSchedule, Program, Task
from shardsim.values.training import TrainingRun
from shardsim.values.transfer import Transfer
from shardsim.workload.data_parallel import (
    embedding_gradient_reduction,
    gradient_norm,
    gradient_packing,
    gradient_reduction,
    optimizer_step,
    parameter_gather,
)
from shardsim.workload.ends import embedding_backward, embedding_forward, head_backward, head_forward
from shardsim.workload.layer import layer_backward, layer_forward, recomputed_forward
from shardsim.workload.parameters import embedding_parameters, head_parameters, layer_parameters, layer_tensors
from shardsim.workload.pipeline import p2p_message
from shardsim.workload.schedules import make_schedule
from shardsim.workload.stages import ChunkContent, chunk_contents


def build(run: TrainingRun) -> Program:
    """Build the program of one iteration.

    Parameters
    ----------
    run : TrainingRun
        Stages, chunks and micro-batches are scalars; other degrees may be arrays over layouts.

    Returns
    -------
    Program
        At operator level; :func:`shardsim.program.coalesce.coalesce` makes it a price list.

    Raises
    ------
    InputError
        Overlapped collectives occupy more multiprocessors than the device can spare.
    """
    return _Builder(run).program()


@dataclass(frozen=True)
class _Builder:
    run: TrainingRun

    @cached_property
    def machine(self) -> Machine:
        return Machine(self.run)

    @cached_property
    def schedule(self) -> PipelineSchedule:
        layout = self.run.layout
        microbatches = round(float(_first(self.run.batch.micro_batches(layout))))
        return make_schedule(layout.schedule, int(_first(layout.pp)), microbatches, int(_first(layout.vpp)))

    @cached_property
    def contents(self) -> Mapping[tuple[int, int], ChunkContent]:
        """What each (stage, chunk) holds."""
        return chunk_contents(self.run.model, self.schedule.virtual_stages)

    def program(self) -> Program:
        schedule = self.schedule
        blocks = {
            (stage, kind, chunk): self.block(kind, self.contents[stage, chunk])
            for stage, chunk in schedule.virtual_stages
            for kind in ("F", "B")
        }
        last = (
            {(s, "B", c): self.releasing_backward(self.contents[s, c]) for s, c in schedule.virtual_stages}
            if self.overlaps_gradients
            else {}
        )
        meetings = {"gradient norm": tuple(range(schedule.stages))}
        if self.shares_embedding:
            meetings["tied embedding"] = (0, schedule.stages - 1)
        layout = self.run.layout
        return Program(
            schedule=schedule,
            blocks=blocks,
            last_blocks=last,
            epilogues=tuple(self.epilogue(stage) for stage in range(schedule.stages)),
            messages=self.messages(),
            multiplicity=int(_first(layout.tp * layout.cp * layout.dp)),
            rendezvous_members=meetings,
            overlap_slowdown=self.overlap_slowdown,
            synchronous_messages=self.synchronous_messages,
        )

    # ---- passes -----------------------------------------------------------------------------------------------

    def block(self, kind: PassKind, content: ChunkContent) -> Block:
        """One forward or backward pass through a chunk."""
        if kind == "F":
            tasks = self.pieces.embedding_forward if content.embedding else self.pieces.arrival
            tasks += self.pieces.forward * content.layers
            tasks += self.pieces.head_forward if content.head else ()
            return Block("forward", self.issued(tasks))
        parts = [self.pieces.head_backward if content.head else self.pieces.arrival]
        parts += [self.pieces.backward] * content.layers
        parts += [self.pieces.embedding_backward] if content.embedding else []
        return Block("backward", self.issued(joined(*parts)))

    def issued(self, tasks: tuple[Task, ...]) -> tuple[Task, ...]:
        """A pass as its host issues it."""
        host = self.run.profile.host
        whole = as_graph(tasks, host) if self.run.framework.cuda_graphs == "full" else tasks
        return after(whole, host.passes)

    def releasing_backward(self, content: ChunkContent) -> Block:
        """The last backward pass through a chunk: each layer's gradients go to their reduction when they are ready."""
        pieces, parameters = self.pieces, self.parameters
        parts = [pieces.head_backward if content.head else pieces.arrival]
        if content.head:
            parts.append(self.released(parameters.head))
        parts += [pieces.backward, self.released(parameters.layer)] * content.layers
        if content.embedding:
            parts += [pieces.embedding_backward, self.released(parameters.embedding)]
        return Block("backward, releasing gradients", self.issued(joined(*parts)))

    @cached_property
    def pieces(self) -> _Pieces:
        run, tasks = self.run, self.machine.tasks

        def backward(operators: tuple[Operator, ...]) -> tuple[Task, ...]:
            return regather_behind_dgrad(self.machine.pairs(operators))

        shape = (run.model, run.layout, run.batch, run.framework)
        gather = p2p_message(*shape).gather
        whole = (Collective("gather stage input", "all_gather", "tp", gather),)
        arrival: tuple[Operator, ...] = whole if any_of(gather > 0) else ()

        def layer(tasks: tuple[Task, ...]) -> tuple[Task, ...]:
            return as_graph(tasks, run.profile.host) if run.framework.cuda_graphs == "layers" else tasks

        again = tasks(recomputed_forward(*shape), recomputed=True)
        return _Pieces(
            arrival=tasks(arrival),
            forward=layer(tasks(layer_forward(*shape))),
            backward=layer(joined(again, backward(layer_backward(*shape)))),
            embedding_forward=tasks(embedding_forward(*shape)),
            embedding_backward=tasks(embedding_backward(*shape)),
            head_forward=tasks(head_forward(*shape)),
            head_backward=backward(head_backward(*shape)),
        )

    # ---- data parallel ----------------------------------------------------------------------------------------

    @property
    def overlaps_gradients(self) -> bool:
        return self.run.framework.overlap_grad_reduce == "always" and any_of(self.run.layout.dp > 1)

    @property
    def overlap_slowdown(self) -> float:
        """Share of the device's multiprocessors that a collective takes from compute beside it (-)."""
        if not self.overlaps_gradients and not self.gathers_inputs_again:
            return 0.0
        device, fabric = self.run.cluster.device, self.run.profile.fabric
        if fabric.overlap_multiprocessors >= device.multiprocessors:
            what = (
                f"collectives behind compute occupy {fabric.overlap_multiprocessors:g} multiprocessors, "
                f"and {device.name} has {device.multiprocessors}"
            )
            right = f"write less than {device.multiprocessors}"
            raise InputError(Problem(what, f"fabric profile {fabric.name}, overlap_multiprocessors", right))
        return fabric.overlap_multiprocessors / device.multiprocessors

    @property
    def gathers_inputs_again(self) -> bool:
        return self.run.layout.sp and any_of(self.run.layout.tp > 1)

    @property
    def synchronous_messages(self) -> bool:
        policy = self.run.framework.synchronous_messages
        return policy == "always" or (policy == "not_interleaved" and self.schedule.chunks == 1)

    @property
    def shares_embedding(self) -> bool:
        return self.run.model.tied_embeddings and self.schedule.stages > 1

    @cached_property
    def parameters(self) -> _Parameters:
        run = self.run
        shape = (run.model, run.layout, run.framework)
        return _Parameters(layer_parameters(*shape), embedding_parameters(*shape), head_parameters(*shape))

    def stage_parameters(self, stage: int) -> Num:
        """Parameters of one rank of a stage (-)."""
        held = [self.contents[s, c] for s, c in self.schedule.virtual_stages if s == stage]
        layers = sum(content.layers for content in held)
        total: Num = layers * self.parameters.layer
        total = total + sum(content.embedding for content in held) * self.parameters.embedding
        return total + sum(content.head for content in held) * self.parameters.head

    def stage_tensors(self, stage: int) -> int:
        """Parameter tensors that a stage holds, near enough: those of its layers (-)."""
        layers = sum(self.contents[s, c].layers for s, c in self.schedule.virtual_stages if s == stage)
        return layers * layer_tensors(self.run.model)

    def released(self, parameters: Num) -> tuple[Task, ...]:
        """Reduction of some gradients, bucket by bucket, behind the backward pass.

        What a layer releases is a part of a bucket or several buckets: it takes that many bucket latencies, and its
        bytes at the rate that a whole bucket reaches.
        """
        framework = self.run.framework
        reduction = gradient_reduction(parameters, self.run.layout, framework)
        bucket = self.machine.transfer(replace(reduction, size=framework.bucket_bytes))
        buckets = reduction.size / framework.bucket_bytes
        transfer = Transfer(
            latency=bucket.latency * buckets,
            wire={link: size * buckets for link, size in bucket.wire.items()},
            rate=bucket.rate,
            algorithm=bucket.algorithm,
            provenance=bucket.provenance,
        )
        host = buckets * launch_seconds(reduction, self.run.profile.host, transfer.seconds)
        return (Task("reduce gradients", "dp", "dp", transfer.seconds, transfer=transfer, blocking=False, host=host),)

    def epilogue(self, stage: int) -> Block:
        """What follows the last pass of a stage: reduction of gradients, their norm, optimizer, parameter gather."""
        run, machine = self.run, self.machine
        parameters = self.stage_parameters(stage)
        tasks = machine.tasks([gradient_packing(parameters, run.framework, self.stage_tensors(stage))])
        if self.overlaps_gradients:
            tasks += (Task("wait for gradients", "compute", "dp", 0.0, drains=("dp",)),)
        else:
            # Also with one replica, where it takes no time: the number of events must not depend on DP.
            tasks += (machine.task(gradient_reduction(parameters, run.layout, run.framework)),)
        if self.shares_embedding and stage in (0, self.schedule.stages - 1):
            reduce = machine.task(embedding_gradient_reduction(run.model, run.layout, run.framework))
            tasks += (replace(reduce, category="dp", rendezvous="tied embedding"),)
        norm = machine.task(gradient_norm(run.layout))
        # The host reads the norm, to clip by it and to see whether the step is to be skipped.
        tasks += (replace(norm, category="optimizer", rendezvous="gradient norm", synchronises=True),)
        tasks += (machine.task(optimizer_step(parameters, run.layout, run.framework, self.stage_tensors(stage))),)
        tasks += tuple(machine.task(gather) for gather in parameter_gather(parameters, run.layout, run.framework))
        return Block("epilogue", tasks)

    # ---- messages ---------------------------------------------------------------------------------------------

    def messages(self) -> dict[tuple[int, str, int], Transfer]:
        """Messages by their sender: forward to the next virtual stage, backward to the one before."""
        run = self.run
        size = p2p_message(run.model, run.layout, run.batch, run.framework).size
        found: dict[tuple[int, str, int], Transfer] = {}
        for (stage, chunk), (next_stage, next_chunk) in zip(
            self.schedule.virtual_stages, self.schedule.virtual_stages[1:], strict=False
        ):
            if stage != next_stage:
                found[stage, "F", chunk] = self.machine.message(size, stage, next_stage)
                found[next_stage, "B", next_chunk] = self.machine.message(size, next_stage, stage)
        return found


@dataclass(frozen=True, slots=True)
class _Pieces:
    """Tasks of the parts that passes are made of."""

    arrival: tuple[Task, ...]
    forward: tuple[Task, ...]
    backward: tuple[Task, ...]
    embedding_forward: tuple[Task, ...]
    embedding_backward: tuple[Task, ...]
    head_forward: tuple[Task, ...]
    head_backward: tuple[Task, ...]


@dataclass(frozen=True, slots=True)
class _Parameters:
    """Parameters of one rank (-)."""

    layer: Num
    embedding: Num
    head: Num


def _first(x: Num) -> float:
    """A degree that all layouts of a program share."""
    return float(x) if isinstance(x, float | int) else float(x.flat[0])
