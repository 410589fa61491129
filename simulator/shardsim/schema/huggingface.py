"""Models from Hugging Face ``config.json`` files: GPT-2, Llama, Mistral and Qwen2."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from pydantic import BaseModel, ConfigDict, Field

from shardsim.errors import InputError, Problem
from shardsim.schema.base import Count
from shardsim.schema.catalog import near
from shardsim.schema.loader import Document, check
from shardsim.values.training import Model

_MARKS = ("model_type", "architectures", "transformers_version")
_EXPERT_KEYS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_intermediate_size", "moe_num_experts")


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
    problems = list(_llama_problems(document, config))
    if problems:
        raise InputError(problems)
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
        qkv_bias=document.data.get("model_type") == "qwen2",
        source=f"Hugging Face configuration {document.file}{remark}",
    )


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
    {"gpt2": _gpt2, "llama": _llama, "mistral": _llama, "qwen2": _llama}
)
_CLASSES: Mapping[str, str] = MappingProxyType(
    {
        "GPT2LMHeadModel": "gpt2",
        "LlamaForCausalLM": "llama",
        "MistralForCausalLM": "mistral",
        "Qwen2ForCausalLM": "qwen2",
    }
)


def _architecture(document: Document) -> str:
    """The model type, or what the class under ``architectures`` implies where none is given."""
    listed = document.data.get("architectures")
    first = listed[0] if isinstance(listed, list) and listed else None
    kind = document.data.get("model_type", _CLASSES.get(first) if isinstance(first, str) else None)
    if kind is None:
        right = f"one of {', '.join(_READERS)}"
        raise InputError(Problem("the key 'model_type' is missing", document.where(), right))
    if not isinstance(kind, str) or kind not in _READERS:
        what = f"the architecture {kind!r} cannot be expressed"
        where = document.where(("model_type",) if "model_type" in document.data else ("architectures",))
        raise InputError(Problem(what, where, near(str(kind), _READERS)))
    return kind


def _inexpressible(document: Document) -> Iterator[Problem]:
    for key in _EXPERT_KEYS:
        value = document.data.get(key)
        if isinstance(value, int) and value > 0:
            what = f"a mixture of experts ({key}: {value}) cannot be expressed in this version"
            yield Problem(what, document.where((key,)), "a dense model")
    if document.data.get("is_encoder_decoder") is True:
        yield Problem("an encoder and a decoder cannot be expressed", document.where(("is_encoder_decoder",)))
    if isinstance(document.data.get("text_config"), dict):
        what = "describes several models"
        yield Problem(what, document.where(("text_config",)), "give the content of text_config alone")
