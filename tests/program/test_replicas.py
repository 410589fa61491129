"""What data parallelism adds to a program: which bytes travel when, and what of it stays exposed."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardsim.engine.closed import closed_form
from shardsim.engine.des import simulate
from shardsim.engine.listing import listing
from shardsim.errors import InputError
from shardsim.program.build import build
from shardsim.program.coalesce import coalesce
from shardsim.program.resolve import resolve
from shardsim.program.sharding import gathers_in_buckets, gathers_of_units, reductions_in_buckets
from shardsim.schema.run import nested, request_from_mapping
from shardsim.values.program import Pair
from shardsim.values.training import Batch, Moe
from shardsim.workload.kinds import LayerKind, layer_kind
from shardsim.workload.parameters import (
    embedding_parameters,
    head_parameters,
    layer_held,
    layer_parameters,
    mtp_parameters,
)
from shardsim.workload.stages import ChunkContent
from shardsim.workload.states import gathered_bytes, largest_units

WHOLE = (ChunkContent(8, embedding=True, head=True),)


@cache
def described(model="llama-3-8b", framework="megatron-core", cluster="dgx-a100"):
    keys = {"model": model, "cluster": cluster, "framework": framework, "gpus": 8, "global_batch": 8, "micro_batch": 1}
    return resolve(request_from_mapping(nested(keys | {"seq": 2048, "tp": 1})))


def laid_out(base, microbatches=1, micro_batch=1, flags=None, layers=None, **layout):
    """A run of another layout, in which each replica has so many micro-batches."""
    spread = replace(base.layout, sp=False, **layout)
    model = base.model if layers is None else replace(base.model, layers=layers)
    batch = Batch(microbatches * micro_batch * spread.dp, micro_batch, base.batch.seq_len)
    return replace(base, layout=spread, model=model, batch=batch, framework=replace(base.framework, **(flags or {})))


def blocks_run(program, stage):
    """The blocks that a stage runs in an iteration: its prologue, one for each pass or pair, its epilogue."""
    yield program.prologues[stage]
    order = program.schedule.orders[stage]
    keys = [None if isinstance(item, Pair) else (stage, item.kind, item.chunk) for item in order]
    for index, (item, key) in enumerate(zip(order, keys, strict=True)):
        if key is None:
            yield program.pairs[stage, item.forward.chunk, item.backward.chunk]
        elif key not in keys[index + 1 :] and key in program.last_blocks:
            yield program.last_blocks[key]
        elif key not in keys[:index] and key in program.first_blocks:
            yield program.first_blocks[key]
        else:
            yield program.blocks[key]
    yield program.epilogues[stage]


def travelling(program, stage=0):
    return [task for block in blocks_run(program, stage) for task in block.tasks if task.category == "dp"]


def moved(program, stage=0):
    """Bytes that a rank sends its replicas in an iteration, by stream."""
    found = Counter()
    for task in travelling(program, stage):
        if task.transfer is not None and task.stream in ("dp", "replicas"):
            assert task.transfer.algorithm.startswith(("ring", "none")) or not task.seconds
            found[task.stream] += float(task.transfer.wire["nvlink"])
    return found


def exposed(program):
    return float(listing(program).stages[0].seconds.get("dp", 0.0))


# ---- volumes ----------------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(
    zero=st.integers(0, 3),
    dp=st.sampled_from([2, 4, 8]),
    hybrid=st.booleans(),
    shape=st.sampled_from([(1, 1, "1f1b"), (2, 1, "1f1b"), (2, 2, "interleaved"), (2, 1, "zb-h1"), (4, 1, "gpipe")]),
    rounds=st.integers(1, 3),
    reshard=st.booleans(),
    together=st.booleans(),
    flags=st.fixed_dictionaries(
        {
            "overlap_grad_reduce": st.sampled_from(["always", "never"]),
            "overlap_param_gather": st.booleans(),
            "reduces_units": st.booleans(),
            "pipeline_accumulates": st.booleans(),
            "sums_copies_every_pass": st.booleans(),
            "buckets_first_chunk_only": st.booleans(),
            "kept_parts": st.sampled_from([(), ("head",), ("embedding", "head")]),
            "gathers_ahead": st.sampled_from([1, 2]),
            "first_bucket_bytes": st.sampled_from([0.0, 2.0**20]),
            "reductions_in_flight": st.sampled_from([0, 1, 3]),
        }
    ),
)
def test_bytes_of_an_iteration_are_the_closed_forms(zero, dp, hybrid, shape, rounds, reshard, together, flags):
    """arXiv 1910.02054 section 7, arXiv 2304.11277 section 3.2.2, times the micro-batches where each is reduced."""
    pp, vpp, schedule = shape
    # What is gathered together is kept together.
    flags = flags | {"gathers_ends_together": together and flags["kept_parts"] != ("head",)}
    shard = dp // 2 if hybrid else 0
    m = rounds * pp
    base = described()
    run = laid_out(
        base,
        m,
        flags=flags,
        layers=4,
        pp=pp,
        vpp=vpp,
        dp=dp,
        zero=zero,
        shard=shard,
        schedule=schedule,
        reshard=reshard,
    )
    program = build(run)
    parts = [part(run.model, run.layout, run.framework) for part in (embedding_parameters, head_parameters)]
    for stage in {0, pp - 1}:
        ends = {"embedding": parts[0] * (stage == 0), "head": parts[1] * (stage == pp - 1)}
        whole = 4 / pp * layer_parameters(run.model, run.layout, run.framework) + sum(ends.values())
        kept = sum(ends[part] for part in flags["kept_parts"])
        sharing = shard if shard and zero else dp
        passes = (sharing - 1) / sharing
        accumulates = flags["pipeline_accumulates"] and pp > 1
        reductions = m if zero > 1 and not accumulates else 1
        gathered = {0: 0.0, 1: whole, 2: whole}.get(zero)
        if gathered is None:
            forward = m if reshard or not accumulates else 1
            gathered = forward * whole + (m * (whole - kept) if reshard else 0.0)
        gradients = 4 * whole * reductions
        expected = gradients * (2 if zero == 0 else 1) * passes + 2 * gathered * passes
        found = moved(program, stage)
        assert found["dp"] == pytest.approx(expected, rel=1e-9)
        sums = reductions if flags["sums_copies_every_pass"] else 1
        across = 2 * 4 * whole * sums / shard * (1 - shard / dp) if shard and zero else 0.0
        assert found["replicas"] == pytest.approx(across, rel=1e-9)


def test_without_resharding_one_gather_takes_the_place_of_two():
    base = described(framework="fsdp")
    flags = {"kept_parts": (), "gathers_ends_together": False}
    twice, once = (build(laid_out(base, flags=flags, layers=8, dp=8, zero=3, reshard=again)) for again in (True, False))
    counts = [Counter(task.name for task in travelling(program)) for program in (twice, once)]
    assert counts[0]["gather parameters"] == 2 * 10  # eight layers and both ends, forward and backward
    assert counts[1]["gather parameters"] == 10
    assert counts[0]["reduce gradients"] == counts[1]["reduce gradients"] == 10


def tied(framework, layers=8):
    base = described(framework=framework)
    run = laid_out(replace(base, model=replace(base.model, tied_embeddings=True)), layers=layers, dp=8, zero=3)
    parts = [part(run.model, run.layout, run.framework) for part in (layer_parameters, embedding_parameters)]
    return run, layers * parts[0], parts[1], head_parameters(run.model, run.layout, run.framework)


def test_a_table_that_both_ends_use_is_one_unit_of_fsdp_and_stays_gathered():
    """Embedding, norm and head in one ``fully_shard``, kept after the forward pass."""
    run, layers, table, norm = tied("torchtitan")
    gathered = layers + table + norm + layers
    assert moved(build(run))["dp"] == pytest.approx(7 / 8 * (2 * gathered + 4 * (layers + table + norm)), rel=1e-9)
    one, two = (largest_units(run.model, run.layout, run.framework, WHOLE, count) for count in (1, 2))
    assert (one, two) == (layers / 8, layers / 4)
    ahead = 1 + run.framework.gathers_ahead
    expected = 2 * (ahead * layers / 8 + table + norm)
    assert gathered_bytes(run.model, run.layout, run.framework, WHOLE) == pytest.approx(expected)


def test_a_table_that_nothing_keeps_is_gathered_at_both_ends():
    run, layers, table, norm = tied("deepspeed")
    gathered = 2 * (layers + 2 * table + norm)
    reduced = run.framework.gradient_bytes * (layers + table + norm)
    assert moved(build(run))["dp"] == pytest.approx(7 / 8 * (2 * gathered + reduced), rel=1e-9)


def test_computation_waits_for_parameters_though_tokens_are_gathered_before_it():
    run = laid_out(described(framework="nanotron"), layers=8, tp=2, dp=8, zero=3)
    program = build(replace(run, layout=replace(run.layout, sp=True)))
    tasks = program.blocks[0, "B", 0].tasks
    named = {index for index, task in enumerate(tasks) if task.name == "gather parameters"}
    waiting = [task for task in tasks if named & set(task.waits)]
    assert waiting
    assert all(task.blocking for task in waiting)


# ---- experts ----------------------------------------------------------------------------------------------------

MIXED = Moe(experts=8, top_k=2, ffn=3584, first_dense=1)


def with_experts(base, **layout):
    return laid_out(replace(base, model=replace(base.model, moe=MIXED)), layers=4, **layout)


@settings(max_examples=40, deadline=None)
@given(
    zero=st.integers(0, 3),
    spread=st.sampled_from(
        [(1, 2, 2, 1), (1, 8, 8, 1), (1, 8, 4, 1), (1, 8, 1, 1), (2, 4, 8, 1), (2, 4, 2, 2), (4, 2, 8, 1), (8, 1, 4, 1)]
    ),
    hybrid=st.booleans(),
    shape=st.sampled_from(
        [(1, 1, "1f1b"), (2, 1, "1f1b"), (2, 2, "interleaved"), (2, 1, "zb-h1"), (2, 2, "dualpipev")]
    ),
    flags=st.fixed_dictionaries(
        {
            "overlap_grad_reduce": st.sampled_from(["always", "never"]),
            "overlap_param_gather": st.booleans(),
            "reduces_units": st.booleans(),
            "buckets_first_chunk_only": st.booleans(),
            "copies_gathered": st.booleans(),
        }
    ),
)
def test_experts_are_reduced_over_the_ranks_that_hold_the_same(zero, spread, hybrid, shape, flags):
    """github NVIDIA/Megatron-LM, parallel_state.py: world / (pp ep etp) ranks; all others over their dp as ever."""
    (tp, dp, ep, etp), (pp, vpp, schedule) = spread, shape
    parts = dp // 2 if hybrid and dp % 2 == 0 and dp > 2 and (dp // 2) * tp % (ep * etp) == 0 else 0
    shard = parts if zero else 0
    spread_over = {"pp": pp, "vpp": vpp, "dp": dp, "ep": ep, "etp": etp, "zero": zero, "shard": shard}
    run = with_experts(described(), microbatches=4, flags=flags, schedule=schedule, tp=tp, **spread_over)
    program = build(run)
    kinds = [layer_held(run.model, run.layout, run.framework, layer_kind(run.model, index)) for index in range(4)]
    ends = [part(run.model, run.layout, run.framework) for part in (embedding_parameters, head_parameters)]
    mine = {1: [0, 1, 2, 3], 2: [0, 1] if vpp == 1 else [0, 2]}[pp]
    held = [kinds[index] for index in ([0, 3] if schedule == "dualpipev" else mine)]
    both = ends[0] + (ends[1] if pp == 1 or schedule == "dualpipev" else 0.0)

    def sent(size, ranks, factor):
        return factor * size * (ranks - 1) / ranks

    expected = 0.0
    families = ((sum(one.shared for one in held) + both, dp), (sum(one.expert for one in held), tp * dp / (ep * etp)))
    for size, replicas in families:
        ranks = replicas * shard / dp if shard else replicas
        passes = 4 if zero > 1 else 1
        gathers = {0: 0, 1: 1, 2: 1, 3: 2 * 4}[zero]
        expected += sent(4 * size, ranks, passes * (2 if zero == 0 else 1)) + sent(2 * size, ranks, gathers)
    assert moved(program)["dp"] == pytest.approx(expected, rel=1e-9)


def test_gradients_of_experts_fill_buckets_of_their_own():
    """Megatron Core, distributed_data_parallel.py: buffers of dense parameters and of experts, each in buckets."""
    base = described()
    run = with_experts(base, dp=8, ep=4, zero=1, flags={"bucket_bytes": 4e8, "bucket_bytes_per_replica": 0.0})
    tasks = [task for task in build(run).last_blocks[0, "B", 0].tasks if task.name == "reduce gradients"]
    assert {task.stream for task in tasks} == {"dp"}
    found = Counter(float(task.transfer.wire["nvlink"]) for task in tasks)
    # A bucket of 1e8 gradients among two ranks, one or two of them behind each of the three layers that have experts.
    experts = 3 * layer_held(run.model, run.layout, run.framework, LayerKind(moe=True)).expert
    whole = sum(count for size, count in found.items() if size in (1 / 2 * 4e8, 2 / 2 * 4e8))
    assert experts // 1e8 == 2
    assert whole == 2


def test_events_do_not_depend_on_how_many_ranks_hold_the_same_experts():
    counts = set()
    for dp, ep in ((2, 2), (4, 2), (8, 2), (8, 8)):
        run = with_experts(described(), microbatches=2, pp=2, dp=dp, ep=ep, zero=1)
        counts.add(simulate(coalesce(build(run))).events)
    assert len(counts) == 1


def test_a_rank_without_replicas_shares_its_experts_where_tensor_parallelism_does_not_split_them():
    """TP 8, ETP 1, EP 1: every rank has all experts whole, and dense layers have no replicas at all."""
    run = with_experts(described(), tp=8, dp=1, ep=1, etp=1, zero=0)
    held = layer_held(run.model, run.layout, run.framework, LayerKind(moe=True)).expert
    assert moved(build(run))["dp"] == pytest.approx(2 * 7 / 8 * 3 * held * run.framework.gradient_bytes, rel=1e-9)


@pytest.mark.parametrize("zero", [0, 1, 3])
def test_engines_agree_on_experts(zero):
    run = with_experts(described(), microbatches=4, pp=2, dp=4, ep=4, zero=zero)
    program = build(run)
    reference = listing(program).iteration_s
    for execution in (closed_form(coalesce(program)), simulate(program), simulate(coalesce(program))):
        assert execution.iteration_s == pytest.approx(reference, rel=1e-9)


def test_many_layouts_of_experts_cost_what_each_costs_alone():
    base, shape = described(), {"pp": 2, "zero": 1}
    dp, ep = np.array([2.0, 8.0, 16.0, 8.0]), np.array([2.0, 2.0, 8.0, 8.0])
    found = closed_form(coalesce(build(with_experts(base, microbatches=4, dp=dp, ep=ep, **shape)))).iteration_s
    for index, (d, e) in enumerate(zip(dp.tolist(), ep.tolist(), strict=True)):
        alone = with_experts(base, microbatches=4, dp=int(d), ep=int(e), **shape)
        assert found[index] == pytest.approx(float(closed_form(coalesce(build(alone))).iteration_s), rel=1e-12)


def test_multi_token_prediction_away_from_the_embedding_has_a_copy_of_it():
    base = described()
    run = laid_out(base, 4, layers=4, pp=2, dp=4, zero=1)
    ahead = replace(run, model=replace(run.model, mtp=1))
    table = embedding_parameters(run.model, run.layout, run.framework)
    module = mtp_parameters(ahead.model, ahead.layout, ahead.framework).total
    found = [moved(build(one), stage=1)["dp"] for one in (run, ahead)]
    assert found[1] - found[0] == pytest.approx(3 / 4 * (4 + 2) * (table + module), rel=1e-9)
    assert "tied embedding" in {task.rendezvous for task in build(ahead).epilogues[1].tasks}
    assert "tied embedding" not in {task.rendezvous for task in build(run).epilogues[1].tasks}
    folded = laid_out(replace(base, model=ahead.model), 4, layers=4, pp=2, dp=4, zero=1, schedule="dualpipev", vpp=2)
    assert "tied embedding" not in {task.rendezvous for task in build(folded).epilogues[0].tasks}


# ---- buckets ----------------------------------------------------------------------------------------------------

sizes = st.lists(st.integers(1, 500), min_size=1, max_size=12)


@given(sizes, st.integers(1, 700), st.integers(0, 50))
def test_a_bucket_is_reduced_when_its_last_gradient_is_there(parameters, elements, first):
    expected = Counter()
    bucket, fill, done = (first or elements), 0, 0
    for unit, size in enumerate(parameters):
        for _ in range(size):
            fill, done = fill + 1, done + 1
            if fill == bucket:
                expected[unit] += fill
                bucket, fill = elements, 0
    expected[len(parameters) - 1] += fill
    found = Counter()
    for reduction in reductions_in_buckets(parameters, elements, first):
        found[reduction.after] += reduction.parameters * reduction.times
    # A first bucket larger than the first unit would have to wait for the next: no layer is as small as that.
    if first <= parameters[0]:
        assert +found == +expected
    assert found.total() == sum(parameters)


@given(sizes, st.integers(1, 700))
def test_buckets_of_parameters_are_gathered_one_ahead_and_each_once(parameters, elements):
    gathers = gathers_in_buckets([float(size) for size in parameters], float(elements))
    bucket = min(sum(parameters), elements)  # the first, which is there
    assert bucket + sum(g.parameters * g.times for g in gathers) == pytest.approx(sum(parameters))
    for unit in range(len(parameters)):
        ready = bucket + sum(g.parameters * g.times for g in gathers if g.needed is not None and g.needed <= unit)
        begun = sum(parameters[:unit])
        assert ready >= min(sum(parameters), begun + elements) - 1e-6  # all of the bucket in which the unit begins


def test_a_layer_is_gathered_while_the_layers_before_it_compute():
    one, two = (gathers_of_units([5.0, 1.0, 1.0, 0.0, 1.0], ahead, copied=False) for ahead in (1, 2))
    assert [(g.before, g.needed) for g in one] == [(0, 0), (0, 1), (1, 2), (3, 4)]
    assert [(g.before, g.needed) for g in two] == [(0, 0), (0, 1), (0, 2), (2, 4)]


def test_only_the_first_chunk_of_the_first_stage_has_buckets_in_megatron():
    run = laid_out(described(), 4, pp=2, dp=8, zero=1)
    program = build(run)
    reductions = [
        [task for task in program.last_blocks[stage, "B", 0].tasks if task.name == "reduce gradients" and task.seconds]
        for stage in (0, 1)
    ]
    assert len(reductions[0]) > 10
    assert len(reductions[1]) == 1


def test_stages_gather_their_first_two_chunks_at_once_and_each_later_one_behind_the_one_before():
    """github NVIDIA/Megatron-LM, megatron/core/pipeline_parallel/schedules.py, param_sync_func."""
    program = build(laid_out(described(), 8, pp=2, vpp=4, dp=8, zero=1, schedule="interleaved"))
    wait, gather = "wait for parameters", "gather parameters"
    assert [task.name for task in program.prologues[1].tasks] == [gather, wait, gather]
    assert (1, "F", 0) not in program.first_blocks or not any(
        task.category == "dp" for task in program.first_blocks[1, "F", 0].tasks
    )
    # The first stage has a bucket in its first pass, and all else queued before anything computes.
    assert [task.name for task in program.prologues[0].tasks] == [gather]
    names = [task.name for task in program.first_blocks[0, "F", 0].tasks]
    assert names[0] == wait
    assert set(names[1 : names.index("embedding")]) == {gather}
    assert gather not in names[names.index("embedding") :]
    for stage in (0, 1):
        for chunk in (1, 2):
            names = [task.name for task in program.first_blocks[stage, "F", chunk].tasks]
            assert names[:2] == [wait, gather]
            assert names.count(gather) == 1
        assert gather not in [task.name for task in program.first_blocks[stage, "F", 3].tasks]


# ---- what stays exposed -----------------------------------------------------------------------------------------


def test_longer_computation_hides_more():
    base = described(framework="fsdp")
    thin = replace(base.cluster, nics_per_node=1)
    left = [
        exposed(build(laid_out(replace(base, cluster=thin), micro_batch=b, layers=8, dp=16, zero=3))) for b in (1, 2, 4)
    ]
    assert left[0] > left[1] > left[2]


def test_behind_long_computation_only_the_first_gather_and_the_last_reduction_are_exposed():
    base = described(framework="fsdp")
    program = build(laid_out(base, micro_batch=8, layers=8, dp=8, zero=3))
    gathers = [task.seconds for task in program.blocks[0, "F", 0].tasks if task.name == "gather parameters"]
    reductions = [task.seconds for task in program.blocks[0, "B", 0].tasks if task.name == "reduce gradients"]
    # Looking up the embedding is short: what is gathered next, and reduced before, hides but little behind it.
    assert gathers[0] + reductions[-1] < exposed(program) < sum(gathers[:2]) + sum(reductions[-2:])


def test_megatron_exposes_the_first_bucket_of_the_gather_and_the_last_of_the_reduction():
    """arXiv 2402.15627 section 3.2: of all chunks, the first gather and the last reduction.

    Here both are the embedding's, which is one tensor of several buckets.
    """
    run = laid_out(described(), 8, micro_batch=2, pp=2, vpp=4, dp=8, zero=1, schedule="interleaved")
    program = build(run)
    first = [*program.prologues[0].tasks, *program.first_blocks[0, "F", 0].tasks[1:2]]
    assert {task.name for task in first} == {"gather parameters"}
    last = [task for task in program.last_blocks[0, "B", 0].tasks if task.name == "reduce gradients"][-2:]
    most = sum(task.seconds for task in (*first, *last))
    assert 0.9 * most < exposed(program) <= most  # looking up the embedding hides a little


def test_overlapping_data_parallelism_gains_what_megascale_found():
    """arXiv 2402.15627, table of ablations: 175B on 256 GPUs, batch 256, MFU 58.0 to 59.5 with overlap."""
    keys = {"model": "gpt3-175b", "cluster": "dgx-a100", "framework": "megatron-core", "gpus": 256, "global_batch": 256}
    base = resolve(request_from_mapping(nested(keys | {"micro_batch": 1, "seq": 2048, "tp": 8, "pp": 8, "vpp": 6})))
    late = replace(base, framework=replace(base.framework, overlap_grad_reduce="never", overlap_param_gather=False))
    gain = listing(build(late)).iteration_s / listing(build(base)).iteration_s - 1
    assert 0.5 * (59.5 / 58.0 - 1) < gain < 2 * (59.5 / 58.0 - 1)


def test_one_reduction_at_a_time_holds_up_computation():
    base = described(framework="torchtitan")
    thin = replace(base, cluster=replace(base.cluster, nics_per_node=1))
    alone, free = (
        listing(build(laid_out(thin, flags={"reductions_in_flight": n}, layers=8, dp=16, zero=3))).iteration_s
        for n in (1, 0)
    )
    assert alone >= free


def test_resharding_costs_time_only_where_gathers_do_not_hide():
    base = described(framework="fsdp")
    thin = replace(base, cluster=replace(base.cluster, nics_per_node=1))
    times = [
        listing(build(laid_out(thin, layers=8, dp=16, zero=3, reshard=again))).iteration_s for again in (True, False)
    ]
    assert times[0] > times[1]


@pytest.mark.parametrize(
    ("schedule", "vpp", "split"), [("1f1b", 1, (0, 4)), ("zb-h1", 1, (2, 0, 1, 1)), ("interleaved", 2, (2, 0, 0, 2))]
)
def test_a_chunk_without_layers_has_nothing_to_gather_or_reduce(schedule, vpp, split):
    pp, layers = len(split) // vpp, sum(split)
    run = laid_out(described(), 4, layers=layers, pp=pp, vpp=vpp, dp=4, zero=1, schedule=schedule, split=split)
    program = build(run)
    assert listing(program).iteration_s == pytest.approx(simulate(coalesce(program)).iteration_s, rel=1e-9)
    parts = [part(run.model, run.layout, run.framework) for part in (embedding_parameters, head_parameters)]
    for stage in range(pp):
        whole = sum(split[stage::pp]) * layer_parameters(run.model, run.layout, run.framework)
        whole += parts[0] * (stage == 0) + parts[1] * (stage == pp - 1)
        assert moved(program, stage)["dp"] == pytest.approx((4 + 2) * whole * 3 / 4, rel=1e-9)


def test_a_sum_over_copies_holds_up_no_other_reduction():
    """Computation waits for the scattering of one layer's gradients before the next, not for what follows it."""
    run = laid_out(described(framework="torchtitan"), layers=4, dp=8, zero=3, shard=4)
    tasks = build(run).blocks[0, "B", 0].tasks
    waits = [task.waits for task in tasks if task.name == "wait for gradients" and task.waits]
    assert len(waits) == 5  # between six reductions: of the head, four layers, the embedding
    assert {tasks[place].stream for (place,) in waits} == {"dp"}


