"""Matrix products: waves and splits by hand, regimes, alignment, layouts, narrow types; scalars and arrays alike."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from shardsim.cost.gemm import alignment_factor, fastest_tiles, gemm_seconds, residual_log, tiled_gemm_seconds
from shardsim.schema.hardware import load_device
from shardsim.schema.kernels import load_kernel_profile
from shardsim.values.hardware import Device
from shardsim.values.kernels import (
    AlignmentShare,
    AttentionConstants,
    GemmConstants,
    GemmResidual,
    KernelConstants,
    MemoryBoundConstants,
    TileConstants,
)
from shardsim.values.operators import Gemm

SHARED = Path(__file__).resolve().parents[3] / "shared"
PEAK, UNITS, BANDWIDTH = 100e12, 100, 1e12
DEVICE = Device("example", 80e9, BANDWIDTH, {"bf16": PEAK, "fp8": 2 * PEAK}, UNITS, 400.0, "example", "invented")
TILE = TileConstants((1.0, 1.0, 1.0, 1.0), 1e-6, 2e-6, 1.0, 1.0, 0.1, 4.0)
SHARES = (AlignmentShare(64, 0.95, 0.9), AlignmentShare(16, 0.8, 0.55), AlignmentShare(1, 0.685, 0.347))


def kernels(**keys):
    own = GemmConstants(**{"sustained": 0.5, "memory_efficiency": 0.8, "overhead": 3e-6, "tile": TILE} | keys)
    products = {"bf16": own, "fp8": own}
    return KernelConstants("example", products, AttentionConstants({}, "flash2"), MemoryBoundConstants({}, 0.0))


def tiles(m, n, k, constants=TILE):
    columns = (np.array([float(x)]) for x in (m, n, k, 1))
    return float(fastest_tiles(*columns, constants, PEAK / UNITS, UNITS, BANDWIDTH)[0])


def burst(m, n, k, **keys):
    given = {"constants": TILE, "peak": PEAK, "multiprocessors": UNITS, "bandwidth": BANDWIDTH} | keys
    return tiled_gemm_seconds(m, n, k, 1.0, bytes_moved=2 * (m * k + k * n + m * n), memory_efficiency=0.8, **given)


def test_a_full_wave_of_the_largest_tiles_takes_the_time_of_one_tile():
    largest_only = replace(TILE, efficiency=(1e-3, 1e-3, 1e-3, 1.0))
    one = 2 * 128 * 256 * 4096 / (PEAK / UNITS) + 1e-6
    assert tiles(128 * 10, 256 * 10, 4096, largest_only) == pytest.approx(one)


def test_one_row_more_than_a_wave_costs_a_second_wave_where_all_tiles_start_together():
    largest_only = replace(TILE, efficiency=(1e-3, 1e-3, 1e-3, 1.0))
    full, more = (tiles(m, 2560, 256, largest_only) for m in (1280, 1281))
    assert more == pytest.approx(2 * full)
    drifting = replace(largest_only, wave_quantization=0.1)
    assert tiles(1281, 2560, 256, drifting) == pytest.approx((1.1 + 0.1 * 0.9) * full)


def test_a_small_result_is_split_along_k_and_pays_for_the_partial_sums():
    unsplit = 2 * 64 * 64 * 16384 / (PEAK / UNITS) + 1e-6
    split = 2 * 64 * 64 * 1024 / (PEAK / UNITS) + 1e-6 + 2e-6 + 8 * 16 * 64 * 64 / BANDWIDTH
    assert tiles(64, 64, 16384) == pytest.approx(split)
    assert split < unsplit
    assert tiles(64, 64, 256) == pytest.approx(2 * 64 * 64 * 256 / (PEAK / UNITS) + 1e-6)


def test_k_is_consumed_in_steps_of_64():
    assert tiles(4096, 4096, 1000) == tiles(4096, 4096, 1024)


def test_256x256_tiles_are_used_only_where_the_profile_has_them():
    with_them = replace(TILE, efficiency=(1e-3, 1e-3, 1e-3, 1e-3, 1.0))
    assert tiles(2560, 2560, 4096, with_them) == pytest.approx(2 * 256 * 256 * 4096 / (PEAK / UNITS) + 1e-6)


def test_long_bursts_lose_clock_until_they_have_settled():
    ideal = np.array([1e-4, 1e-3, 1e-1, 1e1])
    size = np.cbrt(ideal * PEAK / 2)
    power_only = replace(TILE, efficiency=(1e3, 1e3, 1e3, 1e3), fill=0.0, sharpness=50.0)
    times = burst(size, size, size, constants=power_only, bandwidth=1e20)
    assert times / ideal == pytest.approx(np.exp(0.1 * np.array([0.0, 1.0, 2.5, 2.5])), rel=1e-3)


def test_training_holds_no_more_than_the_sustained_share_and_a_burst_may():
    gemm = Gemm("square", 8192.0, 8192.0, 8192.0)
    sustained, short = (gemm_seconds(gemm, DEVICE, kernels(), "bf16", regime) for regime in ("sustained", "burst"))
    assert sustained == pytest.approx(3e-6 + gemm.flop / (0.5 * PEAK))
    assert short < 0.7 * sustained
    thin = Gemm("one row", 1.0, 8192.0, 8192.0)
    assert gemm_seconds(thin, DEVICE, kernels(), "bf16") == gemm_seconds(thin, DEVICE, kernels(), "bf16", "burst")


def test_weight_gradients_that_accumulate_in_fp32_move_eight_bytes_a_weight():
    plain = Gemm("wgrad", 1024, 2048, 512, role="wgrad", layout="nt")
    summed = replace(plain, output_bytes=4, accumulates=True)
    assert plain.bytes_moved == 2 * (1024 * 2048 + 2048 * 512 + 1024 * 512)
    assert summed.bytes_moved - plain.bytes_moved == (8 - 2) * 1024 * 512
    assert summed.flop == plain.flop


def test_narrow_operands_halve_their_traffic_and_double_the_peak():
    thin, square = Gemm("thin", 1.0, 8192.0, 8192.0), Gemm("square", 8192.0, 8192.0, 8192.0)
    own = kernels(tile=None)
    ratio = [
        (gemm_seconds(one, DEVICE, own, "fp8") - 3e-6) / (gemm_seconds(one, DEVICE, own, "bf16") - 3e-6)
        for one in (thin, square)
    ]
    assert ratio == pytest.approx([0.5, 0.5], rel=2e-3)


def test_layouts_other_than_forward_take_their_own_time():
    own = kernels(layout_time={"nn": 1.1})
    tn, nn, nt = (gemm_seconds(Gemm("g", 4096, 4096, 4096, layout=x), DEVICE, own, "bf16") for x in ("tn", "nn", "nt"))
    assert nn - 3e-6 == pytest.approx(1.1 * (tn - 3e-6))
    assert nt == tn


@pytest.mark.parametrize(("layout", "leading"), [("tn", (3, 3, 5)), ("nn", (3, 5, 5)), ("nt", (2, 5, 5))])
def test_leading_dimensions_follow_the_layout(layout, leading):
    assert Gemm("g", 2, 3, 5, layout=layout).leading_dimensions == leading


@pytest.mark.parametrize(
    ("size", "usual", "worst"),
    [(128, 1, 1), (8192, 1, 1), (64, 0.95, 0.9), (192, 0.95, 0.9), (16, 0.8, 0.55), (2 * 10922, 0.685, 0.347)],
)
def test_shares_of_misaligned_products_go_by_the_bytes_that_divide_the_leading_dimension(size, usual, worst):
    assert alignment_factor([size, 128], SHARES) == usual
    assert alignment_factor([128, size], SHARES, "worst") == worst


def test_an_odd_number_of_tokens_is_harmless_and_an_odd_width_is_not():
    own = kernels(alignment=SHARES)
    even, odd_rows, odd_width = (
        gemm_seconds(Gemm("g", m, 4096, n), DEVICE, own, "bf16") for m, n in ((4096, 4096), (4095, 4096), (4096, 4095))
    )
    assert odd_rows < even
    assert odd_width == pytest.approx(even / 0.685, rel=0.01)


def test_h100_swiglu_of_width_10922_reaches_0_685_of_10944_as_measured():
    """https://github.com/stas00/ml-engineering, training/performance: 272.73 against 398.38 TFLOP/s."""
    device, own = load_device("h100-sxm-80gb"), load_kernel_profile("h100-sxm")

    def rate(width):
        both = (Gemm("up", 8192, 4096, width), Gemm("down", 8192, width, 4096))
        return sum(g.flop for g in both) / sum(gemm_seconds(g, device, own, "bf16", "burst") for g in both)

    assert rate(10922) / rate(10944) == pytest.approx(272.73 / 398.38, rel=0.02)
    assert rate(10912) / rate(10944) > 0.94


