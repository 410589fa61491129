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

SHAPE: dict[str, Any] = {"layers": 2, "hidden": 64, "heads": 4, "vocab": 100, "max_positions": 32}


@pytest.mark.parametrize("name", names("model"))
def test_every_catalog_model_loads_and_cites_a_source(name: str) -> None:
    model = load_model(name)
    assert model.name == name
    assert "arXiv" in model.source
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
        ({"moe": EXPERTS, "bias": True}, "biases cannot be expressed together with experts"),
        ({"mla": LATENT, "bias": True}, "or latent attention"),
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
