"""Models from Hugging Face ``config.json`` files: GPT-2, Llama, Mistral, Mixtral, Qwen2 and DeepSeek, dense or not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from pydantic import BaseModel, ConfigDict, Field

from shardsim.errors import InputError, Problem
from shardsim.schema.base import Count
from shardsim.schema.catalog import near
from shardsim.schema.loader import Document, check
from shardsim.values.training import Mla, Model, Moe

_MARKS = ("model_type", "architectures", "transformers_version")
_EXPERT_KEYS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_intermediate_size", "moe_num_experts")
_WITH_EXPERTS = ("mixtral", "qwen2_moe", "deepseek_v2", "deepseek_v3")


class _Config(BaseModel):
    """Only the keys that decide a shape are read; files hold many others."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True, allow_inf_nan=False)


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
    """``model_type: llama``, ``mistral`` or ``qwen2``. Defaults are those of the transformers library."""

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
    sliding_window: int | None = Field(default=None)
    use_sliding_window: bool = True


class MixtralConfig(LlamaConfig):
    """``model_type: mixtral``. An expert is as wide as the MLP it stands for."""

    num_local_experts: Count
    num_experts_per_tok: Count


class Qwen2MoeConfig(LlamaConfig):
    """``model_type: qwen2_moe``. Defaults are those of the transformers library."""

    num_experts: Count
    num_experts_per_tok: Count
    moe_intermediate_size: Count
    shared_expert_intermediate_size: Count
    decoder_sparse_step: Count = 1
    mlp_only_layers: list[int] | None = None
    use_sliding_window: bool = False


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
    num_nextn_predict_layers: int = 0


def looks_like(document: Document) -> bool:
    """Tell whether a document is a Hugging Face configuration rather than one of ours.

    Parameters
    ----------
    document : Document

    Returns
    -------
    bool
    """
    return any(mark in document.data for mark in _MARKS) or (
        document.file.lower().endswith(".json") and "layers" not in document.data
    )


def model_from_config(document: Document, path: Path) -> Model:
    """Read a model from a configuration.

    Parameters
    ----------
    document : Document
        Content of a ``config.json``.
    path : Path
        Where it lies; the model is named after its folder, or after the file unless that is ``config.json``.

    Returns
    -------
    Model

    Raises
    ------
    InputError
        An architecture that cannot be expressed (the key that says so is named), or every missing or wrong key.
    """
    problems = list(_inexpressible(document))
    if problems:
        raise InputError(problems)
    read = _READERS[_architecture(document)]
    name = path.resolve().parent.name if path.name == "config.json" else path.stem
    return read(document, name or path.stem)


def _gpt2(document: Document, name: str) -> Model:
    config = check(document, Gpt2Config)
    problems = list(_shape_problems(document, "n_embd", config.n_embd, "n_head", config.n_head))
    if not config.activation_function.startswith("gelu"):
        what = f"the activation {config.activation_function!r} cannot be expressed"
        problems.append(Problem(what, document.where(("activation_function",)), "gelu, gelu_new or gelu_fast"))
    if config.add_cross_attention:
        what = "cross attention cannot be expressed"
        problems.append(Problem(what, document.where(("add_cross_attention",)), "a decoder-only model"))
    if problems:
        raise InputError(problems)
    return Model(
        name=name,
        layers=config.n_layer,
        hidden=config.n_embd,
        heads=config.n_head,
        kv_heads=config.n_head,
        head_dim=config.n_embd // config.n_head,
        ffn=config.n_inner or 4 * config.n_embd,
        vocab=config.vocab_size,
        activation="gelu",
        norm="layernorm",
        position="learned",
        max_positions=config.n_positions,
        tied_embeddings=config.tie_word_embeddings,
        bias=True,
        qkv_bias=False,
        source=f"Hugging Face configuration {document.file}",
    )


def _llama(document: Document, name: str) -> Model:
    config = check(document, LlamaConfig)
    _refuse(_llama_problems(document, config))
    return _dense(document, name, config)


