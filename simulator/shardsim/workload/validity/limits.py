"""What holds for any layout here, whatever the framework: counts, orders, schedules, and how many passes are walked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from shardsim.errors import Problem
from shardsim.values.num import Num
from shardsim.values.rules import Fact
from shardsim.values.training import Batch, Framework, Layout, Model
from shardsim.workload.schedules import schedule_problems

MOST_PASSES = 1_000_000
"""Forward and backward passes of one iteration, over all stages and chunks, that are simulated (-)."""


def counts(layout: Layout, batch: Batch, gpus: int) -> Iterator[Problem]:
    """Refuse what is no count: nothing else can be said of it."""
    named: tuple[tuple[str, Num], ...] = (
        ("layout.tp", layout.tp),
        ("layout.pp", layout.pp),
        ("layout.cp", layout.cp),
        ("layout.ep", layout.ep),
        ("layout.etp", layout.etp),
        ("layout.vpp", layout.vpp),
        ("batch.global", batch.global_batch),
        ("batch.micro", batch.micro_batch),
        ("batch.seq", batch.seq_len),
        ("gpus", gpus),
    )
    for where, value in named:
        if not (value >= 1 and value == int(value)):
            yield Problem(f"{value} is not a count", where, "a whole number, 1 or more")


def axes(layout: Layout) -> Iterator[Problem]:
    """Each axis stands once in the rank order."""
    named = [axis for axis in layout.order if axis != "ep"]
    if sorted(named) != ["cp", "dp", "pp", "tp"] or layout.order.count("ep") > 1:
        what = f"the rank order {', '.join(layout.order)} does not name each axis once"
        yield Problem(what, "layout.order", "tp, cp, dp, pp in any order")


def stages(model: Model, layout: Layout, facts: Mapping[str, Fact], framework: Framework) -> Iterator[Problem]:
    """Layers of stages add up, or divide: this version has no rule by which a framework spreads a remainder."""
    virtual = facts.get("virtual_stages")
    if not isinstance(virtual, int):
        return
    if layout.split:
        if len(layout.split) != virtual or sum(layout.split) != model.layers:
            what = f"layers of {len(layout.split)} virtual stages, {sum(layout.split)} in all"
            yield Problem(what, "layout.stage_layers", f"{model.layers} layers over {virtual} virtual stages")
    elif model.layers >= virtual and model.layers % virtual:
        each = model.layers // virtual
        what = (
            f"{model.layers} layers on {virtual} virtual stages, and how {framework.name} spreads a remainder is open"
        )
        yield Problem(what, "layout.pp", f"give stage_layers, such as {each} and {each + 1}")


def schedule(layout: Layout, facts: Mapping[str, Fact]) -> Iterator[Problem]:
    """What the pipeline schedule asks of the degrees and of the number of micro-batches."""
    pp, vpp, held = int(layout.pp), int(layout.vpp), facts.get("microbatches")
    if layout.custom is not None:
        if isinstance(held, int) and layout.custom.microbatches != held:
            what = f"the schedule runs {layout.custom.microbatches} micro-batches, the batch makes {held} a replica"
            yield Problem(what, "batch.global", f"{layout.custom.microbatches} micro-batches a replica")
        if layout.custom.chunks != vpp:
            what = f"the schedule holds {layout.custom.chunks} chunks a stage, not {vpp}"
            yield Problem(what, "layout.vpp", str(layout.custom.chunks))
        return
    yield from named_schedule(
        layout.schedule, pp, vpp, held if isinstance(held, int) else None, layout.group, paired=layout.overlap_experts
    )


def named_schedule(
    name: str, pp: int, vpp: int, microbatches: int | None, group: int = 0, *, paired: bool = False
) -> Iterator[Problem]:
    """As :func:`shardsim.workload.schedules.schedule_problems`, in the keys of a run file.

    Parameters
    ----------
    name : str
    pp, vpp, group : int
        (-).
    microbatches : int or None
        Of a replica (-); None where they are not known, so that nothing is said about them.
    paired : bool
        Whether passes run as pairs (``overlap_experts``).
    """
    # Whole groups, at least two for each stage, and even: a number of micro-batches that every schedule takes.
    many = 4 * max(pp, 1) * max(group, 1)
    count = many if microbatches is None else microbatches
    for problem in schedule_problems(name, pp, count, vpp, group, paired=paired):
        if problem.where == "micro-batches a replica":
            yield Problem(problem.what, "batch.global", f"micro-batches a replica: {problem.right}")
        else:
            yield Problem(problem.what, f"layout.{problem.where}", problem.right)


def passes(layout: Layout, facts: Mapping[str, Fact]) -> Iterator[Problem]:
    """Iterations that are too long to walk through."""
    held = facts.get("microbatches")
    if isinstance(held, int) and 2 * held * int(layout.pp) * int(layout.vpp) > MOST_PASSES:
        what = f"{held:,} micro-batches a replica make more than {MOST_PASSES:,} passes, too many to walk through"
        yield Problem(what, "batch.global", "a smaller global batch, or a larger micro-batch")
