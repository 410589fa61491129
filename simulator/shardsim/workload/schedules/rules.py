"""What each named schedule asks of a pipeline, as data, and how it is made."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from types import MappingProxyType

from shardsim.errors import Problem
from shardsim.values.program import PipelineSchedule
from shardsim.workload.schedules.dualpipe import dualpipe, dualpipev
from shardsim.workload.schedules.interleaved import interleaved
from shardsim.workload.schedules.plain import gpipe, one_forward_one_backward, paired_without_pipeline
from shardsim.workload.schedules.vshape import v_half, v_min, zb_v
from shardsim.workload.schedules.zero_bubble import zb_h1, zb_h2

CountRule = Callable[[int, int, int], Iterator[Problem]]
"""Problems of (stages, micro-batches, group)."""

_COUNT, _GROUP, _PAIRED = "micro-batches a replica", "group", "overlap_experts"


def _any_count(*_: int) -> Iterator[Problem]:
    return iter(())


@dataclass(frozen=True, slots=True)
class Rule:
    """What a schedule asks of a pipeline.

    Parameters
    ----------
    make : callable
        ``(stages, microbatches)`` to the schedule; of the interleaved one ``(stages, microbatches, chunks, group)``.
    chunks : int
        Chunks that a stage holds (-); 0 for any number from 2.
    least_stages : int
        (-).
    even_stages : bool
    splits_backward : bool
        Whether it has input-gradient and weight-gradient passes.
    copies : int
        Copies of the parameters that the ranks of a pipeline hold (-).
    counts : callable
        Problems of ``(stages, micro-batches, group)``, where stages are fit for the schedule.
    paired : callable or None
        As ``make``, forward and backward passes of the steady state running as pairs; None where they cannot.
    paired_stages : int
        The most stages on which they can (-); 0 for any number.
    """

    make: Callable[..., PipelineSchedule]
    chunks: int = 1
    least_stages: int = 1
    even_stages: bool = False
    splits_backward: bool = False
    copies: int = 1
    counts: CountRule = _any_count
    paired: Callable[..., PipelineSchedule] | None = None
    paired_stages: int = 0


def _groups(stages: int, microbatches: int, group: int) -> Iterator[Problem]:
    """Megatron's: p <= N <= m, and m mod N is 0 or at least p (megatron/core/pipeline_parallel/schedules.py)."""
    if microbatches < stages:
        what = f"{microbatches} micro-batches do not fill {stages} pipeline stages, as the interleaved schedule needs"
        yield Problem(what, _COUNT, f"{stages} or more")
    elif group and not stages <= group <= microbatches:
        what = f"groups of {group} micro-batches on {stages} pipeline stages with {microbatches} micro-batches"
        yield Problem(what, _GROUP, f"{stages} (depth first) to {microbatches} (breadth first)")
    elif 0 < microbatches % (group or stages) < stages:
        yield _remainder(stages, microbatches, group)


def _remainder(stages: int, microbatches: int, group: int) -> Problem:
    if not group:
        low = microbatches // stages * stages
        what = f"{microbatches} micro-batches do not divide by {stages} pipeline stages"
        fitting = next(n for n in range(stages, microbatches + 1) if not 0 < microbatches % n < stages)
        what += ", as the interleaved schedule needs"
        return Problem(what, _COUNT, f"{low} or {low + stages}; or a group of {fitting}")
    rest = microbatches % group
    low, high = microbatches - rest, microbatches - rest + stages
    what = f"{microbatches} micro-batches in groups of {group} leave {rest}, fewer than {stages} pipeline stages"
    return Problem(what, _COUNT, f"{low} or {high}")


def _twice_the_stages(stages: int, microbatches: int, *_: int) -> Iterator[Problem]:
    if microbatches < 2 * stages:
        what = f"{microbatches} micro-batches on {stages} pipeline stages"
        yield Problem(what, _COUNT, f"{2 * stages} or more, twice the stages")


def _even_and_twice_the_stages(stages: int, microbatches: int, *_: int) -> Iterator[Problem]:
    yield from _twice_the_stages(stages, microbatches)
    if microbatches % 2:
        what = f"{microbatches} micro-batches do not split into two directions"
        yield Problem(what, _COUNT, f"{microbatches - 1} or {microbatches + 1}" if microbatches > 1 else "2")


