"""The hardware catalog: published figures, per direction, each with its source; and what is wrong with a bad file."""

import math
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from shardsim.errors import InputError
from shardsim.schema.catalog import names
from shardsim.schema.hardware import (
    load_cluster,
    load_device,
    load_fabric_profile,
)
from shardsim.schema.kernels import load_kernel_profile

ROOT = Path(__file__).parents[2] / "topologies"
GIB = 2.0**30


@pytest.mark.parametrize(
    ("name", "bandwidth", "sixteen_bit", "power", "multiprocessors"),
    [
        ("v100-sxm2-32gb", 900e9, 125e12, 300, 80),
        ("v100-sxm3-32gb", 900e9, 130.8e12, 450, 80),
        ("a100-sxm-40gb", 1555e9, 312e12, 400, 108),
        ("a100-sxm-80gb", 2039e9, 312e12, 400, 108),
        ("h100-sxm-80gb", 3.35e12, 989.4e12, 700, 132),
        ("h100-sxm-96gb", 2.4e12, 989.4e12, 500, 132),
        ("h200-sxm", 4.8e12, 989.4e12, 700, 132),
        ("h800-sxm", 3.35e12, 989.4e12, 700, 132),
        ("b200-sxm", 7.67e12, 2250e12, 1000, 148),
        ("b300-sxm", 7.75e12, 2250e12, 1100, 148),
        ("gb200", 8e12, 2500e12, 1200, 152),
        ("gb300", 8e12, 2500e12, 1400, 152),
        ("l40s", 864e9, 362.05e12, 350, 142),
    ],
)
def test_published_figures_of_a_device(name, bandwidth, sixteen_bit, power, multiprocessors):
    device = load_device(name)
    assert device.memory_bandwidth == bandwidth
    assert device.peak_flops["fp16"] == sixteen_bit
    assert device.power == power
    assert device.multiprocessors == multiprocessors


def test_dgx_2h_peak_is_the_one_that_39_tflops_are_30_percent_of():
    # Shoeybi et al. 2019, section 5.1.
    assert 39e12 / load_device("v100-sxm3-32gb").peak_flops["fp16"] == pytest.approx(0.30, abs=0.005)


@pytest.mark.parametrize("name", names("device"))
def test_peaks_are_dense_and_double_as_the_width_halves(name):
    device = load_device(name)
    peaks = device.peak_flops
    if "bf16" in peaks:
        assert peaks["bf16"] == peaks["fp16"]
    if "tf32" in peaks:
        # NVIDIA rounds to three digits.
        assert peaks["fp16"] / peaks["tf32"] == pytest.approx(2, rel=0.03)
    if "fp8" in peaks:
        assert peaks["fp8"] / peaks["fp16"] == pytest.approx(2, rel=0.03)
    if "fp4" in peaks:
        assert peaks["fp4"] / peaks["fp8"] in (2, 3)
    assert peaks["fp32"] < peaks["fp16"]
    # FLOP for each byte: a slip of a prefix or of bits and bytes would leave this range.
    assert 100 < peaks["fp16"] / device.memory_bandwidth < 450
    assert 20 * GIB < device.memory_bytes < 300 * GIB


@pytest.mark.parametrize(
    ("name", "vendor_total", "adapters", "gigabits", "gpus"),
    [
        ("dgx-2h", 300e9, 8, 100, 16),
        ("dgx-a100", 600e9, 8, 200, 8),
        ("dgx-a100-40gb", 600e9, 8, 200, 8),
        ("selene", 600e9, 8, 200, 8),
        ("a100-sxm-80gb-8x100", 600e9, 4, 100, 8),
        ("dgx-h100", 900e9, 8, 400, 8),
        ("hgx-h100", 900e9, 8, 400, 8),
        ("hgx-h100-96gb", 900e9, 8, 400, 8),
        ("hgx-h200", 900e9, 8, 400, 8),
        ("hgx-h800", 400e9, 8, 400, 8),
        ("dgx-b200", 1800e9, 8, 400, 8),
        ("hgx-b300", 1800e9, 8, 800, 8),
        ("gb200-nvl72", 1800e9, 4, 400, 4),
        ("gb300-nvl72", 1800e9, 4, 800, 4),
        ("nvlink300-ib100", 300e9, 8, 100, 8),
        ("nvlink900-ib100", 900e9, 8, 100, 8),
    ],
)
def test_vendors_nvlink_totals_are_stored_per_direction(name, vendor_total, adapters, gigabits, gpus):
    cluster = load_cluster(name)
    assert cluster.nvlink.bandwidth == vendor_total / 2
    assert cluster.nic.bandwidth == gigabits * 1e9 / 8
    assert (cluster.nics_per_node, cluster.gpus_per_node) == (adapters, gpus)


