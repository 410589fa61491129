"""Fit all shipped fabric profiles: ``python -m shardsim.calibrate.fabrics --rows FILE.csv [--tables DIR] [--out DIR]``.

Reads the recipes, the measured tables (optional extra ``shardsim[measured]``) and a table of published log rows, fits
every profile in turn, writes ``topologies/profiles/fabrics/NAME.yaml``, and prints how well each collective is fitted.
The same input gives the same files.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from shardsim.calibrate.fabric import (
    REPORTED_FROM,
    FabricFit,
    Sources,
    all_points,
    crosses,
    fit_fabric,
    newest_first,
    predict,
)
from shardsim.calibrate.fabricfile import fabric_yaml
from shardsim.calibrate.logrows import read_log_rows
from shardsim.calibrate.measured import medians, read_measured
from shardsim.calibrate.points import Array, Points
from shardsim.schema.hardware import load_cluster, load_fabric_profile
from shardsim.schema.recipes import FabricRecipe, load_recipes
from shardsim.values.hardware import FabricConstants

HEADER = (
    "Written by python -m shardsim.calibrate.fabrics from the recipe of this name: change the recipe, not this file.",
    "`collectives`: what each way achieves. NCCL's own constants (`tuning`, inherited) decide which one is taken.",
)


def select(recipe: FabricRecipe, tables: Points, logs: Points) -> tuple[Points, Array]:
    """Points of a recipe and their weights.

    Where tables have a collective for groups as large or larger, logs do not count inside a domain: theirs are other
    machines and other versions of the library.

    Parameters
    ----------
    recipe : FabricRecipe
    tables : Points
        Of the measured database; ``device`` is its folder.
    logs : Points
        ``device`` is the catalog cluster.

    Returns
    -------
    Points
    ndarray of float
        (-), shape (points,).
    """
    cluster = load_cluster(recipe.cluster)
    measured = tables.where(np.isin(tables.device, recipe.tables))
    inside = ~crosses(logs, cluster)
    near = np.isin(logs.device, recipe.near) & inside
    if recipe.near_ranks:
        near &= np.isin(logs.ranks, recipe.near_ranks)
    for kind in np.unique(measured.kind):
        near &= (logs.kind != kind) | (logs.ranks > measured.ranks[measured.kind == kind].max())
    far = np.isin(logs.device, recipe.far) & ~inside
    parts = [measured, logs.where(near), logs.where(far)]
    weights = [newest_first(measured) if len(measured) else np.zeros(0), *(np.ones(len(part)) for part in parts[1:])]
    return all_points(parts), np.concatenate(weights)


def fit_recipes(
    tables: Points, logs: Points, only: Sequence[str] = (), held_out: str = ""
) -> Iterator[tuple[str, FabricFit]]:
    """Fit the recipes in their order.

    Parameters
    ----------
    tables, logs : Points
        Measured database, and rows of published logs.
    only : sequence of str
        Profiles to fit; all if empty. Those that they take constants over from are read from the catalog.
    held_out : str
        Part of the origin of log rows that are not to be used.

    Yields
    ------
    str
        Name of the profile.
    FabricFit
    """
    fitted: dict[str, FabricConstants] = {}
    if held_out:
        logs = logs.where(np.char.find(logs.origin, held_out) < 0)
    for name, recipe in load_recipes().recipes.items():
        if only and name not in only:
            continue
        points, weights = select(recipe, tables, logs)
        like = None
        if recipe.far_like is not None:
            like = fitted.get(recipe.far_like) or load_fabric_profile(recipe.far_like)
        base = load_fabric_profile(recipe.base)
        found = fit_fabric(
            name,
            points,
            load_cluster(recipe.cluster),
            base,
            like,
            weights,
            Sources(),
            near_basis=recipe.near_basis,
        )
        fitted[name] = found.fabric
        yield name, found


def table_cells(tables: Points) -> Iterator[tuple[str, Points, Array]]:
    """Compare shipped profiles with the measured database, newest library, where bandwidth matters.

    Parameters
    ----------
    tables : Points
        Of the measured database; ``device`` is its folder.

    Yields
    ------
    str
        GPU, ranks, data type and collective.
    Points
    ndarray of float
        Predicted over measured time, less one (-), shape (points,).
    """
    seen: set[str] = set()
    for name, recipe in load_recipes().recipes.items():
        if not recipe.tables or recipe.tables[0] in seen:
            continue
        seen.update(recipe.tables)
        chosen = tables.where(np.isin(tables.device, recipe.tables) & (tables.size >= REPORTED_FROM["near"]))
        chosen = chosen.where(newest_first(chosen) == 1.0)
        error = predict(chosen, load_cluster(recipe.cluster), load_fabric_profile(name)) / chosen.seconds - 1.0
        columns = (chosen.ranks.tolist(), chosen.dtype.tolist(), chosen.kind.tolist())
        cells = np.array([f"{name} x {ranks:g}, {dtype}, {kind}" for ranks, dtype, kind in zip(*columns, strict=True)])
        for cell in np.unique(cells).tolist():
            yield cell, chosen.where(cells == cell), error[cells == cell]


def citations(recipe: FabricRecipe, tables: Points, logs: Points) -> dict[str, str]:
    """Where the points of a recipe come from, by the names that :class:`Sources` gives."""
    points, _ = select(recipe, tables, logs)
    across = crosses(points, load_cluster(recipe.cluster))
    near = _origins(points.where(~across))
    base = load_fabric_profile(recipe.base)
    library = next(iter(base.ways.values()))[0].near.source
    found = {
        "near": f"{near}: {recipe.near_note}" if recipe.near_note else near,
        "far": _origins(points.where(across)),
        "nccl": library,
        "kin": "as the ring of another collective of this profile, by analogy: this one was not measured",
        "analogy": f"as profile {recipe.far_like}, by analogy: nothing measured here",
    }
    messages = base.links["nic"].constants.get("efficiency.send_recv")
    if messages is not None:
        found["sendrecv"] = messages.source
    return {name: citation for name, citation in found.items() if citation}


def _origins(points: Points) -> str:
    """Distinct origins, logs of one repository together."""
    names: dict[str, int] = {}
    for origin in points.origin.tolist():
        name = origin
        if origin.startswith("https://"):
            parts = origin.split("/")
            name = "/".join(parts[3:5])
        elif " NCCL " in origin:
            name = f"aiconfigurator-core 0.12 tables of {origin}"
        names[name] = names.get(name, 0) + 1
    return "; ".join(f"{name} ({count} points)" for name, count in names.items())


def main(arguments: Sequence[str] | None = None) -> None:
    """Fit, write and report."""
    parser = argparse.ArgumentParser(prog="python -m shardsim.calibrate.fabrics", description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=Path, required=True, help="CSV of published log rows")
    parser.add_argument("--tables", type=Path, help="folder of the measured tables; by default the installed package")
    parser.add_argument("--out", type=Path, help="folder to write profiles to; nothing is written without it")
    parser.add_argument("--only", action="append", default=[], metavar="PROFILE")
    given = parser.parse_args(arguments)
    found = read_measured(given.tables)
    sys.stdout.write(f"{found.summary()}\n")
    tables, logs = medians(found.points), read_log_rows(given.rows)
    recipes = load_recipes().recipes
    for name, fit in fit_recipes(tables, logs, given.only):
        recipe = recipes[name]
        sys.stdout.write(f"{name}\n")
        for q in fit.qualities:
            sys.stdout.write(
                f"  {q.kind:15} {q.dtypes:7} {q.place:5} {q.points:4} points: "
                f"median {q.median:6.1%}, p90 {q.p90:6.1%}, "
                f"bias {q.bias:+6.1%} (equations alone: median {q.equations:.1%})\n"
            )
        sys.stdout.flush()
        if given.out is not None:
            text = fabric_yaml(fit.fabric, recipe.title, recipe.base, citations(recipe, tables, logs), HEADER)
            (given.out / f"{name}.yaml").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
