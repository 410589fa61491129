"""YAML by the rules of YAML 1.2, and every problem of a file in plain language with its line."""

import json
import re
from collections.abc import Mapping
from typing import Annotated, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import AliasChoices, Field

from shardsim.errors import InputError
from shardsim.schema.base import Bandwidth, Count, Duration, FlopRate, Power, Size, StrictModel, Text
from shardsim.schema.loader import check, check_mapping, load_yaml, parse_scalar, parse_yaml


class Stage(StrictModel):
    layers: Count
    schedule: Literal["gpipe", "1f1b"] = "1f1b"


class Run(StrictModel):
    name: Text
    link: Bandwidth = 1.0
    memory: Size = 1.0
    wait: Duration = 1.0
    peak: FlopRate = 1.0
    power: Power = 1.0
    sp: bool | Literal["auto"] = "auto"
    tp: Annotated[int, Field(validation_alias=AliasChoices("tp", "tensor-model-parallel-size"))] = 1
    rate: float = 1.0
    stages: tuple[Stage, ...] = ()
    model: str | Stage = "none"
    shares: Mapping[str, float] = Field(default_factory=dict)


def problems(text, model=Run):
    with pytest.raises(InputError) as error:
        check(parse_yaml(text, "run.yaml"), model)
    return [str(problem) for problem in error.value.problems]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("450e9", 450e9),
        ("2e-6", 2e-6),
        ("1.5", 1.5),
        (".5", 0.5),
        ("1.", 1.0),
        ("+3", 3),
        ("010", 10),
        ("0x1F", 31),
        ("0o17", 15),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("no", "no"),
        ("yes", "yes"),
        ("on", "on"),
        ("y", "y"),
        ("1_000", "1_000"),
        ("12:30", "12:30"),
        ("1:30:00", "1:30:00"),
        ("2024-01-01", "2024-01-01"),
        ("0b11", "0b11"),
        ("1e", "1e"),
        ("900 GB/s", "900 GB/s"),
        ("'8'", "8"),
        ("!!str 8", "8"),
        ("=", "="),
        ("<<", "<<"),
    ],
)
def test_scalars_follow_yaml_1_2(text, value):
    read = parse_yaml(f"key: {text}", "x.yaml").data["key"]
    assert (type(read), read) == (type(value), value)


def test_not_a_number_and_infinity_are_read_and_then_refused_where_a_number_is_meant():
    assert parse_yaml("key: -.INF", "x.yaml").data["key"] == float("-inf")
    assert problems("name: x\nrate: .nan") == ["run.yaml:2: rate: nan is not a finite number"]
    assert problems("name: x\nrate: 1e999") == ["run.yaml:2: rate: inf is not a finite number"]


@given(st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(10**30), 10**30) | st.booleans())
def test_what_json_writes_yaml_reads(value):
    assert parse_yaml(f"key: {json.dumps(value)}", "x.yaml").data["key"] == value
    assert parse_scalar(json.dumps(value)) == value


@given(st.text(max_size=30))
def test_a_setting_is_read_without_ever_failing(text):
    assert isinstance(parse_scalar(text), str | int | float | bool | None)


@given(st.text(st.characters(codec="utf-8"), max_size=60) | st.text("[]{}:,&*!|>'\"%@`-? \n\tab1", max_size=60))
def test_any_text_gives_data_or_one_clear_error(text):
    found = data_or_problems(text)
    assert isinstance(found, dict) or (len(found) == 1 and found[0].where.startswith("x.yaml"))


def data_or_problems(text):
    try:
        return parse_yaml(text, "x.yaml").data
    except InputError as error:
        return error.problems


def test_keys_are_text():
    assert parse_yaml("1: a\ntrue: b", "x.yaml").data == {"1": "a", "true": "b"}


