"""Tables of measurements, column by column: what a million rows need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class MeasuredGemms:
    """Rows of a table; cells that are empty are NaN or empty text.

    Parameters
    ----------
    file : str
        Name of the table.
    ids : sequence of str
        The ``id`` cells, else the rows' numbers from 1.
    gpu, dtype, layout : sequence of str
        As the table has them.
    m, n, k, batch : ndarray of float
        Shapes (-), shape (rows,); ``batch`` is 1 where nothing is said.
    seconds : ndarray of float
        [s], shape (rows,).
    """

    file: str
    ids: Sequence[str]
    gpu: Sequence[str]
    dtype: Sequence[str]
    layout: Sequence[str]
    m: Array
    n: Array
    k: Array
    batch: Array
    seconds: Array

    def __len__(self) -> int:
        return len(self.seconds)
