"""What makes a run fit: every piece of advice is tried, and is what it says."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from shardsim.cli.main import main
from shardsim.engine.memory import memory_of
from shardsim.engine.predict import predict
from shardsim.errors import InputError
from shardsim.program.resolve import resolve
from shardsim.schema.run import RunRequest, merged, nested, request_from_mapping
from shardsim.search.fit import CHEAP, _Study, cheapest_fit, memory_answer
from shardsim.search.fit_steps import flags, steps
from shardsim.values.fit import Change, FitAdvice, fits_closely
from shardsim.values.results import MemoryProfile
from shardsim.values.training import TrainingRun

GIVEN = {
    "model": "megatron-8.3b",
    "cluster": "dgx-2h",
    "gpus": 16,
    "tp": 4,
    "pp": 2,
    "micro_batch": 2,
    "global_batch": 16,
    "seq": 1024,
    "framework": "megatron-2021",
}
CASES: dict[str, dict[str, Any]] = {
    # 20 bytes each of 8.3 billion parameters over 8 GPUs are 20 GiB of 32; activations take the rest and more.
    "activations": {},
    # A whole copy of the model on each GPU, all of it states.
    "states": {"model": "megatron-4.2b", "tp": 1, "pp": 1, "recompute": "full", "micro_batch": 1},
    "both": {"model": "megatron-4.2b", "tp": 1, "pp": 1, "micro_batch": 4, "gpus": 4},
    "hopeless": {"tp": 2, "micro_batch": 1, "gpus": 4, "global_batch": 4},
    "experts": {
        "model": "mixtral-8x7b",
        "cluster": "dgx-h100",
        "framework": "megatron-core",
        "gpus": 64,
        "tp": 1,
        "micro_batch": 1,
        "global_batch": 64,
        "seq": 4096,
    },
}


def _keys(case: str) -> dict[str, Any]:
    return nested(GIVEN | {"recompute": "none"} | CASES[case])


def _request(case: str) -> RunRequest:
    return request_from_mapping(_keys(case))


@cache
def _advice(case: str) -> FitAdvice:
    return cheapest_fit(_request(case), most=100)


def _changed(case: str, keys: dict[str, object]) -> RunRequest:
    """The run with a change made, by the keys that it names."""
    nest: dict[str, Any] = {}
    for key, value in keys.items():
        section, _, name = key.partition(".")
        nest = merged(nest, {section: {name: value} if name else value})
    return request_from_mapping(merged(_keys(case), nest))


def _memory_fits(request: RunRequest) -> bool:
    return memory_of(resolve(request, priced=False)).fits


@pytest.mark.parametrize("case", ["activations", "states", "both", "experts"])
def test_every_change_makes_it_fit_on_as_many_gpus_with_the_same_batch(case: str) -> None:
    assert not _memory_fits(_request(case))
    assert _advice(case).changes
    for change in _advice(case).changes:
        run = resolve(_changed(case, dict(change.keys)))
        assert change.memory == memory_of(run)
        assert change.memory.fits
        assert run.layout.gpus == _request(case).gpus
        assert run.batch.global_batch == _request(case).batch.global_


@pytest.mark.parametrize("case", ["activations", "states"])
def test_a_change_costs_what_it_says(case: str) -> None:
    before = predict(resolve(_request(case)), engine="closed").iteration_s
    assert _advice(case).iteration_s == before
    for change in _advice(case).changes[:3]:
        after = predict(resolve(_changed(case, dict(change.keys))), engine="closed").iteration_s
        assert change.iteration_s == after
        assert change.slowdown == pytest.approx(after / before - 1, rel=1e-12)


@pytest.mark.parametrize("case", ["activations", "states", "both"])
def test_the_cheapest_stands_first(case: str) -> None:
    for one, other in pairwise(_advice(case).changes):
        assert one.iteration_s is not None
        assert other.iteration_s is not None
        assert one.iteration_s <= other.iteration_s


def test_no_more_layers_are_recomputed_than_have_to_be() -> None:
    singles = [change for change in _advice("activations").changes if change.count == 1]
    (change,) = (found for found in singles if found.keys.get("layout.recompute_method") == "block")
    layers = change.keys["layout.recompute_layers"]
    assert isinstance(layers, int)
    assert layers > 1
    assert not _memory_fits(_changed("activations", {**change.keys, "layout.recompute_layers": layers - 1}))


def test_sharding_leaves_each_replica_a_part_of_the_optimizer() -> None:
    """Fp16 weights, gradients, and 16 bytes of optimizer a parameter, of which 16 replicas keep one each."""
    found = next(change for change in _advice("states").changes if change.keys == {"layout.zero": 1})
    before, after = memory_of(resolve(_request("states"))).stages[0], found.memory.stages[0]
    assert before["optimizer"] == pytest.approx(8 * before["weights"], rel=1e-3)
    assert after["optimizer"] == pytest.approx(before["optimizer"] / 16, rel=1e-9)
    assert after["weights"] == before["weights"]


def test_two_changes_are_made_together_where_no_single_one_suffices() -> None:
    assert {change.count for change in _advice("both").changes} == {2}
    for change in _advice("both").changes:
        assert " + " in change.words
    for step in steps(resolve(_request("both"))):
        if step.rung:  # less than full recompute, which is tried too
            continue
        try:
            alone = _memory_fits(_changed("both", dict(step.keys)))
        except InputError:
            continue
        assert not alone


def test_single_changes_are_enough_where_one_is_cheap() -> None:
    advice = _advice("states")
    assert min(change.slowdown or 0.0 for change in advice.changes) <= CHEAP
    assert {change.count for change in advice.changes} == {1}


def test_nothing_is_added_in_vain_to_a_change_that_suffices() -> None:
    advice = _advice("activations")
    alone = {tuple(change.keys.items()): change for change in advice.changes if change.count == 1}
    for pair in advice.changes:
        for keys, change in alone.items():
            if pair.count == 2 and set(keys) < set(pair.keys.items()):
                assert pair.iteration_s is not None
                assert change.iteration_s is not None
                assert pair.iteration_s < change.iteration_s


def test_a_change_that_does_nothing_is_not_added_to_another() -> None:
    """Fused attention keeps no scores, so that recomputing its core saves nothing."""
    fused = {
        "model": "llama-3-8b",
        "cluster": "dgx-h100",
        "framework": "megatron-core",
        "gpus": 4,
        "tp": 1,
        "seq": 8192,
    }
    advice = cheapest_fit(request_from_mapping(nested(GIVEN | {"micro_batch": 1, "global_batch": 4} | fused)), most=100)
    assert advice.changes
    peaks = [change.memory.peak for change in advice.changes]
    assert len(set(peaks)) == len(peaks)
    assert not any("core_attn" in str(change.keys.get("layout.recompute_modules")) for change in advice.changes)


def test_one_module_more_is_recomputed_at_a_time() -> None:
    run = resolve(_changed("activations", {"layout.recompute": "selective", "layout.recompute_modules": ["layernorm"]}))
    asked = [step.keys["layout.recompute_modules"] for step in steps(run) if "layout.recompute_modules" in step.keys]
    assert asked == [("layernorm", "core_attn"), ("layernorm", "mlp"), ("layernorm", "core_attn", "mlp")]


def test_the_nearest_is_named_where_nothing_makes_it_fit() -> None:
    advice = _advice("hopeless")
    assert advice.changes == ()
    (nearest,) = advice.nearest
    assert not nearest.memory.fits
    assert nearest.memory.peak < memory_of(resolve(_request("hopeless"))).peak


def test_advice_is_the_same_each_time_and_counts_what_was_looked_at() -> None:
    counted: list[float] = []
    again = cheapest_fit(_request("hopeless"), most=100, done=counted.append)
    assert again == _advice("hopeless")
    assert sum(counted) == again.tried > 0


def test_what_has_no_price_is_advised_by_memory_alone() -> None:
    """The dispatcher has no constants on this fabric."""
    unpriced = {"cluster": "selene", "layout.dispatcher": "hybridep", "layout.ep": 2}
    advice = cheapest_fit(_changed("experts", unpriced))
    assert advice.iteration_s is None
    assert all(change.iteration_s is None and change.slowdown is None for change in advice.changes)
    peaks = [change.memory.peak for change in advice.changes]
    assert len(peaks) > 1
    assert peaks == sorted(peaks)


def test_experts_may_be_spread_over_more_ranks() -> None:
    assert any("layout.ep" in step.keys for step in steps(resolve(_request("experts"))))


def test_a_run_that_fits_needs_no_advice() -> None:
    answer = memory_answer(_changed("activations", {"layout.recompute": "full", "batch.micro": 1}))
    assert answer.memory.fits
    assert answer.advice is None


def test_advice_can_be_left_out() -> None:
    assert memory_answer(_request("activations"), advise=False).advice is None


def test_a_run_that_is_not_valid_is_refused_with_every_problem() -> None:
    with pytest.raises(InputError) as caught:
        cheapest_fit(_changed("activations", {"layout.tp": 3, "layout.pp": 7}))
    assert len(caught.value.problems) > 1


def test_the_flags_of_a_change_make_it_fit_on_the_command_line(tmp_path: Path) -> None:
    run_file = tmp_path / "run.yaml"
    run_file.write_text(f"{_yaml(_keys('activations'))}\n", encoding="utf-8")
    for change in _advice("activations").changes[:3]:
        result = CliRunner().invoke(main, ["memory", str(run_file), *change.flags.split(), "--require-fit"])
        assert result.exit_code == 0, result.output


def _yaml(keys: dict[str, Any]) -> str:
    """Nested keys in YAML's flow style."""
    return "{" + ", ".join(f"{key}: {_yaml(v) if isinstance(v, dict) else v}" for key, v in keys.items()) + "}"


