"""How tokens spread over experts, as a user gives it: evenly, by a power law, or as it was measured."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, model_validator

from shardsim.errors import InputError, Problem
from shardsim.schema.base import StrictModel, Text
from shardsim.schema.catalog import shorten
from shardsim.schema.loader import read_text

Load = Annotated[float, Field(ge=0)]


class RoutingRequest(StrictModel):
    """Load of experts: ``balanced``, or one of these keys."""

    # Not strict: what comes before the check has made lists of JSON's, which a strict tuple is not.
    loads: Annotated[tuple[Load, ...], Field(strict=False, min_length=1)] | None = Field(
        default=None, description="tokens that each expert gets, in any unit, in the order of experts"
    )
    histogram: Text | None = Field(
        default=None, description="CSV file of them: one number a line, or the number of an expert and its tokens"
    )
    power_law: float | None = Field(
        default=None, ge=0, description="exponent: the expert of rank r gets tokens in proportion to r^-exponent"
    )

    @model_validator(mode="before")
    @classmethod
    def _word(cls, value: Any) -> Any:
        if value == "balanced":
            return {}
        if isinstance(value, str):
            right = "write balanced, loads, histogram or power_law"
            raise ValueError(f"{shorten(value)} is no routing of tokens; {right}")
        return value

    @model_validator(mode="after")
    def _one_way(self) -> RoutingRequest:
        given = sorted(self.model_fields_set)
        empty = [name for name in given if getattr(self, name) is None]
        if empty:
            raise ValueError(f"{' and '.join(empty)} without a value")
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} say the same thing; keep one")
        if self.loads is not None and not sum(self.loads):
            raise ValueError("no expert gets a token")
        return self


def read_histogram(path: Path) -> tuple[float, ...]:
    """Read how many tokens each expert got.

    Parameters
    ----------
    path : Path
        A CSV file, with or without a line of names: one number a line, in the order of experts, or two: the number of
        the expert, counted from 0, and its tokens.

    Returns
    -------
    tuple of float
        In the order of experts.

    Raises
    ------
    InputError
        A file that cannot be read, or every line that is no load.
    """
    lines = [(number, cells) for number, cells in enumerate(csv.reader(read_text(path).splitlines()), 1) if any(cells)]
    if _number(lines[0][1][-1]) is None:  # names of columns
        lines = lines[1:]
    problems = list(_problems(str(path), lines))
    if problems:
        raise InputError(problems)
    if all(len(cells) == 1 for _, cells in lines):
        return tuple(float(cells[0]) for _, cells in lines)
    return tuple(load for _, load in sorted((int(cells[0]), float(cells[1])) for _, cells in lines))


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _problems(file: str, lines: list[tuple[int, list[str]]]) -> Iterator[Problem]:
    widths = {len(cells) for _, cells in lines}
    if not lines:
        yield Problem("has no line with a load", file, "one number of tokens a line")
    elif len(widths) > 1 or max(widths) > 2:
        yield Problem("has lines of different or too many cells", file, "one number a line, or expert,tokens")
        return
    wrong = False
    for number, cells in lines:
        load = _number(cells[-1])
        if load is None or not 0 <= load < float("inf"):
            wrong = True
            yield Problem(f"{shorten(cells[-1])} is no number of tokens", f"{file}:{number}", "0 or more")
        if len(cells) > 1 and not cells[0].strip().isdecimal():
            wrong = True
            yield Problem(f"{shorten(cells[0])} is no number of an expert", f"{file}:{number}", "counted from 0")
    if wrong or not lines:
        return
    if widths == {2} and sorted(int(cells[0]) for _, cells in lines) != list(range(len(lines))):
        yield Problem("does not have each expert once", file, f"0 to {len(lines) - 1}")
    if not sum(float(cells[-1]) for _, cells in lines):
        yield Problem("no expert gets a token", file)
