"""Fits of fabrics: known constants come out again, outliers hardly matter, corrections are smooth and never fall."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from shardsim.calibrate.fabric import fit_fabric, predict
from shardsim.calibrate.fabricfile import fabric_yaml
from shardsim.calibrate.points import Points
from shardsim.calibrate.smooth import knots_around, knots_between, smooth_grid, spread_rows
from shardsim.calibrate.ways import way_times
from shardsim.schema.hardware import load_cluster, load_fabric_profile
from shardsim.values.provenance import Provenance

NOTE = Provenance("fitted", "invented")
CLUSTER = load_cluster("dgx-h100")
BASE = load_fabric_profile("nccl-hopper")
SOURCES = {
    "near": "invented measurements", "far": "others", "kin": "another collective",
    "nccl": BASE.ways["all_reduce"][0].near.source,
    "sendrecv": BASE.links["nic"].constants["efficiency.send_recv"].source,
}  # fmt: skip


def grid_of(kind, nodes=(1,), per_node=(2, 4, 8), dtype="half"):
    rows = [(2.0**e, n, g) for e in range(9, 30) for n in nodes for g in per_node]
    size, count, gpus = (np.array(column, dtype=float) for column in zip(*rows, strict=True))
    text = [np.full(len(rows), word) for word in (kind, dtype, "example", "invented")]
    nic = np.full(len(rows), np.nan)
    return Points(text[0], size, np.ones(len(rows)), text[1], count, gpus, nic, text[2], text[3])


def timed(points, kind, fabric, noise=0.0):
    factor = np.exp(np.random.default_rng(0).normal(0.0, noise, len(points)))
    return replace(points, seconds=way_times(kind, points, CLUSTER, fabric) * factor)


def slower(fabric, kind, **factors):
    ways = tuple(
        replace(way, **{name: getattr(way, name) * factor for name, factor in factors.items()})
        for way in fabric.ways[kind]
    )
    return replace(fabric, ways={**fabric.ways, kind: ways})


@pytest.fixture(scope="module")
def truth():
    return slower(BASE, "all_gather", near_share=0.8, base_latency=1.5)


def test_a_slower_fabric_is_recovered_from_its_own_times(truth):
    points = timed(grid_of("all_gather"), "all_gather", truth)
    fit = fit_fabric("example", points, CLUSTER, BASE)
    error = predict(points, CLUSTER, fit.fabric) / points.seconds - 1
    assert np.median(np.abs(error)) < 0.005
    assert np.quantile(np.abs(error), 0.9) < 0.03
    assert fit.fabric.ways["all_gather"][0].near.basis == "fitted"


def test_first_use_outliers_and_wrong_rows_hardly_move_a_fit(truth):
    points = timed(grid_of("all_gather"), "all_gather", truth, noise=0.01)
    spoiled = points.seconds.copy()
    spoiled[::15] *= 12.0
    fit = fit_fabric("example", replace(points, seconds=spoiled), CLUSTER, BASE)
    error = predict(points, CLUSTER, fit.fabric) / points.seconds - 1
    assert np.median(np.abs(error)) < 0.02


def test_sizes_that_were_held_back_are_predicted(truth):
    points = timed(grid_of("all_gather"), "all_gather", truth, noise=0.01)
    train = np.rint(np.log2(points.size)) % 2 == 1
    fit = fit_fabric("example", points.where(train), CLUSTER, BASE)
    held = points.where(~train)
    error = predict(held, CLUSTER, fit.fabric) / held.seconds - 1
    assert np.median(np.abs(error)) < 0.02


def test_what_was_not_measured_keeps_the_librarys_constants_and_says_so():
    points = timed(grid_of("all_to_all"), "all_to_all", BASE)
    fit = fit_fabric("example", points, CLUSTER, BASE)
    assert fit.fabric.ways["all_reduce"] == BASE.ways["all_reduce"]
    assert fit.fabric.ways["all_reduce"][0].near.basis == "assumed"


def test_another_collective_between_the_same_nodes_is_taken_as_a_guide_and_labelled():
    slow = slower(BASE, "all_reduce", far_share=0.6)
    points = timed(grid_of("all_reduce", nodes=(2, 4), per_node=(8,)), "all_reduce", slow)
    fit = fit_fabric("example", points, CLUSTER, BASE)
    gather = fit.fabric.ways["all_gather"]
    ring = next(way for way in gather if way.algorithm == "ring" and way.protocol == "Simple")
    # Trees were measured, of which NCCL expects 0.8 to 0.97 of what it expects of a ring.
    assert 0.6 * 0.78 <= ring.far_share <= 0.6 * 0.97
    assert ring.far.basis == "assumed"


def test_a_way_not_measured_between_nodes_takes_the_share_of_the_adapters_of_those_measured():
    trees = tuple(
        replace(way, far_share=0.45) if way.algorithm in ("tree", "nvls_tree") and way.protocol != "LL" else way
        for way in BASE.ways["all_reduce"]
    )
    slow = replace(BASE, ways={**BASE.ways, "all_reduce": trees})
    points = timed(grid_of("all_reduce", nodes=(2,), per_node=(2,)), "all_reduce", slow)
    ways = fit_fabric("example", points.where(points.size >= 2.0**20), CLUSTER, BASE).fabric.ways["all_reduce"]
    shares = {way.name: way.far_share for way in ways}
    assert shares["ring Simple"] == pytest.approx(0.45, rel=0.1)
    assert shares["ring LL"] < 0.05


def test_what_is_fitted_says_on_which_products_and_what_is_not_names_none(truth, tmp_path):
    points = timed(grid_of("all_gather"), "all_gather", truth)
    fabric = fit_fabric("example", points, CLUSTER, BASE).fabric
    path = tmp_path / "example.yaml"
    path.write_text(fabric_yaml(fabric, "an example", "nccl-hopper", {}), encoding="utf-8")
    assert 'measured_on: "NVLink 4 through NVSwitch, 18 links"' in path.read_text(encoding="utf-8")
    assert (fabric.links["nvlink"].measured_on, fabric.links["nic"].measured_on) == (CLUSTER.nvlink.name, "")


def test_a_profile_that_was_written_reads_back_the_same(truth, tmp_path):
    points = timed(grid_of("all_gather"), "all_gather", truth)
    fabric = fit_fabric("example", points, CLUSTER, BASE).fabric
    path = tmp_path / "example.yaml"
    path.write_text(fabric_yaml(fabric, "an example", "nccl-hopper", SOURCES), encoding="utf-8")
    again = load_fabric_profile(str(path))
    assert predict(points, CLUSTER, again) == pytest.approx(predict(points, CLUSTER, fabric), rel=2e-3)
    assert again.ways["all_gather"][0].near.source == "invented measurements"
    assert again.tuning == BASE.tuning


def stepping(per_node, nodes=1):
    """Messages at 100 GB/s below 64 MiB and at twice that from there on, as more channels are opened."""
    points = grid_of("send_recv", nodes=(nodes,), per_node=(per_node,))
    rate = np.where(points.size < 2.0**26, 100e9, 200e9) / (1.0 if nodes == 1 else 5.0)
    return replace(points, seconds=20e-6 + points.size / rate)


@pytest.mark.parametrize(("nodes", "place"), [(1, "near"), (2, "far")])
def test_the_bandwidth_of_messages_that_steps_with_their_size_is_followed(nodes, place, tmp_path):
    points = stepping(8, nodes)
    fit = fit_fabric("example", points, CLUSTER, BASE)
    quality = next(q for q in fit.qualities if q.kind == "send_recv")
    assert (quality.place, list(fit.fabric.corrections)) == (place, [("send_recv", "wide", place)])
    assert quality.median < min(0.05, 0.5 * quality.equations)
    path = tmp_path / "example.yaml"
    path.write_text(fabric_yaml(fit.fabric, "an example", "nccl-hopper", SOURCES), encoding="utf-8")
    again = predict(points, CLUSTER, load_fabric_profile(str(path)))
    assert again == pytest.approx(predict(points, CLUSTER, fit.fabric), rel=2e-3)


def test_larger_messages_never_take_less_time_for_their_correction():
    fit = fit_fabric("example", stepping(8), CLUSTER, BASE)
    asked = replace(stepping(8), size=np.geomspace(512.0, 2.0**35, len(stepping(8))))
    assert np.diff(predict(asked, CLUSTER, fit.fabric)).min() > 0.0


def test_a_few_messages_correct_nothing():
    points = stepping(8)
    assert not fit_fabric("example", points.where(points.size >= 2.0**22), CLUSTER, BASE).fabric.corrections


def smoothed(log_ratio, size, rises=0.0, members=8.0):
    knots, rows = knots_between(9.0, 29.0, 2.0), np.array([3.0])
    flat = np.full((1, len(knots) - 1), rises)
    return smooth_grid(size, np.full(len(size), members), log_ratio, knots, rows, flat, NOTE)


def test_a_correction_smooths_noise_and_keeps_what_lasts():
    size = np.repeat(2.0 ** np.arange(9, 30), 4)
    noise = np.random.default_rng(1).normal(0.0, 0.05, len(size))
    found = np.array(smoothed(0.1 + noise, size, rises=1.0).log_ratio[0])
    assert found == pytest.approx(0.1, abs=0.06)
    assert np.std(found) < 0.035


def test_a_correction_never_falls_faster_than_the_equations_rise():
    size = np.repeat(2.0 ** np.arange(9, 30), 3)
    falling = -0.2 * (np.log2(size) - 9)
    found = np.diff(smoothed(falling, size, rises=0.15).log_ratio[0])
    assert found.min() >= -0.15 - 1e-9


def test_knots_of_a_correction_lie_around_what_was_measured():
    knots = knots_between(9.0, 29.0, 2.0)
    assert knots_around(np.array([24.5, 27.0]), knots).tolist() == [23.0, 25.0, 27.0]
    assert knots_around(np.array([4.0, 40.0]), knots).tolist() == knots.tolist()
    assert knots_around(np.array([29.0, 33.0]), knots).tolist() == [27.0, 29.0]
    assert knots_around(np.array([13.0]), knots).tolist() == [13.0, 15.0]


def test_rows_of_a_correction_are_among_the_members_that_were_measured():
    found = spread_rows(np.array([2.0, 3.0, 4.0, 16.0, 128.0, 512.0]), 3)
    assert found.tolist() == [1.0, 4.0, 9.0]
