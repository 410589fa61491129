"""Fit all shipped profiles of matrix products: ``python -m shardsim.calibrate.gemms [--tables DIR] [--rows FILE.csv]``.

Reads the recipes, the measured tables (optional extra ``shardsim[measured]``) and DeepBench's V100 rows where given,
fits every profile in turn, writes ``NAME.yaml`` to ``--out``, and prints how well each data type is fitted. The same
input gives the same files.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from shardsim.calibrate.fit import Array, Fit
from shardsim.calibrate.gemm import (
    KEPT_OF_A_SMALL_TABLE,
    TILE_NAMES,
    GemmTable,
    fit_tiles,
    predicted_seconds,
    with_residual,
)
from shardsim.calibrate.gemmfile import ProductFit, gemm_yaml
from shardsim.calibrate.grouped import fit_grouped
from shardsim.calibrate.measured_gemm import gemm_tables, mean_of, moe_table
from shardsim.cost.gemm import PEAK_OF
from shardsim.schema.gemm_recipes import GemmRecipe, GemmRecipes, load_gemm_recipes
from shardsim.schema.hardware import load_device
from shardsim.schema.kernels import load_kernel_profile
from shardsim.schema.sourced import Constant
from shardsim.values.hardware import Device
from shardsim.values.kernels import GemmConstants, GemmResidual
from shardsim.values.provenance import Provenance

HEADER = (
    "Written by python -m shardsim.calibrate.gemms from the recipe of this name: change the recipe, not this file.",
    "error: median over m, n, k >= 1024 (V100: >= 128) with whole (n, k) pairs held out, residual grid included.",
    "sustained: median share of the dense peak that products above 10 TFLOP hold.",
)
LONG = 1e13
"""FLOP of a product that is long enough to show a sustained clock (-)."""
LARGE = 1024
"""Least m, n and k of training's products (-)."""
FIT_M, FIT_NK = 128, 512
"""Least shape that the tile's constants are fitted to (-); the residual grid takes all that it has knots for."""
GRID_NK = 256
FIT_POINTS = 8000
"""Most points that the tile's constants are fitted to (-): evenly spaced ones beyond."""
NARROW = ("fp8", "fp8_block", "fp4")


@dataclass(frozen=True, slots=True)
class TableFit:
    """A table's fit: constants and residual grid.

    Parameters
    ----------
    constants : mapping of str to float
        Named as :func:`shardsim.calibrate.gemm.fit_tiles` does.
    residual : GemmResidual or None
    at_bounds : tuple of str
        Constants that ended on a bound.
    """

    constants: Mapping[str, float]
    residual: GemmResidual | None
    at_bounds: tuple[str, ...]


def fit_table(
    table: GemmTable, device: Device, dtype: str, tiles: int, overhead: float | None = None, *, grid: bool = True
) -> TableFit:
    """Fit the constants of a table and its residual grid.

    Parameters
    ----------
    table : GemmTable
    device : Device
    dtype : str
    tiles : {4, 5}
    overhead : float or None
        Launch of the 16-bit products, where the times hold the quantisation of activations [s].
    grid : bool
        Whether to fit the residual grid.

    Returns
    -------
    TableFit
    """
    fit = fit_constants(table, device, dtype, tiles, overhead)
    near = table.where((table.n >= GRID_NK) & (table.k >= GRID_NK))
    residual = with_residual(near, fit.constants, device, dtype) if grid else None
    return TableFit(fit.constants, residual, fit.at_bounds)


