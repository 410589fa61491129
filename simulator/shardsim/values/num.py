"""``Num``: a scalar, or one value for each of many layouts.

Operators and equations accept both, so that one piece of code prices one layout for the event engine and a million
for a search.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Num: TypeAlias = float | NDArray[np.float64]
else:
    Num = object
