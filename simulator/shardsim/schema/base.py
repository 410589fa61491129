"""What every YAML schema is made of: the strict base model, and quantities that carry their unit."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from shardsim.units import Kind, parse


class StrictModel(BaseModel):
    """Base of every schema: frozen, unknown keys refused, no guessing between types.

    Strict means that the text ``"8"`` is not a whole number and ``"no"`` not a truth value. Validate through
    :func:`shardsim.schema.loader.check`, which reports every problem in plain language.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, defer_build=True)


def _quantity(kind: Kind) -> BeforeValidator:
    return BeforeValidator(partial(parse, kind=kind), json_schema_input_type=str)


Size = Annotated[float, _quantity("size")]
"""Text such as ``80 GiB``, held as bytes."""

Bandwidth = Annotated[float, _quantity("bandwidth")]
"""Text such as ``450 GB/s`` or ``400 Gb/s``, held as bytes/s."""

Duration = Annotated[float, _quantity("time")]
"""Text such as ``3.2 us``, held as seconds."""

FlopRate = Annotated[float, _quantity("flop_rate")]
"""Text such as ``312 TFLOP/s``, held as FLOP/s."""

Power = Annotated[float, _quantity("power")]
"""Text such as ``700 W``, held as watts."""

Count = Annotated[int, Field(ge=1)]
"""A whole number, 1 or more."""

Share = Annotated[float, Field(gt=0.0, le=1.0)]
"""A fraction of a peak, above 0 and at most 1."""

Text = Annotated[str, Field(min_length=1)]
"""Text that is not empty."""
