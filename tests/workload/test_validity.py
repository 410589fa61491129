"""Every problem of a layout at once, with the values that would be legal."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardsim.schema.framework import load_framework
from shardsim.schema.model import load_model
from shardsim.values.training import Batch, Layout
from shardsim.workload.schedules import make_schedule
from shardsim.workload.stages import chunk_contents
from shardsim.workload.validity import check

MID, CORE = load_framework("megatron-2021"), load_framework("megatron-core")
GPT3, LLAMA = load_model("gpt3-175b"), load_model("llama-3-70b")
GOOD = Layout(tp=8, pp=8, dp=16, vpp=3, schedule="interleaved")
BATCH = Batch(1536, 1, 2048)


def messages(layout: Layout, batch: Batch = BATCH, gpus: int = 1024, model: Any = GPT3) -> list[str]:
    return [str(problem) for problem in check(model, layout, batch, gpus, MID)[0]]


def test_the_layout_of_narayanan_for_gpt3_is_valid() -> None:
    assert check(GPT3, GOOD, BATCH, 1024, MID) == ((), ())


@pytest.mark.parametrize(
    ("changes", "batch", "gpus", "expected"),
    [
        ({"tp": 5, "dp": 25}, BATCH, 1000, "layout.tp: 96 attention heads do not divide by tp 5"),
        ({"pp": 5, "vpp": 1, "schedule": "1f1b", "dp": 25}, BATCH, 1000, "96 layers do not divide by pp 5"),
        ({"vpp": 5}, BATCH, 1024, "96 layers do not divide by pp 8 x vpp 5 = 40 virtual stages"),
        ({}, BATCH, 1000, "gpus: 1000 GPUs do not divide into replicas of tp 8 x pp 8 x cp 1 = 64"),
        ({"dp": 8}, BATCH, 1024, "layout.dp: dp 8 x 64 ranks a replica is not 1024 GPUs (16)"),
        ({}, replace(BATCH, global_batch=1500), 1024, "batch.global: a global batch of 1500 does not divide"),
        ({}, replace(BATCH, global_batch=1552), 1024, "97 micro-batches a replica do not divide by pp 8"),
        ({"pp": 1, "dp": 128}, BATCH, 1024, "an interleaved schedule on one pipeline stage"),
        ({"vpp": 1}, BATCH, 1024, "an interleaved schedule with one chunk a stage"),
        ({"schedule": "1f1b"}, BATCH, 1024, "1f1b holds one chunk a stage, vpp 3 is asked for"),
        ({"sp": True}, replace(BATCH, seq_len=2044), 1024, "sequences of 2044 tokens do not divide by tp 8"),
        ({}, replace(BATCH, seq_len=4096), 1024, "longer than gpt3-175b's 2048 positions (2048 or less)"),
        ({"cp": 2, "dp": 8}, BATCH, 1024, "context parallelism (cp 2) is not priced by this version"),
        ({"ep": 2}, BATCH, 1024, "expert parallelism (ep 2) is not priced by this version"),
        ({"zero": 3}, BATCH, 1024, "ZeRO stage 3 is not priced by this version"),
        (
            {"order": ("tp", "dp", "dp", "pp")},
            BATCH,
            1024,
            "the rank order tp, dp, dp, pp does not name each axis once",
        ),
        ({"tp": 0}, BATCH, 1024, "layout.tp: 0 is not a count (a whole number, 1 or more)"),
        ({}, replace(BATCH, micro_batch=1.5), 1024, "batch.micro: 1.5 is not a count"),
    ],
)
def test_each_rule_says_what_is_wrong(changes: dict[str, Any], batch: Batch, gpus: int, expected: str) -> None:
    assert any(expected in message for message in messages(replace(GOOD, **changes), batch, gpus))


def test_legal_values_satisfy_the_other_rules_too() -> None:
    (message,) = messages(replace(GOOD, tp=64, pp=1, vpp=1, dp=16, schedule="1f1b"))
    assert message == "layout.tp: 96 attention heads do not divide by tp 64 (one of 1, 2, 4, 8, 16, 32)"
    assert "one of 1, 2, 4, 8, 16, 32, 64)" in messages(Layout(3, 1, 16), Batch(16, 1, 4096), 1024, LLAMA)[0]


def test_key_value_heads_may_be_a_multiple_or_a_divisor_of_tp() -> None:
    for tp, good in ((4, True), (8, True), (16, True), (64, True), (3, False), (12, False)):
        layout = Layout(tp, 1, 1)
        found = messages(layout, Batch(1, 1, 4096), tp, replace(LLAMA, heads=192, ffn=192 * 64))
        assert (not any("key-value heads" in message for message in found)) is good


def test_all_problems_come_at_once() -> None:
    layout = Layout(tp=7, pp=9, dp=1, vpp=1, cp=2, zero=2)
    found = messages(layout, Batch(10, 3, 4096), 1000)
    assert len(found) == 7
    assert len(messages(replace(layout, tp=-1, pp=0), Batch(0, 0, 0), 0)) == 6


def test_sequence_parallelism_without_tensor_parallelism_is_switched_off_with_a_warning() -> None:
    layout = Layout(1, 1, 8, sp=True)
    problems, warnings = check(GPT3, layout, Batch(8, 1, 2047), 8, MID)
    assert problems == ()
    assert "tp is 1" in warnings[0]
    assert check(GPT3, layout, Batch(8, 1, 2047), 8, CORE)[1] == ()  # on by default there: nobody asked


@given(
    tp=st.integers(1, 32),
    pp=st.integers(1, 32),
    vpp=st.integers(1, 6),
    dp=st.integers(1, 8),
    micro=st.integers(1, 4),
    count=st.integers(1, 64),
)
def test_a_layout_without_problems_can_be_scheduled_and_divides(
    tp: int, pp: int, vpp: int, dp: int, micro: int, count: int
) -> None:
    layout = Layout(tp, pp, dp, vpp=vpp, schedule="interleaved" if vpp > 1 else "1f1b")
    problems, _ = check(GPT3, layout, Batch(count * micro * dp, micro, 2048), tp * pp * dp, MID)
    divides = 96 % tp == 0 and 96 % (pp * vpp) == 0 and (vpp == 1 or (pp > 1 and count % pp == 0))
    assert (not problems) is divides
    if not problems:
        schedule = make_schedule(layout.schedule, pp, count, vpp)
        assert sum(content.layers for content in chunk_contents(GPT3, schedule.virtual_stages).values()) == 96
