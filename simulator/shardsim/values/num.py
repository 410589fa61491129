"""``Num``: a scalar, or one value for each of many layouts; and the choices that treat both alike.

Operators and equations accept both, so that one piece of code prices one layout for the event engine and a million
for a search. Scalars do not pay for NumPy.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Num: TypeAlias = float | NDArray[np.float64]
Truth: TypeAlias = bool | NDArray[np.bool_]

_Scalar = float | int


def larger(x: Num, y: Num) -> Num:
    """The larger of two numbers, element by element.

    >>> larger(1.0, 2.0)
    2.0
    """
    if isinstance(x, _Scalar) and isinstance(y, _Scalar):
        return max(x, y)
    return np.maximum(x, y)


def smaller(x: Num, y: Num) -> Num:
    """The smaller of two numbers, element by element.

    >>> smaller(1.0, 2.0)
    1.0
    """
    if isinstance(x, _Scalar) and isinstance(y, _Scalar):
        return min(x, y)
    return np.minimum(x, y)


def where(condition: Truth, x: Num, y: Num) -> Num:
    """``x`` where the condition holds, else ``y``, element by element.

    >>> where(True, 1.0, 2.0)
    1.0
    """
    if isinstance(condition, np.ndarray):
        return np.where(condition, x, y)
    return x if condition else y


def log2(x: Num) -> Num:
    """Binary logarithm, element by element.

    >>> log2(8.0)
    3.0
    """
    return float(np.log2(x)) if isinstance(x, _Scalar) else np.log2(x)


def power_of_e(x: Num) -> Num:
    """The exponential function, element by element.

    >>> power_of_e(0.0)
    1.0
    """
    return float(np.exp(x)) if isinstance(x, _Scalar) else np.exp(x)


def any_of(condition: Truth) -> bool:
    """Whether the condition holds anywhere.

    >>> any_of(False)
    False
    """
    return condition if isinstance(condition, bool) else bool(np.any(condition))


def first_of(x: Num) -> float:
    """A number that all layouts share, of a scalar or an array.

    >>> first_of(8)
    8.0
    """
    return float(x) if isinstance(x, _Scalar) else float(x.flat[0])
