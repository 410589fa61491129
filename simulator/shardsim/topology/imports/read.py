"""Read a dump of either kind, or say what the file is instead."""

from __future__ import annotations

import re
from pathlib import Path
from typing import IO

from shardsim.errors import InputError, Problem
from shardsim.schema.textfile import encoding
from shardsim.topology.imports.matrix import NoTableError, read_matrix
from shardsim.topology.imports.node import Node
from shardsim.topology.imports.xml import read_xml

MOST_BYTES = 2_000_000
"""Far more than any dump of one node."""
_LOOKED_AT = 200_000
_MOST_MARKS = 0.05
_WANTED = "give the output of nvidia-smi topo -m, or NCCL's topology XML (NCCL_TOPO_DUMP_FILE)"
_TEXTS: tuple[tuple[str, str], ...] = (
    (r"(?m)^.{0,80}\bGPU\d+\s+(?:X|OK|NS|CNS|GNS|TNS|DR|U)(?:\s+(?:X|OK|NS|CNS|GNS|TNS|DR|U))*\s*$|topo\s+-p2p", "p2p"),
    (r"P2P Connectivity Matrix|P2P=(?:Enabled|Disabled) (?:Bandwidth|Latency)", "bandwidth"),
    (r"(?i)(?:weight|hops|link type) between two gpus|\brocm-smi\b|\bamd-smi\b|\bXGMI\b", "amd"),
    (r"(?i)\bxpu-smi\b|\bXeLink\b|\bGPU \d+/\d+\s*\|", "intel"),
    (r"\bNPU\d+\b|\bHCCS\b", "ascend"),
    (r"\bGPU \d+: .{0,200}\(UUID: ", "list"),
    (r"\bLink \d+: (?:[\d.]+ GB/s|<inactive>|Remote Device)", "links"),
    (r"NVIDIA-SMI \d|Driver Version:", "status"),
    (r"#\s+nThread\s|#\s+size\s+count\s+type|# Avg bus bandwidth", "nccl-tests"),
    (r"NCCL INFO ", "nccl"),
    (r"NUMANode L#\d|Package L#\d|\bMachine \(\d", "lstopo"),
    (r"(?m)^(?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7] |^-\+?-?\[[0-9a-f]{4}:", "lspci"),
    (r"node distances:|available: \d+ nodes?", "numactl"),
    (r"hca_id:|CA type:|^Switch\s+\d+ \"S-", "ib"),
    (r"(?m)^(?:gpus_per_node|based_on):", "cluster"),
    (r"\A\s*[{\[]", "json"),
)
_NAMES = {
    "p2p": "a peer-to-peer status matrix (nvidia-smi topo -p2p): what is allowed, not how far it is",
    "bandwidth": "a report of p2pBandwidthLatencyTest",
    "amd": "a report on AMD GPUs: no NVLinks",
    "intel": "a report on Intel GPUs: no NVLinks",
    "ascend": "a report on Ascend NPUs: no NVLinks",
    "list": "a list of GPUs (nvidia-smi -L)",
    "links": "a report on NVLinks (nvidia-smi nvlink)",
    "status": "the status table of nvidia-smi",
    "nccl-tests": "a log of nccl-tests",
    "nccl": "a log of NCCL (NCCL_DEBUG=INFO)",
    "lstopo": "the text of hwloc (lstopo)",
    "lspci": "a list of PCI devices (lspci)",
    "numactl": "a report of numactl",
    "ib": "a report on InfiniBand adapters or switches",
    "cluster": "a cluster file of shardsim",
    "json": "JSON",
}
_REMEDIES = {
    "nccl-tests": "shardsim calibrate nccl reads it",
    "cluster": "shardsim topology show and draw read it",
}


def read_file(path: Path) -> Node:
    """Read a dump from a file.

    Parameters
    ----------
    path : Path

    Returns
    -------
    Node

    Raises
    ------
    InputError
        It cannot be read, is too large, no text, or no dump of a kind that is known.
    """
    where = str(path)
    try:
        if path.is_dir():
            raise InputError(Problem("is a directory", where, "name a file"))
        with path.open("rb") as stream:
            return read_stream(stream, where)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise InputError(Problem(f"cannot be read: {reason.lower()}", where)) from None


def read_stream(stream: IO[bytes], where: str) -> Node:
    """Read a dump from an open file; as :func:`read_file`.

    Parameters
    ----------
    stream : binary file
    where : str
        Name for messages.
    """
    raw = stream.read(MOST_BYTES + 1)
    if len(raw) > MOST_BYTES:
        raise InputError(Problem(f"is larger than {MOST_BYTES / 1e6:g} MB", where, "is it the file you meant?"))
    # Bytes that are no text become marks, which no table has.
    return read_text(raw.decode(encoding(raw), errors="replace"), where)


def read_text(text: str, where: str) -> Node:
    r"""Read a dump from text; as :func:`read_file`.

    Parameters
    ----------
    text : str
    where : str
        Name for messages.

    Examples
    --------
    >>> read_text("     GPU0 GPU1\nGPU0 X PIX\nGPU1 PIX X", "pair.txt").distance(0, 1)
    'PIX'
    """
    if not text.strip():
        raise InputError(Problem("is empty", where, _WANTED))
    if "\x00" in text or text.count("\ufffd") > _MOST_MARKS * len(text):
        raise InputError(Problem("is not text", where, _WANTED))
    if "<system" in text:
        return read_xml(text, where)
    try:
        return read_matrix(text, where)
    except NoTableError:
        if text.lstrip().startswith("<"):
            return read_xml(text, where)
        kind = next((kind for pattern, kind in _TEXTS if re.search(pattern, text[:_LOOKED_AT])), None)
        if kind is None:
            raise
    raise InputError(Problem(f"is {_NAMES[kind]}", where, _REMEDIES.get(kind, _WANTED)))
