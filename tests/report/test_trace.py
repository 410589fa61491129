"""A trace that Perfetto loads: named rows, tasks in place, arrows along the pipeline, the same bytes each time."""

from __future__ import annotations

import io
import json
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from shardsim.engine.listing import listing
from shardsim.report.trace import write_trace
from shardsim.values.program import Block, Pair, Pass, PipelineSchedule, Program, Task
from shardsim.values.provenance import Provenance
from shardsim.values.results import Timeline
from shardsim.values.transfer import Transfer


@pytest.fixture
def timeline(timeline: Timeline) -> Timeline:
    """The same, of stages that say how micro-batches go through them."""
    return replace(timeline, chains=(((0, 0), (1, 0)),))


def _bytes(timeline: Timeline) -> bytes:
    stream = io.BytesIO()
    write_trace(timeline, stream)
    return stream.getvalue()


def _events(timeline: Timeline) -> list[dict[str, Any]]:
    trace = json.loads(_bytes(timeline))
    assert trace["displayTimeUnit"] == "ms"
    return trace["traceEvents"]  # type: ignore[no-any-return]


def _slices(timeline: Timeline, tid: int | None = None) -> list[dict[str, Any]]:
    return [event for event in _events(timeline) if event["ph"] == "X" and tid in (None, event["tid"])]


def test_every_stage_is_a_process_and_every_stream_a_thread(timeline: Timeline) -> None:
    names = {
        (event["pid"], event["tid"] if event["name"] == "thread_name" else None): event["args"]["name"]
        for event in _events(timeline)
        if event["name"] in ("process_name", "thread_name")
    }
    assert names == {
        (0, None): "stage 0",
        (1, None): "stage 1",
        **{(stage, tid): name for stage in (0, 1) for tid, name in enumerate(["passes", "compute", "tp", "dp"])},
    }


def test_every_task_is_one_slice_in_microseconds(timeline: Timeline) -> None:
    tasks = [event for event in _slices(timeline) if event["tid"] > 0]
    assert len(tasks) == len(timeline.start)
    (reduction,) = (task for task in tasks if task["name"] == "all-reduce")
    assert reduction == {
        "ph": "X",
        "name": "all-reduce",
        "cat": "tp",
        "tid": 2,
        "pid": 0,
        "ts": 750_000.0,
        "dur": 250_000.0,
        "args": {"microbatch": 0, "chunk": 0},
    }
    (step,) = (task for task in tasks if task["name"] == "optimizer")
    assert "args" not in step  # the epilogue belongs to no micro-batch


def test_passes_span_their_tasks_but_not_what_they_leave_running(timeline: Timeline) -> None:
    passes = {(event["pid"], event["name"]): (event["ts"], event["dur"]) for event in _slices(timeline, tid=0)}
    assert passes == {
        (0, "F0"): (0.0, 1e6),
        (0, "F1"): (1e6, 1e6),
        (1, "F0"): (1.25e6, 1e6),
        (1, "B0"): (2.25e6, 2e6),
        (0, "B0"): (4.5e6, 2e6),
    }


def test_arrows_follow_the_messages(timeline: Timeline) -> None:
    arrows: dict[int, dict[str, tuple[int, float]]] = defaultdict(dict)
    for event in _events(timeline):
        if event["ph"] in "sf":
            arrows[event["id"]][event["ph"]] = (event["pid"], event["ts"])
    # F0 from stage 0 to 1; F1 has no receiver in this timeline; B0 from stage 1 to 0.
    assert list(arrows.values()) == [
        {"s": (0, 1e6 - 1e-3), "f": (1, 1.25e6)},
        {"s": (1, 4.25e6 - 1e-3), "f": (0, 4.5e6)},
    ]


def test_without_chains_there_are_no_arrows(timeline: Timeline) -> None:
    assert {event["ph"] for event in _events(replace(timeline, chains=()))} == {"M", "X"}


def test_every_arrow_hangs_on_slices(timeline: Timeline) -> None:
    """Perfetto binds an arrow to the slice that encloses its time, and drops one that hangs on nothing."""
    slices = _slices(timeline, tid=0)
    for event in _events(timeline):
        if event["ph"] in "sf":
            around = [s for s in slices if s["pid"] == event["pid"] and s["ts"] <= event["ts"] < s["ts"] + s["dur"]]
            assert len(around) == 1


def test_without_kinds_there_are_tasks_and_no_passes(timeline: Timeline) -> None:
    events = _events(replace(timeline, kind=None))
    assert {event["ph"] for event in events} == {"M", "X"}
    assert "passes" not in {event["args"].get("name") for event in events if event["ph"] == "M"}


