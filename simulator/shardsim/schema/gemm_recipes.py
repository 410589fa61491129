"""What each shipped profile of matrix products is fitted from: ``topologies/profiles/gemm-recipes.yaml``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field

from shardsim.schema.base import Share, StrictModel, Text
from shardsim.schema.kernels import AlignmentProfile
from shardsim.schema.loader import check, load_yaml
from shardsim.schema.locate import data_roots

FILE = "topologies/profiles/gemm-recipes.yaml"


class GemmRecipe(StrictModel):
    """What the products of one device are fitted from."""

    title: Text
    device: Text = Field(description="catalog device whose datasheet the shares refer to")
    measured_on: tuple[Text, ...] = Field(min_length=1, description="devices that were measured")
    tables: tuple[Text, ...] = Field(
        default=(), description="16-bit tables as device/framework/version: their geometric mean; none for DeepBench"
    )
    narrow: Text | None = Field(default=None, description="table of the narrower data types: one stack")
    moe: Text | None = Field(default=None, description="table of expert layers")
    moe_kernels: tuple[Text, ...] = Field(
        default=("moe_torch_flow_cutlass", "deepgemm"), description="kernel sources that count in it"
    )
    tiles: Literal[4, 5] = Field(default=4, description="areas of tiles, 5 with 256x256")
    like: Text | None = Field(default=None, description="earlier profile whose constants the search starts from")
    sustained: Share | None = Field(default=None, description="assumed, where no kernel was long enough to measure it")
    alignment: Text = Field(description="an entry of `alignments`")


class GemmRecipes(StrictModel):
    """All recipes, in an order in which none needs a later one."""

    tables: Text = Field(description="citation of the measured tables")
    deepbench: Text = Field(description="citation of the rows of profiles without tables")
    sources: Mapping[str, Text] = Field(description="citations of the alignments")
    alignments: Mapping[str, Mapping[Literal["64", "16", "1"], AlignmentProfile]]
    recipes: Mapping[str, GemmRecipe]


def load_gemm_recipes(data: Sequence[Path] = ()) -> GemmRecipes:
    """Read the recipes; a user's own folders come first.

    Raises
    ------
    InputError
        Every problem of the file.
    """
    path = next(root / FILE for root in data_roots(data) if (root / FILE).is_file())
    return check(load_yaml(path), GemmRecipes)