def test_infiniband_of_dgx_2h_is_6_25_gigabytes_for_each_gpu():
    cluster = load_cluster("dgx-2h")
    assert cluster.nic.bandwidth * cluster.nics_per_node == 100e9
    assert cluster.nic_bandwidth_per_gpu == 6.25e9


def test_the_two_what_if_machines_differ_in_nvlink_alone():
    slow, fast = load_cluster("nvlink300-ib100"), load_cluster("nvlink900-ib100")
    assert fast.nvlink.bandwidth == 3 * slow.nvlink.bandwidth
    assert (slow.device, slow.nic, slow.pcie, slow.nodes_per_leaf) == (
        fast.device,
        fast.nic,
        fast.pcie,
        fast.nodes_per_leaf,
    )


def test_a_rack_of_72_has_18_trays():
    for name in ("gb200-nvl72", "gb300-nvl72"):
        cluster = load_cluster(name)
        assert cluster.gpus_per_domain // cluster.gpus_per_node == 18


@pytest.mark.parametrize("name", names("cluster"))
def test_every_cluster_names_profiles_that_exist(name):
    cluster = load_cluster(name)
    assert cluster.fabric_profile in names("fabric-profile")
    assert cluster.device.compute_profile in names("kernel-profile")
    assert cluster.default_framework in names("framework")
    assert cluster.source
    assert cluster.device.source


@pytest.mark.parametrize("name", names("kernel-profile"))
def test_every_kernel_constant_says_where_it_comes_from(name):
    kernels = load_kernel_profile(name)
    constants = {f"gemm.{dtype}.{each}" for dtype in kernels.gemm for each in ("sustained", "memory_efficiency")}
    constants |= {f"memory_bound.efficiency.{kind}" for kind in kernels.memory_bound.efficiency}
    constants |= {
        f"attention.libraries.{library}.{direction}.{each}"
        for library in kernels.attention.libraries
        for direction in ("forward", "backward")
        for each in ("efficiency.128", "tile", "tail", "memory_efficiency", "overhead")
    }
    constants |= {"memory_bound.overhead"}
    assert constants <= set(kernels.provenance)
    assert all(origin.source.strip() for origin in kernels.provenance.values())


@pytest.mark.parametrize("name", names("fabric-profile"))
def test_every_fabric_constant_says_where_it_comes_from(name):
    fabric = load_fabric_profile(name)
    assert set(fabric.links) == {"nvlink", "nic"}
    for link in fabric.links.values():
        assert {"base_latency", "step_latency", "half_bandwidth", "efficiency.default"} <= set(link.constants)
        assert math.isfinite(link.base_latency + link.step_latency + link.half_bandwidth_bytes)


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.yaml")), ids=lambda path: path.stem)
def test_every_source_in_a_table_is_used(path):
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    used = set(sources_in({key: value for key, value in content.items() if key != "sources"}))
    heirs = [yaml.safe_load(other.read_text(encoding="utf-8")) for other in path.parent.glob("*.yaml")]
    used |= {source for heir in heirs if heir.get("based_on") == path.stem for source in sources_in(heir)}
    assert set(content.get("sources", {})) <= used


def sources_in(content):
    for key, value in content.items():
        if key == "source":
            yield value
        elif isinstance(value, Mapping):
            yield from sources_in(value)


