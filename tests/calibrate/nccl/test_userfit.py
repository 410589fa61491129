"""A user's logs into a profile: what made the logs comes out again, whatever else stands in them."""

from __future__ import annotations

import csv
import json
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

from shardsim.calibrate.fabric import predict
from shardsim.calibrate.nccl.read import read_logs
from shardsim.calibrate.points import joined, points
from shardsim.calibrate.userfit import Samples, fit_samples, placed, samples_of, undisturbed, user_profile_yaml
from shardsim.cli.main import main
from shardsim.errors import InputError
from shardsim.schema.hardware import load_cluster, load_fabric_profile

CLUSTER = load_cluster("dgx-h100")
BASE = load_fabric_profile(CLUSTER.fabric_profile)
SIZES = tuple(2**exponent for exponent in range(10, 34))
NAMES = {"all_to_all": "alltoall"}


def truth():
    """A machine with slower links and longer latencies than the shipped profile's, and nothing to correct."""
    ways = {
        kind: tuple(
            replace(
                way,
                near_share=0.85 * way.near_share,
                far_share=0.7 * way.far_share,
                base_latency=1.3 * way.base_latency,
                far_step=1.2 * way.far_step,
            )
            for way in own
        )
        for kind, own in BASE.ways.items()
    }
    return replace(BASE, ways=ways, corrections={})


TRUTH = truth()


def asked(kind, nodes, per_node, sizes=SIZES):
    row = {"kind": kind, "dtype": "float", "nodes": nodes, "gpus_per_node": per_node, "seconds": 1.0}
    row |= {"nic_per_gpu": np.nan, "device": "", "origin": ""}
    return points([{**row, "size": float(size)} for size in sizes])


@pytest.fixture
def write(job, tmp_path):
    """Writes what nccl-tests would have printed on the true machine, spoiled as asked for."""

    def write(kind, nodes, per_node, *, sizes=SIZES, noise=0.0, spoil=None, wrong=None, ranks_listed=True, seed=0):
        times = 1e6 * predict(asked(kind, nodes, per_node, sizes), CLUSTER, TRUTH)
        times = times * np.exp(np.random.default_rng(seed).normal(0.0, noise, len(times)))
        for size, factor in (spoil or {}).items():
            times[sizes.index(size)] *= factor
        by_size = dict(zip(sizes, times.tolist(), strict=True))

        class Timed(job):
            def times(self, size):
                return by_size[size], 0.99 * by_size[size]

        name = NAMES.get(kind, kind)
        run = Timed(name, ranks=nodes * per_node, per_node=per_node, vintage="2.17.4", sizes=sizes, wrong=wrong or {})
        text = run.text() if ranks_listed else "\n".join([*run.header(), *run.rows()]) + "\n"
        path = tmp_path / f"{name}-{nodes}x{per_node}.log"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def samples(*paths, per_node=None, **options):
    return samples_of(placed(read_logs(paths, **options), per_node or {}), CLUSTER)


def off(fit, kind, nodes, per_node, sizes=SIZES):
    wanted = asked(kind, nodes, per_node, sizes)
    return np.abs(predict(wanted, CLUSTER, fit.fabric) / predict(wanted, CLUSTER, TRUTH) - 1.0)


def test_constants_that_made_the_logs_come_out_again_despite_noise_outliers_and_wrong_rows(write):
    near = write(
        "all_gather", 1, 8, noise=0.015, spoil={2**10: 60.0, 2**17: 8.0, 2**24: 1.5, 2**26: 30.0}, wrong={2**26: 3}
    )
    far = write("all_reduce", 4, 8, noise=0.015, spoil={2**10: 40.0, 2**22: 1.6, 2**29: 1.4}, seed=1)
    fit = fit_samples("own", samples(near, far), CLUSTER, BASE)
    for kind, nodes in (("all_gather", 1), ("all_reduce", 4)):
        errors = off(fit, kind, nodes, 8)
        assert np.median(errors) < 0.02
        assert np.quantile(errors, 0.9) < 0.06
        assert off(fit, kind, nodes, 8, (2**32,))[0] < 0.05
    measured, true = ({way.name: way for way in fabric.ways["all_gather"]} for fabric in (fit.fabric, TRUTH))
    assert measured["ring Simple"].near_share == pytest.approx(true["ring Simple"].near_share, rel=0.04)
    assert fit.fabric.ways["all_gather"][0].near.basis == "fitted"
    # Where it started from is far off, so that all this says something.
    before = predict(asked("all_reduce", 4, 8), CLUSTER, BASE) / predict(asked("all_reduce", 4, 8), CLUSTER, TRUTH)
    assert np.median(np.abs(before - 1)) > 0.1


