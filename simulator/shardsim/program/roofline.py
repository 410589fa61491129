"""The operators of one layer, of whichever kind, on one rank: what each costs, and what bounds it.

What bounds an operator follows from prices alone: on a device with boundless arithmetic its memory remains, on one with
boundless bandwidth its arithmetic, and the smallest of its kind is all launch (Williams, Waterman & Patterson 2009,
doi:10.1145/1498765.1498785, with the ceilings that kernels add).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from shardsim.cost.attention import library_of
from shardsim.cost.gemm import PEAK_OF, operand_width
from shardsim.cost.operators import compute_seconds
from shardsim.errors import InputError, Problem
from shardsim.program.machine import Machine
from shardsim.program.provenance import _elsewhere, priced_alike
from shardsim.schema.changes import SOURCE as SET_BY_USER
from shardsim.values.hardware import Device
from shardsim.values.kernels import KernelConstants
from shardsim.values.operators import (
    Attention,
    Collective,
    Elementwise,
    Gemm,
    Operator,
    OptimizerStep,
    TokenExchange,
)
from shardsim.values.provenance import Provenance
from shardsim.values.training import TrainingRun
from shardsim.workload.kinds import LayerKind, layer_kind
from shardsim.workload.layer import layer_backward, layer_forward, recomputed_forward

Phase = Literal["forward", "recompute", "backward"]
Bound = Literal["arithmetic", "memory", "tiles", "launch", "network", "latency"]

BOUNDLESS = 1e30
"""A rate at which nothing takes time [1/s]."""
MANY = 16.0
"""So many times the sequences leave no waves of tiles to speak of (-)."""
LOSS = 0.9
"""Share of the rate that a large kernel holds, below which filling the device with tiles is what bounds it (-)."""
_TRUST = ("assumed", "datasheet", "fitted", "interpolated", "measured")
"""Bases from the weakest to the strongest."""


@dataclass(frozen=True, slots=True)
class OperatorCost:
    """One operator of a layer.

    Parameters
    ----------
    name : str
    phase : {"forward", "recompute", "backward"}
    kind : str
        ``gemm``, ``attention``, the kind of a memory-bound kernel, of a collective, or ``dispatch`` and ``combine``.
    kernels : int
        Kernels launched (-).
    flop, bytes_moved : float
        FLOP, 0 where bandwidth alone decides (-); least memory traffic, or bytes on the most loaded link [bytes].
    seconds : float
        Alone, as in training [s].
    bound : {"arithmetic", "memory", "tiles", "launch", "network", "latency"}
        What decides the time.
    achieved : float
        Share of the dense peak where it has FLOP and memory does not bound it, of the datasheet bandwidth of memory or
        of the link otherwise (-).
    provenance : Provenance
        Of the weakest constant that the price rests on.
    """

    name: str
    phase: Phase
    kind: str
    kernels: int
    flop: float
    bytes_moved: float
    seconds: float
    bound: Bound
    achieved: float
    provenance: Provenance

    @property
    def intensity(self) -> float:
        """Arithmetic intensity [FLOP/byte]."""
        return self.flop / self.bytes_moved if self.bytes_moved else 0.0

    @property
    def rate(self) -> float:
        """[FLOP/s], or [bytes/s] where there is no FLOP."""
        return (self.flop or self.bytes_moved) / self.seconds


@dataclass(frozen=True, slots=True)
class LayerCosts:
    """The operators of a layer, in order of issue, and the roofs above them.

    Parameters
    ----------
    run : TrainingRun
    kind : LayerKind
    operators : tuple of OperatorCost
    peak, sustained : float
        Dense peak of the data type, and what matrix products hold of it in training [FLOP/s].
    bandwidth, reached : float
        Datasheet memory bandwidth, and what matrix products reach of it [bytes/s].
    """

    run: TrainingRun
    kind: LayerKind
    operators: tuple[OperatorCost, ...]
    peak: float
    sustained: float
    bandwidth: float
    reached: float

    @property
    def seconds(self) -> float:
        """All operators, one after the other [s]."""
        return sum(one.seconds for one in self.operators)

    @property
    def flop(self) -> float:
        """Executed by one rank (-)."""
        return sum(one.flop for one in self.operators)


def layer_costs(run: TrainingRun, layer: int | None = None) -> LayerCosts:
    """Price the operators of one layer for one micro-batch on one rank.

    Parameters
    ----------
    run : TrainingRun
        One layout; degrees are scalars.
    layer : int or None
        Counted from 1 (-), where layers are of several kinds; the last if left out.

    Returns
    -------
    LayerCosts

    Raises
    ------
    InputError
        The model has no such layer.
    """
    last = run.model.layers
    if layer is not None and not 1 <= layer <= last:
        raise InputError(Problem(f"{run.model.name} has no layer {layer}", "--layer", f"1 to {last}"))
    kind = layer_kind(run.model, (layer or last) - 1)
    shape = (run.model, run.layout, run.batch, run.framework, kind)
    parts: Mapping[Phase, tuple[Operator, ...]] = {
        "forward": layer_forward(*shape),
        "recompute": recomputed_forward(*shape),
        "backward": layer_backward(*shape),
    }
    pricer = _Pricer(run, Machine(run))
    operators = tuple(cost for phase, ops in parts.items() for cost in pricer.costs(phase, ops))
    own = run.profile.kernels.gemm[run.linear_type]
    device = run.cluster.device
    peak = device.peak_flops[run.peak_type]
    reached = own.memory_efficiency * device.memory_bandwidth
    return LayerCosts(run, kind, operators, peak, own.sustained * peak, device.memory_bandwidth, reached)


@dataclass(frozen=True)
class _Pricer:
    run: TrainingRun
    machine: Machine

    @property
    def device(self) -> Device:
        return self.run.cluster.device

    @property
    def kernels(self) -> KernelConstants:
        return self.run.profile.kernels

    def costs(self, phase: Phase, operators: tuple[Operator, ...]) -> Iterator[OperatorCost]:
        """Those that take any time."""
        for operator in operators:
            task = self.machine.task(operator)
            seconds, host = float(task.seconds), float(task.host)
            if seconds <= 0.0:
                continue
            if isinstance(operator, Collective | TokenExchange):
                yield self.collective(phase, operator, seconds)
            else:
                yield self.compute(phase, operator, seconds, host)

    def collective(self, phase: Phase, operator: Collective | TokenExchange, seconds: float) -> OperatorCost:
        transfer = self.machine.transfer(operator)
        cluster = self.run.cluster
        shape = self.machine.shapes["ep" if isinstance(operator, TokenExchange) else operator.axis]
        # What one rank sends passes its own adapters, a collective's most loaded link those of its domain's members.
        alone = transfer.algorithm in (*self.run.profile.fabric.exchange, "send_recv")
        adapters = min(float(shape.nic_share), cluster.nic_bandwidth_per_gpu) if alone else float(shape.nic_share)
        links = {"nvlink": cluster.nvlink.bandwidth, "nic": adapters}
        slowest = max(transfer.wire, key=lambda link: float(transfer.wire[link] / transfer.rate[link]))
        size = float(transfer.wire[slowest])
        return OperatorCost(
            name=operator.name,
            phase=phase,
            kind=operator.direction if isinstance(operator, TokenExchange) else operator.kind,
            kernels=1,
            flop=0.0,
            bytes_moved=size,
            seconds=seconds,
            bound="latency" if float(transfer.latency) > 0.5 * seconds else "network",
            achieved=size / seconds / links[slowest] if links.get(slowest) else 0.0,
            provenance=transfer.provenance,
        )

    def compute(
        self, phase: Phase, operator: Gemm | Attention | Elementwise | OptimizerStep, seconds: float, host: float
    ) -> OperatorCost:
        flop = 0.0 if isinstance(operator, OptimizerStep) else float(operator.flop)
        size = self.traffic(operator)
        bound = self.bound(operator, seconds, host)
        by_bandwidth = not flop or bound == "memory"
        reached = (
            size / seconds / self.device.memory_bandwidth if by_bandwidth else flop / seconds / self.peak(operator)
        )
        return OperatorCost(
            name=operator.name,
            phase=phase,
            kind=_kind(operator),
            kernels=round(float(operator.kernels)) if isinstance(operator, Elementwise | OptimizerStep) else 1,
            flop=flop,
            bytes_moved=size,
            seconds=seconds,
            bound=bound,
            achieved=reached,
            provenance=self.provenance(operator),
        )

    def traffic(self, operator: Gemm | Attention | Elementwise | OptimizerStep) -> float:
        """Least memory traffic in the operator's data type [bytes]."""
        if isinstance(operator, Gemm):
            return float(operator.bytes_at(operand_width(operator, self.data_type(operator))))
        return float(operator.bytes_moved)

    def peak(self, operator: Operator) -> float:
        """Dense peak of what the operator runs in; attention stays at 16 bits [FLOP/s]."""
        data_type = self.data_type(operator)
        if isinstance(operator, Attention) and data_type not in ("fp16", "bf16"):
            data_type = "bf16"
        return self.device.peak_flops[PEAK_OF.get(data_type, data_type)]

    def data_type(self, operator: Operator) -> str:
        return (operator.data_type if isinstance(operator, Gemm) else "") or self.run.wide_type

    # ---- what bounds it -----------------------------------------------------------------------------------------

    def bound(self, operator: Gemm | Attention | Elementwise | OptimizerStep, seconds: float, host: float) -> Bound:
        launch = self.price(_smallest(operator), self.device)
        if host > seconds or launch > 0.5 * seconds:
            return "launch"
        if isinstance(operator, Elementwise | OptimizerStep):
            return "memory"
        peaks = dict.fromkeys(self.device.peak_flops, BOUNDLESS)
        memory = self.price(operator, replace(self.device, peak_flops=peaks))
        arithmetic = self.price(operator, replace(self.device, memory_bandwidth=BOUNDLESS))
        if memory >= arithmetic:
            return "memory"
        return "arithmetic" if float(operator.flop) / arithmetic >= LOSS * self.best(operator) else "tiles"

    def best(self, operator: Gemm | Attention) -> float:
        """Rate of a product, or of attention, of any size [FLOP/s]."""
        if isinstance(operator, Gemm):
            return self.kernels.gemm[self.data_type(operator)].sustained * self.peak(operator)
        large = replace(operator, batch=MANY * operator.batch)
        return float(large.flop) / self.price(large, self.device)

    def price(self, operator: Gemm | Attention | Elementwise | OptimizerStep, device: Device) -> float:
        """Seconds by the equations alone: what a residual grid adds belongs to no bound [s]."""
        data_type = self.data_type(operator)
        own = {data_type: replace(self.kernels.gemm[data_type], residual=None)}
        bare = replace(self.kernels, gemm={**self.kernels.gemm, **own})
        return float(compute_seconds(operator, device, bare, self.run.wide_type))

    # ---- where it comes from --------------------------------------------------------------------------------------

    def provenance(self, operator: Gemm | Attention | Elementwise | OptimizerStep) -> Provenance:
        prefix = self.prefix(operator)
        # What grouping products costs is the price of experts alone.
        grouped = isinstance(operator, Gemm) and operator.grouped == "one_kernel"
        notes = [
            note
            for key, note in self.kernels.provenance.items()
            if key.startswith(prefix) and (grouped or ".grouped." not in key)
        ]
        weakest = min(notes, key=lambda note: _TRUST.index(note.basis))
        measured_on = self.kernels.measured_on.get(prefix.partition(".")[0], ())
        here = self.device.name in measured_on and SET_BY_USER not in self.device.source
        found = weakest if here else _elsewhere(weakest, ", ".join(measured_on))
        return priced_alike(self.run, found) if prefix == "gemm.fp8." else found

    def prefix(self, operator: Gemm | Attention | Elementwise | OptimizerStep) -> str:
        """Beginning of the keys of the constants that an operator's price rests on."""
        if isinstance(operator, Gemm):
            return f"gemm.{self.data_type(operator)}."
        if isinstance(operator, Attention):
            library = library_of(operator.library, self.kernels.attention)
            direction = "forward" if operator.role == "forward" else "backward"
            return f"attention.libraries.{library}.{direction}."
        kind = operator.kind if isinstance(operator, Elementwise) else "optimizer"
        known = kind if kind in self.kernels.memory_bound.efficiency else "default"
        return f"memory_bound.efficiency.{known}"


def _kind(operator: Gemm | Attention | Elementwise | OptimizerStep) -> str:
    if isinstance(operator, Gemm):
        return "gemm"
    if isinstance(operator, Attention):
        return "attention"
    return operator.kind if isinstance(operator, Elementwise) else "optimizer"


def _smallest(
    operator: Gemm | Attention | Elementwise | OptimizerStep,
) -> Gemm | Attention | Elementwise | OptimizerStep:
    """The same kernel with next to nothing to do."""
    if isinstance(operator, Gemm):
        return replace(operator, m=1.0, n=1.0, k=1.0, batch=1.0)
    if isinstance(operator, Attention):
        return replace(operator, batch=1.0, heads=1.0, kv_heads=1.0, seq=1.0)
    return replace(operator, bytes_moved=0.0)
