"""Where a number comes from, and how far to trust it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Basis = Literal["measured", "interpolated", "fitted", "datasheet", "assumed"]


@dataclass(frozen=True, slots=True)
class Provenance:
    """Origin of a constant or a cost.

    Parameters
    ----------
    basis : {"measured", "interpolated", "fitted", "datasheet", "assumed"}
        How it was obtained. ``assumed`` means that no measurement stands behind it, and outputs say so.
    source : str
        Publication, dataset or page.
    error : float or None
        Median relative error of the fit (-), where one was made.
    points : int or None
        Number of measurements behind it.
    """

    basis: Basis
    source: str
    error: float | None = None
    points: int | None = None
