"""``shardsim validate cases``: outcomes that others met against rules and formulas."""

from __future__ import annotations

from pathlib import Path

import click

from shardsim.cli.options import data_option, json_option

_FILE = click.Path(path_type=Path)


@click.command(short_help="Cases: what frameworks said of layouts, and derived.", no_args_is_help=True)
@click.argument("cases_file", metavar="FILE.csv", type=_FILE)
@click.option("--out", type=_FILE, metavar="ROWS.csv", help="Write one row for every input row.")
@json_option
@data_option
def cases(cases_file: Path, *, out: Path | None, as_json: bool, data: tuple[Path, ...]) -> None:
    """Decide every case of FILE.csv that validity rules and formulas of frameworks decide.

    Columns needed: kind (validity or accounting; others are skipped), framework, outcome. Others are
    used where they are: id or case_id, model, layers, hidden, ffn, heads, kv_heads, vocab,
    experts_topk, seq, gpus, tp, pp, vpp, cp, ep, dp, mbs, gbs, optimizer_sharding, recompute,
    precision, value, and other: settings such as num-layers-per-virtual-pipeline-stage=2.
    A rule is decided where the row states what it needs.
    """
    from shardsim.report.cases import case_rows_csv, cases_json, cases_text
    from shardsim.report.console import progress, show
    from shardsim.report.save import check_outputs, save_text
    from shardsim.validate.cases import validate_cases

    check_outputs({"--out": out}, [cases_file])
    with progress(f"deciding the cases of {cases_file.name}"):
        table = validate_cases(cases_file, data)
    if out is not None:
        save_text(out, case_rows_csv(table))
    if as_json:
        click.echo(cases_json(table), nl=False)
    else:
        show(cases_text(table))
