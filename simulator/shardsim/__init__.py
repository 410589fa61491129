"""shardsim predicts how a transformer trains on a GPU cluster.

The functions here are loaded when first used: ``import shardsim`` and ``shardsim --help`` load nothing heavy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shardsim.api import memory, scale, simulate, validate_runs
    from shardsim.errors import InputError

__all__ = ["InputError", "memory", "scale", "simulate", "validate_runs"]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("importlib.metadata").version("shardsim")
    if name in __all__:
        return getattr(import_module("shardsim.errors" if name == "InputError" else "shardsim.api"), name)
    raise AttributeError(f"module 'shardsim' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