def _dense(document: Document, name: str, config: LlamaConfig) -> Model:
    """The model of a configuration, its experts and latent attention left out."""
    window = config.sliding_window if config.use_sliding_window else None
    remark = f"; its sliding window of {window} tokens is not modelled: attention is full" if window else ""
    return Model(
        name=name,
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads or config.num_attention_heads,
        head_dim=config.head_dim or config.hidden_size // config.num_attention_heads,
        ffn=config.intermediate_size,
        vocab=config.vocab_size,
        activation="swiglu",
        norm="rmsnorm",
        position="rope",
        max_positions=0,
        tied_embeddings=config.tie_word_embeddings,
        bias=config.attention_bias and config.mlp_bias,
        qkv_bias=_architecture(document) in {"qwen2", "qwen2_moe"},
        source=f"Hugging Face configuration {document.file}{remark}",
    )


def _mixtral(document: Document, name: str) -> Model:
    config = check(document, MixtralConfig)
    top_k, experts = config.num_experts_per_tok, config.num_local_experts
    _refuse((*_llama_problems(document, config), *_choice_problems(document, top_k, experts)))
    return replace(_dense(document, name, config), moe=Moe(experts, top_k, config.intermediate_size))


def _qwen2_moe(document: Document, name: str) -> Model:
    config = check(document, Qwen2MoeConfig)
    top_k, experts = config.num_experts_per_tok, config.num_experts
    problems = [*_llama_problems(document, config), *_choice_problems(document, top_k, experts)]
    plain = sorted(config.mlp_only_layers or ())
    if plain != list(range(len(plain))):
        what = f"layers {', '.join(map(str, plain))} without experts cannot be expressed"
        problems.append(Problem(what, document.where(("mlp_only_layers",)), "the first layers, or none"))
    _refuse(problems)
    shared = config.shared_expert_intermediate_size
    moe = Moe(
        experts, top_k, config.moe_intermediate_size, shared, len(plain), config.decoder_sparse_step, shared_gate=True
    )
    return replace(_dense(document, name, config), moe=moe)


def _deepseek(document: Document, name: str) -> Model:
    config = check(document, DeepseekConfig)
    top_k, experts = config.num_experts_per_tok, config.n_routed_experts
    # Heads have widths of their own here: they need not divide the hidden width, nor be fewer for keys and values.
    heads = config.model_copy(update={"num_key_value_heads": None, "head_dim": config.v_head_dim})
    problems = [*_llama_problems(document, heads), *_choice_problems(document, top_k, experts)]
    if config.moe_layer_freq != 1:
        what = f"experts in one of {config.moe_layer_freq} layers cannot be expressed"
        problems.append(Problem(what, document.where(("moe_layer_freq",)), "1"))
    if config.attention_bias:
        what = "biases in latent attention cannot be expressed"
        problems.append(Problem(what, document.where(("attention_bias",)), "false"))
    _refuse(problems)
    width, extra = config.moe_intermediate_size, config.num_nextn_predict_layers
    mla = Mla(
        q_lora=config.q_lora_rank or 0,
        kv_lora=config.kv_lora_rank,
        qk_nope_dim=config.qk_nope_head_dim,
        qk_rope_dim=config.qk_rope_head_dim,
        v_dim=config.v_head_dim,
    )
    model = _dense(document, name, heads)
    remark = f"; its {extra} more modules that predict further tokens are left out" if extra else ""
    return replace(
        model,
        head_dim=mla.qk_dim,
        source=model.source + remark,
        moe=Moe(experts, top_k, width, (config.n_shared_experts or 0) * width, config.first_k_dense_replace),
        mla=mla,
    )


def _refuse(problems: Iterable[Problem]) -> None:
    found = tuple(problems)
    if found:
        raise InputError(found)


