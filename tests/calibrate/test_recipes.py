"""Recipes of the shipped fabric profiles, the rows they are fitted from, and what the files say of themselves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from shardsim.calibrate.fabrics import select
from shardsim.calibrate.logrows import read_log_rows
from shardsim.schema.catalog import names
from shardsim.schema.hardware import load_cluster, load_fabric_profile
from shardsim.schema.recipes import load_recipes

RECIPES = load_recipes().recipes
HEADER = (
    "source,gpu,gpus_per_node,nodes,ranks,inter_node_gbps_per_gpu,collective,bytes,time_us,healthy,log_file,dtype,"
    "wrong,note"
)


def rows(tmp_path, *lines):
    path = tmp_path / "rows.csv"
    path.write_text("\n".join([HEADER, *lines]) + "\n", encoding="utf-8")
    return path


def line(gpu="H100", per_node=8, nodes=2, gbps=400, time=100.0, healthy="yes", wrong="0", source="a log"):
    return f"{source},{gpu},{per_node},{nodes},,{gbps},all_reduce,1048576,{time},{healthy},x.txt,float,{wrong},"


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_has_its_base_its_cluster_and_its_profile(name):
    recipe = RECIPES[name]
    fabric = load_fabric_profile(name)
    assert recipe.base in names("fabric-profile")
    assert load_fabric_profile(recipe.base).tuning == fabric.tuning
    assert set(recipe.near) | set(recipe.far) | {recipe.cluster} <= set(names("cluster"))
    if recipe.far_like is not None:
        assert list(RECIPES).index(recipe.far_like) < list(RECIPES).index(name)


@pytest.mark.parametrize("name", RECIPES)
def test_what_is_fitted_names_points_and_error_and_what_is_not_is_assumed(name):
    for ways in load_fabric_profile(name).ways.values():
        for note in (ways[0].near, ways[0].far):
            assert note.basis in ("fitted", "assumed")
            assert note.source
            if note.basis == "fitted":
                assert note.points
                assert note.error is not None


@pytest.mark.parametrize("name", RECIPES)
def test_corrections_are_small_and_few(name):
    sizes = {"wide": 0, "narrow": 0}
    for (kind, family, _), correction in load_fabric_profile(name).corrections.items():
        grid = np.array(correction.log_ratio)
        sizes[family] += grid.size
        assert np.abs(grid).max() < 1.5
        # A cube mesh has other rings for every number of GPUs, and TCPX sends through the host: equations miss both.
        # The bandwidth of messages inside a node steps by 2 from one size to the next, and their one curve is smooth.
        most = 0.35 if name in ("nvlink2-mesh-edr", "nvlink4-tcpx", "nvlink4-tcpxo") else 0.15
        assert np.median(np.abs(grid)) < (max(most, 0.2) if kind == "send_recv" else most)
    assert max(sizes.values()) <= 200


def test_rows_become_points_by_cluster(tmp_path):
    points = read_log_rows(rows(tmp_path, line(), line(gpu="GH200", per_node=4, gbps=200)))
    assert points.device.tolist() == ["dgx-h100", "alps-gh200"]
    assert points.nic_per_gpu.tolist() == [50e9, 25e9]
    assert points.seconds.tolist() == pytest.approx([100e-6, 100e-6])


def test_unhealthy_wrong_and_empty_rows_are_left_out(tmp_path):
    lines = [line(), line(healthy="no"), line(wrong="12"), line(time=""), line(gpu="Abacus"), line(nodes=1, per_node=1)]
    assert len(read_log_rows(rows(tmp_path, *lines))) == 1


def test_rows_of_unknown_health_are_left_out_only_where_healthy_ones_are_asked_for(tmp_path):
    path = rows(tmp_path, line(healthy="unknown"), line(healthy="no"), line(healthy=""), line(wrong="12"), line())
    assert len(read_log_rows(path)) == 1
    assert len(read_log_rows(path, healthy_only=False)) == 3


def test_the_relative_error_that_old_versions_print_is_no_count_of_wrong_values(tmp_path):
    assert len(read_log_rows(rows(tmp_path, line(wrong="4e-07")))) == 1


def test_a_recipe_takes_its_own_rows_inside_and_across_domains(tmp_path):
    path = rows(tmp_path, line(nodes=1, gbps=""), line(), line(gpu="GB200", per_node=4), line(source="aws-samples"))
    logs = read_log_rows(path)
    points, weights = select(RECIPES["nvlink4-ndr"], logs.where(np.zeros(len(logs), dtype=bool)), logs)
    assert points.device.tolist() == ["dgx-h100", "dgx-h100"]
    assert weights.tolist() == [1.0, 1.0]


def test_where_tables_have_a_collective_logs_of_other_machines_do_not_count_inside_a_domain(tmp_path):
    path = rows(tmp_path, line(nodes=1, gbps=""), line(nodes=1, gbps="", per_node=4), line())
    logs = read_log_rows(path)
    tables = replace(logs.where(logs.nodes == 1), device=np.full(2, "h100_sxm"), origin=np.full(2, "x NCCL 2.29"))
    points, _ = select(RECIPES["nvlink4-ndr"], tables, logs)
    assert points.device.tolist() == ["h100_sxm", "h100_sxm", "dgx-h100"]
    fewer = tables.where(tables.gpus_per_node == 4)
    points, _ = select(RECIPES["nvlink4-ndr"], fewer, logs)
    assert points.gpus_per_node.tolist() == [4, 8, 8]
    gathers = replace(tables, kind=np.full(2, "all_gather"))
    assert len(select(RECIPES["nvlink4-ndr"], gathers, logs)[0]) == 5


@pytest.mark.parametrize("name", RECIPES)
def test_links_of_which_anything_was_fitted_name_the_product_of_their_cluster(name):
    cluster = load_cluster(RECIPES[name].cluster)
    for link, product in (("nvlink", cluster.nvlink.name), ("nic", cluster.nic.name)):
        constants = load_fabric_profile(name).links[link]
        fitted = any(note.basis == "fitted" for note in constants.constants.values())
        assert constants.measured_on == (product if fitted else "")


def test_what_was_measured_on_another_product_is_assumed_there():
    measured = load_fabric_profile("nvlink4-ndr").links["nvlink"].measured_on
    assert load_cluster("dgx-h100").nvlink.name.startswith(measured)
    assert not load_cluster("hgx-h800").nvlink.name.startswith(measured)


def test_every_recipe_names_a_cluster_of_its_fabric():
    for name, recipe in RECIPES.items():
        assert load_cluster(recipe.cluster).fabric_profile == name
