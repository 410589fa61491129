"""Keys of Hugging Face ``config.json`` files that decide the shape of a model, by architecture."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from shardsim.schema.base import Count


class _Config(BaseModel):
    """Only the keys that decide a shape are read; files hold many others."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True, allow_inf_nan=False, defer_build=True)


class Gpt2Config(_Config):
    """``model_type: gpt2``. Defaults are those of the transformers library."""

    n_layer: Count
    n_embd: Count
    n_head: Count
    n_positions: Count
    n_inner: Count | None = None
    vocab_size: Count
    activation_function: str = "gelu_new"
    tie_word_embeddings: bool = True
    add_cross_attention: bool = False


class LlamaConfig(_Config):
    """``model_type: llama`` or ``mistral``. Defaults are those of the transformers library."""

    num_hidden_layers: Count
    hidden_size: Count
    num_attention_heads: Count
    num_key_value_heads: Count | None = None
    head_dim: Count | None = None
    intermediate_size: Count
    vocab_size: Count
    hidden_act: str = "silu"
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    sliding_window: int | None = Field(default=None, ge=1)
    use_sliding_window: bool = True
    max_window_layers: int = 0
    layer_types: list[str] | None = None


class QwenConfig(LlamaConfig):
    """``model_type: qwen2`` or ``qwen3``. Defaults are those of the transformers library."""

    use_sliding_window: bool = False
    max_window_layers: int = 28


class MixtralConfig(LlamaConfig):
    """``model_type: mixtral``. An expert is as wide as the MLP it stands for."""

    num_local_experts: Count
    num_experts_per_tok: Count


class GptOssConfig(MixtralConfig):
    """``model_type: gpt_oss``. Every linear layer has a bias, whatever ``attention_bias`` says of attention."""

    attention_bias: bool = True
    mlp_bias: bool = True


class Grok1Config(LlamaConfig):
    """``model_type: grok-1``, as hpcai-tech/grok-1 has it."""

    num_experts: Count = 8
    num_experts_per_tok: Count = 2
    hidden_act: str = "gelu"
    tie_word_embeddings: bool = True


class QwenMoeConfig(QwenConfig):
    """``model_type: qwen2_moe`` or ``qwen3_moe``. Defaults are those of the transformers library."""

    num_experts: Count
    num_experts_per_tok: Count
    moe_intermediate_size: Count
    shared_expert_intermediate_size: int = Field(default=0, ge=0)
    decoder_sparse_step: Count = 1
    mlp_only_layers: list[int] | None = None


class DeepseekConfig(LlamaConfig):
    """``model_type: deepseek_v2`` or ``deepseek_v3``."""

    q_lora_rank: Count | None
    kv_lora_rank: Count
    qk_nope_head_dim: Count
    qk_rope_head_dim: Count
    v_head_dim: Count
    n_routed_experts: Count
    num_experts_per_tok: Count
    moe_intermediate_size: Count
    n_shared_experts: int | None = Field(default=None, ge=0)
    first_k_dense_replace: int = Field(default=0, ge=0)
    moe_layer_freq: Count = 1
    num_nextn_predict_layers: int = Field(default=0, ge=0)
    n_group: int | None = Field(default=None, ge=0)
    topk_group: int | None = Field(default=None, ge=0)
    topk_method: str | None = None
