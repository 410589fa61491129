"""``shardsim model roofline``: the operators of a layer on a device, and what bounds them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shardsim.cli.options import data_option, json_option, layer_options, run_keys

if TYPE_CHECKING:
    from shardsim.schema.run import RunRequest

_FILE = click.Path(path_type=Path)


@click.command(no_args_is_help=True)
@click.argument("model", metavar="NAME|config.json")
@layer_options
@click.option("--layer", type=int, metavar="N", help="Layer, where they are of several kinds; the last if left out.")
@click.option("--plot", type=_FILE, metavar="FILE", help="Roofline plot (.png or .svg).")
@json_option
@data_option
def roofline(
    *,
    model: str,
    settings: tuple[str, ...],
    layer: int | None,
    plot: Path | None,
    as_json: bool,
    data: tuple[Path, ...],
    **flags: Any,
) -> None:
    """Price the operators of one layer on one rank, and say what bounds each.

    What is not given is as small as it can be: one replica, one sequence of 2,048 tokens.

    \b
    shardsim model roofline llama-3-8b --cluster dgx-h100 --seq 8192 \\
                            --plot roofline.png
    shardsim model roofline gpt3-175b --cluster dgx-a100 --tp 8 --sp \\
                            --recompute selective
    """  # noqa: D301  # click reads the escape
    from shardsim.program.resolve import resolve
    from shardsim.program.roofline import layer_costs
    from shardsim.report.console import progress, show
    from shardsim.report.plots import plot_format
    from shardsim.report.records import record_json
    from shardsim.report.roofline import roofline_record, roofline_text
    from shardsim.report.save import check_outputs, save_with

    file_format = None if plot is None else plot_format(plot)
    check_outputs({"--plot": plot})
    with progress(f"pricing a layer of {model}"):
        costs = layer_costs(resolve(_request(model, flags, settings, data), data), layer)
        if plot is not None and file_format is not None:
            from shardsim.report.roofline_plot import roofline_plot

            drawn = roofline_plot(costs, file_format)
            save_with(plot, lambda stream: stream.write(drawn))
    if as_json:
        click.echo(record_json(roofline_record(costs)), nl=False)
    else:
        show(roofline_text(costs))


def _request(model: str, flags: dict[str, Any], settings: tuple[str, ...], data: tuple[Path, ...]) -> RunRequest:
    """The run as asked for; what a layer does not depend on is taken as small as it can be."""
    from shardsim.schema.model import load_model
    from shardsim.schema.run import request_from_mapping

    keys = run_keys({**flags, "model": model}, settings)
    layout, batch = keys.setdefault("layout", {}), keys.setdefault("batch", {})
    if "seq" not in batch:
        batch["seq"] = min(2048, load_model(model, data).max_positions or 2048)
    pipeline = layout.get("pp", 1)
    if "gpus" not in keys:
        tp, ep = layout.get("tp", 1), layout.get("ep", 1)
        ranks = tp * layout.get("cp", 1) * layout.get("dp", 1)
        # Experts split by etp, or as much as the rest, which is a multiple of not at all.
        keys["gpus"] = pipeline * (ranks if "dp" in layout else math.lcm(ranks, ep * layout.get("etp", tp)))
    if "global" not in batch:
        replicas = keys["gpus"] // max(1, layout.get("tp", 1) * pipeline * layout.get("cp", 1))
        batch["global"] = batch.get("micro", 1) * max(1, replicas) * pipeline
    return request_from_mapping(keys, "command line")
