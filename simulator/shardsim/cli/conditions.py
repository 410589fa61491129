"""Flags of what is not as it should be on a machine, and of how the event engine runs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import click

from shardsim.errors import InputError, Problem

Command = TypeVar("Command", bound=Callable[..., Any])

_MAPPINGS = {
    "slow_node": ("slow_nodes", "NODE=TIMES", "Computation takes so many times as long on a node."),
    "slow_gpu": ("slow_gpus", "GPU=TIMES", "Computation takes so many times as long on a GPU."),
    "slow_host": ("slow_hosts", "NODE=TIMES", "The host of a node launches so many times slower."),
    "slow_nic": ("slow_nics", "NODE/NIC=SHARE", "What is left of an adapter's bandwidth."),
    "slow_nvlink": ("slow_nvlinks", "GPU=SHARE", "What is left of a GPU's NVLink bandwidth."),
}
_LISTS = {
    "dead_nic": ("dead_nics", "NODE/NIC", "An adapter that is dead: the next one of its node takes over."),
    "swap_ranks": ("swap_ranks", "RANK,RANK", "Two ranks that sit in each other's places."),
}
_NUMBERS = ("speed_spread", "jitter", "seed", "ecmp_imbalance", "flow_limit")


def condition_options(command: Command) -> Command:
    """Add the flags of conditions; collect them with :func:`condition_keys`."""
    for option in reversed(_options()):
        command = option(command)
    return command


def _options() -> list[Callable[[Command], Command]]:
    several = [
        click.option(f"--{name.replace('_', '-')}", name, multiple=True, metavar=metavar, help=f"{text} Repeatable.")
        for name, (_, metavar, text) in (_MAPPINGS | _LISTS).items()
    ]
    return [
        *several,
        click.option("--speed-spread", type=float, metavar="X", help="Standard deviation of the devices' speeds."),
        click.option("--jitter", type=float, metavar="X", help="Scale of random delays of passes."),
        click.option("--seed", type=int, metavar="N", help="Seed of both."),
        click.option("--ecmp-imbalance", type=float, metavar="X", help="The fullest up-link's load over the mean."),
        click.option("--flow-limit", metavar="BANDWIDTH", help="What one transfer gets through an adapter."),
    ]


def condition_keys(flags: dict[str, Any]) -> dict[str, Any]:
    """Take the flags of conditions out of all flags.

    Parameters
    ----------
    flags : dict
        By parameter name; changed in place.

    Returns
    -------
    dict
        Keys of the section ``conditions``, only what was given.

    Raises
    ------
    InputError
        A flag that is no ``key=value``, or one key given twice.
    """
    from shardsim.schema.loader import parse_scalar

    keys: dict[str, Any] = {}
    problems: list[Problem] = []
    for name, (section, metavar, _) in _MAPPINGS.items():
        given: dict[str, Any] = {}
        for text in flags.pop(name):
            key, equals, value = text.partition("=")
            flag = f"--{name.replace('_', '-')}"
            if not equals or not key.strip() or not value.strip():
                problems.append(Problem(f"{text!r} is not {metavar}", flag, f"write it like {flag} {_example(name)}"))
            elif key.strip() in given:
                problems.append(Problem(f"{key.strip()} is given twice", flag, "keep one"))
            else:
                given[key.strip()] = parse_scalar(value.strip())
        if given:
            keys[section] = given
    for name, (section, _, _) in _LISTS.items():
        listed = list(flags.pop(name))
        if listed:
            keys[section] = listed
    for name in _NUMBERS:
        value = flags.pop(name)
        if value is not None:
            keys[name] = value
    if problems:
        raise InputError(problems)
    return keys


def _example(name: str) -> str:
    return {"slow_nic": "2/0=0.5", "slow_nvlink": "17=0.5"}.get(name, "5=1.1")


def _finite(_context: click.Context, _option: click.Parameter, value: float | None) -> float | None:
    if value is not None and not math.isfinite(value):
        raise click.BadParameter(f"{value:g} is no bound; write seconds")
    return value


def engine_options(command: Command) -> Command:
    """Add the flags of the event engine; collect them with :func:`event_options`."""
    for option in reversed(
        (
            click.option("--unfold", is_flag=True, help="Simulate every rank for itself, for proof and teaching."),
            click.option("--contention/--no-contention", default=True, help="Whether transfers share links."),
            click.option("--max-events", type=click.IntRange(1), metavar="N", help="Give up after so many events."),
            click.option(
                "--max-seconds",
                type=click.FloatRange(0, min_open=True),
                callback=_finite,
                metavar="S",
                help="Give up after so much simulated time [s].",
            ),
        )
    ):
        command = option(command)
    return command
