"""What an engine found, and what a prediction says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from shardsim.values.bands import ErrorBand
from shardsim.values.num import Num
from shardsim.values.program import Item, Place
from shardsim.values.provenance import Provenance
from shardsim.values.training import TrainingRun

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

WaitedAt = Literal["group", "meeting", "message"]

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
class LaneName:
    """A class of ranks that do the same, as timelines and accounts name it.

    Parameters
    ----------
    stage : int
        Pipeline stage of its ranks.
    ranks : int
        How many ranks it stands for (-).
    name : str
        What sets it apart, such as ``slow node 5``; empty where a stage has one lane.
    column : int
        Pipelines that are alike have one number: messages stay within a column.
    """

    stage: int
    ranks: int
    name: str = ""
    column: int = 0


@dataclass(frozen=True, slots=True)
class LinkUse:
    """How much of a link is in use over one iteration: a step function.

    Parameters
    ----------
    name : str
    seconds : ndarray of float
        When it changes [s], ascending, shape (n,).
    share : ndarray of float
        Share of the link's capacity in use from each of these moments to the next (-), shape (n,).
    """

    name: str
    seconds: NDArray[np.float64]
    share: NDArray[np.float64]


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
    lane : ndarray of int or None
        Index into ``lanes``, shape (tasks,). None where every stage is one lane.
    lanes : tuple of LaneName
        Classes of ranks that do the same; empty where the engine did not say.
    links : tuple of LinkUse
        Links that transfers of several kinds cross; empty where nothing can meet.
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
    lane: NDArray[np.int64] | None = None
    lanes: tuple[LaneName, ...] = ()
    links: tuple[LinkUse, ...] = ()


@dataclass(frozen=True, slots=True)
class Partial:
    """How far an event simulation got that did not finish.

    Parameters
    ----------
    reached_s : float
        Simulated time [s].
    events : int
        Processed (-).
    passes_done, passes : int
        Of all lanes together (-).
    timeline : Timeline or None
        The tasks that have finished.
    """

    reached_s: float
    events: int
    passes_done: int
    passes: int
    timeline: Timeline | None = None

    @property
    def progress(self) -> str:
        """In words."""
        return f"{self.reached_s:.6g} s simulated, {self.passes_done} of {self.passes} passes finished"


@dataclass(frozen=True, slots=True)
class LaneAccount:
    """Where the time of one class of ranks went.

    Parameters
    ----------
    lane : LaneName
    seconds : mapping of str to Num
        By category, as in ``StageAccount`` [s].
    end : float
        When its last task ended, of all iterations [s].
    """

    lane: LaneName
    seconds: Mapping[str, Num]
    end: float


@dataclass(frozen=True, slots=True)
class Wait:
    """How long one class of ranks waited for another.

    Parameters
    ----------
    waiting, late : int
        Lanes.
    at : {"group", "meeting", "message"}
        A collective that began when the last lane of its group came, a meeting of stages that did, or a message that
        arrived when it had been sent.
    seconds : float
        [s].
    """

    waiting: int
    late: int
    at: WaitedAt
    seconds: float


@dataclass(frozen=True, slots=True)
class Execution:
    """What an engine returns.

    Parameters
    ----------
    engine : str
        ``closed``, ``listing`` or ``des``.
    iteration_s : Num
        Makespan, over the iterations [s]; an array when the program held arrays.
    stages : tuple of StageAccount
    events : int or None
        Events processed (-), for the event engine.
    timeline : Timeline or None
    lanes : tuple of LaneAccount
        Classes of ranks that do the same; empty where every stage is one and nobody asked.
    waited : tuple of Wait
        Which lanes waited for which, at messages and meetings.
    ends : tuple of Num
        Of several iterations, when each ended on the last stage to end it [s]; empty for one.
    """

    engine: str
    iteration_s: Num
    stages: tuple[StageAccount, ...]
    events: int | None = None
    timeline: Timeline | None = None
    lanes: tuple[LaneAccount, ...] = ()
    waited: tuple[Wait, ...] = ()
    ends: tuple[Num, ...] = ()


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
    usual_s : float or None
        Iteration time on a machine in which everything is as it should be [s]; None where it is.
    band : ErrorBand or None
        Where the measured time would lie, by validated runs; None where none are known.
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
    usual_s: float | None = None
    band: ErrorBand | None = None
