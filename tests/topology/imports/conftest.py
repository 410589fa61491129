"""Dumps of invented machines, in the layouts of the tools."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

FIXTURES = Path(__file__).parent / "fixtures"
NEW_LEGEND = """\

Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  NODE = Connection traversing PCIe as well as the interconnect between PCIe Host Bridges within a NUMA node
  PHB  = Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)
  PXB  = Connection traversing multiple PCIe bridges (without traversing the PCIe Host Bridge)
  PIX  = Connection traversing at most a single PCIe bridge
  NV#  = Connection traversing a bonded set of # NVLinks
"""
Cells = Mapping[tuple[int, int], str]


def _table(names: Sequence[str], cells: Cells, tails: Mapping[str, Sequence[str]], heads: Sequence[str]) -> list[str]:
    lines = ["\t".join(["", *names, *heads])]
    for a, name in enumerate(names):
        row = [" X " if a == b else cells[min(a, b), max(a, b)] for b in range(len(names))]
        lines.append("\t".join([name, *row, *tails.get(name, ())]))
    return lines


@pytest.fixture(scope="session")
def table() -> Callable[..., list[str]]:
    """Lines of `nvidia-smi topo -m` in the tool's own layout: names, cells of every pair, affinities, their heads."""
    return _table


@pytest.fixture(scope="session")
def legend() -> str:
    return NEW_LEGEND


@pytest.fixture(scope="session")
def fixture_text() -> Callable[[str], str]:
    """Content of a file beside the tests."""
    return lambda name: (FIXTURES / name).read_text(encoding="utf-8")
