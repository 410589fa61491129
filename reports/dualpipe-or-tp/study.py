"""Finds the fastest layout that fits, with and without tensor parallelism, with DualPipe and with any schedule."""

from __future__ import annotations

import csv
from collections.abc import Collection, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

from bounds import bound, busiest
from common import CASES, CLUSTERS, PAIRED, QUESTIONS, RECOMPUTE, Case
from layouts import Fits, Layout, enumerated, resolved, valid, variant

from shardsim.engine.memory import memory_of
from shardsim.engine.predict import execute, predict
from shardsim.program.build import build
from shardsim.program.coalesce import coalesce
from shardsim.values.program import Program
from shardsim.workload.schedules import make_schedule

MARGIN = 1.03
"""A layout whose extrapolated time is above the best by this factor is not priced in full (-)."""


class Search:
    """Branch and bound over the layouts of a case on a cluster."""

    def __init__(self, case: Case, cluster: str, layouts: list[Layout], fits: Fits) -> None:
        self.case, self.cluster, self.fits = case, cluster, fits
        self.bounds = sorted((bound(case, cluster, layout), layout) for layout in layouts)
        self.priced: dict[Layout, float] = {}
        self.above: dict[Layout, float] = {}

    def fastest(self, question: str, hints: Collection[Layout | None] = ()) -> tuple[Layout | None, int, int]:
        """The fastest that fits, how many were counted in memory for it, and how many of these fit.

        In the order of their bounds; what has a bound above the best time cannot win. Hints, and the first of every
        schedule, are priced before all others, so that there is a good time to hold against.
        """
        best, least, fitting = None, float("inf"), set()
        asked = [pair for pair in self.bounds if concerns(question, pair[1])]
        hinted = [pair for pair in asked if pair[1] in hints]
        for lowest, layout in (*hinted, *self.first(asked), *asked):
            if lowest >= least or not self.fits(layout):
                continue
            fitting.add(layout)
            seconds = float("inf") if self.needless(layout) else self.seconds(layout, least)
            if seconds < least:
                best, least = layout, seconds
        return best, sum(lowest < least for lowest, _ in asked), len(fitting)

    def first(self, asked: list[tuple[float, Layout]]) -> list[tuple[float, Layout]]:
        """Of every schedule the one with the least bound that fits and needs all it does for that."""
        found: dict[tuple[str, bool], tuple[float, Layout]] = {}
        for pair in asked:
            _, layout = pair
            key = layout.schedule, layout.pp > 1
            if key not in found and self.fits(layout) and not self.needless(layout):
                found[key] = pair
        return sorted(found.values(), key=lambda pair: pair[1].micro_batches(self.case) * pair[1].pp)

    def needless(self, layout: Layout) -> bool:
        """Whether it saves memory, at a cost, that one which fits does without.

        Repeating work takes time. Against ZeRO 1, ZeRO 0 reduces as many bytes, gathers gradients in the place of
        parameters of half their size, and steps them all on every rank; ZeRO 2 and 3 in a pipeline reduce gradients
        with every micro-batch.
        """
        less = [replace(layout, recompute=other) for other in RECOMPUTE[: RECOMPUTE.index(layout.recompute)]]
        if layout.zero == 0 or (layout.zero > 1 and layout.pp > 1):
            less.append(replace(layout, zero=1))
        return any(map(self.fits, less))

    def seconds(self, layout: Layout, least: float) -> float:
        """Iteration time [s]; infinite where it is certain to be above ``least``."""
        if self.above.get(layout, 0.0) >= least:
            return float("inf")
        if layout not in self.priced:
            program = coalesce(build(variant(self.case, self.cluster, layout, layout.micro_batches(self.case))))
            if busiest(program) >= least or self.estimated(program, layout) >= MARGIN * least:
                self.above[layout] = least
                return float("inf")
            self.priced[layout] = _seconds(program)
        return self.priced[layout]

    def estimated(self, program: Program, layout: Layout) -> float:
        """Iteration time from few micro-batches [s], the others extrapolated or as busy as the busiest stage; or 0."""
        many, few, more = layout.micro_batches(self.case), 2 * layout.pp, 4 * layout.pp
        if many < few + layout.pp:
            return 0.0
        shortened = _shortened(program, layout, few)
        short = _seconds(shortened)
        if many < 2 * more:
            return short + busiest(program) - busiest(shortened)
        longer = _seconds(_shortened(program, layout, more))
        return longer + (longer - short) / (more - few) * (many - more)


