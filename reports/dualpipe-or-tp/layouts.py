"""Enumerates layouts of a case, keeps the valid ones, and counts the memory of each."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from itertools import product

from common import CONTEXT, MICRO, RECOMPUTE, SCHEDULES, SELECTIVE, SEQ, TENSOR, ZERO, Case

from shardsim.errors import InputError
from shardsim.program.resolve import resolve
from shardsim.schema.run import nested, request_from_mapping
from shardsim.values.training import Batch, TrainingRun
from shardsim.workload.allocations import stage_allocations
from shardsim.workload.occupancy import fullest
from shardsim.workload.schedules import schedule_of, schedule_problems

FRAMEWORK = "megatron-core"
CLUSTER = "nvlink300-ib100"
"""For what does not depend on links."""


@dataclass(frozen=True, order=True)
class Layout:
    """One layout: the axes that are enumerated."""

    tp: int
    pp: int
    cp: int
    schedule: str
    vpp: int
    zero: int
    recompute: str
    micro: int

    def dp(self, case: Case) -> int:
        """Replicas (-)."""
        return case.gpus // (self.tp * self.pp * self.cp)

    def micro_batches(self, case: Case) -> int:
        """Micro-batches of a replica (-)."""
        return case.global_batch // (self.micro * self.dp(case))


def enumerated(case: Case) -> list[Layout]:
    """Every combination of what the axes may be."""
    shapes = product(TENSOR, case.stages, CONTEXT, SCHEDULES, ZERO, RECOMPUTE, MICRO)
    return [Layout(tp, pp, cp, *schedule, *rest) for tp, pp, cp, schedule, *rest in shapes]


def valid(case: Case, layout: Layout) -> bool:
    """Whether degrees divide, the schedule can be made, and layers split evenly over its virtual stages."""
    if layout.pp == 1 and layout.schedule != "1f1b":
        return False  # there is nothing to schedule
    replica = layout.tp * layout.pp * layout.cp
    if case.gpus % replica or case.global_batch % (layout.micro * layout.dp(case)):
        return False
    counts = (layout.pp, layout.micro_batches(case), layout.vpp)
    return not schedule_problems(layout.schedule, *counts) and template(case, *_shape(layout)) is not None


def resolved(case: Case, cluster: str, layout: Layout) -> TrainingRun:
    """The run, looked up and checked in full."""
    ends = case.ends_as_layers and layout.pp > 1
    keys = {
        "model": case.model,
        "cluster": cluster,
        "framework": FRAMEWORK,
        "gpus": case.gpus,
        "global_batch": case.global_batch,
        "seq": SEQ,
        "tp": layout.tp,
        "pp": layout.pp,
        "cp": layout.cp,
        "schedule": layout.schedule,
        "vpp": layout.vpp,
        "zero": layout.zero,
        "recompute": layout.recompute,
        "recompute_modules": SELECTIVE if layout.recompute == "selective" else None,
        "micro_batch": layout.micro,
        "embedding_as_layer": ends,
        "loss_as_layer": ends,
    }
    return resolve(request_from_mapping(nested(keys)))


def _shape(layout: Layout) -> tuple[int, str, int]:
    return layout.pp, layout.schedule, layout.vpp


def template(case: Case, pp: int, schedule: str, vpp: int, cluster: str = CLUSTER) -> TrainingRun | None:
    """A run of this pipeline without other axes; None where its layers do not split."""
    return _template(replace(case, gpus=pp, global_batch=4 * pp), pp, schedule, vpp, cluster)


@cache
def _template(case: Case, pp: int, schedule: str, vpp: int, cluster: str) -> TrainingRun | None:
    try:
        return resolved(case, cluster, Layout(1, pp, 1, schedule, vpp, 0, "none", 1))
    except InputError:
        return None


def chains(case: Case, layout: Layout) -> tuple[tuple[tuple[int, int], ...], ...]:
    """The ways of a micro-batch through the model: stage and layers of every virtual stage (-)."""
    return _chains(case, *_shape(layout))


@cache
def _chains(case: Case, pp: int, schedule: str, vpp: int) -> tuple[tuple[tuple[int, int], ...], ...]:
    run = template(case, pp, schedule, vpp)
    found = []
    for way in schedule_of(run.layout, run.batch).chains:
        layers = run.layout.split or (run.model.layers // len(way),) * len(way)
        found.append(tuple((stage, count) for (stage, _), count in zip(way, layers, strict=True)))
    return tuple(found)


def variant(case: Case, cluster: str, layout: Layout, micro_batches: int) -> TrainingRun:
    """The run with so many micro-batches a replica, made from its pipeline's without looking everything up again."""
    run = template(case, *_shape(layout), cluster)
    dp = layout.dp(case)
    other = replace(
        run.layout,
        tp=layout.tp,
        cp=layout.cp,
        dp=dp,
        sp=layout.tp > 1,
        zero=layout.zero,
        recompute=layout.recompute,
        recompute_modules=SELECTIVE if layout.recompute == "selective" else run.layout.recompute_modules,
    )
    return replace(run, layout=other, batch=Batch(micro_batches * layout.micro * dp, layout.micro, SEQ))


def fits(case: Case, layout: Layout) -> bool:
    """Whether every stage fits into its device.

    Counted with at most four micro-batches a stage: with more, no stage of these schedules holds more at a time.
    """
    run = variant(case, CLUSTER, layout, min(layout.micro_batches(case), 4 * layout.pp))
    schedule = schedule_of(run.layout, run.batch)
    allocations = stage_allocations(run.model, run.layout, run.batch, run.framework, schedule)
    stages = zip(allocations, schedule.orders, strict=True)
    return all(sum(fullest(*stage).items.values()) <= run.cluster.device.memory_bytes for stage in stages)


class Fits:
    """Which layouts of a case fit, counted where nothing counted before says so.

    Of one pipeline and split, a layout that shards more, repeats more and has smaller micro-batches needs no more
    memory than another. The fastest ones are counted again for themselves.
    """

    def __init__(self, case: Case) -> None:
        self.case = case
        self.fitting: dict[tuple[object, ...], list[Layout]] = {}
        self.too_large: dict[tuple[object, ...], list[Layout]] = {}

    def __call__(self, layout: Layout) -> bool:
        """Whether it fits."""
        place = layout.tp, layout.pp, layout.cp, layout.schedule, layout.vpp
        fitting, too_large = self.fitting.setdefault(place, []), self.too_large.setdefault(place, [])
        least = replace(layout, recompute=RECOMPUTE[-1], zero=max(ZERO), micro=min(MICRO))
        for trial in (least, replace(layout, zero=max(ZERO)), layout):
            if any(_needs_less(layout, other) for other in fitting):
                return True
            if any(_needs_less(other, layout) for other in too_large):
                return False
            if not any(_needs_less(trial, other) for other in fitting):
                (fitting if fits(self.case, trial) else too_large).append(trial)
        return layout in fitting


def _needs_less(layout: Layout, other: Layout) -> bool:
    """Whether it needs no more memory than the other, of the same pipeline and split."""
    return (
        layout.zero >= other.zero
        and RECOMPUTE.index(layout.recompute) >= RECOMPUTE.index(other.recompute)
        and layout.micro <= other.micro
    )