def test_every_row_that_is_left_aside_is_counted_with_its_reason(write):
    found = samples(write("all_gather", 1, 8, spoil={2**10: 60.0}, wrong={2**26: 3}))
    assert found.left == {
        "wrong results": 1,
        "in-place halves: the out-of-place half is taken": len(SIZES),
        "over 2 times as long as a larger buffer: first use, or disturbed": 1,
    }
    assert len(found.points) == len(SIZES) - 2
    assert sorted(found.aside.size.tolist()) == [2**10, 2**26]
    assert found.points.origin[0] == "all_gather-1x8.log"


def test_a_row_that_is_too_fast_costs_no_other_row():
    size = 2.0 ** np.arange(10)
    seconds = 1.0 + 0.1 * size
    seconds[7] = 0.2
    assert np.flatnonzero(~undisturbed(size, seconds)).tolist() == [7]


def test_sizes_that_were_held_out_are_predicted_within_the_stated_error(write):
    fit = fit_samples("own", samples(write("all_gather", 1, 8, noise=0.01)), CLUSTER, BASE)
    (verdict,) = fit.verdicts
    assert verdict.held_out is not None
    assert verdict.held_out.points == len(SIZES) // 2
    assert verdict.after.median <= verdict.held_out.median < 0.05 < verdict.before.median
    between = tuple(int(1.4 * size) for size in SIZES[8:-1])
    assert np.median(off(fit, "all_gather", 1, 8, between)) < verdict.held_out.p90


def test_a_collective_with_too_few_points_keeps_what_it_had(write):
    few = write("reduce_scatter", 1, 8, sizes=SIZES[10:15])
    fit = fit_samples("own", samples(few, write("all_gather", 1, 8)), CLUSTER, BASE)
    verdict = next(each for each in fit.verdicts if each.kind == "reduce_scatter")
    assert (verdict.fitted, verdict.before.points, verdict.basis) == (False, 5, "fitted")
    assert verdict.before == verdict.after
    assert verdict.held_out is None
    assert fit.fabric.ways["reduce_scatter"] == BASE.ways["reduce_scatter"]
    kept = [key for key in BASE.corrections if (key[0], key[2]) != ("all_gather", "near")]
    assert [fit.fabric.corrections[key] for key in kept] == [BASE.corrections[key] for key in kept]
    # A correction belongs to the constants that it was fitted with.
    own = ("all_gather", "wide", "near")
    assert fit.fabric.corrections[own] != BASE.corrections[own]


def test_groups_across_domains_leave_what_is_inside_as_it_was(write):
    fit = fit_samples("own", samples(write("all_reduce", 2, 8)), CLUSTER, BASE)
    inside, before = (predict(asked("all_reduce", 1, 8), CLUSTER, fabric) for fabric in (fit.fabric, BASE))
    assert inside.tolist() == before.tolist()
    assert fit.fabric.ways["all_reduce"][0].near == BASE.ways["all_reduce"][0].near


@pytest.mark.parametrize("name", ["dgx-h100", "gb200-nvl72", "a100-sxm-80gb-8x100", "dgx-b200"])
def test_where_nothing_could_be_fitted_nothing_changes(name):
    cluster = load_cluster(name)
    base = load_fabric_profile(cluster.fabric_profile)
    few = replace(asked("all_to_all", 32, 4, SIZES[:3]), seconds=np.array([1e-4, 2e-4, 3e-4]))
    fit = fit_samples("own", Samples(few, few, {}, ()), cluster, base)
    assert fit.fabric.ways == base.ways
    assert fit.fabric.links == base.links
    assert fit.fabric.corrections == base.corrections
    assert fit.after.tolist() == fit.before.tolist()


def test_a_collective_that_was_never_measured_takes_over_what_the_same_links_achieved(write):
    fit = fit_samples("own", samples(write("all_gather", 1, 8)), CLUSTER, BASE)
    own, gather = ({way.name: way for way in fit.fabric.ways[kind]} for kind in ("broadcast", "all_gather"))
    assert own["ring Simple"].near_share == gather["ring Simple"].near_share
    assert own["ring Simple"].near.basis == "assumed"
    assert own["ring Simple"].far == BASE.ways["broadcast"][0].far


