"""Shipped constants come out of the measurements they name, where those are at hand."""

from __future__ import annotations

import csv
import importlib.util
from pathlib import Path

import numpy as np
import pytest

from shardsim.calibrate.fabrics import table_cells
from shardsim.calibrate.gemms import fit_deepbench, starts_of
from shardsim.calibrate.measured import PACKAGES, medians, read_measured
from shardsim.cost.collectives import collective_transfer
from shardsim.schema.hardware import load_cluster, load_device, load_fabric_profile
from shardsim.schema.kernels import load_kernel_profile
from shardsim.values.hardware import GroupShape

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


def test_v100_products_are_those_of_88_deepbench_gemms():
    if not GEMMS.exists():
        pytest.skip(f"the measurements are not beside the checkout: {GEMMS.name}")
    device, kindred = load_device("v100-sxm2-32gb"), load_kernel_profile("a100-sxm").gemm["fp16"]
    fit = fit_deepbench(GEMMS, device, kindred)
    shipped = load_kernel_profile("v100-sxm").gemm["fp16"]
    assert fit.points == 88
    assert fit.median_error < 0.045
    assert fit.p90_error < 0.095
    assert shipped.tile is not None
    found = starts_of(shipped) | dict(shipped.layout_time)
    assert found == {name: pytest.approx(value, rel=0.02) for name, value in fit.constants.items()}


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