def test_every_key_and_item_knows_its_line():
    document = parse_yaml("name: x\nstages:\n  - layers: 1\n  - layers: 2\n    schedule: gpipe\n", "run.yaml")
    assert document.where(("stages", 1, "schedule")) == "run.yaml:5: stages[1].schedule"
    assert document.where(("stages", 1, "not there")) == "run.yaml:4: stages[1].not there"
    assert document.where() == "run.yaml:1"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "x.yaml: is empty"),
        ("# nothing\n---\n", "x.yaml: is empty"),
        ("- 1\n- 2", "x.yaml: holds a list at the top"),
        ("just text", "x.yaml: holds a single value at the top"),
        ("a: 1\nb: 2\na: 3", "x.yaml:3: a: the key 'a' stands here twice (first on line 1)"),
        ("a: {b: 1, b: 2}", "x.yaml:1: a.b: the key 'b' stands here twice"),
        ("a: [1, 2", "x.yaml:1: is not valid YAML"),
        ("a: 'text\n", "x.yaml:2: is not valid YAML"),
        ("a: 1\n  b: 2\n", "x.yaml:2: is not valid YAML"),
        ("a: 1\n---\nb: 2", "x.yaml:2: is not valid YAML"),
        ("a:\n\t- 1", "x.yaml:2: is not valid YAML"),
        ("a: *nowhere", "x.yaml:1: is not valid YAML"),
        ("a: &a [*a]", "x.yaml:1: a[0]: an alias that contains itself"),
        ("a: !!python/name:os.system x", "x.yaml:1: a: the tag 'tag:yaml.org,2002:python/name:os.system' is not"),
        ("a: !own {b: 1}", "x.yaml:1: a: the tag '!own' is not allowed"),
        ("a: !!set {b}", "x.yaml:1: a: the tag 'tag:yaml.org,2002:set' is not allowed"),
        ("a: !!int abc", "x.yaml:1: a: 'abc' cannot be read as int"),
        ("a: !!bool no", "x.yaml:1: a: 'no' cannot be read as bool"),
        ("a: " + "9" * 5000, "x.yaml:1: a: '99999"),
        ("? [a]\n: 1", "x.yaml:1: a key that is not plain text"),
        ("[" * 5000, "x.yaml: is nested too deeply"),
        ("a: \x00", "x.yaml: is not valid YAML"),
    ],
)
def test_text_that_is_no_mapping_gives_one_clear_message(text, message):
    with pytest.raises(InputError) as error:
        parse_yaml(text, "x.yaml")
    assert str(error.value).startswith(message)
    assert len(error.value.problems) == 1
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("text", "cut"), [("a: [1, 2", True), ("a: {b: 1,\n", True), ("a: 1\n b: 2\nc: 3", False)])
def test_only_a_file_that_ends_too_early_is_called_cut_off(text, cut):
    with pytest.raises(InputError) as error:
        parse_yaml(text, "x.yaml")
    assert ("is the file cut off?" in str(error.value)) == cut


def test_aliases_work_and_alias_bombs_do_not():
    assert parse_yaml("a: &a [1]\nb: *a", "x.yaml").data == {"a": [1], "b": [1]}
    levels = "\n".join(f"k{n}: &k{n} [{', '.join([f'*k{n - 1}'] * 10)}]" for n in range(1, 9))
    with pytest.raises(InputError, match="more than 400,000 values once aliases are expanded"):
        parse_yaml(f"k0: &k0 [1]\n{levels}", "x.yaml")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"\xff\xfe\x00", "is neither UTF-8 nor UTF-16 text"),
        (b"\x89PNG\r\n\x1a\n", "is neither UTF-8 nor UTF-16 text"),
        (b"a: " + b"x" * 4_000_000, "is larger than 4 MB"),
    ],
)
def test_a_file_that_is_no_text_is_refused(tmp_path, content, message):
    (tmp_path / "x.yaml").write_bytes(content)
    with pytest.raises(InputError, match=re.escape(message)):
        load_yaml(tmp_path / "x.yaml")


def test_a_byte_order_mark_is_no_part_of_the_first_key(tmp_path):
    (tmp_path / "x.yaml").write_bytes(b"\xef\xbb\xbfname: x\r\ntp: 2\r\n")
    assert load_yaml(tmp_path / "x.yaml").data == {"name": "x", "tp": 2}


def test_a_missing_file_suggests_its_neighbours(tmp_path):
    (tmp_path / "llama.yaml").write_text("a: 1", encoding="utf-8")
    with pytest.raises(InputError, match=r"lama\.yaml: no such file \(did you mean llama\.yaml\?\)"):
        load_yaml(tmp_path / "lama.yaml")
    with pytest.raises(InputError, match="there is no directory"):
        load_yaml(tmp_path / "nowhere" / "x.yaml")


def test_a_directory_or_a_file_without_permission_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"is a directory \(name a file\)"):
        load_yaml(tmp_path)
    with pytest.raises(InputError, match="cannot be read"):
        load_yaml(tmp_path / "with\0null")
    with pytest.raises(InputError, match="cannot be read: file name too long"):
        load_yaml(tmp_path / ("x" * 500))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1, "a": 2}', "the key 'a' stands twice in one object"),
        ('{"a": 1', "x.json:1: is not valid JSON: expecting ',' delimiter (it ends too early: is the file cut off?)"),
        ('{"a": nope}', "x.json:1: is not valid JSON"),
        ("[1]", "holds a list at the top"),
        ("[" * 100_000, "is nested too deeply"),
        ('{"a": ' + "9" * 5000 + "}", "thousands of digits"),
    ],
)
def test_json_is_refused_as_clearly(tmp_path, text, message):
    (tmp_path / "x.json").write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as error:
        load_yaml(tmp_path / "x.json")
    assert message in str(error.value)


