"""What the pages do not say by hand: tables from the schemas, and figures from predictions made today."""

from __future__ import annotations

import json
import types
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, Protocol, Union, get_args, get_origin

from pydantic import BaseModel

from shardsim.schema import hardware, kernels
from shardsim.schema.catalog import names
from shardsim.schema.framework import FrameworkFile
from shardsim.schema.hosts import HostFile
from shardsim.schema.megatron import MEGATRON_NAMES
from shardsim.schema.model import MlaFile, ModelFile, MoeFile
from shardsim.schema.rules import RuleRow, RulesFile
from shardsim.schema.run import BatchRequest, LayoutRequest, RunRequest
from shardsim.schema.schedules import ScheduleFile
from shardsim.schema.stacks import StackFile
from shardsim.validate.rows import REQUIRED, MeasuredRun

SIZES = ("1.2b", "2.5b", "4.2b", "8.3b")


class Place(Protocol):
    """Where commands run."""

    folder: Path

    def run(self, command: str) -> list[str]:
        """Run a command; what it printed, line by line."""


# Figures.


def validation(place: Place) -> list[str]:
    """How predictions compare with published runs."""
    place.run("shardsim validate runs --out rows.csv")
    rows = (place.folder / "rows.csv").read_text(encoding="utf-8").splitlines()[1:]
    errors = [float(row.split(",")[3]) for row in rows]
    worst, mean = max(errors, key=abs), sum(map(abs, errors)) / len(errors)
    tensor = _weak_scaling(place, "1,2,4,8", batch=8, dp=1)
    one_gpu = tensor["reference_tflops"]
    both = _weak_scaling(place, "64,128,256,512", batch=512, dp=64, baseline=one_gpu)
    plain, overlapped = (_on_512_gpus(place, overlap=choice) / one_gpu for choice in (False, True))
    ten_runs = f"Narayanan et al. 2021, Table 1: {len(errors)} runs, 1.7 to 1,008 billion parameters, 32 to 3,072 A100"
    no_bias = f"mean {mean:.1%}, worst {worst:+.1%}; bias {sum(errors) / len(errors):+.1%}"
    readme = "Megatron-LM's README: 8.3 billion parameters, 512 GPUs, gradient reduction at the end, overlapped"
    return [
        "| published | quantity | published value | predicted |",
        "| --- | --- | --- | --- |",
        f"| {ten_runs} | error of the iteration time | | {no_bias} |",
        f"| Shoeybi et al. 2019: 1.2 billion parameters, one V100 | TFLOP/s | 39 | {one_gpu:.1f} |",
        _scaling_row("Shoeybi et al. 2019, Figure 5: TP 1, 2, 4, 8", tensor),
        _scaling_row("Shoeybi et al. 2019, Figure 5: the same with DP 64, on 64, 128, 256, 512 GPUs", both),
        f"| {readme} | weak scaling, % | 60, 76 | {100 * plain:.0f}, {100 * overlapped:.0f} |",
    ]


def _scaling_row(title: str, study: Any) -> str:
    published, predicted = (
        ", ".join(f"{100 * point[key]:.0f}" for point in study["points"])
        for key in ("measured_efficiency", "efficiency")
    )
    return f"| {title} | weak scaling, % | {published} | {predicted} |"


def _weak_scaling(place: Place, gpus: str, *, batch: int, dp: int, baseline: float | None = None) -> Any:
    models = ",".join(f"megatron-{size}" for size in SIZES)
    given = f"--baseline-tflops {baseline}" if baseline is not None else ""
    return _json(
        place,
        f"shardsim scale --model {models} --cluster dgx-2h --gpus {gpus} --grow tp --dp {dp} --micro-batch 8 "
        f"--global-batch {batch} --seq 1024 --measured workloads/measured/megatron-2019.csv --json {given}",
    )


def _on_512_gpus(place: Place, *, overlap: bool) -> float:
    found = _json(
        place,
        "shardsim simulate --model megatron-8.3b --cluster dgx-2h --gpus 512 --tp 8 --micro-batch 8 "
        f"--global-batch 512 --seq 1024 --set layout.overlap_grad_reduce={str(overlap).lower()} --json",
    )
    return float(found["tflops_per_gpu"])


def _json(place: Place, command: str) -> Any:
    return json.loads("\n".join(place.run(command)))


