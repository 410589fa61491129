"""Fused attention: tiles counted block by block, what heads and masks cost, measurements nothing was fitted to."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardsim.cost.attention import BLOCK, attention_seconds, padded, tile_lengths
from shardsim.errors import InputError
from shardsim.schema.hardware import load_device
from shardsim.schema.kernels import load_kernel_profile
from shardsim.values.hardware import Device
from shardsim.values.kernels import AttentionConstants, AttentionLibrary, AttentionPass
from shardsim.values.operators import Attention

DEVICE = Device("example", 80e9, 2e12, {"bf16": 300e12}, 100, 400.0, "example", "invented")
ONE_WAY = AttentionPass({64: 0.4, 128: 0.6}, tile=1e-6, tail=0.5, memory_efficiency=2.0, overhead=5e-6)
OTHER_WAY = replace(ONE_WAY, efficiency={64: 0.3, 128: 0.5})
CONSTANTS = AttentionConstants({"flash2": AttentionLibrary(ONE_WAY, OTHER_WAY)}, best="flash2")
H100, HOPPER = load_device("h100-sxm-80gb"), load_kernel_profile("h100-sxm").attention
LATENT = Attention("mla", 1, 128, 128, 4096, 192, causal=True, v_head_dim=128)


def seconds(attention, device=DEVICE, constants=CONSTANTS):
    return attention_seconds(attention, device, constants, "bf16")


def backward(attention):
    return replace(attention, role="dgrad")


@given(st.integers(1, 1000), st.integers(0, 1000))
def test_tiles_have_the_blocks_that_a_mask_leaves(seq, window):
    query, key = np.arange(seq)[:, None], np.arange(seq)[None, :]
    seen = (key <= query) & ((query - key < window) | (window == 0))
    edges = range(0, seq, BLOCK)
    blocks = [[seen[q : q + BLOCK, k : k + BLOCK].any() for k in edges] for q in edges]
    assert tile_lengths(len(edges), len(edges), causal=True, window=window) == (
        max(map(sum, blocks)),
        sum(map(sum, blocks)),
    )


@given(st.integers(1, 12), st.integers(0, 12), st.integers(0, 2000))
def test_chunks_of_queries_have_the_blocks_of_their_rows(rows, before, window):
    columns = rows + before
    query, key = np.arange(before * BLOCK, columns * BLOCK)[:, None], np.arange(columns * BLOCK)[None, :]
    seen = (key <= query) & ((query - key < window) | (window == 0))
    blocks = [
        seen[q : q + BLOCK].any(axis=0).reshape(columns, BLOCK).any(axis=1).sum() for q in range(0, rows * BLOCK, BLOCK)
    ]
    assert tile_lengths(rows, columns, causal=True, window=window) == (max(blocks), sum(blocks))


def test_queries_in_two_chunks_take_the_scores_of_one():
    core = Attention("core", 2, 8, 2, 4096, 128, causal=True, window=1000)
    first, second = replace(core, seq=2048, keys=2048), replace(core, seq=2048, keys=4096)
    assert first.scores + second.scores == core.scores
    assert replace(core, window=0).scores == 16 * 4096**2 / 2
    assert replace(second, window=0).bytes_moved == 2 * (2048 * 8 + 4096 * 2) * 256 * 2


def test_a_block_of_a_ring_takes_as_long_as_its_tiles():
    block = replace(Attention("core", 1, 100, 100, 1024, 128, causal=False), keys=512)
    product, traffic = 2 * 128**3 / (0.6 * 3e12), 1536 * 100 * 256 * 2 / 4e12
    assert seconds(block) == pytest.approx(5e-6 + 32 * 2 * product + 8e-6 + 0.5 * (4 * 2 * product + 1e-6) + traffic)
    slower = product * 0.6 / 0.5  # backward, a tile is a column: 4 of 8 blocks
    backwards = 5e-6 + 32 * 5 * slower + 4e-6 + 0.5 * (8 * 5 * slower + 1e-6) + 2 * traffic
    assert seconds(backward(block)) == pytest.approx(backwards)


def test_a_step_that_only_other_layouts_take_costs_nothing():
    some = Attention("core", np.array([1.0, 0.0]), 100, 100, 1024, 128, causal=False)
    assert list(seconds(some)) == [seconds(replace(some, batch=1.0)), 0.0]


def test_a_long_kernel_takes_its_blocks_at_the_rate_of_all_multiprocessors_its_tail_and_its_traffic():
    found = seconds(Attention("core", 1, 100, 100, 1024, 128, causal=True))
    block = 2 * 2 * 128**3 / (0.6 * 3e12)
    traffic = 1024 * 128 * 400 * 2 / (2.0 * 2e12)
    assert found == pytest.approx(5e-6 + 36 * block + 8e-6 + 0.5 * (8 * block + 1e-6) + traffic)


def test_a_kernel_of_one_tile_takes_as_long_as_that_tile():
    found = seconds(Attention("core", 1, 1, 1, 128, 128, causal=True))
    assert found == pytest.approx(5e-6 + 2 * 2 * 128**3 / (0.6 * 3e12) + 1e-6 + 128 * 128 * 4 * 2 / 4e12)


def test_backward_multiplies_five_times_for_two():
    core = Attention("core", 1, 8, 8, 4096, 128, causal=True)
    assert backward(core).flop == pytest.approx(2.5 * core.flop)
    assert LATENT.flop == pytest.approx(0.687e12, rel=1e-3)
    assert backward(LATENT).flop == pytest.approx(1.787e12, rel=1e-3)


def test_a_causal_mask_saves_almost_half_of_long_sequences_and_little_of_short_ones():
    def share(seq):
        core = Attention("core", 16384 / seq, 16, 16, seq, 128, causal=True, library="flash3")
        return seconds(core, H100, HOPPER) / seconds(replace(core, causal=False), H100, HOPPER)

    assert 0.5 < share(16384) < 0.55
    assert 0.7 < share(512) < 0.9


def test_a_window_makes_time_proportional_to_the_sequence():
    core = Attention("core", 1, 32, 32, 16384, 128, causal=True, window=1024)
    assert seconds(replace(core, seq=32768)) == pytest.approx(2 * seconds(core), rel=0.05)
    assert core.flop == pytest.approx(4 * 32 * 128 * 16384 * 1024, rel=0.04)


@pytest.mark.parametrize(("head_dim", "runs_as"), [(80, 96), (108, 128), (160, 192), (33, 64)])
def test_a_head_dimension_without_a_kernel_costs_as_much_as_the_next_that_has_one(head_dim, runs_as):
    assert padded(head_dim, (32, 64, 96, 128, 192, 256)) == runs_as
    core = Attention("core", 8, 32, 32, 4096, head_dim, causal=True)
    assert seconds(core) == pytest.approx(seconds(replace(core, head_dim=runs_as)), rel=0.05)


def test_fewer_keys_and_values_save_only_their_traffic():
    core = Attention("core", 8, 32, 32, 1024, 128, causal=True)
    saved = seconds(core) - seconds(replace(core, kv_heads=4))
    assert saved == pytest.approx(2 * 8 * 28 * 1024 * 128 * 2 / (2.0 * 2e12))


@pytest.mark.parametrize(("role", "published"), [("forward", 1237e-6), ("dgrad", 3779e-6)])
def test_latent_attention_of_a_published_kernel_trace(role, published):
    """DeepSeek-V3 on H800, github deepseek-ai/profile-data train.json; the library is not said, and none is fitted."""
    h800 = load_device("h800-sxm")
    assert seconds(replace(LATENT, role=role, library="cudnn"), h800, HOPPER) == pytest.approx(published, rel=0.06)


@pytest.mark.parametrize(
    ("seq", "least", "most"), [(512, 3.1, 3.6), (1024, 2.9, 3.2), (4096, 2.7, 3.1), (16384, 2.6, 2.9)]
)
def test_backward_takes_2_6_to_3_6_times_as_long_as_forward_the_shorter_the_more(seq, least, most):
    core = Attention("core", 16384 / seq, 16, 16, seq, 128, causal=True, library="flash2")
    assert least < seconds(backward(core), H100, HOPPER) / seconds(core, H100, HOPPER) < most


@pytest.mark.parametrize("role", ["forward", "dgrad"])
@pytest.mark.parametrize("window", [0, 300])
def test_arrays_over_layouts_and_lengths_give_what_scalars_give(role, window):
    heads, seq = np.array([1.0, 12.0, 96.0, 8.0]), np.array([100.0, 512.0, 4097.0, 8192.0])
    together = seconds(Attention("core", 2.0, heads, heads / 4, seq, 128, True, role, window=window))
    alone = [
        seconds(Attention("core", 2.0, h, h / 4, s, 128, True, role, window=window))
        for h, s in zip(heads.tolist(), seq.tolist(), strict=True)
    ]
    assert together.tolist() == alone


def test_flash_is_the_best_that_was_measured_and_a_library_that_was_not_is_refused():
    core = Attention("core", 1, 8, 8, 4096, 128, causal=True)
    assert seconds(core) == seconds(replace(core, library="flash2"))
    with pytest.raises(InputError, match="flash3") as caught:
        seconds(replace(core, library="flash3"))
    assert "one of unfused, flash2" in str(caught.value)


def test_fp8_runs_attention_in_16_bits():
    core = Attention("core", 1, 8, 8, 4096, 128, causal=True)
    assert attention_seconds(core, DEVICE, CONSTANTS, "fp8") == seconds(core)