def test_a_profile_never_holds_more_corrections_than_the_loader_takes(tmp_path):
    groups = [asked("all_gather", 1, per_node) for per_node in range(2, 9)]
    own = joined([replace(group, seconds=predict(group, CLUSTER, TRUTH)) for group in groups])
    fit = fit_samples("own", Samples(own, own.where(own.size < 0), {}, ()), CLUSTER, BASE)
    path = tmp_path / "own.yaml"
    path.write_text(user_profile_yaml(fit, CLUSTER.fabric_profile), encoding="utf-8")
    assert load_fabric_profile(str(path)).corrections.keys() == fit.fabric.corrections.keys()
    assert any("of nvlink4-ndr is left out: a profile holds 200 numbers" in note for note in fit.notes)


def test_a_written_profile_reads_back_and_keeps_every_label(write, tmp_path):
    fit = fit_samples("own", samples(write("all_gather", 1, 8)), CLUSTER, BASE)
    path = tmp_path / "own.yaml"
    path.write_text(user_profile_yaml(fit, CLUSTER.fabric_profile), encoding="utf-8")
    again = load_fabric_profile(str(path))
    own = fit.samples.points
    assert predict(own, CLUSTER, again) == pytest.approx(fit.after, rel=2e-3)
    assert again.ways["all_gather"][0].near.source == f"nccl-tests logs; all_gather-1x8.log ({len(own)} points)"
    assert again.ways["all_reduce"][0].near == BASE.ways["all_reduce"][0].near
    assert again.overlap_provenance == BASE.overlap_provenance
    assert again.tuning == BASE.tuning


def test_messages_that_were_measured_lose_the_correction_of_the_base(write):
    sizes = SIZES[-8:]
    samples = samples_of(read_logs([write("send_recv", 1, 8, sizes=sizes)]), CLUSTER)
    fit = fit_samples("mine", samples, CLUSTER, BASE)
    key = ("send_recv", "wide", "near")
    assert key in BASE.corrections
    assert key not in fit.fabric.corrections
    assert fit.fabric.corrections.keys() == BASE.corrections.keys() - {key}


def test_a_written_profile_can_be_the_base_of_the_next(write, tmp_path):
    path = tmp_path / "own.yaml"
    first = fit_samples("own", samples(write("all_gather", 1, 8)), CLUSTER, BASE)
    path.write_text(user_profile_yaml(first, CLUSTER.fabric_profile), encoding="utf-8")
    base = load_fabric_profile(str(path))
    second = fit_samples("own2", samples(write("all_to_all", 1, 8)), CLUSTER, base)
    (tmp_path / "own2.yaml").write_text(user_profile_yaml(second, "own.yaml"), encoding="utf-8")
    again = load_fabric_profile(str(tmp_path / "own2.yaml"))
    assert again.ways["all_gather"] == base.ways["all_gather"]
    assert again.tuning == BASE.tuning


def test_offloading_of_the_base_is_there_once(write, tmp_path):
    sharp = load_fabric_profile("nvlink5-ndr-sharp")
    fit = fit_samples("own", samples(write("all_gather", 1, 8)), CLUSTER, sharp)
    path = tmp_path / "own.yaml"
    path.write_text(user_profile_yaml(fit, "nvlink5-ndr-sharp"), encoding="utf-8")
    again = load_fabric_profile(str(path))
    assert [way.name for way in again.ways["all_reduce"]] == [way.name for way in sharp.ways["all_reduce"]]


def test_a_log_that_does_not_say_where_its_ranks_lie_is_asked_for(write):
    silent = write("all_reduce", 2, 4, ranks_listed=False)
    with pytest.raises(InputError) as caught:
        samples(silent, collective="all_reduce")
    (problem,) = caught.value.problems
    assert problem.what == "does not say how its 8 ranks lie on nodes"
    assert "--gpus-per-node all_reduce-2x4.log=N" in problem.right


def test_logs_may_differ_in_gpus_a_node(write):
    one, two = (write("all_reduce", 2, per_node, ranks_listed=False) for per_node in (4, 8))
    found = samples(one, two, per_node={"": 8, one.name: 4}, collective="all_reduce")
    assert set(zip(found.points.nodes.tolist(), found.points.gpus_per_node.tolist(), strict=True)) == {(2, 4), (2, 8)}


def test_the_list_of_ranks_goes_before_what_holds_for_all_logs(write):
    found = samples(write("all_reduce", 2, 4), per_node={"": 8})
    assert set(found.points.gpus_per_node.tolist()) == {4}


