"""Products fitted tile by tile: constants put into synthetic times come out again, and the written file reads back."""

from __future__ import annotations

import numpy as np
import pytest

from shardsim.calibrate.gemm import (
    GemmTable,
    MoeTable,
    fit_residual,
    fit_tiles,
    predicted_seconds,
    tile_constants,
)
from shardsim.calibrate.gemmfile import ProductFit, gemm_yaml
from shardsim.calibrate.gemms import fit_table, folds, held_out, sustained_share
from shardsim.calibrate.grouped import fit_grouped
from shardsim.cost.gemm import residual_log
from shardsim.schema.gemm_recipes import load_gemm_recipes
from shardsim.schema.hardware import load_device
from shardsim.schema.kernels import load_kernel_profile
from shardsim.values.provenance import Provenance

A100 = load_device("a100-sxm-80gb")
TRUE = {
    "gemm_overhead": 1.5e-6, "gemm_memory_efficiency": 0.7, "fill": 4e-6, "split_overhead": 1e-6,
    "wave_quantization": 0.9, "burst_cap": 0.85, "burst_decay": 0.05, "sharpness": 4.0, "64x64": 0.6, "64x128": 0.7,
    "128x128": 0.8, "128x256": 0.9,
}  # fmt: skip


def shapes():
    sizes = np.array([256.0, 768.0, 2048.0, 4096.0, 12288.0])
    return tuple(grid.ravel() for grid in np.meshgrid(np.append(sizes, 1024.0), sizes, sizes))


def table(constants=TRUE, dtype="fp16"):
    m, n, k = shapes()
    return GemmTable(m, n, k, predicted_seconds(m, n, k, constants, A100, dtype))


def fit(measured, **keys):
    return fit_tiles(measured.m, measured.n, measured.k, measured.seconds, A100, "fp16", **keys)


def test_tiles_are_recovered_from_their_own_times():
    found = fit(table(), tether=0.0)
    assert found.median_error < 0.002
    assert found.constants["wave_quantization"] == pytest.approx(0.9, abs=0.05)
    assert found.constants["fill"] == pytest.approx(4e-6, rel=0.15)
    assert found.constants["128x256"] == pytest.approx(0.9, rel=0.05)


def test_what_the_data_does_not_determine_stays_at_its_start():
    whole = table()
    found = fit(whole.where((whole.m >= 2048) & (whole.n >= 2048)), starts={"split_overhead": 5e-6})
    assert found.constants["split_overhead"] == pytest.approx(5e-6, rel=0.02)
    assert found.median_error < 0.02


def test_layouts_are_recovered_beside_the_tiles():
    layouts = np.resize(np.array(["tn", "nn", "nt"]), 150)
    measured = table()
    slower = GemmTable(measured.m, measured.n, measured.k, measured.seconds * np.where(layouts == "nt", 1.1, 1.0))
    found = fit(slower, layouts=layouts).constants
    assert found["nt"] == pytest.approx(1.1, abs=0.02)
    assert found["nn"] == pytest.approx(1.0, abs=0.02)


def test_quantisation_is_told_apart_from_the_product():
    quantised = {**TRUE, "quantization_traffic": 7.5, "quantization_overhead": 3e-6}
    found = fit(table(quantised), overhead=TRUE["gemm_overhead"]).constants
    assert found["quantization_traffic"] == pytest.approx(7.5, rel=0.1)
    assert found["gemm_overhead"] == TRUE["gemm_overhead"]


def test_a_smooth_residual_comes_back_and_noise_does_not():
    m, n, k = (np.concatenate([side] * 20) for side in shapes())
    true = 0.1 * (np.log2(k) - 11)
    noise = np.random.default_rng(0).normal(0.0, 0.05, len(m))
    found = residual_log(np.stack([m, n, k]), fit_residual(m, n, k, true + noise))
    assert np.abs(found - true).max() < 0.05


def test_whole_pairs_are_held_out():
    measured = table()
    fold = folds(measured)
    pairs = {(n, k, f) for n, k, f in zip(measured.n.tolist(), measured.k.tolist(), fold.tolist(), strict=True)}
    assert len(pairs) == 25
    predicted, _ = held_out(measured, A100, "fp16", 4, grid=False)
    assert np.median(np.abs(predicted / measured.seconds - 1)) < 0.03


def test_the_sustained_share_is_that_of_long_products_without_quantisation():
    m = np.array([32768.0, 16384.0, 1024.0])
    long_ones = GemmTable(m, m, m, 2 * m**3 / 250e12 + 2.0 * m * m / A100.memory_bandwidth)
    share, count = sustained_share([long_ones] * 2, {"quantization_traffic": 2.0}, A100, 312e12)
    assert (share, count) == (pytest.approx(250 / 312), 2)


def test_grouped_products_are_recovered_from_their_own_layers():
    tokens, hidden, inter = (x.ravel() for x in np.meshgrid([4096.0, 16384.0], [2048.0, 4096.0], [1024.0, 4096.0]))
    layers = [MoeTable(tokens, hidden, inter, *(np.full(8, x) for x in (2.0, e, e / 8)), tokens) for e in (2.0, 8.0)]
    both = MoeTable(*(np.concatenate([getattr(one, name) for one in layers]) for name in MoeTable.__slots__))
    first = fit_grouped(both, TRUE, A100)
    seconds = first.predict(both, TRUE, A100)
    again = fit_grouped(MoeTable(*(getattr(both, name) for name in MoeTable.__slots__[:-1]), seconds), TRUE, A100)
    assert again.median_error < 1e-3
    assert again.constants.slowdown == pytest.approx(first.constants.slowdown, rel=0.02)


def test_a_written_profile_reads_back(tmp_path):
    measured = table()
    found = fit_table(measured, A100, "bf16", 4)
    note = Provenance("fitted", "lab", 0.02, len(measured))
    aligned = {"1": ((0.685, note), (0.35, note))}
    product = ProductFit(found.constants, note, 0.8, Provenance("measured", "lab"), found.residual)
    sources = {"lab": "our own", "unused": "not cited"}
    text = gemm_yaml("mine", ["a100-sxm-80gb"], sources, aligned, {"bf16": product, "fp16": "bf16"})
    assert "unused" not in text
    (tmp_path / "mine.yaml").write_text(text, encoding="utf-8")
    read = load_kernel_profile("a100-sxm", changes={"kernels.gemm": str(tmp_path / "mine.yaml")})
    own = read.gemm["bf16"]
    assert own.tile is not None
    assert own.tile.efficiency == pytest.approx(tile_constants(found.constants).efficiency, rel=1e-3)
    assert own.tile.fill == pytest.approx(found.constants["fill"], rel=1e-3)
    assert own.residual is not None
    assert own.residual.log2_m == found.residual.log2_m
    assert own.alignment[0].usual == 0.685
    assert read.gemm["fp16"] == own
    assert read.provenance["gemm.bf16.tile.fill"] == Provenance("fitted", "our own", 0.02, 150)


def test_every_recipe_names_a_device_its_alignment_and_earlier_profiles():
    recipes = load_gemm_recipes()
    names = list(recipes.recipes)
    for name, recipe in recipes.recipes.items():
        assert load_device(recipe.device).compute_profile == name
        assert recipe.alignment in recipes.alignments
        assert recipe.like is None or names.index(recipe.like) < names.index(name)
