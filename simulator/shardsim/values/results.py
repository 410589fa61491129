"""What an engine found, and what a prediction says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shardsim.values.num import Num
from shardsim.values.program import Item, Place
from shardsim.values.provenance import Provenance
from shardsim.values.training import TrainingRun

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

PAIR = "F&B"
"""A forward and a backward pass that run as one, as a kind of pass."""

PASS_KINDS = ("F", "B", "I", "W", PAIR)
"""Kinds of passes, in the order in which ``Timeline.kind`` counts them."""


@dataclass(frozen=True, slots=True)
class StageAccount:
    """Where the time of one stage went. The values of ``seconds`` sum to the iteration time.

    Parameters
    ----------
    stage : int
    seconds : mapping of str to Num
        By category [s]: those of the blocking tasks (``gemm``, ``attention``, ``memory-bound``, ``tp``, ``recompute``,
        ``optimizer`` ...), ``pp`` (waiting while a message was under way), ``dp`` (waiting for gradient reduction) and
        ``bubble`` (waiting with nothing under way), ``interference`` (slowed by overlapped communication).
    flop : Num
        Floating point operations executed by one rank (-).
    """

    stage: int
    seconds: Mapping[str, Num]
    flop: Num


@dataclass(frozen=True, slots=True)
class Timeline:
    """Every task that ran, in columns of equal length.

    Parameters
    ----------
    start, finish : ndarray of float
        [s], shape (tasks,).
    stage, microbatch, chunk : ndarray of int
        Shape (tasks,); micro-batch and chunk are -1 in the epilogue.
    label : ndarray of int
        Index into ``labels``, shape (tasks,).
    labels : tuple of (str, str, str)
        Name, stream and category.
    kind : ndarray of int or None
        Pass that each task belongs to, shape (tasks,): index into ``PASS_KINDS``, -1 in the epilogue. None where the
        engine did not say.
    paired : ndarray of int or None
        Micro-batch and chunk of the backward pass of a pair, whose forward pass ``microbatch`` and ``chunk`` name,
        shape (tasks, 2); -1 outside pairs. None where there are none.
    chains : tuple of tuple of (int, int)
        The ways of micro-batches through the stages, as in ``PipelineSchedule``; empty where the engine did not say.
    """

    start: NDArray[np.float64]
    finish: NDArray[np.float64]
    stage: NDArray[np.int64]
    microbatch: NDArray[np.int64]
    chunk: NDArray[np.int64]
    label: NDArray[np.int64]
    labels: tuple[tuple[str, str, str], ...]
    kind: NDArray[np.int64] | None = None
    paired: NDArray[np.int64] | None = None
    chains: tuple[tuple[Place, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Execution:
    """What an engine returns.

    Parameters
    ----------
    engine : str
        ``closed``, ``listing`` or ``des``.
    iteration_s : Num
        Makespan [s]; an array when the program held arrays.
    stages : tuple of StageAccount
    events : int or None
        Events processed (-), for the event engine.
    timeline : Timeline or None
    """

    engine: str
    iteration_s: Num
    stages: tuple[StageAccount, ...]
    events: int | None = None
    timeline: Timeline | None = None


@dataclass(frozen=True, slots=True)
class MemoryProfile:
    """Device memory of one rank of each stage at its fullest moment.

    Parameters
    ----------
    stages : tuple of mapping of str to float
        For each stage, bytes by item: ``weights``, ``gradients``, ``optimizer``, ``activations``, ``logits``
        (and what the loss keeps of them), ``gathered`` (weights, by full sharding), ``buffers``, ``fragmentation``
        (reserved by the caching allocator and unused), ``context`` [bytes].
    capacity : float
        Device memory [bytes].
    moments : tuple of (Pass, Pair or None)
        For each stage, what it runs at its fullest moment, None for the optimizer step; empty where nobody said.
    """

    stages: tuple[Mapping[str, float], ...]
    capacity: float
    moments: tuple[Item | None, ...] = ()

    @property
    def allocated(self) -> tuple[float, ...]:
        """What the tensors of each stage take [bytes]."""
        outside = ("fragmentation", "context")
        return tuple(sum(size for item, size in items.items() if item not in outside) for items in self.stages)

    @property
    def reserved(self) -> tuple[float, ...]:
        """What each stage takes of its device in all [bytes]."""
        return tuple(sum(items.values()) for items in self.stages)

    @property
    def peak(self) -> float:
        """The fullest stage [bytes]."""
        return max(sum(items.values()) for items in self.stages)

    @property
    def worst_stage(self) -> int:
        """Index of the fullest stage, the first of equals."""
        totals = [sum(items.values()) for items in self.stages]
        return totals.index(max(totals))

    @property
    def fits(self) -> bool:
        """Whether every stage fits into its device."""
        return self.peak <= self.capacity


@dataclass(frozen=True, slots=True)
class MemoryHistory:
    """What the tensors of one rank of a stage take over one iteration: a step function.

    Parameters
    ----------
    stage : int
    seconds : ndarray of float
        When it changes [s], ascending from 0, shape (n,); the last is the end of the iteration.
    items : mapping of str to ndarray of float
        Bytes held from each of these moments to the next [bytes], shape (n,).
    """

    stage: int
    seconds: NDArray[np.float64]
    items: Mapping[str, NDArray[np.float64]]

    @property
    def allocated(self) -> NDArray[np.float64]:
        """All items together [bytes], shape (n,)."""
        return sum(self.items.values(), start=0.0 * self.seconds)


@dataclass(frozen=True, slots=True)
class WaterfallStep:
    """One step from peak FLOP/s down to achieved.

    Parameters
    ----------
    name : str
    seconds : float
        Part of the iteration, mean over ranks [s].
    flops_lost : float
        What it takes off the peak [FLOP/s per GPU]; all steps and the achieved rate sum to the peak.
    """

    name: str
    seconds: float
    flops_lost: float


@dataclass(frozen=True, slots=True)
class CostNote:
    """Which constant a prediction used, and where it comes from."""

    constant: str
    value: str
    provenance: Provenance


@dataclass(frozen=True, slots=True)
class Prediction:
    """What shardsim says about one training run.

    Parameters
    ----------
    run : TrainingRun
    execution : Execution
    memory : MemoryProfile
    iteration_s : float
        [s].
    tokens_per_s, tokens_per_s_per_gpu : float
        [1/s].
    model_flop, hardware_flop : float
        Counted FLOP of one iteration, without and with recompute (-).
    flops_per_gpu : float
        Model FLOP per second and GPU [FLOP/s] (printed in TFLOP/s).
    peak_flops : float
        Dense peak that MFU and HFU are a share of [FLOP/s].
    mfu, hfu : float
        (-).
    bubble_fraction : float
        Share of the iteration that the mean rank idles for the schedule (-).
    exposed_s : mapping of str to float
        Communication that the mean rank waits for, by axis [s].
    waterfall : tuple of WaterfallStep
    costs : tuple of CostNote
    warnings : tuple of str
    """

    run: TrainingRun
    execution: Execution
    memory: MemoryProfile
    iteration_s: float
    tokens_per_s: float
    tokens_per_s_per_gpu: float
    model_flop: float
    hardware_flop: float
    flops_per_gpu: float
    peak_flops: float
    mfu: float
    hfu: float
    bubble_fraction: float
    exposed_s: Mapping[str, float]
    waterfall: tuple[WaterfallStep, ...]
    costs: tuple[CostNote, ...]
    warnings: tuple[str, ...] = field(default=())
