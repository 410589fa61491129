"""``shardsim calibrate stack``: measured training runs into the profile of a software stack."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from shardsim.cli.options import data_option, json_option
from shardsim.errors import InputError, Problem

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shardsim.report.stack_fit import StackCalibration
    from shardsim.schema.stack_recipes import StackRecipe
    from shardsim.validate.measured import MeasuredRuns

_FILE = click.Path(path_type=Path)
_USUAL = ("compute", "inside", "data")


@click.command(short_help="Measured runs of one stack: how it runs kernels and collectives.", no_args_is_help=True)
@click.argument("tables", metavar="FILE.csv...", nargs=-1, required=True, type=_FILE)
@click.option("--framework", metavar="NAME,...", help="Framework profiles whose rows are used.")
@click.option(
    "--constants",
    metavar="NAME,...",
    help="What to fit; products@h100-sxm for one generation, compute@experts for one kind of model.",
)
@click.option("--fit", "profile", type=_FILE, metavar="STACK.yaml", help="Write the fitted profile.")
@click.option("--source", metavar="TEXT", help="Where the runs come from, to be written into the profile.")
@click.option("--recipes", type=_FILE, metavar="RECIPES.yaml", help="Fit every stack of a file instead; needs --to.")
@click.option("--only", multiple=True, metavar="NAME", help="Of the recipes, only this one; may be repeated.")
@click.option("--to", "folder", type=_FILE, metavar="DIR", help="Write the profiles of recipes there.")
@click.option("--errors", type=_FILE, metavar="ROWS.csv", help="Write every row's time by constants fitted without it.")
@json_option
@data_option
def stack(
    tables: tuple[Path, ...],
    *,
    framework: str | None,
    constants: str | None,
    profile: Path | None,
    source: str | None,
    recipes: Path | None,
    only: tuple[str, ...],
    folder: Path | None,
    errors: Path | None,
    as_json: bool,
    data: tuple[Path, ...],
) -> None:
    """Fit how a software stack runs what was measured alone: kernels, collectives, launches.

    Columns as shardsim validate runs reads them. Constants hold for the stack, never for a run: at least ten rows for
    each, at most eight. Every group of one source, model and GPU is also predicted by constants fitted without it.

    \b
    shardsim calibrate stack runs.csv --framework megatron-core \\
                             --constants compute,inside --fit own.yaml
    shardsim simulate RUN.yaml --set stack=./own.yaml
    """  # noqa: D301  # click reads the escape
    from shardsim.report.console import show
    from shardsim.report.save import check_outputs, save_text
    from shardsim.report.stack_fit import held_out_csv, stack_fit_json, stack_fit_text

    wanted = _recipes(tables, framework, constants, source, recipes, only, data)
    if recipes is not None and folder is None:
        raise InputError(Problem("--recipes without a folder for the profiles", "--to", "a folder"))
    if profile is not None and profile.suffix.lower() not in (".yaml", ".yml"):
        raise InputError(Problem(f"{profile.name!r} does not end in .yaml", "--fit", "such as own-stack.yaml"))
    targets = (
        {name: folder / f"{name}.yaml" for name in wanted} if folder is not None else dict.fromkeys(wanted, profile)
    )
    check_outputs({"--errors": errors, **{f"profile {name}": path for name, path in targets.items()}}, list(tables))
    found = _fitted(tables, wanted, targets, data)
    if errors is not None:
        save_text(errors, held_out_csv(found))
    for calibration in found:
        if as_json:
            click.echo(stack_fit_json(calibration), nl=False)
        else:
            show(stack_fit_text(calibration))


def _recipes(
    tables: Sequence[Path],
    framework: str | None,
    constants: str | None,
    source: str | None,
    recipes: Path | None,
    only: Sequence[str],
    data: Sequence[Path],
) -> Mapping[str, StackRecipe]:
    """What is to be fitted: the recipes of a file, or the one that flags describe."""
    from shardsim.calibrate.stacks import known_constants
    from shardsim.schema.catalog import near
    from shardsim.schema.framework import load_framework
    from shardsim.schema.stack_recipes import StackRecipe, load_stack_recipes

    if recipes is not None:
        found = load_stack_recipes(recipes)
        problems = [Problem(f"no recipe {name!r}", "--only", near(name, found)) for name in only if name not in found]
        if problems:
            raise InputError(problems)
        return {name: recipe for name, recipe in found.items() if not only or name in only}
    if framework is None:
        raise InputError(Problem("neither a framework nor recipes", "--framework", "such as megatron-core"))
    names = tuple(load_framework(name.strip(), data).name for name in framework.split(","))
    asked = tuple(name.strip() for name in constants.split(",")) if constants else _USUAL
    files = ", ".join(table.name for table in tables)
    problems = [
        Problem(f"no constant {name!r}", "--constants", near(name.partition("@")[0], known_constants()))
        for name in asked
        if name.partition("@")[0] not in known_constants()
    ]
    if problems:
        raise InputError(problems)
    title = f"{', '.join(names)}, fitted to {files}"
    recipe = StackRecipe(title=title, stack=", ".join(names), frameworks=names, constants=asked, source=source or files)
    return {names[0]: recipe}


def _fitted(
    tables: Sequence[Path], wanted: Mapping[str, StackRecipe], targets: Mapping[str, Path | None], data: Sequence[Path]
) -> list[StackCalibration]:
    from shardsim.calibrate.stackfile import stack_yaml
    from shardsim.report.console import progress
    from shardsim.report.save import save_text
    from shardsim.validate.measured import measured_as_runs

    with progress("reading runs") as advance:
        everything = measured_as_runs(tables, data, {"stack": "none"}, lambda: advance(1))
    found = []
    for name, recipe in wanted.items():
        calibration = _one(name, recipe, everything.of(recipe.frameworks).unless(recipe.unless))
        found.append(calibration)
        path = targets[name]
        if path is not None:
            save_text(path, stack_yaml(calibration.found, recipe.title, recipe.stack, recipe.source))
    return found


def _one(name: str, recipe: StackRecipe, used: MeasuredRuns) -> StackCalibration:
    import numpy as np

    from shardsim.calibrate.stacks import StackProblem, fit_stack, iteration_plane, starting_values
    from shardsim.report.console import progress
    from shardsim.report.stack_fit import StackCalibration

    if len(used.runs) <= len(recipe.constants):
        right = f"more than {len(recipe.constants)} runs of {', '.join(recipe.frameworks)}"
        raise InputError(Problem(f"{len(used.runs)} rows can be used for {name}", "FILE.csv", right))
    measured = np.array([row.iteration_s for row in used.rows], dtype=float)
    problem = StackProblem(used.runs, measured, recipe.constants, used.groups)
    with progress(f"fitting {name}") as advance:
        before = np.array([iteration_plane(run, starting_values(run))[0] for run in used.runs])
        found = fit_stack(problem, lambda: advance(1))
    return StackCalibration(name, tuple(row.id for row in used.rows), found, before, used.left)
