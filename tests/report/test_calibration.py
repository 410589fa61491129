"""A profile fitted to a user's logs, shown: bands of sizes, a panel for each collective, the same bytes each time."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from shardsim.calibrate.points import points
from shardsim.calibrate.userfit import Error, Samples, UserFit, Verdict
from shardsim.report.calibration import bus_bandwidth, calibration_record, calibration_text, series_of
from shardsim.report.calibration_plot import calibration_plot, spread
from shardsim.report.console import to_text
from shardsim.schema.hardware import load_cluster, load_fabric_profile

CLUSTER = load_cluster("dgx-h100")
FABRIC = load_fabric_profile("nvlink4-ndr")


def fit_of(*groups, dtype="float", sizes=(2**10, 2**20, 2**26, 2**30)):
    """Measured at 100 us and 1 ns a kilobyte; shipped is 10 % slower, fitted 1 %."""
    row = {"dtype": dtype, "nic_per_gpu": np.nan, "device": "", "origin": "a.log"}
    own = points(
        [
            {**row, "kind": kind, "nodes": n, "gpus_per_node": g, "size": float(s), "seconds": 1e-4 + s * 1e-12}
            for kind, n, g in groups
            for s in sizes
        ]
    )
    error = Error(len(own), 0.1, 0.1)
    verdict = Verdict("all_reduce", "near", fitted=True, before=error, after=error, held_out=None, basis="fitted")
    samples = Samples(own, own.where(own.size == sizes[0]), {"wrong results": 2}, ())
    return UserFit(
        FABRIC, FABRIC, CLUSTER, samples, 1.1 * own.seconds, 1.01 * own.seconds, (verdict,), ("look at this",)
    )


def test_bus_bandwidth_is_what_nccl_tests_prints():
    # 8 ranks, 1 GiB in 4 ms: 268.4 GB/s of algorithm bandwidth, 7/4 of it on the bus.
    found = bus_bandwidth("all_reduce", 8, np.array([2.0**30]), np.array([4e-3]))
    assert found.tolist() == pytest.approx([469.76], rel=1e-4)


def test_each_group_is_a_series_of_its_own():
    series = series_of(fit_of(("all_reduce", 1, 8), ("all_gather", 2, 8), ("all_reduce", 2, 8)))
    assert [(each.kind, each.label, int(each.mask.sum())) for each in series] == [
        ("all_reduce", "8 (1 x 8)", 4),
        ("all_gather", "16 (2 x 8)", 4),
        ("all_reduce", "16 (2 x 8)", 4),
    ]


def test_the_screen_has_a_line_for_each_band_of_sizes():
    lines = to_text(calibration_text(fit_of(("all_reduce", 1, 8)))).splitlines()
    bands = [" ".join(line.split()) for line in lines if line.startswith("  ") and "%" in line]
    assert bands[0] == "1 KiB 1 0.01792 0.01629 0.01774 10.0 % 10.0 % 1.0 % 1.0 %"
    assert bands[-1].startswith("64 MiB .. 1 GiB 2 ")
    assert "2  wrong results" in lines
    assert "look at this" in lines
    assert max(map(len, lines)) <= 100


def test_the_record_has_every_row():
    record = calibration_record(fit_of(("all_reduce", 1, 8)))
    assert [row["bytes"] for row in record["residuals"]] == [2**10, 2**20, 2**26, 2**30]
    assert record["residuals"][0]["shipped_s"] / record["residuals"][0]["measured_s"] == pytest.approx(1.1)


KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv")


@pytest.mark.parametrize("kinds", [1, 2, 4, 6])
def test_a_plot_has_a_panel_for_each_collective(kinds):
    fit = fit_of(*((kind, nodes, 8) for kind in KINDS[:kinds] for nodes in (1, 4)))
    assert calibration_plot(fit, "svg").decode().count('id="axes_') == kinds
    png = calibration_plot(fit, "png")
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    assert min(struct.unpack(">II", png[16:24])) > 500
    assert calibration_plot(fit, "png") == png


def test_one_size_and_very_many_groups_can_be_drawn():
    assert calibration_plot(fit_of(("all_reduce", 1, 8), sizes=(2**20,)), "png")
    many = fit_of(*(("all_reduce", nodes, 8) for nodes in range(1, 12)))
    assert calibration_plot(many, "png")
    assert spread(list(range(11)), 7) == [0, 2, 3, 5, 7, 8, 10]
