"""One layout as work on streams: pass templates, the order in which each stage runs them, and their messages.

The order of issue is the order in which the host launches work. A *blocking* task holds up everything issued after it
on its stage. A task that does not block is queued on its own stream: it starts when the stage has reached its place
in the order and its stream is free. Later tasks may wait for it, or drain its stream.

Issuing takes time of its own: a stage has a clock of its host besides that of its device, and no task starts before
the host has issued it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Literal, NamedTuple, TypeAlias

from shardsim.values.num import Num
from shardsim.values.transfer import Transfer

PassKind = Literal["F", "B", "I", "W"]
"""Forward; whole backward; input gradient alone; weight gradient alone, some time after it."""

Place: TypeAlias = tuple[int, int]
"""Stage and chunk."""


class Pass(NamedTuple):
    """One forward, backward, input-gradient or weight-gradient pass of one micro-batch through one chunk."""

    kind: PassKind
    microbatch: int
    chunk: int = 0


class Pair(NamedTuple):
    """A forward and a whole backward pass, of different micro-batches, that run as one.

    Each computes while the other communicates. It starts when the inputs of both are there, and sends the outputs of
    both when it ends.
    """

    forward: Pass
    backward: Pass


Item: TypeAlias = Pass | Pair


def passes_of(order: Iterable[Item]) -> Iterator[Pass]:
    """Every pass of an order; of a pair, the forward pass first."""
    for item in order:
        if isinstance(item, Pair):
            yield from item
        else:
            yield item


@dataclass(frozen=True, slots=True)
class PipelineSchedule:
    """A pipeline schedule as data.

    Parameters
    ----------
    name : str
    orders : tuple of tuple of (Pass or Pair)
        For each stage, what it runs, in order.
    chains : tuple of tuple of (int, int)
        The ways of a micro-batch through the model: for each, ``(stage, chunk)`` of its virtual stages, first layers
        first. Usually there is one; where micro-batches enter at both ends there are two, each over a copy of the
        parameters. Every (stage, chunk) belongs to one chain, so the chunk of a pass tells its chain.
    microbatches : int
        Of all chains together (-).
    """

    name: str
    orders: tuple[tuple[Item, ...], ...]
    chains: tuple[tuple[Place, ...], ...]
    microbatches: int

    @property
    def stages(self) -> int:
        """Pipeline ranks (-)."""
        return len(self.orders)

    @property
    def places(self) -> tuple[Place, ...]:
        """Every (stage, chunk), chain by chain, first layers first."""
        return tuple(chain.from_iterable(self.chains))

    @property
    def chunks(self) -> int:
        """Chunks a rank holds (-)."""
        return len(self.places) // len(self.orders)

    @property
    def copies(self) -> int:
        """Copies of the parameters that the ranks of one pipeline hold (-)."""
        return len(self.chains)


@dataclass(frozen=True, slots=True)
class Task:
    """One kernel or one transfer on one stream.

    Parameters
    ----------
    name : str
    stream : str
        ``compute``, ``tp``, ``dp``, ``pp`` ...
    category : str
        What its time counts as in reports: ``gemm``, ``attention``, ``memory-bound``, ``tp``, ``dp``, ``recompute``,
        ``optimizer`` ...
    seconds : Num
        Uncontended duration [s]: a scalar, or one value for each of many layouts with the same pipeline shape.
    flop : Num
        Floating point operations executed (-).
    transfer : Transfer or None
        For communication, what it does to the links.
    blocking : bool
        Whether tasks issued after it wait for its end.
    waits : tuple of int
        Indices of earlier non-blocking tasks of the same block that must have ended before it starts.
    drains : tuple of str
        Streams of this stage that must be empty before it starts.
    rendezvous : str
        Name of a meeting of several stages: it starts when all that take part have arrived. Empty for none.
    parts : mapping of str to Num
        Of a coalesced task, its seconds by category [s]; empty when all of it is ``category``.
    host : Num
        Time that the host takes to issue it [s].
    lag : Num or None
        How long after the host turns to it a task starts at the earliest, then to run without a break [s]; None for
        ``host``. Less than that for a coalesced task, whose first part runs while the host issues the rest.
    synchronises : bool
        Whether the host waits for its end before it issues anything else.
    slows : bool
        Of a task that does not block, whether it takes multiprocessors from the work beside it; copy engines take none.
    term : str
        Constant of the stack profile that its seconds are in proportion to; empty for none.
    moves : tuple of str or None
        Of communication inside a stage, the axis of its group and what it does there: the kind of a collective,
        ``dispatch`` or ``combine``.
    """

    name: str
    stream: str
    category: str
    seconds: Num
    flop: Num = 0.0
    transfer: Transfer | None = None
    blocking: bool = True
    waits: tuple[int, ...] = ()
    drains: tuple[str, ...] = ()
    rendezvous: str = ""
    parts: Mapping[str, Num] = field(default_factory=dict)
    host: Num = 0.0
    lag: Num | None = None
    synchronises: bool = False
    slows: bool = True
    term: str = ""
    moves: tuple[str, str] | None = None

    @property
    def earliest(self) -> Num:
        """How long after the host turns to it a task starts at the earliest [s]."""
        return self.host if self.lag is None else self.lag


@dataclass(frozen=True, slots=True)
class Block:
    """The tasks of one pass, in order of issue.

    Parameters
    ----------
    name : str
    tasks : tuple of Task
    """

    name: str
    tasks: tuple[Task, ...]


@dataclass(frozen=True, slots=True)
class Program:
    """One iteration of one layout, data-parallel replicas folded into one.

    With every block coalesced it is the price list that the closed form reads: seconds by stage, pass and chunk, as
    arrays over layouts that share the pipeline's shape (stages, chunks, micro-batches).

    Parameters
    ----------
    schedule : PipelineSchedule
    blocks : mapping of (int, str, int) to Block
        By ``(stage, pass kind, chunk)``.
    last_blocks : mapping of (int, str, int) to Block
        Where it differs: the block of the last pass of that kind that a stage and chunk runs, such as the backward
        pass that releases gradients to their reduction.
    first_blocks : mapping of (int, str, int) to Block
        Where it differs: the block of the first pass of that kind that a stage and chunk runs, such as the forward
        pass that needs parameters as they arrive. A pass that is both the first and the last takes the last's block.
    pairs : mapping of (int, int, int) to Block
        By ``(stage, chunk of the forward pass, chunk of the backward pass)``: what a pair runs.
    epilogues : tuple of Block
        For each stage, what follows its last pass: gradient reduction, optimizer.
    messages : mapping of (int, str, int) to Transfer
        By ``(stage, pass kind, chunk)`` of the *sender*: the message to the next pass of the same micro-batch on
        another stage. Sending holds up nobody; the receiver waits.
    multiplicity : int
        Ranks that each stage stands for (-): TP x CP x DP.
    rendezvous_members : mapping of str to tuple of int
        Stages that take part in each meeting.
    overlap_slowdown : Num
        Share of its rate that blocking work of a stage loses while tasks are queued or running on any of the stage's
        side streams (-), at least 0 and below 1. What does not block is not slowed.
    synchronous_messages : bool
        Whether the host waits for the device wherever a stage receives or sends a message.
    prologues : tuple of Block
        For each stage, what it begins an iteration with, before any message arrives: the first gather of parameters.
        Empty for nothing on any stage.
    """

    schedule: PipelineSchedule
    blocks: Mapping[tuple[int, str, int], Block]
    last_blocks: Mapping[tuple[int, str, int], Block]
    epilogues: tuple[Block, ...]
    messages: Mapping[tuple[int, str, int], Transfer]
    multiplicity: int
    rendezvous_members: Mapping[str, tuple[int, ...]]
    overlap_slowdown: Num = 0.0
    synchronous_messages: bool = False
    first_blocks: Mapping[tuple[int, str, int], Block] = field(default_factory=dict)
    pairs: Mapping[tuple[int, int, int], Block] = field(default_factory=dict)
    prologues: tuple[Block, ...] = ()
