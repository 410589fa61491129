"""``shardsim calibrate host``: measured training runs into a host profile."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import click

from shardsim.cli.options import data_option, json_option
from shardsim.errors import InputError, Problem, ShardsimError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardsim.report.host_fit import HostCalibration

_FILE = click.Path(path_type=Path)


@click.command(short_help="Measured runs of one stack: times to launch kernels.", no_args_is_help=True)
@click.argument("tables", metavar="FILE.csv...", nargs=-1, required=True, type=_FILE)
@click.option("--framework", required=True, metavar="NAME", help="Stack whose rows are used, a framework profile.")
@click.option("--fit", "profile", type=_FILE, metavar="HOST.yaml", help="Write the fitted profile.")
@click.option("--source", metavar="TEXT", help="Where the runs come from, to be written into the profile.")
@json_option
@data_option
def host(
    tables: tuple[Path, ...],
    *,
    framework: str,
    profile: Path | None,
    source: str | None,
    as_json: bool,
    data: tuple[Path, ...],
) -> None:
    """Fit what launching work costs the host of one software stack to its measured iterations.

    Columns as shardsim validate runs reads them. All else is priced as ever, so that the host is what is left: runs of
    small models say most. Constants hold for the stack, never for a run.

    \b
    shardsim calibrate host runs.csv --framework megatron-deepspeed \\
                            --fit own-host.yaml
    shardsim simulate RUN.yaml --set host=./own-host.yaml
    """  # noqa: D301  # click reads the escape
    from shardsim.calibrate.hostfile import host_yaml
    from shardsim.report.console import show
    from shardsim.report.host_fit import host_fit_json, host_fit_text
    from shardsim.report.save import check_outputs, save_text

    if profile is not None and profile.suffix.lower() not in (".yaml", ".yml"):
        raise InputError(Problem(f"{profile.name!r} does not end in .yaml", "--fit", "such as own-host.yaml"))
    check_outputs({"--fit": profile}, list(tables))
    found = _fitted(tables, framework, data)
    if profile is not None:
        clusters = ", ".join(sorted({run.cluster.name for run in found.runs}))
        files = ", ".join(table.name for table in tables)
        title = f"{framework}, fitted to {len(found.runs):,} runs of {files}"
        save_text(profile, host_yaml(found.found, title, f"{framework} on {clusters}", source or files))
    if as_json:
        click.echo(host_fit_json(found), nl=False)
        return
    show(host_fit_text(found))


def _fitted(tables: Sequence[Path], framework: str, data: Sequence[Path]) -> HostCalibration:
    import numpy as np

    from shardsim.calibrate.hosts import NAMES, fit_host, model_keys
    from shardsim.program.resolve import resolve
    from shardsim.report.console import progress
    from shardsim.report.host_fit import HostCalibration
    from shardsim.schema.framework import load_framework
    from shardsim.schema.run import request_from_mapping
    from shardsim.schema.validation import measured_names
    from shardsim.validate.requests import row_request
    from shardsim.validate.rows import read_measured_runs

    named = load_framework(framework, data).name
    names = measured_names(data)
    rows = [row for table in tables for row in read_measured_runs(table)]
    runs, measured, left = [], [], Counter[str]()
    with progress("reading runs", total=len(rows)) as advance:
        for row in rows:
            advance(1)
            request = row_request(row, names)
            if request.run is None or row.iteration_s is None:
                left[request.reason] += 1
                continue
            if request.run.get("framework") != named:
                left["of another framework"] += 1
                continue
            try:
                runs.append(resolve(request_from_mapping(request.run, "run"), data))
            except ShardsimError as error:
                left["; ".join(str(error).splitlines())] += 1
                continue
            measured.append(row.iteration_s)
    if len(runs) <= len(NAMES):
        right = f"more than {len(NAMES)} runs whose framework is {named}"
        raise InputError(Problem(f"{len(runs)} rows can be used", ", ".join(map(str, tables)), right))
    times = np.array(measured)
    with progress("fitting", total=1 + len(set(model_keys(runs)))) as advance:
        found = fit_host(runs, times, lambda: advance(1))
    return HostCalibration(named, tuple(runs), times, found, tuple(left.most_common()))
