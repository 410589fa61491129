"""Operators of experts and long context as tasks: which group, which stream, how long."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from shardsim.cost.collectives import message_transfer
from shardsim.program.machine import Machine
from shardsim.program.resolve import resolve
from shardsim.schema.run import request_from_mapping
from shardsim.values.operators import Collective, Gemm, TokenExchange


@cache
def machine(model="mixtral-8x7b", **layout):
    gpus = layout.pop("gpus", 32)
    asked = {
        "model": model,
        "cluster": "dgx-h100",
        "gpus": gpus,
        "layout": layout,
        "batch": {"global": gpus, "micro": 1, "seq": 4096},
    }
    return Machine(resolve(request_from_mapping(asked)))


def ring(on, size=2.0**26, axis="cp"):
    return on.transfer(Collective("keys", "send_recv", axis, size))


def test_a_ring_step_inside_a_node_is_a_message_over_nvlink():
    found = ring(machine("llama-3-8b", tp=2, cp=4))
    assert (found.wire["nvlink"], found.wire["nic"]) == (2.0**26, 0.0)


def test_a_ring_over_nodes_leaves_each_by_one_adapter_even_where_its_members_have_four():
    on = machine("llama-3-8b", tp=2, cp=8)
    shape = on.shapes["cp"]
    assert (shape.ranks_per_domain, shape.nic_share) == (4, 200e9)
    cluster, fabric = on.run.cluster, on.run.profile.fabric
    assert ring(on) == message_transfer(2.0**26, leaves_domain=1.0, nic_share=50e9, cluster=cluster, fabric=fabric)


def test_a_ring_of_one_costs_nothing():
    assert ring(machine("llama-3-8b", tp=8)).seconds == 0.0


def test_inner_and_outer_context_parallelism_have_groups_of_their_own():
    on = machine("llama-3-8b", tp=2, cp=8, cp_comm="a2a+p2p", cp_inner=4)
    assert (on.shapes["cp_inner"].domains, on.shapes["cp_outer"].domains) == (1, 2)
    assert ring(on, axis="cp_outer").wire["nic"] > 0.0
    inner = on.task(Collective("heads", "all_to_all", "cp_inner", 2.0**26))
    assert (inner.stream, inner.category, inner.transfer.wire["nic"]) == ("cp", "cp", 0.0)


@pytest.mark.parametrize("dispatcher", ["alltoall", "allgather", "deepep", "hybridep"])
def test_tokens_travel_on_a_stream_of_their_own_and_in_time_per_byte(dispatcher):
    on = machine(ep=8, dispatcher=dispatcher)
    little, much = (
        on.task(TokenExchange("dispatch", "dispatch", tokens, 8, 2, 4096, 2.0, dispatcher)) for tokens in (2**14, 2**15)
    )
    assert (much.stream, much.category, much.flop) == ("ep", "ep", 0.0)
    assert much.host == on.run.profile.host.collective
    assert 1.7 < much.seconds / little.seconds < 2.3


def test_the_busiest_rank_is_waited_for():
    on = machine(ep=8, dispatcher="deepep")
    even, skewed = (
        on.transfer(TokenExchange("", "dispatch", 2**16, 8, 2, 4096, 2.0, "deepep", imbalance=most))
        for most in (1, 1.5)
    )
    assert (skewed.seconds - skewed.latency) / (even.seconds - even.latency) == pytest.approx(1.5)


def test_collectives_of_experts_count_as_expert_parallelism_and_their_gradients_as_data_parallelism():
    on = machine(tp=2, etp=2, ep=4)
    split = on.task(Collective("gather", "all_gather", "etp", 2.0**26))
    summed = on.task(Collective("gradients", "reduce_scatter", "edp", 2.0**26))
    assert (split.stream, split.category) == ("ep", "ep")
    assert (summed.stream, summed.category) == ("dp", "dp")
    assert on.shapes["edp"].ranks == 32 / (2 * 4)


def test_a_stack_with_kernels_of_its_own_takes_longer_for_narrow_weight_gradients_only():
    run = machine("llama-3-8b", tp=8).run
    slower = Machine(replace(run, framework=replace(run.framework, narrow_weights_time=1.2)))

    def times(role, data_type):
        product = Gemm("", 4096, 4096, 4096, role=role, data_type=data_type)
        return float(slower.task(product).seconds / Machine(run).task(product).seconds)

    assert times("wgrad", "fp8_block") == pytest.approx(1.2)
    assert [times("wgrad", ""), times("dgrad", "fp8_block"), times("forward", "fp8_block")] == [1.0, 1.0, 1.0]


def test_a_collective_is_priced_once_whatever_it_is_called_and_never_for_another_size_or_group():
    on = machine("llama-3-8b", tp=2, cp=4)

    def gather(size, axis="tp", kind="all_gather", name="a"):
        return on.transfer(Collective(name, kind, axis, size))

    assert gather(2.0**26) is gather(2.0**26, name="b")
    apart = [gather(2.0**26), gather(2.0**25), gather(2.0**26, "cp"), gather(2.0**26, kind="reduce_scatter")]
    assert len({found.seconds for found in apart}) == 4
    sizes = np.array([2.0**26, 2.0**25])
    assert gather(sizes).seconds.tolist() == [apart[0].seconds, apart[1].seconds]