RULES: Mapping[str, Rule] = MappingProxyType({
    "gpipe": Rule(gpipe),
    "1f1b": Rule(one_forward_one_backward, paired=paired_without_pipeline, paired_stages=1),
    "interleaved": Rule(interleaved, chunks=0, least_stages=2, counts=_groups,
                        paired=partial(interleaved, paired=True)),
    "zb-h1": Rule(zb_h1, splits_backward=True),
    "zb-h2": Rule(zb_h2, splits_backward=True),
    "zb-v": Rule(zb_v, chunks=2, splits_backward=True),
    "v-half": Rule(v_half, chunks=2, splits_backward=True),
    "v-min": Rule(v_min, chunks=2, splits_backward=True),
    "dualpipe": Rule(dualpipe, chunks=2, least_stages=2, even_stages=True, splits_backward=True, copies=2,
                     counts=_even_and_twice_the_stages, paired=dualpipe),
    "dualpipev": Rule(dualpipev, chunks=2, splits_backward=True, counts=_twice_the_stages, paired=dualpipev),
})  # fmt: skip
"""Each schedule that has a name."""

NAMES = tuple(RULES)
"""Names of the schedules that :func:`shardsim.workload.schedules.make_schedule` knows."""


def schedule_problems(
    name: str, stages: int, microbatches: int, chunks: int = 1, group: int = 0, *, paired: bool = False
) -> list[Problem]:
    """List everything that keeps a named schedule from being made.

    Parameters
    ----------
    name : str
    stages, microbatches, chunks, group : int
        p, m, v and N (-); a group of 0 is p of them.
    paired : bool
        Whether forward and backward passes of the steady state are to run as pairs.

    Returns
    -------
    list of Problem
        Their ``where`` is ``schedule``, ``pp``, ``vpp``, ``group``, ``overlap_experts`` or ``micro-batches a
        replica``.

    Examples
    --------
    >>> [str(problem) for problem in schedule_problems("dualpipe", 3, 5, 2)]
    ['pp: dualpipe on 3 pipeline stages (2 or 4)']
    """
    problems = [
        Problem(f"{count} is not a number of {what}", where, "1 or more")
        for count, what, where in (
            (stages, "pipeline stages", "pp"), (microbatches, "micro-batches", _COUNT), (chunks, "chunks", "vpp"),
        )
        if count < 1
    ]  # fmt: skip
    if name not in RULES:
        close = get_close_matches(name, NAMES, n=1)
        right = f"did you mean {close[0]}?" if close else f"one of {', '.join(NAMES)}"
        return [*problems, Problem(f"unknown schedule {name!r}", "schedule", right)]
    if problems:
        return problems
    rule = RULES[name]
    problems = [*_shape_problems(name, rule, stages, chunks)]
    if group and name != "interleaved":
        right = "0, or schedule interleaved" if stages > 1 else "0"
        problems.append(Problem(f"{name} runs no groups of micro-batches", _GROUP, right))
    if paired and (rule.paired is None or 0 < rule.paired_stages < stages):
        where = f" on {stages} pipeline stages" if stages > 1 else ""
        ways = "schedule interleaved, dualpipe or dualpipev" if stages > 1 else "schedule 1f1b or dualpipev"
        problems.append(Problem(f"{name}{where} runs no passes as pairs", _PAIRED, f"no, or {ways}"))
    if not any(problem.where == "pp" for problem in problems):
        problems.extend(rule.counts(stages, microbatches, group))
    return problems


def _shape_problems(name: str, rule: Rule, stages: int, chunks: int) -> Iterator[Problem]:
    if stages < rule.least_stages:
        plain = "1f1b with vpp 1" if rule.chunks == 0 else "1f1b"
        yield Problem(f"{name} on {stages} pipeline stage", "pp", f"{rule.least_stages} or more, or {plain}")
    elif rule.even_stages and stages % 2:
        yield Problem(f"{name} on {stages} pipeline stages", "pp", f"{stages - 1} or {stages + 1}")
    if rule.chunks == 0 and chunks == 1:
        yield Problem(f"{name} needs several chunks a stage", "vpp", "2 or more, or schedule 1f1b")
    elif rule.chunks and chunks != rule.chunks:
        held = "one chunk" if rule.chunks == 1 else f"{rule.chunks} chunks"
        other = ", or schedule interleaved" if rule.chunks == 1 and stages > 1 else ""
        yield Problem(f"{name} holds {held} a stage, not {chunks}", "vpp", f"{rule.chunks}{other}")
