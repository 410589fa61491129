"""Published times of DeepEP and HybridEP, from the fabrics' constants and the bytes of each exchange.

Their bandwidths are logical: bytes of a token for each node (inside one node, each rank) that it reaches, the sender's
own among them, over the time (github deepseek-ai/DeepEP, tests/test_internode.py and test_intranode.py). 8 of 256
experts, tokens of 7168 elements, FP8 with a scale for each 128 one way, BF16 back.
"""

from __future__ import annotations

import pytest

from shardsim.cost.exchange import exchange_transfer
from shardsim.program.exchange import exchange_volumes
from shardsim.schema.hardware import load_cluster, load_fabric_profile
from shardsim.topology.shape import group_shape
from shardsim.values.operators import TokenExchange
from shardsim.values.training import Layout
from shardsim.workload.destinations import reached

WIDTH = {"dispatch": 1.0 + 4 / 128, "combine": 2.0}


def exchange(cluster, ep, direction, *, dispatcher="deepep", tokens=4096, experts=256, limit=4, width=None):
    """Seconds, and logical bytes."""
    machine = load_cluster(cluster)
    shape = group_shape(machine, Layout(tp=1, pp=1, dp=ep, ep=ep), "ep")
    nodes = int(shape.domains)
    groups = (nodes, min(limit, nodes)) if nodes > 1 and limit else (0, 0)
    width = width or WIDTH[direction]
    sent = TokenExchange("", direction, tokens, experts, 8, 7168, width, dispatcher, *groups)
    units = nodes if nodes > 1 else ep
    fabric = load_fabric_profile(machine.fabric_profile)
    transfer = exchange_transfer(exchange_volumes(sent, shape), dispatcher, direction, shape, machine, fabric)
    return transfer.seconds, reached(units, experts, 8, *groups) * tokens * 7168 * width


@pytest.mark.parametrize(
    ("ep", "dispatch", "combine"),
    # docs/legacy.md; 128 GPUs from the multi-plane network of arXiv 2505.09343.
    [(8, 153, 158), (16, 43, 43), (32, 58, 57), (64, 51, 50), (128, 45.34, 41.60)],
)
def test_deepep_reaches_its_published_bandwidth_on_h800(ep, dispatch, combine):
    for direction, published in (("dispatch", dispatch), ("combine", combine)):
        seconds, size = exchange("hgx-h800", ep, direction)
        assert size / seconds / 1e9 == pytest.approx(published, rel=0.15)


@pytest.mark.parametrize(("ep", "dispatch", "combine"), [(16, 90, 81), (32, 61, 61)])
def test_the_second_version_of_deepep_is_as_fast_where_adapters_decide(ep, dispatch, combine):
    # README.md: SM90 with ConnectX-7, 8192 tokens. Not fitted.
    for direction, published in (("dispatch", dispatch), ("combine", combine)):
        seconds, size = exchange("dgx-h100", ep, direction, tokens=8192)
        assert size / seconds / 1e9 == pytest.approx(published, rel=0.15)


@pytest.mark.parametrize(
    ("ep", "dispatch", "combine"),
    # BF16 both ways, 16 multiprocessors, through its Torch interface: docs/README_Hybrid-EP.md.
    [(8, 550.10, 538.44), (16, 472.84, 474.48), (24, 441.89, 444.40), (32, 485.50, 423.19), (36, 469.96, 418.27)],
)
def test_hybridep_reaches_its_published_bandwidth_in_a_rack(ep, dispatch, combine):
    for direction, published in (("dispatch", dispatch), ("combine", combine)):
        seconds, size = exchange(
            "gb200-nvl72", ep, direction, dispatcher="hybridep", experts=8 * ep, limit=0, width=2.0
        )
        assert size / seconds / 1e9 == pytest.approx(published, rel=0.15)


def test_deepseek_v3_exchanges_take_as_long_as_in_its_trace():
    # github deepseek-ai/profile-data, train.json: EP64, 8 groups of which 4, beside the other micro-batch's compute.
    beside = load_fabric_profile("nvlink4-ndr").exchange["deepep"].beside_compute
    for direction, measured in (("dispatch", 3876e-6), ("combine", 6181e-6)):
        seconds, _ = exchange("hgx-h800", 64, direction)
        assert beside * seconds == pytest.approx(measured, rel=0.20)