@pytest.mark.parametrize("schedule", ["dualpipe", "dualpipev", "zb-v"])
def test_copies_of_a_part_are_added_up_once_where_pairs_end_a_chunk_as_well(schedule):
    base = described()
    for every, times in ((False, 1), (True, 8)):
        flags = {"sums_copies_every_pass": every}
        run = laid_out(base, 8, flags=flags, layers=8, pp=2, vpp=2, dp=8, zero=2, shard=4, schedule=schedule)
        program = build(run)
        found = sum(moved(program, stage)["replicas"] for stage in (0, 1))
        held = sum(part(run.model, run.layout, run.framework) for part in (embedding_parameters, head_parameters))
        held += 8 * layer_parameters(run.model, run.layout, run.framework)
        # Two copies of all, with half of the micro-batches each.
        runs = times * held if schedule != "dualpipe" or every else 2 * held
        assert found == pytest.approx(2 * 4 * runs / 4 * (1 - 4 / 8), rel=1e-9)


def test_a_group_of_one_that_shares_nothing_is_refused():
    keys = {"model": "llama-3-8b", "cluster": "dgx-h100", "gpus": 8, "global_batch": 8, "micro_batch": 1, "seq": 4096}
    with pytest.raises(InputError, match="a group of 1 replica has nobody"):
        resolve(request_from_mapping(nested(keys | {"tp": 1, "zero": 2, "shard": 1})))


