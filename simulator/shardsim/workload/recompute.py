"""What the backward pass repeats of the forward pass: which layers whole, which modules of a layer."""

from __future__ import annotations

from shardsim.values.num import Num, smaller
from shardsim.values.training import Layout, Model
from shardsim.workload.schedules.rules import RULES

DENSE_MODULES = ("core_attn", "mlp", "layernorm")
"""Modules of a layer without experts and latent attention that selective recompute may repeat, by Megatron Core's names
(github NVIDIA/Megatron-LM, megatron/core/transformer/transformer_config.py, recompute_modules)."""


def recomputed_layers(layout: Layout, layers: int) -> int:
    """Count the layers of a chunk that are recomputed whole: its first ones, under the ``block`` method.

    Parameters
    ----------
    layout : Layout
        Its ``recompute``, ``recompute_method`` and ``recompute_layers``.
    layers : int
        Of the chunk (-).

    Returns
    -------
    int
        (-).

    Examples
    --------
    >>> layout = Layout(1, 1, 1, recompute="full", recompute_method="block", recompute_layers=2)
    >>> [recomputed_layers(layout, layers) for layers in (1, 2, 3)]
    [1, 2, 2]

    Notes
    -----
    github NVIDIA/Megatron-LM, megatron/core/transformer/transformer_block.py, _checkpointed_forward: ``uniform``
    repeats every layer, in units of ``recompute_layers`` that keep one input each.
    """
    if layout.recompute != "full":
        return 0
    if layout.recompute_method == "uniform" or not layout.recompute_layers:
        return layers
    return min(layers, layout.recompute_layers)


def recomputed_in_all(model: Model, layout: Layout) -> Num:
    """Count the layers of a model that are recomputed whole.

    Parameters
    ----------
    model : Model
    layout : Layout
        Degrees may be arrays over layouts.

    Returns
    -------
    Num
        (-).
    """
    if layout.split:
        return sum(recomputed_layers(layout, layers) for layers in layout.split)
    if layout.recompute_method == "uniform" or not layout.recompute_layers:
        return recomputed_layers(layout, model.layers)
    return smaller(layout.recompute_layers * _virtual_stages(layout), model.layers) if layout.recompute == "full" else 0


def _virtual_stages(layout: Layout) -> Num:
    """Chunks over which one copy of the layers is split (-)."""
    if layout.custom is not None:
        return len(layout.custom.chains[0])
    return layout.pp * layout.vpp / RULES[layout.schedule].copies
