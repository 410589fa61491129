"""Parameter counts against published sizes (facts A.3)."""

from __future__ import annotations

import pytest

from shardsim.schema.model import load_model
from shardsim.values.training import Model
from shardsim.workload.parameters import active_parameters, attention_parameters, model_parameters

NARAYANAN_TABLE_1 = [
    ("narayanan-1.7b", 1.7),
    ("narayanan-3.6b", 3.6),
    ("narayanan-7.5b", 7.5),
    ("narayanan-18.4b", 18.4),
    ("narayanan-39.1b", 39.1),
    ("narayanan-76.1b", 76.1),
    ("narayanan-145.6b", 145.6),
    ("narayanan-310.1b", 310.1),
    ("narayanan-529.6b", 529.6),
    ("narayanan-1008b", 1008.0),
]


def equation_2(model: Model, seq: int) -> float:
    """Eq. 2 of arXiv 2104.04473 as printed."""
    layers, h, v = model.layers, model.hidden, model.vocab
    return 12 * layers * h**2 * (1 + 13 / (12 * h) + (v + seq) / (12 * layers * h))


@pytest.mark.parametrize(("name", "billions"), NARAYANAN_TABLE_1)
def test_the_ten_sizes_of_narayanan_table_1_follow_from_their_shapes(name: str, billions: float) -> None:
    model = load_model(name)
    assert model_parameters(model) / 1e9 == pytest.approx(billions, abs=0.0505)


@pytest.mark.parametrize("name", [name for name, _ in NARAYANAN_TABLE_1])
def test_equation_2_is_exact_but_for_the_final_norm_it_leaves_out(name: str) -> None:
    model = load_model(name)
    assert model_parameters(model) - round(equation_2(model, 2048)) == 2 * model.hidden


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("llama-3-8b", 8_030_261_248), ("llama-3-70b", 70_553_706_496), ("llama-3-405b", 405_853_388_800)],
)
def test_llama_3_is_exact_to_the_parameter(name: str, parameters: int) -> None:
    assert model_parameters(load_model(name)) == parameters


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("llama-2-7b", 6_738_415_616), ("llama-2-13b", 13_015_864_320), ("llama-2-70b", 68_976_648_192)],
)
def test_llama_2_has_as_many_parameters_as_its_published_weights(name: str, parameters: int) -> None:
    assert model_parameters(load_model(name)) == parameters


def test_gpt3_has_174_62_billion_parameters_with_the_vocabulary_of_narayanan() -> None:
    assert model_parameters(load_model("gpt3-175b")) / 1e9 == pytest.approx(174.62, abs=0.005)


@pytest.mark.parametrize(
    ("name", "billions"),
    [("megatron-1.2b", 1.2), ("megatron-2.5b", 2.5), ("megatron-4.2b", 4.2), ("megatron-8.3b", 8.3)],
)
def test_the_four_models_of_megatron_2019_have_their_printed_sizes(name: str, billions: float) -> None:
    assert model_parameters(load_model(name)) / 1e9 == pytest.approx(billions, abs=0.05)


@pytest.mark.parametrize(
    ("name", "total", "active"),
    [
        ("deepseek-v3", 671.03, 37.55),  # arXiv 2412.19437 prints 671B and 37B
        ("deepseek-v2", 235.74, 21.38),  # arXiv 2405.04434 prints 236B and 21B
        ("mixtral-8x7b", 46.70, 12.88),  # arXiv 2401.04088 prints 47B and 13B
        ("mixtral-8x22b", 140.62, 39.15),  # https://mistral.ai/news/mixtral-8x22b prints 141B and 39B
        ("qwen3-30b-a3b", 30.53, 3.35),  # arXiv 2505.09388 prints 30B and 3B
        ("qwen3-235b-a22b", 235.09, 22.19),  # and 235B and 22B
    ],
)
def test_mixtures_of_experts_have_their_published_sizes_in_all_and_a_token(
    name: str, total: float, active: float
) -> None:
    model = load_model(name)
    assert model_parameters(model) / 1e9 == pytest.approx(total, abs=0.005)
    assert active_parameters(model) / 1e9 == pytest.approx(active, abs=0.005)


def test_gpt_oss_120b_has_its_published_sizes_which_leave_the_embedding_out_of_what_is_active() -> None:
    """arXiv 2508.10925, Table 1: 116.83 B in all, 5.13 B active, of the vocabulary tables the head alone."""
    model = load_model("gpt-oss-120b")
    assert model_parameters(model) / 1e9 == pytest.approx(116.83, abs=0.005)
    assert (active_parameters(model) - model.vocab * model.hidden) / 1e9 == pytest.approx(5.13, abs=0.005)


def test_grok_1_has_the_size_its_shape_gives_which_xai_prints_half_a_percent_lower() -> None:
    """Github xai-org/grok-1, README.md: 314B. 64 layers of 8 experts of 3 x 6144 x 32768 are 309.2 B of them."""
    assert model_parameters(load_model("grok-1")) / 1e9 == pytest.approx(314, rel=0.006)


def test_latent_attention_of_deepseek_v3_has_187_1_million_parameters_a_layer() -> None:
    assert attention_parameters(load_model("deepseek-v3")) / 1e6 == pytest.approx(187.1, abs=0.05)


def megatron_latent_attention(model: Model) -> int:
    """The attention term of github NVIDIA/Megatron-LM, megatron/training/theoretical_memory_usage.py."""
    mla = model.mla
    assert mla is not None
    heads, h = model.heads, model.hidden
    queries = mla.q_lora * (h + heads * (mla.qk_nope_dim + mla.qk_rope_dim) + 1)
    both = mla.kv_lora * (h + heads * (mla.qk_nope_dim + mla.v_dim) + 1) + h * mla.qk_rope_dim
    return queries + both + heads * mla.v_dim * h


@pytest.mark.parametrize("name", ["deepseek-v2", "deepseek-v3"])
def test_latent_attention_is_counted_as_megatron_counts_it(name: str) -> None:
    model = load_model(name)
    assert attention_parameters(model) == megatron_latent_attention(model)
