"""What each shipped fabric profile is fitted from: ``topologies/profiles/recipes.yaml``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field

from shardsim.schema.base import StrictModel, Text
from shardsim.schema.loader import check, load_yaml
from shardsim.schema.locate import data_roots

FILE = "topologies/profiles/recipes.yaml"


class FabricRecipe(StrictModel):
    """What one fabric profile is fitted from."""

    title: Text
    base: Text = Field(description="fabric profile with the library's own constants, where the search starts")
    cluster: Text = Field(description="catalog cluster with the datasheet bandwidths")
    tables: tuple[Text, ...] = Field(default=(), description="systems of the measured database")
    near: tuple[Text, ...] = Field(default=(), description="catalog clusters whose groups inside a domain count")
    near_ranks: tuple[int, ...] = Field(default=(), description="numbers of ranks that count; all if left out")
    near_basis: Literal["fitted", "assumed"] = Field(
        default="fitted", description="assumed where the measured machines differ from the one described"
    )
    near_note: Text | None = Field(
        default=None,
        description="machines and library of the measurements inside a domain, where their origin lacks it",
    )
    far: tuple[Text, ...] = Field(default=(), description="catalog clusters whose groups across domains count")
    far_like: Text | None = Field(
        default=None, description="profile whose constants across domains are taken over, by analogy, before any fit"
    )


class Recipes(StrictModel):
    """All recipes, in an order in which none needs a later one."""

    source: Text
    recipes: Mapping[str, FabricRecipe]


def load_recipes(data: Sequence[Path] = ()) -> Recipes:
    """Read the recipes; a user's own folders come first.

    Raises
    ------
    InputError
        Every problem of the file.
    """
    path = next(root / FILE for root in data_roots(data) if (root / FILE).is_file())
    return check(load_yaml(path), Recipes)
