"""Click groups that import a command only when it runs, and that suggest near names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any, NamedTuple

import click


class LazyCommand(NamedTuple):
    """Where a command lives, and the line that the overview shows without importing it."""

    target: str
    """``module:attribute``."""
    summary: str


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Suggest near names.

    Parameters
    ----------
    name : str
        What the user wrote.
    known : iterable of str
        What there is.

    Returns
    -------
    str
        ``did you mean X or Y?``, or else ``one of X, Y, Z``.

    Examples
    --------
    >>> did_you_mean("simulte", ["scale", "simulate"])
    'did you mean simulate?'
    """
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.6)
    return f"did you mean {' or '.join(near)}?" if near else f"one of {', '.join(names)}"


class NearNameGroup(click.Group):
    """A group that answers an unknown command with the near ones."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or say which names come near.

        Raises
        ------
        click.UsageError
            No such command.
        """
        name = args[0]
        if not name.startswith("-") and self.get_command(ctx, name) is None:
            ctx.fail(f"no such command: {name} ({did_you_mean(name, self.list_commands(ctx))})")
        return super().resolve_command(ctx, args)


class LazyGroup(NearNameGroup):
    """A group whose commands are named in a table and imported one at a time.

    Parameters
    ----------
    lazy : mapping of str to LazyCommand
        By command name.
    """

    def __init__(self, *args: Any, lazy: Mapping[str, LazyCommand], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All command names, in the order of the table."""
        return [*self.lazy, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command by name; None when there is none."""
        entry = self.lazy.get(cmd_name)
        if entry is None:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = entry.target.partition(":")
        command = getattr(import_module(module), attribute)
        if not isinstance(command, click.Command):
            raise TypeError(f"{entry.target} is not a click command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002  # click's signature
        """Write the overview from the table alone: ``--help`` must import no command."""
        rows = [(name, entry.summary) for name, entry in self.lazy.items()]
        with formatter.section("Commands"):
            formatter.write_dl(rows)