def test_whole_gradients_of_a_pipeline_are_reduced_when_its_passes_are_over():
    """github pytorch/pytorch, pipelining/stage.py: REDUCE_GRAD comes after all passes."""
    program = build(laid_out(described(framework="torchtitan"), 4, layers=8, pp=2, dp=8, zero=3))
    assert not any(block.tasks and kind == "B" for (_, kind, _), block in program.last_blocks.items())
    assert all("gradient scatter" in {task.name for task in block.tasks} for block in program.epilogues)


def test_adding_up_copies_once_is_faster_than_in_every_backward_pass():
    base = described()
    thin = replace(base, cluster=replace(base.cluster, nics_per_node=1))
    every, once = (
        listing(build(laid_out(thin, 8, flags={"sums_copies_every_pass": flag}, layers=8, dp=16, zero=3, shard=8)))
        for flag in (True, False)
    )
    assert once.iteration_s < every.iteration_s


def test_the_first_bucket_waits_for_the_first_gradients():
    first, *_ = reductions_in_buckets([0.0, 3.0, 3.0], 4.0, first=1.0)
    assert (first.after, first.parameters) == (1, 1.0)


def test_hybrid_sharding_takes_traffic_off_a_thin_network():
    base = described(framework="fsdp")
    thin = replace(base, cluster=replace(base.cluster, nics_per_node=1))
    whole, hybrid = (
        listing(build(laid_out(thin, layers=8, dp=16, zero=3, shard=shard))).iteration_s for shard in (0, 8)
    )
    assert hybrid < whole


