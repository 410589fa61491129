"""Every example in a docstring of the library runs and gives what it shows."""

from __future__ import annotations

import doctest
import pkgutil
from importlib import import_module

import pytest

import shardsim

MODULES = sorted(module.name for module in pkgutil.walk_packages(shardsim.__path__, "shardsim."))


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_give_what_they_show(name: str) -> None:
    failures, _ = doctest.testmod(import_module(name), optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert failures == 0


def test_equations_have_examples() -> None:
    found = [
        example for name in MODULES for example in doctest.DocTestFinder().find(import_module(name)) if example.examples
    ]
    assert len(found) >= 20
