"""Units at the edge: text with a unit in, SI floats inside, text with a unit out. Nowhere else converts.

Inside shardsim everything is seconds, bytes, FLOP, bytes/s, FLOP/s, watts. Decimal prefixes are powers of 1000
(GB), binary ones powers of 1024 (GiB). A lower-case ``b`` is a bit and an upper-case ``B`` a byte, always.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal
from types import MappingProxyType
from typing import Literal

Kind = Literal["size", "bandwidth", "time", "flop", "flop_rate", "power", "frequency"]

_DECIMAL = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50}


def _scaled(symbol: str, prefixes: dict[str, float], factor: float = 1.0) -> dict[str, float]:
    return {prefix + symbol: scale * factor for prefix, scale in prefixes.items()}


_SIZE = _scaled("B", _DECIMAL) | _scaled("B", _BINARY) | {"bytes": 1.0, "byte": 1.0}
_BITS = _scaled("b", _DECIMAL, 1 / 8) | _scaled("bit", _DECIMAL, 1 / 8)

UNITS: MappingProxyType[Kind, dict[str, float]] = MappingProxyType(
    {
        "size": _SIZE,
        "bandwidth": {
            **{f"{unit}/s": factor for unit, factor in (_SIZE | _BITS).items()},
            **_scaled("bps", {p: s for p, s in _DECIMAL.items() if p}, 1 / 8),
        },
        "time": {
            "s": 1.0,
            "ms": 1e-3,
            "us": 1e-6,
            "µs": 1e-6,
            "ns": 1e-9,
            "min": 60.0,
            "h": 3600.0,
            "d": 86400.0,
        },
        "flop": _scaled("FLOP", _DECIMAL),
        "flop_rate": _scaled("FLOP/s", _DECIMAL) | _scaled("FLOPS", _DECIMAL),
        "power": {"W": 1.0, "kW": 1e3, "MW": 1e6},
        "frequency": {"Hz": 1.0, "kHz": 1e3, "MHz": 1e6, "GHz": 1e9},
    }
)
_EXAMPLES: dict[Kind, str] = {
    "size": "80 GiB",
    "bandwidth": "900 GB/s or 400 Gb/s",
    "time": "3.2 us",
    "flop": "1 TFLOP",
    "flop_rate": "312 TFLOP/s",
    "power": "700 W",
    "frequency": "1.4 GHz",
}
_QUANTITY = re.compile(r"\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*(\S*)\s*")


def parse(text: object, kind: Kind) -> float:
    """Read a quantity written with its unit.

    Parameters
    ----------
    text : object
        What the user wrote, such as ``"900 GB/s"``. A bare number is refused: its unit cannot be known.
    kind : {"size", "bandwidth", "time", "flop", "flop_rate", "power", "frequency"}
        What it measures.

    Returns
    -------
    float
        The value in SI: bytes, bytes/s, s, FLOP, FLOP/s, W, Hz.

    Raises
    ------
    ValueError
        No unit, an unknown unit, or not a finite, non-negative number.

    Examples
    --------
    >>> parse("400 Gb/s", "bandwidth")
    50000000000.0
    """
    name = kind.replace("_", " ")
    if isinstance(text, bool) or not isinstance(text, str | int | float):
        raise ValueError(f"{text!r} is not a {name}; write it with its unit, such as {_EXAMPLES[kind]}")
    match = _QUANTITY.fullmatch(str(text))
    if match is None:
        raise ValueError(f"{text!r} is not a {name}; write a number and a unit, such as {_EXAMPLES[kind]}")
    number, unit = match.groups()
    if not unit:
        raise ValueError(f"{text!r} has no unit; write it with one, such as {_EXAMPLES[kind]}")
    factor = UNITS[kind].get(unit)
    if factor is None:
        raise ValueError(f"{unit!r} in {text!r} is not a unit of {name}; write it like {_EXAMPLES[kind]}")
    value = _exact_product(number, factor)
    if not math.isfinite(value) or value < 0:
        raise ValueError(f"{text!r} is not a finite, non-negative {name}")
    return value


def _exact_product(number: str, factor: float) -> float:
    """Multiply in decimal and round once, so that ``10 us`` is 1e-5 exactly."""
    try:
        return float(Decimal(number) * Decimal(repr(factor)))
    except ArithmeticError:
        return math.inf


def _four(value: float) -> str:
    """Four significant digits, never with an exponent."""
    return f"{float(f'{value:.4g}'):.15g}"


_TIME_STEPS = ((1.0, "s", 1.0), (1e-3, "ms", 1e3), (1e-6, "us", 1e6))


def format_time(seconds: float) -> str:
    """Write seconds for people: ``12.3 ms``.

    >>> format_time(0.0123)
    '12.3 ms'
    """
    unit, factor = next(
        ((unit, factor) for least, unit, factor in _TIME_STEPS if abs(seconds) >= least),
        ("ns", 1e9) if seconds else ("s", 1.0),
    )
    return f"{_four(seconds * factor)} {unit}"


def format_size(size_bytes: float) -> str:
    """Write bytes for people, in binary units: ``1.5 GiB``.

    >>> format_size(1.5 * 2**30)
    '1.5 GiB'
    """
    for exponent, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if abs(size_bytes) >= 2.0**exponent:
            return f"{_four(size_bytes / 2.0**exponent)} {unit}"
    return f"{_four(size_bytes)} B"


def format_bandwidth(bytes_per_second: float) -> str:
    """Write bytes/s for people, in GB/s.

    >>> format_bandwidth(12.5e9)
    '12.5 GB/s'
    """
    return f"{_four(bytes_per_second / 1e9)} GB/s"


def format_flop_rate(flop_per_second: float) -> str:
    """Write FLOP/s for people, in TFLOP/s.

    >>> format_flop_rate(312e12)
    '312 TFLOP/s'
    """
    return f"{_four(flop_per_second / 1e12)} TFLOP/s"


def gib(size_bytes: float) -> float:
    """Bytes as GiB, for tables.

    >>> gib(2.0**31)
    2.0
    """
    return size_bytes / 2.0**30


def gigabytes_per_second(bytes_per_second: float) -> float:
    """Bytes/s as GB/s, for tables.

    >>> gigabytes_per_second(3e9)
    3.0
    """
    return bytes_per_second / 1e9


def tflops(flop_per_second: float) -> float:
    """FLOP/s as TFLOP/s, for tables.

    >>> tflops(39e12)
    39.0
    """
    return flop_per_second / 1e12
