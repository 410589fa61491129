"""Names of data types: those of shardsim, and the other spellings that libraries and tests use."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from shardsim.errors import InputError, Problem
from shardsim.schema.catalog import near, shorten

SPELLINGS: Mapping[str, tuple[str, ...]] = {
    "bf16": ("bfloat16", "bfloat"),
    "fp16": ("half", "float16", "f16"),
    "fp32": ("float", "float32", "f32", "single", "tf32"),
    "fp64": ("double", "float64", "f64"),
    "fp8": ("float8", "f8"),
    "f8e4m3": ("fp8e4m3", "float8e4m3", "float8e4m3fn", "e4m3"),
    "f8e5m2": ("fp8e5m2", "float8e5m2", "e5m2"),
    "int8": ("i8", "char", "s8"),
    "uint8": ("u8", "byte"),
    "int32": ("i32", "int", "s32"),
    "uint32": ("u32",),
    "int64": ("i64", "long", "s64"),
    "uint64": ("u64",),
}
"""Other spellings of each data type that a collective can have, in lower case, without ``_``, ``-``, ``.``, ``_t``."""

_KNOWN = {spelling: name for name, others in SPELLINGS.items() for spelling in (name, *others)}
_PREFIXES = ("torch.", "nccl")


@lru_cache(maxsize=1024)
def data_type(name: str) -> str:
    """Find a data type by any of its spellings.

    Parameters
    ----------
    name : str
        Whatever the case, such as ``FP8``, ``torch.bfloat16``, ``int8_t``, ``ncclFloat``.

    Returns
    -------
    str
        A key of :data:`SPELLINGS`.

    Raises
    ------
    InputError
        No data type of a collective; near names are suggested.

    Examples
    --------
    >>> data_type("Half"), data_type("float8_e4m3fn"), data_type("int8_t")
    ('fp16', 'f8e4m3', 'int8')
    """
    text = name.strip().casefold().removesuffix("_t")
    for prefix in _PREFIXES:
        text = text.removeprefix(prefix)
    found = _KNOWN.get("".join(letter for letter in text if letter not in "_-. "))
    if found is None:
        right = near(name, _KNOWN) if len(name) < 40 else ""
        names = f"one of {', '.join(SPELLINGS)}"
        problem = Problem(f"{shorten(name)} is no data type", right=right if right.startswith("did") else names)
        raise InputError(problem)
    return found
