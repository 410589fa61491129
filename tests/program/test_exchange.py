"""Bytes of token exchanges: facts of the papers, and what must hold on any group."""

from __future__ import annotations

from dataclasses import fields, replace
from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardsim.program.exchange import exchange_volumes
from shardsim.values.exchange import ExchangeVolumes
from shardsim.values.hardware import GroupShape
from shardsim.values.operators import TokenExchange

V3 = TokenExchange("dispatch", "dispatch", 4096, 256, 8, 7168, 1.0, "deepep", groups=8, group_limit=4)


def group(domains, each):
    """Of ``domains`` NVLink domains with as many ranks in each."""
    return GroupShape(domains * each, each, each, domains, domains, 1, 50e9)


def of(volumes):
    return volumes.near, volumes.far, volumes.whole


groups = st.builds(group, domains=st.sampled_from([1, 2, 4, 8, 16]), each=st.sampled_from([1, 2, 4, 8]))


@st.composite
def exchanges(draw, dispatchers=("alltoall", "allgather", "deepep", "hybridep")):
    limited = draw(st.booleans())
    return TokenExchange(
        "dispatch",
        "dispatch",
        tokens=draw(st.integers(1, 8192)),
        experts=256,
        top_k=draw(st.integers(1, 16)),
        hidden=draw(st.sampled_from([2048, 7168])),
        element_bytes=draw(st.sampled_from([1.0, 1.03125, 2.0])),
        dispatcher=draw(st.sampled_from(dispatchers)),
        groups=8 if limited else 0,
        group_limit=draw(st.integers(1, 8)) if limited else 0,
        imbalance=draw(st.floats(1.0, 3.0)),
        share=draw(st.floats(0.5, 2.0)),
    )


def test_deepseek_v3_sends_three_and_a_half_copies_of_a_token_over_infiniband():
    """4096 tokens of 7168 bytes, 4 of 8 nodes each (facts: dispatch T n_remote h E)."""
    volumes = exchange_volumes(V3, group(8, 8))
    assert volumes.far == pytest.approx(4096 * 3.5 * 7168)
    assert volumes.whole == 4096 * 8 * 7168


def test_over_nvlink_a_token_goes_to_each_rank_once():
    """Two of 32 experts in each of four nodes: 8 ranks have 4 each, of which 7/8 are other ranks than the forwarder."""
    ranks = 4 * 8 * (1 - comb(28, 2) / comb(32, 2))
    assert exchange_volumes(V3, group(8, 8)).near == pytest.approx(4096 * ranks * 7 / 8 * 7168)


def test_combine_in_sixteen_bits_is_twice_as_much_as_dispatch_in_eight():
    dispatch = exchange_volumes(V3, group(8, 8))
    combine = exchange_volumes(replace(V3, direction="combine", element_bytes=2.0), group(8, 8))
    assert of(combine) == tuple(2 * one for one in of(dispatch))


@given(exchanges(["alltoall"]), groups)
def test_an_all_to_all_sends_every_copy(exchange, shape):
    volumes = exchange_volumes(exchange, shape)
    copies = exchange.tokens * exchange.top_k * exchange.share * exchange.imbalance
    size = copies * exchange.hidden * exchange.element_bytes
    assert volumes.near + volumes.far == pytest.approx(size * (shape.ranks - 1) / shape.ranks)
    assert volumes.far == pytest.approx(size * (shape.domains - 1) / shape.domains)


@given(exchanges(["deepep", "hybridep"]), groups)
def test_in_two_levels_a_token_leaves_for_a_domain_once(exchange, shape):
    """facts F.1, with n from counting missed domains."""
    volumes = exchange_volumes(replace(exchange, groups=0), shape)
    each = 256 // shape.domains
    reached = shape.domains * (1 - comb(256 - each, exchange.top_k) / comb(256, exchange.top_k))
    remote = reached * (shape.domains - 1) / shape.domains
    sent = exchange.tokens * exchange.hidden * exchange.element_bytes * exchange.share * exchange.imbalance
    assert volumes.far == pytest.approx(sent * remote)


@given(exchanges(["allgather"]), groups)
def test_an_all_gather_brings_all_tokens_of_the_group(exchange, shape):
    volumes = exchange_volumes(exchange, shape)
    token = exchange.tokens * exchange.hidden * exchange.element_bytes
    assert volumes.near + volumes.far == pytest.approx(token * (shape.ranks - 1))
    assert volumes.whole == token * shape.ranks
    if shape.domains > 1:
        # What a domain lets out to the next one: all but one rank's tokens, by all its ranks together.
        assert volumes.far * shape.ranks_per_domain == pytest.approx(token * (shape.ranks - 1))


