"""Flags become the keys of a run file; what is said twice or cannot be honoured is refused."""

from __future__ import annotations

import pytest

from shardsim.cli.options import KEYS, NOT_YET, run_keys, run_options
from shardsim.errors import InputError
from shardsim.schema.run import RunRequest, request_from_mapping


def _problems(flags: dict[str, object], settings: list[str]) -> list[str]:
    with pytest.raises(InputError) as caught:
        run_keys(flags, settings)
    return [str(problem) for problem in caught.value.problems]


def test_flags_that_were_not_given_leave_no_key() -> None:
    assert run_keys(dict.fromkeys(KEYS)) == {}


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
        "sp": True,
        "zero": 1,
        "schedule": "interleaved",
        "recompute": "full",
        "order": ["tp", "cp", "pp", "dp"],
        "micro_batch": 8,
        "global_batch": 9,
        "seq": 10,
        "precision": "bf16",
        "framework": "f",
    }
    assert values.keys() == KEYS.keys()
    request = request_from_mapping(run_keys(values), "command line").model_dump(by_alias=True)
    for flag, path in KEYS.items():
        found: object = request
        for part in path:
            found = found[part]  # type: ignore[index]
        assert (list(found) if isinstance(found, tuple) else found) == values[flag]


def test_every_run_option_is_a_key_or_refused() -> None:
    import click

    command = click.Command("x", params=[])

    @run_options
    def probe() -> None: ...

    named = {option.name for option in probe.__click_params__}  # type: ignore[attr-defined]
    assert named == set(KEYS) | set(NOT_YET) | {"settings"}
    assert command.name == "x"


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


@pytest.mark.parametrize("flag", NOT_YET)
def test_what_this_version_cannot_do_is_refused_and_not_ignored(flag: str) -> None:
    problems = _problems({flag: 3}, [])
    assert len(problems) == 1
    assert problems[0].startswith(f"--{flag.replace('_', '-')}: ")
    assert "not modelled in this version" in problems[0]


def test_all_problems_are_listed_together() -> None:
    assert len(_problems({"etp": 2, "first_layers": 1}, ["x", "nonsense=1"])) == 4


def test_the_schema_has_no_key_that_no_flag_or_setting_reaches() -> None:
    assert {path[0] for path in KEYS.values()} | {"set"} == set(RunRequest.model_fields)
