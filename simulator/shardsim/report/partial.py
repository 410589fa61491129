"""How far a simulation got that did not finish."""

from __future__ import annotations

from typing import Any

from shardsim.units import format_time
from shardsim.values.results import Partial


def partial_record(partial: Partial, why: str) -> dict[str, Any]:
    """Put a simulation that did not finish into a record.

    Parameters
    ----------
    partial : Partial
    why : str
        What ended it.

    Returns
    -------
    dict
    """
    return {
        "partial": True,
        "why": why,
        "simulated_s": partial.reached_s,
        "events": partial.events,
        "passes_done": partial.passes_done,
        "passes": partial.passes,
    }


def partial_text(partial: Partial, why: str) -> str:
    """Write the same for people.

    Parameters
    ----------
    partial, why
        See :func:`partial_record`.

    Returns
    -------
    str
    """
    done = f"{partial.passes_done:,} of {partial.passes:,} passes in {partial.events:,} events"
    return f"partial: {why}. Simulated {format_time(partial.reached_s)} of the iteration: {done}"
