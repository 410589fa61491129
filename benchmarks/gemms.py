"""How well matrix products are predicted, and how fast.

``python -m benchmarks.gemms [--tables DIR] [--part NAME]...``: parts are ``heldout`` (whole (n, k) pairs held out, with
and without the residual grid, and the mean of two tables against each), ``layers`` (the four products of a layer, the
pairs held out), ``halves`` (constants fitted to two disjoint halves of the pairs) and ``speed`` (a million products on
one core, and one at a time). Errors are |predicted / measured - 1|, of bursts.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np

from shardsim.calibrate.gemm import GemmTable, MoeTable
from shardsim.calibrate.gemms import NARROW, fit_constants, folds, held_out, large, predict
from shardsim.calibrate.grouped import MIN_ROWS, fit_grouped
from shardsim.calibrate.measured_gemm import gemm_tables, mean_of, moe_table
from shardsim.cost.gemm import PEAK_OF, gemm_seconds
from shardsim.schema.gemm_recipes import GemmRecipe, load_gemm_recipes
from shardsim.schema.hardware import load_device
from shardsim.schema.kernels import load_kernel_profile
from shardsim.values.operators import Gemm

TARGETS = ("a100-sxm", "h100-sxm", "b200-sxm", "gb300")
HIDDEN = (1024, 2048, 4096, 8192, 16384)
DEGREES = (1, 2, 4, 8)
TOKENS = (1024, 2048, 4096, 8192, 16384, 32768)
MILLION = 1_000_000


def line(label: str, error: np.ndarray) -> str:
    off = np.abs(error)
    if not len(off):
        return f"  {label:58} no rows"
    return (
        f"  {label:58} n {len(off):6}  median {np.median(off):6.2%}  p90 {np.quantile(off, 0.9):6.2%}  "
        f"bias {np.median(error):+6.2%}"
    )


def small(table: GemmTable) -> np.ndarray:
    return (table.m <= 256) & (table.n >= 1024) & (table.k >= 1024)


def recipes(only: list[str]) -> list[tuple[str, GemmRecipe]]:
    return [
        (name, recipe)
        for name, recipe in load_gemm_recipes().recipes.items()
        if recipe.tables and (not only or name in only)
    ]


def heldout(tables: Path | None, only: list[str]) -> None:
    print("Whole (n, k) pairs held out in two folds; both fits see only the other fold")
    for name, recipe in recipes(only):
        device = load_device(recipe.device)
        parts = [gemm_tables(one, tables)["bf16"] for one in recipe.tables]
        table = mean_of(parts)
        for grid in (False, True):
            predicted, fits = held_out(table, device, "bf16", recipe.tiles, grid=grid)
            kind = "tiles and grid" if grid else "tiles alone"
            error = predicted / table.seconds - 1.0
            print(line(f"{name}, bf16, m, n, k >= 1024, {kind}", error[large(table)]))
            print(line(f"{name}, bf16, m <= 256, {kind}", error[small(table)]))
        for part, source in zip(parts, recipe.tables, strict=True):
            fold = folds(part)
            near = np.zeros(len(part))
            for one in (0, 1):
                near[fold == one] = predict(part.where(fold == one), fits[one], device, "bf16")
            print(line(f"{name}, bf16, large, against {source} alone", (near / part.seconds - 1.0)[large(part)]))
        overhead = load_kernel_profile(name).gemm["bf16"].overhead
        narrow = {} if recipe.narrow is None else gemm_tables(recipe.narrow, tables)
        for dtype in NARROW:
            if dtype in narrow and PEAK_OF.get(dtype, dtype) in device.peak_flops:
                own = narrow[dtype]
                predicted, _ = held_out(own, device, dtype, recipe.tiles, overhead)
                error = predicted / own.seconds - 1.0
                print(line(f"{name}, {dtype}, m, n, k >= 1024, tiles and grid", error[large(own)]))
                print(line(f"{name}, {dtype}, m <= 256, tiles and grid", error[small(own)]))
        experts(recipe, fits[0].constants, device, tables, name)


def experts(recipe: GemmRecipe, constants: dict[str, float], device, tables: Path | None, name: str) -> None:
    """Grouped products: two halves of the layers, each predicted from the other."""
    if recipe.moe is None:
        return
    whole = moe_table(recipe.moe, recipe.moe_kernel, tables)
    whole = whole.where(whole.rows >= MIN_ROWS)
    _, layer = np.unique(np.stack([whole.hidden, whole.inter, whole.experts]), axis=1, return_inverse=True)
    half = np.random.default_rng(0).permutation(int(layer.max()) + 1)[layer] % 2
    errors = []
    for one in (0, 1):
        fit = fit_grouped(whole.where(half != one), constants, device)
        test: MoeTable = whole.where(half == one)
        errors.append(fit.predict(test, constants, device) / test.seconds - 1.0)
    print(line(f"{name}, expert layers of >= {MIN_ROWS} rows, half held out", np.concatenate(errors)), flush=True)


def layers(tables: Path | None, only: list[str]) -> None:
    print("Sum of a layer's four products (h, tp, tokens), where the tables have all four; their pairs held out")
    for name, recipe in recipes(only or list(TARGETS)):
        device = load_device(recipe.device)
        table = mean_of([gemm_tables(one, tables)["bf16"] for one in recipe.tables])
        for grid in (False, True):
            predicted, _ = held_out(table, device, "bf16", recipe.tiles, grid=grid)
            shapes = dict(
                zip(
                    zip(table.m, table.n, table.k, strict=True), zip(predicted, table.seconds, strict=True), strict=True
                )
            )
            sums = []
            for hidden in HIDDEN:
                for tp in DEGREES:
                    for tokens in TOKENS:
                        wanted = layer_shapes(hidden, tp, tokens)
                        if all(shape in shapes for shape in wanted):
                            sums.append(np.sum([shapes[shape] for shape in wanted], axis=0))
            both = np.array(sums)
            kind = "tiles and grid" if grid else "tiles alone"
            print(line(f"{name}, {kind}, {len(sums)} layers", both[:, 0] / both[:, 1] - 1.0), flush=True)


def layer_shapes(hidden: int, tp: int, tokens: int) -> list[tuple[float, float, float]]:
    """(m, n, k) of query projection, output projection and MLP; 3h is in no table, so h stands in for it."""
    h, own = float(hidden), hidden / tp
    return [(float(tokens), n, k) for n, k in ((own, h), (h, own), (4 * own, h), (h, 4 * own))]


def halves(tables: Path | None, only: list[str]) -> None:
    print("Constants fitted to two disjoint halves of the (n, k) pairs, and how far their predictions lie apart")
    for name, recipe in recipes(only or list(TARGETS)):
        device = load_device(recipe.device)
        table = mean_of([gemm_tables(one, tables)["bf16"] for one in recipe.tables])
        fold = folds(table)
        fits = [fit_constants(table.where(fold == one), device, "bf16", recipe.tiles) for one in (0, 1)]
        print(f"  {name}")
        for key, value in fits[0].constants.items():
            other = fits[1].constants[key]
            bound = " (bound)" if any(key in fit.at_bounds for fit in fits) else ""
            print(f"    {key:24} {value:10.4g} {other:10.4g}  {other / value - 1:+7.1%}{bound}")
        _, (first, second) = held_out(table, device, "bf16", recipe.tiles)
        apart = predict(table, first, device, "bf16") / predict(table, second, device, "bf16") - 1.0
        print(line("predictions of the two halves, m, n, k >= 1024", apart[large(table)]), flush=True)


def speed(_: Path | None, __: list[str]) -> None:
    print("Pricing, CPU seconds of one core")
    device, kernels = load_device("h100-sxm-80gb"), load_kernel_profile("h100-sxm")
    rng = np.random.default_rng(0)
    m, n, k = (np.round(2.0 ** rng.uniform(4, 15, MILLION)) * 8.0 for _ in range(3))
    start = time.process_time()
    seconds = np.asarray(gemm_seconds(Gemm("any", m, k, n), device, kernels, "bf16"))
    spent = time.process_time() - start
    print(f"  a million distinct products as one array: {spent:.2f} s")
    shapes = list(zip(m[:2000].tolist(), k[:2000].tolist(), n[:2000].tolist(), strict=True))
    start = time.process_time()
    single = [gemm_seconds(Gemm("any", *shape), device, kernels, "bf16") for shape in shapes]
    first = (time.process_time() - start) / len(shapes)
    start = time.process_time()
    for shape in shapes:
        gemm_seconds(Gemm("any", *shape), device, kernels, "bf16")
    again = (time.process_time() - start) / len(shapes)
    print(f"  one at a time: {first * 1e6:.0f} us, the same again: {again * 1e6:.0f} us")
    print(f"  identical: {np.array_equal(np.array(single), seconds[:2000])}")


PARTS = {"heldout": heldout, "layers": layers, "halves": halves, "speed": speed}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gemms", description=__doc__.split("\n")[0])
    parser.add_argument("--tables", type=Path)
    parser.add_argument("--part", action="append", choices=PARTS, default=[])
    parser.add_argument("--only", action="append", default=[], metavar="PROFILE")
    given = parser.parse_args()
    for part in given.part or PARTS:
        PARTS[part](given.tables, given.only)


if __name__ == "__main__":
    main()
