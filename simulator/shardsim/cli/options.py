"""Options that several commands share, and how flags become the keys of a run file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from shardsim.errors import InputError, Problem
from shardsim.schema.flags import FLAGS

Command = TypeVar("Command", bound=Callable[..., Any])


def count(text: str) -> int:
    """Read a whole number, 1 or more. click's IntRange would add its range to every line of the help."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise click.BadParameter(f"{text!r} is not a whole number, 1 or more")
    return number


def _axes(text: str) -> list[str]:
    """Read a rank order such as ``tp-cp-dp-pp``; the schema checks the names."""
    return text.split("-")


def _counts(text: str) -> list[int]:
    """Read whole numbers such as ``11,12,12,11``."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a list of whole numbers such as 11,12,12,11") from None


def _words(text: str) -> list[str]:
    """Read names such as ``core_attn,mlp``; the schema checks them."""
    return [part.strip() for part in text.split(",")]


def _routing(text: str) -> str | dict[str, Any]:
    """Read ``balanced``, or one key with its value such as ``power_law=0.5``; the schema checks it."""
    from shardsim.schema.loader import parse_scalar

    key, equals, value = text.partition("=")
    if not equals:
        return text
    return {
        key.strip(): [parse_scalar(part.strip()) for part in value.split(",")]
        if key == "loads"
        else parse_scalar(value)
    }


SECTIONS = ("layout", "batch", "routing", "conditions", "loading", "checkpoint")
SCHEDULES = ("gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v", "v-half", "v-min", "dualpipe", "dualpipev")
MODULES = ("core_attn", "moe_act", "layernorm", "mla_up_proj", "mlp", "moe", "shared_experts")
"""Names for the help; what knows them takes too long to load for it."""


def data_option(command: Command) -> Command:
    """Add ``--data DIR``, repeatable, passed as ``data``: a tuple of paths."""
    return click.option(
        "--data",
        type=click.Path(path_type=Path),
        multiple=True,
        metavar="DIR",
        help="Folder with topologies/ and workloads/ of your own, searched before the bundled ones; may be repeated.",
    )(command)


def json_option(command: Command) -> Command:
    """Add ``--json``, passed as ``as_json``."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON with a stable schema.")(command)


_LAYOUT_OPTIONS = (
    click.option("--tp", type=count, metavar="N", help="Tensor-parallel degree."),
    click.option("--pp", type=count, metavar="N", help="Pipeline-parallel degree."),
    click.option("--dp", type=count, metavar="N", help="Data-parallel degree; what the GPUs leave if not given."),
    click.option("--vpp", type=count, metavar="N", help="Chunks a pipeline rank holds (interleaving)."),
    click.option("--cp", type=count, metavar="N", help="Context-parallel degree."),
    click.option("--ep", type=count, metavar="N", help="Expert-parallel degree."),
    click.option("--etp", type=count, metavar="N", help="Expert tensor-parallel degree."),
    click.option(
        "--cp-comm", metavar="NAME", help="Context parallelism by p2p (ring), all_gather, a2a (Ulysses) or a2a+p2p."
    ),
    click.option("--cp-inner", type=count, metavar="N", help="Ranks of the all-to-all within a2a+p2p."),
    click.option("--cp-zigzag/--no-cp-zigzag", default=None, help="Two chunks a rank, one from either end; default."),
    click.option("--dispatcher", metavar="NAME", help="Tokens to experts: alltoall, allgather, deepep or hybridep."),
    click.option("--capacity-factor", type=float, metavar="X", help="Rows an expert takes over the mean; dropless."),
    click.option("--pads-capacity/--no-pads-capacity", default=None, help="Experts work on all rows they may take."),
    click.option(
        "--overlap-experts/--no-overlap-experts",
        default=None,
        help="Tokens travel while another micro-batch is computed.",
    ),
    click.option("--sp/--no-sp", default=None, help="Megatron sequence parallelism."),
    click.option("--zero", type=click.IntRange(0, 3), metavar="0..3", help="ZeRO stage; 1: distributed optimizer."),
    click.option("--shard", type=count, metavar="N", help="Replicas over which ZeRO splits; others hold copies."),
    click.option("--reshard/--no-reshard", default=None, help="ZeRO 3: gather parameters again for the backward pass."),
    click.option(
        "--overlap-grad-reduce/--no-overlap-grad-reduce",
        default=None,
        help="Reduce gradients behind the backward pass.",
    ),
    click.option("--schedule", metavar="NAME", help=f"Pipeline schedule: {', '.join(SCHEDULES)}; or a file."),
    click.option("--group", type=count, metavar="N", help="Micro-batches interleaved through a chunk at once."),
    click.option("--first-layers", type=count, metavar="N", help="Layers of the first pipeline stage."),
    click.option("--last-layers", type=count, metavar="N", help="Layers of the last pipeline stage."),
    click.option("--stage-layers", type=_counts, metavar="N,N...", help="Layers of every virtual stage."),
    click.option("--pp-layout", metavar="STRING", help="Megatron's layout string, such as 'Et*3|(tt|)*14,L'."),
    click.option("--virtual-stage-layers", type=count, metavar="N", help="Layers of every chunk; vpp follows."),
    click.option(
        "--embedding-as-layer/--no-embedding-as-layer",
        default=None,
        help="Count the embedding as a layer in the split.",
    ),
    click.option("--loss-as-layer/--no-loss-as-layer", default=None, help="Count the loss as a layer in the split."),
    click.option("--recompute", metavar="NAME", help="Activation recompute: none, selective or full."),
    click.option(
        "--recompute-modules", type=_words, metavar="NAME,...", help=f"What selective repeats: {', '.join(MODULES)}."
    ),
    click.option("--recompute-method", metavar="NAME", help="Full recompute: uniform or block."),
    click.option(
        "--recompute-layers",
        type=count,
        metavar="N",
        help="Layers of a unit, or first layers of each chunk (block).",
    ),
    click.option("--order", type=_axes, metavar="AXES", help="Rank order, fastest first: tp-cp-dp-pp."),
)
_RUN_OPTIONS = (
    click.option("--model", metavar="NAME", help="Catalog name, or path of a config.json or YAML file."),
    click.option("--cluster", metavar="NAME", help="Catalog name, or path of a YAML file."),
    click.option("--gpus", type=count, metavar="N", help="GPUs in all; DP is what TP x PP x CP leave."),
    *_LAYOUT_OPTIONS,
    click.option("--micro-batch", type=count, metavar="N", help="Sequences a micro-batch of one replica."),
    click.option("--global-batch", type=count, metavar="N", help="Sequences an iteration, over all replicas."),
    click.option("--seq", type=count, metavar="N", help="Tokens a sequence."),
    click.option("--precision", metavar="NAME", help="Data type of the matrix products, such as bf16."),
    click.option("--framework", metavar="NAME", help="Framework profile of the catalog."),
    click.option(
        "--routing",
        type=_routing,
        metavar="HOW",
        help="Load of experts: balanced, power_law=EXPONENT, histogram=FILE.csv or loads=N,N...",
    ),
    click.option("--mtp", type=click.IntRange(min=0), metavar="N", help="Further tokens that are predicted."),
    click.option(
        "--set",
        "settings",
        multiple=True,
        metavar="KEY=VALUE",
        help="Any key of a run file, or of the hardware with its unit: cluster.nvlink.bandwidth='450 GB/s'; "
        "may be repeated.",
    ),
)