def test_an_ffn_shard_that_lost_its_alignment_lies_within_the_worst_documented():
    """arXiv 2502.05413 as cited: 65.3 % fewer FLOPS after a migration."""
    shares = load_kernel_profile("h100-sxm").gemm["bf16"].alignment
    odd = [2.0 * 10923]
    assert alignment_factor(odd, shares, "worst") == pytest.approx(1 - 0.653)
    assert 1 - 0.653 < alignment_factor(odd, shares) < 0.75


@pytest.mark.parametrize(
    ("table", "device", "profile"),
    [("a100 sgl", "a100-sxm-80gb", "a100-sxm"), ("h100 trt", "h100-sxm-80gb", "h100-sxm")],
)
def test_tensor_parallel_slices_of_a_layer_cost_what_was_measured(table, device, profile):
    path = SHARED / "operators" / "tp_slices_measured_only.csv"
    if not path.exists():
        pytest.skip("the measured slices are not beside the checkout")
    with path.open(newline="", encoding="utf-8") as stream:
        rows = [row for row in csv.DictReader(stream) if row["table"] == table]
    own, on, errors = load_kernel_profile(profile), load_device(device), []
    for row in rows:
        h, m, tp = (float(row[name]) for name in ("h", "tokens", "tp"))
        widths = ((h, 3 * h / tp), (h / tp, h), (h, 4 * h / tp), (4 * h / tp, h))
        seconds = sum(gemm_seconds(Gemm("slice", m, k, n), on, own, "bf16", "burst") for k, n in widths)
        errors.append(abs(seconds / (float(row["gemm_fwd_us"]) * 1e-6) - 1))
    assert len(errors) >= 10
    assert np.median(errors) < 0.05
    assert np.quantile(errors, 0.9) < 0.12