def _shortened(program: Program, layout: Layout, micro_batches: int) -> Program:
    return replace(program, schedule=make_schedule(layout.schedule, layout.pp, micro_batches, layout.vpp))


def _seconds(program: Program) -> float:
    return float(execute(program, "closed").iteration_s)


def concerns(question: str, layout: Layout) -> bool:
    """Whether a layout is among those that a question is about."""
    return question.startswith("TP") == (layout.tp > 1) and (
        question.endswith("any schedule") or layout.schedule in PAIRED
    )


def row(case: Case, cluster: str, question: str, layout: Layout, numbers: dict[str, object]) -> dict[str, object]:
    """What is said of the fastest layout."""
    run = resolved(case, cluster, layout)
    prediction = predict(run, engine="closed")
    memory = memory_of(run)
    if not memory.fits:
        raise ValueError(f"{layout} was counted as fitting")
    worst = memory.stages[memory.worst_stage]
    exposed = {f"{axis}_s": prediction.exposed_s[axis] for axis in ("tp", "pp", "dp", "cp")}
    return {
        "model": case.model,
        "gpus": case.gpus,
        "global_batch": case.global_batch,
        "nvlink": CLUSTERS[cluster],
        "question": question,
        **numbers,
        **{name: getattr(layout, name) for name in Layout.__dataclass_fields__},
        "dp": layout.dp(case),
        "micro_batches": layout.micro_batches(case),
        "iteration_s": prediction.iteration_s,
        "mfu": prediction.mfu,
        "bubble": prediction.bubble_fraction,
        **exposed,
        "memory": memory.peak,
        "capacity": memory.capacity,
        "parameters": worst["weights"] + worst["gradients"] + worst["optimizer"],
        "activations": worst["activations"],
    }


def answers(case: Case) -> list[dict[str, object]]:
    """The rows of a case: its questions on both clusters."""
    layouts = [layout for layout in enumerated(case) if valid(case, layout)]
    fits = Fits(case)
    hints: dict[str, Layout | None] = {}
    return [found for cluster in CLUSTERS for found in _on(case, cluster, layouts, fits, hints)]


def _on(
    case: Case, cluster: str, layouts: list[Layout], fits: Fits, hints: dict[str, Layout | None]
) -> Iterator[dict[str, object]]:
    search = Search(case, cluster, layouts, fits)
    for question in QUESTIONS:
        asked = [layout for layout in enumerated(case) if concerns(question, layout)]
        able = [layout for layout in layouts if concerns(question, layout)]
        best, counted, fitting = search.fastest(question, hints.values())
        hints[question] = best
        numbers = {"enumerated": len(asked), "valid": len(able), "counted": counted, "fitting": fitting}
        if best is not None:
            yield row(case, cluster, question, best, numbers)
        if best is not None and best.schedule in PAIRED and "DualPipe" in question:
            plain = replace(best, schedule="1f1b", vpp=1)
            if valid(case, plain) and fits(plain):
                yield row(case, cluster, "the same with 1f1b", plain, dict.fromkeys(numbers, 0))


def main() -> None:
    """Answer for every case, two at a time, in a fixed order."""
    with ProcessPoolExecutor(2) as pool:
        rows = [found for case in pool.map(answers, CASES) for found in case]
    with Path("study.csv").open("w", newline="") as stream:
        writer = csv.DictWriter(stream, rows[0].keys(), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
