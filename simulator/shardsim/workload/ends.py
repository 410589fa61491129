"""Operators of the two ends of a model: embedding before the first layer; final norm, LM head and loss after the last.

Vocabulary-parallel as in Megatron-LM: each rank holds V/t rows. The loss is computed on logits in fp32 without
gathering them, with three all-reduces of one fp32 number a token (github NVIDIA/Megatron-LM,
megatron/core/tensor_parallel/cross_entropy.py).
"""

from __future__ import annotations

from shardsim.values.num import Num
from shardsim.values.operators import Collective, Elementwise, Operator
from shardsim.values.training import Batch, Framework, Layout, Model
from shardsim.workload import linear, pointwise, regions
from shardsim.workload.parameters import (
    embedding_parameters,
    norm_parameters,
    padded_vocab,
    position_parameters,
    table_parameters,
)
from shardsim.workload.shapes import Shapes, shapes

_FP32 = 4


def embedding_forward(model: Model, layout: Layout, batch: Batch, framework: Framework) -> tuple[Operator, ...]:
    """List the operators from token numbers to the input of the first layer.

    Parameters
    ----------
    model : Model
    layout : Layout
    batch : Batch
    framework : Framework

    Returns
    -------
    tuple of Operator
        Rows read and written, those of other ranks zeroed; their sum over ranks; positions; dropout.
    """
    z = shapes(model, layout, batch, framework)
    elements = z.tokens * z.hidden
    absent = elements * (1 - 1 / layout.tp)
    size = (2 * elements + absent) * z.element_bytes
    positions: tuple[Operator, ...] = ()
    if model.position == "learned":
        positions = (Elementwise("position embedding", "add", 3 * z.local_hidden * z.element_bytes),)
    return (
        Elementwise("embedding", "embedding", size, kernels=2),
        *regions.leave("embedding", layout, z),
        *positions,
        *(pointwise.dropout("embedding", z.local_hidden, z) if framework.dropout else ()),
    )


def embedding_backward(model: Model, layout: Layout, batch: Batch, framework: Framework) -> tuple[Operator, ...]:
    """List the operators from the gradient of the first layer's input to those of the embedding's tables.

    Parameters
    ----------
    model : Model
    layout : Layout
    batch : Batch
    framework : Framework

    Returns
    -------
    tuple of Operator
        Dropout; gradients of the tables, each zeroed and then added to token by token.
    """
    z = shapes(model, layout, batch, framework)
    table = table_parameters(model, layout, framework)
    positions: tuple[Operator, ...] = ()
    if model.position == "learned":
        positions = (_scatter("position embedding", z.local_hidden, position_parameters(model), z),)
    tensors = 2 if model.position == "learned" else 1
    own = embedding_parameters(model, layout, framework)
    return (
        *(pointwise.dropout_backward("embedding", z.local_hidden, z) if framework.dropout else ()),
        *positions,
        *regions.enter_backward("embedding", layout, z),
        _scatter("embedding", z.tokens * z.hidden, table, z),
        *pointwise.accumulate("embedding", own, tensors, batch.micro_batches(layout), framework, z),
    )


def head_forward(model: Model, layout: Layout, batch: Batch, framework: Framework) -> tuple[Operator, ...]:
    """List the operators from the last layer's output to the loss.

    Parameters
    ----------
    model : Model
    layout : Layout
    batch : Batch
    framework : Framework

    Returns
    -------
    tuple of Operator
        Norm, LM head, and per logit: conversion to fp32 and maximum (10 bytes from 16 bits), subtraction (8),
        exponential and sum (12), division (8); a loss that is not in place clones the logits first (8). All of it but
        the norm once more for each further token that is predicted.
    """
    z = shapes(model, layout, batch, framework)
    vocab = padded_vocab(model, framework, layout.tp) / layout.tp
    return (
        *pointwise.norm_forward("final norm", model, z),
        *_logits_and_loss(layout, framework, z, vocab) * (1 + model.mtp),
    )


def _logits_and_loss(layout: Layout, framework: Framework, z: Shapes, vocab: Num) -> tuple[Operator, ...]:
    logits = z.tokens * vocab
    return (
        *regions.enter("lm head", layout, z),
        linear.forward("lm head", z.tokens, z.hidden, vocab, z),
        *(() if framework.loss_in_place else (_on_logits("copy", logits * 2 * _FP32, 1),)),
        _on_logits("maximum", logits * (z.element_bytes + _FP32 + _FP32), 2),
        _token_sum("maximum", z.tokens),
        _on_logits("subtract", logits * 2 * _FP32, 1),
        _token_sum("target logit", z.tokens),
        _on_logits("exponential", logits * 3 * _FP32, 2),
        _token_sum("sum of exponentials", z.tokens),
        _on_logits("softmax", logits * 2 * _FP32, 1),
    )


def head_backward(model: Model, layout: Layout, batch: Batch, framework: Framework) -> tuple[Operator, ...]:
    """List the operators from the loss back to the last layer's output.

    Parameters
    ----------
    model : Model
    layout : Layout
    batch : Batch
    framework : Framework

    Returns
    -------
    tuple of Operator
        The softmax scaled in place and converted, LM head, norm; all but the norm once more for each further token
        that is predicted. The loss itself communicates nothing backward.
    """
    z = shapes(model, layout, batch, framework)
    vocab = padded_vocab(model, framework, layout.tp) / layout.tp
    own = table_parameters(model, layout, framework) + norm_parameters(model)
    tensors = 3 if model.norm == "layernorm" else 2
    return (
        *_logits_backward(layout, z, vocab) * (1 + model.mtp),
        *pointwise.norm_backward("final norm", model, z),
        *pointwise.accumulate("head", own, tensors, batch.micro_batches(layout), framework, z),
    )


def _logits_backward(layout: Layout, z: Shapes, vocab: Num) -> tuple[Operator, ...]:
    scale = z.tokens * vocab * (2 * _FP32 + _FP32 + z.element_bytes)
    return (
        Elementwise("loss gradient", "cross_entropy", scale, kernels=2, role="dgrad"),
        *regions.regather("lm head", layout, z),
        linear.input_gradient("lm head", z.tokens, z.hidden, vocab, z),
        *regions.leave_backward("lm head", layout, z),
        linear.weight_gradient("lm head", z.tokens, z.hidden, vocab, z),
    )


def _scatter(name: str, elements: Num, parameters: Num, sizes: Shapes) -> Elementwise:
    size = (parameters + 3 * elements) * sizes.element_bytes
    return Elementwise(f"{name} wgrad", "embedding", size, kernels=2, role="wgrad")


def _on_logits(name: str, size: Num, kernels: int) -> Elementwise:
    return Elementwise(f"loss {name}", "cross_entropy", size, kernels=kernels)


def _token_sum(name: str, tokens: Num) -> Collective:
    return Collective(f"loss {name} all-reduce", "all_reduce", "tp", tokens * _FP32)
