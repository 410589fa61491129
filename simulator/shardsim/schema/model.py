"""``workloads/models/NAME.yaml``: the shape of a model, from the catalog, a file, or written inline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from shardsim.errors import InputError, Problem
from shardsim.schema.base import Count, StrictModel, Text
from shardsim.schema.catalog import find
from shardsim.schema.loader import Document, check, load_yaml
from shardsim.values.training import Mla, Model, Moe


class MoeFile(StrictModel):
    """Experts in the place of the MLP."""

    experts: Count = Field(description="of a layer, without shared ones")
    top_k: Count = Field(description="experts that each token goes to")
    ffn: Count = Field(description="width of an expert")
    shared_ffn: int = Field(default=0, ge=0, description="width of all shared experts together; 0 for none")
    first_dense: int = Field(default=0, ge=0, description="layers at the beginning that keep a plain MLP")
    every: Count = Field(default=1, description="one in so many of the other layers has experts")
    shared_gate: bool = Field(default=False, description="a gate weighs the shared experts (Qwen)")
    groups: int = Field(default=0, ge=0, description="node-limited routing: groups of experts; 0 for no limit")
    group_limit: int = Field(default=0, ge=0, description="groups to whose experts a token may go")


class MlaFile(StrictModel):
    """Multi-head latent attention."""

    q_lora: int = Field(default=0, ge=0, description="width of the latent queries; 0 for none")
    kv_lora: Count = Field(description="width of the latent keys and values")
    qk_nope_dim: Count = Field(description="dimensions of a query or key without positions")
    qk_rope_dim: Count = Field(description="dimensions with rotary positions, of a key those that all heads share")
    v_dim: Count = Field(description="dimensions of a value")


class ModelFile(StrictModel):
    """The shape of a decoder-only transformer; a GPT where nothing else is said."""

    title: Text | None = Field(default=None, description="a few words for people")
    name: Text | None = Field(default=None, description="for a model written inline; a file is named by itself")
    source: Text | None = Field(default=None, description="publication that the shape is from")
    layers: Count = Field(description="L")
    hidden: Count = Field(description="h")
    heads: Count = Field(description="a, query heads")
    kv_heads: Count | None = Field(default=None, description="k, key-value heads; as many as heads when left out")
    head_dim: Count | None = Field(default=None, description="d; hidden / heads when left out")
    ffn: Count | None = Field(
        default=None, description="f, width of the MLP; 4 h when left out (GELU only), that of an expert with experts"
    )
    vocab: Count = Field(description="V, before padding")
    activation: Literal["gelu", "swiglu"] = "gelu"
    norm: Literal["layernorm", "rmsnorm"] = "layernorm"
    position: Literal["learned", "rope"] = "learned"
    max_positions: Count | None = Field(default=None, description="rows of the learned position table")
    tied_embeddings: bool = Field(default=True, description="the LM head shares the embedding's weight")
    bias: bool = Field(default=True, description="every linear layer has a bias")
    qkv_bias: bool = Field(default=False, description="QKV has a bias even where the others have none (Qwen)")
    moe: MoeFile | None = Field(default=None, description="experts in the place of the MLP")
    mla: MlaFile | None = Field(default=None, description="latent attention")
    qk_norm: bool = Field(default=False, description="queries and keys are normalised head by head (Qwen3)")
    window: int = Field(
        default=0, ge=0, description="keys that a query sees in layers with a sliding window; 0 for all"
    )
    full_every: int = Field(
        default=0,
        ge=0,
        description="with a window: one in so many layers, the last of them, sees everything; 0 for none",
    )
    sinks: bool = Field(default=False, description="a learned logit a head takes attention to nothing (GPT-OSS)")
    mtp: int = Field(default=0, ge=0, description="further tokens that training predicts, each by a module of its own")


def load_model(name: str | Mapping[str, Any], extra: Sequence[Path] = (), relative_to: Path | None = None) -> Model:
    """Read a model.

    Parameters
    ----------
    name : str or mapping
        Catalog name, path of a YAML file or of a Hugging Face ``config.json``, or the shape itself.
    extra : sequence of Path
        A user's own data folders.
    relative_to : Path or None
        Folder from which a relative path starts.

    Returns
    -------
    Model

    Raises
    ------
    InputError
        Unknown name, a file that cannot be read, or every problem of the description.

    Examples
    --------
    >>> load_model("llama-3-8b").kv_heads
    8
    """
    if not isinstance(name, str):
        return _from_document(Document(dict(name), "model"), "inline")
    path = find("model", name, extra, relative_to)
    document = load_yaml(path)
    if _is_huggingface(document):
        from shardsim.schema.huggingface import model_from_config  # noqa: PLC0415  # many schemas of which few need one

        return model_from_config(document, path)
    return _from_document(document, path.stem)


_MARKS = ("model_type", "architectures", "transformers_version")


def _is_huggingface(document: Document) -> bool:
    """Tell whether a document is a Hugging Face configuration rather than one of ours."""
    return any(mark in document.data for mark in _MARKS) or (
        document.file.lower().endswith(".json") and "layers" not in document.data
    )


def _from_document(document: Document, name: str) -> Model:
    file = check(document, ModelFile)
    problems = list(_problems(document, file))
    if problems:
        raise InputError(problems)
    moe = None if file.moe is None else Moe(**file.moe.model_dump())
    mla = None if file.mla is None else Mla(**file.mla.model_dump())
    return Model(
        name=file.name or name,
        layers=file.layers,
        hidden=file.hidden,
        heads=file.heads,
        kv_heads=file.kv_heads or file.heads,
        head_dim=mla.qk_dim if mla else file.head_dim or file.hidden // file.heads,
        ffn=file.ffn or (moe.ffn if moe else 4 * file.hidden),
        vocab=file.vocab,
        activation=file.activation,
        norm=file.norm,
        position=file.position,
        max_positions=file.max_positions or 0,
        tied_embeddings=file.tied_embeddings,
        bias=file.bias,
        qkv_bias=file.qkv_bias,
        source=file.source or "given by the user",
        moe=moe,
        mla=mla,
        qk_norm=file.qk_norm,
        window=file.window,
        full_every=file.full_every if file.window else 1,
        sinks=file.sinks,
        mtp=file.mtp,
    )


def _problems(document: Document, file: ModelFile) -> Iterator[Problem]:
    """What the schema cannot see in one key alone."""
    if file.head_dim is None and file.mla is None and file.hidden % file.heads:
        what = f"hidden {file.hidden} does not divide by {file.heads} heads"
        yield Problem(what, document.where(("heads",)), "a divisor of hidden, or head_dim besides")
    if file.kv_heads is not None and file.heads % file.kv_heads:
        what = f"{file.heads} heads do not divide by {file.kv_heads} key-value heads"
        yield Problem(what, document.where(("kv_heads",)), "a divisor of heads")
    if file.ffn is None and file.activation == "swiglu" and file.moe is None:
        yield Problem("the key 'ffn' is missing, and SwiGLU has no usual width", document.where(), "ffn: 14336")
    if file.position == "learned" and file.max_positions is None:
        right = "max_positions: 2048, or position: rope"
        yield Problem("learned positions without 'max_positions', the rows of their table", document.where(), right)
    if file.position == "rope" and file.max_positions is not None:
        where = document.where(("max_positions",))
        yield Problem("rotary positions have no table", where, "leave max_positions out")
    if file.bias and file.mla:
        what = "biases cannot be expressed together with latent attention"
        yield Problem(what, document.where(("bias",) if "bias" in document.data else ()), "bias: false")
    if file.full_every and not file.window:
        what = f"one in {file.full_every} layers sees everything, and no layer has a window"
        yield Problem(what, document.where(("full_every",)), "window: 128, or leave full_every out")
    if file.full_every > file.layers:
        what = f"one in {file.full_every} layers sees everything, and there are {file.layers}"
        yield Problem(what, document.where(("full_every",)), f"{file.layers} or less")
    if file.moe is not None:
        yield from _expert_problems(document, file, file.moe)
    if file.mla is not None:
        yield from _latent_problems(document, file)


def _expert_problems(document: Document, file: ModelFile, moe: MoeFile) -> Iterator[Problem]:
    if moe.top_k > moe.experts:
        what = f"each token goes to {moe.top_k} of {moe.experts} experts"
        yield Problem(what, document.where(("moe", "top_k")), f"{moe.experts} or less")
    if bool(moe.groups) != bool(moe.group_limit) or moe.group_limit > moe.groups:
        what = f"experts of {moe.group_limit} of {moe.groups} groups"
        yield Problem(what, document.where(("moe", "group_limit")), "groups: 8 with group_limit: 4, or neither")
    elif moe.groups and moe.experts % moe.groups:
        what = f"{moe.experts} experts do not fall into {moe.groups} groups"
        yield Problem(what, document.where(("moe", "groups")), "a divisor of experts")
    elif moe.groups and moe.top_k > moe.group_limit * (moe.experts // moe.groups):
        what = f"each token goes to {moe.top_k} experts, and {moe.group_limit} groups have fewer"
        yield Problem(what, document.where(("moe", "top_k")), "fewer, or a higher group_limit")
    if moe.first_dense + moe.every > file.layers:
        what = f"none of the {file.layers} layers has experts"
        yield Problem(what, document.where(("moe",)), "fewer under first_dense or every, or no moe")
    if file.ffn is None and (moe.first_dense or moe.every > 1):
        what = "the key 'ffn' is missing, the width of the layers without experts"
        yield Problem(what, document.where(), "ffn: 18432")
    if moe.shared_gate and not moe.shared_ffn:
        yield Problem("a gate for shared experts without any", document.where(("moe", "shared_gate")), "shared_ffn")


def _latent_problems(document: Document, file: ModelFile) -> Iterator[Problem]:
    if file.kv_heads not in (None, file.heads):
        what = f"{file.kv_heads} key-value heads with latent attention, which has as many as heads"
        yield Problem(what, document.where(("kv_heads",)), "leave kv_heads out")
    if file.head_dim is not None:
        what = "head_dim with latent attention, whose dimensions are under mla"
        yield Problem(what, document.where(("head_dim",)), "leave head_dim out")
    if file.qkv_bias:
        yield Problem("latent attention has no QKV bias", document.where(("qkv_bias",)), "qkv_bias: false")
    if file.position != "rope":
        yield Problem("latent attention without rotary positions", document.where(("position",)), "position: rope")
    for key in ("qk_norm", "window", "sinks"):
        if getattr(file, key):
            what = f"{key} cannot be expressed together with latent attention"
            yield Problem(what, document.where((key,)), f"leave {key} out")