# ---- stages and copies ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("schedule", "vpp", "apart"), [("1f1b", 1, True), ("zb-v", 2, False), ("dualpipe", 2, False)])
def test_a_tied_embedding_meets_only_where_the_head_is_on_another_stage(schedule, vpp, apart):
    base = described("gpt3-175b", "megatron-core")
    run = laid_out(base, 16, layers=16, pp=4, vpp=vpp, dp=2, zero=1, schedule=schedule)
    assert ("tied embedding" in build(run).rendezvous_members) is apart


def test_stages_with_the_same_layers_sum_their_gradients():
    run = laid_out(described(), 16, layers=16, pp=4, vpp=2, dp=2, zero=1, schedule="dualpipe")
    program = build(run)
    assert program.rendezvous_members["copies on stages 0, 3"] == (0, 3)
    assert program.rendezvous_members["copies on stages 1, 2"] == (1, 2)
    names = [task.name for task in program.epilogues[1].tasks]
    assert names.index("sum of copies") < names.index("optimizer step") < names.index("gather of copies")
    assert {task.category for task in program.epilogues[1].tasks if "copies" in task.name} == {"dp"}


CASES = [
    ("fsdp", {"dp": 16, "zero": 3}, {}),
    ("torchtitan", {"dp": 16, "zero": 3, "shard": 8}, {}),
    ("torchtitan", {"dp": 8, "pp": 2, "zero": 3, "reshard": False}, {}),
    ("deepspeed", {"dp": 16, "zero": 2}, {}),
    ("deepspeed", {"dp": 16, "zero": 3}, {"overlap_grad_reduce": "never"}),
    ("megatron-core", {"dp": 8, "pp": 2, "vpp": 4, "zero": 1, "schedule": "interleaved"}, {}),
    ("megatron-core", {"dp": 8, "pp": 2, "zero": 1, "schedule": "zb-h1"}, {}),
    ("megatron-core", {"dp": 8, "pp": 2, "vpp": 2, "zero": 3, "schedule": "dualpipe"}, {}),
    ("megatron-core", {"dp": 8, "pp": 2, "vpp": 2, "zero": 2, "shard": 4, "schedule": "dualpipe"}, {}),
    ("megatron-core", {"dp": 8, "pp": 2, "zero": 3, "shard": 4, "schedule": "zb-h1"}, {}),
]


