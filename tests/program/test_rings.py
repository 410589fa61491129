"""Steps of a ring beside attention: hidden above a threshold, exposed below it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from shardsim.program.overlap import Priced
from shardsim.program.rings import beside_attention
from shardsim.schema.framework import load_framework
from shardsim.schema.model import load_model
from shardsim.values.operators import Attention, Collective, Operator
from shardsim.values.program import Task
from shardsim.values.provenance import Provenance
from shardsim.values.training import Batch, Layout
from shardsim.values.transfer import Transfer
from shardsim.workload.context import core_backward, core_forward
from shardsim.workload.kinds import PLAIN
from shardsim.workload.shapes import shapes

CORE, GPT = load_framework("megatron-core"), replace(load_model("gpt3-175b"), heads=1, kv_heads=1)
SOURCE = Provenance("assumed", "test")


def priced(operators: tuple[Operator, ...], attention: float, step: float) -> tuple[Priced, ...]:
    """Each attention and each block on its way take so long, and nothing else does."""

    def task(operator: Operator) -> Task:
        if isinstance(operator, Collective):
            seconds = step * operator.size / BLOCK
            return Task(operator.name, "cp", "cp", seconds, transfer=Transfer(seconds, {}, {}, "ring", SOURCE))
        seconds = attention if isinstance(operator, Attention) else 0.0
        return Task(operator.name, "compute", "attention", seconds)

    return tuple((operator, task(operator)) for operator in operators)


RANKS, SEQ = 4, 4096
LAYOUT = Layout(tp=1, pp=1, dp=1, cp=RANKS)
SIZES = shapes(GPT, LAYOUT, Batch(1, 1, SEQ), CORE)
BLOCK = SEQ / RANKS * 2 * GPT.head_dim * 2
FORWARD = core_forward(GPT, LAYOUT, SIZES, CORE, PLAIN)
BACKWARD = core_backward(GPT, LAYOUT, SIZES, CORE, PLAIN)


def makespan(pairs: tuple[Priced, ...]) -> float:
    now, stream, ends = 0.0, 0.0, list[float]()
    for _, task in pairs:
        begin = max([now, stream if task.stream == "cp" else 0.0, *(ends[waited] for waited in task.waits)])
        ends.append(begin + float(task.seconds))
        if task.stream == "cp":
            stream = ends[-1]
        if task.blocking:
            now = ends[-1]
    return max(now, stream)


@pytest.mark.parametrize(("attention", "step"), [(3.0, 1.0), (1.0, 3.0), (2.0, 2.0)])
def test_a_ring_takes_the_longer_of_attention_and_step_after_its_own_block(attention: float, step: float) -> None:
    longer = max(attention, step)
    found = beside_attention(priced(FORWARD, attention, step))
    assert makespan(found) == attention + (RANKS - 1) * longer
    backward = beside_attention(priced(BACKWARD, attention, step))
    # Keys and values at first, gradients at last, both between.
    between = (RANKS - 2) * max(attention, 2 * step)
    assert makespan(backward) == longer + between + longer


def test_attention_waits_for_the_block_that_it_needs_and_for_no_later_one() -> None:
    found = beside_attention(priced(FORWARD, 1.0, 1.0))
    places = [index for index, (operator, _) in enumerate(found) if isinstance(operator, Collective)]
    waits = [task.waits for operator, task in found if isinstance(operator, Attention)]
    assert waits == [(), *((place,) for place in places)]
    assert all(task.blocking == (task.stream == "compute") for _, task in found)


def test_what_is_no_ring_stays_as_it_is() -> None:
    gathered = core_forward(GPT, replace(LAYOUT, cp_comm="all_gather"), SIZES, CORE, PLAIN)
    pairs = priced(gathered, 1.0, 1.0)
    assert beside_attention(pairs) == pairs


@pytest.mark.parametrize(
    ("flops", "bandwidth", "least", "sequence"),
    [(312e12, 300e9, 1.0e3, 6.2e3), (312e12, 12.5e9, 24.5e3, 149.5e3), (275e12, 268e9, 1.0e3, 6.2e3)],
    ids=["A100 NVLink", "A100 InfiniBand", "TPU v4"],
)
def test_a_block_hides_its_step_from_so_many_tokens_on(
    flops: float, bandwidth: float, least: float, sequence: float
) -> None:
    """A block of c tokens without a mask: 4 d c² FLOP against 4 c d bytes, so c >= FLOPS / bandwidth (2310.01889).

    A rank holds six of them: queries, output, and keys and values of two blocks.
    """
    assert _balanced(flops, bandwidth) == pytest.approx(flops / bandwidth)
    assert _balanced(flops, bandwidth) == pytest.approx(least, rel=0.05)
    assert 6 * _balanced(flops, bandwidth) == pytest.approx(sequence, rel=0.02)


def _balanced(flops: float, bandwidth: float) -> Any:
    """Tokens of a block whose attention takes as long as its step, from the operators' own counts."""
    tokens = 1024
    layout = replace(LAYOUT, cp_zigzag=False)
    made = core_forward(GPT, layout, shapes(GPT, layout, Batch(1, 1, RANKS * tokens), CORE), CORE, PLAIN)
    step = next(one for one in made if isinstance(one, Collective))
    block = [one for one in made if isinstance(one, Attention)][-1]
    # FLOP grow with the square of the block, bytes with the block.
    return tokens * (step.size / bandwidth) / (block.flop / flops)
