"""``shardsim validate gemms``: measured matrix products against predictions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from shardsim.cli.options import data_option, json_option
from shardsim.errors import InputError, Problem

_FILE = click.Path(path_type=Path)


@click.command(short_help="Measured matrix products: times of microbenchmarks.", no_args_is_help=True)
@click.argument("measured_file", metavar="FILE.csv", type=_FILE)
@click.option("--out", type=_FILE, metavar="ROWS.csv", help="Write one row for every input row.")
@click.option("--plot", type=_FILE, metavar="FILE", help="Scatter of predicted and measured times (.png or .svg).")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="A figure of the device or its profile: kernels.gemm=./own-gemm.yaml; may be repeated.",
)
@json_option
@data_option
def gemms(
    measured_file: Path,
    *,
    out: Path | None,
    plot: Path | None,
    settings: tuple[str, ...],
    as_json: bool,
    data: tuple[Path, ...],
) -> None:
    """Predict every measured matrix product of FILE.csv: y = x W, m rows of k by k rows of n.

    Columns needed: gpu, dtype, m, n, k, and time_us (or time_ms, time_s). Others are used where they
    are: id, batch, and layout: tn (forward, the default), nn (input gradient), nt (weight gradient).
    """
    from shardsim.report.console import progress, show
    from shardsim.report.gemm_plots import gemm_scatter
    from shardsim.report.gemms import gemm_rows_csv, gemm_validation_json, gemm_validation_text
    from shardsim.report.plots import plot_format
    from shardsim.report.save import check_outputs, save_text, save_with
    from shardsim.validate.gemms import validate_gemms

    changes = _changes(settings)
    file_format = None if plot is None else plot_format(plot)
    check_outputs({"--out": out, "--plot": plot}, [measured_file])
    with progress(f"predicting the rows of {measured_file.name}"):
        found = validate_gemms(measured_file, data, changes)
        if plot is not None and not found.overall.predicted:
            reasons = "; ".join(f"{rows} rows: {reason}" for reason, rows in found.skipped[:3])
            raise InputError(Problem("no row could be predicted: there is nothing to draw", "--plot", reasons))
        drawn = None if file_format is None else gemm_scatter(found, file_format)
        if out is not None:
            save_text(out, gemm_rows_csv(found))
        if plot is not None and drawn is not None:
            save_with(plot, lambda stream: stream.write(drawn))
    if as_json:
        click.echo(gemm_validation_json(found), nl=False)
    else:
        show(gemm_validation_text(found))


def _changes(settings: tuple[str, ...]) -> dict[str, Any]:
    from shardsim.cli.options import run_keys
    from shardsim.schema.changes import unknown_changes

    keys = run_keys({}, settings)
    changes: dict[str, Any] = keys.pop("set", {})
    problems = [Problem(f"{name} is no figure of a device", "--set", "such as kernels.gemm") for name in keys]
    problems += unknown_changes(changes, ("device", "kernels"))
    if problems:
        raise InputError(problems)
    return changes