def test_mappings_cannot_be_changed():
    device = load_device("l40s")
    with pytest.raises(TypeError):
        device.peak_flops["fp16"] = 1.0
    with pytest.raises(TypeError):
        load_kernel_profile(device.compute_profile).gemm["fp16"] = None


@pytest.fixture
def edit(tmp_path):
    """Write a catalog file with some text replaced, and give its path."""

    def write(kind, name, *replacements):
        text = (ROOT / kind / f"{name}.yaml").read_text(encoding="utf-8")
        for old, new in replacements:
            assert old in text
            text = text.replace(old, new)
        path = tmp_path / f"{name}.yaml"
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


def problems_of(load, path):
    with pytest.raises(InputError) as error:
        load(path)
    return [str(problem).replace(str(Path(path).parent) + "/", "") for problem in error.value.problems]


def test_a_bandwidth_without_a_unit_is_refused_with_its_line(edit):
    path = edit("devices", "l40s", ("864 GB/s", "864"), ("48 GB\n", "48 GB\nmemroy: 3\n"))
    assert problems_of(load_device, path) == [
        "l40s.yaml:7: memory_bandwidth.value: 864 has no unit; write it with one, such as 900 GB/s or 400 Gb/s",
        "l40s.yaml:2: memroy: unknown key 'memroy' (did you mean memory?)",
    ]


def test_a_figure_without_a_source_is_refused(edit):
    path = edit("devices", "l40s", ("{value: 350 W, source: datasheet}", "{value: 350 W}"))
    (found,) = problems_of(load_device, path)
    assert "power: the key 'source' is missing (an entry of `sources`, or the citation itself)" in found


def test_a_source_that_is_a_slip_is_refused_and_a_citation_is_not(edit):
    path = edit("devices", "l40s", ("{value: 350 W, source: datasheet}", "{value: 350 W, source: datashet}"))
    (found,) = problems_of(load_device, path)
    assert "power.source: unknown source 'datashet' (did you mean datasheet?)" in found
    path = edit("devices", "l40s", ("{value: 350 W, source: datasheet}", "{value: 350 W, source: my own meter}"))
    assert "my own meter" in load_device(path).source


def test_zero_and_negative_figures_are_refused(edit):
    path = edit("devices", "l40s", ("864 GB/s", "0 GB/s"), ("350 W", "-350 W"), ("value: 142", "value: 0"))
    found = problems_of(load_device, path)
    assert len(found) == 3
    assert "memory_bandwidth.value: '0 GB/s' is out of range (write above 0)" in found[0]


def test_a_cluster_that_does_not_fit_together_is_told_everything_at_once(edit):
    path = edit(
        "clusters",
        "dgx-2h",
        ("gpus_per_domain: {value: 16", "gpus_per_domain: {value: 24"),
        ("nics_per_node: {value: 8", "nics_per_node: {value: 6"),
        ("150 GB/s", "150 Mb/s"),
        ("v100-sxm3-32gb", "v100-sxm4-32gb"),
        ("rail_optimized:", "max_gpus: {value: 100, source: assumed}\nrail_optimized:"),
    )
    found = problems_of(load_cluster, path)
    assert len(found) == 5
    for expected in (
        "24 GPUs an NVLink domain are no multiple of the 16 a node has (write 16, 32, 48 ...)",
        "6 adapters cannot be shared evenly by 16 GPUs",
        "NVLink is slower than one adapter",
        "100 GPUs are no whole number of nodes of 16",
        "device: unknown device 'v100-sxm4-32gb' (did you mean v100-sxm3-32gb",
    ):
        assert any(expected in problem for problem in found)


def test_problems_of_the_device_show_the_devices_file(edit):
    device = edit("devices", "l40s", ("864 GB/s", "864"))
    cluster = edit("clusters", "dgx-2h", ("device: v100-sxm3-32gb", f"device: {device}"))
    (found,) = problems_of(load_cluster, cluster)
    assert found.startswith("l40s.yaml:")


def test_a_device_path_in_a_cluster_starts_from_the_clusters_folder(edit, monkeypatch):
    edit("devices", "l40s")
    cluster = edit("clusters", "dgx-2h", ("device: v100-sxm3-32gb", "device: l40s.yaml"))
    monkeypatch.chdir("/")
    assert load_cluster(cluster).device.name == "l40s"


