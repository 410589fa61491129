"""Which layers, and which ends of the model, each chunk of each pipeline stage holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shardsim.errors import InputError, Problem
from shardsim.values.training import Model


@dataclass(frozen=True, slots=True)
class ChunkContent:
    """What one chunk of one stage holds.

    Parameters
    ----------
    layers : int
        (-).
    embedding, head : bool
        Whether it begins with the embedding, and ends with the final norm and LM head.
    """

    layers: int
    embedding: bool
    head: bool


def chunk_contents(model: Model, virtual_stages: Sequence[tuple[int, int]]) -> Mapping[tuple[int, int], ChunkContent]:
    """Split the layers evenly over virtual stages.

    Parameters
    ----------
    model : Model
    virtual_stages : sequence of (int, int)
        ``(stage, chunk)`` of each virtual stage, first layers first.

    Returns
    -------
    mapping of (int, int) to ChunkContent
        By ``(stage, chunk)``.

    Raises
    ------
    InputError
        The layers do not divide.
    """
    count = len(virtual_stages)
    layers, rest = divmod(model.layers, count)
    if rest:
        divisors = ", ".join(str(n) for n in range(1, model.layers + 1) if model.layers % n == 0)
        raise InputError(
            Problem(
                f"{model.layers} layers do not divide into {count} virtual stages", "pp x vpp", f"one of {divisors}"
            )
        )
    return {
        place: ChunkContent(layers, embedding=index == 0, head=index == count - 1)
        for index, place in enumerate(virtual_stages)
    }
