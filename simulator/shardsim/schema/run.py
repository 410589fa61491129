"""The description of a run as a user writes it: a YAML file, command-line flags, or keywords in Python."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from shardsim.errors import InputError, Problem
from shardsim.schema.base import Count, StrictModel, Text
from shardsim.schema.catalog import is_path
from shardsim.schema.conditions import ConditionsRequest
from shardsim.schema.flags import FLAGS
from shardsim.schema.iterations import CheckpointRequest, LoadingRequest
from shardsim.schema.loader import Document, KeyPath, check, dotted, load_yaml
from shardsim.schema.megatron import DISPATCHER_NAMES, MEGATRON_NAMES, RecomputeModule, flex_dispatcher, inner_ranks
from shardsim.schema.routing import RoutingRequest
from shardsim.values.training import ContextComm, Dispatcher

_SECTIONS = ("layout", "batch")


def _no_truth_value(value: object) -> object:
    """Refuse ``true``, which Python takes for 1."""
    if isinstance(value, bool):
        raise ValueError(f"{str(value).lower()} is not a ZeRO stage; write 0, 1, 2 or 3")
    return value


ZeroStage = Annotated[Literal[0, 1, 2, 3], BeforeValidator(_no_truth_value)]


class LayoutRequest(StrictModel):
    """Degrees and choices of a layout; what is left out follows from the framework."""

    tp: Count = Field(default=1, description="tensor-parallel degree")
    pp: Count = Field(default=1, description="pipeline-parallel degree")
    dp: Count | None = Field(default=None, description="data-parallel degree; derived from gpus when left out")
    cp: Count = Field(default=1, description="context-parallel degree")
    ep: Count = Field(default=1, description="expert-parallel degree")
    etp: Count | None = Field(
        default=None, description="expert tensor-parallel degree; tp or 1 if left out, as the framework has it"
    )
    cp_comm: ContextComm | None = Field(
        default=None,
        description="how keys and values reach context-parallel ranks: p2p (ring), all_gather (Llama 3), a2a "
        "(Ulysses), a2a+p2p; the framework decides when left out",
    )
    cp_inner: Count | None = Field(default=None, description="ranks of the all-to-all within a2a+p2p")
    cp_zigzag: bool = Field(
        default=True, description="two chunks a rank, one from either end, which balances a causal mask"
    )
    dispatcher: Dispatcher | None = Field(
        default=None,
        description="how tokens reach experts: alltoall, allgather, deepep or hybridep; the framework decides when "
        "left out",
    )
    capacity_factor: float | None = Field(
        default=None, gt=0, description="rows that an expert takes over those of balanced routing; dropless if left out"
    )
    pads_capacity: bool = Field(default=False, description="experts work on all the rows they may take")
    overlap_experts: bool = Field(
        default=False, description="tokens travel to experts and back while another micro-batch is computed"
    )
    vpp: Count | None = Field(
        default=None,
        description="chunks a pipeline rank holds; if left out, as schedule or layers of stages imply, else 1",
    )
    sp: bool | None = Field(default=None, description="Megatron sequence parallelism")
    zero: ZeroStage | None = Field(default=None, description="ZeRO stage; 1 is the distributed optimizer")
    shard: Count | None = Field(
        default=None, description="replicas over which ZeRO splits, the others hold copies (hybrid sharding); all of dp"
    )
    reshard: bool | None = Field(
        default=None, description="under ZeRO 3, give parameters up after the forward pass; true if left out"
    )
    schedule: Text | None = Field(default=None, description="pipeline schedule: a name, or the path of a YAML file")
    group: Count | None = Field(
        default=None, description="micro-batches that interleaving runs through a chunk before the next; pp if left out"
    )
    stage_layers: tuple[Annotated[int, Field(ge=0)], ...] | None = Field(
        default=None, min_length=1, description="layers of each virtual stage, first layers first"
    )
    first_layers: Count | None = Field(default=None, description="layers of the first pipeline stage")
    last_layers: Count | None = Field(default=None, description="layers of the last pipeline stage")
    embedding_as_layer: bool = Field(default=False, description="count the embedding as a layer when splitting evenly")
    loss_as_layer: bool = Field(default=False, description="count LM head and loss as a layer when splitting evenly")
    pp_layout: Text | None = Field(
        default=None, description="Megatron's layout string: E, t and L, with bars between virtual stages"
    )
    virtual_stage_layers: Count | None = Field(
        default=None, description="layers of every chunk, from which vpp follows"
    )
    recompute: Literal["none", "selective", "full"] | None = Field(default=None, description="activation recompute")
    recompute_modules: tuple[RecomputeModule, ...] | None = Field(
        default=None,
        min_length=1,
        description="what selective recompute repeats; as the framework has it, core_attn in most, if left out",
    )
    recompute_method: Literal["uniform", "block"] | None = Field(
        default=None, description="full recompute in units of recompute_layers, or of the first recompute_layers alone"
    )
    recompute_layers: Count | None = Field(default=None, description="layers of a unit, or layers that are recomputed")
    order: tuple[Literal["tp", "cp", "ep", "dp", "pp"], ...] | None = Field(
        default=None, description="axes from fastest to slowest rank number"
    )
    overlap_grad_reduce: bool | None = Field(
        default=None, description="reduce gradients while the backward pass runs; the framework decides when left out"
    )


class BatchRequest(StrictModel):
    """What one iteration trains on."""

    global_: Count = Field(alias="global", description="sequences an iteration, over all replicas")
    micro: Count = Field(default=1, description="sequences a micro-batch of one replica")
    seq: Count = Field(description="tokens a sequence")


class RunRequest(StrictModel):
    """One run as asked for; :func:`shardsim.program.resolve.resolve` turns it into a ``TrainingRun``."""

    model: Text | dict[str, Any] = Field(description="catalog name, path of a config.json or YAML, or inline shape")
    cluster: Text = Field(description="catalog name or path")
    gpus: Count | None = Field(default=None, description="GPUs in all; may be left out where dp is given")
    layout: LayoutRequest = LayoutRequest()
    batch: BatchRequest
    precision: Text | None = Field(
        default=None,
        description="data type of the matrix products: bf16, fp16, ...; fp8 by the framework's recipe, or fp8-delayed, "
        "fp8-current, fp8-block, mxfp8, nvfp4",
    )
    framework: Text | None = Field(default=None, description="framework profile; the cluster's usual one if left out")
    routing: RoutingRequest | None = Field(
        default=None, description="load of experts: balanced, or a mapping with one key; balanced if left out"
    )
    mtp: int | None = Field(
        default=None, ge=0, description="further tokens that are predicted, each by a module; the model's if left out"
    )
    conditions: ConditionsRequest = ConditionsRequest()
    loading: LoadingRequest | None = None
    checkpoint: CheckpointRequest | None = None
    set: dict[str, str | int | float | bool] = Field(
        default_factory=dict, description="changes to the hardware, such as cluster.nvlink.bandwidth: 450 GB/s"
    )


def load_run(path: Path, overrides: Mapping[str, Any] | None = None) -> RunRequest:
    """Read a run from a YAML file.

    Parameters
    ----------
    path : Path
    overrides : mapping, optional
        Nested keys that replace those of the file, such as command-line flags.

    Returns
    -------
    RunRequest
        Paths in the file start from its folder and may not leave it; paths in ``overrides`` may be anywhere.

    Raises
    ------
    InputError
        The file cannot be read, or every problem in it.
    """
    document = _canonical(load_yaml(path))
    _stay_inside(document, path.parent)
    over = _canonical(Document(dict(overrides or {}), "command line")).data
    origins = {keys: f"command line: {dotted(keys)}" for keys in _leaves(over)}
    content = {"batch": {}, **merged(document.data, over)}  # so that what is missing in it is named key by key
    return check(Document(content, document.file, document.lines, origins), RunRequest)


def request_from_mapping(data: Mapping[str, Any], where: str = "") -> RunRequest:
    """Check a run that came from no file.

    Parameters
    ----------
    data : mapping
        The same keys as in the YAML file.
    where : str
        Name for messages, such as ``command line``.

    Returns
    -------
    RunRequest

    Raises
    ------
    InputError
        Every problem at once.
    """
    document = _canonical(Document(dict(data), where))
    return check(Document({"batch": {}, **document.data}, where, document.lines), RunRequest)


def nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Turn keys by the names of the command-line flags into the nested keys of a run file.

    Parameters
    ----------
    flat : mapping
        Such as ``{"model": "gpt3-175b", "tp": 8}``; keys with the value None are left out, and keys that are no
        flag stay at the top, where the schema refuses them by name.

    Returns
    -------
    dict

    Examples
    --------
    >>> nested({"gpus": 64, "tp": 8, "pp": None})
    {'gpus': 64, 'layout': {'tp': 8}}
    """
    keys: dict[str, Any] = {}
    for name, value in flat.items():
        if value is None:
            continue
        # NumPy's numbers are numbers too.
        value = value.item() if type(value).__module__ == "numpy" and hasattr(value, "item") else value  # noqa: PLW2901
        *sections, key = FLAGS.get(name, (name,))
        home = keys
        for section in sections:
            home = home.setdefault(section, {})
        home[key] = value
    return keys


