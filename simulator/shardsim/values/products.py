"""What is needed to read a topology dump: a GPU by the numbers that stand for it there."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GpuProduct:
    """One GPU as dumps name it.

    Parameters
    ----------
    device : str
        Catalog name, such as ``h100-sxm-80gb``.
    pci_id : str
        PCI vendor and device, such as ``10de:2330``; empty where unknown.
    links : int
        NVLinks of the GPU (-); 0 for none.
    link_bandwidth : float
        Bandwidth of one NVLink per direction [bytes/s]; 0 for none.
    source : str
        Where the two come from.
    """

    device: str
    pci_id: str
    links: int
    link_bandwidth: float
    source: str