def test_every_step_has_flags_that_the_command_line_knows() -> None:
    command = main.get_command(click.Context(main), "memory")
    assert command is not None
    known = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
    interleaved = {"layout.schedule": "interleaved", "layout.vpp": 2, "layout.pp": 4, "layout.recompute": "full"}
    for run in (resolve(_request("activations")), resolve(_changed("activations", dict(interleaved)))):
        asked = {word for step in steps(run) for word in flags(step.keys).split() if word.startswith("--")}
        assert {"--tp", "--pp", "--schedule", "--micro-batch"} <= asked <= known


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"layout.sp": True}, "--sp"),
        ({"layout.overlap_grad_reduce": False}, "--no-overlap-grad-reduce"),
        ({"batch.micro": 2, "layout.zero": 1}, "--micro-batch 2 --zero 1"),
        ({"layout.recompute_modules": ("core_attn", "mlp")}, "--recompute-modules core_attn,mlp"),
    ],
)
def test_keys_are_written_as_flags(keys: dict[str, object], expected: str) -> None:
    assert flags(keys) == expected


def test_tensor_parallelism_is_not_advised_beyond_the_nvlink_domain() -> None:
    run = resolve(_changed("activations", {"layout.tp": 16, "layout.pp": 1}))
    assert run.cluster.gpus_per_domain == 16
    assert max(step.keys["layout.tp"] for step in steps(run) if "layout.tp" in step.keys) == 8  # type: ignore[type-var]