def _canonical(document: Document) -> Document:
    """Replace Megatron-LM argument names by ours; the same thing said twice is refused."""
    data = {key: dict(value) if isinstance(value, Mapping) else value for key, value in document.data.items()}
    lines = dict(document.lines)
    twice: list[Problem] = []
    _join_dispatcher(data, lines)
    for section in ("", *_SECTIONS):
        source = data if not section else data.get(section)
        if not isinstance(source, dict):
            continue
        here = (section,) if section else ()
        replaced, wrong = flex_dispatcher(source)
        source.clear()
        source.update(replaced)
        twice += [Problem(what, document.where(here)) for what in wrong]
        for key in [name for name in source if name.replace("-", "_") in MEGATRON_NAMES]:
            *target_section, target = MEGATRON_NAMES[key.replace("-", "_")]
            if (*here, key) == (*target_section, target):
                continue  # some names are the same
            path = (*here, key)
            home = data.setdefault(target_section[0], {}) if target_section else data
            if not isinstance(home, dict):
                continue
            if target in home:
                same = dotted((*target_section, target))
                twice.append(Problem(f"says the same as {same}", document.where(path), "keep one"))
            home[target] = source.pop(key)
            if path in lines:
                lines[(*target_section, target)] = lines[path]
    if twice:
        raise InputError(twice)
    layout = data.get("layout")
    if isinstance(layout, dict) and "cp_inner" in layout:
        layout["cp_inner"], apart = inner_ranks(layout["cp_inner"], layout.get("cp"))
        if apart:
            raise InputError(
                Problem(apart, document.where(("layout", "cp_inner")), "inner and outer, inner first: [4, 2]")
            )
    return Document(data, document.file, lines)


