"""``topologies/products.yaml``: which GPU a topology dump means, and what one of its NVLinks carries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field

from shardsim.schema.base import Count, StrictModel
from shardsim.schema.loader import check, load_yaml
from shardsim.schema.locate import data_roots
from shardsim.schema.sourced import Figure, PositiveBandwidth, SourcedFile
from shardsim.values.products import GpuProduct

FILE = "topologies/products.yaml"
PciId = Annotated[str, Field(pattern=r"^[0-9a-f]{4}:[0-9a-f]{4}$")]


class ProductEntry(StrictModel):
    """One GPU; one without NVLink leaves ``links`` and ``link_bandwidth`` out."""

    pci: Figure[PciId] | None = Field(default=None, description="PCI vendor and device, such as 10de:2330")
    links: Figure[Count] | None = Field(default=None, description="NVLinks of the GPU")
    link_bandwidth: Figure[PositiveBandwidth] | None = Field(default=None, description="one NVLink, per direction")


class ProductsFile(SourcedFile):
    """``topologies/products.yaml``."""

    gpus: Mapping[str, ProductEntry] = Field(description="by name of a file in topologies/devices")


def load_products(extra: Sequence[Path] = ()) -> tuple[GpuProduct, ...]:
    """Read the GPUs that dumps can name.

    Parameters
    ----------
    extra : sequence of Path
        A user's own data folders; what they say of a device comes first.

    Returns
    -------
    tuple of GpuProduct

    Raises
    ------
    InputError
        Every problem of a file.

    Examples
    --------
    >>> next(gpu.device for gpu in load_products() if gpu.pci_id == "10de:2330")
    'h100-sxm-80gb'
    """
    found: dict[str, GpuProduct] = {}
    for root in data_roots(extra):
        path = root / FILE
        if path.is_file():
            file = check(load_yaml(path), ProductsFile)
            for name, entry in file.gpus.items():
                found.setdefault(name, _product(name, entry, file))
    return tuple(found.values())


def _product(name: str, entry: ProductEntry, file: ProductsFile) -> GpuProduct:
    figures = [figure.source for figure in (entry.links, entry.link_bandwidth) if figure is not None]
    return GpuProduct(
        device=name,
        pci_id="" if entry.pci is None else entry.pci.value,
        links=0 if entry.links is None else entry.links.value,
        link_bandwidth=0.0 if entry.link_bandwidth is None else entry.link_bandwidth.value,
        source="; ".join(dict.fromkeys(file.sources.get(source, source) for source in figures)),
    )
