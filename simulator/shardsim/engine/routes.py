"""How micro-batches go from stage to stage: what a pass needs before it, and to whom it sends."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeAlias

from shardsim.engine.steps import Message
from shardsim.values.num import Num
from shardsim.values.program import PassKind, PipelineSchedule, Place, Program, passes_of

Messages: TypeAlias = Mapping[int, tuple[Message, ...]]
"""Messages of the passes of one kind and chunk of a stage, by micro-batch: one each."""


class Route(NamedTuple):
    """What every pass of one kind and chunk of a stage needs and sends.

    Parameters
    ----------
    kind : str
        Of its messages: one of input gradients alone receives and sends what a whole backward pass does, kind B.
    after : (str, int) or None
        Kind, of messages or W's own, and chunk of the pass of the same stage and micro-batch that must come before it.
    needs, sends : Messages or None
        The messages that it waits for, and those that it sends when it ends; None for none.
    """

    kind: PassKind
    after: tuple[PassKind, int] | None = None
    needs: Messages | None = None
    sends: Messages | None = None


class Routes:
    """The ways through the chains of a program.

    Parameters
    ----------
    program : Program
    """

    def __init__(self, program: Program) -> None:
        self.schedule: PipelineSchedule = program.schedule
        numbers = {part.microbatch for order in self.schedule.orders for part in passes_of(order)}
        self.messages = {key: _messages(key, transfer.seconds, numbers) for key, transfer in program.messages.items()}
        self.place = {
            virtual: (chain, position) for chain in self.schedule.chains for position, virtual in enumerate(chain)
        }
        self.problems: list[str] = []
        if len(self.place) < len(self.schedule.places):
            self.problems.append("the chains of the schedule have a chunk of a stage in common, or have one twice")

    def find(self, stage: int, kind: PassKind, chunk: int) -> Route:
        """Find what the passes of one kind and chunk of a stage need and send.

        Parameters
        ----------
        stage : int
        kind : {"F", "B", "I", "W"}
        chunk : int

        Returns
        -------
        Route
            Where they can never run, it says so in ``problems``.
        """
        if (stage, chunk) not in self.place:
            self.problems.append(f"stage {stage} runs {kind} passes of chunk {chunk}, which it does not hold")
            return Route(kind)
        if kind == "W":
            return Route(kind, after=("I", chunk))
        chain, position = self.place[stage, chunk]
        routed: PassKind = "F" if kind == "F" else "B"
        step = 1 if kind == "F" else -1
        source, target = _at(chain, position - step), _at(chain, position + step)
        crosses = target is not None and target[0] != stage
        sends = self.messages.get((stage, routed, chunk)) if crosses else None
        if source is None:
            # The first forward pass needs nothing; the first backward pass, its own forward pass.
            return Route(routed, None if kind == "F" else ("F", chunk), None, sends)
        if source[0] == stage:
            return Route(routed, (routed, source[1]), None, sends)
        sender = (source[0], routed, source[1])
        if sender not in self.messages:
            self.problems.append(
                f"stage {stage} is stuck in its {kind} passes of chunk {chunk}: nobody sends them a message "
                f"from chunk {source[1]} of stage {source[0]} (the program has no messages[{sender}])"
            )
        return Route(routed, None, self.messages.get(sender), sends)


def _messages(sender: tuple[int, str, int], seconds: Num, microbatches: Iterable[int]) -> Messages:
    stage, kind, chunk = sender
    return {microbatch: (((stage, kind, microbatch, chunk), seconds),) for microbatch in microbatches}


def _at(chain: tuple[Place, ...], position: int) -> Place | None:
    return chain[position] if 0 <= position < len(chain) else None
