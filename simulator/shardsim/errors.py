"""Errors that reach a user: each says what is wrong, where, and what would be right."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with an input.

    Parameters
    ----------
    what : str
        What is wrong, with the offending value.
    where : str
        File, line, key or option it was read from; empty when the whole input is meant.
    right : str
        What would be right: the legal values, or near names.
    """

    what: str
    where: str = ""
    right: str = ""

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        remedy = f" ({self.right})" if self.right else ""
        return f"{place}{self.what}{remedy}"


class ShardsimError(Exception):
    """Base of every error that shardsim raises on purpose."""


class InputError(ShardsimError):
    """Bad input: all problems found, together. The command line exits with status 2.

    Parameters
    ----------
    problems : iterable of Problem or str
        Every problem, in the order found; at least one.
    """

    def __init__(self, problems: Iterable[Problem | str] | Problem | str) -> None:
        if isinstance(problems, Problem | str):
            problems = [problems]
        self.problems: tuple[Problem, ...] = tuple(p if isinstance(p, Problem) else Problem(p) for p in problems)
        super().__init__("\n".join(str(p) for p in self.problems))


class ProgramError(ShardsimError):
    """A program that can never finish: a cyclic dependency or a message nobody sends."""
