"""Embedding, LM head and loss."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from shardsim.schema.framework import load_framework
from shardsim.schema.model import load_model
from shardsim.values.operators import Collective, Elementwise, Gemm, Operator
from shardsim.values.training import Batch, Layout
from shardsim.workload.ends import embedding_backward, embedding_forward, head_backward, head_forward
from shardsim.workload.flops import head_forward_flop
from shardsim.workload.parameters import head_parameters, padded_vocab, table_parameters

OLD, CORE = load_framework("megatron-2019"), load_framework("megatron-core")
GPT, LLAMA = load_model("megatron-8.3b"), load_model("llama-3-8b")
BATCH = Batch(8, 8, 1024)
TOKENS, HIDDEN_BYTES = 8192, 8192 * 3072 * 2


def sizes(operators: tuple[Operator, ...]) -> list[tuple[str, float, str]]:
    return [(o.kind, o.size, o.role) for o in operators if isinstance(o, Collective)]


def test_the_vocabulary_of_gpt2_is_padded_to_51200_for_eight_ranks() -> None:
    gpt2 = replace(GPT, vocab=50257)
    assert padded_vocab(gpt2, OLD, 8) == 51200
    assert padded_vocab(gpt2, OLD, 1) == 50304
    assert list(padded_vocab(gpt2, OLD, np.array([1, 8]))) == [50304, 51200]  # type: ignore[arg-type]


def test_embedding_is_summed_over_ranks_once_forward_and_never_backward() -> None:
    layout = Layout(8, 1, 1)
    assert sizes(embedding_forward(GPT, layout, BATCH, OLD)) == [("all_reduce", HIDDEN_BYTES, "forward")]
    assert sizes(embedding_backward(GPT, layout, BATCH, OLD)) == []


def test_embedding_is_scattered_and_its_gradient_gathered_under_sequence_parallelism() -> None:
    layout = Layout(8, 1, 1, sp=True)
    assert sizes(embedding_forward(GPT, layout, BATCH, OLD)) == [("reduce_scatter", HIDDEN_BYTES, "forward")]
    assert sizes(embedding_backward(GPT, layout, BATCH, OLD)) == [("all_gather", HIDDEN_BYTES, "dgrad")]


def test_the_loss_sums_three_fp32_numbers_a_token_forward_and_nothing_backward() -> None:
    layout = Layout(8, 1, 1)
    assert sizes(head_forward(GPT, layout, BATCH, OLD)) == [("all_reduce", TOKENS * 4, "forward")] * 3
    assert sizes(head_backward(GPT, layout, BATCH, OLD)) == [("all_reduce", HIDDEN_BYTES, "dgrad")]


def test_lm_head_products_have_a_ranks_part_of_the_padded_vocabulary() -> None:
    layout = Layout(8, 1, 1)
    products = (*head_forward(GPT, layout, BATCH, OLD), *head_backward(GPT, layout, BATCH, OLD))
    assert {o.name: (o.m, o.k, o.n) for o in products if isinstance(o, Gemm)} == {
        "lm head": (TOKENS, 3072, 6400),
        "lm head dgrad": (TOKENS, 6400, 3072),
        "lm head wgrad": (3072, TOKENS, 6400),
    }
    counted = 8 * sum(o.flop for o in products if isinstance(o, Gemm))
    assert counted == 3 * head_forward_flop(GPT, 8, 1024, vocab=51200)


def test_the_loss_passes_over_the_logits_for_38_bytes_forward_46_with_a_copy_and_14_backward() -> None:
    layout = Layout(8, 1, 1)
    logits = TOKENS * 6400
    for operators, framework, each in ((head_forward, OLD, 46), (head_forward, CORE, 38), (head_backward, OLD, 14)):
        found = [o for o in operators(GPT, layout, BATCH, framework) if isinstance(o, Elementwise)]
        assert sum(o.bytes_moved for o in found if o.kind == "cross_entropy") == each * logits


def test_a_tied_head_is_a_copy_only_where_it_lies_on_another_stage() -> None:
    table = table_parameters(GPT, Layout(8, 1, 1), OLD)
    assert head_parameters(GPT, Layout(8, 1, 1), OLD) == 2 * 3072
    assert head_parameters(GPT, Layout(8, 4, 1), OLD) == 2 * 3072 + table
    assert list(head_parameters(GPT, Layout(8, np.array([1, 4]), 1), OLD)) == [6144, 6144 + table]  # type: ignore[arg-type]
    assert head_parameters(LLAMA, Layout(8, 1, 1), CORE) == 4096 + 4096 * 129024 / 8  # 128,256 padded to 1,024s


@pytest.mark.parametrize("sp", [False, True])
@pytest.mark.parametrize("operators", [embedding_forward, embedding_backward, head_forward, head_backward])
def test_arrays_of_layouts_give_what_each_layout_gives(operators: Any, sp: bool) -> None:
    degrees, micro = np.array([1, 2, 4, 8]), np.array([1, 2, 4, 8])
    together = operators(GPT, Layout(degrees, 1, 2, sp=sp), Batch(64, micro, 1024), OLD)
    for index in range(4):
        alone = operators(GPT, Layout(int(degrees[index]), 1, 2, sp=sp), Batch(64, int(micro[index]), 1024), OLD)
        assert len(alone) == len(together)
        for one, many in zip(alone, together, strict=True):
            for field in fields(one):
                value = getattr(many, field.name)
                assert getattr(one, field.name) == (value[index] if isinstance(value, np.ndarray) else value)
