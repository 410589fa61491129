"""Flags become the keys of a run file; what is said twice or cannot be honoured is refused."""

from __future__ import annotations

from typing import get_args

import click
import pytest

from shardsim.cli.options import MODULES, SCHEDULES, run_keys, run_options
from shardsim.errors import InputError
from shardsim.schema.flags import FLAGS
from shardsim.schema.run import RecomputeModule, RunRequest, request_from_mapping
from shardsim.workload.schedules import RULES


def _problems(flags: dict[str, object], settings: list[str]) -> list[str]:
    with pytest.raises(InputError) as caught:
        run_keys(flags, settings)
    return [str(problem) for problem in caught.value.problems]


def test_flags_that_were_not_given_leave_no_key() -> None:
    assert run_keys(dict.fromkeys(FLAGS)) == {}


def test_every_flag_has_a_key_that_the_schema_knows() -> None:
    """No flag may be accepted and then lost: each one shows up in the checked request."""
    values: dict[str, object] = {
        "model": "m",
        "cluster": "c",
        "gpus": 2,
        "tp": 3,
        "pp": 4,
        "vpp": 5,
        "cp": 6,
        "ep": 7,
        "dp": 11,
        "etp": 12,
        "cp_comm": "a2a+p2p",
        "cp_inner": 21,
        "cp_zigzag": False,
        "dispatcher": "deepep",
        "capacity_factor": 1.25,
        "pads_capacity": True,
        "overlap_experts": True,
        "routing": {"loads": None, "histogram": None, "power_law": 0.5},
        "mtp": 22,
        "sp": True,
        "zero": 1,
        "shard": 13,
        "reshard": False,
        "overlap_grad_reduce": True,
        "schedule": "interleaved",
        "group": 14,
        "stage_layers": [15, 16],
        "first_layers": 17,
        "last_layers": 18,
        "embedding_as_layer": True,
        "loss_as_layer": True,
        "pp_layout": "Et|tL",
        "virtual_stage_layers": 19,
        "recompute": "full",
        "recompute_modules": ["core_attn", "mlp"],
        "recompute_method": "block",
        "recompute_layers": 20,
        "order": ["tp", "cp", "pp", "dp"],
        "micro_batch": 8,
        "global_batch": 9,
        "seq": 10,
        "precision": "bf16",
        "framework": "f",
    }
    assert values.keys() == FLAGS.keys()
    given = run_keys(values | {"routing": {"power_law": 0.5}})
    request = request_from_mapping(given, "command line").model_dump(by_alias=True)
    for flag, path in FLAGS.items():
        found: object = request
        for part in path:
            found = found[part]  # type: ignore[index]
        assert (list(found) if isinstance(found, tuple) else found) == values[flag]


def test_every_run_option_is_a_key() -> None:
    @run_options
    def probe() -> None: ...

    named = {option.name for option in probe.__click_params__}  # type: ignore[attr-defined]
    assert named == set(FLAGS) | {"settings"}


@pytest.mark.parametrize(
    ("words", "key", "value"),
    [
        (["--stage-layers", "7,8,8,7"], "stage_layers", [7, 8, 8, 7]),
        (["--recompute-modules", "core_attn, mlp"], "recompute_modules", ["core_attn", "mlp"]),
        (["--no-reshard"], "reshard", False),
        (["--embedding-as-layer"], "embedding_as_layer", True),
        (["--pp-layout", "Et*3|(tt|)*14,L"], "pp_layout", "Et*3|(tt|)*14,L"),
        (["--order", "tp-dp-pp-cp"], "order", ["tp", "dp", "pp", "cp"]),
    ],
)
def test_flags_read_what_people_write(words: list[str], key: str, value: object) -> None:
    found: dict[str, object] = {}

    @click.command()
    @run_options
    def probe(**flags: object) -> None:
        found.update(flags)

    probe(words, standalone_mode=False)
    assert found[key] == value


@pytest.mark.parametrize("text", ["7,,8", "seven", "7;8"])
def test_a_list_that_is_none_is_refused(text: str) -> None:
    @click.command()
    @run_options
    def probe(**flags: object) -> None: ...

    with pytest.raises(click.BadParameter, match="is not a list of whole numbers"):
        probe(["--stage-layers", text], standalone_mode=False)


def test_false_is_a_value_and_not_an_absence() -> None:
    assert run_keys({"sp": False}) == {"layout": {"sp": False}}


def test_set_reaches_keys_of_the_run_and_of_the_hardware() -> None:
    keys = run_keys({}, ["layout.tp=4", "gpus = 8", "precision=fp16", "cluster.nvlink.bandwidth=450 GB/s"])
    assert keys == {
        "layout": {"tp": 4},
        "gpus": 8,
        "precision": "fp16",
        "set": {"cluster.nvlink.bandwidth": "450 GB/s"},
    }


def test_set_reads_values_as_yaml_1_2_does() -> None:
    assert run_keys({}, ["layout.sp=true", "model=no", "cluster.oversubscription=2.5"]) == {
        "layout": {"sp": True},
        "model": "no",
        "set": {"cluster.oversubscription": 2.5},
    }


@pytest.mark.parametrize("setting", ["tp", "=4", "layout.tp=", "  =  "])
def test_a_setting_that_is_no_pair_is_refused(setting: str) -> None:
    assert "is not key=value" in _problems({}, [setting])[0]


def test_an_unknown_key_is_answered_with_the_near_one() -> None:
    assert _problems({}, ["precison=bf16"]) == ["--set: unknown key 'precison' (did you mean precision?)"]


@pytest.mark.parametrize("settings", [["layout.tp=4"], ["layout.pp=2", "layout.pp=2"]])
def test_one_thing_said_twice_is_refused(settings: list[str]) -> None:
    assert "is given twice" in _problems({"tp": 8}, settings)[0]


@pytest.mark.parametrize("setting", ["layout=5", "batch.seq.x=1"])
def test_a_setting_that_collides_with_a_section_is_refused(setting: str) -> None:
    assert "is given twice" in _problems({"tp": 8, "seq": 4}, [setting])[0]


def test_all_problems_are_listed_together() -> None:
    assert len(_problems({"tp": 2}, ["x", "nonsense=1", "layout.tp=3"])) == 3


def test_the_schema_has_no_key_that_no_flag_or_setting_reaches() -> None:
    by_sections = {"conditions", "loading", "checkpoint"}  # flags of their own: cli/conditions.py, cli/iterations.py
    assert {path[0] for path in FLAGS.values()} | {"set"} | by_sections == set(RunRequest.model_fields)


def test_a_list_may_be_set_as_a_run_file_writes_it() -> None:
    assert run_keys({}, ["layout.recompute_modules=[core_attn, mlp]"]) == {
        "layout": {"recompute_modules": ["core_attn", "mlp"]}
    }


def test_the_help_names_every_schedule_and_module_there_is() -> None:
    assert tuple(RULES) == SCHEDULES
    assert get_args(RecomputeModule) == MODULES
