"""Traces of large machines: a track a class of ranks, memory bounded, well formed, compressed where asked."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardsim.engine.memory import memory_of
from shardsim.engine.memory_over_time import histories_of_lanes
from shardsim.engine.predict import Detail, simulate_run
from shardsim.program.resolve import resolve
from shardsim.report import trace as module
from shardsim.report.trace import save_trace, trace_events, write_trace
from shardsim.schema.run import load_run
from shardsim.values.conditions import Conditions
from shardsim.values.results import LaneName, LinkUse, MemoryHistory, Timeline
from shardsim.workload.schedules import schedule_of

RUNS = Path(__file__).parents[2] / "workloads" / "runs"
STREAMS = (("products", "compute", "gemm"), ("all-reduce", "tp", "tp"), ("reduce gradients", "dp", "dp"))


class _Nowhere:
    """Counts what is written to it."""

    def __init__(self) -> None:
        self.size = 0

    def write(self, data: bytes, /) -> int:
        self.size += len(data)
        return len(data)


def _pipeline(lanes: tuple[LaneName, ...], microbatches: int, tasks: int) -> Timeline:
    """Forward passes of so many tasks that wander through two stages; every second task is an all-reduce."""
    lane, microbatch, task = (
        column.reshape(-1) for column in np.indices((len(lanes), microbatches, tasks), dtype=np.int64)
    )
    stage = np.array([one.stage for one in lanes])[lane]
    start = ((microbatch + stage) * tasks + task) * 1e-6
    return Timeline(
        start,
        start + 1e-6,
        stage,
        microbatch,
        0 * lane,
        task % 2,
        STREAMS,
        0 * lane,
        chains=(((0, 0), (1, 0)),),
        lane=lane,
        lanes=lanes,
    )


LANES = (
    LaneName(0, 49_992),
    LaneName(1, 50_000),
    LaneName(0, 8, "slow node 5", 1),
    LaneName(1, 8, "same pipeline", 1),
)


def _loaded(events: Any) -> list[dict[str, Any]]:
    return [json.loads(event) for event in events]


def _named(events: list[dict[str, Any]], what: str) -> dict[int, str]:
    return {event["pid"]: event["args"]["name"] for event in events if event["name"] == what}


def _memory(seconds: list[float], allocated: list[float]) -> MemoryHistory:
    return MemoryHistory(0, np.array(seconds), {"activations": np.array(allocated)})


def check(events: list[dict[str, Any]]) -> None:
    """What the format and both viewers ask for."""
    threads: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    arrows: dict[int, list[dict[str, Any]]] = defaultdict(list)
    processes = {event["pid"] for event in events if event["name"] == "process_name"}
    for event in events:
        assert event["ph"] in "MXsfC"
        assert event["pid"] in processes
        if event["ph"] != "M":
            assert event["ts"] >= 0
        if event["ph"] == "X":
            assert event["dur"] >= 0
            start = round(event["ts"] * 1000)
            threads[event["pid"], event["tid"]].append((start, start + round(event["dur"] * 1000)))
        if event["ph"] in "sf":
            arrows[event["id"]].append(event)
        if event["ph"] == "C":
            assert all(np.isfinite(value) for value in event["args"].values())
    for spans in threads.values():
        assert all(end <= start for (_, end), (start, _) in pairwise(spans))  # ascending as well
    for start, finish in arrows.values():  # both ends, once
        assert (start["ph"], finish["ph"]) == ("s", "f")
        assert start["ts"] <= finish["ts"]


def test_a_class_of_ranks_is_one_process_whose_name_says_how_many_it_stands_for() -> None:
    events = _loaded(trace_events(_pipeline(LANES, 2, 4)))
    assert _named(events, "process_name") == {
        0: "stage 0 (49,992 GPUs)",
        1: "stage 1 (50,000 GPUs)",
        2: "stage 0, slow node 5 (8 GPUs)",
        3: "stage 1, same pipeline (8 GPUs)",
    }
    check(events)


def test_classes_that_nothing_else_sets_apart_are_told_by_their_pipelines() -> None:
    alike = (LaneName(0, 4), LaneName(1, 1, "rank 4"), LaneName(0, 1, column=1), LaneName(1, 4, column=1))
    events = _loaded(trace_events(_pipeline(alike, 1, 2)))
    assert list(_named(events, "process_name").values()) == [
        "stage 0, pipeline class 0 (4 GPUs)",
        "stage 1, rank 4 (1 GPU)",
        "stage 0, pipeline class 1 (1 GPU)",
        "stage 1 (4 GPUs)",
    ]


def test_messages_stay_within_a_class_of_pipelines() -> None:
    events = _loaded(trace_events(_pipeline(LANES, 3, 4)))
    ends = [event["pid"] for event in events if event["ph"] in "sf"]
    assert list(zip(ends[::2], ends[1::2], strict=True)) == [(0, 1)] * 3 + [(2, 3)] * 3


def test_a_lane_that_ran_nothing_yet_is_left_out() -> None:
    whole = _pipeline(LANES, 1, 2)
    kept = whole.lane == 2
    columns = ("start", "finish", "stage", "microbatch", "chunk", "label", "kind", "lane")
    part = replace(whole, **{name: getattr(whole, name)[kept] for name in columns})
    events = _loaded(trace_events(part))
    assert _named(events, "process_name") == {2: "stage 0, slow node 5 (8 GPUs)"}
    nothing = replace(whole, **{name: getattr(whole, name)[:0] for name in columns})
    assert list(trace_events(nothing)) == list(trace_events(nothing, most=-1)) == []


def test_an_overlong_side_stream_makes_no_passes_overlap_and_no_arrow_point_back() -> None:
    """The all-reduce that the first pass queued ends after the second pass, and after its own message has arrived."""
    start, finish = np.array([0.0, 0.5, 1.0, 1.25]), np.array([1.0, 2.5, 2.0, 2.25])
    one = np.zeros(4, dtype=np.int64)
    timeline = Timeline(
        start, finish, np.array([0, 0, 0, 1]), np.array([0, 0, 1, 0]), one, np.array([0, 1, 0, 0]), STREAMS, one,
        chains=(((0, 0), (1, 0)),),
    )  # fmt: skip
    check(_loaded(trace_events(timeline)))


def test_an_end_and_the_start_after_it_may_differ_in_the_last_bit() -> None:
    half = 2000.5e-9
    start, finish = np.array([0.0, np.nextafter(half, 0.0)]), np.array([np.nextafter(half, 1.0), 1e-3])
    one = np.zeros(2, dtype=np.int64)
    assert round(finish[0] * 1e9) == round(start[1] * 1e9) + 1
    timeline = Timeline(start, finish, one, one, one, one, STREAMS)
    check(_loaded(trace_events(timeline)))


def test_counters_are_step_functions_of_memory_and_of_links() -> None:
    quiet = replace(
        _pipeline(LANES[:2], 1, 2),
        links=(LinkUse("nic out, rank 0", np.array([0.0, 1e-6, 2e-6, 3e-6]), np.array([0.5, 0.5, 1.0, 0.0])),),
    )
    memory = (_memory([0.0, 1e-6], [2.0**30, 2.0**31]), _memory([0.0, 0.0, 2e-6], [1.0, 2.0**30, 1.5 * 2.0**30]))
    events = _loaded(trace_events(quiet, memory))
    check(events)
    counters = [(event["pid"], event["name"], event["ts"], event["args"]) for event in events if event["ph"] == "C"]
    assert counters == [
        (0, "memory [GiB]", 0.0, {"allocated": 1.0}),
        (0, "memory [GiB]", 1.0, {"allocated": 2.0}),
        (1, "memory [GiB]", 0.0, {"allocated": 1.0}),
        (1, "memory [GiB]", 2.0, {"allocated": 1.5}),
        (2, "nic out, rank 0 [%]", 0.0, {"in use": 50.0}),
        (2, "nic out, rank 0 [%]", 2.0, {"in use": 100.0}),
        (2, "nic out, rank 0 [%]", 3.0, {"in use": 0.0}),
    ]
    assert _named(events, "process_name")[2] == "links"


def test_merged_tasks_keep_their_time_and_say_how_many_they_are() -> None:
    timeline = replace(_pipeline(LANES[:2], 2, 6), label=np.repeat([0, 0, 1], 8))  # the last passes are all-reduces
    slices = [event for event in _loaded(trace_events(timeline, most=3)) if event["ph"] == "X" and event["tid"] > 0]
    check(_loaded(trace_events(timeline, most=3)))
    assert [(event["pid"], event["tid"], event["name"], event["ts"]) for event in slices] == [
        (0, 1, "F0: 6 tasks", 0.0),
        (0, 1, "F1: 6 tasks", 6.0),
        (1, 1, "F0: 4 tasks", 6.0),
        (1, 2, "F0: 2 tasks", 10.0),
        (1, 2, "F1: 6 tasks", 12.0),
    ]
    assert slices[2]["args"] == {"microbatch": 0, "chunk": 0, "tasks": 4, "busy in microseconds": 4.0}
    assert [event["dur"] for event in slices] == [6.0, 6.0, 4.0, 2.0, 6.0]


def test_merging_changes_neither_passes_nor_messages() -> None:
    timeline = _pipeline(LANES, 3, 7)
    whole, merged = (_loaded(trace_events(timeline, most=most)) for most in (10**9, 0))

    def rest(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [event for event in events if event["ph"] != "X" or event["tid"] == 0]

    assert rest(whole) == rest(merged)
    busy = [sum(e["dur"] for e in events if e["ph"] == "X" and e["tid"] > 0) for events in (whole, merged)]
    worked = sum(e["args"]["busy in microseconds"] for e in merged if e["ph"] == "X" and e["tid"] > 0)
    assert worked == pytest.approx(busy[0])


def _peak(timeline: Timeline, most: int) -> tuple[int, int]:
    nowhere = _Nowhere()
    tracemalloc.start()
    try:
        write_trace(timeline, nowhere, (), most)
        return tracemalloc.get_traced_memory()[1], nowhere.size
    finally:
        tracemalloc.stop()


def test_a_million_tasks_are_merged_in_little_more_memory_than_they_take() -> None:
    timeline = _pipeline(LANES, 256, 977)
    assert timeline.start.size > 1_000_000
    peak, size = _peak(timeline, 100_000)
    assert size < 100 * 2**20
    assert peak < 80 * timeline.start.size


def test_memory_does_not_grow_with_the_text() -> None:
    """Every task is a slice: rows take memory, and the text, which is longer, does not."""
    timeline = _pipeline(LANES, 64, 100)
    peak, size = _peak(timeline, 10**9)
    assert size > 130 * timeline.start.size
    assert peak < 80 * timeline.start.size


@pytest.mark.parametrize(
    ("run_file", "sequences", "conditions", "detail"),
    [
        ("seed-layout", 128, Conditions(), "stages"),
        ("seed-layout", 128, Conditions(slow_nodes={1: 1.1}), "stages"),
        ("seed-layout", 8, Conditions(slow_gpus={3: 1.2}, dead_nics=((0, 0),)), "operators"),
        ("deepseek-v3", 4096, Conditions(), "stages"),
    ],
)
def test_simulated_runs_make_traces_that_load(
    run_file: str, sequences: int, conditions: Conditions, detail: Detail
) -> None:
    run = resolve(load_run(RUNS / f"{run_file}.yaml", {"batch": {"global": sequences}}))
    run = replace(run, conditions=conditions)
    execution = simulate_run(run, detail=detail, timeline=True)
    timeline = execution.timeline
    assert timeline is not None
    memory = histories_of_lanes(run, timeline)
    events = _loaded(trace_events(timeline, memory))
    check(events)
    if timeline.start.size < 10_000:
        check(_loaded(trace_events(timeline, memory, most=0)))
    slices = [event for event in events if event["ph"] == "X" and event["tid"] > 0]
    assert len(slices) == timeline.start.size
    assert max(event["ts"] + event["dur"] for event in slices) == pytest.approx(1e6 * execution.iteration_s)
    columns = len({lane.column for lane in timeline.lanes})
    microbatches = schedule_of(run.layout, run.batch).microbatches // len(timeline.chains)
    messages = 2 * microbatches * sum(_crossings(way) for way in timeline.chains)
    assert sum(event["ph"] == "s" for event in events) == columns * messages
    assert {event["pid"] for event in events if event["ph"] == "C"} >= set(range(len(timeline.lanes)))
    fullest = memory_of(run).allocated
    shown = [event for event in events if event["ph"] == "C" and event["name"] == "memory [GiB]"]
    for pid, lane in enumerate(timeline.lanes):
        peak = max(event["args"]["allocated"] for event in shown if event["pid"] == pid)
        assert peak == pytest.approx(fullest[lane.stage] / 2**30, abs=1e-3)


def _crossings(way: tuple[tuple[int, int], ...]) -> int:
    """How often a micro-batch goes to another stage."""
    return sum(one != other for (one, _), (other, _) in pairwise(way))


def test_a_name_that_ends_in_gz_is_compressed_and_says_the_same(tmp_path: Path) -> None:
    timeline = _pipeline(LANES, 4, 8)
    plain, packed, again = (tmp_path / name for name in ("t.json", "t.json.gz", "other.json.GZ"))
    for path in (plain, packed, again):
        assert save_trace(path, timeline) == ""
    assert gzip.decompress(packed.read_bytes()) == plain.read_bytes()
    assert packed.read_bytes() == again.read_bytes()  # neither the name nor the time of day is in it
    assert 5 * packed.stat().st_size < plain.stat().st_size


def test_the_screen_and_the_file_say_that_tasks_were_merged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    timeline = _pipeline(LANES, 4, 8)
    path = tmp_path / "t.json"
    assert save_trace(path, timeline) == ""
    told = json.loads(path.read_text())["otherData"]
    assert "microseconds" in told["times"]
    assert told["tasks"] == "each is a slice of its own"
    assert told["memory"].startswith("GiB")
    assert told["links"].startswith("%")
    monkeypatch.setattr(module, "MOST_TASKS", 50)
    note = save_trace(path, timeline)
    said = "128 tasks are more than 50: those of a pass that follow each other on a stream are one slice"
    assert note == f"{path}: {said}"
    assert json.loads(path.read_text())["otherData"]["tasks"] == said
