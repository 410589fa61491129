"""What exists for a moment only, by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shardsim.schema.framework import load_framework
from shardsim.schema.model import load_model
from shardsim.values.training import Batch, Layout
from shardsim.workload.kinds import PLAIN, LayerKind
from shardsim.workload.shapes import shapes
from shardsim.workload.under_way import exchange_buffer_bytes, under_way_bytes

CORE = load_framework("megatron-core")
V3, LLAMA = load_model("deepseek-v3"), load_model("llama-3-8b")
T = 4096
ONE = Layout(1, 1, 64, ep=64)
MIXED = LayerKind(moe=True)


def moment(model: Any, layout: Layout, kind: LayerKind = PLAIN) -> float:
    return float(under_way_bytes(model, layout, shapes(model, layout, Batch(64, 1, T), CORE), kind))


def registered(model: Any, layout: Layout) -> float:
    return float(exchange_buffer_bytes(model, layout, shapes(model, layout, Batch(64, 1, T), CORE)))


def test_a_plain_layer_of_whole_sequences_has_nothing_under_way() -> None:
    assert moment(LLAMA, Layout(1, 1, 8)) == moment(V3, ONE) == 0.0


def test_results_of_experts_are_there_before_and_after_they_are_put_in_order() -> None:
    rows = 8 * T * 7168 * 2
    assert moment(V3, ONE, MIXED) == 2 * rows
    assert moment(V3, replace(ONE, imbalance=1.5), MIXED) == 3 * rows
    assert moment(V3, replace(ONE, dispatcher="allgather"), MIXED) == rows + 64 * T * 7168 * 2


def test_two_levels_bring_a_rank_each_token_once() -> None:
    """Among 64 ranks of 4 experts each, 8 choices within 4 groups of 8 ranks meet some rank twice."""
    rows, found = 8 * T * 7168 * 2, moment(V3, replace(ONE, dispatcher="deepep"), MIXED)
    assert 1.8 * rows < found < 2 * rows
    few = replace(ONE, dispatcher="deepep", ep=2)
    assert moment(V3, few, MIXED) == pytest.approx(rows + 2 * T * 7168 * 2, rel=0.02)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        # keys and values of 8 heads, and outputs of 32, of all ranks
        ({"cp_comm": "p2p"}, T * (2 * 8 + 32) * 128 * 2),
        # gathered, in order, and gradients of both
        ({"cp_comm": "all_gather"}, 4 * T * 2 * 8 * 128 * 2),
        # queries, keys, values and output of a rank, sent and received
        ({"cp_comm": "a2a"}, 2 * T / 4 * (32 + 2 * 8 + 32) * 128 * 2),
        ({"cp_comm": "a2a+p2p", "cp_inner": 2}, (T / 2 * (2 * 8 + 32) + 2 * T / 4 * (32 + 2 * 8 + 32)) * 128 * 2),
    ],
)
def test_ranks_that_share_a_sequence_hold_keys_of_others_for_a_moment(changes: Any, expected: float) -> None:
    assert moment(LLAMA, replace(Layout(1, 1, 1, cp=4), **changes)) == expected


def test_a_layer_with_a_window_gathers_keys_where_others_pass_them_on() -> None:
    layout = Layout(1, 1, 1, cp=4)
    assert moment(LLAMA, layout, LayerKind(window=128)) == moment(LLAMA, replace(layout, cp_comm="all_gather"))


def test_deepep_registers_what_its_configuration_for_64_ranks_says() -> None:
    """csrc/config.hpp: 10 channels, 8 ranks of a node with 288 tokens each, and twice 8 nodes with 128."""
    message = 7168 * 2 + 128 * (8 + 4) + 128 * 4 + 8
    layout = replace(ONE, dispatcher="deepep")
    assert registered(V3, layout) == 10 * 8 * 288 * message + 2 * 10 * 8 * 128 * (message + 16)
    assert registered(V3, replace(layout, ep=8)) == 10 * 8 * 256 * message
    assert registered(V3, replace(layout, ep=1)) == registered(V3, ONE) == registered(LLAMA, layout) == 0.0


def test_hybridep_has_room_for_every_token_of_every_rank() -> None:
    layout = replace(ONE, dispatcher="hybridep")
    assert registered(V3, layout) == 64 * T * (7168 * 2 + 256 * 4 + 7168 / 128 * 4)
    assert registered(V3, replace(layout, tp=2, dp=32)) == registered(V3, layout) / 2


@pytest.mark.parametrize("dispatcher", ["alltoall", "allgather", "deepep", "hybridep"])
def test_many_layouts_at_once_are_counted_as_each_alone(dispatcher: Any) -> None:
    ep, cp = np.array([1.0, 8.0, 64.0, 128.0]), np.array([1.0, 2.0, 1.0, 4.0])
    layouts = replace(ONE, ep=ep, cp=cp, dispatcher=dispatcher)
    sizes = shapes(V3, layouts, Batch(64, 1, T), CORE)
    together = under_way_bytes(V3, layouts, sizes, MIXED), exchange_buffer_bytes(V3, layouts, sizes)
    for index in range(4):
        one = replace(ONE, ep=int(ep[index]), cp=int(cp[index]), dispatcher=dispatcher)
        assert together[0][index] == moment(V3, one, MIXED)
        assert np.broadcast_to(together[1], 4)[index] == registered(V3, one)