# Provenance.


def kernel_provenance(_: Place) -> list[str]:
    """How the constants of each device are known."""
    rows = ["| device profile | matrix products | tile constants | fused attention | memory-bound kernels measured |"]
    rows.append("| --- | --- | --- | --- | --- |")
    for name in names("kernel-profile"):
        found = kernels.load_kernel_profile(name).provenance
        product = ", ".join(dict.fromkeys(one.basis for key, one in found.items() if key.endswith(".sustained")))
        parts = ((key.split("."), one.basis) for key, one in found.items() if key.endswith(".efficiency.128"))
        attention = ", ".join(f"{key[2]} {key[3]} {basis}" for key, basis in parts if key[0] == "attention")
        kinds = [key.split(".")[2] for key in found if key.startswith("memory_bound.efficiency.")]
        measured = [kind for kind in kinds if found[f"memory_bound.efficiency.{kind}"].basis == "measured"]
        overhead = found["gemm.fp16.overhead"]
        fit = (
            f"{overhead.basis}, {overhead.points:,} points, {overhead.error:.1%}" if overhead.points else overhead.basis
        )
        rows.append(f"| `{name}` | {product} | {fit} | {attention} | {', '.join(measured) or 'none'} |")
    return rows


def fabric_provenance(_: Place) -> list[str]:
    """How the constants of each fabric are known."""
    rows = ["| fabric profile | NVLink: all-reduce | NVLink: others | adapters | adapters: messages |"]
    rows.append("| --- | --- | --- | --- | --- |")
    for name in names("fabric-profile"):
        links = hardware.load_fabric_profile(name).links
        cells = [
            links[link].provenance_of(kind).basis
            for link, kind in (
                ("nvlink", "all_reduce"),
                ("nvlink", "default"),
                ("nic", "all_reduce"),
                ("nic", "send_recv"),
            )
        ]
        rows.append(f"| `{name}` | {' | '.join(cells)} |")
    return rows


# Schemas.


def run_schema(_: Place) -> list[str]:
    """Keys of a run file."""
    return [*_keys(RunRequest), "", *_keys(LayoutRequest, "layout"), "", *_keys(BatchRequest, "batch")]


def megatron_names(_: Place) -> list[str]:
    """Megatron-LM's argument names, and ours."""
    rows = [f"| `{name}` | `{'.'.join(path)}` |" for name, path in MEGATRON_NAMES.items()]
    return ["| Megatron-LM | here |", "| --- | --- |", *rows]


def model_schema(_: Place) -> list[str]:
    """Keys of a model file."""
    return [*_keys(ModelFile), "", *_keys(MoeFile, "moe"), "", *_keys(MlaFile, "mla")]


def framework_schema(_: Place) -> list[str]:
    """Keys of a framework file."""
    return _keys(FrameworkFile)


def rules_schema(_: Place) -> list[str]:
    """Keys of a rule set."""
    return [*_keys(RulesFile), "", *_keys(RuleRow, "rules[]")]


def device_schema(_: Place) -> list[str]:
    """Keys of a device file."""
    return [*_keys(hardware.DeviceFile), "", *_keys(hardware.PeakFlops, "peak_flops")]


def cluster_schema(_: Place) -> list[str]:
    """Keys of a cluster file."""
    return [*_keys(hardware.ClusterFile), "", *_keys(hardware.LinkFile, "nvlink", "pcie", "nic")]


def kernel_schema(_: Place) -> list[str]:
    """Keys of a kernel profile."""
    return [
        *_keys(kernels.KernelProfileFile),
        "",
        *_keys(kernels.GemmFile),
        "",
        *_keys(kernels.GemmProfile, "bf16"),
        "",
        *_keys(kernels.TileProfile, "bf16.tile"),
        "",
        *_keys(kernels.GroupedProfile, "bf16.grouped"),
        "",
        *_keys(kernels.AlignmentProfile, "alignment.64"),
        "",
        *_keys(kernels.AttentionFile),
        "",
        *_keys(kernels.AttentionPassProfile, "libraries.NAME.forward", "libraries.NAME.backward"),
        "",
        *_keys(kernels.MemoryBoundFile),
    ]


def schedule_schema(_: Place) -> list[str]:
    """Keys of a pipeline schedule of one's own."""
    return _keys(ScheduleFile)


