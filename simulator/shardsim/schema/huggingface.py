"""Models from Hugging Face ``config.json`` files: GPT-2, Llama, Mistral, Mixtral, Qwen, DeepSeek, GPT-OSS, Grok-1."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from shardsim.errors import InputError, Problem
from shardsim.schema.catalog import near
from shardsim.schema.huggingface_configs import (
    DeepseekConfig,
    Gpt2Config,
    GptOssConfig,
    Grok1Config,
    LlamaConfig,
    MixtralConfig,
    QwenConfig,
    QwenMoeConfig,
)
from shardsim.schema.loader import Document, check
from shardsim.values.training import Mla, Model, Moe

_EXPERT_KEYS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_intermediate_size", "moe_num_experts")
_WITH_EXPERTS = ("mixtral", "qwen2_moe", "qwen3_moe", "deepseek_v2", "deepseek_v3", "gpt_oss", "grok-1")
_GROK_REMARK = "; its gated GELU counted as SwiGLU, and two of the four norms of a layer"


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
    config = check(document, QwenConfig if _architecture(document).startswith("qwen") else LlamaConfig)
    _refuse(_llama_problems(document, config))
    return _dense(document, name, config)


def _dense(document: Document, name: str, config: LlamaConfig) -> Model:
    """The model of a configuration, its experts and latent attention left out."""
    kind = _architecture(document)
    window, full_every = _window(config) or (0, 1)
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
        qkv_bias=kind in {"qwen2", "qwen2_moe"},
        source=f"Hugging Face configuration {document.file}",
        qk_norm=kind in {"qwen3", "qwen3_moe"},
        window=window,
        full_every=full_every,
    )


def _window(config: LlamaConfig) -> tuple[int, int] | None:
    """Width of the sliding window, and one in how many layers is without; None where that is no regular pattern."""
    width = config.sliding_window or 0
    layers = config.num_hidden_layers
    if config.layer_types is None and isinstance(config, GptOssConfig):
        return (width, 2) if width else (0, 1)  # the library's default: every other one
    if config.layer_types is None:
        if not width or not config.use_sliding_window or config.max_window_layers >= layers:
            return 0, 1
        return None if config.max_window_layers > 0 else (width, 0)
    slides = [kind == "sliding_attention" for kind in config.layer_types]
    if len(slides) != layers:
        return None
    if not any(slides):
        return 0, 1
    every = slides.index(False) + 1 if not all(slides) else 0
    regular = [not every or bool((index + 1) % every) for index in range(layers)]
    return (width, every) if width and slides == regular else None


def _mixtral(document: Document, name: str) -> Model:
    config = check(document, MixtralConfig)
    top_k, experts = config.num_experts_per_tok, config.num_local_experts
    _refuse((*_llama_problems(document, config), *_choice_problems(document, top_k, experts)))
    return replace(_dense(document, name, config), moe=Moe(experts, top_k, config.intermediate_size))


def _grok(document: Document, name: str) -> Model:
    config = check(document, Grok1Config)
    top_k, experts = config.num_experts_per_tok, config.num_experts
    _refuse((*_llama_problems(document, config), *_choice_problems(document, top_k, experts)))
    model = _dense(document, name, config)
    return replace(model, source=model.source + _GROK_REMARK, moe=Moe(experts, top_k, config.intermediate_size))


def _gpt_oss(document: Document, name: str) -> Model:
    config = check(document, GptOssConfig)
    top_k, experts = config.num_experts_per_tok, config.num_local_experts
    _refuse((*_llama_problems(document, config), *_choice_problems(document, top_k, experts)))
    model = _dense(document, name, config)
    return replace(model, sinks=True, moe=Moe(experts, top_k, config.intermediate_size))


def _qwen_moe(document: Document, name: str) -> Model:
    config = check(document, QwenMoeConfig)
    top_k, experts = config.num_experts_per_tok, config.num_experts
    problems = [*_llama_problems(document, config), *_choice_problems(document, top_k, experts)]
    plain = sorted(config.mlp_only_layers or ())
    if plain != list(range(len(plain))):
        what = f"layers {', '.join(map(str, plain))} without experts cannot be expressed"
        problems.append(Problem(what, document.where(("mlp_only_layers",)), "the first layers, or none"))
    _refuse(problems)
    shared = config.shared_expert_intermediate_size
    moe = Moe(
        experts, top_k, config.moe_intermediate_size, shared, len(plain), config.decoder_sparse_step, bool(shared)
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
    width, groups, limit = config.moe_intermediate_size, config.n_group or 0, config.topk_group or 0
    if config.topk_method == "greedy" or groups == limit:
        groups = limit = 0
    mla = Mla(
        q_lora=config.q_lora_rank or 0,
        kv_lora=config.kv_lora_rank,
        qk_nope_dim=config.qk_nope_head_dim,
        qk_rope_dim=config.qk_rope_head_dim,
        v_dim=config.v_head_dim,
    )
    moe = Moe(
        experts,
        top_k,
        width,
        (config.n_shared_experts or 0) * width,
        config.first_k_dense_replace,
        groups=groups,
        group_limit=limit,
    )
    model = _dense(document, name, heads)
    return replace(model, head_dim=mla.qk_dim, moe=moe, mla=mla, mtp=config.num_nextn_predict_layers)


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
    if _window(config) is None:
        key = "max_window_layers" if config.layer_types is None else "layer_types"
        what = "layers with a sliding window in no regular pattern cannot be expressed"
        yield Problem(what, document.where((key,)), "all of them, or all but the last of every so many")
    if config.hidden_act not in ({"gelu"} if isinstance(config, Grok1Config) else {"silu", "swish"}):
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
        "qwen3": _llama,
        "mixtral": _mixtral,
        "qwen2_moe": _qwen_moe,
        "qwen3_moe": _qwen_moe,
        "deepseek_v2": _deepseek,
        "deepseek_v3": _deepseek,
        "gpt_oss": _gpt_oss,
        "grok-1": _grok,
    }
)
_CLASSES: Mapping[str, str] = MappingProxyType(
    {
        "GPT2LMHeadModel": "gpt2",
        "LlamaForCausalLM": "llama",
        "MistralForCausalLM": "mistral",
        "Qwen2ForCausalLM": "qwen2",
        "Qwen3ForCausalLM": "qwen3",
        "MixtralForCausalLM": "mixtral",
        "Qwen2MoeForCausalLM": "qwen2_moe",
        "Qwen3MoeForCausalLM": "qwen3_moe",
        "DeepseekV2ForCausalLM": "deepseek_v2",
        "DeepseekV3ForCausalLM": "deepseek_v3",
        "GptOssForCausalLM": "gpt_oss",
        "Grok1ModelForCausalLM": "grok-1",
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
