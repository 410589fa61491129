"""The machine as a layout sees it: the group of each axis, and the task that an operator becomes on it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from shardsim.cost.collectives import collective_transfer, message_transfer
from shardsim.cost.operators import compute_seconds
from shardsim.program.launch import launch_seconds
from shardsim.topology.placement import GroupAxis
from shardsim.topology.shape import PipelineHop, group_shape, pipeline_hop
from shardsim.values.hardware import GroupShape
from shardsim.values.num import Num, any_of
from shardsim.values.operators import Attention, Collective, Elementwise, Gemm, Operator, OptimizerStep
from shardsim.values.program import Task
from shardsim.values.training import TrainingRun
from shardsim.values.transfer import Transfer

_STREAM = {"shard": ("dp", "dp"), "replica": ("replicas", "dp"), "copies": ("copies", "dp")}
"""Stream and category of collectives whose axis is neither.

Gathers and scatters of parts share one queue (PyTorch, torch/distributed/fsdp/api.py: all contend for one stream); sums
over the replicas of a part have another, beside it.
"""


@dataclass(frozen=True)
class Machine:
    """Prices operators for one run (or for many of the same pipeline shape, where degrees are arrays).

    Parameters
    ----------
    run : TrainingRun
    """

    run: TrainingRun

    @cached_property
    def shapes(self) -> dict[str, GroupShape]:
        """How the group of each axis lies on the cluster."""
        cluster, layout = self.run.cluster, self.run.layout
        axes: tuple[GroupAxis, ...] = ("tp", "cp", "embedding", "model", "shard", "replica")
        shapes: dict[str, GroupShape] = {axis: group_shape(cluster, layout, axis) for axis in axes}
        # Gradients are reduced over all ranks that hold the same parameters. Two stages that hold copies of the same
        # layers are priced as the outermost two, which are farthest from each other.
        return {**shapes, "dp": group_shape(cluster, layout, "dp_cp"), "copies": shapes["embedding"]}

    def transfer(self, collective: Collective) -> Transfer:
        """What a collective does to the links of its group."""
        shape = self.shapes[collective.axis]
        return collective_transfer(collective.kind, collective.size, shape, self.run.cluster, self.run.profile.fabric)

    @cached_property
    def _hops(self) -> dict[tuple[int, int], PipelineHop]:
        return {}

    def hop(self, sender: int, receiver: int) -> PipelineHop:
        """The way between two pipeline stages, worked out once."""
        if (sender, receiver) not in self._hops:
            self._hops[sender, receiver] = pipeline_hop(self.run.cluster, self.run.layout, sender, receiver)
        return self._hops[sender, receiver]

    def message(self, size: Num, sender: int, receiver: int) -> Transfer:
        """What a message between two pipeline stages does to the links on its way."""
        hop = self.hop(sender, receiver)
        return message_transfer(
            size,
            leaves_domain=hop.leaves_domain,
            nic_share=hop.nic_share,
            cluster=self.run.cluster,
            fabric=self.run.profile.fabric,
        )

    def task(self, operator: Operator, *, recomputed: bool = False) -> Task:
        """Turn an operator into the blocking task that it is unless something overlaps it.

        Parameters
        ----------
        operator : Operator
        recomputed : bool
            Whether the backward pass repeats it; its time then counts as ``recompute``, its communication does not.
        """
        if isinstance(operator, Collective):
            transfer = self.transfer(operator)
            host = launch_seconds(operator, self.run.profile.host, transfer.seconds)
            stream, category = _STREAM.get(operator.axis, (operator.axis, operator.axis))
            return Task(operator.name, stream, category, transfer.seconds, transfer=transfer, host=host)
        run = self.run
        seconds = compute_seconds(operator, run.cluster.device, run.profile.kernels, run.wide_type)
        flop = 0.0 if isinstance(operator, OptimizerStep) else operator.flop
        category = "recompute" if recomputed else category_of(operator)
        host = launch_seconds(operator, run.profile.host, seconds)
        return Task(operator.name, "compute", category, seconds, flop=flop, host=host)

    def tasks(self, operators: Iterable[Operator], *, recomputed: bool = False) -> tuple[Task, ...]:
        """Tasks of several operators, without those that take no time (collectives of one rank)."""
        return tuple(task for _, task in self.pairs(operators, recomputed=recomputed))

    def pairs(self, operators: Iterable[Operator], *, recomputed: bool = False) -> tuple[tuple[Operator, Task], ...]:
        """Operators with their tasks, without those that take no time."""
        made = ((operator, self.task(operator, recomputed=recomputed)) for operator in operators)
        return tuple((operator, task) for operator, task in made if any_of(task.seconds > 0))


def category_of(operator: Gemm | Attention | Elementwise | OptimizerStep) -> str:
    """What the time of a compute operator counts as in reports."""
    if isinstance(operator, OptimizerStep):
        return "optimizer"
    if isinstance(operator, Elementwise):
        return "memory-bound"
    return "attention" if isinstance(operator, Attention) or operator.attention else "gemm"