def test_a_fabric_profile_path_in_a_cluster_starts_from_the_clusters_folder(tmp_path, monkeypatch):
    (tmp_path / "own.yaml").write_text("based_on: nvlink4-ndr\ntitle: ours\n", encoding="utf-8")
    cluster = tmp_path / "ours.yaml"
    cluster.write_text("based_on: dgx-h100\ntitle: ours\nfabric_profile: ./own.yaml\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path.parent)
    assert load_fabric_profile(load_cluster(str(cluster)).fabric_profile).name == "own"
    # What is set on the command line starts from where the command runs.
    monkeypatch.chdir(tmp_path)
    assert load_cluster("dgx-h100", changes={"cluster.fabric_profile": "own.yaml"}).fabric_profile == "own.yaml"


@pytest.mark.parametrize("load", [load_device, load_cluster, load_kernel_profile, load_fabric_profile])
def test_a_directory_an_absent_and_an_empty_file_are_refused(load, tmp_path):
    (tmp_path / "empty.yaml").touch()
    (tmp_path / "folder.yaml").mkdir()
    for name, message in (("empty", "is empty"), ("folder", "is a directory"), ("absent", "no such file")):
        (found,) = problems_of(load, str(tmp_path / f"{name}.yaml"))
        assert message in found


@pytest.mark.parametrize("kind", ["devices", "clusters"])
@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.7, 0.9, 0.97])
def test_a_truncated_file_is_refused(kind, share, tmp_path):
    name = {"devices": "l40s", "clusters": "dgx-2h"}[kind]
    content = (ROOT / kind / f"{name}.yaml").read_bytes()
    path = tmp_path / "cut.yaml"
    path.write_bytes(content[: int(share * len(content))])
    found = problems_of({"devices": load_device, "clusters": load_cluster}[kind], str(path))
    assert all(problem.startswith("cut.yaml") for problem in found)


def test_a_machine_based_on_another_takes_what_it_does_not_say(tmp_path):
    path = tmp_path / "ours.yaml"
    path.write_text(
        "based_on: dgx-h100\ntitle: ours\noversubscription: {value: 4, source: our network group}\n", encoding="utf-8"
    )
    ours, base = load_cluster(str(path)), load_cluster("dgx-h100")
    assert (ours.name, ours.oversubscription) == ("ours", 4)
    assert (ours.device, ours.nvlink, ours.nic) == (base.device, base.nvlink, base.nic)
    assert "our network group" in ours.source


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("based_on: dgx-h1000\ntitle: x", "ours.yaml:1: based_on: unknown cluster 'dgx-h1000' (did you mean dgx-h100"),
        ("based_on: ours.yaml\ntitle: x", "ours.yaml:1: based_on: 'ours.yaml' is based on this file in turn"),
        ("based_on: [dgx-h100]\ntitle: x", "is not a name"),
        ("based_on: dgx-h100\ntitle: x\nnic: 3", "ours.yaml:3: nic: 3 is not a mapping of keys to values"),
        ("based_on: dgx-h100\ntitle: x\nsources: 3", "ours.yaml:3: sources: 3 is not a mapping of keys to values"),
    ],
)
def test_a_wrong_base_is_refused(tmp_path, text, message):
    path = tmp_path / "ours.yaml"
    path.write_text(text, encoding="utf-8")
    (found,) = problems_of(load_cluster, str(path))
    assert message in found


def test_a_profile_needs_its_defaults_and_a_known_basis(edit):
    path = edit("profiles/fabrics", "nvlink2-edr", ("default:", "defaults:"))
    found = problems_of(load_fabric_profile, path)
    assert found
    assert all("'defaults' is not one of default, all_reduce" in problem for problem in found)
    path = edit("profiles/fabrics", "nvlink2-edr", ("basis: assumed", "basis: guessed"))
    assert all(
        "did you mean measured?" in p or "'guessed' is not one of" in p for p in problems_of(load_fabric_profile, path)
    )
