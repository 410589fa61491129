"""Ranks folded into one process do what they would do each for itself; engines agree where nothing meets."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from shardsim.engine.listing import listing
from shardsim.engine.predict import EventOptions, predict, simulate_run
from shardsim.errors import InputError
from shardsim.program.build import build
from shardsim.program.conditions import scaled
from shardsim.program.resolve import resolve
from shardsim.schema.run import request_from_mapping
from shardsim.values.conditions import Conditions
from shardsim.values.training import TrainingRun

EXACT = 1e-9
DENSE = {
    "name": "small",
    "layers": 4,
    "hidden": 1024,
    "heads": 8,
    "kv_heads": 8,
    "ffn": 2048,
    "vocab": 32000,
    "position": "rope",
}
EXPERTS = {**DENSE, "name": "small experts", "moe": {"experts": 8, "top_k": 2, "ffn": 512}, "activation": "swiglu"}


def run_of(**keys: object) -> TrainingRun:
    return resolve(request_from_mapping(keys, "test"))


@lru_cache
def capacities(name: str) -> tuple[int, int]:
    cluster = run_of(model=DENSE, cluster=name, gpus=1, batch={"global": 1, "seq": 128}).cluster
    return cluster.gpus_per_node, cluster.nics_per_node


@st.composite
def runs(draw: st.DrawFn) -> TrainingRun:
    """Valid runs on all kinds of machines, often with something wrong on them."""
    experts = draw(st.booleans())
    tp, pp, cp = draw(st.sampled_from([1, 2, 4])), draw(st.sampled_from([1, 2, 4])), draw(st.sampled_from([1, 1, 2]))
    dp = draw(st.sampled_from([1, 2, 3, 4, 8]))
    gpus = tp * pp * cp * dp
    assume(2 <= gpus <= 64)
    layout: dict[str, object] = {
        "tp": tp,
        "pp": pp,
        "cp": cp,
        "sp": tp > 1,
        "zero": draw(st.sampled_from([0, 1, 2, 3])),
    }
    if pp > 1:
        layout["schedule"] = draw(st.sampled_from(["1f1b", "gpipe", "zb-h1", "dualpipe", "zb-v"]))
    if experts:
        layout["ep"] = draw(st.sampled_from([ep for ep in (1, 2, 4, 8) if (tp * cp * dp) % ep == 0]))
    if draw(st.booleans()):
        layout["order"] = ["tp", "cp", "pp", "dp"]
    if draw(st.booleans()):
        layout["overlap_grad_reduce"] = True
    cluster = draw(st.sampled_from(["dgx-h100", "dgx-2h", "dgx-a100", "gb200-nvl72", "nvlink900-ib100"]))
    changes: dict[str, object] = {}
    if draw(st.booleans()):
        changes = {"cluster.oversubscription": draw(st.sampled_from([2, 4])), "cluster.nodes_per_leaf": 1}
    try:
        run = run_of(
            model=EXPERTS if experts else DENSE,
            cluster=cluster,
            gpus=gpus,
            layout=layout,
            batch={"global": dp * pp * 2, "micro": 1, "seq": 1024},
            set=changes,
            framework="megatron-core",
            precision="fp16",
        )
    except InputError:
        assume(condition=False)
        raise
    return replace(run, conditions=draw(states(gpus, *capacities(cluster))))


@st.composite
def states(draw: st.DrawFn, gpus: int, gpus_per_node: int, nics: int) -> Conditions:
    node = st.integers(0, -(-gpus // gpus_per_node) - 1)
    gpu, adapter = st.integers(0, gpus - 1), st.tuples(node, st.integers(0, nics - 1))

    def some(key: st.SearchStrategy, value: float) -> dict:
        return draw(st.one_of(st.just({}), st.just({}), key.map(lambda one: {one: value})))

    slow_nics = some(adapter, 0.4)
    dead = some(adapter, 0.0) if nics > 1 else {}
    pair = draw(st.one_of(st.just(()), st.tuples(gpu, gpu)))
    return Conditions(
        slow_nodes=some(node, 1.1),
        slow_gpus=some(gpu, 1.2),
        slow_hosts=some(node, 3.0),
        slow_nics=slow_nics,
        slow_nvlinks=some(gpu, 0.5),
        dead_nics=tuple(one for one in dead if one not in slow_nics),
        swaps=(pair,) if pair and pair[0] != pair[1] else (),
        jitter=draw(st.sampled_from([0.0, 0.0, 0.05])),
        spread=draw(st.sampled_from([0.0, 0.0, 0.03])),
        ecmp_imbalance=draw(st.sampled_from([1.0, 1.5])),
    )


@given(runs())
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
def test_folded_is_unfolded_and_coalesced_is_operator_by_operator(run):
    found = simulate_run(run)
    for detail, unfold in (("operators", False), ("stages", True)):
        other = simulate_run(run, detail=detail, options=EventOptions(unfold=unfold))
        assert other.iteration_s == pytest.approx(found.iteration_s, rel=EXACT)
        for mine, theirs in zip(found.stages, other.stages, strict=True):
            for category in {*mine.seconds, *theirs.seconds}:
                assert mine.seconds.get(category, 0.0) == pytest.approx(
                    theirs.seconds.get(category, 0.0), rel=1e-6, abs=1e-9 * found.iteration_s
                )
    assert sum(lane.lane.ranks for lane in found.lanes) == run.layout.gpus
    for account in found.lanes:
        assert sum(account.seconds.values()) == pytest.approx(found.iteration_s, rel=EXACT)


@given(runs())
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
def test_the_closed_form_the_listing_and_the_events_agree_where_nothing_contends(run):
    run = replace(run, conditions=Conditions())
    closed = predict(run, engine="closed").iteration_s
    alone = EventOptions(contend=False)
    assert predict(run, engine="listing", detail="operators").iteration_s == pytest.approx(closed, rel=EXACT)
    for detail in ("stages", "operators"):
        assert simulate_run(run, detail=detail, options=alone).iteration_s == pytest.approx(closed, rel=EXACT)


@given(runs())
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
def test_no_stream_of_a_rank_runs_two_tasks_at_once(run):
    found = simulate_run(run, detail="operators", timeline=True)
    rows = found.timeline
    assert rows is not None
    assert rows.lane is not None
    streams = [stream for _, stream, _ in rows.labels]
    last: dict[tuple[int, str], float] = {}
    for row in sorted(range(rows.start.size), key=lambda row: (rows.start[row], rows.finish[row])):
        key = int(rows.lane[row]), streams[rows.label[row]]
        assert rows.start[row] >= last.get(key, 0.0) - 1e-12
        last[key] = max(last.get(key, 0.0), float(rows.finish[row]))


@pytest.mark.parametrize("pp", [1, 2, 4])
@pytest.mark.parametrize("zero", [0, 1])
def test_one_host_that_is_slower_changes_the_iteration_as_the_listing_with_its_class_scaled(pp, zero):
    """Every replica waits for the slow one, so the iteration is that of a machine on which the whole stage is slow."""
    for stage in range(pp):
        run = run_of(
            model=DENSE,
            cluster="dgx-h100",
            gpus=32 * pp,
            layout={"tp": 8, "pp": pp, "zero": zero, "sp": True, "overlap_grad_reduce": False},
            batch={"global": 8 * pp, "seq": 1024},
        )
        node = stage * 4 + 2
        slow = replace(run, conditions=Conditions(slow_nodes={node: 1.1}))
        program = build(run)
        slower = scaled(program, 1.1)

        def of_stage(name: str, program=program, slower=slower, stage=stage) -> dict:
            usual, late = getattr(program, name), getattr(slower, name)
            return {key: late[key] if key[0] == stage else block for key, block in usual.items()}

        mixed = replace(
            program,
            blocks=of_stage("blocks"),
            first_blocks=of_stage("first_blocks"),
            last_blocks=of_stage("last_blocks"),
            epilogues=tuple((slower if one == stage else program).epilogues[one] for one in range(pp)),
        )
        alone = EventOptions(contend=False)
        found = simulate_run(slow, options=alone)
        assert found.iteration_s == pytest.approx(listing(mixed).iteration_s, rel=EXACT)
        assert found.iteration_s > simulate_run(run, options=alone).iteration_s


def test_a_class_is_split_where_something_differs_and_nowhere_else():
    """One slow node of 64 GPUs in TP8 x PP2 x DP4: its pipeline is apart from the other three, on both stages."""
    run = run_of(model=DENSE, cluster="dgx-h100", gpus=64, layout={"tp": 8, "pp": 2}, batch={"global": 16, "seq": 1024})
    usual = simulate_run(run)
    assert [(lane.lane.stage, lane.lane.ranks) for lane in usual.lanes] == [(0, 32), (1, 32)]
    slow = simulate_run(replace(run, conditions=Conditions(slow_nodes={1: 1.1})))
    assert sorted((lane.lane.stage, lane.lane.ranks) for lane in slow.lanes) == [(0, 8), (0, 24), (1, 8), (1, 24)]
    longest = max((wait for wait in slow.waited if wait.at == "group"), key=lambda wait: wait.seconds)
    assert slow.lanes[longest.late].lane.name == "computes 1.1 times as long"
    assert (slow.lanes[longest.waiting].lane.stage, slow.lanes[longest.waiting].lane.ranks) == (0, 24)


def test_the_number_of_events_does_not_grow_with_replicas():
    """64 GPUs and 65,536 fold into as many lanes; how often flows change their speed may differ, and no more."""

    def events(dp: int, *, contend: bool = True) -> int | None:
        run = run_of(
            model=DENSE,
            cluster="dgx-h100",
            gpus=16 * dp,
            layout={"tp": 8, "pp": 2},
            batch={"global": 8 * dp, "seq": 1024},
        )
        return simulate_run(run, options=EventOptions(contend=contend)).events

    assert events(4, contend=False) == events(4096, contend=False)
    assert events(4) == pytest.approx(events(4096), rel=0.1)


def test_chance_falls_as_the_seed_says():
    run = run_of(model=DENSE, cluster="dgx-h100", gpus=32, layout={"tp": 8, "pp": 2}, batch={"global": 16, "seq": 1024})

    def seconds(**kept: float) -> float:
        return float(simulate_run(replace(run, conditions=Conditions(**kept))).iteration_s)

    assert seconds(jitter=0.05, seed=1) == seconds(jitter=0.05, seed=1)
    assert seconds(jitter=0.05, seed=1) != seconds(jitter=0.05, seed=2)
    assert seconds(jitter=0.05) > seconds()
    assert seconds(spread=0.02, seed=3) == seconds(spread=0.02, seed=3) != seconds(spread=0.02, seed=4)


def test_a_slow_gpu_loads_no_slower():
    """Loading is the storage's and the host's: what shows of it is what an iteration leaves."""
    run = run_of(
        model=DENSE,
        cluster="dgx-h100",
        gpus=8,
        layout={"tp": 8},
        batch={"global": 8, "seq": 1024},
        loading={"seconds": "600 ms"},
    )
    slow = replace(run, conditions=Conditions(slow_gpus={3: 1.5}))
    assert simulate_run(slow, iterations=3).iteration_s == pytest.approx(0.6, rel=1e-6)


def test_who_waits_for_a_slow_replica_behind_its_backward_pass_waits_for_a_straggler():
    """Gradients are reduced on a stream beside computation: what shows is not the reduction's own time."""
    run = run_of(
        model={**DENSE, "layers": 8, "hidden": 4096, "ffn": 16384, "heads": 32, "kv_heads": 32},
        cluster="dgx-h100",
        gpus=32,
        layout={"tp": 8, "overlap_grad_reduce": True},
        batch={"global": 32, "seq": 2048},
        set={"host": "none"},
    )
    usual = simulate_run(run).stages[0].seconds
    slow = simulate_run(replace(run, conditions=Conditions(slow_nodes={1: 1.2})))
    waiting = next(lane for lane in slow.lanes if not lane.lane.name).seconds
    longer = slow.iteration_s - sum(usual.values())
    # Buckets that used to be reduced behind computation now come while it waits, and between them it waits for more.
    assert waiting["stragglers"] > 0.25 * longer
    assert waiting["stragglers"] + waiting["dp"] - usual["dp"] == pytest.approx(longer, rel=0.1)


def test_conditions_of_links_without_contention_are_refused():
    run = run_of(model=DENSE, cluster="dgx-h100", gpus=16, layout={"tp": 8}, batch={"global": 8, "seq": 1024})
    for odd in ({"dead_nics": ((0, 0),)}, {"slow_nvlinks": {0: 0.5}}, {"ecmp_imbalance": 2.0}, {"flow_limit": 1e9}):
        with pytest.raises(InputError, match="contention is switched off"):
            simulate_run(replace(run, conditions=Conditions(**odd)), options=EventOptions(contend=False))
