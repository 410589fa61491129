"""Unfused attention where the fused softmax kernel does not take the scores, and operands in 8 bits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from shardsim.schema.framework import load_framework
from shardsim.schema.model import load_model
from shardsim.values.operators import Elementwise
from shardsim.values.training import Batch, Layout
from shardsim.workload.attention import softmax_warning
from shardsim.workload.layer import layer_backward, layer_forward

MID, GPT = load_framework("megatron-2021"), load_model("narayanan-18.4b")


def softmax(operators):
    (found,) = (o for o in operators if isinstance(o, Elementwise) and o.kind == "softmax")
    return found


def scores(seq, micro, tp):
    return micro * 48 / tp * seq * seq


@pytest.mark.parametrize(
    ("seq", "micro", "tp", "fits"),
    [(2048, 1, 8, False), (2048, 2, 8, True), (2048, 1, 4, True), (4096, 2, 8, False), (2046, 2, 8, False)],
)
def test_the_fused_softmax_takes_4_matrices_at_a_time_and_at_most_2048_tokens(seq, micro, tp, fits):
    shape = (GPT, Layout(tp, 1, 1), Batch(micro, micro, seq), MID)
    forward, backward = softmax(layer_forward(*shape)), softmax(layer_backward(*shape))
    n = scores(seq, micro, tp)
    assert (forward.kernels, backward.kernels) == ((1, 1) if fits else (5, 5))
    assert (forward.bytes_moved, backward.bytes_moved) == ((3 * n, 4 * n) if fits else (36 * n, 40 * n))
    assert (softmax_warning(*shape) is None) == fits


def test_a_later_megatron_takes_longer_sequences():
    shape = (GPT, Layout(8, 1, 1), Batch(2, 2, 4096), replace(MID, fused_softmax_max_seq=4096))
    assert softmax(layer_forward(*shape)).kernels == 1


def test_layouts_side_by_side_fuse_each_for_itself():
    batch = Batch(2, 1, 2048)
    together = softmax(layer_forward(GPT, Layout(np.array([4, 8]), 1, 1), batch, MID))
    alone = [softmax(layer_forward(GPT, Layout(tp, 1, 1), batch, MID)) for tp in (4, 8)]
    assert together.bytes_moved.tolist() == [one.bytes_moved for one in alone]
    assert together.kernels.tolist() == [one.kernels for one in alone]
