"""``workloads/models/NAME.yaml``: the shape of a model, from the catalog, a file, or written inline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from shardsim.errors import InputError, Problem
from shardsim.schema import huggingface
from shardsim.schema.base import Count, StrictModel, Text
from shardsim.schema.catalog import find
from shardsim.schema.loader import Document, check, load_yaml
from shardsim.values.training import Model


class ModelFile(StrictModel):
    """The shape of a dense decoder-only transformer; a GPT where nothing else is said."""

    title: Text | None = Field(default=None, description="a few words for people")
    name: Text | None = Field(default=None, description="for a model written inline; a file is named by itself")
    source: Text | None = Field(default=None, description="publication that the shape is from")
    layers: Count = Field(description="L")
    hidden: Count = Field(description="h")
    heads: Count = Field(description="a, query heads")
    kv_heads: Count | None = Field(default=None, description="k, key-value heads; as many as heads when left out")
    head_dim: Count | None = Field(default=None, description="d; hidden / heads when left out")
    ffn: Count | None = Field(default=None, description="f, width of the MLP; 4 h when left out (GELU only)")
    vocab: Count = Field(description="V, before padding")
    activation: Literal["gelu", "swiglu"] = "gelu"
    norm: Literal["layernorm", "rmsnorm"] = "layernorm"
    position: Literal["learned", "rope"] = "learned"
    max_positions: Count | None = Field(default=None, description="rows of the learned position table")
    tied_embeddings: bool = Field(default=True, description="the LM head shares the embedding's weight")
    bias: bool = Field(default=True, description="every linear layer has a bias")
    qkv_bias: bool = Field(default=False, description="QKV has a bias even where the others have none (Qwen)")


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
    if huggingface.looks_like(document):
        return huggingface.model_from_config(document, path)
    return _from_document(document, path.stem)


def _from_document(document: Document, name: str) -> Model:
    file = check(document, ModelFile)
    problems = list(_problems(document, file))
    if problems:
        raise InputError(problems)
    return Model(
        name=file.name or name,
        layers=file.layers,
        hidden=file.hidden,
        heads=file.heads,
        kv_heads=file.kv_heads or file.heads,
        head_dim=file.head_dim or file.hidden // file.heads,
        ffn=file.ffn or 4 * file.hidden,
        vocab=file.vocab,
        activation=file.activation,
        norm=file.norm,
        position=file.position,
        max_positions=file.max_positions or 0,
        tied_embeddings=file.tied_embeddings,
        bias=file.bias,
        qkv_bias=file.qkv_bias,
        source=file.source or "given by the user",
    )


def _problems(document: Document, file: ModelFile) -> Iterator[Problem]:
    """What the schema cannot see in one key alone."""
    if file.head_dim is None and file.hidden % file.heads:
        what = f"hidden {file.hidden} does not divide by {file.heads} heads"
        yield Problem(what, document.where(("heads",)), "a divisor of hidden, or head_dim besides")
    if file.kv_heads is not None and file.heads % file.kv_heads:
        what = f"{file.heads} heads do not divide by {file.kv_heads} key-value heads"
        yield Problem(what, document.where(("kv_heads",)), "a divisor of heads")
    if file.ffn is None and file.activation == "swiglu":
        yield Problem("the key 'ffn' is missing, and SwiGLU has no usual width", document.where(), "ffn: 14336")
    if file.position == "learned" and file.max_positions is None:
        right = "max_positions: 2048, or position: rope"
        yield Problem("learned positions without 'max_positions', the rows of their table", document.where(), right)
    if file.position == "rope" and file.max_positions is not None:
        where = document.where(("max_positions",))
        yield Problem("rotary positions have no table", where, "leave max_positions out")
