"""``shardsim model``: what a model is made of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from shardsim.cli.lazy import NearNameGroup
from shardsim.cli.options import count, data_option, json_option
from shardsim.cli.roofline import roofline
from shardsim.errors import InputError


@click.group(cls=NearNameGroup)
def model() -> None:
    """Show what a model is made of."""


model.add_command(roofline)


@model.command(no_args_is_help=True)
@click.argument("name", metavar="NAME|config.json")
@click.option("--tp", type=count, default=1, show_default=True, metavar="N", help="Tensor-parallel degree.")
@click.option("--sp/--no-sp", default=False, help="Megatron sequence parallelism.")
@click.option("--micro-batch", type=count, default=1, show_default=True, metavar="N", help="Sequences a micro-batch.")
@click.option("--seq", type=count, metavar="N", help="Tokens a sequence; 2,048, or all positions if fewer.")
@click.option("--framework", default="megatron-core", show_default=True, metavar="NAME", help="Framework profile.")
@json_option
@data_option
def show(name: str, *, framework: str, as_json: bool, data: tuple[Path, ...], **flags: Any) -> None:
    """Show a model's shape, its parameters, and the operators of one layer on one rank."""
    from shardsim.report import console
    from shardsim.report.model import model_record, model_text
    from shardsim.report.records import record_json
    from shardsim.schema.framework import load_framework
    from shardsim.schema.model import load_model
    from shardsim.values.training import Batch, Layout
    from shardsim.workload.layer import layer_backward, layer_forward
    from shardsim.workload.validity import check

    found, profile = load_model(name, data), load_framework(framework, data)
    layout = Layout(tp=flags["tp"], pp=1, dp=1, sp=flags["sp"])
    tokens = flags["seq"] or min(2048, found.max_positions or 2048)
    batch = Batch(global_batch=flags["micro_batch"], micro_batch=flags["micro_batch"], seq_len=tokens)
    problems, _ = check(found, layout, batch, flags["tp"], profile, priced=False)
    if problems:
        raise InputError(problems)
    shape = (found, layout, batch, profile)
    priced = found.moe is None and found.mla is None
    operators = (*layer_forward(*shape), *layer_backward(*shape)) if priced else ()
    if as_json:
        click.echo(record_json(model_record(found, operators)), nl=False)
        return
    parallel = f"TP{layout.tp}{' with SP' * layout.sp}"
    note = f"one rank: {parallel}, micro-batch {batch.micro_batch}, {batch.seq_len:,} tokens, {profile.name}"
    console.show(model_text(found, operators, note))
