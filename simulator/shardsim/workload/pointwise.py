"""Memory-bound operators outside the attention core, with what each reads and writes.

Byte counts are reads and writes of whole operands, once each; weights, statistics and random states are too small to
count, dropout masks are one byte an element. E is the size of an activation's element.
"""

from __future__ import annotations

from shardsim.values.num import Num, where
from shardsim.values.operators import Elementwise, Operator
from shardsim.values.training import Framework, Model
from shardsim.workload import linear
from shardsim.workload.shapes import Shapes


def norm_forward(name: str, model: Model, sizes: Shapes) -> tuple[Operator, ...]:
    """Normalise the hidden states: read and written, 2 E an element.

    Parameters
    ----------
    name : str
    model : Model
    sizes : Shapes

    Returns
    -------
    tuple of Operator
    """
    return (Elementwise(name, model.norm, 2 * sizes.local_hidden * sizes.element_bytes),)


def norm_backward(name: str, model: Model, sizes: Shapes) -> tuple[Operator, ...]:
    """Differentiate a norm: input and gradient are read for the weights and again for the input, 5 E an element.

    Parameters
    ----------
    name : str
    model : Model
    sizes : Shapes

    Returns
    -------
    tuple of Operator
    """
    size = sizes.local_hidden * sizes.element_bytes
    return (
        Elementwise(f"{name} wgrad", model.norm, 2 * size, role="wgrad"),
        Elementwise(f"{name} dgrad", model.norm, 3 * size, role="dgrad"),
    )


def residual_gradient(name: str, sizes: Shapes) -> tuple[Operator, ...]:
    """Add the gradients that meet where a residual branch leaves: 3 E an element.

    Parameters
    ----------
    name : str
    sizes : Shapes

    Returns
    -------
    tuple of Operator
    """
    size = 3 * sizes.local_hidden * sizes.element_bytes
    return (Elementwise(f"{name} residual gradient", "add", size, role="dgrad"),)


def add_to_residual(name: str, model: Model, sizes: Shapes, framework: Framework) -> tuple[Operator, ...]:
    """Bias, dropout and residual after a row-parallel projection, in one kernel or in three.

    Parameters
    ----------
    name : str
    model : Model
    sizes : Shapes
    framework : Framework

    Returns
    -------
    tuple of Operator
        Fused: 3 E, and 1 for the mask. Separate: 2 E for the bias, 2 E + 1 for dropout, 3 E for the sum.
    """
    n, e = sizes.local_hidden, sizes.element_bytes
    if framework.fused_bias_dropout_add:
        mask = 1 if framework.dropout else 0
        return (Elementwise(f"{name} bias dropout add", "bias_dropout_add", n * (3 * e + mask)),)
    bias = linear.add_bias(name, sizes.local_tokens, sizes.hidden, sizes) if model.bias else ()
    drop = dropout(name, n, sizes) if framework.dropout else ()
    return (*bias, *drop, Elementwise(f"{name} residual", "add", n * 3 * e))


def add_to_residual_backward(name: str, model: Model, sizes: Shapes, framework: Framework) -> tuple[Operator, ...]:
    """Differentiate bias, dropout and residual: the residual's gradient passes through untouched.

    Parameters
    ----------
    name : str
    model : Model
    sizes : Shapes
    framework : Framework

    Returns
    -------
    tuple of Operator
        Dropout 2 E + 1, the bias gradient E.
    """
    drop = dropout_backward(name, sizes.local_hidden, sizes) if framework.dropout else ()
    bias = linear.bias_gradient(name, sizes.local_tokens, sizes.hidden, sizes) if model.bias else ()
    return (*drop, *bias)


def dropout(name: str, elements: Num, sizes: Shapes) -> tuple[Operator, ...]:
    """Dropout in a kernel of its own: 2 E + 1 an element.

    Parameters
    ----------
    name : str
    elements : Num
        (-).
    sizes : Shapes

    Returns
    -------
    tuple of Operator
    """
    return (Elementwise(f"{name} dropout", "dropout", elements * (2 * sizes.element_bytes + 1)),)


def dropout_backward(name: str, elements: Num, sizes: Shapes) -> tuple[Operator, ...]:
    """Differentiate dropout: gradient and mask read, gradient written, 2 E + 1 an element.

    Parameters
    ----------
    name : str
    elements : Num
        (-).
    sizes : Shapes

    Returns
    -------
    tuple of Operator
    """
    return (Elementwise(f"{name} dropout", "dropout", elements * (2 * sizes.element_bytes + 1), role="dgrad"),)


def activate(model: Model, sizes: Shapes, framework: Framework) -> tuple[Operator, ...]:
    """Bias and activation of the MLP, in one kernel or in several.

    Parameters
    ----------
    model : Model
    sizes : Shapes
    framework : Framework

    Returns
    -------
    tuple of Operator
        GELU 2 E an element of f. SwiGLU 3 E in one kernel; SiLU 2 E and the product 3 E in two.
    """
    n, e = sizes.tokens * sizes.ffn, sizes.element_bytes
    bias = linear.add_bias("mlp up", sizes.tokens, sizes.up, sizes) if model.bias else ()
    if framework.fused_bias_activation:
        width = 3 if model.activation == "swiglu" else 2
        return (Elementwise("activation", model.activation, n * width * e),)
    if model.activation == "gelu":
        return (*bias, Elementwise("activation", "gelu", n * 2 * e))
    return (*bias, Elementwise("activation", "swiglu", n * 5 * e, kernels=2))


def activate_backward(model: Model, sizes: Shapes, framework: Framework) -> tuple[Operator, ...]:
    """Differentiate bias and activation of the MLP.

    Parameters
    ----------
    model : Model
    sizes : Shapes
    framework : Framework

    Returns
    -------
    tuple of Operator
        GELU 3 E an element of f. SwiGLU 5 E in one kernel; 3 E each for both factors and SiLU in three. The bias
        gradient reads its output's gradient once more.
    """
    n, e = sizes.tokens * sizes.ffn, sizes.element_bytes
    bias = linear.bias_gradient("mlp up", sizes.tokens, sizes.up, sizes) if model.bias else ()
    if model.activation == "gelu":
        return (Elementwise("activation", "gelu", n * 3 * e, role="dgrad"), *bias)
    if framework.fused_bias_activation:
        return (Elementwise("activation", "swiglu", n * 5 * e, role="dgrad"), *bias)
    return (Elementwise("activation", "swiglu", n * 9 * e, kernels=3, role="dgrad"), *bias)


def accumulate(
    name: str, parameters: Num, tensors: int, microbatches: Num, framework: Framework, sizes: Shapes
) -> tuple[Operator, ...]:
    """Add weight gradients to those of earlier micro-batches, where no GEMM does it on its way out.

    Parameters
    ----------
    name : str
    parameters : Num
        Parameters of this rank (-).
    tensors : int
        Tensors that hold them (-).
    microbatches : Num
        Micro-batches a replica (-); the gradient of an only one is kept as it is.
    framework : Framework
    sizes : Shapes

    Returns
    -------
    tuple of Operator
        The new gradient read, the sum read and written.
    """
    if framework.fused_gradient_accumulation:
        return ()
    several = where(microbatches > 1, microbatches * 0.0 + 1.0, microbatches * 0.0)
    size = several * parameters * (sizes.element_bytes + 2 * framework.gradient_bytes)
    return (Elementwise(f"{name} accumulation", "add", size, kernels=several * tensors, role="wgrad"),)