def test_tasks_in_a_row_never_overlap_however_odd_their_times() -> None:
    generator = np.random.default_rng(7)
    bounds = np.cumsum(generator.random(1001) * 1e-5) + 1 / 3
    ones = np.zeros(1000, dtype=np.int64)
    timeline = Timeline(bounds[:-1], bounds[1:], ones, ones, ones, ones, (("k", "compute", "gemm"),))
    slices = _slices(timeline)
    for one, after in pairwise(slices):
        assert round(one["ts"] * 1000) + round(one["dur"] * 1000) == round(after["ts"] * 1000)


@pytest.mark.parametrize(("order", "arrows"), [
    ([(0, 0), (1, 0), (0, 1), (1, 1)], [0, 1, 1, 0, 0, 1]),
    ([(0, 0), (1, 0), (1, 1), (0, 1)], [0, 1, 1, 0]),
])  # fmt: skip
def test_chunks_are_named_and_linked_along_their_chain(order: list[tuple[int, int]], arrows: list[int]) -> None:
    """Two stages of two chunks in a loop, and in a V, whose turn takes no message."""
    start = np.arange(4.0)
    timeline = Timeline(
        start,
        start + 1.0,
        np.array([stage for stage, _ in order]),
        np.zeros(4, dtype=np.int64),
        np.array([chunk for _, chunk in order]),
        np.zeros(4, dtype=np.int64),
        (("layers", "compute", "gemm"),),
        np.zeros(4, dtype=np.int64),
        chains=(tuple(order),),
    )
    assert [event["name"] for event in _slices(timeline, tid=0)] == ["F0", "F0.1", "F0", "F0.1"]
    sent = [event for event in _events(timeline) if event["ph"] in "sf"]
    ways = sorted((one["ts"], one["pid"], other["pid"]) for one, other in zip(sent[::2], sent[1::2], strict=True))
    assert [pid for _, *pids in ways for pid in pids] == arrows


def test_a_pair_is_one_slice_whose_arrows_are_those_of_both_passes() -> None:
    """Micro-batches enter two stages at both ends, and one of each is under way; facts of DualPipe's kind."""
    schedule = PipelineSchedule(
        "both ends",
        (
            (
                Pass("F", 0, 0),
                Pass("F", 0, 1),
                Pair(Pass("F", 1, 0), Pass("B", 0, 1)),
                Pass("I", 0, 0),
                Pass("W", 0, 0),
            ),
            (Pass("F", 0, 1), Pass("F", 0, 0), Pass("I", 0, 0), Pass("W", 0, 0), Pass("B", 0, 1), Pass("F", 1, 0)),
        ),
        (((0, 0), (1, 0)), ((1, 1), (0, 1))),
        3,
    )
    second = Task("second", "compute", "gemm", 1.0)
    program = Program(
        schedule=schedule,
        blocks={
            (stage, kind, chunk): Block(kind, (Task("layers", "compute", "gemm", 1.0),))
            for stage, chunk in schedule.places
            for kind in "FBIW"
        },
        last_blocks={},
        epilogues=(Block("epilogue", ()), Block("epilogue", ())),
        messages={
            (stage, kind, chunk): Transfer(0.25, {}, {}, "direct", Provenance("assumed", "test"))
            for stage, chunk in schedule.places
            for kind in "FB"
        },
        multiplicity=1,
        rendezvous_members={},
        pairs={(0, 0, 1): Block("pair", (replace(second, name="forward"), replace(second, name="backward")))},
    )
    found = listing(program, timeline=True).timeline
    assert found is not None
    slices = _slices(found, tid=0)
    assert [event["name"] for event in slices if event["pid"] == 0] == ["F0", "F0.1", "F1 & B0.1", "I0", "W0"]
    (pair,) = (event for event in slices if "&" in event["name"])
    assert (pair["ts"], pair["dur"]) == (2.25e6, 2e6)
    assert pair["args"] == {"microbatch": 1, "chunk": 0, "backward microbatch": 0, "backward chunk": 1}
    inside = [event["name"] for event in _slices(found, tid=1) if event["args"] == pair["args"]]
    assert inside == ["forward", "backward"]
    arrows = [(event["ph"], event["pid"], event["ts"]) for event in _events(found) if event["ph"] in "sf"]
    leaves = pair["ts"] + pair["dur"] - 1e-3
    # To stage 1 go F0, F1 and B0.1, to stage 0 F0.1 and I0.
    assert arrows.count(("s", 0, leaves)) == 2
    assert [pid for phase, pid, _ in arrows if phase == "f"] == [1, 1, 1, 0, 0]


def test_the_same_timeline_gives_the_same_bytes(timeline: Timeline) -> None:
    assert _bytes(timeline) == _bytes(replace(timeline))


@pytest.mark.parametrize("name", ['quote " and \\', "line\nfeed", "µs", "</script>"])
def test_names_are_escaped(timeline: Timeline, name: str) -> None:
    odd = replace(timeline, labels=((name, "compute", "gemm"), *timeline.labels[1:]))
    assert name in {event["name"] for event in _events(odd)}
