"""A prediction as plain data with a stable schema: what ``--json`` prints and the page is made from."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from shardsim.engine.accounts import COMMUNICATION
from shardsim.errors import ShardsimError
from shardsim.report.iterations import iterations_record
from shardsim.report.lanes import lanes_record
from shardsim.units import gib, gigabytes_per_second, tflops
from shardsim.values.bands import ErrorBand
from shardsim.values.provenance import Provenance
from shardsim.values.results import MemoryProfile, Prediction, StageAccount
from shardsim.values.training import TrainingRun

SCHEMA = "shardsim.prediction/1"
"""Name of the schema; the number grows when a key changes its meaning or goes, not when one is added."""
AXES = COMMUNICATION
"""Axes whose exposed communication is always named, 0 where nothing is exposed."""


def prediction_record(prediction: Prediction) -> dict[str, Any]:
    """Lay a prediction out as nested dicts, lists, text, finite numbers, truth values and None.

    Parameters
    ----------
    prediction : Prediction

    Returns
    -------
    dict
        Keys in a fixed order. Times in seconds, memory in GiB, rates in TFLOP/s, as each key's ending says.

    Raises
    ------
    ShardsimError
        A figure is not a finite number; it is named.
    """
    execution = prediction.execution
    record = {
        "schema": SCHEMA,
        "run": run_record(prediction.run),
        "engine": execution.engine,
        "events": execution.events,
        "iteration_s": prediction.iteration_s,
        "error_band": _band(prediction.band),
        "tokens_per_s": prediction.tokens_per_s,
        "tokens_per_s_per_gpu": prediction.tokens_per_s_per_gpu,
        "tflops_per_gpu": tflops(prediction.flops_per_gpu),
        "mfu": prediction.mfu,
        "hfu": prediction.hfu,
        "peak_tflops": tflops(prediction.peak_flops),
        "peak_name": peak_name(prediction),
        "model_flop": prediction.model_flop,
        "hardware_flop": prediction.hardware_flop,
        "bubble_fraction": prediction.bubble_fraction,
        "exposed_s": dict.fromkeys(AXES, 0.0) | dict(prediction.exposed_s),
        "waterfall": [
            {"name": step.name, "seconds": step.seconds, "tflops_lost": tflops(step.flops_lost)}
            for step in prediction.waterfall
        ],
        "stages": [_stage(account) for account in execution.stages],
        **_memory(prediction.memory),
        "costs": [
            {"constant": note.constant, "value": note.value, **_provenance(note.provenance)}
            for note in prediction.costs
        ],
        "warnings": list(prediction.warnings),
        **lanes_record(prediction),
        **iterations_record(prediction),
    }
    return {key: _plain(value, key) for key, value in record.items()}


def _band(band: ErrorBand | None) -> dict[str, Any] | None:
    if band is None:
        return None
    group = band.group
    return {
        "low_s": band.low_s,
        "high_s": band.high_s,
        "share": 0.8,
        "like": group.name,
        "runs": group.rows,
        "models": group.models,
        "sources": group.sources,
        "median_abs_error": group.median,
        "p90_abs_error": group.p90,
        "extrapolates": list(band.extrapolates),
    }


def run_record(run: TrainingRun) -> dict[str, Any]:
    """Describe a run: what was predicted, with everything derived or taken by default.

    Parameters
    ----------
    run : TrainingRun

    Returns
    -------
    dict
    """
    layout, batch, model, cluster = run.layout, run.batch, run.model, run.cluster
    record = {
        "model": {
            "name": model.name,
            "layers": model.layers,
            "hidden": model.hidden,
            "heads": model.heads,
            "kv_heads": model.kv_heads,
            "ffn": model.ffn,
            "vocab": model.vocab,
            "experts": 0 if model.moe is None else model.moe.experts,
            "top_k": 0 if model.moe is None else model.moe.top_k,
            "mtp": model.mtp,
        },
        "cluster": {
            "name": cluster.name,
            "device": cluster.device.name,
            "gpus_per_node": cluster.gpus_per_node,
            "gpus_per_domain": cluster.gpus_per_domain,
            "nvlink_gb_per_s": gigabytes_per_second(cluster.nvlink.bandwidth),
            "nic_gb_per_s": gigabytes_per_second(cluster.nic.bandwidth),
            "nics_per_node": cluster.nics_per_node,
        },
        "gpus": layout.gpus,
        "layout": {
            "tp": layout.tp,
            "pp": layout.pp,
            "dp": layout.dp,
            "cp": layout.cp,
            "ep": layout.ep,
            "vpp": layout.vpp,
            "sp": layout.sp,
            "zero": layout.zero,
            "schedule": layout.schedule,
            "recompute": layout.recompute,
            "recompute_modules": list(layout.recompute_modules) if layout.recompute == "selective" else [],
            "recompute_method": layout.recompute_method if layout.recompute == "full" else None,
            "recompute_layers": layout.recompute_layers,
            "order": list(layout.order),
            "group": layout.group,
            "split": list(layout.split),
            "shard": layout.shard,
            "reshard": layout.reshard,
            "etp": layout.etp,
            "cp_comm": layout.cp_comm,
            "cp_inner": layout.cp_inner,
            "cp_zigzag": layout.cp_zigzag,
            "dispatcher": layout.dispatcher,
            "capacity_factor": layout.capacity_factor,
            "pads_capacity": layout.pads_capacity,
            "imbalance": layout.imbalance,
            "overlap_experts": layout.overlap_experts,
        },
        "batch": {
            "global": batch.global_batch,
            "micro": batch.micro_batch,
            "micro_batches": batch.micro_batches(layout),
            "seq": batch.seq_len,
        },
        "precision": run.precision,
        "framework": run.framework.name,
        "profiles": {"kernels": run.profile.kernels.name, "fabric": run.profile.fabric.name},
    }
    counted = {key: _plain(value, f"run.{key}") for key, value in record.items()}
    counted["batch"]["micro_batches"] = round(counted["batch"]["micro_batches"])
    return counted


def peak_name(prediction: Prediction) -> str:
    """Name the dense peak that MFU and HFU are a share of.

    Parameters
    ----------
    prediction : Prediction

    Returns
    -------
    str
        Such as ``a100-sxm-80gb dense bf16``.
    """
    return f"{prediction.run.cluster.device.name} dense {prediction.run.peak_type}"


def record_json(record: Mapping[str, Any]) -> str:
    """Write a record as JSON: the same bytes for the same record.

    Parameters
    ----------
    record : mapping

    Returns
    -------
    str
        Ended by a line feed.
    """
    return json.dumps(record, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _stage(account: StageAccount) -> dict[str, Any]:
    return {"stage": account.stage, "seconds": dict(account.seconds), "flop": account.flop}


def _memory(memory: MemoryProfile) -> dict[str, Any]:
    return {
        "memory_gib": {
            str(stage): {item: gib(size) for item, size in items.items()} for stage, items in enumerate(memory.stages)
        },
        "memory_peak_gib": gib(memory.peak),
        "memory_capacity_gib": gib(memory.capacity),
        "memory_worst_stage": memory.worst_stage,
        "fits": memory.fits,
    }


def _provenance(provenance: Provenance) -> dict[str, Any]:
    return {
        "basis": provenance.basis,
        "source": provenance.source,
        "error": provenance.error,
        "points": provenance.points,
    }


def _plain(value: Any, where: str) -> Any:
    """Values as JSON has them; NumPy's scalars become Python's."""
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, f"{where}[{index}]") for index, item in enumerate(value)]
    number = value if isinstance(value, int | float) else value.item()
    if isinstance(number, bool | str):
        return number
    if not math.isfinite(number):
        raise ShardsimError(f"the prediction's {where} is {number}, not a finite number")
    return int(number) if isinstance(number, int) else float(number)
