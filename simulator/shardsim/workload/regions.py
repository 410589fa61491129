"""The borders of tensor parallelism: what is communicated on the way in and out (f, f̄, g and ḡ of the papers)."""

from __future__ import annotations

from shardsim.values.num import Num
from shardsim.values.operators import Collective, GradientRole, Operator
from shardsim.values.training import Layout
from shardsim.workload.shapes import Shapes


def enter(name: str, layout: Layout, sizes: Shapes, width: float | None = None) -> tuple[Operator, ...]:
    """Enter a column-parallel projection, forward: identity, or the gathering of the tokens (g).

    Parameters
    ----------
    name : str
        Of the projection.
    layout : Layout
    sizes : Shapes
    width : float or None
        Bytes of an element as it is gathered (-); None for those of an activation.

    Returns
    -------
    tuple of Operator
    """
    if not layout.sp:
        return ()
    return (Collective(f"{name} gather", "all_gather", "tp", _gathered(sizes, width)),)


def leave(name: str, layout: Layout, sizes: Shapes) -> tuple[Operator, ...]:
    """Leave a row-parallel projection, forward: the sum over ranks, scattered over tokens under SP (f̄, ḡ).

    Parameters
    ----------
    name : str
        Of the projection.
    layout : Layout
    sizes : Shapes

    Returns
    -------
    tuple of Operator
    """
    return (_sum(name, layout, sizes, "forward"),)


def enter_backward(name: str, layout: Layout, sizes: Shapes, width: float | None = None) -> tuple[Operator, ...]:
    """Enter a row-parallel projection from behind, backward: identity, or the gathering of the gradient.

    Parameters
    ----------
    name : str
        Of the projection.
    layout : Layout
    sizes : Shapes
    width : float or None
        Bytes of an element as it is gathered (-); None for those of an activation.

    Returns
    -------
    tuple of Operator
    """
    if not layout.sp:
        return ()
    return (Collective(f"{name} gradient gather", "all_gather", "tp", _gathered(sizes, width), "dgrad"),)


def regather(name: str, layout: Layout, sizes: Shapes, width: float | None = None) -> tuple[Operator, ...]:
    """Gather again the input of a column-parallel projection, of which SP keeps one part a rank.

    Parameters
    ----------
    name : str
        Of the projection.
    layout : Layout
    sizes : Shapes
    width : float or None
        Bytes of an element as it is gathered (-); None for those of an activation.

    Returns
    -------
    tuple of Operator

    Notes
    -----
    arXiv 2205.05198 §4.2.2: the price of storing only a part of Y.
    """
    if not layout.sp:
        return ()
    return (Collective(f"{name} input gather", "all_gather", "tp", _gathered(sizes, width), "wgrad"),)


def leave_backward(name: str, layout: Layout, sizes: Shapes) -> tuple[Operator, ...]:
    """Leave a column-parallel projection backward: the sum of its input's gradient, scattered under SP.

    Parameters
    ----------
    name : str
        Of the projection.
    layout : Layout
    sizes : Shapes

    Returns
    -------
    tuple of Operator
    """
    return (_sum(name, layout, sizes, "dgrad"),)


def _gathered(sizes: Shapes, width: float | None) -> Num:
    return sizes.hidden_bytes if width is None else sizes.tokens * sizes.hidden * width


def _sum(name: str, layout: Layout, sizes: Shapes, role: GradientRole) -> Collective:
    what = name if role == "forward" else f"{name} gradient"
    if layout.sp:
        return Collective(f"{what} scatter", "reduce_scatter", "tp", sizes.hidden_bytes, role)
    return Collective(f"{what} all-reduce", "all_reduce", "tp", sizes.hidden_bytes, role)
