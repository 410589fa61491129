"""Run files: our names and Megatron-LM's, paths that stay inside, flags laid over."""

from __future__ import annotations

import pytest

from shardsim.errors import InputError
from shardsim.schema.flags import FLAGS
from shardsim.schema.megatron import MEGATRON_NAMES
from shardsim.schema.run import (
    BatchRequest,
    LayoutRequest,
    RunRequest,
    load_run,
    merged,
    nested,
    request_from_mapping,
)

TEXT = """
model: gpt3-175b
cluster: selene
gpus: 128
layout: {tp: 8, pp: 16}
batch: {global: 16, seq: 2048}
"""


@pytest.fixture
def run_file(tmp_path):
    def write(text=TEXT, name="run.yaml"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


def test_a_file_says_what_keywords_say(run_file):
    same = {"model": "gpt3-175b", "cluster": "selene", "gpus": 128, "tp": 8, "pp": 16, "global_batch": 16, "seq": 2048}
    assert load_run(run_file()) == request_from_mapping(nested(same))


def test_megatron_names_are_accepted_in_their_section_and_at_the_top(run_file):
    text = """
model: gpt3-175b
cluster: selene
gpus: 128
tensor-model-parallel-size: 8
layout: {pipeline_model_parallel_size: 16}
batch: {global_batch_size: 16, seq_length: 2048}
"""
    assert load_run(run_file(text)) == load_run(run_file())


def test_one_thing_said_by_two_names_is_refused(run_file):
    with pytest.raises(
        InputError, match=r"run\.yaml:\d+: layout\.tensor_model_parallel_size: says the same as layout\.tp"
    ):
        load_run(run_file(TEXT.replace("tp: 8", "tp: 8, tensor_model_parallel_size: 8")))


def test_flags_replace_keys_of_the_file(run_file):
    request = load_run(run_file(), nested({"tp": 4, "gpus": 64}))
    assert (request.layout.tp, request.layout.pp, request.gpus) == (4, 16, 64)


def test_a_problem_names_file_line_and_key(run_file):
    with pytest.raises(InputError, match=r"run\.yaml:5: layout\.tpp: .*tp"):
        load_run(run_file(TEXT.replace("tp: 8", "tpp: 8")))


def test_a_path_in_a_file_starts_from_its_folder(run_file, tmp_path):
    (tmp_path / "shapes").mkdir()
    request = load_run(run_file(TEXT.replace("gpt3-175b", "shapes/mine.yaml")))
    assert request.model == str(tmp_path.resolve() / "shapes" / "mine.yaml")


def test_a_path_in_a_file_may_not_leave_its_folder(run_file):
    with pytest.raises(InputError, match="leaves the folder"):
        load_run(run_file(TEXT.replace("gpt3-175b", "../other/mine.yaml")))


def test_an_inline_model_is_replaced_as_a_whole():
    assert merged({"model": {"layers": 1}}, {"model": {"hidden": 2}}) == {"model": {"hidden": 2}}


def test_missing_keys_are_reported_together():
    with pytest.raises(InputError) as caught:
        request_from_mapping({}, "command line")
    text = str(caught.value)
    assert all(key in text for key in ("model", "cluster", "batch"))


def test_every_key_has_a_flag_and_every_flag_a_key():
    sections = {"layout": LayoutRequest, "batch": BatchRequest}
    elsewhere = ("set", "conditions", "loading", "checkpoint")
    keys = {(name,) for name in RunRequest.model_fields if name not in (*sections, *elsewhere)}
    for section, model in sections.items():
        keys |= {(section, field.alias or name) for name, field in model.model_fields.items()}
    assert set(FLAGS.values()) == keys


def test_every_name_of_megatron_leads_to_a_key():
    assert set(MEGATRON_NAMES.values()) <= set(FLAGS.values())


def test_uneven_stages_may_be_said_with_megatrons_names(run_file):
    text = TEXT.replace(
        "layout: {tp: 8, pp: 16}",
        "layout: {tp: 8, pp: 16, decoder_first_pipeline_num_layers: 5, decoder_last_pipeline_num_layers: 7}",
    )
    layout = load_run(run_file(text)).layout
    assert (layout.first_layers, layout.last_layers) == (5, 7)
    text = TEXT + "account-for-embedding-in-pipeline-split: true\npipeline_model_parallel_layout: E|t*96|L\n"
    layout = load_run(run_file(text)).layout
    assert (layout.embedding_as_layer, layout.pp_layout) == (True, "E|t*96|L")


def test_names_that_megatron_shares_with_us_stand_in_the_section_or_at_the_top(run_file):
    inside = TEXT.replace("pp: 16}", "pp: 16, recompute_method: block, recompute_num_layers: 3}")
    outside = TEXT + "recompute_method: block\nrecompute_num_layers: 3\n"
    found = load_run(run_file(inside))
    assert (found.layout.recompute_method, found.layout.recompute_layers) == ("block", 3)
    assert load_run(run_file(outside)) == found


def test_a_schedule_of_ones_own_is_a_path_from_the_files_folder(run_file, tmp_path):
    request = load_run(run_file(TEXT.replace("pp: 16", "pp: 16, schedule: mine/own.yaml")))
    assert request.layout.schedule == str(tmp_path.resolve() / "mine" / "own.yaml")
    with pytest.raises(InputError, match=r"layout\.schedule: '\.\./own\.yaml' leaves the folder"):
        load_run(run_file(TEXT.replace("pp: 16", "pp: 16, schedule: ../own.yaml")))


@pytest.mark.parametrize(
    ("layout", "said"),
    [
        ("recompute_modules: [core_attention]", "core_attn"),
        ("recompute_method: blok", "block"),
        ("stage_layers: [3, -1]", "stage_layers"),
        ("stage_layers: []", "stage_layers"),
        ("zero: 4", "0, 1, 2, 3"),
        ("shard: 0", "shard"),
        ("group: 1.5", "group"),
    ],
)
def test_a_choice_that_does_not_exist_is_refused(run_file, layout, said):
    with pytest.raises(InputError, match=said):
        load_run(run_file(TEXT.replace("pp: 16}", f"pp: 16, {layout}}}")))


def test_the_arguments_of_a_dispatcher_may_stand_in_both_places(run_file):
    apart = (
        TEXT.replace("pp: 16}", "pp: 16, moe_flex_dispatcher_backend: hybridep}") + "moe_token_dispatcher_type: flex\n"
    )
    assert load_run(run_file(apart)).layout.dispatcher == "hybridep"


def test_a_routing_without_a_value_is_refused(run_file):
    with pytest.raises(InputError, match="power_law without a value"):
        load_run(run_file(TEXT + "routing: {power_law: null}\n"))
