"""What stages hold over time: the step function against values by hand, and against the peak of the profile."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shardsim.engine.memory import memory_of, memory_profile
from shardsim.engine.memory_over_time import histories, memory_over_time
from shardsim.errors import InputError
from shardsim.program.resolve import resolve
from shardsim.schema.run import nested, request_from_mapping
from shardsim.values.program import Item, Pair, Pass, PipelineSchedule
from shardsim.values.results import PAIR, PASS_KINDS, Timeline
from shardsim.values.training import TrainingRun
from shardsim.workload.allocations import ChunkAllocation, StageAllocation, stage_allocations
from shardsim.workload.occupancy import ITEMS, reserved_items
from shardsim.workload.schedules import schedule_of

BASE = {
    "model": "megatron-8.3b",
    "cluster": "dgx-a100",
    "gpus": 16,
    "tp": 1,
    "pp": 4,
    "micro_batch": 1,
    "global_batch": 64,
    "seq": 1024,
    "framework": "megatron-2021",
}
LAYOUTS: dict[str, dict[str, Any]] = {
    "gpipe": {"schedule": "gpipe"},
    "1f1b, full recompute": {"schedule": "1f1b", "recompute": "full"},
    "interleaved": {"schedule": "interleaved", "vpp": 3},
    "split backward": {"schedule": "zb-h1", "recompute": "selective"},
    "pairs": {"schedule": "dualpipe"},
    "uneven stages": {"stage_layers": [17, 19, 19, 17]},
    "fully sharded": {"framework": "torchtitan", "zero": 3, "pp": 1},
    "one stage": {"pp": 1, "zero": 1, "recompute": "full"},
}


def _run(**keys: Any) -> TrainingRun:
    return resolve(request_from_mapping(nested(BASE | keys)))


def _timeline(rows: list[tuple[float, float, int, Item | None, str]]) -> Timeline:
    """Tasks by start, finish, stage, what they belong to (None after the last pass), and stream."""
    streams = list(dict.fromkeys(row[4] for row in rows))
    kind, microbatch, chunk, paired = [], [], [], []
    for *_, item, _ in rows:
        first = item.forward if isinstance(item, Pair) else item
        name = PAIR if isinstance(item, Pair) else "" if first is None else first.kind
        kind.append(PASS_KINDS.index(name) if name else -1)
        microbatch.append(-1 if first is None else first.microbatch)
        chunk.append(-1 if first is None else first.chunk)
        paired.append(item.backward[1:] if isinstance(item, Pair) else (-1, -1))
    return Timeline(
        start=np.array([row[0] for row in rows]),
        finish=np.array([row[1] for row in rows]),
        stage=np.array([row[2] for row in rows]),
        microbatch=np.array(microbatch),
        chunk=np.array(chunk),
        label=np.array([streams.index(row[4]) for row in rows]),
        labels=tuple(("task", stream, "gemm") for stream in streams),
        kind=np.array(kind),
        paired=np.array(paired),
    )


STATES = {"weights": 10.0, "gradients": 20.0, "optimizer": 40.0}


def test_one_stage_by_hand() -> None:
    chunk = ChunkAllocation(kept=3.0, working_set=5.0, loss=0.5, logits=0.25)
    allocation = StageAllocation(**STATES, chunks=(chunk,), buffers=1.0, stepping=2.0)
    order = (Pass("F", 0), Pass("F", 1), Pass("B", 0), Pass("B", 1))
    schedule = PipelineSchedule("by hand", (order,), (((0, 0),),), 2)
    timeline = _timeline([
        (1.0, 2.0, 0, order[0], "compute"),
        (2.0, 2.5, 0, order[0], "tp"),
        (3.0, 4.0, 0, order[1], "compute"),
        (4.0, 6.0, 0, order[2], "compute"),
        (5.0, 9.5, 0, order[2], "dp"),
        (7.0, 9.0, 0, order[3], "compute"),
        (9.5, 10.0, 0, None, "compute"),
    ])  # fmt: skip
    (found,) = histories([allocation], schedule, timeline)
    # Before the first pass; F0; between; F1; B0 with its working set; between; B1; nothing; the step; the end.
    assert found.seconds.tolist() == [0.0, 1.0, 2.5, 3.0, 4.0, 6.0, 7.0, 9.0, 9.5, 10.0]
    assert found.items["activations"].tolist() == [0.0, 3.0, 3.0, 6.0, 11.0, 3.0, 8.0, 0.0, 0.0, 0.0]
    assert found.items["logits"].tolist() == [0.0, 0.75, 0.5, 1.25, 1.0, 0.5, 0.5, 0.0, 0.0, 0.0]
    assert found.items["buffers"].tolist() == [1.0] * 8 + [3.0, 1.0]
    assert found.allocated.tolist() == [71.0, 74.75, 74.5, 78.25, 83.0, 74.5, 79.5, 71.0, 73.0, 71.0]
    assert max(found.allocated) == memory_profile([allocation], schedule, 100.0).allocated[0]


def test_a_split_backward_pass_by_hand() -> None:
    chunk = ChunkAllocation(kept=8.0, weight_gradient=3.0)
    order = (Pass("F", 0), Pass("I", 0), Pass("W", 0))
    schedule = PipelineSchedule("by hand", (order,), (((0, 0),),), 1)
    rows = [(float(time), time + 1.0, 0, item, "compute") for time, item in enumerate(order)]
    (found,) = histories([StageAllocation(**STATES, chunks=(chunk,))], schedule, _timeline(rows))
    assert found.seconds.tolist() == [0.0, 1.0, 2.0, 3.0]
    assert found.items["activations"].tolist() == [8.0, 8.0, 3.0, 0.0]


def test_a_pair_holds_both_of_its_micro_batches_by_hand() -> None:
    chunk = ChunkAllocation(kept=8.0)
    pair = Pair(Pass("F", 1), Pass("B", 0))
    order = (Pass("F", 0), pair, Pass("B", 1))
    schedule = PipelineSchedule("by hand", (order,), (((0, 0),),), 2)
    rows = [(2.0 * time, 2.0 * time + 1.0, 0, item, "compute") for time, item in enumerate(order)]
    (found,) = histories([StageAllocation(**STATES, chunks=(chunk,))], schedule, _timeline(rows))
    assert found.seconds.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    assert found.items["activations"].tolist() == [8.0, 8.0, 16.0, 8.0, 8.0, 0.0]


@pytest.mark.parametrize("keys", LAYOUTS.values(), ids=list(LAYOUTS))
def test_the_fullest_moment_over_time_is_the_peak_of_the_profile(keys: dict[str, Any]) -> None:
    run = _run(**keys)
    schedule = schedule_of(run.layout, run.batch)
    allocations = stage_allocations(run.model, run.layout, run.batch, run.framework, schedule)
    profile = memory_of(run)
    found = memory_over_time(run)
    assert len(found) == len(profile.stages)
    for stage, (history, allocation) in enumerate(zip(found, allocations, strict=True)):
        moments = [{name: history.items[name][index] for name in ITEMS} for index in range(history.seconds.size)]
        reserved = [sum(reserved_items(allocation, items).values()) for items in moments]
        assert max(reserved) == pytest.approx(profile.reserved[stage], rel=1e-12)


@pytest.mark.parametrize("keys", LAYOUTS.values(), ids=list(LAYOUTS))
def test_every_stage_ends_as_it_started_and_never_holds_less(keys: dict[str, Any]) -> None:
    run = _run(**keys)
    ends = set()
    for history in memory_over_time(run):
        assert history.seconds[0] == 0.0
        assert (np.diff(history.seconds) > 0).all()
        for name in ("weights", "gradients", "optimizer"):
            assert (history.items[name] >= history.items[name][-1]).all()
        for name in ("activations", "logits"):
            assert history.items[name][-1] == 0.0
            assert (history.items[name] >= 0.0).all()
        if history.items["activations"][0] == 0.0:  # the first pass need not start at once
            assert history.allocated[0] == history.allocated[-1]
        ends.add(float(history.seconds[-1]))
    assert len(ends) == 1


def test_later_stages_hold_less_under_1f1b_and_the_engines_agree() -> None:
    run = _run(recompute="none")
    listing, des = memory_over_time(run), memory_over_time(run, "des")
    peaks = [float(history.items["activations"].max()) for history in listing]
    assert peaks == sorted(peaks, reverse=True)
    for one, other in zip(listing, des, strict=True):
        assert one.seconds == pytest.approx(other.seconds, rel=1e-9)
        assert (one.allocated == other.allocated).all()


def test_the_closed_form_has_no_times_to_follow() -> None:
    with pytest.raises(InputError, match="no timeline"):
        memory_over_time(_run(), "closed")
