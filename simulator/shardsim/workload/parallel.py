"""Linear layers split over tensor-parallel ranks: by columns or by rows, with what is communicated and converted."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeAlias

from shardsim.values.num import Num
from shardsim.values.operators import Operator
from shardsim.values.training import Layout
from shardsim.workload import linear, quantization, regions
from shardsim.workload.shapes import Shapes

Projections: TypeAlias = tuple[tuple[str, Num], ...]
"""Column-parallel projections with their widths, or row-parallel ones with what they sum over, on this rank."""


def column_forward(
    projections: Projections, region: str, layout: Layout, z: Shapes, uses: Num | None
) -> tuple[Operator, ...]:
    """Project the same tokens by columns, once they are gathered.

    Parameters
    ----------
    projections : tuple of (str, Num)
    region : str
        What is entered, for the name of the gathering.
    layout : Layout
    z : Shapes
        Its ``hidden`` is the width of the side that is not split.
    uses : Num or None
        Micro-batches that use a weight's conversion below 16 bits (-); None where there is one already.

    Returns
    -------
    tuple of Operator
    """
    first, _ = projections[0]
    return (
        *quantization.operand(f"{first} input", z.local_hidden, z, gathered=layout.sp),
        *(one for name, width in projections for one in converted(name, z.hidden * width, z, uses)),
        *regions.enter(region, layout, z, quantization.gathered_bytes(z)),
        *(linear.forward(name, z.tokens, z.hidden, width, z, quantization.data_type(z)) for name, width in projections),
    )


def row_forward(name: str, inner: Num, z: Shapes, uses: Num | None, *, added: bool = False) -> tuple[Operator, ...]:
    """Project by rows; what is left is the sum over ranks.

    Parameters
    ----------
    name : str
    inner : Num
        What it sums over, on this rank (-).
    z : Shapes
        Its ``hidden`` is the width of the side that is not split.
    uses : Num or None
        Micro-batches that use a weight's conversion below 16 bits (-); None where there is one already.
    added : bool
        Whether the product is added to another.

    Returns
    -------
    tuple of Operator
    """
    product = linear.forward(name, z.tokens, inner, z.hidden, z, quantization.data_type(z))
    return (
        *quantization.operand(f"{name} input", z.tokens * inner, z),
        *converted(name, inner * z.hidden, z, uses),
        replace(product, accumulates=True) if added else product,
    )


def converted(name: str, elements: Num, z: Shapes, uses: Num | None) -> tuple[Operator, ...]:
    """Convert a weight below 16 bits, unless it is there already.

    Parameters
    ----------
    name : str
    elements : Num
        Of the weight on this rank (-).
    z : Shapes
    uses : Num or None
        Micro-batches that use a weight's conversion below 16 bits (-); None where there is one already.

    Returns
    -------
    tuple of Operator
    """
    return () if uses is None else quantization.weight(name, elements, z, uses)


def row_backward(projections: Projections, region: str, layout: Layout, z: Shapes) -> tuple[Operator, ...]:
    """Differentiate row-parallel projections: the gradient gathered, input gradients, weight gradients.

    Parameters
    ----------
    projections : tuple of (str, Num)
    region : str
    layout : Layout
    z : Shapes
        Its ``hidden`` is the width of the side that is not split.

    Returns
    -------
    tuple of Operator
    """
    first, _ = projections[0]
    narrow = quantization.data_type(z)
    return (
        *quantization.operand(f"{first} gradient", z.local_hidden, z, "dgrad", gathered=layout.sp),
        *regions.enter_backward(region, layout, z, quantization.gathered_bytes(z, copies=2)),
        *(linear.input_gradient(name, z.tokens, inner, z.hidden, z, narrow) for name, inner in projections),
        *(quantization.turned(f"{first} gradient", z.tokens * z.hidden, z) if layout.sp else ()),
        *(linear.weight_gradient(name, z.tokens, inner, z.hidden, z, narrow) for name, inner in projections),
    )


def column_backward(projections: Projections, region: str, layout: Layout, z: Shapes) -> tuple[Operator, ...]:
    """Differentiate column-parallel projections: input gradients, their sum over ranks, weight gradients.

    Parameters
    ----------
    projections : tuple of (str, Num)
    region : str
    layout : Layout
    z : Shapes
        Its ``hidden`` is the width of the side that is not split.

    Returns
    -------
    tuple of Operator
    """
    first, _ = projections[0]
    narrow = quantization.data_type(z)
    inputs = [linear.input_gradient(name, z.tokens, z.hidden, width, z, narrow) for name, width in projections]
    return (
        *(
            one
            for name, width in projections
            for one in quantization.operand(f"{name} gradient", z.tokens * width, z, "dgrad")
        ),
        *regions.regather(region, layout, z, quantization.gathered_bytes(z)),
        inputs[0],
        *(replace(one, accumulates=True) for one in inputs[1:]),
        *regions.leave_backward(region, layout, z),
        *(quantization.turned(f"{first} input", z.tokens * z.hidden, z) if layout.sp else ()),
        *(linear.weight_gradient(name, z.tokens, z.hidden, width, z, narrow) for name, width in projections),
    )
