"""A user's own pipeline schedule: explicit orders, stage by stage, from a YAML file, and back."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from shardsim.errors import InputError, Problem
from shardsim.schema.base import Count, StrictModel, Text
from shardsim.schema.loader import Document, KeyPath, check, load_yaml
from shardsim.values.pipeline import looped, order_text, unsound, v_shaped
from shardsim.values.program import Item, Pair, Pass, PassKind, PipelineSchedule, Place, passes_of

_ONE = r"([FBIW])(\d{1,9})(?:\.(\d{1,9}))?"
_ITEM = re.compile(rf"{_ONE}|\[{_ONE}&{_ONE}\]")
_KIND = re.compile("[FBIW]")
_KINDS: dict[str, PassKind] = {"F": "F", "B": "B", "I": "I", "W": "W"}
_SHOWN = 20

_Place = Annotated[tuple[int, int], Field(description="stage and chunk, counted from 0")]


class ScheduleFile(StrictModel):
    """Orders of a pipeline schedule, as text: ``F0 F1 B0 [F2&B1] I2 W2``, with ``F0.1`` for chunk 1."""

    name: Text | None = Field(default=None, description="what reports call it; the file's name if left out")
    chunks: Count | None = Field(default=None, description="chunks a stage holds; if left out, as chains say, else 1")
    chains: Literal["looped", "v"] | tuple[tuple[_Place, ...], ...] = Field(
        default="looped",
        description="way of a micro-batch: round the stages, down and back up, or places, first layers first",
    )
    stages: tuple[Text | tuple[Text, ...], ...] = Field(
        min_length=1, description="for each stage its passes in order: one text, or a list of texts"
    )


def load_schedule(path: Path) -> PipelineSchedule:
    """Read a user's own schedule and check that it can be run.

    Parameters
    ----------
    path : Path
        YAML file as :class:`ScheduleFile`.

    Returns
    -------
    PipelineSchedule

    Raises
    ------
    InputError
        Every problem with its line: of the file, of how passes are written, or else everything that
        :func:`shardsim.values.pipeline.unsound` finds.
    """
    path = Path(path)
    document = load_yaml(path)
    file = check(document, ScheduleFile)
    problems: list[Problem] = []
    chains, chunks = _chains(file, document, problems)
    orders, unread = [], []
    for stage in range(len(file.stages)):
        before = len(problems)
        orders.append(tuple(_order(stage, file, chunks, document, problems)))
        unread += [stage] if len(problems) > before else []
    numbers = [one.microbatch for order in orders for one in passes_of(order)]
    microbatches = min(max(numbers, default=0) + 1, len(numbers))  # a slip of the pen is no billion micro-batches
    microbatches = max(microbatches, 1) if unread else microbatches  # some stand in what could not be read
    schedule = PipelineSchedule(file.name or path.stem, tuple(orders), chains, microbatches)
    problems += (Problem(found.what, document.where(found.where)) for found in unsound(schedule, unread))
    _refuse(problems)
    return schedule


def schedule_text(schedule: PipelineSchedule) -> str:
    """Write a schedule as a file that :func:`load_schedule` reads.

    Parameters
    ----------
    schedule : PipelineSchedule

    Returns
    -------
    str
        YAML.

    Examples
    --------
    >>> one = PipelineSchedule("mine", ((Pass("F", 0), Pass("B", 0)),), (((0, 0),),), 1)
    >>> print(schedule_text(one), end="")
    name: "mine"
    stages:
      - F0 B0
    """
    lines = [f"name: {json.dumps(schedule.name)}"]
    if schedule.chains == (v_shaped(schedule.stages),):
        lines.append("chains: v")
    elif schedule.chains != (looped(schedule.stages, schedule.chunks),):
        lines.append("chains:")
        lines += (f"  - {json.dumps(places)}" for places in schedule.chains)
    elif schedule.chunks > 1:
        lines.append(f"chunks: {schedule.chunks}")
    lines.append("stages:")
    lines += (f"  - {order_text(order, schedule.chunks)}" for order in schedule.orders)
    return "\n".join(lines) + "\n"


def _refuse(problems: list[Problem]) -> None:
    if len(problems) > _SHOWN:
        problems[_SHOWN:] = [Problem(f"and {len(problems) - _SHOWN} more problems")]
    if problems:
        raise InputError(problems)


def _chains(
    file: ScheduleFile, document: Document, problems: list[Problem]
) -> tuple[tuple[tuple[Place, ...], ...], int]:
    stages = len(file.stages)
    if file.chains == "looped":
        chunks = file.chunks or 1
        if chunks > (most := _most_chunks(file)):  # a slip of the pen is no billion places
            what = f"{chunks} chunks, and no order has passes for more than {most}: each runs F and B"
            raise InputError(Problem(what, document.where(("chunks",)), f"{most} or less"))
        return (looped(stages, chunks),), chunks
    chains = (v_shaped(stages),) if file.chains == "v" else file.chains
    chunks = 1 + max((chunk for places in chains for _, chunk in places), default=0)
    if file.chunks not in (None, chunks):
        what = f"{file.chunks} chunks, but the chains go through {chunks}"
        problems.append(Problem(what, document.where(("chunks",)), f"{chunks}, or leave it out"))
    return chains, chunks


def _most_chunks(file: ScheduleFile) -> int:
    """Chunks for which the longest order has a forward and a backward pass (-)."""
    passes = [len(_KIND.findall(text if isinstance(text, str) else " ".join(text))) for text in file.stages]
    return max(1, max(passes) // 2)


def _order(stage: int, file: ScheduleFile, chunks: int, document: Document, problems: list[Problem]) -> Iterator[Item]:
    """Read one stage's passes; what cannot be read is added to ``problems``."""
    text = file.stages[stage]
    texts: list[tuple[KeyPath, str]] = [(("stages", stage), text)] if isinstance(text, str) else [
        (("stages", stage, index), part) for index, part in enumerate(text)
    ]  # fmt: skip
    for keys, part in texts:
        for word in part.split():
            item = _item(word, chunks)
            if isinstance(item, str):
                problems.append(Problem(f"{word[:40]!r} {item}", document.where(keys)))
            else:
                yield item


def _item(word: str, chunks: int) -> Item | str:
    """Read one word, or say what is wrong with it."""
    found = _ITEM.fullmatch(word)
    if found is None:
        return "is not a pass or a pair of passes; write F0, B0, I0, W0, with .1 for chunk 1, or [F1&B0]"
    parts = [part for part in (found.groups()[at : at + 3] for at in (0, 3, 6)) if part[0]]
    passes = [Pass(_KINDS[kind], int(microbatch), int(chunk or 0)) for kind, microbatch, chunk in parts]
    item = passes[0] if len(passes) == 1 else Pair(*passes)
    if chunks > 1 and not all(chunk for *_, chunk in parts):
        return f"does not say which of {chunks} chunks it runs; for chunk 0 write {order_text((item,), chunks)}"
    return item
