"""The check of one whole layout."""

from __future__ import annotations

from shardsim.errors import Problem
from shardsim.schema.rules import load_rules
from shardsim.values.rules import RuleSet
from shardsim.values.training import Batch, Framework, Layout, Model
from shardsim.workload.validity import limits
from shardsim.workload.validity.facts import facts_of
from shardsim.workload.validity.verdicts import verdicts


def check(
    model: Model,
    layout: Layout,
    batch: Batch,
    gpus: int,
    framework: Framework,
    *,
    rules: RuleSet | None = None,
    precision: str = "",
    priced: bool = True,
) -> tuple[tuple[Problem, ...], tuple[str, ...]]:
    """Check one layout against the rules of its framework, and whether an engine can walk through its passes.

    Parameters
    ----------
    model : Model
    layout : Layout
        Scalars. ``dp`` may be any number where the GPUs do not divide.
    batch : Batch
    gpus : int
        GPUs in all (-).
    framework : Framework
    rules : RuleSet, optional
        Those that the framework names, when left out.
    precision : str
        Data type of the matrix products; the framework's usual one when empty.
    priced : bool
        Whether to refuse, too, iterations of too many passes to be priced in time.

    Returns
    -------
    problems : tuple of Problem
        Empty for a valid layout.
    warnings : tuple of str
        What will be changed.
    """
    wrong = tuple(limits.counts(layout, batch, gpus))
    if wrong:
        return wrong, ()
    facts = facts_of(model, layout, batch, gpus, framework, precision)
    found = verdicts(load_rules(framework.rules) if rules is None else rules, facts)
    problems = [*found.problems]
    if not any(problem.where in ("layout.pp", "layout.vpp") for problem in problems):
        problems += limits.stages(model, layout, facts, framework)
    problems += [*limits.schedule(layout, facts), *limits.axes(layout)]
    if priced:
        problems += limits.passes(layout, facts)
    return tuple(problems), tuple(warning.what for warning in found.warnings)
