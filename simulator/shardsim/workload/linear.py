"""Matrix products of a linear layer: forward, gradient of its input, gradient of its weight."""

from __future__ import annotations

from shardsim.values.num import Num
from shardsim.values.operators import Elementwise, Gemm, Operator
from shardsim.workload.shapes import Shapes


def forward(name: str, rows: Num, inner: Num, width: Num, sizes: Shapes) -> Gemm:
    """(rows, inner) x (inner, width).

    Parameters
    ----------
    name : str
    rows, inner, width : Num
        Tokens, input width and output width on this rank (-).
    sizes : Shapes

    Returns
    -------
    Gemm
    """
    return Gemm(name, rows, inner, width, element_bytes=sizes.element_bytes)


def input_gradient(name: str, rows: Num, inner: Num, width: Num, sizes: Shapes) -> Gemm:
    """(rows, width) x (width, inner).

    Parameters
    ----------
    name : str
    rows, inner, width : Num
        As of the forward product (-).
    sizes : Shapes

    Returns
    -------
    Gemm
    """
    return Gemm(f"{name} dgrad", rows, width, inner, element_bytes=sizes.element_bytes, role="dgrad")


def weight_gradient(name: str, rows: Num, inner: Num, width: Num, sizes: Shapes) -> Gemm:
    """(inner, rows) x (rows, width).

    Parameters
    ----------
    name : str
    rows, inner, width : Num
        As of the forward product (-).
    sizes : Shapes

    Returns
    -------
    Gemm
    """
    return Gemm(f"{name} wgrad", inner, rows, width, element_bytes=sizes.element_bytes, role="wgrad")


def add_bias(name: str, rows: Num, width: Num, sizes: Shapes) -> tuple[Operator, ...]:
    """Bias in a kernel of its own: the product is read and written.

    Parameters
    ----------
    name : str
    rows, width : Num
        Shape of the product (-).
    sizes : Shapes

    Returns
    -------
    tuple of Operator
    """
    return (Elementwise(f"{name} bias", "add", 2 * rows * width * sizes.element_bytes),)


def bias_gradient(name: str, rows: Num, width: Num, sizes: Shapes) -> tuple[Operator, ...]:
    """Sum the output's gradient over its rows: it is read once.

    Parameters
    ----------
    name : str
    rows, width : Num
        Shape of the product (-).
    sizes : Shapes

    Returns
    -------
    tuple of Operator
    """
    return (Elementwise(f"{name} bias wgrad", "add", rows * width * sizes.element_bytes, role="wgrad"),)