@pytest.mark.parametrize(
    ("per_node", "what"),
    [
        ({"x.log": 4}, "'x.log' is none of the logs"),
        ({"all_reduce-2x4.log": 8}, "has 4 GPUs a node by its list of ranks, not 8"),
    ],
)
def test_a_placement_that_cannot_be_is_refused(write, per_node, what):
    with pytest.raises(InputError, match=what):
        samples(write("all_reduce", 2, 4), per_node=per_node)


def test_ranks_that_do_not_fill_nodes_are_refused(write):
    with pytest.raises(InputError, match=r"8 ranks of .* are no whole number of nodes with 3 GPUs"):
        samples(write("all_reduce", 2, 4, ranks_listed=False), per_node={"": 3}, collective="all_reduce")


def test_a_group_that_the_cluster_cannot_hold_is_refused(write):
    logs = read_logs([write("all_reduce", 2, 8)])
    with pytest.raises(InputError, match="has a group of 16 ranks, and dgx-h100 has 8 GPUs"):
        samples_of(logs, replace(CLUSTER, max_gpus=8))
    with pytest.raises(InputError, match="has 8 GPUs a node, and dgx-h100 has 4"):
        samples_of(logs, replace(CLUSTER, gpus_per_node=4))


def test_another_gpu_than_the_clusters_is_noted(write):
    logs = read_logs([write("all_reduce", 1, 8)])
    assert samples_of(logs, CLUSTER).notes == ()
    (note,) = samples_of(logs, load_cluster("dgx-a100")).notes
    assert note == "all_reduce-1x8.log was measured on H100 80GB HBM3; the GPU of dgx-a100 is a100-sxm-80gb"


def test_logs_of_nothing_that_is_modelled_are_refused_with_the_reason(job, tmp_path):
    path = tmp_path / "run.log"
    path.write_text(job("gather", vintage="2.17.4", sizes=SIZES).text(), encoding="utf-8")
    with pytest.raises(InputError, match=r"not one row that a fit may use \(24 rows: gather is not modelled\)"):
        samples(path)


# The command.


def shardsim(*arguments):
    return CliRunner().invoke(main, [*map(str, arguments)])


def test_a_log_goes_the_whole_way_round(write, tmp_path):
    log, profile, rows = write("all_reduce", 2, 8, noise=0.01), tmp_path / "own.yaml", tmp_path / "rows.csv"
    fitted = shardsim("calibrate", "nccl", log, "--cluster", "dgx-h100", "--profile", profile, "--out", rows, "--json")
    assert fitted.exit_code == 0, fitted.stderr
    fit = json.loads(fitted.stdout)["fit"]
    (verdict,) = fit["collectives"]
    assert (verdict["collective"], verdict["place"], verdict["is_fitted"]) == ("all_reduce", "far", True)
    assert verdict["fitted_median"] < 0.03 < verdict["shipped_median"]

    measured = {int(row["bytes"]): float(row["busbw_gbs"]) for row in csv.DictReader(rows.read_text().splitlines())}
    for size in (2**22, 2**28, 2**33):
        asked_for = ("collective", "all_reduce", f"{size} B", "--cluster", "dgx-h100", "--ranks", 16, "--dtype", "fp32")
        answer = json.loads(shardsim(*asked_for, "--fabric", profile, "--json").stdout)
        told = answer["busbw_bytes_per_s"] / 1e9
        assert told == pytest.approx(measured[size], rel=max(0.03, verdict["fitted_p90"]))

    cluster = tmp_path / "ours.yaml"
    cluster.write_text("based_on: dgx-h100\ntitle: ours\nfabric_profile: ./own.yaml\n", encoding="utf-8")
    medians = {}
    for name in ("dgx-h100", cluster):
        shardsim("calibrate", "nccl", log, "--cluster", name, "--out", rows)
        record = json.loads(shardsim("validate", "collectives", rows, "--json").stdout)
        assert record["summary"]["predicted"] == len(SIZES)
        medians[name] = record["summary"]["median_abs_error"]
    assert medians[cluster] == pytest.approx(verdict["fitted_median"], rel=0.1)
    assert medians["dgx-h100"] == pytest.approx(verdict["shipped_median"], rel=0.01)


def test_rows_of_unknown_health_are_reported_by_group_and_wrong_ones_are_left_out(write, tmp_path):
    rows = tmp_path / "rows.csv"
    shardsim("calibrate", "nccl", write("all_reduce", 2, 8, wrong={2**22: 4}), "--out", rows)
    record = json.loads(shardsim("validate", "collectives", rows, "--json").stdout)
    groups = record["groups"]
    assert {group["name"]: group["rows"] for group in groups["healthy"]} == {"unknown": len(SIZES) - 1, "no": 1}
    (others,) = (rows for name, rows in groups.items() if name.startswith("size (not marked"))
    assert sum(group["rows"] for group in others) == len(SIZES) - 1


