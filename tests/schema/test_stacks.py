"""Stack profiles: how a stack runs what was measured alone, with its sources."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardsim.calibrate.stacks import LEAST_ROWS, MOST_CONSTANTS, known_constants
from shardsim.errors import InputError
from shardsim.program.resolve import resolve
from shardsim.schema.catalog import names
from shardsim.schema.framework import load_framework
from shardsim.schema.run import nested, request_from_mapping
from shardsim.schema.stack_recipes import load_stack_recipes
from shardsim.schema.stacks import load_stack_profile
from shardsim.values.stack import STACK_CONSTANTS

PROFILES = Path(__file__).parents[2] / "topologies" / "profiles"
RECIPES = load_stack_recipes(PROFILES / "stack-recipes.yaml")


@pytest.mark.parametrize("name", names("stack-profile"))
def test_every_constant_says_where_it_comes_from(name: str) -> None:
    stack = load_stack_profile(name)
    assert set(STACK_CONSTANTS) <= set(stack.provenance)
    assert all(origin.source for origin in stack.provenance.values())


@pytest.mark.parametrize("name", names("framework"))
def test_every_framework_names_a_stack_profile_that_exists(name: str) -> None:
    assert load_stack_profile(load_framework(name).stack_profile).name in names("stack-profile")


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_a_recipe_has_few_constants_and_is_of_frameworks_that_take_its_profile(name: str) -> None:
    recipe = RECIPES[name]
    assert len(recipe.constants) <= MOST_CONSTANTS
    assert {constant.partition("@")[0] for constant in recipe.constants} <= set(known_constants())
    assert {load_framework(framework).stack_profile for framework in recipe.frameworks} == {name}
    fitted = [origin for origin in load_stack_profile(name).provenance.values() if origin.basis == "fitted"]
    assert all((origin.points or 0) >= LEAST_ROWS for origin in fitted)


def test_every_fitted_profile_has_its_recipe() -> None:
    assert set(names("stack-profile")) - {"none"} == set(RECIPES)


def _run(**changes: object):
    keys = {"model": "llama-2-7b", "cluster": "dgx-h100", "gpus": 8, "micro_batch": 1, "global_batch": 8, "seq": 4096}
    return resolve(request_from_mapping(nested(keys | changes)))


def test_what_a_stack_has_for_one_generation_or_kind_takes_precedence(tmp_path: Path) -> None:
    text = """
based_on: none
title: mine
stack: mine
products: {value: 1.5, basis: assumed, source: a guess of ours}
forward: {value: 7 us, basis: assumed, source: a guess of ours}
on:
  h100-sxm:
    products: {value: 2.0, basis: assumed, source: a guess of ours}
  experts:
    products: {value: 3.0, basis: assumed, source: a guess of ours}
"""
    path = tmp_path / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    assert load_stack_profile(str(path)).products == 1.5
    assert load_stack_profile(str(path), marks=("h100-sxm", "dense")).products == 2.0
    assert load_stack_profile(str(path), marks=("h100-sxm", "experts")).products == 3.0
    # What a user sets holds everywhere.
    assert load_stack_profile(str(path), marks=("h100-sxm",), changes={"stack.products": 1.1}).products == 1.1
    run = _run(framework="megatron-core", set={"stack": str(path)})
    assert run.profile.stack.products == 2.0
    assert run.profile.host.forward == pytest.approx(7e-6)
    assert _run(framework="megatron-core", set={"stack": str(path), "host": "none"}).profile.host.forward == 0.0


def test_a_factor_out_of_bounds_and_an_unknown_key_are_refused_together(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "based_on: none\ntitle: t\nstack: s\nproduct: 3\n"
        "kernels: {value: 40, basis: assumed, source: a guess of ours}\n",
        encoding="utf-8",
    )
    with pytest.raises(InputError) as caught:
        load_stack_profile(str(path))
    assert "kernels" in str(caught.value)
    assert "product" in str(caught.value)