@given(exchanges(), groups)
def test_combine_mirrors_dispatch(exchange, shape):
    there = exchange_volumes(exchange, shape)
    assert of(there) == of(exchange_volumes(replace(exchange, direction="combine"), shape))


@given(exchanges(["deepep"]), groups)
def test_two_levels_never_send_more_out_of_a_domain_than_one(exchange, shape):
    flat = exchange_volumes(replace(exchange, dispatcher="alltoall"), shape)
    assert exchange_volumes(exchange, shape).far <= flat.far * (1 + 1e-9)


@given(exchanges(["deepep"]), groups)
def test_two_levels_deliver_no_more_copies_than_there_are(exchange, shape):
    volumes = exchange_volumes(exchange, shape)
    assert volumes.near <= volumes.whole * (1 + 1e-9)


@given(exchanges(), groups)
def test_a_group_of_one_moves_nothing_and_one_domain_nothing_out_of_it(exchange, shape):
    alone = exchange_volumes(exchange, group(1, 1))
    assert (alone.near, alone.far) == (0.0, 0.0)
    assert exchange_volumes(exchange, group(1, 8)).far == 0.0
    assert min(of(exchange_volumes(exchange, shape))) >= 0.0


@pytest.mark.parametrize("dispatcher", ["alltoall", "deepep"])
def test_what_all_ranks_send_is_what_they_receive(dispatcher):
    """Counted token by token: every expert of every rank's tokens equally often, as uniform routing has it."""
    experts, domains, each, top_k = 8, 2, 2, 2
    ranks = domains * each
    chosen = [(one, other) for one in range(experts) for other in range(one + 1, experts)]
    near, far, received = [0] * ranks, [0] * ranks, [0] * ranks
    for sender in range(ranks):
        for pair in chosen:
            targets = [expert * ranks // experts for expert in pair]
            if dispatcher == "alltoall":
                for target in targets:
                    if target == sender:
                        continue
                    (near if target // each == sender // each else far)[sender] += 1
                    received[target] += 1
                continue
            for domain in {target // each for target in targets}:
                through = domain * each + sender % each  # the rank there with the sender's number
                if through != sender:
                    far[sender] += domain != sender // each
                    received[through] += 1
                for target in {target for target in targets if target // each == domain} - {through}:
                    near[through] += 1
                    received[target] += 1
    assert sum(near) + sum(far) == sum(received)
    exchange = TokenExchange("dispatch", "dispatch", len(chosen), experts, top_k, 1, 1.0, dispatcher)
    volumes = exchange_volumes(exchange, group(domains, each))
    assert (near, far) == ([pytest.approx(volumes.near)] * ranks, [pytest.approx(volumes.far)] * ranks)


def test_an_imbalance_is_paid_by_the_busiest_rank():
    volumes = exchange_volumes(V3, group(8, 8))
    assert of(exchange_volumes(replace(V3, imbalance=1.5), group(8, 8))) == pytest.approx(
        tuple(1.5 * one for one in of(volumes))
    )


def test_where_domains_are_uneven_the_emptiest_sends_most_out():
    uneven = GroupShape(12, 8, 8, 2, 2, 1, 50e9, fewest_per_domain=4)
    flat = replace(V3, dispatcher="alltoall")
    assert exchange_volumes(flat, uneven).far == pytest.approx(4096 * 8 * 7168 * 8 / 12)


@pytest.mark.parametrize("dispatcher", ["alltoall", "allgather", "deepep"])
def test_many_groups_at_once_are_like_each(dispatcher):
    exchange = replace(V3, dispatcher=dispatcher)
    shapes = [group(1, 8), group(4, 8), group(8, 8), group(8, 1)]
    columns = {
        one.name: np.array([float(getattr(shape, one.name)) for shape in shapes])
        for one in fields(GroupShape)
        if one.name != "fewest_per_domain"
    }
    together = exchange_volumes(exchange, GroupShape(**columns))
    for name in (one.name for one in fields(ExchangeVolumes)):
        assert np.broadcast_to(getattr(together, name), 4).tolist() == [
            getattr(exchange_volumes(exchange, shape), name) for shape in shapes
        ]
