"""What all ranks together hold of a model with experts, for random layouts: every state once, or as often as copied."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardsim.schema.framework import load_framework
from shardsim.schema.model import load_model
from shardsim.topology.placement import group
from shardsim.values.training import Layout, Moe
from shardsim.workload.data_parallel import expert_shards
from shardsim.workload.kinds import is_expert_layer
from shardsim.workload.parameters import expert_parameters
from shardsim.workload.schedules import make_schedule
from shardsim.workload.stages import chunk_contents
from shardsim.workload.states import stage_held, stage_states

CORE = load_framework("megatron-core")
MODEL = replace(load_model("llama-3-8b"), layers=8, moe=Moe(16, 2, 1024, first_dense=1, every=2))


@st.composite
def layouts(draw) -> Layout:
    tp, cp, pp = (draw(st.sampled_from([1, 2, 4])) for _ in range(3))
    dp = draw(st.sampled_from([1, 2, 4, 8, 16]))
    etp = draw(st.sampled_from([one for one in (1, 2, 4) if tp * cp * dp % one == 0]))
    ep = draw(st.sampled_from([one for one in (1, 2, 4, 8, 16) if tp * cp * dp % (etp * one) == 0]))
    order = draw(st.sampled_from([("tp", "cp", "dp", "pp"), ("tp", "pp", "dp", "cp"), ("pp", "tp", "dp", "cp")]))
    return Layout(tp, pp, dp, cp=cp, ep=ep, etp=etp, zero=draw(st.integers(0, 3)), order=order)


def held_by_stage(layout: Layout):
    contents = chunk_contents(MODEL, layout, make_schedule("1f1b", int(layout.pp), int(layout.pp), 1))
    return [stage_held(MODEL, layout, CORE, [contents[stage, 0]]) for stage in range(int(layout.pp))]


@given(layouts())
def test_ranks_of_a_stage_are_parts_of_experts_times_experts_times_replicas(layout):
    replicas = len(group("edp", 0, layout))
    assert replicas * layout.ep * layout.etp == layout.tp * layout.cp * layout.dp
    assert replicas == expert_shards(layout)


@given(layouts())
def test_all_ranks_together_hold_every_state_of_experts_as_often_as_the_zero_stage_says(layout):
    """arXiv 1910.02054: a split state is there once, any other on each of the ranks that hold the same experts."""
    ranks, replicas = layout.tp * layout.cp * layout.dp, expert_shards(layout)
    states = [stage_states(layout, CORE, replace(held, shared=0.0)) for held in held_by_stage(layout)]
    mixed = sum(is_expert_layer(MODEL, index) for index in range(MODEL.layers))
    parameters = mixed * MODEL.moe.experts * expert_parameters(MODEL)
    # bf16 weights, fp32 gradients, fp32 masters and moments
    for item, size, split_from in (("weights", 2, 3), ("gradients", 4, 2), ("optimizer", 12, 1)):
        copies = 1 if layout.zero >= split_from else replicas
        total = sum(ranks * getattr(state, item) for state in states)
        assert total == pytest.approx(parameters * size * copies, rel=1e-12)


@given(layouts())
def test_experts_do_not_change_what_is_held_of_everything_else(layout):
    """All but experts is split over tp, and over dp and cp as ever, whatever ep and etp are."""
    plain = replace(layout, ep=1, etp=1)
    for one, other in zip(held_by_stage(layout), held_by_stage(plain), strict=True):
        assert one.shared == other.shared
        states = [stage_states(at, CORE, replace(one, expert=0.0)) for at in (layout, plain)]
        assert states[0] == states[1]
