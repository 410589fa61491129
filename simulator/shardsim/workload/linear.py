"""Matrix products of a linear layer: forward, gradient of its input, gradient of its weight.

Operands in a data type of their own lie with the summed dimension contiguous: that is what their two copies are for.
"""

from __future__ import annotations

from shardsim.values.num import Num
from shardsim.values.operators import Elementwise, Gemm, Operator
from shardsim.workload.shapes import Shapes


def forward(name: str, rows: Num, inner: Num, width: Num, sizes: Shapes, data_type: str = "") -> Gemm:
    """(rows, inner) x (inner, width).

    Parameters
    ----------
    name : str
    rows, inner, width : Num
        Tokens, input width and output width on this rank (-).
    sizes : Shapes
    data_type : str
        Of the operands; empty for that of the run.

    Returns
    -------
    Gemm
    """
    return Gemm(name, rows, inner, width, element_bytes=sizes.element_bytes, data_type=data_type)


def input_gradient(name: str, rows: Num, inner: Num, width: Num, sizes: Shapes, data_type: str = "") -> Gemm:
    """(rows, width) x (width, inner).

    Parameters
    ----------
    name : str
    rows, inner, width : Num
        As of the forward product (-).
    sizes : Shapes
    data_type : str
        Of the operands; empty for that of the run.

    Returns
    -------
    Gemm
    """
    return Gemm(
        f"{name} dgrad",
        rows,
        width,
        inner,
        element_bytes=sizes.element_bytes,
        role="dgrad",
        layout="tn" if data_type else "nn",
        data_type=data_type,
    )


def weight_gradient(name: str, rows: Num, inner: Num, width: Num, sizes: Shapes, data_type: str = "") -> Gemm:
    """(inner, rows) x (rows, width), added to the sum over micro-batches where the framework fuses that.

    Parameters
    ----------
    name : str
    rows, inner, width : Num
        As of the forward product (-).
    sizes : Shapes
    data_type : str
        Of the operands; empty for that of the run.

    Returns
    -------
    Gemm
    """
    return Gemm(
        f"{name} wgrad",
        inner,
        rows,
        width,
        element_bytes=sizes.element_bytes,
        role="wgrad",
        layout="tn" if data_type else "nt",
        output_bytes=sizes.accumulated_bytes,
        accumulates=sizes.accumulated_bytes is not None,
        data_type=data_type,
    )


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
