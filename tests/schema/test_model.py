"""Models: the catalog, files and inline shapes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shardsim.errors import InputError
from shardsim.schema.catalog import find, names
from shardsim.schema.loader import load_yaml
from shardsim.schema.model import load_model
from shardsim.values.training import Mla, Moe
from shardsim.workload.kinds import layer_kind
from shardsim.workload.parameters import active_parameters, attention_parameters, model_parameters

SHAPE: dict[str, Any] = {"layers": 2, "hidden": 64, "heads": 4, "vocab": 100, "max_positions": 32}


@pytest.mark.parametrize("name", names("model"))
def test_every_catalog_model_loads_and_cites_a_source(name: str) -> None:
    model = load_model(name)
    assert model.name == name
    assert any(place in model.source for place in ("arXiv", "https://", "github"))
    assert load_yaml(find("model", name)).data["title"]


def test_the_catalog_has_the_models_of_the_papers() -> None:
    assert len(names("model")) >= 32
    assert load_model("megatron-8.3b").heads == 32
    assert [load_model(f"megatron-8.3b-{a}heads").head_dim for a in (16, 24)] == [192, 128]
    assert {load_model(f"megatron-{size}").head_dim for size in ("1.2b", "2.5b", "4.2b", "8.3b")} == {96}


def test_an_inline_shape_is_a_gpt_where_nothing_else_is_said() -> None:
    model = load_model(SHAPE)
    assert (model.name, model.kv_heads, model.head_dim, model.ffn) == ("inline", 4, 16, 256)
    assert (model.activation, model.norm, model.tied_embeddings, model.bias) == ("gelu", "layernorm", True, True)


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("layers: 2\nhidden: 64\nheads: 4\nvocab: 100\nposition: rope\nbias: false\n")
    assert load_model(str(path)).name == "mine"
    assert load_model(str(path)).max_positions == 0
    assert load_model("./mine.yaml", relative_to=tmp_path) == load_model(str(path))


def test_an_unknown_name_suggests_near_ones() -> None:
    with pytest.raises(InputError, match=r"unknown model 'gpt3-175' \(did you mean gpt3-175b"):
        load_model("gpt3-175")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"heads": 5}, "model: heads: hidden 64 does not divide by 5 heads"),
        ({"kv_heads": 3}, "4 heads do not divide by 3 key-value heads"),
        ({"activation": "swiglu"}, "the key 'ffn' is missing"),
        ({"max_positions": None}, "learned positions without 'max_positions'"),
        ({"position": "rope"}, "rotary positions have no table"),
        ({"layers": 0}, "layers"),
        ({"headz": 4}, "headz"),
        ({"hidden": "64"}, "hidden"),
    ],
)
def test_a_wrong_shape_says_what_is_wrong(changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(InputError) as caught:
        load_model(SHAPE | changes)
    assert expected in str(caught.value)


EXPERTS: dict[str, Any] = {"experts": 8, "top_k": 2, "ffn": 96}
LATENT: dict[str, Any] = {"kv_lora": 16, "qk_nope_dim": 8, "qk_rope_dim": 4, "v_dim": 8}
LLAMA: dict[str, Any] = {
    "layers": 4,
    "hidden": 64,
    "heads": 4,
    "ffn": 128,
    "vocab": 100,
    "activation": "swiglu",
    "norm": "rmsnorm",
    "position": "rope",
    "bias": False,
}


def test_experts_may_stand_in_every_layer_and_then_the_mlp_is_one_of_them() -> None:
    shape = {key: value for key, value in LLAMA.items() if key != "ffn"}
    model = load_model(shape | {"moe": EXPERTS})
    assert model.moe == Moe(8, 2, 96)
    assert (model.ffn, model.mla) == (96, None)


def test_latent_attention_has_as_many_heads_for_keys_and_values_and_widths_of_its_own() -> None:
    model = load_model(LLAMA | {"mla": LATENT | {"q_lora": 24}, "heads": 5})
    assert model.mla == Mla(24, 16, 8, 4, 8)
    assert (model.kv_heads, model.head_dim) == (5, 12)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"moe": EXPERTS | {"top_k": 9}}, "model: moe.top_k: each token goes to 9 of 8 experts"),
        ({"moe": EXPERTS | {"first_dense": 4}}, "none of the 4 layers has experts"),
        ({"moe": EXPERTS | {"every": 5}}, "none of the 4 layers has experts"),
        ({"moe": EXPERTS | {"first_dense": 1}, "ffn": None}, "the key 'ffn' is missing, the width of the layers"),
        ({"moe": EXPERTS | {"shared_gate": True}}, "a gate for shared experts without any"),
        ({"moe": EXPERTS | {"first_dense": -1}}, "moe.first_dense"),
        ({"moe": {"experts": 8}}, "model: moe: the key 'top_k' is missing"),
        ({"moe": EXPERTS | {"capacity": 1}}, "moe.capacity"),
        ({"mla": LATENT, "bias": True}, "biases cannot be expressed together with latent attention"),
        ({"mla": LATENT, "qk_norm": True}, "qk_norm cannot be expressed together with latent attention"),
        ({"mla": LATENT, "window": 8}, "window cannot be expressed together with latent attention"),
        ({"mla": LATENT, "sinks": True}, "sinks cannot be expressed together with latent attention"),
        ({"moe": EXPERTS | {"groups": 4}}, "moe.group_limit: experts of 0 of 4 groups"),
        ({"moe": EXPERTS | {"groups": 4, "group_limit": 5}}, "experts of 5 of 4 groups"),
        ({"moe": EXPERTS | {"groups": 3, "group_limit": 1}}, "moe.groups: 8 experts do not fall into 3 groups"),
        ({"moe": EXPERTS | {"groups": 8, "group_limit": 1}}, "each token goes to 2 experts, and 1 groups have fewer"),
        ({"full_every": 2}, "one in 2 layers sees everything, and no layer has a window"),
        ({"window": 8, "full_every": 5}, "full_every: one in 5 layers sees everything, and there are 4"),
        ({"window": -1}, "model: window: -1 is out of range"),
        ({"mtp": "one"}, "model: mtp: 'one' is not a whole number"),
        ({"mla": LATENT, "kv_heads": 2}, "2 key-value heads with latent attention"),
        ({"mla": LATENT, "head_dim": 16}, "leave head_dim out"),
        ({"mla": LATENT, "qkv_bias": True}, "no QKV bias"),
        ({"mla": LATENT, "position": "learned", "max_positions": 8}, "without rotary positions"),
        ({"mla": {"kv_lora": 16}}, "model: mla: the key 'v_dim' is missing"),
    ],
)
def test_wrong_experts_and_latent_attention_say_what_is_wrong(changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(InputError) as caught:
        load_model({key: value for key, value in (LLAMA | changes).items() if value is not None})
    assert expected in str(caught.value)


def test_all_problems_of_a_shape_come_at_once() -> None:
    with pytest.raises(InputError) as caught:
        load_model({"hidden": 64, "heads": 0, "colour": "red"})
    assert len(caught.value.problems) == 4  # layers and vocab missing, heads, colour
    with pytest.raises(InputError) as caught:
        load_model(SHAPE | {"heads": 5, "kv_heads": 3, "max_positions": None, "activation": "swiglu"})
    assert len(caught.value.problems) == 4


def test_a_window_holds_in_every_layer_unless_some_see_everything() -> None:
    always = load_model(LLAMA | {"window": 16})
    assert (always.window, always.full_every) == (16, 0)
    assert all(layer_kind(always, index).window == 16 for index in range(4))
    every_other = load_model(LLAMA | {"window": 16, "full_every": 2})
    assert [layer_kind(every_other, index).window for index in range(4)] == [16, 0, 16, 0]
    assert layer_kind(load_model(LLAMA), 0).window == 0


def test_experts_may_have_biases_as_gpt_oss_has() -> None:
    model = load_model(LLAMA | {"moe": EXPERTS, "bias": True, "sinks": True})
    assert (model.bias, model.sinks) == (True, True)


@pytest.mark.parametrize(
    ("name", "total", "active", "tolerance"),
    [
        ("mixtral-8x7b", 46.7, 12.9, 0.05),  # arXiv 2401.04088, section 1: 47B and 13B
        ("mixtral-8x22b", 140.6, 39.2, 0.05),  # https://mistral.ai/news/mixtral-8x22b: 141B and 39B
        ("grok-1", 314, 83.8, 1.7),  # github xai-org/grok-1, README.md: 314B; 2 of 8 experts active, counted by hand
        ("deepseek-v2", 236, 21, 0.4),  # arXiv 2405.04434: 236B and 21B
        ("deepseek-v3", 671.03, 37.55, 0.005),  # arXiv 2412.19437: 671B and 37B; counted from its config.json
        ("qwen3-30b-a3b", 30.5, 3.3, 0.06),  # https://huggingface.co/Qwen/Qwen3-30B-A3B: 30.5B and 3.3B
        ("qwen3-235b-a22b", 235, 22, 0.2),  # arXiv 2505.09388: 235B and 22B
    ],
)
def test_mixtures_of_the_catalog_have_the_published_sizes(
    name: str, total: float, active: float, tolerance: float
) -> None:
    model = load_model(name)
    assert model_parameters(model) / 1e9 == pytest.approx(total, abs=tolerance)
    assert active_parameters(model) / 1e9 == pytest.approx(active, abs=tolerance)


def test_gpt_oss_counts_its_output_table_but_not_its_embedding_as_active() -> None:
    """arXiv 2508.10925, Table 1: 116.83B, of which attention 0.96, embedding and output 1.16, active 5.13."""
    model = load_model("gpt-oss-120b")
    assert round(model_parameters(model) / 1e9, 2) == 116.83
    assert round(36 * attention_parameters(model) / 1e9, 2) == 0.96
    assert round((active_parameters(model) - model.vocab * model.hidden) / 1e9, 2) == 5.13


@pytest.mark.parametrize(("name", "groups", "limit"), [("deepseek-v2", 8, 3), ("deepseek-v3", 8, 4)])
def test_deepseek_limits_the_nodes_of_a_token(name: str, groups: int, limit: int) -> None:
    moe = load_model(name).moe
    assert moe is not None
    assert (moe.groups, moe.group_limit) == (groups, limit)