def run_options(command: Command) -> Command:
    """Add every flag that describes a run; collect them with :func:`run_keys`."""
    return _apply(command, _RUN_OPTIONS)


def layer_options(command: Command) -> Command:
    """Add every flag of a run except ``--model``, which is an argument where one layer is asked for."""
    return _apply(command, _RUN_OPTIONS[1:])


def layout_options(command: Command) -> Command:
    """Add the flags of a layout alone."""
    return _apply(command, _LAYOUT_OPTIONS)


def run_keys(flags: Mapping[str, Any], settings: Sequence[str] = ()) -> dict[str, Any]:
    """Turn flags into the nested keys of a run file.

    Parameters
    ----------
    flags : mapping
        By parameter name, as click passes them; None for a flag that was not given.
    settings : sequence of str
        ``key=value`` of each ``--set``. A key of the run itself replaces that key; any other dotted key is a change
        to the hardware.

    Returns
    -------
    dict
        Only what was given.

    Raises
    ------
    InputError
        A ``--set`` that is no ``key=value``, or one thing said twice.

    Examples
    --------
    >>> run_keys({"tp": 8, "pp": None, "gpus": 64}, ["batch.seq=2048"])
    {'gpus': 64, 'layout': {'tp': 8}, 'batch': {'seq': 2048}}
    """
    from shardsim.schema.run import nested

    keys = nested({flag: flags.get(flag) for flag in sorted(FLAGS, key=lambda flag: len(FLAGS[flag]))})
    problems = []
    for setting in settings:
        problem = _set(keys, setting)
        if problem is not None:
            problems.append(problem)
    if problems:
        raise InputError(problems)
    return keys


def _apply(command: Command, options: Sequence[Callable[[Command], Command]]) -> Command:
    for option in reversed(options):
        command = option(command)
    return command


def _set(keys: dict[str, Any], setting: str) -> Problem | None:
    """Add one ``--set``; the problem with it, if there is one."""
    from shardsim.schema.changes import WHOLE
    from shardsim.schema.loader import parse_scalar
    from shardsim.schema.run import RunRequest

    name, equals, text = setting.partition("=")
    name = name.strip()
    if not equals or not name or not text.strip():
        return Problem(f"{setting!r} is not key=value", "--set", "write it like --set layout.tp=8")
    path = tuple(name.split("."))
    own = path[0] in SECTIONS or (len(path) == 1 and path[0] in RunRequest.model_fields)
    if not own and len(path) == 1 and name not in WHOLE:
        from shardsim.schema.catalog import near

        known = [field for field in RunRequest.model_fields if field != "set"]
        return Problem(f"unknown key {name!r}", "--set", near(name, known))
    text = text.strip()
    listed = own and text.startswith("[") and text.endswith("]")
    value = [parse_scalar(part.strip()) for part in text[1:-1].split(",")] if listed else parse_scalar(text)
    if not _put(keys, path if own else ("set", name), value):
        return Problem(f"{name} is given twice, or by a flag as well", "--set", "keep one")
    return None


def _put(keys: dict[str, Any], path: tuple[str, ...], value: object) -> bool:
    """Put a value at a path; False when something is there already."""
    for part in path[:-1]:
        inner = keys.setdefault(part, {})
        if not isinstance(inner, dict):
            return False
        keys = inner
    if path[-1] in keys:
        return False
    keys[path[-1]] = value
    return True
