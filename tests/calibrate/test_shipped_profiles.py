"""Shipped constants come out of the measurements they name, where those are at hand."""

from __future__ import annotations

import csv
import importlib.util
from pathlib import Path

import numpy as np
import pytest

from shardsim.calibrate.fabrics import table_cells
from shardsim.calibrate.gemm import fit_tiles
from shardsim.calibrate.measured import PACKAGES, medians, read_measured
from shardsim.cost.collectives import collective_transfer
from shardsim.cost.gemm import tiled_gemm_seconds
from shardsim.schema.hardware import load_cluster, load_device, load_fabric_profile, load_kernel_profile
from shardsim.values.hardware import GroupShape, TileConstants

SHARED = Path(__file__).resolve().parents[3] / "shared"
GEMMS = SHARED / "operators" / "v100_p100_t4_deepbench_gemm.csv"
COLLECTIVES = SHARED / "nccl" / "measurements.csv"


def rows(path, keep):
    if not path.exists():
        pytest.skip(f"the measurements are not beside the checkout: {path.name}")
    with path.open(newline="", encoding="utf-8") as stream:
        return [row for row in csv.DictReader(stream) if keep(row)]


def columns(table, *names):
    return tuple(np.array([float(row[name]) for row in table]) for name in names)


def test_tiles_are_recovered_from_their_own_times():
    device = load_device("a100-sxm-80gb")
    true = TileConstants(0.9, 0.06, 4e-6, 1e-6, 0.9, 1.5)
    sizes = np.array([256.0, 768.0, 2048.0, 4096.0, 12288.0])
    m, n, k = (grid.ravel() for grid in np.meshgrid(sizes, sizes, sizes))
    times = tiled_gemm_seconds(
        m, n, k, 1.0, bytes_moved=2 * (m * k + k * n + m * n), constants=true, peak=312e12, sustained=1.0,
        multiprocessors=108, bandwidth=device.memory_bandwidth, memory_efficiency=0.66, overhead=1.1e-6,
    )  # fmt: skip
    fit = fit_tiles(m, n, k, times, device, "fp16")
    assert fit.median_error < 0.005
    assert fit.constants["wave_quantization"] == pytest.approx(0.9, abs=0.05)
    assert fit.constants["fill"] == pytest.approx(4e-6, rel=0.1)


def test_v100_products_are_those_of_88_deepbench_gemms():
    table = rows(GEMMS, lambda r: r["gpu"] == "V100" and "FP16" in r["sheet"])
    m, n, k, ms = columns(table, "m", "n", "k", "ms")
    large = (m >= 128) & (n >= 128) & (k >= 128)
    fit = fit_tiles(m[large], n[large], k[large], ms[large] * 1e-3, load_device("v100-sxm2-32gb"), "fp16")
    shipped = load_kernel_profile("v100-sxm")
    assert fit.points == 88
    assert (fit.median_error, fit.p90_error) == (pytest.approx(0.035, abs=0.002), pytest.approx(0.081, abs=0.004))
    assert shipped.tile is not None
    for name in ("efficiency", "exponent", "wave_quantization", "burst_cap"):
        assert getattr(shipped.tile, name) == pytest.approx(fit.constants[name], abs=0.01), name
    assert shipped.gemm_memory_efficiency == pytest.approx(fit.constants["gemm_memory_efficiency"], abs=0.01)
    assert shipped.gemm_overhead == pytest.approx(fit.constants["gemm_overhead"], rel=0.1)


def test_edr_adapters_are_those_of_the_two_node_v100_log():
    table = rows(COLLECTIVES, lambda r: r["gpu"] == "V100-SXM2" and r["nodes"] == "2")
    size, us = columns(table, "bytes", "time_us")
    shape = GroupShape(16, 8, 8, 2, 2, 1, 12.5e9)
    cluster, fabric = load_cluster("dgx-2h"), load_fabric_profile("nvlink2-edr")
    errors = [
        collective_transfer("all_reduce", s, shape, cluster, fabric).seconds / t - 1
        for s, t in zip(size.tolist(), (us * 1e-6).tolist(), strict=True)
    ]
    assert len(errors) == 9
    assert float(np.median(np.abs(errors))) < 0.005
    assert max(np.abs(errors)) < 0.08


@pytest.mark.skipif(
    not any(importlib.util.find_spec(name) for name in PACKAGES),
    reason="the optional extra shardsim[measured] is not installed",
)
def test_shipped_profiles_tell_what_the_measured_database_does_for_every_group_and_type():
    cells = list(table_cells(medians(read_measured().points)))
    assert len(cells) > 100
    medians_off = {name: float(np.median(np.abs(error))) for name, _, error in cells}
    worst_off = {name: float(np.quantile(np.abs(error), 0.9)) for name, _, error in cells}
    direct = {name for name in medians_off if name.endswith("all_to_all")}
    assert {n: e for n, e in medians_off.items() if e > (0.15 if n in direct else 0.05)} == {}
    assert {n: e for n, e in worst_off.items() if e > (0.30 if n in direct else 0.20)} == {}