def host_schema(_: Place) -> list[str]:
    """Keys of a host profile."""
    return _keys(HostFile)


def stack_schema(_: Place) -> list[str]:
    """Keys of a stack profile."""
    return _keys(StackFile)


def fabric_schema(_: Place) -> list[str]:
    """Keys of a fabric profile."""
    return [*_keys(hardware.FabricProfileFile), "", *_keys(hardware.LinkProfile, "links.nvlink", "links.nic")]


def measured_columns(_: Place) -> list[str]:
    """Columns of a table of measured runs."""
    own = {"iteration_s": "iteration_time_s", "interconnect": "interconnect..."}
    names = [own.get(item.name, item.name) for item in fields(MeasuredRun)]
    return [
        "| | columns |",
        "| --- | --- |",
        f"| must be there, cells may be empty | {_code(REQUIRED)} |",
        f"| used where they are there | {_code([name for name in names if name not in REQUIRED])} |",
    ]


def _code(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _keys(model: Any, *inside: str) -> list[str]:
    """Tabulate the keys of a schema."""
    rows = [f"| {f'key of {_code(inside)}' if inside else 'key'} | value | if left out | meaning |"]
    rows.append("| --- | --- | --- | --- |")
    for name, info in model.model_fields.items():
        value = _words(info.annotation, tuple(info.metadata))
        rows.append(f"| `{info.alias or name}` | {value} | {_default(info)} | {info.description or ''} |")
    return rows


def _default(info: Any) -> str:
    if info.is_required():
        return "required"
    if info.default_factory is not None or info.default is None or isinstance(info.default, BaseModel):
        return ""
    return f"`{json.dumps(info.default)}`".replace('"', "")


def _words(annotation: Any, metadata: tuple[Any, ...] = ()) -> str:
    """Say which values a key takes."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        words = _words(arguments[0], (*metadata, *arguments[1:]))
    elif origin in (Union, types.UnionType):
        words = " or ".join(_words(part, metadata) for part in arguments if part is not type(None))
    elif origin is Literal:
        words = _code([str(value) for value in arguments])
    elif origin is tuple or (origin is not None and len(arguments) == 1 and not hasattr(annotation, "model_fields")):
        words = f"list of {_words(arguments[0])}"
    elif arguments and not hasattr(annotation, "model_fields"):
        words = f"mapping of {_words(arguments[0])} to {_words(arguments[1])}"
    elif hasattr(annotation, "model_fields"):
        words = _mapping_words(annotation)
    else:
        words = _scalar_words(annotation, metadata)
    return words


def _mapping_words(model: Any) -> str:
    values = model.model_fields
    if "value" not in values:
        return "mapping, below"
    value = _words(values["value"].annotation, tuple(values["value"].metadata))
    return f"`{{{', '.join(values)}}}`: {value}"


_KINDS = MappingProxyType({int: "whole number", float: "number", bool: "true or false", str: "text"})
_BOUNDS = MappingProxyType({"ge": "{:g} or more", "gt": "above {:g}", "le": "at most {:g}", "lt": "below {:g}"})


def _scalar_words(annotation: Any, metadata: tuple[Any, ...]) -> str:
    quantities = [item.func.keywords["kind"] for item in metadata if hasattr(getattr(item, "func", None), "keywords")]
    if quantities:
        return f"{quantities[0].replace('_', ' ')} with its unit"
    limits = [
        phrase.format(getattr(item, name))
        for item in metadata
        for name, phrase in _BOUNDS.items()
        if getattr(item, name, None) is not None
    ]
    return ", ".join([_KINDS.get(annotation, "any"), *limits])


GENERATED: MappingProxyType[str, Callable[[Place], list[str]]] = MappingProxyType(
    {
        "validation": validation,
        "kernel-provenance": kernel_provenance,
        "fabric-provenance": fabric_provenance,
        "run-schema": run_schema,
        "megatron-names": megatron_names,
        "model-schema": model_schema,
        "framework-schema": framework_schema,
        "rules-schema": rules_schema,
        "device-schema": device_schema,
        "cluster-schema": cluster_schema,
        "kernel-schema": kernel_schema,
        "host-schema": host_schema,
        "stack-schema": stack_schema,
        "schedule-schema": schedule_schema,
        "fabric-schema": fabric_schema,
        "measured-columns": measured_columns,
    }
)
