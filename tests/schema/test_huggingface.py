"""Hugging Face ``config.json`` files."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shardsim.errors import InputError
from shardsim.schema.model import load_model
from shardsim.workload.parameters import active_parameters, model_parameters

Write = Callable[..., str]

GPT2: dict[str, Any] = {
    "architectures": ["GPT2LMHeadModel"],
    "model_type": "gpt2",
    "activation_function": "gelu_new",
    "attn_pdrop": 0.1,
    "n_ctx": 1024,
    "n_embd": 768,
    "n_head": 12,
    "n_inner": None,
    "n_layer": 12,
    "n_positions": 1024,
    "vocab_size": 50257,
}
LLAMA_3_8B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 8192,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "rope_scaling": {"factor": 8.0, "rope_type": "llama3"},
    "tie_word_embeddings": False,
    "vocab_size": 128256,
}
QWEN2_0_5B: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "hidden_act": "silu",
    "hidden_size": 896,
    "intermediate_size": 4864,
    "model_type": "qwen2",
    "num_attention_heads": 14,
    "num_hidden_layers": 24,
    "num_key_value_heads": 2,
    "sliding_window": 32768,
    "tie_word_embeddings": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
MISTRAL_7B: dict[str, Any] = {
    "architectures": ["MistralForCausalLM"],
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "model_type": "mistral",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "sliding_window": 4096,
    "tie_word_embeddings": False,
    "vocab_size": 32000,
}
MIXTRAL: dict[str, Any] = MISTRAL_7B | {
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "num_experts_per_tok": 2,
    "num_local_experts": 8,
    "sliding_window": None,
}
QWEN2_57B: dict[str, Any] = {
    "architectures": ["Qwen2MoeForCausalLM"],
    "decoder_sparse_step": 1,
    "hidden_act": "silu",
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "mlp_only_layers": [],
    "model_type": "qwen2_moe",
    "moe_intermediate_size": 2560,
    "num_attention_heads": 28,
    "num_experts": 64,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "shared_expert_intermediate_size": 20480,
    "tie_word_embeddings": False,
    "vocab_size": 151936,
}
DEEPSEEK_V3: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "attention_bias": False,
    "first_k_dense_replace": 3,
    "hidden_act": "silu",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "kv_lora_rank": 512,
    "model_type": "deepseek_v3",
    "moe_intermediate_size": 2048,
    "moe_layer_freq": 1,
    "n_group": 8,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_attention_heads": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 61,
    "num_key_value_heads": 128,
    "num_nextn_predict_layers": 1,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "tie_word_embeddings": False,
    "topk_group": 4,
    "topk_method": "noaux_tc",
    "v_head_dim": 128,
    "vocab_size": 129280,
}
DEEPSEEK_V2_LITE: dict[str, Any] = DEEPSEEK_V3 | {
    "architectures": ["DeepseekV2ForCausalLM"],
    "first_k_dense_replace": 1,
    "hidden_size": 2048,
    "intermediate_size": 10944,
    "model_type": "deepseek_v2",
    "moe_intermediate_size": 1408,
    "n_group": 1,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "num_attention_heads": 16,
    "num_experts_per_tok": 6,
    "num_hidden_layers": 27,
    "num_key_value_heads": 16,
    "num_nextn_predict_layers": 0,
    "q_lora_rank": None,
    "topk_group": 1,
    "topk_method": "greedy",
    "vocab_size": 102400,
}
QWEN3_30B: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "attention_bias": False,
    "decoder_sparse_step": 1,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "max_window_layers": 48,
    "mlp_only_layers": [],
    "model_type": "qwen3_moe",
    "moe_intermediate_size": 768,
    "num_attention_heads": 32,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
QWEN3_0_6B: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "attention_bias": False,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "max_window_layers": 28,
    "model_type": "qwen3",
    "num_attention_heads": 16,
    "num_hidden_layers": 28,
    "num_key_value_heads": 8,
    "tie_word_embeddings": True,
    "vocab_size": 151936,
}
GPT_OSS_120B: dict[str, Any] = {
    "architectures": ["GptOssForCausalLM"],
    "attention_bias": True,
    "experts_per_token": 4,
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "layer_types": ["sliding_attention", "full_attention"] * 18,
    "model_type": "gpt_oss",
    "num_attention_heads": 64,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 36,
    "num_key_value_heads": 8,
    "num_local_experts": 128,
    "sliding_window": 128,
    "tie_word_embeddings": False,
    "vocab_size": 201088,
}
GROK_1: dict[str, Any] = {
    "architectures": ["Grok1ModelForCausalLM"],
    "hidden_size": 6144,
    "intermediate_size": 32768,
    "model_type": "grok-1",
    "num_attention_heads": 48,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 64,
    "num_key_value_heads": 8,
    "vocab_size": 131072,
}


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def _write(data: Any, folder: str = "some-model") -> str:
        path = tmp_path / folder / "config.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(data if isinstance(data, str) else json.dumps(data))
        return str(path)

    return _write


@pytest.mark.parametrize(
    ("config", "parameters"),
    [
        (GPT2, 124_439_808),
        (LLAMA_3_8B, 8_030_261_248),
        (QWEN2_0_5B, 494_032_768),
        (MISTRAL_7B, 7_241_732_096),
        (QWEN3_0_6B, 596_049_920),
        (QWEN3_30B, 30_532_122_624),
    ],
)
def test_imported_models_have_as_many_parameters_as_their_published_weights(
    write: Write, config: dict[str, Any], parameters: int
) -> None:
    assert model_parameters(load_model(write(config))) == parameters


@pytest.mark.parametrize(
    ("config", "total", "active"),
    [
        (MIXTRAL, 46.7, 12.9),  # arXiv 2401.04088: 47B and 13B
        (QWEN2_57B, 57.4, 14.2),  # arXiv 2407.10671, Table 1: 57B and 14B
        (DEEPSEEK_V3, 671.0, 37.6),  # arXiv 2412.19437: 671B and 37B
        (DEEPSEEK_V2_LITE, 15.7, 2.7),  # arXiv 2405.04434, appendix B: 15.7B and 2.4B without the embedding
    ],
)
def test_imported_mixtures_have_the_published_sizes(
    write: Write, config: dict[str, Any], total: float, active: float
) -> None:
    model = load_model(write(config))
    assert round(model_parameters(model) / 1e9, 1) == total
    assert round(active_parameters(model) / 1e9, 1) == active


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (LLAMA_3_8B, "llama-3-8b"),
        (MIXTRAL, "mixtral-8x7b"),
        (DEEPSEEK_V3, "deepseek-v3"),
        (QWEN3_30B, "qwen3-30b-a3b"),
        (GPT_OSS_120B, "gpt-oss-120b"),
        (GROK_1, "grok-1"),
    ],
)
def test_a_configuration_and_the_catalog_give_the_same_shape(write: Write, config: dict[str, Any], name: str) -> None:
    model, catalog = load_model(write(config)), load_model(name)
    assert replace(model, name=catalog.name, source=catalog.source) == catalog


def test_modules_that_predict_further_tokens_are_counted_apart(write: Write) -> None:
    assert load_model(write(DEEPSEEK_V3)).mtp == 1
    assert load_model(write(DEEPSEEK_V2_LITE)).mtp == 0


def test_routing_that_may_reach_every_group_has_no_limit(write: Write) -> None:
    moe = load_model(write(DEEPSEEK_V2_LITE)).moe
    assert moe is not None
    assert (moe.groups, moe.group_limit) == (0, 0)


def test_experts_of_qwen_may_leave_out_the_first_layers_or_every_other(write: Write) -> None:
    moe = load_model(write(QWEN2_57B | {"decoder_sparse_step": 2})).moe
    assert moe is not None
    assert (moe.every, moe.first_dense, moe.shared_gate) == (2, 0, True)
    moe = load_model(write(QWEN2_57B | {"mlp_only_layers": [1, 0]})).moe
    assert moe is not None
    assert moe.first_dense == 2


def test_an_import_is_named_after_its_folder(write: Write) -> None:
    assert load_model(write(LLAMA_3_8B, "Meta-Llama-3-8B")).name == "Meta-Llama-3-8B"


def test_only_the_class_may_be_named(write: Write) -> None:
    config = {key: value for key, value in LLAMA_3_8B.items() if key != "model_type"}
    assert load_model(write(config)).kv_heads == 8


@pytest.mark.parametrize(
    ("config", "window", "full_every"),
    [
        (MISTRAL_7B, 4096, 0),
        (MISTRAL_7B | {"sliding_window": None}, 0, 1),
        (QWEN2_0_5B, 0, 1),
        (QWEN2_0_5B | {"use_sliding_window": True, "max_window_layers": 24}, 0, 1),
        (QWEN2_0_5B | {"use_sliding_window": True, "max_window_layers": 0}, 32768, 0),
        (GPT_OSS_120B, 128, 2),
        (GPT_OSS_120B | {"layer_types": ["full_attention"] * 36}, 0, 1),
        (GPT_OSS_120B | {"layer_types": ["sliding_attention"] * 36}, 128, 0),
    ],
)
def test_a_sliding_window_holds_where_the_configuration_says(
    write: Write, config: dict[str, Any], window: int, full_every: int
) -> None:
    model = load_model(write(config))
    assert (model.window, model.full_every) == (window, full_every)


def test_every_missing_key_is_named_at_once(write: Write) -> None:
    with pytest.raises(InputError) as caught:
        load_model(write({"model_type": "llama", "hidden_size": 4096}))
    text = str(caught.value)
    missing = ("num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size")
    assert all(key in text for key in missing)
    assert len(caught.value.problems) == len(missing)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (LLAMA_3_8B | {"num_local_experts": 8}, "num_local_experts: 8"),
        ({"architectures": ["LlamaForCausalLM"], "num_experts": 8}, "num_experts: 8"),
        ({"model_type": "deepseek_v4", "n_routed_experts": 256}, "n_routed_experts: 256"),
        (MIXTRAL | {"num_experts_per_tok": 9}, "each token goes to 9 of 8 experts"),
        (MIXTRAL | {"num_key_value_heads": 5}, "32 attention heads do not divide by 5 key-value heads"),
        (QWEN2_57B | {"mlp_only_layers": [3]}, "layers 3 without experts"),
        (QWEN2_57B | {"num_experts": 0}, "num_experts"),
        (DEEPSEEK_V3 | {"moe_layer_freq": 2}, "moe_layer_freq: experts in one of 2 layers"),
        (DEEPSEEK_V3 | {"attention_bias": True, "mlp_bias": True}, "biases in latent attention"),
        (DEEPSEEK_V3 | {"kv_lora_rank": None}, "kv_lora_rank"),
        (GROK_1 | {"hidden_act": "silu"}, "the activation 'silu' cannot be expressed"),
        (GPT_OSS_120B | {"attention_bias": False}, "mlp_bias: biases in attention or in the MLP alone"),
        (GPT_OSS_120B | {"layer_types": ["full_attention", "sliding_attention"] * 18}, "layer_types: layers with a"),
        (GPT_OSS_120B | {"layer_types": ["sliding_attention"] * 3}, "in no regular pattern"),
        (QWEN2_0_5B | {"use_sliding_window": True, "max_window_layers": 12}, "max_window_layers: layers with a"),
        (QWEN3_30B | {"num_experts_per_tok": 129}, "each token goes to 129 of 128 experts"),
        ({"model_type": "gemma2"}, "the architecture 'gemma2' cannot be expressed"),
        ({"model_type": "qwen22"}, "did you mean qwen2"),
        ({"model_type": 3}, "the architecture 3 cannot be expressed"),
        ({"model_type": ["llama"]}, "cannot be expressed"),
        ({"architectures": []}, "the key 'model_type' is missing"),
        ({"hidden_size": 64}, "the key 'model_type' is missing"),
        ({"model_type": "llava", "text_config": {}}, "text_config"),
        ({"model_type": "t5", "is_encoder_decoder": True}, "an encoder and a decoder"),
        (LLAMA_3_8B | {"hidden_act": "relu"}, "the activation 'relu' cannot be expressed"),
        (LLAMA_3_8B | {"attention_bias": True}, "attention_bias: biases in attention or in the MLP alone"),
        (LLAMA_3_8B | {"num_key_value_heads": 5}, "32 attention heads do not divide by 5 key-value heads"),
        (LLAMA_3_8B | {"hidden_size": 4097}, "hidden_size 4097 does not divide by num_attention_heads 32"),
        (LLAMA_3_8B | {"num_hidden_layers": "32"}, "num_hidden_layers"),
        (LLAMA_3_8B | {"vocab_size": -1}, "vocab_size"),
        (GPT2 | {"activation_function": "relu"}, "the activation 'relu' cannot be expressed"),
        (GPT2 | {"n_head": 7}, "n_embd 768 does not divide by n_head 7"),
        (GPT2 | {"add_cross_attention": True}, "cross attention"),
    ],
)
def test_what_cannot_be_expressed_is_refused_with_its_key(write: Write, config: Any, expected: str) -> None:
    with pytest.raises(InputError) as caught:
        load_model(write(config))
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (json.dumps(LLAMA_3_8B)[:200], "is not valid JSON"),
        ("[1, 2]", "holds a list at the top"),
        ("", "is empty"),
        ('"llama"', "holds a single value at the top"),
    ],
)
def test_files_that_are_no_configuration_are_refused(write: Write, content: str, expected: str) -> None:
    with pytest.raises(InputError, match=expected):
        load_model(write(content))


def test_a_folder_is_not_a_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a directory"):
        load_model(f"{tmp_path}/")


@pytest.mark.parametrize("window", [-3, 0])
def test_a_window_of_no_keys_is_refused(write: Write, window: int) -> None:
    with pytest.raises(InputError, match="sliding_window"):
        load_model(write(LLAMA_3_8B | {"sliding_window": window}))