@pytest.mark.parametrize(("framework", "layout", "flags"), CASES)
def test_three_engines_agree(framework, layout, flags):
    program = build(laid_out(described(framework=framework), 4, flags=flags, layers=8, **layout))
    prices = coalesce(program)
    reference = listing(program).iteration_s
    for execution in (closed_form(program), closed_form(prices), listing(prices), simulate(program), simulate(prices)):
        assert execution.iteration_s == pytest.approx(reference, rel=1e-9)


@pytest.mark.parametrize(("framework", "layout", "flags"), CASES)
def test_many_layouts_at_once_cost_what_each_costs_alone(framework, layout, flags):
    base = described(framework=framework)
    # Pairs take turns where a strand communicates, which without tensor parallelism it does not: another program.
    tp = np.array([2.0, 2.0, 4.0, 4.0] if layout.get("schedule") == "dualpipe" else [1.0, 2.0, 1.0, 4.0])
    dp = np.array([16.0, 16.0, 64.0, 32.0])
    together = laid_out(base, 4, flags=flags, layers=8, **layout | {"tp": tp, "dp": dp})
    found = closed_form(coalesce(build(together))).iteration_s
    for index, (t, d) in enumerate(zip(tp.tolist(), dp.tolist(), strict=True)):
        one = laid_out(base, 4, flags=flags, layers=8, **layout | {"tp": int(t), "dp": int(d)})
        assert found[index] == pytest.approx(float(closed_form(coalesce(build(one))).iteration_s), rel=1e-12)


def test_one_rank_among_many_layouts_waits_for_its_parameters_as_it_does_alone():
    base = described(framework="nanotron")

    def seconds(tp, dp):
        run = laid_out(base, 4, layers=8, pp=2, zero=3, tp=tp, dp=dp)
        return closed_form(coalesce(build(replace(run, layout=replace(run.layout, sp=True))))).iteration_s

    found = seconds(np.array([1.0, 2.0]), np.array([16.0, 16.0]))
    assert found[0] == pytest.approx(float(seconds(1, 16)), rel=1e-12)
    assert found[1] == pytest.approx(float(seconds(2, 16)), rel=1e-12)
