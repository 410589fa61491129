"""Multi-token prediction: the module after the last layer that predicts one token further.

It joins the hidden states with the embedding of the next token, both normalised, projects them down to one width and
runs one more transformer layer, of the last layer's kind, with a final norm of its own. The LM head and the loss come
once more for each further token; they belong to the chunk with the head (:mod:`shardsim.workload.ends`).

DeepSeek-AI 2024, arXiv 2412.19437 §2.2, equations 21 to 24; split over ranks as in github NVIDIA/Megatron-LM,
megatron/core/transformer/multi_token_prediction.py: the projection is column-parallel and its output is gathered.
"""

from __future__ import annotations

from shardsim.values.operators import Collective, CollectiveKind, Elementwise, Operator
from shardsim.values.training import Batch, Framework, Layout, Model
from shardsim.workload import linear, pointwise, quantization, regions
from shardsim.workload.ends import embedding_backward, embedding_forward
from shardsim.workload.kinds import prediction_kind
from shardsim.workload.layer import layer_backward, layer_forward, recomputed_forward
from shardsim.workload.parameters import mtp_own_parameters
from shardsim.workload.shapes import Shapes, shapes

_PROJECTION = "mtp projection"
_NORMS = ("mtp embedding norm", "mtp hidden norm")


def prediction_forward(model: Model, layout: Layout, batch: Batch, framework: Framework) -> tuple[Operator, ...]:
    """List the operators of one module's forward pass, in order of issue, without LM head and loss.

    Parameters
    ----------
    model : Model
    layout : Layout
        Degrees may be arrays over layouts.
    batch : Batch
    framework : Framework

    Returns
    -------
    tuple of Operator
    """
    z, h = shapes(model, layout, batch, framework), model.hidden
    return (
        *embedding_forward(model, layout, batch, framework),
        *(one for name in _NORMS for one in pointwise.norm_forward(name, model, z)),
        Elementwise("mtp concatenation", "add", 4 * z.local_hidden * z.element_bytes),
        *quantization.operand(f"{_PROJECTION} input", 2 * z.local_hidden, z, gathered=layout.sp),
        *quantization.weight(_PROJECTION, 2 * h * h / layout.tp, z, batch.micro_batches(layout)),
        *regions.enter(_PROJECTION, layout, z, 2 * quantization.gathered_bytes(z)),
        linear.forward(_PROJECTION, z.tokens, 2 * h, h / layout.tp, z, quantization.data_type(z)),
        Collective(f"{_PROJECTION} output gather", "all_gather", "tp", z.hidden_bytes),
        *layer_forward(model, layout, batch, framework, prediction_kind(model)),
        *pointwise.norm_forward("mtp final norm", model, z),
    )


def prediction_backward(model: Model, layout: Layout, batch: Batch, framework: Framework) -> tuple[Operator, ...]:
    """List the operators of one module's backward pass, without what is recomputed before it.

    Parameters
    ----------
    model : Model
    layout : Layout
        Degrees may be arrays over layouts.
    batch : Batch
    framework : Framework

    Returns
    -------
    tuple of Operator
        The output's gradient is cut where the output was gathered: only sequence parallelism, which has left each rank
        its own tokens of it, gathers those first.
    """
    z, h = shapes(model, layout, batch, framework), model.hidden
    narrow, inner, width = quantization.data_type(z), 2 * h, h / layout.tp
    norms = [one for name in reversed(_NORMS) for one in pointwise.norm_backward(name, model, z)]
    return (
        *pointwise.norm_backward("mtp final norm", model, z),
        *layer_backward(model, layout, batch, framework, prediction_kind(model)),
        *regions.enter_backward(_PROJECTION, layout, z),
        *quantization.operand(f"{_PROJECTION} gradient", z.tokens * width, z, "dgrad"),
        *regions.regather(_PROJECTION, layout, z, 2 * quantization.gathered_bytes(z)),
        linear.input_gradient(_PROJECTION, z.tokens, inner, width, z, narrow),
        *_summed_twice(layout, z),
        *(quantization.turned(f"{_PROJECTION} input", z.tokens * inner, z) if layout.sp else ()),
        linear.weight_gradient(_PROJECTION, z.tokens, inner, width, z, narrow),
        Elementwise("mtp parting", "add", 4 * z.local_hidden * z.element_bytes, role="dgrad"),
        *norms,
        *pointwise.residual_gradient("mtp hidden states", z),
        *pointwise.accumulate("mtp", mtp_own_parameters(model, layout), 4, batch.micro_batches(layout), framework, z),
        *embedding_backward(model, layout, batch, framework),
    )


def recomputed_prediction(model: Model, layout: Layout, batch: Batch, framework: Framework) -> tuple[Operator, ...]:
    """List the operators that one module's backward pass repeats first: those of its layer.

    Parameters
    ----------
    model : Model
    layout : Layout
    batch : Batch
    framework : Framework

    Returns
    -------
    tuple of Operator
    """
    return recomputed_forward(model, layout, batch, framework, prediction_kind(model))


def _summed_twice(layout: Layout, z: Shapes) -> tuple[Operator, ...]:
    """The gradient of an input of twice the width, summed over ranks."""
    kind: CollectiveKind = "reduce_scatter" if layout.sp else "all_reduce"
    return (Collective(f"{_PROJECTION} gradient sum", kind, "tp", 2 * z.hidden_bytes, "dgrad"),)