def test_the_screen_shows_residuals_by_collective_and_size(write, tmp_path):
    plot, profile = tmp_path / "own.png", tmp_path / "own.yaml"
    result = shardsim(
        "calibrate", "nccl", write("all_reduce", 2, 8), "--cluster", "dgx-h100", "--plot", plot, "--profile", profile
    )
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert max(map(len, lines[:-1])) <= 100
    assert "24 points on dgx-h100; shipped: profile nvlink4-ndr" in lines
    assert "all_reduce of 16 (2 x 8) ranks, float" in lines
    bands = [line.split("  ")[1] for line in lines if line.startswith("  ") and " .. " in line][1:]
    assert bands == ["1 KiB .. 32 KiB", "64 KiB .. 512 KiB", "1 MiB .. 32 MiB", "64 MiB .. 8 GiB"]
    assert lines[-1] == f"written: {profile}; name it with --fabric, or as fabric_profile in a cluster's file"
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_placement_that_the_user_gives_goes_into_the_rows(write, tmp_path):
    log, rows = write("all_reduce", 2, 4, ranks_listed=False), tmp_path / "rows.csv"
    shardsim("calibrate", "nccl", log, "--gpus-per-node", 4, "--out", rows)
    found = list(csv.DictReader(rows.read_text().splitlines()))
    assert {(row["nodes"], row["gpus_per_node"]) for row in found} == {("2", "4")}


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (("--profile", "own.yaml"), "--profile: there is nothing to fit without a cluster (name it with --cluster)"),
        (("--plot", "own.png"), "--plot: there is nothing to fit without a cluster (name it with --cluster)"),
        (("--cluster", "dgx-h10"), "unknown cluster 'dgx-h10'"),
        (("--cluster", "dgx-h100", "--profile", "own.txt"), "--profile: 'own.txt' does not end in .yaml"),
        (("--cluster", "dgx-h100", "--plot", "own.pdf"), "--plot: 'own.pdf' does not end in .png or .svg"),
        (("--cluster", "dgx-h100", "--profile", "nowhere/own.yaml"), "--profile: folder nowhere does not exist"),
        (("--cluster", "polaris"), "has 8 GPUs a node, and polaris has 4"),
        (("--gpus-per-node", "0"), "'0' is not a whole number, 1 or more"),
        (("--gpus-per-node", "other.log=8"), "'other.log' is none of the logs"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing_behind(write, tmp_path, monkeypatch, options, what):
    monkeypatch.chdir(tmp_path)
    log = write("all_reduce", 2, 8)
    result = shardsim("calibrate", "nccl", log, "--out", "rows.csv", *options)
    assert result.exit_code == 2
    assert what in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == [log.name]


def test_logs_with_nothing_to_fit_write_no_profile(write, tmp_path):
    log, profile = write("all_reduce", 2, 8, sizes=SIZES[-3:]), tmp_path / "own.yaml"
    arguments = ("calibrate", "nccl", log, "--cluster", "dgx-h100")
    result = shardsim(*arguments, "--profile", profile)
    assert (result.exit_code, profile.exists()) == (2, False)
    assert "no collective has the 6 points that a fit needs: there is no profile to write" in result.stderr
    shown = shardsim(*arguments)
    assert shown.exit_code == 0
    told = "all_reduce across NVLink domains: 3 of the 6 points that a fit needs; as in nvlink4-ndr (fitted)"
    assert told in shown.stdout.splitlines()


def test_a_profile_never_overwrites_the_one_that_it_starts_from(write, tmp_path):
    profile, cluster = tmp_path / "own.yaml", tmp_path / "ours.yaml"
    profile.write_text("based_on: nvlink4-ndr\ntitle: ours\n", encoding="utf-8")
    cluster.write_text("based_on: dgx-h100\ntitle: ours\nfabric_profile: own.yaml\n", encoding="utf-8")
    log = write("all_reduce", 2, 8)
    result = shardsim("calibrate", "nccl", log, "--cluster", cluster, "--profile", profile)
    assert result.exit_code == 2
    assert "is also read as input" in result.stderr
    other = tmp_path / "next.yaml"
    assert shardsim("calibrate", "nccl", log, "--cluster", cluster, "--profile", other).exit_code == 0
    assert "based_on: own.yaml" in other.read_text().splitlines()
    assert load_fabric_profile(str(other)).ways["all_reduce"][0].far.basis == "fitted"
