"""What a stack's constants do to a program."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardsim.engine.des import simulate
from shardsim.engine.listing import listing
from shardsim.program.build import build
from shardsim.program.provenance import cost_notes
from shardsim.program.resolve import resolve
from shardsim.program.stack import term_of
from shardsim.schema.run import nested, request_from_mapping
from shardsim.values.operators import Attention, Collective, Elementwise, Gemm, TokenExchange
from shardsim.values.stack import AS_MEASURED


def _run(**changes: object):
    keys = {"model": "llama-2-7b", "cluster": "dgx-h100", "gpus": 16, "micro_batch": 1, "global_batch": 16, "seq": 4096}
    keys |= {"framework": "megatron-core", "set": {"stack": "none", "host": "none"}}
    return resolve(request_from_mapping(nested(keys | changes)))


def _seconds(run, **constants: float) -> float:
    stack = replace(AS_MEASURED, **constants)
    return listing(build(replace(run, profile=replace(run.profile, stack=stack)))).iteration_s


def test_terms_are_those_of_what_an_operator_is() -> None:
    assert term_of(Gemm("qkv", 8, 8, 8)) == "products"
    assert term_of(Gemm("qkv", 8, 8, 8, data_type="fp8")) == "narrow"
    assert term_of(Gemm("up", 8, 8, 8, grouped="one_kernel", data_type="fp8")) == "experts"
    assert term_of(Collective("sum", "all_reduce", "tp", 8)) == "inside"
    assert term_of(Collective("sum", "all_reduce", "cp", 8)) == "inside"
    assert term_of(Collective("sum", "all_to_all", "ep", 8)) == "exchange"
    assert term_of(Collective("sum", "all_reduce", "dp", 8)) == "data"
    assert term_of(Collective("sum", "all_reduce", "embedding", 8)) == ""
    assert {term.__name__ for term in (Attention, Elementwise, TokenExchange)}


def test_every_kernel_slower_by_one_factor_is_the_iteration_slower_by_it() -> None:
    run = _run(gpus=1, global_batch=2)
    factors = dict.fromkeys(("products", "narrow", "attention", "kernels", "experts"), 1.3)
    assert _seconds(run, **factors) == pytest.approx(1.3 * _seconds(run), rel=1e-9)


@pytest.mark.parametrize("name", ["products", "attention", "kernels"])
def test_a_factor_adds_what_its_own_kernels_take(name: str) -> None:
    run = _run(gpus=1, global_batch=1)
    own = sum(float(t.seconds) for block in build(run).blocks.values() for t in block.tasks if t.term == name)
    grown = _seconds(run, **{name: 2.0}) - _seconds(run)
    # The optimizer and the norm are memory-bound too, and lie behind the passes.
    assert grown >= own * (1 - 1e-9)
    assert own > 0.0
    if name != "kernels":
        assert grown == pytest.approx(own, rel=1e-9)


def test_the_time_between_iterations_is_added_once_and_counts_as_the_hosts() -> None:
    run = _run(tp=2, pp=2)
    assert _seconds(run, iteration=0.5) == pytest.approx(_seconds(run) + 0.5, rel=1e-9)
    slower = replace(run, profile=replace(run.profile, stack=replace(AS_MEASURED, iteration=0.5)))
    for execution in (listing(build(slower)), simulate(build(slower))):
        assert all(account.seconds["host"] == pytest.approx(0.5, rel=1e-6) for account in execution.stages)


def test_members_of_a_group_cost_the_host_only_in_jobs_over_several_domains() -> None:
    """Launches hide behind compute, so that a factor on a busy device changes nothing until they are longer."""

    def seconds(gpus: int, member: float) -> float:
        run = _run(tp=8, gpus=gpus, global_batch=gpus // 8)
        host = replace(run.profile.host, member=member)
        return listing(build(replace(run, profile=replace(run.profile, host=host)))).iteration_s

    assert seconds(8, 1e-3) == seconds(8, 0.0)
    assert seconds(16, 1e-6) == pytest.approx(seconds(16, 0.0), rel=1e-3)
    assert seconds(16, 1e-3) > 2.0 * seconds(16, 0.0)


def test_what_a_stack_takes_longer_is_among_the_costs_used_where_the_run_has_it() -> None:
    costs = {note.constant: note for note in cost_notes(_run(precision="fp8", set={}))}
    narrow = costs["matrix products below 16 bits in training"]
    assert "megatron-core-2024" in narrow.value
    assert narrow.provenance.basis == "fitted"
    assert "exchanges of tokens in training" not in costs
    assert not [name for name in (note.constant for note in cost_notes(_run())) if "in training" in name]
