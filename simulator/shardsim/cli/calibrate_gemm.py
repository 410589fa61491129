"""``shardsim calibrate gemm``: a table of matrix products into a GEMM profile."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from shardsim.cli.options import data_option, json_option
from shardsim.errors import InputError, Problem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardsim.report.gemm_fit import GemmCalibration

_FILE = click.Path(path_type=Path)


@click.command(short_help="A table of matrix products: times of microbenchmarks.", no_args_is_help=True)
@click.argument("table", metavar="FILE.csv", type=_FILE)
@click.option("--device", required=True, metavar="NAME", help="What was measured, a catalog name or a path.")
@click.option("--dtype", metavar="NAME", help="Data type of rows that do not say it; otherwise, fit this one alone.")
@click.option("--fit", "profile", type=_FILE, metavar="GEMM.yaml", help="Write the fitted profile.")
@click.option("--plot", type=_FILE, metavar="FILE", help="Measured and fitted rates, and residuals (.png or .svg).")
@json_option
@data_option
def gemm(
    table: Path,
    *,
    device: str,
    dtype: str | None,
    profile: Path | None,
    plot: Path | None,
    as_json: bool,
    data: tuple[Path, ...],
) -> None:
    """Fit the GEMM profile of a device to the measured products of FILE.csv.

    Columns needed: m, n, k, and time_us (or time_ms, time_s). Others are used where they are: gpu, dtype, batch,
    layout, as shardsim validate gemms reads them and shardsim bench gemm writes them.

    \b
    shardsim calibrate gemm gemms.csv --device h100-sxm-80gb \\
                            --fit own-gemm.yaml --plot own-gemm.png
    shardsim simulate RUN.yaml --set kernels.gemm=./own-gemm.yaml
    """  # noqa: D301  # click reads the escape
    from shardsim.report.console import show
    from shardsim.report.gemm_fit import gemm_fit_json, gemm_fit_text
    from shardsim.report.gemm_plots import gemm_fit_plot
    from shardsim.report.plots import plot_format
    from shardsim.report.save import save_text, save_with

    _check(table, device, profile, plot)
    found = _fitted(table, device, dtype, data)
    drawn = None if plot is None else gemm_fit_plot(found, plot_format(plot))
    if profile is not None:
        save_text(profile, _yaml(found, profile, data))
    if plot is not None and drawn is not None:
        save_with(plot, lambda stream: stream.write(drawn))
    if as_json:
        click.echo(gemm_fit_json(found), nl=False)
        return
    show(gemm_fit_text(found))
    if profile is not None:
        click.echo(f"written: {profile}; use it with --set kernels.gemm={_as_path(profile)}")


def _check(table: Path, device: str, profile: Path | None, plot: Path | None) -> None:
    """Refuse outputs that could not be written, before any work is done."""
    from shardsim.report.plots import plot_format
    from shardsim.report.save import check_outputs
    from shardsim.schema.catalog import is_path

    if profile is not None and profile.suffix.lower() not in (".yaml", ".yml"):
        raise InputError(Problem(f"{profile.name!r} does not end in .yaml", "--fit", "such as own-gemm.yaml"))
    if plot is not None:
        plot_format(plot)
    check_outputs({"--fit": profile, "--plot": plot}, [table, *([Path(device)] if is_path(device) else [])])


def _fitted(table: Path, device: str, dtype: str | None, data: Sequence[Path]) -> GemmCalibration:
    from shardsim.calibrate.usergemm import fit_user_gemms, rows_of
    from shardsim.report.console import progress
    from shardsim.report.gemm_fit import GemmCalibration
    from shardsim.schema.hardware import load_device
    from shardsim.schema.kernels import DATA_TYPES, load_kernel_profile
    from shardsim.schema.validation import measured_names
    from shardsim.validate.gemmtable import SHAPE, read_gemms

    machine = load_device(device, data)
    kernels = load_kernel_profile(machine.compute_profile, data)
    measured = read_gemms(table, SHAPE)
    rows = rows_of(measured, machine.name, dtype, DATA_TYPES, measured_names(data))
    with progress(f"fitting {table.name}", total=len(rows.tables)) as advance:
        fits, refused = fit_user_gemms(rows.tables, machine, kernels, lambda _: advance(1))
    return GemmCalibration(measured.file, machine, kernels, rows, fits, refused)


def _yaml(found: GemmCalibration, profile: Path, data: Sequence[Path]) -> str:
    """Write the profile; the path of its base starts from its own folder."""
    from shardsim.calibrate.usergemmfile import user_gemm_yaml
    from shardsim.schema.catalog import is_path
    from shardsim.schema.sections import section_name

    base = section_name(found.device.compute_profile, "gemm", data)
    named = os.path.relpath(base, profile.parent) if is_path(base) else base
    return user_gemm_yaml(found.fits, found.device, found.kernels, named, found.file)


def _as_path(profile: Path) -> str:
    """Write a path so that nobody takes it for a catalog name."""
    return str(profile) if profile.is_absolute() else f"./{profile}"