def _degrees(request: RunRequest) -> set[tuple[object, object]]:
    """TP and PP of the steps that change one of them, None for what stays."""
    asked = [step.keys for step in steps(resolve(request)) if step.kind == "degrees"]
    return {(keys.get("layout.tp"), keys.get("layout.pp")) for keys in asked}


def test_tensor_parallelism_takes_every_degree_that_divides_heads_and_gpus() -> None:
    """24 heads on 16 GPUs: 3, 6, 12 and 24 leave GPUs over, 16 leaves heads over."""
    run = resolve(_request("states"))
    assert (run.model.heads, run.layout.gpus, run.layout.tp) == (24, 16, 1)
    assert {tp for tp, pp in _degrees(_request("states")) if pp is None} == {2, 4, 8}


def test_uneven_stages_get_more_tensor_parallelism_too() -> None:
    """Such a layout has as many stages as before, so that its split is as good as it was."""
    uneven: dict[str, object] = {"layout.tp": 2, "layout.pp": 4, "layout.first_layers": 15, "layout.last_layers": 15}
    advice = cheapest_fit(_changed("activations", uneven), most=100)
    before = resolve(_changed("activations", uneven))
    assert before.layout.split
    found = next(change for change in advice.changes if change.keys == {"layout.tp": 4})
    assert resolve(_changed("activations", {**uneven, **found.keys})).layout.split == before.layout.split


