"""A model for people and programs: its shape, its parameters, and what a layer does."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from shardsim.units import format_size
from shardsim.values.operators import Attention, Collective, Elementwise, Gemm, Operator, TokenExchange
from shardsim.values.training import Model
from shardsim.workload.kinds import LayerKind, layer_kind
from shardsim.workload.parameters import (
    active_parameters,
    attention_parameters,
    expert_layers,
    expert_parameters,
    model_parameters,
    unsplit_layer_parameters,
)

_ROLES = {"forward": "F", "dgrad": "B", "wgrad": "W"}


def model_text(model: Model, operators: Mapping[LayerKind, Sequence[Operator]], note: str) -> RenderableType:
    """Lay a model out for people.

    Parameters
    ----------
    model : Model
    operators : mapping of LayerKind to sequence of Operator
        Of one layer of each kind.
    note : str
        What the operators hold for, such as ``TP8, micro-batch 1, 2048 tokens``.

    Returns
    -------
    RenderableType
    """
    facts = Table.grid(padding=(0, 2))
    facts.add_column()
    facts.add_column()
    for name, value in (
        *_parameter_rows(model),
        ("layers", _layers_text(model)),
        ("hidden", f"{model.hidden:,}"),
        *_attention_rows(model),
        ("MLP", f"{model.ffn:,}, {model.activation}"),
        *_expert_rows(model),
        ("norm", model.norm),
        ("positions", f"{model.position}" + f", {model.max_positions:,}" * bool(model.max_positions)),
        ("vocabulary", f"{model.vocab:,}, {'tied' if model.tied_embeddings else 'untied'} embeddings"),
        ("biases", "all linear layers" if model.bias else "QKV only" if model.qkv_bias else "none"),
        ("source", model.source),
    ):
        facts.add_row(Text(f"  {name}"), Text(value))
    parts: list[RenderableType] = [Text(model.name, style="bold"), facts]
    for kind, listed in operators.items():
        which = f" {kind_name(kind)}" if len(operators) > 1 else ""
        title = Text(f"\nOperators of a layer{which}", style="bold")
        parts += [title.append(f"  {note}", style="not bold dim"), _operators(listed)]
    return Group(*parts)


def kind_name(kind: LayerKind) -> str:
    """Name a kind of layer.

    Parameters
    ----------
    kind : LayerKind

    Returns
    -------
    str

    Examples
    --------
    >>> kind_name(LayerKind(moe=True, window=128))
    'with experts, with a window of 128'
    """
    window = f", with a window of {kind.window:,}" if kind.window else ""
    return ("with experts" if kind.moe else "without experts") + window


def _parameter_rows(model: Model) -> list[tuple[str, str]]:
    total, layer = model_parameters(model), unsplit_layer_parameters(model)
    if model.moe is None:
        return [("parameters", f"{total:,} ({_billions(total)}); {layer:,} a layer")]
    mixed, active = unsplit_layer_parameters(model, moe=True), active_parameters(model)
    both = f"{layer:,} a layer without experts, {mixed:,} with"
    each = both if expert_layers(model) < model.layers else f"{mixed:,} a layer"
    return [
        ("parameters", f"{total:,} ({_billions(total)}); {each}"),
        ("active", f"{active:,} ({_billions(active)}) a token, both vocabulary tables included"),
    ]


def _layers_text(model: Model) -> str:
    mixed = expert_layers(model)
    windows = sum(layer_kind(model, index).window > 0 for index in range(model.layers))
    window = f", {windows} with a window of {model.window:,}" if windows else ""
    further = f"; {model.mtp} more to predict further tokens" if model.mtp else ""
    return f"{model.layers}" + (f", {mixed} with experts" if mixed else "") + window + further


def _attention_rows(model: Model) -> list[tuple[str, str]]:
    mla = model.mla
    if mla is None:
        norms = ", normalised" if model.qk_norm else ""
        sinks = ", with sinks" if model.sinks else ""
        return [("heads", f"{model.heads} of {model.head_dim}, {model.kv_heads} key-value{norms}{sinks}")]
    queries = f"queries through {mla.q_lora:,}" if mla.q_lora else "queries projected at once"
    widths = f"{mla.qk_nope_dim} + {mla.qk_rope_dim} for queries and keys, {mla.v_dim} for values"
    each = f"{attention_parameters(model):,} parameters"
    return [
        ("heads", f"{model.heads} of {widths}"),
        ("latent", f"{queries}, keys and values through {mla.kv_lora:,}; {each}"),
    ]


def _expert_rows(model: Model) -> list[tuple[str, str]]:
    moe = model.moe
    if moe is None:
        return []
    shared = f", {moe.shared_ffn:,} wide shared" if moe.shared_ffn else ""
    shared += f", of {moe.group_limit} of {moe.groups} groups" if moe.groups else ""
    return [
        ("experts", f"{moe.experts} of {moe.ffn:,}, {moe.top_k} a token{shared}; {expert_parameters(model):,} each")
    ]


def _billions(count: int) -> str:
    return f"{count / 1e9:.4g}B"


def model_record(model: Model, operators: Mapping[LayerKind, Sequence[Operator]]) -> dict[str, Any]:
    """Lay a model out as plain data.

    Parameters
    ----------
    model : Model
    operators : mapping of LayerKind to sequence of Operator
        Of one layer of each kind.

    Returns
    -------
    dict
        The fields of ``Model``, ``parameters``, ``active_parameters`` (those that a token meets), ``layer_parameters``
        (of a layer without experts), ``expert_layer_parameters`` (0 in a dense model), and ``operators`` of one layer
        of each kind, each with the ``layer`` that it is of.
    """
    return {
        "schema": "shardsim.model/1",
        **dataclasses.asdict(model),
        "parameters": model_parameters(model),
        "active_parameters": active_parameters(model),
        "layer_parameters": unsplit_layer_parameters(model),
        "expert_layer_parameters": 0 if model.moe is None else unsplit_layer_parameters(model, moe=True),
        "operators": [
            {**_operator_record(operator), "layer": {"experts": kind.moe, "window": kind.window}}
            for kind, listed in operators.items()
            for operator in listed
        ],
    }


def _operator_record(operator: Operator) -> dict[str, Any]:
    fields = {field.name: getattr(operator, field.name) for field in dataclasses.fields(operator)}
    plain = {key: value.item() if hasattr(value, "item") else value for key, value in fields.items()}
    return {"operator": type(operator).__name__.lower(), **plain, **_counts(operator)}


def _counts(operator: Operator) -> dict[str, float]:
    if isinstance(operator, Gemm | Attention | Elementwise):
        return {"flop": float(operator.flop), "bytes_moved": float(operator.bytes_moved)}
    return {}


def _operators(operators: Sequence[Operator]) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    for _ in range(3):
        table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for _ in range(2):
        table.add_column(justify="right", no_wrap=True)
    table.add_row(*(Text(head, style="dim") for head in ("", "operator", "kind", "m x k x n", "GFLOP", "moves")))
    for operator in operators:
        kind, shape, moved = _shape(operator)
        flop = 0.0 if isinstance(operator, Collective) else float(getattr(operator, "flop", 0.0))
        table.add_row(
            Text(f"  {_ROLES.get(getattr(operator, 'role', ''), '')}"),
            Text(operator.name),
            Text(kind),
            Text(shape),
            f"{flop / 1e9:,.1f}" if flop else "",
            format_size(moved),
        )
    return table


def _shape(operator: Operator) -> tuple[str, str, float]:
    """Kind, shape and bytes of an operator, for a row."""
    if isinstance(operator, Gemm):
        batch = f"{operator.batch:g} of " if operator.batch != 1 else ""
        return "gemm", f"{batch}{operator.m:g} x {operator.k:g} x {operator.n:g}", float(operator.bytes_moved)
    if isinstance(operator, Attention):
        heads = f"{operator.heads:g}/{operator.kv_heads:g}"
        shape = f"b {operator.batch:g}, a {heads}, s {operator.seq:g}, d {operator.head_dim:g}"
        return "attention", shape, float(operator.bytes_moved)
    if isinstance(operator, TokenExchange):
        copies = operator.tokens * operator.top_k * operator.share
        shape = f"{operator.tokens:g} tokens to {operator.top_k} of {operator.experts} by {operator.dispatcher}"
        return operator.direction, shape, float(copies * operator.hidden * operator.element_bytes)
    if isinstance(operator, Collective):
        return operator.kind, f"over {operator.axis}", float(operator.size)
    kernels = f"{operator.kernels:g} kernels" if operator.kernels != 1 else ""
    return getattr(operator, "kind", "optimizer"), kernels, float(operator.bytes_moved)
