"""What context parallelism moves and computes: volumes in closed form, work shared evenly, and by the slowest rank."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardsim.errors import InputError
from shardsim.schema.framework import load_framework
from shardsim.schema.model import load_model
from shardsim.values.operators import Attention, Collective, Operator
from shardsim.values.training import Batch, Layout, Model
from shardsim.workload.attention import core_backward as whole_backward
from shardsim.workload.attention import core_forward as whole_forward
from shardsim.workload.context import core_backward, core_forward
from shardsim.workload.kinds import PLAIN, LayerKind
from shardsim.workload.shapes import shapes

CORE, OLD = load_framework("megatron-core"), load_framework("megatron-2019")
GPT, LLAMA = load_model("gpt3-175b"), load_model("llama-3-70b")
WINDOW = 512

degrees = st.sampled_from([1, 2, 4, 8])
chunks = st.integers(1, 40)
ways = st.sampled_from(["p2p", "all_gather", "a2a", "a2a+p2p"])


def layout_of(cp: Any, tp: Any = 1, **changes: Any) -> Layout:
    return Layout(tp=tp, pp=1, dp=1, cp=cp, **changes)


def core(model: Model, layout: Layout, seq: int, batch: Any = 1, kind: LayerKind = PLAIN) -> tuple[Operator, ...]:
    return _core(core_forward, model, layout, seq, batch, kind)


def back(model: Model, layout: Layout, seq: int, batch: Any = 1, kind: LayerKind = PLAIN) -> tuple[Operator, ...]:
    return _core(core_backward, model, layout, seq, batch, kind)


def _core(make: Any, model: Model, layout: Layout, seq: int, batch: Any, kind: LayerKind) -> tuple[Operator, ...]:
    sizes = shapes(model, layout, Batch(batch, batch, seq), CORE)
    return tuple(make(model, layout, sizes, CORE, kind))


def moved(operators: tuple[Operator, ...], *kinds: str) -> list[Collective]:
    return [one for one in operators if isinstance(one, Collective) and (not kinds or one.kind in kinds)]


def attentions(operators: tuple[Operator, ...]) -> list[Attention]:
    return [one for one in operators if isinstance(one, Attention)]


def sent(operators: tuple[Operator, ...], ranks: int) -> float:
    """Bytes that a rank sends to others."""
    own = {"send_recv": 1.0}
    return sum(one.size * own.get(one.kind, (ranks - 1) / ranks) for one in moved(operators))


def flop(operators: tuple[Operator, ...]) -> float:
    return sum(one.flop for one in attentions(operators))


# ---- volumes ------------------------------------------------------------------------------------------------------


@given(degrees, degrees, chunks, st.integers(1, 4), st.sampled_from(["p2p", "all_gather"]))
def test_megatron_moves_the_keys_and_values_of_all_others_and_twice_as_much_backward(
    cp, tp, chunk, batch, comm
) -> None:
    seq, layout = 2 * cp * chunk, layout_of(cp, tp, cp_comm=comm)
    expected = 2 * (cp - 1) / cp * batch * seq * LLAMA.kv_heads * LLAMA.head_dim / tp * 2
    assert sent(core(LLAMA, layout, seq, batch), cp) == pytest.approx(expected)
    assert sent(back(LLAMA, layout, seq, batch), cp) == pytest.approx(2 * expected)


@given(degrees, chunks, st.booleans())
def test_ulysses_moves_four_hidden_states_over_the_number_of_ranks(cp, chunk, backward) -> None:
    seq = 2 * cp * chunk
    made = (back if backward else core)(GPT, layout_of(cp, cp_comm="a2a"), seq)
    elements = sent(made, cp) / 2
    assert elements == pytest.approx(4 * seq * GPT.hidden * (cp - 1) / cp**2)


def test_sequence_parallelism_of_megatron_moves_as_much_on_any_number_of_ranks_and_ulysses_less_on_more() -> None:
    """4 N h a layer forward, gathered and scattered twice, against 4 N h / P (arXiv 2309.14509, table 2)."""
    megatron = 4 * 65536 * GPT.hidden
    for ranks in (2, 4, 8):
        ulysses = sent(core(GPT, layout_of(ranks, cp_comm="a2a"), 65536), ranks) / 2
        assert ulysses / megatron == pytest.approx((ranks - 1) / ranks**2)


def test_latent_attention_sends_the_keys_and_values_of_every_head() -> None:
    model = load_model("deepseek-v3")
    assert model.mla is not None
    step = moved(core(model, layout_of(4, tp=2), 4096))[0]
    assert step.size == 1024 * (model.heads / 2) * (192 + 128) * 2


def test_an_all_to_all_within_a_ring_shortens_the_ring_but_not_its_blocks() -> None:
    plain = core(LLAMA, layout_of(8), 65536)
    mixed = core(LLAMA, layout_of(8, cp_comm="a2a+p2p", cp_inner=4), 65536)
    assert {one.axis for one in moved(mixed, "all_to_all")} == {"cp_inner"}
    (step,) = moved(mixed, "send_recv")
    assert (step.axis, step.size) == ("cp_outer", moved(plain)[0].size)
    assert {one.heads for one in attentions(mixed)} == {16.0}
    assert [one.seq for one in attentions(mixed)] == [32768.0, 32768.0]
    assert flop(mixed) == pytest.approx(flop(plain))


# ---- work ---------------------------------------------------------------------------------------------------------


@given(degrees, chunks, ways, st.booleans())
def test_every_rank_has_its_share_of_the_causal_total(cp, chunk, comm, backward) -> None:
    seq = 2 * cp * chunk
    layout = layout_of(cp, cp_comm=comm, cp_inner=min(2, cp))
    one = flop((back if backward else core)(LLAMA, layout, seq))
    whole = flop((back if backward else core)(LLAMA, layout_of(1), seq))
    assert one * cp == pytest.approx(whole)


@given(degrees, chunks)
def test_with_one_chunk_each_the_last_rank_has_almost_twice_its_share(cp, chunk) -> None:
    seq = 2 * cp * chunk
    share = flop(core(LLAMA, layout_of(1), seq)) / cp
    ring = flop(core(LLAMA, layout_of(cp, cp_zigzag=False), seq))
    gathered = flop(core(LLAMA, layout_of(cp, cp_comm="all_gather", cp_zigzag=False), seq))
    assert ring == pytest.approx(gathered) == pytest.approx((2 - 1 / cp) * share)


@pytest.mark.parametrize("zigzag", [True, False])
def test_the_blocks_of_a_ring_are_those_of_the_score_matrix(zigzag: bool) -> None:
    """Counted score by score: zig-zag leaves every rank the same, and step by step the same."""
    cp, seq = 4, 64
    chunk = seq // (2 * cp)
    rows = [np.r_[r * chunk : (r + 1) * chunk, seq - (r + 1) * chunk : seq - r * chunk] for r in range(cp)]
    if not zigzag:
        rows = [np.arange(r * 2 * chunk, (r + 1) * 2 * chunk) for r in range(cp)]
    mask = np.arange(seq)[:, None] > np.arange(seq)[None, :]  # half of a diagonal block is counted as its lower half
    diagonal = 0.5 * np.eye(seq)
    last = [float((mask + diagonal)[np.ix_(rows[-1], rows[cp - 1 - step])].sum()) for step in range(cp)]
    made = attentions(core(GPT, layout_of(cp, cp_zigzag=zigzag), seq))
    assert [one.scores / GPT.heads for one in made] == last
    if zigzag:
        for rank in range(cp):
            steps = [float((mask + diagonal)[np.ix_(rows[rank], rows[rank - step])].sum()) for step in range(cp)]
            assert steps == last


def test_a_window_leaves_the_keys_in_it_and_the_ring_to_layers_without() -> None:
    windowed = core(LLAMA, layout_of(8), 65536, kind=LayerKind(window=WINDOW))
    assert {one.kind for one in moved(windowed)} == {"all_gather"}
    whole = flop(core(LLAMA, layout_of(1), 65536, kind=LayerKind(window=WINDOW)))
    assert flop(windowed) * 8 == pytest.approx(whole, rel=0.01)  # the first tokens see less
    assert [one.key_count for one in attentions(windowed)] == [4096.0 + WINDOW] * 2


# ---- forms --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("comm", ["p2p", "all_gather", "a2a", "a2a+p2p"])
@pytest.mark.parametrize("framework", [CORE, OLD])
def test_a_rank_of_its_own_computes_whole_sequences(comm: Any, framework: Any) -> None:
    layout = layout_of(1, cp_comm=comm, cp_inner=1)
    sizes = shapes(GPT, layout, Batch(1, 1, 2048), framework)
    assert core_forward(GPT, layout, sizes, framework, PLAIN) == whole_forward(GPT, sizes, framework)
    assert core_backward(GPT, layout, sizes, framework, PLAIN) == whole_backward(GPT, sizes, framework)


@pytest.mark.parametrize("window", [0, WINDOW])
@pytest.mark.parametrize("zigzag", [True, False])
@pytest.mark.parametrize("comm", ["p2p", "all_gather", "a2a", "a2a+p2p"])
def test_many_layouts_at_once_get_the_numbers_of_each_alone(comm: Any, zigzag: bool, window: int) -> None:
    several, kind = np.array([1.0, 2.0, 8.0, 4.0]), LayerKind(window=window)
    for make in (core, back):
        made = make(LLAMA, layout_of(several, cp_comm=comm, cp_inner=2, cp_zigzag=zigzag), 8192, kind=kind)
        for index, cp in enumerate(several):
            alone = make(LLAMA, layout_of(float(cp), cp_comm=comm, cp_inner=2, cp_zigzag=zigzag), 8192, kind=kind)
            assert _work(made, index) == _work(alone, 0)


def _work(operators: tuple[Operator, ...], index: int) -> list[tuple[Any, ...]]:
    """What does something, by name and counts."""
    rows = []
    for one in operators:
        counts = tuple(
            (field.name, float(np.broadcast_to(value, 4)[index]))
            for field in fields(one)
            if isinstance(value := getattr(one, field.name), int | float | np.ndarray) and field.name != "keys"
        )
        size = (
            one.scores if isinstance(one, Attention) else one.bytes_moved if hasattr(one, "bytes_moved") else one.size
        )
        if np.broadcast_to(size, 4)[index] > 0:
            rows.append((one.name, *counts, float(np.broadcast_to(getattr(one, "key_count", 0), 4)[index])))
    return rows


def test_attention_of_separate_kernels_is_refused() -> None:
    layout = layout_of(2)
    with pytest.raises(InputError, match="writes its scores to memory"):
        core_forward(GPT, layout, shapes(GPT, layout, Batch(1, 1, 2048), OLD), OLD, PLAIN)