def _join_dispatcher(data: dict[str, Any], lines: dict[KeyPath, int]) -> None:
    """Bring arguments together that say what the dispatcher is, some at the top and some under ``layout``."""
    layout = data.get("layout")
    if not isinstance(layout, dict) or not any(map(_of_dispatcher, layout)):
        return
    for key in [name for name in data if _of_dispatcher(name) and name not in layout]:
        layout[key] = data.pop(key)
        if (key,) in lines:
            lines["layout", key] = lines[(key,)]


def _of_dispatcher(key: str) -> bool:
    return key.replace("-", "_") in DISPATCHER_NAMES


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Lay nested keys over others; an inline model is replaced as a whole.

    >>> merged({"layout": {"tp": 8, "pp": 2}}, {"layout": {"tp": 4}})
    {'layout': {'tp': 4, 'pp': 2}}
    """
    result = dict(base)
    for key, value in over.items():
        inner = result.get(key)
        if isinstance(value, Mapping) and isinstance(inner, Mapping) and key != "model":
            result[key] = merged(inner, value)
        else:
            result[key] = value
    return result


def _leaves(data: Mapping[str, Any], keys: KeyPath = ()) -> Iterator[KeyPath]:
    for key, value in data.items():
        if isinstance(value, Mapping) and key != "model":
            yield from _leaves(value, (*keys, key))
        else:
            yield (*keys, key)


def _stay_inside(document: Document, folder: Path) -> None:
    """Make paths in a file absolute, and refuse those that leave the file's folder."""
    root = folder.resolve()
    outside: list[Problem] = []
    layout = document.data.get("layout")
    routing = document.data.get("routing")
    sections: list[tuple[KeyPath, dict[str, Any], tuple[str, ...]]] = [
        ((), document.data, ("model", "cluster", "framework"))
    ]
    sections += [(("layout",), layout, ("schedule",))] if isinstance(layout, dict) else []
    sections += [(("routing",), routing, ("histogram",))] if isinstance(routing, dict) else []
    for keys, section, named in sections:
        for key in named:
            name = section.get(key)
            if not isinstance(name, str) or not (is_path(name) or key == "histogram"):
                continue
            target = (root / name).resolve()
            if not target.is_relative_to(root):
                right = f"a path below {folder or '.'}, or give it with --{key} on the command line"
                what = f"{name!r} leaves the folder of the file that names it"
                outside.append(Problem(what, document.where((*keys, key)), right))
            section[key] = str(target)
    if outside:
        raise InputError(outside)
