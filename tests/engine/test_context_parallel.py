"""Context parallelism in whole iterations: what a ring hides, which engine says so, and many layouts at once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shardsim.engine.closed import closed_form
from shardsim.engine.des import simulate
from shardsim.engine.listing import listing
from shardsim.engine.predict import predict
from shardsim.program.build import build
from shardsim.program.coalesce import coalesce
from shardsim.program.machine import Machine
from shardsim.program.resolve import resolve
from shardsim.schema.run import nested, request_from_mapping
from shardsim.values.operators import Attention, Collective
from shardsim.values.training import Batch, TrainingRun
from shardsim.workload.context import core_forward
from shardsim.workload.kinds import PLAIN
from shardsim.workload.shapes import shapes

LONG: dict[str, Any] = {"model": "llama-2-7b", "cluster": "dgx-a100", "framework": "megatron-core", "gpus": 32, "tp": 8,
                        "cp": 4, "global_batch": 2, "micro_batch": 1, "recompute": "none"}  # fmt: skip
WAYS = ["p2p", "all_gather", "a2a", "a2a+p2p"]


def run(**keys: Any) -> TrainingRun:
    return resolve(request_from_mapping(nested(LONG | {"seq": 16384} | keys)))


def one_step(described: TrainingRun) -> tuple[float, float]:
    """Seconds of the attention to another rank's block, and of the block on its way."""
    sizes = shapes(described.model, described.layout, described.batch, described.framework)
    core = core_forward(described.model, described.layout, sizes, described.framework, PLAIN)
    machine = Machine(described)
    block = [one for one in core if isinstance(one, Attention)][-1]
    step = next(one for one in core if isinstance(one, Collective))
    return float(machine.task(block).seconds), float(machine.task(step).seconds)


def test_a_ring_across_nodes_is_hidden_above_the_threshold_of_its_own_costs_and_shows_below_it() -> None:
    lengths = [4096 * 2**power for power in range(7)]
    hidden = [attention >= step for attention, step in (one_step(run(seq=seq)) for seq in lengths)]
    assert hidden == sorted(hidden)
    first = hidden.index(True)
    assert 0 < first < len(lengths) - 1
    for seq, exposed in ((lengths[first - 1] // 2, True), (2 * lengths[first], False)):
        shown = predict(run(seq=seq), engine="des").exposed_s["cp"]
        assert (shown > 0) == exposed


def test_what_moves_before_and_after_attention_shows_at_any_length() -> None:
    for comm in ("all_gather", "a2a"):
        assert predict(run(seq=262144, cp_comm=comm), engine="closed").exposed_s["cp"] > 0


@pytest.mark.parametrize("comm", WAYS)
@pytest.mark.parametrize("keys", [{"gpus": 64, "pp": 2, "recompute": "selective"}, {"recompute": "full"}])
def test_three_engines_agree_on_context_parallelism(comm: str, keys: dict[str, Any]) -> None:
    program = build(run(cp_comm=comm, **({"cp_inner": 2} if comm == "a2a+p2p" else {}), **keys))
    prices = coalesce(program)
    reference = listing(program).iteration_s
    for execution in (closed_form(program), closed_form(prices), listing(prices), simulate(program), simulate(prices)):
        assert execution.iteration_s == pytest.approx(reference, rel=1e-9)


@pytest.mark.parametrize("comm", WAYS)
def test_many_degrees_at_once_take_what_each_takes_alone(comm: Any) -> None:
    base = run(cp_comm=comm, **({"cp_inner": 2} if comm == "a2a+p2p" else {}))
    base = replace(base, layout=replace(base.layout, tp=2))

    def at(cp: Any, dp: Any) -> Any:
        batch = Batch(global_batch=2.0 * dp, micro_batch=1, seq_len=16384)
        layout = replace(base.layout, cp=cp, dp=dp)
        return closed_form(coalesce(build(replace(base, layout=layout, batch=batch)))).iteration_s

    degrees = [(2.0, 8.0), (8.0, 2.0), (4.0, 4.0), *([] if comm == "a2a+p2p" else [(1.0, 16.0)])]
    together = at(*(np.array(column) for column in zip(*degrees, strict=True)))
    for index, (cp, dp) in enumerate(degrees):
        assert together[index] == pytest.approx(float(at(cp, dp)), rel=1e-12)


def test_ranks_with_one_chunk_each_wait_for_the_last() -> None:
    balanced = run(seq=131072)
    apart = replace(balanced, layout=replace(balanced.layout, cp_zigzag=False))
    assert 1.3 < float(predict(apart).iteration_s) / float(predict(balanced).iteration_s) < 1.75


def test_halving_a_sequence_over_two_ranks_takes_about_half_as_long() -> None:
    """CP2 on twice the GPUs against CP1: attention and everything else are halved, tiles and messages are not."""
    alone, shared = run(cp=1, gpus=8, seq=65536), run(cp=2, gpus=16, seq=65536)
    ratio = float(predict(shared).iteration_s) / float(predict(alone).iteration_s)
    assert 0.5 < ratio < 0.56
