"""Multi-token prediction: one more module behind the last layer, one more LM head and loss."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from shardsim.schema.framework import load_framework
from shardsim.schema.model import load_model
from shardsim.values.operators import Collective, Gemm, Operator
from shardsim.values.training import Batch, Layout
from shardsim.workload.ends import embedding_forward, head_backward, head_forward
from shardsim.workload.kinds import prediction_kind
from shardsim.workload.layer import layer_forward
from shardsim.workload.parameters import mtp_own_parameters, mtp_parameters, norm_parameters
from shardsim.workload.prediction import prediction_backward, prediction_forward
from shardsim.workload.schedules import make_schedule
from shardsim.workload.stages import chunk_contents

CORE = load_framework("megatron-core")
DENSE = load_model("llama-3-8b")
V3 = load_model("deepseek-v3")
BATCH = Batch(64, 1, 4096)
TOKENS, H = 4096, DENSE.hidden


def flop(operators: tuple[Operator, ...]) -> float:
    return sum(one.flop for one in operators if isinstance(one, Gemm))


def sizes(operators: tuple[Operator, ...], kind: str) -> float:
    return sum(float(one.size) for one in operators if isinstance(one, Collective) and one.kind == kind)


@pytest.mark.parametrize("tp", [1, 4])
def test_a_module_adds_its_projection_to_a_layer_and_an_embedding(tp: int) -> None:
    """2 T 2h h FLOP forward, and twice that backward."""
    layout = Layout(tp, 1, 1)
    projection = 2 * TOKENS * 2 * H * H / tp
    layer = flop(layer_forward(DENSE, layout, BATCH, CORE))
    assert flop(prediction_forward(DENSE, layout, BATCH, CORE)) == pytest.approx(projection + layer)
    assert flop(prediction_backward(DENSE, layout, BATCH, CORE)) == pytest.approx(2 * (projection + layer))


def test_sequence_parallelism_gathers_inputs_of_twice_the_width() -> None:
    """Forward: the projection's input of 2h and its output of h, beside what layer and embedding communicate."""
    layout, hidden = Layout(4, 1, 1, sp=True), TOKENS * H * 2
    parts = (*embedding_forward(DENSE, layout, BATCH, CORE), *layer_forward(DENSE, layout, BATCH, CORE))
    module = prediction_forward(DENSE, layout, BATCH, CORE)
    assert sizes(module, "all_gather") - sizes(parts, "all_gather") == 3 * hidden
    assert sizes(module, "reduce_scatter") == sizes(parts, "reduce_scatter")


def test_forward_and_backward_have_their_mirrors() -> None:
    for sp in (False, True):
        layout = Layout(4, 1, 1, sp=sp)
        roles = Counter(one.role for one in prediction_backward(DENSE, layout, BATCH, CORE) if isinstance(one, Gemm))
        forward = [one for one in prediction_forward(DENSE, layout, BATCH, CORE) if isinstance(one, Gemm)]
        assert roles == {"dgrad": len(forward), "wgrad": len(forward)}


def test_its_layer_is_of_the_last_layers_kind() -> None:
    assert prediction_kind(V3).moe
    assert not prediction_kind(DENSE).moe


def test_its_own_parameters_are_three_norms_and_the_projection() -> None:
    """DeepSeek-V3's module: 2 h h + 3 h besides its layer (arXiv 2412.19437, equation 21)."""
    assert mtp_own_parameters(V3, Layout(1, 1, 1)) == 3 * 7168 + 2 * 7168**2
    assert norm_parameters(V3) == 7168
    assert mtp_parameters(V3, Layout(1, 1, 1), CORE).total > mtp_own_parameters(V3, Layout(1, 1, 1))


def test_each_further_token_takes_one_more_head_and_loss() -> None:
    layout = Layout(1, 1, 1)
    for head in (head_forward, head_backward):
        plain, further = head(DENSE, layout, BATCH, CORE), head(replace(DENSE, mtp=2), layout, BATCH, CORE)
        assert flop(further) == 3 * flop(plain)
        assert {one.name for one in further} == {one.name for one in plain}
        norms = [[one for one in ops if one.name.startswith("final norm")] for ops in (plain, further)]
        assert norms[0] == norms[1] != []


def test_degrees_may_be_arrays() -> None:
    tp = np.array([1, 2, 4])
    many = prediction_forward(DENSE, Layout(tp, 1, 1), BATCH, CORE)
    for index, degree in enumerate(tp):
        one = prediction_forward(DENSE, Layout(int(degree), 1, 1), BATCH, CORE)
        assert flop(many)[index] == flop(one)  # type: ignore[index]


def test_modules_lie_on_the_last_virtual_stage_or_where_the_layout_says() -> None:
    model = replace(DENSE, mtp=1)
    schedule = make_schedule("interleaved", 2, 4, 2)
    last = chunk_contents(model, Layout(1, 2, 1, vpp=2), schedule)
    assert [content.mtp for content in last.values()] == [0, 0, 0, 1]
    third = chunk_contents(model, Layout(1, 2, 1, vpp=2, mtp_stage=2), schedule)
    assert [content.mtp for content in third.values()] == [0, 0, 1, 0]
    assert [content.mtp for content in chunk_contents(DENSE, Layout(1, 2, 1, vpp=2), schedule).values()] == [0] * 4
