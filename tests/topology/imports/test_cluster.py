"""A cluster of nodes like the dump's: what it says, what is asked for, what is assumed and named so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shardsim.errors import InputError
from shardsim.program.ask import ask_collective
from shardsim.report.node import cluster_yaml
from shardsim.schema.hardware import load_cluster, load_fabric_profile
from shardsim.schema.products import load_products
from shardsim.topology.imports.cluster import ASKED, ASSUMED, DERIVED, DUMP, LINKS, Asked, ClusterDraft, draft_cluster
from shardsim.topology.imports.node import Node
from shardsim.topology.imports.read import read_file, read_text
from shardsim.values.hardware import Cluster

Text = Callable[[str], str]
H100: dict[str, Any] = {"device": "h100-sxm-80gb", "nic": 50e9, "like": "dgx-h100"}


@pytest.fixture(scope="module")
def quartz(fixture_text: Text) -> Node:
    return read_text(fixture_text("quartz-8gpu.txt"), "quartz.txt")


@pytest.fixture(scope="module")
def granite(fixture_text: Text) -> Node:
    return read_text(fixture_text("granite-4gpu-dump.xml"), "granite.xml")


@pytest.fixture(scope="module")
def basalt(fixture_text: Text) -> Node:
    return read_text(fixture_text("basalt-4gpu-old.txt"), "basalt.txt")


def draft(node: Node, **asked: Any) -> ClusterDraft:
    return draft_cluster(node, Asked(**asked), load_products(), "dump.txt")


def loaded(made: ClusterDraft, folder: Path) -> Cluster:
    path = folder / "ours.yaml"
    path.write_text(cluster_yaml(made), encoding="utf-8")
    return load_cluster(str(path))


def refused(node: Node, **asked: Any) -> dict[str, str]:
    with pytest.raises(InputError) as caught:
        draft(node, **asked)
    return {problem.where: str(problem) for problem in caught.value.problems}


def test_a_matrix_with_what_it_lacks_is_a_cluster(quartz: Node, tmp_path: Path) -> None:
    made = draft(quartz, nodes=4, **H100)
    cluster = loaded(made, tmp_path)
    known = load_cluster("dgx-h100")
    assert (cluster.gpus_per_node, cluster.gpus_per_domain, cluster.nics_per_node) == (8, 8, 8)
    assert cluster.nvlink.bandwidth == known.nvlink.bandwidth
    assert cluster.nic.bandwidth == 50e9
    assert cluster.max_gpus == 32
    assert cluster.fabric_profile == known.fabric_profile
    assert cluster.pcie.bandwidth == known.pcie.bandwidth
    assert cluster.device == known.device


def test_every_figure_says_where_it_comes_from(quartz: Node) -> None:
    made = draft(quartz, nodes=4, **H100)
    assert made.gpus_per_node.source == DUMP
    assert made.nvlink.bandwidth.source == LINKS
    assert made.nic.bandwidth.source == ASKED
    assert made.nics_per_node.source == DERIVED
    assert made.max_gpus is not None
    assert made.max_gpus.source == ASKED
    entries = (made.pcie.bandwidth, made.nvlink.latency, made.nodes_per_leaf, made.oversubscription)
    assert {entry.source for entry in (*entries, made.rail_optimized)} == {ASSUMED}
    assert "PCIe 5.0 x16 of 63 GB/s, as dgx-h100" in made.assumed
    assert "NVLink ends at the node: 8 GPUs in a domain" in made.assumed


def test_a_dump_that_names_gpu_and_speeds_needs_only_a_fabric(granite: Node, tmp_path: Path) -> None:
    cluster = loaded(draft(granite, like="hgx-h200"), tmp_path)
    assert cluster.device.name == "h200-sxm"
    assert cluster.nics_per_node == 4
    assert cluster.nic.bandwidth == 25e9
    assert cluster.pcie.bandwidth == pytest.approx(63.0e9, rel=1e-3)
    assert cluster.nvlink.bandwidth == 450e9
    assert cluster.max_gpus is None


def test_what_a_dump_lacks_is_asked_for_at_once(fixture_text: Text) -> None:
    flint = read_text(fixture_text("flint-4gpu-cut.txt"), "flint.txt")
    problems = refused(flint)
    assert set(problems) == {"--device", "--nics", "--nic"}
    assert "the dump does not name the GPU" in problems["--device"]
    assert "none of 1 adapters hangs under a PCIe switch with a GPU" in problems["--nics"]
    assert "the dump does not give the bandwidth of an adapter" in problems["--nic"]


def test_a_device_that_cannot_be_it_is_refused(quartz: Node) -> None:
    problems = refused(quartz, device="a100-sxm-80gb", nic=25e9)
    assert "a100-sxm-80gb has 12 NVLinks, the dump shows 18 of one GPU" in problems["--device"]
    assert "h100-sxm-80gb" in problems["--device"]


def test_unknown_names_are_refused_with_near_ones(quartz: Node) -> None:
    assert "did you mean h" in refused(quartz, device="h100-sxm", nic=50e9)["--device"]
    assert "unknown cluster" in refused(quartz, **(H100 | {"like": "dgx-h10"}))["--like"]


def test_fabrics_that_the_dump_cannot_tell_apart_are_asked_for(quartz: Node, tmp_path: Path) -> None:
    """Two clusters with the same nodes and different fabrics: neither may be picked in silence."""
    clusters = tmp_path / "topologies" / "clusters"
    clusters.mkdir(parents=True)
    text = "based_on: dgx-h100\ntitle: the same nodes under another fabric\nfabric_profile: nvlink3-hdr\n"
    (clusters / "a-twin.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=r"does not say which fabric joins the nodes.*nvlink3-hdr.*a-twin"):
        draft_cluster(quartz, Asked(device="h100-sxm-80gb", nic=50e9), load_products(), "x", (tmp_path,))


def test_a_gpu_that_no_catalogued_cluster_has_needs_one_to_be_like(basalt: Node) -> None:
    assert "no catalogued cluster has l40s" in refused(
        read_text("     GPU0 GPU1 NIC0\nGPU0 X PIX PIX\nGPU1 PIX X PIX\nNIC0 PIX PIX X\n", "x"), device="l40s", nic=25e9
    ).get("--like", "")
    assert draft(basalt, device="v100-sxm2-32gb", nic=12.5e9, like="dgx-2h").device == "v100-sxm2-32gb"


def test_direct_links_count_together_and_all_gpus_are_one_domain(basalt: Node) -> None:
    made = draft(basalt, device="v100-sxm2-32gb", nic=12.5e9, like="dgx-2h")
    assert made.nvlink.bandwidth.value == 3 * 25e9
    assert made.nvlink.product == "NVLink direct, 3 links"
    assert made.gpus_per_domain.value == 4
    assert made.nics_per_node.value == 1, "mlx5_0 hangs at a host bridge"


def test_pairs_of_bridged_gpus_are_priced_at_the_pcie_between_them(fixture_text: Text, tmp_path: Path) -> None:
    flint = read_text(fixture_text("flint-4gpu-cut.txt"), "flint.txt")
    made = draft(flint, device="a100-sxm-80gb", nic=25e9, nics=1, like="dgx-a100")
    assert made.nvlink.bandwidth.value == made.pcie.bandwidth.value
    assert made.notes == (
        "NVLink joins groups of 2 + 2 GPUs, PCIe the groups: a node is priced at PCIe, its slowest link",
    )
    assert loaded(made, tmp_path).gpus_per_domain == 4


def test_without_nvlink_the_gpus_of_a_node_meet_over_pcie(tmp_path: Path) -> None:
    rows = ["    GPU0 GPU1 NIC0", "GPU0 X PHB PIX", "GPU1 PHB X PHB", "NIC0 PIX PHB X"]
    made = draft(read_text("\n".join(rows) + "\n", "x"), device="l40s", nic=25e9, like="dgx-a100")
    cluster = loaded(made, tmp_path)
    assert cluster.gpus_per_domain == 2
    assert cluster.nvlink.bandwidth == cluster.pcie.bandwidth
    assert cluster.nvlink.name == "PCIe 4.0 x16 between GPUs, no NVLink"


def test_nvlinks_that_a_file_does_not_list_are_those_of_the_datasheet_and_said_to_be(
    fixture_text: Text, tmp_path: Path
) -> None:
    marble = read_text(fixture_text("marble-2gpu-input.xml"), "marble.xml")
    made = draft(marble, device="a100-sxm-80gb", nic=25e9, like="dgx-a100")
    assert loaded(made, tmp_path).nvlink.bandwidth == 300e9
    assert "12 NVLinks a GPU, as its datasheet: the dump does not list them" in made.assumed
    assert "NVLink joins the 2 GPUs of a node: the dump does not list NVLinks" in made.assumed


def test_gpus_that_a_file_does_not_list_are_asked_for(tmp_path: Path) -> None:
    nic = '<pci busid="0000:02:00.0" link_speed="32 GT/s" link_width="16"/>'
    node = read_text(f'<system><cpu numaid="0"><pci busid="0000:01:00.0">{nic}</pci></cpu></system>', "x")
    asked = {"device": "h100-sxm-80gb", "nic": 12.5e9, "nics": 32, "like": "dgx-h100"}
    assert "the dump lists no GPU" in refused(node, **asked)["--gpus"]
    cluster = loaded(draft(node, gpus=8, **asked), tmp_path)
    assert (cluster.gpus_per_node, cluster.nics_per_node) == (8, 32)


def test_how_far_nvlink_reaches_is_asked_where_racks_are_known() -> None:
    rows = [f"GPU{a} {' '.join('X' if a == b else 'NV18' for b in range(4))}" for a in range(4)]
    tray = read_text("\n".join(["  GPU0 GPU1 GPU2 GPU3", *rows]) + "\n", "x")
    asked = {"device": "gb200", "nic": 50e9, "nics": 4}
    assert "in gb200-nvl72 it joins 72 GPUs (72 or 4)" in refused(tray, **asked)["--domain"]
    assert draft(tray, domain=72, **asked).gpus_per_domain.value == 72
    assert "do not fit nodes of 4" in refused(tray, domain=7, **asked)["--domain"]


def test_what_no_cluster_can_be_is_refused_before_it_is_written(quartz: Node) -> None:
    problems = refused(quartz, **(H100 | {"nic": 500e9, "nics": 5}))
    assert "5 adapters cannot be shared evenly by 8 GPUs (a divisor or a multiple of 8)" in problems["--nics"]
    assert "an adapter of 500 GB/s is faster than NVLink through NVSwitch, 18 links, 450 GB/s" in problems["--nic"]


def test_what_was_asked_against_the_dump_is_noted(granite: Node) -> None:
    made = draft(granite, device="h100-sxm-80gb", nic=50e9, gpus=8, like="dgx-h100")
    assert made.notes == (
        "the dump names h200-sxm by its PCI id; h100-sxm-80gb was asked for",
        "the dump shows 4 GPUs; 8 were asked for",
        "the dump gives adapters 25 GB/s; 50 GB/s was asked for",
    )


def test_names_of_files_cannot_break_the_cluster_file(quartz: Node, tmp_path: Path) -> None:
    name = "a: 'b' \"c\" # {d}\n- e.txt"
    made = draft_cluster(quartz, Asked(**H100), load_products(), name)
    assert name in loaded(made, tmp_path).source


def test_a_fit_of_nvlink_prices_no_gpus_that_meet_over_pcie(fixture_text: Text, tmp_path: Path) -> None:
    """NCCL counts 12 GB/s on PCIe 3.0 x16 of 15.75: the bus bandwidth of a ring, of any number of ranks."""
    flint = read_text(fixture_text("flint-4gpu-cut.txt"), "flint.txt")
    cluster = loaded(draft(flint, device="v100-sxm2-32gb", nic=12.5e9, nics=2), tmp_path)
    fabric = load_fabric_profile(cluster.fabric_profile)
    answers = [ask_collective("all_reduce", 2.0**32, cluster, fabric, ranks) for ranks in (2, 4, 24)]
    assert [answer.bus_bandwidth for answer in answers] == pytest.approx([12e9] * 3, rel=0.01)
    assert {answer.transfer.provenance.basis for answer in answers} == {"assumed"}
    assert {answer.correction for answer in answers} == {1.0}


def test_what_was_fitted_on_the_cluster_that_it_is_like_is_assumed_of_this_one(quartz: Node, tmp_path: Path) -> None:
    ours, theirs = loaded(draft(quartz, **H100), tmp_path), load_cluster("dgx-h100")
    fabric = load_fabric_profile(ours.fabric_profile)
    trust, fitted = (ask_collective("all_reduce", 2.0**30, one, fabric, 8) for one in (ours, theirs))
    assert trust.seconds == fitted.seconds
    assert fitted.transfer.provenance.basis == "fitted"
    provenance = trust.transfer.provenance
    assert (provenance.basis, provenance.error, provenance.points) == ("assumed", None, None)
    assert "another cluster, by its profile nvlink4-ndr" in provenance.source


def test_a_profile_of_its_own_is_as_good_as_its_fit(quartz: Node, tmp_path: Path) -> None:
    ours = loaded(draft(quartz, **H100), tmp_path)
    (tmp_path / "own.yaml").write_text("based_on: nvlink4-ndr\ntitle: ours\n", encoding="utf-8")
    own = load_fabric_profile(str(tmp_path / "own.yaml"))
    assert ask_collective("all_reduce", 2.0**30, ours, own, 8).transfer.provenance.basis == "fitted"


def test_a_fabric_is_asked_for_where_no_catalogued_cluster_has_such_adapters(quartz: Node) -> None:
    """The nearest are 200 Gb/s a GPU, by GPUDirect-TCPX: another fabric than four adapters of 300 Gb/s."""
    problem = refused(quartz, device="h100-sxm-80gb", nic=37.5e9, nics=4)["--like"]
    assert "no catalogued cluster of h100-sxm-80gb has 150 Gb/s of adapters a GPU" in problem
    assert "dgx-h100 (400 Gb/s)" in problem
    assert draft(quartz, device="h100-sxm-80gb", nic=37.5e9, nics=4, like="dgx-h100").fabric_profile == "nvlink4-ndr"


def test_a_dump_without_gpus_may_be_of_any_device() -> None:
    node = read_text('<system><cpu numaid="0"><pci busid="0000:01:00.0" class="0x020000"/></cpu></system>', "x")
    assert {"h100-sxm-80gb", "l40s"} <= set(refused(node)["--device"].removesuffix(")").replace(",", " ").split())


def test_a_dump_in_utf_16_is_read(fixture_text: Text, tmp_path: Path) -> None:
    path = tmp_path / "quartz.txt"
    path.write_bytes(fixture_text("quartz-8gpu.txt").encode("utf-16"))
    assert len(read_file(path).gpus) == 8
