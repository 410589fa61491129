"""How well collectives are predicted: held-out sizes, published logs, several nodes, and whole clusters left out.

``python -m benchmarks.collectives --rows measurements.csv [--tables DIR] [--part NAME]...``: parts are ``tables``
(measured database, trained on alternate sizes), ``shipped`` (shipped profiles on the measured database), ``logs``
(shipped profiles on log rows, and the same with alternate sizes held out) and ``clusters`` (one whole cluster left out
at a time). Errors are |predicted / measured - 1|.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from shardsim.calibrate.fabric import fit_fabric, newest_first, predict
from shardsim.calibrate.fabrics import select, table_cells
from shardsim.calibrate.logrows import read_log_rows
from shardsim.calibrate.measured import medians, read_measured
from shardsim.calibrate.points import Points
from shardsim.schema.hardware import load_cluster, load_fabric_profile
from shardsim.schema.recipes import FabricRecipe, load_recipes

KIB64, MIB, MIB64 = 2.0**16, 2.0**20, 2.0**26
PARTS = ["tables", "shipped", "logs", "clusters"]
NETWORKS = ("ndr", "hdr", "edr", "xdr"), ("efa",), ("slingshot",), ("roce", "tcpx", "tcpxo")


def line(label: str, error: np.ndarray, size: np.ndarray) -> str:
    if not len(error):
        return f"  {label:66} no rows"
    off = np.abs(error)
    return (
        f"  {label:66} n {len(off):5}  median {np.median(off):6.1%}  p90 {np.quantile(off, 0.9):6.1%}  "
        f"bias {np.median(error):+6.1%}  sizes 2^{np.log2(size.min()):.0f}..2^{np.log2(size.max()):.0f}"
    )


def odd(points: Points) -> np.ndarray:
    return np.rint(np.log2(points.size)) % 2 == 1


def tables(found: Points) -> None:
    print("Measured database, one node, trained on alternate sizes, tested on the others of 64 KiB and up")
    seen: set[str] = set()
    pooled: dict[tuple[str, str], list[np.ndarray]] = {}
    for recipe in load_recipes().recipes.values():
        if not recipe.tables or recipe.tables[0] in seen:
            continue
        seen.update(recipe.tables)
        cluster, base = load_cluster(recipe.cluster), load_fabric_profile(recipe.base)
        points = found.where(np.isin(found.device, recipe.tables))
        weights = newest_first(points)
        train = odd(points)
        fabric = fit_fabric("held", points.where(train), cluster, base, None, weights[train]).fabric
        for newest in (True, False):
            some = ~train & (points.size >= KIB64) & ((weights == 1.0) | (not newest))
            test = points.where(some)
            error = predict(test, cluster, fabric) / test.seconds - 1.0
            for dtype in ("half", "int8"):
                for kind in np.unique(test.kind):
                    mask = (test.kind == kind) & (test.dtype == dtype)
                    label = f"{recipe.tables[0]}, {dtype}, {kind}, {'newest NCCL' if newest else 'all versions'}"
                    if newest:
                        pooled.setdefault((dtype, str(kind)), []).append(error[mask])
                    if newest or len(np.unique(points.origin)) > 1:
                        print(line(label, error[mask], test.size[mask]), flush=True)
    for (dtype, kind), errors in pooled.items():
        joined = np.concatenate(errors)
        print(line(f"all devices, {dtype}, {kind}, newest NCCL", joined, np.array([KIB64, 2.0**28])))


def shipped(found: Points) -> None:
    print("Shipped profiles on the measured database, one node, newest NCCL, 64 KiB and up: fitted to these rows")
    for name, part, error in table_cells(found):
        print(line(name, error, part.size), flush=True)


def by_group(title: str, points: Points, error: np.ndarray, least: float) -> None:
    print(title)
    big = points.size >= least
    groups = np.array(
        [f"{d} x {g:g} a node, {t}" for d, g, t in zip(points.device, points.gpus_per_node, points.dtype, strict=True)]
    )
    for group in np.unique(groups[big]):
        some = big & (groups == group)
        print(line(f"{group}: {', '.join(np.unique(points.kind[some]))}", error[some], points.size[some]))
    for kind in np.unique(points.kind[big]):
        some = big & (points.kind == kind)
        print(line(f"all, {kind}", error[some], points.size[some]))
    print(line("all", error[big], points.size[big]))
    alps = big & (points.device != "alps-gh200")
    print(line("all but alps-gh200", error[alps], points.size[alps]), flush=True)


def logs(found: Points, rows: Points) -> None:
    shipped = np.concatenate([part for part, _ in shipped_errors(rows)])
    order = np.concatenate([index for _, index in shipped_errors(rows)])
    error = np.empty(len(rows))
    error[order] = shipped
    far = np.empty(len(rows), dtype=bool)
    for name in np.unique(rows.device):
        some = rows.device == name
        far[some] = rows.where(some).nodes > 1
    by_group("Shipped profiles on log rows, one node, 64 KiB and up", rows.where(~far), error[~far], KIB64)
    by_group("Shipped profiles on log rows, several nodes, 1 MiB and up", rows.where(far), error[far], MIB)
    held = np.full(len(rows), np.nan)
    for name, recipe in load_recipes().recipes.items():
        mine = np.array([load_cluster(device).fabric_profile == name for device in rows.device.tolist()])
        if not mine.any():
            continue
        cluster, base = load_cluster(recipe.cluster), load_fabric_profile(recipe.base)
        like = None if recipe.far_like is None else load_fabric_profile(recipe.far_like)
        points, weights = select(recipe, found, rows.where(odd(rows)))
        fabric = fit_fabric(
            name,
            points,
            cluster,
            base,
            like,
            weights,
            near_basis=recipe.near_basis,
        ).fabric
        for device in np.unique(rows.device[mine]):
            some = rows.device == device
            part = rows.where(some)
            held[some] = predict(part, load_cluster(str(device)), fabric) / part.seconds - 1.0
    test = ~odd(rows)
    near, across = test & ~far, test & far
    by_group("Alternate sizes held out, one node, 64 KiB and up", rows.where(near), held[near], KIB64)
    by_group("Alternate sizes held out, several nodes, 1 MiB and up", rows.where(across), held[across], MIB)


def shipped_errors(rows: Points) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for device in np.unique(rows.device):
        index = np.flatnonzero(rows.device == device)
        part = rows.where(index)
        cluster = load_cluster(str(device))
        fabric = load_fabric_profile(cluster.fabric_profile)
        yield predict(part, cluster, fabric) / part.seconds - 1.0, index


def clusters(found: Points, rows: Points) -> None:
    print("One whole cluster left out, its one-node rows too, its class of fabric known, several nodes, 64 MiB and up")
    labels = np.array([f"{d}: {place(o)}" for d, o in zip(rows.device, rows.origin, strict=True)])
    recipes = load_recipes().recipes
    pooled: list[np.ndarray] = []
    calm: list[np.ndarray] = []
    for label in np.unique(labels):
        test = rows.where((labels == label) & (rows.nodes > 1) & (rows.size >= MIB64))
        if not len(test):
            continue
        rest = rows.where(labels != label)
        cluster = load_cluster(str(test.device[0]))
        name = cluster.fabric_profile
        others = far_points(recipes[name], rest)
        like = relative(name, recipes, rest)
        fabric = refit(name, recipes, found, rest, like)
        error = predict(test, cluster, fabric) / test.seconds - 1.0
        pooled.append(error)
        if not label.startswith("alps"):
            calm.append(error)
        seen = f"{others} points of others" + ("" if like is None else f", like {like}")
        print(line(f"{label} ({seen})"[:110], error, test.size), flush=True)
    sizes = np.array([MIB64, rows.size.max()])
    print(line("all", np.concatenate(pooled), sizes))
    print(line("all but alps-gh200", np.concatenate(calm), sizes))
    print(line("median of the clusters' medians", np.array([np.median(np.abs(e)) for e in pooled]), sizes))


def refit(name: str, recipes: Mapping[str, FabricRecipe], found: Points, rest: Points, like: str | None):
    """Profile from the rows that are left; ``like`` in place of the recipe's own relative."""
    recipe = recipes[name]
    # Of a relative, what it learnt across domains counts only.
    nothing, across = found.where(np.zeros(len(found), dtype=bool)), rest.where(rest.nodes > 1)
    kin = None if like is None else refit(like, recipes, nothing, across, recipes[like].far_like)
    points, weights = select(recipe, found, rest)
    cluster, base = load_cluster(recipe.cluster), load_fabric_profile(recipe.base)
    return fit_fabric(name, points, cluster, base, kin, weights, near_basis=recipe.near_basis).fabric


