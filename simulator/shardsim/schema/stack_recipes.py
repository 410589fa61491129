"""``topologies/profiles/stack-recipes.yaml``: which constants of which stacks are fitted, and to what."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pydantic import Field

from shardsim.schema.base import StrictModel, Text
from shardsim.schema.loader import check, load_yaml


class StackRecipe(StrictModel):
    """One stack profile: rows of which frameworks it is fitted to, and which of its constants."""

    title: Text = Field(description="a few words for people")
    stack: Text = Field(description="software and machines that were measured")
    frameworks: tuple[Text, ...] = Field(min_length=1, description="framework profiles whose rows are used")
    constants: tuple[Text, ...] = Field(
        min_length=1, description="constants to fit; products@h100-sxm for those of one generation of devices"
    )
    source: Text = Field(description="where the rows come from")
    unless: tuple[Text, ...] = Field(default=(), description="conditions of rows that are left out, such as sick")


class StackRecipes(StrictModel):
    """Every stack that is fitted."""

    stacks: Mapping[str, StackRecipe]


def load_stack_recipes(path: Path) -> Mapping[str, StackRecipe]:
    """Read the recipes.

    Parameters
    ----------
    path : Path

    Returns
    -------
    mapping of str to StackRecipe
        By the name of the profile.

    Raises
    ------
    InputError
        A file that cannot be read, or every problem of it.
    """
    return check(load_yaml(path), StackRecipes).stacks
