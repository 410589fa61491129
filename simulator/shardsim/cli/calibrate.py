"""``shardsim calibrate``: measurements into constants."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from shardsim.cli.calibrate_gemm import gemm
from shardsim.cli.calibrate_host import host
from shardsim.cli.calibrate_stack import stack
from shardsim.cli.lazy import NearNameGroup
from shardsim.cli.options import count, data_option, json_option
from shardsim.errors import InputError, Problem

if TYPE_CHECKING:
    from shardsim.calibrate.nccl.table import NcclLog
    from shardsim.calibrate.userfit import UserFit
    from shardsim.values.hardware import Cluster, FabricConstants

_FILE = click.Path(path_type=Path)


def _per_node(text: str) -> tuple[str, int]:
    """Read ``N`` or ``LOG=N``."""
    log, _, number = text.rpartition("=")
    return log, count(number)


@click.group(cls=NearNameGroup)
def calibrate() -> None:
    """Read measurements of your own cluster."""


calibrate.add_command(gemm)
calibrate.add_command(host)
calibrate.add_command(stack)


@calibrate.command(short_help="Outputs of nccl-tests: times of collectives.")
@click.argument("logs", metavar="LOG...", nargs=-1, required=True, type=_FILE)
@click.option("--collective", metavar="NAME", help="What the tests are, where a log does not say; others are left out.")
@click.option("--ranks", type=count, metavar="N", help="Ranks of the tests, where a log does not say.")
@click.option(
    "--gpus-per-node",
    type=_per_node,
    multiple=True,
    metavar="[LOG=]N",
    help="GPUs a node, where a log does not say; LOG=N for one log; may be repeated.",
)
@click.option("--dtype", metavar="NAME", help="Read only this data type, such as float or half.")
@click.option("--cluster", metavar="NAME", help="What was measured, a catalog name or a path: fit its fabric profile.")
@click.option("--profile", type=_FILE, metavar="FABRIC.yaml", help="Write the fitted profile; needs --cluster.")
@click.option("--plot", type=_FILE, metavar="FILE", help="Measured and fitted busbw (.png or .svg); needs --cluster.")
@click.option("--out", type=_FILE, metavar="ROWS.csv", help="Write every row that was read.")
@json_option
@data_option
def nccl(
    logs: tuple[Path, ...],
    *,
    collective: str | None,
    ranks: int | None,
    gpus_per_node: tuple[tuple[str, int], ...],
    dtype: str | None,
    cluster: str | None,
    profile: Path | None,
    plot: Path | None,
    out: Path | None,
    as_json: bool,
    data: tuple[Path, ...],
) -> None:
    """Read LOGs of nccl-tests: text of any version as it was pasted, or the JSON of -J.

    Says for each test which collective it is, over how many ranks, and which rows were kept or not, and why. A row
    that is torn, cut off or inconsistent is never data. With --cluster, fits the cluster's fabric profile to the rows.

    \b
    shardsim calibrate nccl *.log --cluster dgx-h100 --profile own.yaml \\
                            --plot own.png
    shardsim collective all_reduce 1GiB --cluster dgx-h100 --ranks 8 \\
                        --fabric ./own.yaml
    """  # noqa: D301  # click reads the escape
    from shardsim.calibrate.nccl.read import read_logs
    from shardsim.calibrate.userfit import placed
    from shardsim.report.console import progress, show
    from shardsim.report.nccl_logs import nccl_logs_json, nccl_logs_text, nccl_rows_csv
    from shardsim.report.save import save_text, save_with

    machine = None if cluster is None else _machine(cluster, data)
    _check(logs, machine, {"--out": out, "--profile": profile, "--plot": plot})
    with progress("reading logs", total=len(logs)) as advance:

        def one_by_one() -> Iterator[Path]:
            for path in logs:
                yield path
                advance(1)

        found = placed(read_logs(one_by_one(), collective, ranks, dtype), dict(gpus_per_node))
    fit = None if machine is None else _fit(found, *machine, profile)
    drawn = None if fit is None or plot is None else _drawn(fit, plot)
    if out is not None:
        save_text(out, nccl_rows_csv(found, cluster))
    if fit is not None and profile is not None:
        save_text(profile, _profile_text(fit, profile))
    if drawn is not None and plot is not None:
        save_with(plot, lambda stream: stream.write(drawn))
    if as_json:
        from shardsim.report.calibration import calibration_record

        click.echo(nccl_logs_json(found, None if fit is None else calibration_record(fit)), nl=False)
        return
    show(nccl_logs_text(found))
    if fit is not None:
        from shardsim.report.calibration import calibration_text

        click.echo()
        show(calibration_text(fit))
        if profile is not None:
            click.echo(f"written: {profile}; name it with --fabric, or as fabric_profile in a cluster's file")


def _machine(cluster: str, data: Sequence[Path]) -> tuple[Cluster, FabricConstants]:
    from shardsim.schema.hardware import load_cluster, load_fabric_profile

    machine = load_cluster(cluster, data)
    return machine, load_fabric_profile(machine.fabric_profile, data)


def _check(
    logs: Sequence[Path], machine: tuple[Cluster, FabricConstants] | None, outputs: dict[str, Path | None]
) -> None:
    """Refuse outputs that could not be written, before any work is done."""
    from shardsim.report.plots import plot_format
    from shardsim.report.save import check_outputs
    from shardsim.schema.catalog import is_path

    profile, plot = outputs["--profile"], outputs["--plot"]
    problems = [
        Problem("there is nothing to fit without a cluster", option, "name it with --cluster")
        for option, path in (("--profile", profile), ("--plot", plot))
        if path is not None and machine is None
    ]
    if profile is not None and profile.suffix.lower() not in (".yaml", ".yml"):
        problems.append(Problem(f"{profile.name!r} does not end in .yaml", "--profile", "such as own.yaml"))
    if problems:
        raise InputError(problems)
    if plot is not None:
        plot_format(plot)
    base = [] if machine is None else [machine[0].fabric_profile]
    check_outputs(outputs, [*logs, *(Path(name) for name in base if is_path(name))])


def _fit(found: Sequence[NcclLog], cluster: Cluster, base: FabricConstants, profile: Path | None) -> UserFit:
    from shardsim.calibrate.userfit import fit_samples, samples_of
    from shardsim.report.console import progress

    samples = samples_of(found, cluster)
    with progress(f"fitting {len(samples.points):,} rows"):
        fit = fit_samples(cluster.name if profile is None else profile.stem, samples, cluster, base)
    if profile is not None and not any(verdict.fitted for verdict in fit.verdicts):
        from shardsim.calibrate.fabric import FEWEST

        what = f"no collective has the {FEWEST} points that a fit needs: there is no profile to write"
        raise InputError(Problem(what, "--profile", "measure more sizes"))
    return fit


def _drawn(fit: UserFit, plot: Path) -> bytes:
    from shardsim.report.calibration_plot import calibration_plot
    from shardsim.report.plots import plot_format

    return calibration_plot(fit, plot_format(plot))


def _profile_text(fit: UserFit, profile: Path) -> str:
    """Write the profile; the path of its base starts from its own folder."""
    from shardsim.calibrate.userfit import user_profile_yaml
    from shardsim.schema.catalog import is_path

    base = fit.cluster.fabric_profile
    return user_profile_yaml(fit, os.path.relpath(base, profile.parent) if is_path(base) else base)
