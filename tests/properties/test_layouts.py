"""What holds for every valid layout: the work of all ranks together, and what tensor parallelism moves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardsim.program.machine import Machine
from shardsim.program.passes import Passes
from shardsim.program.resolve import resolve
from shardsim.schema.run import nested, request_from_mapping
from shardsim.values.program import PassKind, Task
from shardsim.values.training import Batch, TrainingRun
from shardsim.workload.flops import executed_flop
from shardsim.workload.schedules import schedule_of
from shardsim.workload.stages import ChunkContent, chunk_contents

BASE = resolve(
    request_from_mapping(
        nested(
            {
                "model": "narayanan-18.4b",
                "cluster": "selene",
                "framework": "megatron-2021",
                "gpus": 8,
                "tp": 8,
                "global_batch": 8,
                "micro_batch": 1,
                "seq": 2048,
                "recompute": "none",
            }
        )
    )
)
HIDDEN, LAYERS, ELEMENT = BASE.model.hidden, BASE.model.layers, 2

DEGREES = st.fixed_dictionaries({
    "tp": st.sampled_from([1, 2, 4, 8]),
    "pp": st.sampled_from([1, 2, 4, 5, 8]),
    "dp": st.sampled_from([1, 2, 16]),
    "sp": st.booleans(),
})  # fmt: skip
SCHEDULES = st.sampled_from([("1f1b", 1), ("gpipe", 1), ("zb-h1", 1), ("interleaved", 2), ("interleaved", 4)])
FLAGS = st.fixed_dictionaries({
    "overlap_dgrad": st.booleans(),
    "tp_overlap": st.sampled_from(["none", "own_shard", "ring", "userbuffers"]),
    "parallel_block": st.booleans(),
})  # fmt: skip


def described(degrees: Any, schedule: tuple[str, int], flags: Any, micro: int = 1) -> TrainingRun:
    name, chunks = schedule
    if name == "interleaved" and (degrees["pp"] == 1 or LAYERS % (degrees["pp"] * chunks)):
        name, chunks = "1f1b", 1
    return replace(
        BASE,
        layout=replace(BASE.layout, **degrees, schedule=name, vpp=chunks),
        batch=Batch(40 * micro * degrees["dp"], micro, 2048),
        framework=replace(BASE.framework, **flags),
    )


def tasks_of(passes: Passes, kinds: tuple[PassKind, ...], content: ChunkContent) -> list[Task]:
    return [task for kind in kinds for segment in passes.segments(kind, content) for task in segment.tasks]


@settings(max_examples=25, deadline=None)
@given(degrees=DEGREES, schedule=SCHEDULES, flags=FLAGS, micro=st.sampled_from([1, 2, 4]))
def test_all_ranks_together_execute_the_same_products_whatever_the_layout(
    degrees: Any, schedule: tuple[str, int], flags: Any, micro: int
) -> None:
    run = described(degrees, schedule, flags, micro)
    orders = schedule_of(run.layout, run.batch)
    kinds: tuple[PassKind, ...] = ("F", "I", "W") if schedule[0].startswith("zb") else ("F", "B")
    contents = chunk_contents(run.model, run.layout, orders).values()
    passes = Passes(run, Machine(run))
    rank = sum(float(task.flop) for content in contents for task in tasks_of(passes, kinds, content))
    everything = rank * orders.microbatches * degrees["tp"] * degrees["dp"]
    assert everything == pytest.approx(float(executed_flop(run.model, run.batch, run.layout)), rel=1e-12)


def moved(passes: Passes, *kinds: PassKind) -> float:
    """Bytes that a rank of one layer puts on its link for tensor parallelism, for one micro-batch."""
    tasks = tasks_of(passes, kinds, ChunkContent(1, embedding=False, head=False))
    return float(
        sum(task.transfer.wire["nvlink"] for task in tasks if task.transfer is not None and "stage" not in task.name)
    )


@settings(max_examples=25, deadline=None)
@given(degrees=DEGREES, flags=FLAGS, micro=st.sampled_from([1, 2, 4]))
def test_tensor_parallelism_moves_8bsh_and_sequence_parallelism_gathers_a_quarter_of_it_again(
    degrees: Any, flags: Any, micro: int
) -> None:
    """arXiv 2104.04473 §3.2: 8 bsh (t-1)/t elements a layer; arXiv 2205.05198 §4.2.2: as much, and Y again backward."""
    run = described(degrees, ("1f1b", 1), flags, micro)
    tp = degrees["tp"]
    blocks = 1 if flags["parallel_block"] else 2
    each_way = blocks * 2 * micro * 2048 * HIDDEN * (tp - 1) / tp * ELEMENT
    again = 0.25 * 2 * each_way if degrees["sp"] else 0.0
    passes = Passes(run, Machine(run))
    assert moved(passes, "F") == pytest.approx(each_way, rel=1e-12)
    assert moved(passes, "B") == pytest.approx(each_way + again, rel=1e-12)
    assert moved(passes, "I") == pytest.approx(each_way, rel=1e-12)
    assert moved(passes, "W") == pytest.approx(again, rel=1e-12)
    repeating = replace(run, layout=replace(run.layout, recompute="full"))
    assert moved(Passes(repeating, Machine(repeating)), "B") == pytest.approx(2 * each_way + again, rel=1e-12)


@settings(max_examples=15, deadline=None)
@given(degrees=DEGREES, flags=FLAGS, content=st.booleans(), recompute=st.sampled_from(["none", "selective", "full"]))
def test_a_backward_pass_in_two_parts_takes_what_it_takes_whole(
    degrees: Any, flags: Any, content: bool, recompute: Any
) -> None:
    run = described(degrees, ("1f1b", 1), flags)
    run = replace(run, layout=replace(run.layout, recompute=recompute))
    chunk, passes = ChunkContent(2, embedding=content, head=content), Passes(run, Machine(run))
    for what in ("seconds", "flop"):
        whole, parts = (
            sum(float(getattr(task, what)) for task in tasks_of(passes, kinds, chunk)) for kinds in (("B",), ("I", "W"))
        )
        assert parts == pytest.approx(whole, rel=1e-12)
