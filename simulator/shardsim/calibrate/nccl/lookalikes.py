"""Outputs that are taken for nccl-tests and are not: what they are, by a line that only they print."""

from __future__ import annotations

import re
from typing import NamedTuple

_TOPOLOGY = "use shardsim topology import"
_LOG = "give the log of nccl-tests itself"


class LookAlike(NamedTuple):
    """What a line gives away."""

    what: str
    right: str = _LOG


_SIGNS: tuple[tuple[str, LookAlike], ...] = (
    (r"time:avg\(us\)|\bnccom-test\b|size\(B\)\s+count\(elems\)", LookAlike("the output of nccom-test (AWS Trainium)")),
    (r"# OSU\b|OSU (?:MPI|NCCL|UPC|OpenSHMEM)", LookAlike("the output of the OSU micro-benchmarks")),
    (
        r"P2P \(Peer-to-Peer\)|Bandwidth Matrix \(GB/s\)|Latency Matrix \(us\)|P2P Connectivity Matrix|^\s*D\\D\b",
        LookAlike("the matrix of p2pBandwidthLatencyTest"),
    ),
    (r"\bnvbandwidth\b|\w+_to_\w+_memcpy", LookAlike("the output of nvbandwidth")),
    (r"#bytes\s+#iterations\s+BW peak|BW average\[", LookAlike("the output of perftest (ib_write_bw and its kin)")),
    (r"#bytes\s+#iterations\s+t_min|#bytes\s+#repetitions", LookAlike("the output of perftest, IMB or oneCCL")),
    (
        r"payload\s*\|\s*busbw\s*\|\s*algbw|The average bandwidth of \w+ (?:with|over)",
        LookAlike("the table of a PyTorch all_reduce benchmark"),
    ),
    (
        r"---- Performance of \w+ on \d+ devices|Throughput \(Gbps\)\s+BusBW",
        LookAlike("the output of DeepSpeed's communication benchmark"),
    ),
    (r"COMMS-RES-", LookAlike("the output of PARAM comms")),
    (r"\[BENCHMARK\]|hccl_demo|^Processing data_size", LookAlike("the output of hccl_demo (Intel Gaudi)")),
    (r"mscclpp", LookAlike("the output of mscclpp-test")),
    (r"\bucc_perftest\b|^Collective:\s+\w+", LookAlike("the output of ucc_perftest")),
    (r"message_size.*nccl_dtype|nccl_dtype.*message_size", LookAlike("a table of aiconfigurator, in elements and ms")),
    (
        r"^source,gpu,gpus_per_node,nodes,ranks|^\W?size,count,type\b|^[\w# ]*size[\w ()]*,.*busbw",
        LookAlike("a CSV table made from such a log, not the log"),
    ),
    (r"^\s*GPU0\s+GPU1\b|^GPU0\t\s*X\b|NV\d+\s+X\s", LookAlike("the output of nvidia-smi topo -m", _TOPOLOGY)),
    (r"<system version=|<cpu numaid=", LookAlike("an NCCL topology file", _TOPOLOGY)),
    (r"^\s*<graphs? ", LookAlike("an NCCL graph file")),
    (r"^NVIDIA-SMI\b|\| NVIDIA-SMI", LookAlike("the output of nvidia-smi")),
    (r"Launching iperf|^\[ *ID\] Interval", LookAlike("the output of iperf")),
)
_ANY = re.compile("|".join(f"(?P<s{index}>{pattern})" for index, (pattern, _) in enumerate(_SIGNS)))


def recognise(line: str) -> LookAlike | None:
    """Say what a line gives away.

    Parameters
    ----------
    line : str

    Returns
    -------
    LookAlike or None

    Examples
    --------
    >>> recognise("    size(B)    count(elems)    type    time:avg(us)").what
    'the output of nccom-test (AWS Trainium)'
    """
    found = _ANY.search(line[:400])
    if found is None or found.lastgroup is None:
        return None
    return _SIGNS[int(found.lastgroup[1:])][1]
