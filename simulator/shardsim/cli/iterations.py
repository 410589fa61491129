"""Flags of several iterations, of loading batches and of saving checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])

_SECTIONS = {
    "loading_time": ("loading", "seconds"),
    "loading_bandwidth": ("loading", "bandwidth"),
    "loading_workers": ("loading", "workers"),
    "checkpoint_every": ("checkpoint", "every"),
    "checkpoint_bandwidth": ("checkpoint", "bandwidth"),
    "checkpoint_rank_bandwidth": ("checkpoint", "rank_bandwidth"),
    "checkpoint_async": ("checkpoint", "asynchronous"),
}


def iteration_options(command: Command) -> Command:
    """Add ``--iterations``, passed as ``iterations``, and the flags that :func:`iteration_keys` collects."""
    for option in reversed(
        (
            click.option(
                "--iterations",
                type=click.IntRange(1),
                default=1,
                show_default=True,
                metavar="N",
                help="Iterations that follow each other.",
            ),
            click.option("--loading-time", metavar="TIME", help="One worker prepares a replica's batch in it."),
            click.option("--loading-bandwidth", metavar="BANDWIDTH", help="Or: what one worker reads 4 B a token at."),
            click.option("--loading-workers", type=click.IntRange(1), metavar="N", help="Batches prepared at once."),
            click.option("--checkpoint-every", type=click.IntRange(1), metavar="N", help="Iterations between saves."),
            click.option("--checkpoint-bandwidth", metavar="BANDWIDTH", help="Of the whole storage."),
            click.option("--checkpoint-rank-bandwidth", metavar="BANDWIDTH", help="What one rank writes at."),
            click.option(
                "--checkpoint-async/--checkpoint-sync",
                default=None,
                help="Train on once hosts have a copy.",
            ),
        )
    ):
        command = option(command)
    return command


def iteration_keys(flags: dict[str, Any]) -> dict[str, Any]:
    """Take the flags of loading and checkpoints out of all flags.

    Parameters
    ----------
    flags : dict
        By parameter name; changed in place.

    Returns
    -------
    dict
        Sections ``loading`` and ``checkpoint`` of a run file, only what was given.
    """
    keys: dict[str, Any] = {}
    for flag, (section, key) in _SECTIONS.items():
        value = flags.pop(flag)
        if value is not None:
            keys.setdefault(section, {})[key] = value
    return keys
