"""``shardsim model``: what a model is made of."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shardsim.cli.lazy import NearNameGroup
from shardsim.cli.options import count, data_option, json_option
from shardsim.cli.roofline import roofline
from shardsim.errors import InputError

if TYPE_CHECKING:
    from shardsim.values.training import Framework, Layout, Model


@click.group(cls=NearNameGroup)
def model() -> None:
    """Show what a model is made of."""


model.add_command(roofline)


@model.command(no_args_is_help=True)
@click.argument("name", metavar="NAME|config.json")
@click.option("--tp", type=count, default=1, show_default=True, metavar="N", help="Tensor-parallel degree.")
@click.option("--sp/--no-sp", default=False, help="Megatron sequence parallelism.")
@click.option("--cp", type=count, default=1, show_default=True, metavar="N", help="Context-parallel degree.")
@click.option("--cp-comm", metavar="NAME", help="p2p, all_gather or a2a; as the framework has it.")
@click.option("--ep", type=count, default=1, show_default=True, metavar="N", help="Expert-parallel degree.")
@click.option("--etp", type=count, metavar="N", help="Expert tensor-parallel degree; as the framework has it.")
@click.option("--dispatcher", metavar="NAME", help="alltoall, allgather, deepep or hybridep; the framework's.")
@click.option("--micro-batch", type=count, default=1, show_default=True, metavar="N", help="Sequences a micro-batch.")
@click.option("--seq", type=count, metavar="N", help="Tokens a sequence; 2,048, or all positions if fewer.")
@click.option("--framework", default="megatron-core", show_default=True, metavar="NAME", help="Framework profile.")
@json_option
@data_option
def show(name: str, *, framework: str, as_json: bool, data: tuple[Path, ...], **flags: Any) -> None:
    """Show a model's shape, its parameters, and the operators of a layer of each kind on one rank."""
    from shardsim.report import console
    from shardsim.report.model import model_record, model_text
    from shardsim.report.records import record_json
    from shardsim.schema.framework import load_framework
    from shardsim.schema.model import load_model
    from shardsim.values.training import Batch
    from shardsim.workload.kinds import all_kinds
    from shardsim.workload.layer import layer_backward, layer_forward
    from shardsim.workload.validity import check

    found, profile = load_model(name, data), load_framework(framework, data)
    layout = _layout(flags, found, profile)
    tokens = flags["seq"] or min(2048, found.max_positions or 2048)
    batch = Batch(global_batch=flags["micro_batch"] * int(layout.dp), micro_batch=flags["micro_batch"], seq_len=tokens)
    problems, _ = check(found, layout, batch, int(layout.gpus), profile, priced=False)
    if problems:
        raise InputError(problems)
    shape = (found, layout, batch, profile)
    operators = {kind: (*layer_forward(*shape, kind), *layer_backward(*shape, kind)) for kind in all_kinds(found)}
    if as_json:
        click.echo(record_json(model_record(found, operators)), nl=False)
        return
    degrees = [f"TP{layout.tp}{' with SP' * layout.sp}"]
    degrees += [f"CP{layout.cp} by {layout.cp_comm}"] * (layout.cp != 1) + [f"EP{layout.ep}"] * (layout.ep != 1)
    degrees += [f"ETP{layout.etp}"] * (layout.etp != 1)
    parallel = " x ".join(degrees)
    note = f"one rank: {parallel}, micro-batch {batch.micro_batch}, {batch.seq_len:,} tokens, {profile.name}"
    console.show(model_text(found, operators, note))


def _layout(flags: dict[str, Any], model: Model, framework: Framework) -> Layout:
    """The fewest ranks on which the degrees that were asked for exist."""
    from shardsim.program.routed import expert_choices
    from shardsim.schema.loader import check_mapping
    from shardsim.schema.run import LayoutRequest
    from shardsim.values.training import Layout

    given = {key: flags[key] for key in ("tp", "cp", "ep", "etp", "cp_comm", "dispatcher") if flags[key] is not None}
    asked = check_mapping(given, LayoutRequest, "command line")
    etp, dispatcher = expert_choices(asked, model, framework)
    dp = math.lcm(asked.tp * asked.cp, asked.ep * etp) // (asked.tp * asked.cp)
    return Layout(
        tp=asked.tp,
        pp=1,
        dp=dp,
        cp=asked.cp,
        ep=asked.ep,
        etp=etp,
        sp=flags["sp"],
        cp_comm=asked.cp_comm or framework.cp_comm,
        dispatcher=dispatcher,
    )