def _choice_problems(document: Document, top_k: int, experts: int) -> Iterator[Problem]:
    if top_k > experts:
        what = f"each token goes to {top_k} of {experts} experts"
        yield Problem(what, document.where(("num_experts_per_tok",)), f"{experts} or less")


def _llama_problems(document: Document, config: LlamaConfig) -> Iterator[Problem]:
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    if config.head_dim is None:
        yield from _shape_problems(document, "hidden_size", config.hidden_size, "num_attention_heads", heads)
    if kv_heads is not None and heads % kv_heads:
        what = f"{heads} attention heads do not divide by {kv_heads} key-value heads"
        yield Problem(what, document.where(("num_key_value_heads",)), "a divisor of num_attention_heads")
    if config.hidden_act not in {"silu", "swish"}:
        what = f"the activation {config.hidden_act!r} cannot be expressed"
        yield Problem(what, document.where(("hidden_act",)), "silu (SwiGLU)")
    if config.attention_bias != config.mlp_bias:
        key = "attention_bias" if config.attention_bias else "mlp_bias"
        what = "biases in attention or in the MLP alone cannot be expressed"
        yield Problem(what, document.where((key,)), "both or neither")


def _shape_problems(document: Document, whole: str, hidden: int, part: str, heads: int) -> Iterator[Problem]:
    if hidden % heads:
        what = f"{whole} {hidden} does not divide by {part} {heads}"
        yield Problem(what, document.where((part,)), f"a divisor of {whole}")


_READERS: Mapping[str, Callable[[Document, str], Model]] = MappingProxyType(
    {
        "gpt2": _gpt2,
        "llama": _llama,
        "mistral": _llama,
        "qwen2": _llama,
        "mixtral": _mixtral,
        "qwen2_moe": _qwen2_moe,
        "deepseek_v2": _deepseek,
        "deepseek_v3": _deepseek,
    }
)
_CLASSES: Mapping[str, str] = MappingProxyType(
    {
        "GPT2LMHeadModel": "gpt2",
        "LlamaForCausalLM": "llama",
        "MistralForCausalLM": "mistral",
        "Qwen2ForCausalLM": "qwen2",
        "MixtralForCausalLM": "mixtral",
        "Qwen2MoeForCausalLM": "qwen2_moe",
        "DeepseekV2ForCausalLM": "deepseek_v2",
        "DeepseekV3ForCausalLM": "deepseek_v3",
    }
)


def _kind(document: Document) -> object:
    """The model type, or what the class under ``architectures`` implies where none is given."""
    listed = document.data.get("architectures")
    first = listed[0] if isinstance(listed, list) and listed else None
    return document.data.get("model_type", _CLASSES.get(first) if isinstance(first, str) else None)


def _architecture(document: Document) -> str:
    kind = _kind(document)
    if kind is None:
        right = f"one of {', '.join(_READERS)}"
        raise InputError(Problem("the key 'model_type' is missing", document.where(), right))
    if not isinstance(kind, str) or kind not in _READERS:
        what = f"the architecture {kind!r} cannot be expressed"
        where = document.where(("model_type",) if "model_type" in document.data else ("architectures",))
        raise InputError(Problem(what, where, near(str(kind), _READERS)))
    return kind


def _inexpressible(document: Document) -> Iterator[Problem]:
    kind = _kind(document)
    for key in () if kind in _WITH_EXPERTS else _EXPERT_KEYS:
        value = document.data.get(key)
        if isinstance(value, int) and value > 0:
            what = f"the experts of this architecture ({key}: {value}) cannot be expressed in this version"
            yield Problem(what, document.where((key,)), f"a dense model, or one of {', '.join(_WITH_EXPERTS)}")
    if document.data.get("is_encoder_decoder") is True:
        yield Problem("an encoder and a decoder cannot be expressed", document.where(("is_encoder_decoder",)))
    if isinstance(document.data.get("text_config"), dict):
        what = "describes several models"
        yield Problem(what, document.where(("text_config",)), "give the content of text_config alone")