def test_json_with_tabs_is_read(tmp_path):
    (tmp_path / "x.json").write_text('{\n\t"a": [1e3, true, null]\n}', encoding="utf-8")
    assert load_yaml(tmp_path / "x.json").data == {"a": [1000.0, True, None]}


def test_a_good_file_becomes_the_model():
    run = check(parse_yaml("name: x\nlink: 400 Gb/s\nsp: true\nstages: [{layers: 3}]\nshares: {a: 1}", "x"), Run)
    assert (run.link, run.sp, run.stages, run.shares) == (50e9, True, (Stage(layers=3),), {"a": 1.0})
    with pytest.raises(ValueError, match="frozen"):
        run.name = "other"


def test_the_same_content_is_checked_once_and_a_mistake_is_named_where_it_stands():
    first, second = (check(parse_yaml("name: same\n", file), Run) for file in ("a.yaml", "b.yaml"))
    assert first is second
    assert check(parse_yaml("name: same\ntp: 2\n", "a.yaml"), Run).tp == 2
    for file in ("a.yaml", "b.yaml"):
        with pytest.raises(InputError, match=f"{file}:1: name"):
            check(parse_yaml("name: 3\n", file), Run)


def test_all_problems_are_listed_at_once_each_with_its_line():
    text = "link: 900\nmemory: 80 GBit\nsp: no\nstages:\n- layers: 0\n- layer: 2\n- {layers: '3', schedule: 1f1bb}\n"
    assert problems(text) == [
        "run.yaml:1: the key 'name' is missing",
        "run.yaml:1: link: 900 has no unit; write it with one, such as 900 GB/s or 400 Gb/s",
        "run.yaml:2: memory: 'GBit' in '80 GBit' is not a unit of size; write it like 80 GiB",
        "run.yaml:3: sp: 'no' is not allowed here (write true or false or auto)",
        "run.yaml:5: stages[0].layers: 0 is out of range (write 1 or more)",
        "run.yaml:6: stages[1]: the key 'layers' is missing",
        "run.yaml:6: stages[1].layer: unknown key 'layer' (did you mean layers?)",
        "run.yaml:7: stages[2].layers: '3' is not a whole number (write digits without quotes or units)",
        "run.yaml:7: stages[2].schedule: '1f1bb' is not one of gpipe, 1f1b (did you mean 1f1b?)",
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("tp: 2.5", "2.5 is not a whole number"),
        ("tp: true", "true is not a whole number"),
        ("tp: [1]", "a list is not a whole number"),
        ("tp:", "an empty value is not a whole number"),
        ("rate: fast", "'fast' is not a number (write digits without quotes or units)"),
        ("stages: 4", "4 is not a list (a list is written as [4])"),
        ("stages: a,b", "'a,b' is not a list (a list is written as [a, b])"),
        ("stages: {layers: 1}", "a mapping of keys to values is not a list"),
        ("stages: [1]", "1 is not a mapping of keys to values"),
        ("shares: [1]", "a list is not a mapping of keys to values"),
        ("model: 3", "3 is not allowed here (write text or a mapping of keys to values)"),
        ("model: {layer: 3}", "unknown key 'layer' (did you mean layers?)"),
        ("tensor-model-parallel-sizes: 3", "(did you mean tensor-model-parallel-size?)"),
        ("wait: 3 hours", "'hours' in '3 hours' is not a unit of time"),
        ("wait: -3 s", "'-3 s' is not a finite, non-negative time"),
        ("power: true", "True is not a power"),
        ("peak: {value: 3}", "is not a flop rate"),
    ],
)
def test_a_wrong_value_is_explained_without_jargon(line, message):
    found = problems(f"name: x\n{line}")
    assert any(message in problem for problem in found), found
    for jargon in ("input_type", "pydantic", "type=", "http", "Input should", "valid string", "Stage."):
        assert not any(jargon in problem for problem in found)


def test_a_name_that_is_empty_or_a_number_is_refused():
    assert problems("name: ''") == ["run.yaml:1: name: is empty"]
    assert problems("name: 3") == ["run.yaml:1: name: 3 is not text (put it into quotes to mean text)"]


def test_data_that_came_from_no_file_names_its_origin():
    with pytest.raises(InputError) as error:
        check_mapping({"name": "x", "tp": "2", "oops": 1}, Run, "command line")
    assert [str(problem) for problem in error.value.problems][:1] == [
        "command line: tp: '2' is not a whole number (write digits without quotes or units)"
    ]
    assert check_mapping({"name": "x", "stages": ({"layers": 2},)}, Run, "call").stages[0].layers == 2
