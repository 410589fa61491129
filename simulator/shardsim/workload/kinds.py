"""What sets layers of one model apart: experts in the place of the MLP, attention that sees a window only."""

from __future__ import annotations

from typing import NamedTuple

from shardsim.values.training import Model
from shardsim.workload.stages import ChunkContent


class LayerKind(NamedTuple):
    """Layers of one kind do the same work.

    Parameters
    ----------
    moe : bool
        Whether it has experts.
    window : int
        Keys that a query sees (-); 0 for all.
    """

    moe: bool = False
    window: int = 0


PLAIN = LayerKind()
"""A layer with an MLP whose attention sees everything."""


def is_expert_layer(model: Model, index: int) -> bool:
    """Tell whether a layer has experts.

    Parameters
    ----------
    model : Model
    index : int
        Counted from 0 (-).

    Returns
    -------
    bool
    """
    if model.moe is None or index < model.moe.first_dense:
        return False
    return (index + 1 - model.moe.first_dense) % model.moe.every == 0


def layer_kind(model: Model, index: int) -> LayerKind:
    """Tell what kind a layer is of.

    Parameters
    ----------
    model : Model
    index : int
        Counted from 0 (-).

    Returns
    -------
    LayerKind
    """
    full = not model.window or (model.full_every > 0 and (index + 1) % model.full_every == 0)
    return LayerKind(is_expert_layer(model, index), 0 if full else model.window)


def kinds_of(model: Model, content: ChunkContent) -> tuple[LayerKind, ...]:
    """List the kinds of a chunk's layers.

    Parameters
    ----------
    model : Model
    content : ChunkContent

    Returns
    -------
    tuple of LayerKind
        In order, first layers first.
    """
    return tuple(layer_kind(model, index) for index in range(content.first, content.first + content.layers))


def all_kinds(model: Model) -> tuple[LayerKind, ...]:
    """List the kinds of layers that a model has.

    Parameters
    ----------
    model : Model

    Returns
    -------
    tuple of LayerKind
        Each once, in the order of their first layers.
    """
    return tuple(dict.fromkeys(layer_kind(model, index) for index in range(model.layers)))


def prediction_kind(model: Model) -> LayerKind:
    """Tell the kind of the layer in a module of multi-token prediction: that of the model's last one.

    Parameters
    ----------
    model : Model

    Returns
    -------
    LayerKind
    """
    return layer_kind(model, model.layers - 1)
