"""``shardsim validate memory``: measured memory against predictions."""

from __future__ import annotations

from pathlib import Path

import click

from shardsim.cli.options import data_option, json_option

_FILE = click.Path(path_type=Path)


@click.command(short_help="Measured memory: how full, and whether it fits.", no_args_is_help=True)
@click.argument("measured_file", metavar="FILE.csv", type=_FILE)
@click.option("--out", type=_FILE, metavar="ROWS.csv", help="Write one row for every input row.")
@click.option("--plot", type=_FILE, metavar="FILE", help="Scatter of predicted and measured memory (.png or .svg).")
@json_option
@data_option
def memory(
    measured_file: Path,
    *,
    out: Path | None,
    plot: Path | None,
    as_json: bool,
    data: tuple[Path, ...],
) -> None:
    """Predict the memory of every layout of FILE.csv, and whether it fits.

    Columns needed: gpu, num_gpus (or gpus), layers, hidden, heads, vocab, seq_len, micro_batch, and
    global_batch (or dp and micro_batches). Compared where they are: peak_reserved_gb,
    peak_allocated_gb, outcome (fits or oom). Others are used where they are: id, source, framework,
    model, arch_class, ffn_hidden, kv_heads, tie_word_embeddings, tp, pp, vpp, dp, ep, sp, zero_stage,
    schedule, recompute, precision. Figures in ROWS.csv are GiB.
    """
    from shardsim.report.console import progress, show
    from shardsim.report.memory_validation import memory_rows_csv, memory_validation_json, memory_validation_text
    from shardsim.report.plots import plot_format, validation_scatter
    from shardsim.report.save import check_outputs, save_text, save_with
    from shardsim.validate.memory import validate_memory

    file_format = None if plot is None else plot_format(plot)
    check_outputs({"--out": out, "--plot": plot}, [measured_file])
    with progress(f"predicting the layouts of {measured_file.name}", total=1.0) as advance:
        found = validate_memory(measured_file, data, progress=lambda _done, total: advance(1 / total))
    drawable = found.table.overall.predicted > 0
    if file_format is not None and plot is not None and drawable:
        drawn = validation_scatter(found.table, file_format)
        save_with(plot, lambda stream: stream.write(drawn))
    if out is not None:
        save_text(out, memory_rows_csv(found))
    if as_json:
        click.echo(memory_validation_json(found), nl=False)
    else:
        show(memory_validation_text(found))
    if plot is not None and not drawable:
        click.echo("--plot: nothing drawn, as no row has a measured and a predicted figure", err=True)
        if out is None and not as_json:
            click.get_current_context().exit(2)