def fit_constants(table: GemmTable, device: Device, dtype: str, tiles: int, overhead: float | None = None) -> Fit:
    """Fit the constants of the tiles alone."""
    some = np.flatnonzero((table.m >= FIT_M) & (table.n >= FIT_NK) & (table.k >= FIT_NK))
    some = some[:: -(-len(some) // FIT_POINTS)]
    m, n, k, seconds = (getattr(table, name)[some] for name in ("m", "n", "k", "seconds"))
    return fit_tiles(m, n, k, seconds, device, dtype, tiles=tiles, overhead=overhead)


def predict(table: GemmTable, fit: TableFit, device: Device, dtype: str) -> Array:
    """Predict the times of a table [s]."""
    return predicted_seconds(table.m, table.n, table.k, fit.constants, device, dtype, fit.residual)


def folds(table: GemmTable, count: int = 2, seed: int = 0) -> NDArray[np.int64]:
    """Deal whole (n, k) pairs into folds (-), shape (points,)."""
    _, pair = np.unique(np.stack([table.n, table.k]), axis=1, return_inverse=True)
    dealt = np.random.default_rng(seed).permutation(int(pair.max()) + 1) % count
    found: NDArray[np.int64] = dealt[pair]
    return found


def large(table: GemmTable) -> NDArray[np.bool_]:
    """Training's products: m, n and k all large."""
    found: NDArray[np.bool_] = (table.m >= LARGE) & (table.n >= LARGE) & (table.k >= LARGE)
    return found


def held_out(
    table: GemmTable, device: Device, dtype: str, tiles: int, overhead: float | None = None, *, grid: bool = True
) -> tuple[Array, tuple[TableFit, ...]]:
    """Predict each half of the (n, k) pairs from the other: times [s] and both fits."""
    fold = folds(table)
    predicted = np.empty(len(table))
    fits = []
    for one in (0, 1):
        fits.append(fit_table(table.where(fold != one), device, dtype, tiles, overhead, grid=grid))
        predicted[fold == one] = predict(table.where(fold == one), fits[-1], device, dtype)
    return predicted, tuple(fits)


def sustained_share(
    tables: Sequence[GemmTable], constants: Mapping[str, float], device: Device, peak: float
) -> tuple[float, int]:
    """Share of peak that products above 10 TFLOP hold, without quantisation (-), and how many they are.

    The median of each table, and the mean of the tables.
    """
    shares, count = [], 0
    for table in tables:
        some = table.where((table.flop >= LONG) & large(table))
        quantize = constants.get("quantization_traffic", 0.0) * some.m * some.k / device.memory_bandwidth
        seconds = some.seconds - quantize - constants.get("quantization_overhead", 0.0)
        shares.append(float(np.median(some.flop / seconds / peak)))
        count += len(some)
    return float(np.mean(shares)), count


def starts_of(constants: GemmConstants) -> dict[str, float]:
    """Constants of a profile, named as the fit names them."""
    tile = constants.tile
    if tile is None:
        return {}
    scalars = {name: getattr(tile, name) for name in type(tile).__dataclass_fields__ if name != "efficiency"}
    efficiency = dict(zip(TILE_NAMES, tile.efficiency, strict=False))
    whole = {"gemm_overhead": constants.overhead, "gemm_memory_efficiency": constants.memory_efficiency}
    return {**whole, **scalars, **efficiency}


def deepbench(path: Path) -> tuple[GemmTable, NDArray[np.str_]]:
    """Read the V100 half-precision rows of DeepBench's results, and the layout of each (BLAS's words).

    Only shapes of 128 and more: 88 of 160.
    """
    with path.open(newline="", encoding="utf-8") as stream:
        rows = [row for row in csv.DictReader(stream) if row["gpu"] == "V100" and "FP16" in row["sheet"]]
    rows = [row for row in rows if min(float(row[side]) for side in ("m", "n", "k")) >= FIT_M]
    m, n, k, ms = (np.array([float(row[name]) for row in rows]) for name in ("m", "n", "k", "ms"))
    layouts = np.array([(row["transA"] + row["transB"]).lower() for row in rows])
    return GemmTable(m, n, k, ms * 1e-3), layouts


def fit_deepbench(path: Path, device: Device, like: GemmConstants) -> Fit:
    """Fit the V100's constants, starting from a kindred device's."""
    table, layouts = deepbench(path)
    starts = starts_of(like)
    return fit_tiles(table.m, table.n, table.k, table.seconds, device, "fp16", layouts=layouts, starts=starts)


def deepbench_error(path: Path, device: Device, like: GemmConstants, parts: int = 5) -> tuple[float, float]:
    """Median and 90th percentile of the V100's errors, a part of the rows held out at a time (-)."""
    table, layouts = deepbench(path)
    part = np.arange(len(table)) % parts
    errors = []
    for one in range(parts):
        train, test = table.where(part != one), table.where(part == one)
        fit = fit_tiles(
            train.m, train.n, train.k, train.seconds, device, "fp16", layouts=layouts[part != one],
            starts=starts_of(like),
        )  # fmt: skip
        predicted = predicted_seconds(
            test.m, test.n, test.k, fit.constants, device, "fp16", layouts=layouts[part == one]
        )
        errors.append(np.abs(predicted / test.seconds - 1.0))
    joined = np.concatenate(errors)
    return float(np.median(joined)), float(np.quantile(joined, 0.9))


def fit_recipe(
    name: str, recipes: GemmRecipes, tables: Path | None, rows: Path | None
) -> Iterator[tuple[str, ProductFit, str]]:
    """Fit the data types of one recipe.

    Yields
    ------
    str
        Data type.
    ProductFit
    str
        How well it fits, for people.
    """
    recipe = recipes.recipes[name]
    device = load_device(recipe.device)
    if not recipe.tables:
        if rows is not None and recipe.like is not None and recipe.sustained is not None:
            like = load_kernel_profile(recipe.like).gemm["fp16"]
            fit = fit_deepbench(rows, device, like)
            median, p90 = deepbench_error(rows, device, like)
            note = Provenance("fitted", "deepbench", median, fit.points)
            text = f"{fit.points} points: held out {median:.1%} / {p90:.1%}; at bounds: {', '.join(fit.at_bounds)}"
            shared = dict.fromkeys(KEPT_OF_A_SMALL_TABLE, Provenance("assumed", "kindred"))
            sustained = Provenance("assumed", "deepbench")
            yield "fp16", ProductFit(fit.constants, note, recipe.sustained, sustained, kept=shared), text
        return
    overhead = None
    for dtype, parts, source in _wanted(recipe, tables):
        table = mean_of(parts)
        predicted, _ = held_out(table, device, dtype, recipe.tiles, overhead)
        own = fit_table(table, device, dtype, recipe.tiles, overhead)
        error = np.abs(predicted / table.seconds - 1.0)
        median, p90 = np.median(error[large(table)]), np.quantile(error[large(table)], 0.9)
        peak = device.peak_flops[PEAK_OF.get(dtype, dtype)]
        share, count = sustained_share(parts, own.constants, device, peak)
        note = Provenance("fitted", source, float(median), len(table))
        grouped = None
        if dtype == "bf16":
            overhead = own.constants["gemm_overhead"]
        layers = None if recipe.moe is None else moe_table(recipe.moe, recipe.moe_kernels, tables, dtype)
        if layers is not None and len(layers):
            found = fit_grouped(layers, own.constants, device, dtype)
            grouped = (found.constants, Provenance("fitted", "moe", found.median_error, found.points))
        fit_ = ProductFit(
            own.constants, note, share, Provenance("measured", source, None, count), own.residual, grouped
        )
        text = f"{len(table)} points: held out {median:.1%} / {p90:.1%}, sustained {share:.1%} of {count} products"
        if grouped is not None:
            text += f"; grouped {found.median_error:.1%} / {found.p90_error:.1%} of {found.points}"
        yield dtype, fit_, f"{text}; at bounds: {', '.join(own.at_bounds) or 'none'}"


def _wanted(recipe: GemmRecipe, folder: Path | None) -> Iterator[tuple[str, list[GemmTable], str]]:
    """Data types, their tables, and the name of the source."""
    yield "bf16", [gemm_tables(name, folder)["bf16"] for name in recipe.tables], "aic"
    if recipe.narrow is not None:
        narrow, peaks = gemm_tables(recipe.narrow, folder), load_device(recipe.device).peak_flops
        for dtype in NARROW:
            if dtype in narrow and PEAK_OF.get(dtype, dtype) in peaks:
                yield dtype, [narrow[dtype]], "narrow"


def profile_yaml(recipe: GemmRecipe, recipes: GemmRecipes, products: Mapping[str, ProductFit]) -> str:
    """Write the profile of a recipe."""
    sources = {
        "aic": f"{recipes.tables}: GEMM of {' and '.join(recipe.tables)}, geometric mean",
        "narrow": f"{recipes.tables}: GEMM of {recipe.narrow}",
        "moe": f"{recipes.tables}: MoE of {recipe.moe}",
        "deepbench": recipes.deepbench,
        "kindred": f"as fitted for {recipe.like}: too few products were measured here to tell them apart",
        **recipes.sources,
    }
    shares = sorted(recipes.alignments[recipe.alignment].items(), key=lambda item: -int(item[0]))
    alignment = {str(least): (_cited(one.usual), _cited(one.worst)) for least, one in shares}
    every: dict[str, ProductFit | str] = dict(products)
    if "bf16" in products:
        every["fp16"] = "bf16"
    return gemm_yaml(recipe.title, recipe.measured_on, sources, alignment, every, HEADER)


def _cited(constant: Constant[float]) -> tuple[float, Provenance]:
    return constant.value, Provenance(constant.basis, constant.source, constant.error, constant.points)


def main(arguments: Sequence[str] | None = None) -> None:
    """Fit, write and report."""
    parser = argparse.ArgumentParser(prog="python -m shardsim.calibrate.gemms", description=__doc__.split("\n")[0])
    parser.add_argument("--tables", type=Path, help="folder of the measured tables; by default the installed package")
    parser.add_argument("--rows", type=Path, help="CSV of DeepBench's results, for the profiles that take them")
    parser.add_argument("--out", type=Path, help="folder to write profiles to; nothing is written without it")
    parser.add_argument("--only", action="append", default=[], metavar="PROFILE")
    given = parser.parse_args(arguments)
    recipes = load_gemm_recipes()
    for name, recipe in recipes.recipes.items():
        if given.only and name not in given.only:
            continue
        sys.stdout.write(f"{name}\n")
        products = {}
        for dtype, fit, text in fit_recipe(name, recipes, given.tables, given.rows):
            products[dtype] = fit
            sys.stdout.write(f"  {dtype:9} {text}\n")
            sys.stdout.flush()
        if given.out is not None and products:
            (given.out / f"{name}.yaml").write_text(profile_yaml(recipe, recipes, products), encoding="utf-8")


if __name__ == "__main__":
    main()