def far_points(recipe: FabricRecipe, rows: Points) -> int:
    """Rows across domains that a recipe has to go by (-)."""
    return int((np.isin(rows.device, recipe.far) & (rows.nodes > 1)).sum())


def relative(name: str, recipes: Mapping[str, FabricRecipe], rest: Points) -> str | None:
    """Profile of the same class of fabric, measured itself, whose adapters are nearest in bandwidth."""

    def of(other: str) -> bool:
        return any(other.endswith(n) or f"-{n}-" in other for n in own)

    def far_off(other: str) -> float:
        mine, theirs = (load_cluster(recipes[each].cluster).nic_bandwidth_per_gpu for each in (name, other))
        return abs(float(np.log(theirs / mine)))

    own = next((group for group in NETWORKS if any(name.endswith(n) or f"-{n}-" in name for n in group)), ())
    others = [
        other
        for other, recipe in recipes.items()
        if other != name and of(other) and recipe.far_like is None and far_points(recipe, rest)
    ]
    return min(others, key=far_off) if others else None


def place(origin: str) -> str:
    if not origin.startswith("https://"):
        return origin
    parts = origin.split("/")
    more = re.findall(r"results_(?:polaris|sirius|sophia)|issues/\d+|example-cluster\d+", origin)
    return "/".join(["/".join(parts[3:5]), *more])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.collectives", description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=Path, required=True)
    parser.add_argument("--tables", type=Path)
    parser.add_argument("--part", action="append", choices=PARTS, default=[])
    given = parser.parse_args()
    parts = given.part or PARTS
    found = medians(read_measured(given.tables).points)
    rows = read_log_rows(given.rows)
    if "tables" in parts:
        tables(found)
    if "shipped" in parts:
        shipped(found)
    if "logs" in parts:
        logs(found, rows)
    if "clusters" in parts:
        clusters(found, rows)


if __name__ == "__main__":
    main()
