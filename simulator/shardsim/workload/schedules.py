"""Pipeline schedules as data: for each stage, the order of its passes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from functools import lru_cache
from itertools import chain
from types import MappingProxyType

from shardsim.errors import InputError, Problem
from shardsim.values.program import Pass, PassKind, PipelineSchedule

Order = tuple[Pass, ...]


def gpipe(stages: int, microbatches: int) -> PipelineSchedule:
    """All forward passes, then all backward passes, first in first out.

    Parameters
    ----------
    stages, microbatches : int
        p and m (-).

    Returns
    -------
    PipelineSchedule

    Notes
    -----
    Huang et al. 2019, arXiv 1811.06965 §2.3.
    """
    order = _passes("F", microbatches) + _passes("B", microbatches)
    return PipelineSchedule("gpipe", (order,) * stages, _plain_stages(stages), microbatches)


def one_forward_one_backward(stages: int, microbatches: int) -> PipelineSchedule:
    """1F1B: p - r - 1 forward passes on stage r, then a forward and a backward in turn, then the rest.

    Parameters
    ----------
    stages, microbatches : int
        p and m (-).

    Returns
    -------
    PipelineSchedule

    Notes
    -----
    arXiv 2104.04473 §2.2.1.
    """
    forward, backward = _passes("F", microbatches), _passes("B", microbatches)
    orders = tuple(_warm_up_then_alternate(forward, backward, stages - stage - 1) for stage in range(stages))
    return PipelineSchedule("1f1b", orders, _plain_stages(stages), microbatches)


def interleaved(stages: int, microbatches: int, chunks: int) -> PipelineSchedule:
    """Interleaved 1F1B: each stage holds several chunks and runs micro-batches in groups of p through each.

    Parameters
    ----------
    stages, microbatches, chunks : int
        p, m and v (-). m is a multiple of p.

    Returns
    -------
    PipelineSchedule

    Raises
    ------
    InputError
        Fewer than two stages, or micro-batches that are no multiple of the stages.

    Notes
    -----
    arXiv 2104.04473 §2.2.2; warm-up of 2 (p - r - 1) + (v - 1) p passes on stage r as in github NVIDIA/Megatron-LM,
    megatron/core/pipeline_parallel/schedules.py.
    """
    problems = []
    if stages < 2:
        problems.append(Problem(f"an interleaved schedule on {stages} pipeline stage", "pp", "2 or more, or 1f1b"))
    if microbatches % stages:
        low = microbatches // stages * stages
        near = f"{low} or {low + stages}" if low else str(stages)
        what = (
            f"{microbatches} micro-batches do not divide by {stages} pipeline stages, as the interleaved schedule needs"
        )
        problems.append(Problem(what, "micro-batches a replica", near))
    if problems:
        raise InputError(problems)
    forward = _grouped("F", stages, microbatches, range(chunks))
    backward = _grouped("B", stages, microbatches, range(chunks - 1, -1, -1))
    warm_up = ((stages - stage - 1) * 2 + (chunks - 1) * stages for stage in range(stages))
    orders = tuple(_warm_up_then_alternate(forward, backward, count) for count in warm_up)
    places = tuple((stage, chunk) for chunk in range(chunks) for stage in range(stages))
    return PipelineSchedule("interleaved", orders, places, microbatches)


_PLAIN: MappingProxyType[str, Callable[[int, int], PipelineSchedule]] = MappingProxyType(
    {"gpipe": gpipe, "1f1b": one_forward_one_backward}
)
NAMES = (*_PLAIN, "interleaved")
"""Names of the schedules that :func:`make_schedule` knows."""


@lru_cache(maxsize=64)
def make_schedule(name: str, stages: int, microbatches: int, chunks: int = 1) -> PipelineSchedule:
    """Make a schedule by its name; the same arguments give the same object.

    Parameters
    ----------
    name : {"gpipe", "1f1b", "interleaved"}
    stages, microbatches, chunks : int
        p, m and v (-).

    Returns
    -------
    PipelineSchedule

    Raises
    ------
    InputError
        Unknown name, degrees below 1, several chunks in a schedule that has none, or what the schedule itself refuses.
    """
    problems = [
        Problem(f"{count} is not a number of {what}", where, "1 or more")
        for count, what, where in (
            (stages, "pipeline stages", "pp"),
            (microbatches, "micro-batches", "micro-batches a replica"),
            (chunks, "chunks", "vpp"),
        )
        if count < 1
    ]
    if name not in NAMES:
        close = get_close_matches(name, NAMES, n=1)
        right = f"did you mean {close[0]}?" if close else f"one of {', '.join(NAMES)}"
        problems.append(Problem(f"unknown schedule {name!r}", "schedule", right))
    elif name in _PLAIN and chunks > 1:
        problems.append(Problem(f"{name} holds one chunk a stage, not {chunks}", "vpp", "1, or schedule interleaved"))
    if problems:
        raise InputError(problems)
    return _PLAIN[name](stages, microbatches) if name in _PLAIN else interleaved(stages, microbatches, chunks)


def peak_in_flight(schedule: PipelineSchedule) -> tuple[tuple[int, ...], ...]:
    """Count the micro-batches whose activations a stage holds at its fullest moment.

    Parameters
    ----------
    schedule : PipelineSchedule

    Returns
    -------
    tuple of tuple of int
        For each stage, by chunk (-), at the first moment at which their sum is largest.
    """
    return tuple(_peak(order, schedule.chunks) for order in schedule.orders)


def _peak(order: Order, chunks: int) -> tuple[int, ...]:
    held: Counter[int] = Counter()
    total = fullest = 0
    peak = (0,) * chunks
    for kind, _, chunk in order:
        if kind == "F":
            held[chunk] += 1
            total += 1
            if total > fullest:
                fullest = total
                peak = tuple(held[index] for index in range(chunks))
        elif kind == "B":
            held[chunk] -= 1
            total -= 1
    return peak


def _passes(kind: PassKind, microbatches: int) -> Order:
    return tuple(Pass(kind, microbatch) for microbatch in range(microbatches))


def _grouped(kind: PassKind, stages: int, microbatches: int, chunks: Sequence[int]) -> Order:
    return tuple(
        Pass(kind, microbatch, chunk)
        for start in range(0, microbatches, stages)
        for chunk in chunks
        for microbatch in range(start, start + stages)
    )


def _warm_up_then_alternate(forward: Order, backward: Order, warm_up: int) -> Order:
    pairs = zip(forward[warm_up:], backward, strict=False)
    rest = max(len(forward) - warm_up, 0)
    return forward[:warm_up] + tuple(chain.from_iterable(pairs)) + backward[rest:]


def _plain_stages(stages: int) -> tuple[tuple[int, int], ...]:
    return tuple((stage, 0) for stage in range(stages))
