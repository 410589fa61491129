"""``shardsim bench``: measure this machine's GPU."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from shardsim.cli.lazy import NearNameGroup
from shardsim.cli.options import count, data_option
from shardsim.errors import InputError, Problem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardsim.calibrate.gpubench import BenchShape

_FILE = click.Path(path_type=Path)
_SIZE = re.compile(r"\s*([1-9][0-9]*)\s*[xX*]\s*([1-9][0-9]*)\s*[xX*]\s*([1-9][0-9]*)\s*")


@click.group(cls=NearNameGroup)
def bench() -> None:
    """Measure the GPU of this machine (needs PyTorch)."""


@bench.command(short_help="Matrix products: a table for calibrate gemm.", no_args_is_help=True)
@click.option("--out", type=_FILE, required=True, metavar="FILE.csv", help="Write the measured times.")
@click.option("--dtypes", default="bf16", show_default=True, metavar="NAME[,NAME...]", help="bf16, fp16, fp8.")
@click.option("--sizes", metavar="MxNxK[,MxNxK...]", help="Products to measure; by default 64 of many sizes.")
@click.option("--model", metavar="NAME", help="Measure the products of a layer of this model instead.")
@click.option(
    "--tp", type=count, default=1, show_default=True, metavar="N", help="Tensor-parallel degree of the model."
)
@click.option("--micro-batch", type=count, default=1, show_default=True, metavar="N", help="Sequences a micro-batch.")
@click.option("--seq", type=count, metavar="N", help="Tokens a sequence; 2,048, or all positions if fewer.")
@data_option
def gemm(
    *,
    out: Path,
    dtypes: str,
    sizes: str | None,
    model: str | None,
    tp: int,
    micro_batch: int,
    seq: int | None,
    data: tuple[Path, ...],
) -> None:
    """Measure matrix products on the GPU of this machine, with PyTorch.

    \b
    shardsim bench gemm --out gemms.csv
    shardsim calibrate gemm gemms.csv --device h100-sxm-80gb --fit own-gemm.yaml
    """  # noqa: D301  # click reads the escape
    from shardsim.calibrate.gpubench import SHAPES, BenchShape, bench_csv, find_gpu, measure, shapes_of
    from shardsim.report.console import progress
    from shardsim.report.save import check_outputs, save_text

    if sizes is not None and model is not None:
        raise InputError(Problem("--sizes and --model both say what to measure", "--sizes", "give one"))
    check_outputs({"--out": out})
    wanted = _dtypes(dtypes)
    shapes: Sequence[BenchShape] = [BenchShape(*shape) for shape in SHAPES] if sizes is None else _sizes(sizes)
    if model is not None:
        shapes = shapes_of(_layer(model, tp, micro_batch, seq, data))
    gpu = find_gpu()
    with progress(f"measuring {gpu.name}", total=len(shapes) * len(wanted)) as advance:
        rows, left = measure(gpu, shapes, wanted, advance)
    save_text(out, bench_csv(gpu, rows))
    click.echo(f"{len(rows)} products measured on {gpu.name}, written: {out}")
    for reason in left:
        click.echo(f"not measured: {reason}")


def _dtypes(text: str) -> tuple[str, ...]:
    from shardsim.calibrate.gpubench import DTYPES
    from shardsim.schema.catalog import near

    names = tuple(dict.fromkeys(name.strip().lower() for name in text.split(",")))
    problems = [Problem(f"{n!r} cannot be measured", "--dtypes", near(n, DTYPES)) for n in names if n not in DTYPES]
    if problems:
        raise InputError(problems)
    return names


def _sizes(text: str) -> list[BenchShape]:
    from shardsim.calibrate.gpubench import BenchShape

    found, problems = [], []
    for part in text.split(","):
        match = _SIZE.fullmatch(part)
        if match is None:
            problems.append(Problem(f"{part.strip()[:40]!r} is not m x n x k", "--sizes", "such as 4096x12288x4096"))
        else:
            m, n, k = (int(size) for size in match.groups())
            found.append(BenchShape(m, n, k))
    if problems:
        raise InputError(problems)
    return found


def _layer(name: str, tp: int, micro_batch: int, seq: int | None, data: Sequence[Path]) -> Sequence[object]:
    """Operators of a layer, forward and backward."""
    from shardsim.schema.framework import load_framework
    from shardsim.schema.model import load_model
    from shardsim.values.training import Batch, Layout
    from shardsim.workload.layer import layer_backward, layer_forward
    from shardsim.workload.validity import check

    model, framework = load_model(name, data), load_framework("megatron-core", data)
    layout = Layout(tp=tp, pp=1, dp=1)
    batch = Batch(micro_batch, micro_batch, seq or min(2048, model.max_positions or 2048))
    problems, _ = check(model, layout, batch, tp, framework)
    if problems:
        raise InputError(problems)
    return (*layer_forward(model, layout, batch, framework), *layer_backward(model, layout, batch, framework))
