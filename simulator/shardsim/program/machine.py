"""The machine as a layout sees it: the group of each axis, and the task that an operator becomes on it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from shardsim.cost.collectives import collective_transfer, message_transfer
from shardsim.cost.exchange import exchange_transfer
from shardsim.cost.operators import compute_seconds
from shardsim.program.exchange import exchange_volumes
from shardsim.program.launch import launch_seconds
from shardsim.program.stack import in_training, term_of
from shardsim.topology.placement import GroupAxis
from shardsim.topology.shape import PipelineHop, group_shape, pipeline_hop
from shardsim.values.hardware import GroupShape
from shardsim.values.num import Num, any_of, smaller, where
from shardsim.values.operators import (
    Attention,
    Collective,
    Elementwise,
    Gemm,
    Operator,
    OptimizerStep,
    TokenExchange,
)
from shardsim.values.program import Task
from shardsim.values.training import TrainingRun
from shardsim.values.transfer import Transfer

_STREAM = {
    "shard": ("dp", "dp"),
    "edp": ("dp", "dp"),
    "edp_shard": ("dp", "dp"),
    "replica": ("replicas", "dp"),
    "copies": ("copies", "dp"),
    "etp": ("ep", "ep"),
    "cp_inner": ("cp", "cp"),
    "cp_outer": ("cp", "cp"),
}
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
    odd : mapping of str to GroupShape
        By axis, how groups lie that do not lie as usual.
    """

    run: TrainingRun
    odd: Mapping[str, GroupShape] = field(default_factory=dict)

    @cached_property
    def shapes(self) -> dict[str, GroupShape]:
        """How the group of each axis lies on the cluster."""
        cluster, layout = self.run.cluster, self.run.layout
        axes: list[GroupAxis] = ["tp", "cp", "embedding", "model", "shard", "replica"]
        if layout.cp_comm == "a2a+p2p":
            axes += ("cp_inner", "cp_outer")
        if self.run.model.moe is not None:
            axes += ("etp", "ep", "edp")
        shapes: dict[str, GroupShape] = {axis: group_shape(cluster, layout, axis) for axis in axes}
        if self.run.model.moe is not None and layout.shard:
            # A pipeline stage of the replicas that share one set of parts is a stage for itself.
            apart = replace(layout, dp=layout.sharing, pp=layout.pp * layout.dp // layout.sharing, shard=0)
            shapes["edp_shard"] = group_shape(cluster, apart, "edp")
        # Gradients are reduced over all ranks that hold the same parameters. Two stages that hold copies of the same
        # layers are priced as the outermost two, which are farthest from each other.
        usual = {**shapes, "dp": group_shape(cluster, layout, "dp_cp"), "copies": shapes["embedding"]}
        return {**usual, **self.odd}

    def transfer(self, operator: Collective | TokenExchange) -> Transfer:
        """What a collective, or tokens on their way, do to the links of their group."""
        if isinstance(operator, TokenExchange) or isinstance(operator.size, np.ndarray):
            return self._in_training(operator)
        key = (operator.kind, operator.axis, operator.size)
        if key not in self._transfers:
            self._transfers[key] = self._in_training(operator)
        return self._transfers[key]

    def _in_training(self, operator: Collective | TokenExchange) -> Transfer:
        """What it is alone, and by how much the software stack is slower."""
        alone, factor = self._transfer(operator), in_training(term_of(operator), self.run.profile.stack)
        return alone if isinstance(factor, float) and factor == 1.0 else stretched(alone, factor)

    @cached_property
    def _transfers(self) -> dict[tuple[str, str, float], Transfer]:
        """Transfers of one layout's collectives by what decides them, worked out once."""
        return {}

    def _transfer(self, operator: Collective | TokenExchange) -> Transfer:
        run = self.run
        if isinstance(operator, TokenExchange):
            shape = self.shapes["ep"]
            volumes = exchange_volumes(operator, shape)
            how = (operator.dispatcher, operator.direction)
            return exchange_transfer(volumes, *how, shape, run.cluster, run.profile.fabric)
        shape = self.shapes[operator.axis]
        if operator.kind == "send_recv":
            return self._ring_step(operator.size, shape)
        return collective_transfer(operator.kind, operator.size, shape, run.cluster, run.profile.fabric)

    def _ring_step(self, size: Num, shape: GroupShape) -> Transfer:
        """Each member sends to the next: of those in one domain, one leaves it, by no more than one adapter."""
        cluster = self.run.cluster
        adapter = max(cluster.nic.bandwidth, cluster.nic_bandwidth_per_gpu)
        return message_transfer(
            where(shape.ranks > 1, size, 0.0),
            leaves_domain=where(shape.domains > 1, 1.0, 0.0),
            nic_share=smaller(shape.nic_share, adapter),
            cluster=cluster,
            fabric=self.run.profile.fabric,
        )

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
            far_load=hop.far_load,
        )

    def task(self, operator: Operator, *, recomputed: bool = False) -> Task:
        """Turn an operator into the blocking task that it is unless something overlaps it.

        Parameters
        ----------
        operator : Operator
        recomputed : bool
            Whether the backward pass repeats it; its time then counts as ``recompute``, its communication does not.
        """
        if isinstance(operator, Collective | TokenExchange):
            transfer = self.transfer(operator)
            host = launch_seconds(operator, self.run.profile.host, transfer.seconds) + self._of_members(operator)
            axis = operator.axis if isinstance(operator, Collective) else "ep"
            stream, category = _STREAM.get(axis, (axis, axis))
            does = operator.kind if isinstance(operator, Collective) else operator.direction
            return Task(
                operator.name,
                stream,
                category,
                transfer.seconds,
                transfer=transfer,
                host=host,
                term=term_of(operator),
                moves=(axis, does),
            )
        run = self.run
        seconds = compute_seconds(operator, run.cluster.device, run.profile.kernels, run.wide_type)
        if isinstance(operator, Gemm) and operator.role == "wgrad" and operator.data_type:
            seconds = seconds * run.framework.narrow_weights_time
        term = term_of(operator)
        seconds = seconds * in_training(term, run.profile.stack)
        flop = 0.0 if isinstance(operator, OptimizerStep) else operator.flop
        category = "recompute" if recomputed else category_of(operator)
        host = launch_seconds(operator, run.profile.host, seconds)
        return Task(operator.name, "compute", category, seconds, flop=flop, host=host, term=term)

    def _of_members(self, operator: Collective | TokenExchange) -> Num:
        """What launching a collective inside a layer takes longer for its members, in a job over domains [s]."""
        each, domain = self.run.profile.host.member, self.run.cluster.gpus_per_domain
        none = isinstance(each, float) and each == 0.0
        if none or isinstance(operator, TokenExchange) or term_of(operator) not in ("inside", "exchange"):
            return 0.0
        ranks = self.shapes[operator.axis].ranks
        return where(self.run.layout.gpus > domain, where(ranks > 1, ranks * each, 0.0), 0.0)

    def tasks(self, operators: Iterable[Operator], *, recomputed: bool = False) -> tuple[Task, ...]:
        """Tasks of several operators, without those that take no time (collectives of one rank)."""
        return tuple(task for _, task in self.pairs(operators, recomputed=recomputed))

    def pairs(self, operators: Iterable[Operator], *, recomputed: bool = False) -> tuple[tuple[Operator, Task], ...]:
        """Operators with their tasks, without those that take no time; exchanges stay: they end what is captured."""
        made = ((operator, self.task(operator, recomputed=recomputed)) for operator in operators)
        return tuple(
            (operator, task)
            for operator, task in made
            if isinstance(operator, TokenExchange) or any_of(task.seconds > 0)
        )


def stretched(transfer: Transfer, factor: Num) -> Transfer:
    """Let a transfer take so many times as long (-): tokens beside another micro-batch, collectives in training."""
    rate = {link: rate / factor for link, rate in transfer.rate.items()}
    return replace(transfer, latency=transfer.latency * factor, rate=rate)


def category_of(operator: Gemm | Attention | Elementwise | OptimizerStep) -> str:
    """What the time of a compute operator counts as in reports."""
    if isinstance(operator, OptimizerStep):
        return "optimizer"
    if isinstance(operator, Elementwise):
        return "memory-bound"
    return "attention" if isinstance(operator, Attention) or operator.attention else "gemm"