def test_a_schedule_of_ones_own_keeps_its_stages(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text("stages: [F0 F1 B0 B1, F0 B0 F1 B1]\n", encoding="utf-8")
    asked = _degrees(_changed("activations", {"layout.schedule": str(path), "batch.micro": 4}))
    assert (8, None) in asked
    assert {pp for _, pp in asked} == {None}


def test_experts_are_spread_over_as_many_ranks_as_there_are_experts() -> None:
    run = resolve(_request("experts"))
    assert {step.keys["layout.ep"] for step in steps(run) if step.kind == "ep"} == {2, 4, 8}


def test_long_sequences_are_split_over_more_ranks_and_short_ones_are_not() -> None:
    short, long = (resolve(_changed("experts", {"batch.seq": tokens})) for tokens in (8192, 65536))
    assert [step.keys for step in steps(short) if step.kind == "cp"] == []
    assert [step.keys["layout.cp"] for step in steps(long) if step.kind == "cp"] == [2, 4, 8]
    found = cheapest_fit(_changed("experts", {"batch.seq": 65536, "layout.ep": 8, "layout.zero": 1}), most=100)
    assert any("layout.cp" in change.keys for change in found.changes)


@pytest.mark.parametrize(("zero", "expected"), [(3, {"layout.reshard": True}), (1, {"layout.zero": 3})])
def test_weights_that_stay_gathered_may_be_given_up(zero: int, expected: dict[str, object]) -> None:
    request = _changed("activations", {"layout.zero": zero, "layout.reshard": False})
    keys = [step.keys for step in steps(resolve(request)) if "layout.reshard" in step.keys]
    assert keys == [{**expected, "layout.reshard": True}]


def test_weights_that_are_given_up_anyway_are_not_given_up_again() -> None:
    run = resolve(_changed("activations", {"layout.zero": 3, "layout.reshard": True}))
    assert not [step for step in steps(run) if "layout.reshard" in step.keys]


def test_what_a_change_warns_of_is_said_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def warns(*arguments: Any, **keywords: Any) -> TrainingRun:
        run = resolve(*arguments, **keywords)
        return replace(run, warnings=("as ever", f"foreign ZeRO {run.layout.zero}"))

    monkeypatch.setattr("shardsim.search.fit.resolve", warns)
    changes = cheapest_fit(_request("states"), most=100).changes
    said = {change.keys.get("layout.zero", 0): change.warnings for change in changes}
    assert said == {zero: (f"foreign ZeRO {zero}",) if zero else () for zero in range(4)}


def test_no_more_work_is_repeated_than_a_change_that_fits_well_repeats() -> None:
    """What costs more and is not needed is neither tried nor shown."""
    repeats = {tuple(step.keys.items()): step.repeats for step in steps(resolve(_request("activations")))}
    singles = [change for change in _advice("activations").changes if change.count == 1]
    done = [(repeats[tuple(change.keys.items())], change) for change in singles]
    assert sum(bool(work) for work, _ in done) > 1
    for less, change in done:
        assert change.close or not any(less and less < more for more, _ in done)


def test_a_layout_fits_closely_where_it_leaves_less_than_the_model_is_exact() -> None:
    for size, close in ((0.94, False), (0.96, True), (1.0, True), (1.01, False)):
        memory = MemoryProfile(({"weights": size * 80e9},), 80e9)
        assert fits_closely(memory) is close
        assert Change("", {}, "", 1, memory).close is close


def test_words_and_keys_of_two_changes_are_those_of_both() -> None:
    change: Change = _advice("both").changes[0]
    assert len(change.keys) >= 2
    assert all(
        f"--{key.partition('.')[2].replace('_', '-')}" in change.flags for key in change.keys if "micro" not in key
    )


def test_chunks_that_come_with_a_schedule_are_not_advised_besides_unless_the_run_states_some() -> None:
    keys: dict[str, object] = {"layout.schedule": "v-half", "layout.vpp": 2}
    assert _Study(_request("activations"), (), lambda _: None)._needed(keys) == {"layout.schedule": "v-half"}
    stated = request_from_mapping(merged(_keys("activations"), {"layout": {"vpp": 2}}), "test")
    assert _Study(stated, (), lambda _: None)._needed(keys) == keys


def test_changes_that_are_not_listed_are_counted() -> None:
    every, some = (cheapest_fit(_request("activations"), most=most) for most in (99, 1))
    assert every.more == 0
    assert len(some.changes) + some.more == len(every.changes) > 1
