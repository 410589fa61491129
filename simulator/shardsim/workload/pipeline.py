"""Messages between neighbouring pipeline stages."""

from __future__ import annotations

from shardsim.values.operators import SendRecv
from shardsim.values.training import Batch, Framework, Layout, Model
from shardsim.workload.shapes import shapes


def p2p_message(model: Model, layout: Layout, batch: Batch, framework: Framework) -> SendRecv:
    """Activations of one micro-batch to the next stage, or their gradient to the one before: b s h elements.

    Parameters
    ----------
    model : Model
    layout : Layout
        Under sequence parallelism each tensor-parallel rank sends its 1/t of the tokens.
    batch : Batch
    framework : Framework
        With ``scatter_gather`` each tensor-parallel rank sends 1/t of the message, and the group gathers the whole on
        arrival.

    Returns
    -------
    SendRecv

    Notes
    -----
    arXiv 2104.04473 §3.2 and §4.1.
    """
    sizes = shapes(model, layout, batch, framework)
    whole = sizes.hidden_bytes
    if layout.sp:
        return SendRecv("stage message", whole / layout.tp)
    if framework.scatter_gather:
        return SendRecv("stage message", whole / layout.tp, whole)
    return SendRecv("stage message", whole)
