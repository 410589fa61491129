"""The GPUs that dumps can name agree with the catalog."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardsim.errors import InputError
from shardsim.schema.catalog import names
from shardsim.schema.hardware import load_cluster
from shardsim.schema.products import load_products

WHAT_IF = ("nvlink300-ib100", "nvlink900-ib100")


def test_every_catalogued_gpu_can_be_named() -> None:
    assert {product.device for product in load_products()} >= set(names("device"))


def test_pci_ids_are_told_apart() -> None:
    ids = [product.pci_id for product in load_products() if product.pci_id]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("name", [name for name in names("cluster") if name not in WHAT_IF])
def test_links_times_bandwidth_is_the_port_set_of_real_clusters(name: str) -> None:
    """Two independent figures: links of the architecture papers, and the port set in the machine's own guide."""
    cluster = load_cluster(name)
    product = next((one for one in load_products() if one.device == cluster.device.name), None)
    if product is None or "NVLink" not in cluster.nvlink.name:
        pytest.skip(f"{cluster.device.name} is not named by dumps, or {name} has no NVLink")
    assert cluster.nvlink.bandwidth == product.links * product.link_bandwidth


def test_a_users_own_table_comes_first(tmp_path: Path) -> None:
    (tmp_path / "topologies").mkdir()
    text = 'title: ours\ngpus:\n  l40s: {pci: {value: "10de:ffff", source: our own lspci}}\n'
    (tmp_path / "topologies" / "products.yaml").write_text(text, encoding="utf-8")
    found = {product.device: product for product in load_products((tmp_path,))}
    assert found["l40s"].pci_id == "10de:ffff"
    assert found["h100-sxm-80gb"].links == 18


def test_a_pci_id_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "topologies").mkdir()
    text = "title: ours\ngpus:\n  l40s: {pci: {value: L40S, source: our own lspci}}\n"
    (tmp_path / "topologies" / "products.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match="pci"):
        load_products((tmp_path,))
