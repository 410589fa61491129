"""``shardsim validate published``: runs that come with shardsim against their predictions."""

from __future__ import annotations

from pathlib import Path

import click

from shardsim.cli.options import data_option, json_option


@click.command(short_help="Published runs that come with shardsim, and their bounds.")
@click.option("--rows", is_flag=True, help="Show every run.")
@click.option("--check", is_flag=True, help="End with status 1 where an error is past its recorded bound.")
@click.option("--record", is_flag=True, help="Write today's errors into the file as its bounds.")
@json_option
@data_option
def published(*, rows: bool, check: bool, record: bool, as_json: bool, data: tuple[Path, ...]) -> None:
    """Predict the published runs of well-known stacks: Megatron-LM of 2019 to 2022, MegaScale, Llama 3, DeepSeek-V3."""
    from shardsim.report.console import progress, show
    from shardsim.report.published import published_json, published_text
    from shardsim.report.save import save_text
    from shardsim.schema.published import load_published
    from shardsim.validate.published import published_count, recorded, validate_published

    with progress("predicting published runs", total=published_count(data)) as advance:
        found = validate_published(data, lambda: advance(1))
    if record:
        path, _ = load_published(data)
        save_text(path, recorded(path.read_text(encoding="utf-8"), found))
    if as_json:
        click.echo(published_json(found), nl=False)
    else:
        show(published_text(found, rows=rows))
    if check and not record and not all(table.within for table in found):
        raise SystemExit(1)