def grid(m=(6.0, 10.0), value=lambda i, j, k: 0.1 * i + 0.2 * j + 0.3 * k):
    planes = tuple(tuple(tuple(value(i, j, k) for k in range(3)) for j in range(2)) for i in range(len(m)))
    return GemmResidual(m, (8.0, 12.0), (8.0, 12.0, 16.0), planes)


@pytest.mark.parametrize(
    ("log2", "expected"),
    [((6, 8, 8), 0.0), ((10, 12, 16), 0.9), ((8, 10, 10), 0.3), ((0, 0, 14), 0.45), ((20, 20, 20), 0.9)],
)
def test_the_residual_is_linear_between_knots_and_constant_beyond(log2, expected):
    found = residual_log(np.array([[2.0**x] for x in log2]), grid())
    assert found[0] == pytest.approx(expected)


def test_the_residual_multiplies_single_products_and_leaves_batched_ones():
    same = grid(value=lambda *_: 0.1)
    assert burst(4096.0, 4096.0, 4096.0, residual=same) == pytest.approx(np.exp(0.1) * burst(4096.0, 4096.0, 4096.0))
    batched = [
        tiled_gemm_seconds(
            512.0, 512.0, 64.0, 16.0, bytes_moved=1e6, constants=TILE, peak=PEAK, multiprocessors=UNITS,
            bandwidth=BANDWIDTH, memory_efficiency=0.8, residual=residual,
        )
        for residual in (same, None)
    ]  # fmt: skip
    assert batched[0] == batched[1]


@pytest.mark.parametrize("profile", ["a100-sxm", "b200-sxm", "v100-sxm"])
def test_arrays_of_products_give_what_scalars_give_to_the_last_bit(profile):
    device = load_device({"v100-sxm": "v100-sxm2-32gb", "a100-sxm": "a100-sxm-80gb"}.get(profile, profile))
    own, dtype = load_kernel_profile(profile), "fp16"
    rng = np.random.default_rng(1)
    m, n, k = (np.round(2.0 ** rng.uniform(0, 15, 3000)) for _ in range(3))
    batch = np.where(rng.random(3000) < 0.8, 1.0, 32.0)
    priced = gemm_seconds(Gemm("any", m, k, n, batch), device, own, dtype)
    some = rng.permutation(3000)[:300]
    one_by_one = [gemm_seconds(Gemm("any", *(float(x[i]) for x in (m, k, n, batch))), device, own, dtype) for i in some]
    assert np.asarray(priced)[some].tolist() == one_by_one


def test_shapes_broadcast_and_keep_their_dimensions():
    grid_ = burst(np.array([[128.0], [1024.0]]), np.array([256.0, 512.0, 1024.0]), 4096.0)
    assert np.shape(grid_) == (2, 3)
    assert grid_[1, 2] == burst(1024.0, 1024.0, 4096.0)
