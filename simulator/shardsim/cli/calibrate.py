"""``shardsim calibrate``: measurements into constants."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from shardsim.cli.calibrate_gemm import gemm
from shardsim.cli.calibrate_host import host
from shardsim.cli.lazy import NearNameGroup
from shardsim.cli.options import count, json_option

_FILE = click.Path(path_type=Path)


@click.group(cls=NearNameGroup)
def calibrate() -> None:
    """Read measurements of your own cluster."""


calibrate.add_command(gemm)
calibrate.add_command(host)


@calibrate.command(short_help="Outputs of nccl-tests: times of collectives.")
@click.argument("logs", metavar="LOG...", nargs=-1, required=True, type=_FILE)
@click.option("--collective", metavar="NAME", help="What the tests are, where a log does not say; others are left out.")
@click.option("--ranks", type=count, metavar="N", help="Ranks of the tests, where a log does not say.")
@click.option("--dtype", metavar="NAME", help="Read only this data type, such as float or half.")
@click.option("--out", type=_FILE, metavar="ROWS.csv", help="Write every row that was read.")
@json_option
def nccl(
    logs: tuple[Path, ...],
    collective: str | None,
    ranks: int | None,
    dtype: str | None,
    out: Path | None,
    as_json: bool,  # noqa: FBT001  # click passes flags by name
) -> None:
    """Read LOGs of nccl-tests: text of any version as it was pasted, or the JSON of -J.

    Says for each test which collective it is, over how many ranks, and which rows were kept or not, and why. A row
    that is torn, cut off or inconsistent is never data.
    """
    from shardsim.calibrate.nccl.read import read_logs
    from shardsim.report.console import progress, show
    from shardsim.report.nccl_logs import nccl_logs_json, nccl_logs_text, nccl_rows_csv
    from shardsim.report.save import check_outputs, save_text

    check_outputs({"--out": out}, logs)
    with progress("reading logs", total=len(logs)) as advance:

        def one_by_one() -> Iterator[Path]:
            for path in logs:
                yield path
                advance(1)

        found = read_logs(one_by_one(), collective, ranks, dtype)
    if out is not None:
        save_text(out, nccl_rows_csv(found))
    if as_json:
        click.echo(nccl_logs_json(found), nl=False)
    else:
        show(nccl_logs_text(found))
