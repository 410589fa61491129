"""Which layers, and which ends of the model, each chunk of each pipeline stage holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shardsim.errors import InputError, Problem
from shardsim.values.program import PipelineSchedule, Place
from shardsim.values.training import Layout, Model


@dataclass(frozen=True, slots=True)
class ChunkContent:
    """What one chunk of one stage holds.

    Parameters
    ----------
    layers : int
        (-).
    embedding, head : bool
        Whether it begins with the embedding, and ends with the final norm and LM head.
    first : int
        Number of its first layer, counted from 0 in the model.
    mtp : int
        Modules of multi-token prediction behind its layers (-).
    """

    layers: int
    embedding: bool
    head: bool
    first: int = 0
    mtp: int = 0


def chunk_contents(model: Model, layout: Layout, schedule: PipelineSchedule) -> Mapping[Place, ChunkContent]:
    """Split the layers over virtual stages: as the layout says, or evenly.

    Parameters
    ----------
    model : Model
    layout : Layout
        Its ``split`` and ``mtp_stage``.
    schedule : PipelineSchedule
        Every one of its chains holds the whole model.

    Returns
    -------
    mapping of (int, int) to ChunkContent
        By ``(stage, chunk)``.

    Raises
    ------
    InputError
        The layers do not divide, or the layout splits another number of them.
    """
    contents: dict[Place, ChunkContent] = {}
    for places in schedule.chains:
        first, last = 0, len(places) - 1
        predicts = last if layout.mtp_stage is None else layout.mtp_stage
        for index, (place, layers) in enumerate(zip(places, _split(model, layout, len(places)), strict=True)):
            further = model.mtp if index == predicts else 0
            contents[place] = ChunkContent(layers, index == 0, index == last, first, further)
            first += layers
    return contents


def _split(model: Model, layout: Layout, count: int) -> tuple[int, ...]:
    if layout.split:
        if len(layout.split) != count or sum(layout.split) != model.layers:
            what = f"a split of {sum(layout.split)} layers over {len(layout.split)} virtual stages"
            raise InputError(Problem(what, "layout", f"{model.layers} layers over {count} virtual stages"))
        return layout.split
    layers, rest = divmod(model.layers, count)
    if rest:
        divisors = ", ".join(str(n) for n in range(1, model.layers + 1) if model.layers % n == 0)
        raise InputError(
            Problem(
                f"{model.layers} layers do not divide into {count} virtual stages", "pp x vpp", f"one of {divisors}"
            )
        )
    return (layers,) * count
