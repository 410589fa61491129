"""The description of a run as a user writes it: a YAML file, command-line flags, or keywords in Python."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from shardsim.errors import InputError, Problem
from shardsim.schema.base import Count, StrictModel, Text
from shardsim.schema.catalog import is_path
from shardsim.schema.flags import FLAGS
from shardsim.schema.loader import Document, KeyPath, check, dotted, load_yaml

MEGATRON_NAMES: dict[str, tuple[str, ...]] = {
    "tensor_model_parallel_size": ("layout", "tp"),
    "pipeline_model_parallel_size": ("layout", "pp"),
    "context_parallel_size": ("layout", "cp"),
    "expert_model_parallel_size": ("layout", "ep"),
    "expert_tensor_parallel_size": ("layout", "etp"),
    "virtual_pipeline_model_parallel_size": ("layout", "vpp"),
    "num_virtual_stages_per_pipeline_rank": ("layout", "vpp"),
    "num_layers_per_virtual_pipeline_stage": ("layout", "virtual_stage_layers"),
    "microbatch_group_size_per_virtual_pipeline_stage": ("layout", "group"),
    "microbatch_group_size_per_vp_stage": ("layout", "group"),
    "decoder_first_pipeline_num_layers": ("layout", "first_layers"),
    "decoder_last_pipeline_num_layers": ("layout", "last_layers"),
    "num_layers_in_first_pipeline_stage": ("layout", "first_layers"),
    "num_layers_in_last_pipeline_stage": ("layout", "last_layers"),
    "account_for_embedding_in_pipeline_split": ("layout", "embedding_as_layer"),
    "account_for_loss_in_pipeline_split": ("layout", "loss_as_layer"),
    "pipeline_model_parallel_layout": ("layout", "pp_layout"),
    "sequence_parallel": ("layout", "sp"),
    "recompute_granularity": ("layout", "recompute"),
    "recompute_modules": ("layout", "recompute_modules"),
    "recompute_method": ("layout", "recompute_method"),
    "recompute_num_layers": ("layout", "recompute_layers"),
    "reshard_after_forward": ("layout", "reshard"),
    "micro_batch_size": ("batch", "micro"),
    "global_batch_size": ("batch", "global"),
    "seq_length": ("batch", "seq"),
}
"""Argument names of Megatron-LM, and of FSDP2, accepted beside our own, in their section or at the top of the file."""

_SECTIONS = ("layout", "batch")


def _no_truth_value(value: object) -> object:
    """Refuse ``true``, which Python takes for 1."""
    if isinstance(value, bool):
        raise ValueError(f"{str(value).lower()} is not a ZeRO stage; write 0, 1, 2 or 3")
    return value


ZeroStage = Annotated[Literal[0, 1, 2, 3], BeforeValidator(_no_truth_value)]


RecomputeModule = Literal["core_attn", "moe_act", "layernorm", "mla_up_proj", "mlp", "moe", "shared_experts"]
"""What selective recompute may repeat, by Megatron Core's names."""


class LayoutRequest(StrictModel):
    """Degrees and choices of a layout; what is left out follows from the framework."""

    tp: Count = Field(default=1, description="tensor-parallel degree")
    pp: Count = Field(default=1, description="pipeline-parallel degree")
    dp: Count | None = Field(default=None, description="data-parallel degree; derived from gpus when left out")
    cp: Count = Field(default=1, description="context-parallel degree")
    ep: Count = Field(default=1, description="expert-parallel degree")
    etp: Count | None = Field(default=None, description="expert tensor-parallel degree; tp if left out, with experts")
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
        default=None, min_length=1, description="what selective recompute repeats; core_attn if left out"
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
    for section in ("", *_SECTIONS):
        source = data if not section else data.get(section)
        if not isinstance(source, dict):
            continue
        for key in [name for name in source if name.replace("-", "_") in MEGATRON_NAMES]:
            target_section, target = MEGATRON_NAMES[key.replace("-", "_")]
            if (section, key) == (target_section, target):
                continue  # some names are the same
            path = (section, key) if section else (key,)
            home = data.setdefault(target_section, {})
            if not isinstance(home, dict):
                continue
            if target in home:
                twice.append(Problem(f"says the same as {target_section}.{target}", document.where(path), "keep one"))
            home[target] = source.pop(key)
            if path in lines:
                lines[(target_section, target)] = lines[path]
    if twice:
        raise InputError(twice)
    return Document(data, document.file, lines)


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
    sections = [((), document.data)] + ([(("layout",), layout)] if isinstance(layout, dict) else [])
    for keys, section in sections:
        for key in ("model", "cluster", "framework") if not keys else ("schedule",):
            name = section.get(key)
            if not isinstance(name, str) or not is_path(name):
                continue
            target = (root / name).resolve()
            if not target.is_relative_to(root):
                right = f"a path below {folder or '.'}, or give it with --{key} on the command line"
                what = f"{name!r} leaves the folder of the file that names it"
                outside.append(Problem(what, document.where((*keys, key)), right))
            section[key] = str(target)
    if outside:
        raise InputError(outside)
