"""Counts activations of a layer with and without SP, and the largest micro-batch that fits: memory.csv, fits.csv."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from common import DEGREES, MODELS, write

from shardsim.engine.memory import memory_of
from shardsim.program.resolve import resolve
from shardsim.schema.run import request_from_mapping
from shardsim.values.training import Batch, TrainingRun
from shardsim.workload.activations import activation_bytes_per_layer

STACKS = {"megatron-2022": ("selective",), "megatron-core": ("none",)}
"""Unfused attention with dropout, its core recomputed, and flash attention without dropout."""
PLACES = (
    ("megatron-22b", "dgx-a100", 8, 1, "megatron-2022", ("none", "selective", "full")),
    ("gpt3-175b", "dgx-a100", 8, 8, "megatron-2022", ("none", "selective", "full")),
    ("gpt3-175b", "dgx-h100", 8, 8, "megatron-core", ("none", "full")),
    ("llama-3-70b", "dgx-h100", 8, 4, "megatron-core", ("none", "full")),
    ("llama-3-70b", "gb200-nvl72", 4, 4, "megatron-core", ("none", "full")),
    ("llama-3-70b", "gb200-nvl72", 8, 4, "megatron-core", ("none", "full")),
)
"""Model, cluster, TP, pipeline stages, framework, recomputation."""
MOST = 64


def asked(model: str, cluster: str, framework: str, layout: dict[str, object]) -> TrainingRun:
    """One replica, four micro-batches a stage."""
    gpus = int(layout["tp"]) * int(layout["pp"])
    batch = MODELS[model] | {"micro": 1, "global": 4 * int(layout["pp"])}
    keys = {"model": model, "cluster": cluster, "gpus": gpus, "framework": framework, "precision": "bf16"}
    return resolve(request_from_mapping({**keys, "batch": batch, "layout": layout}))


def kept() -> Iterator[dict[str, object]]:
    """Bytes a layer keeps of one micro-batch of one sequence, in units of s b h."""
    for model in MODELS:
        for framework, recomputes in STACKS.items():
            for recompute in recomputes:
                layout = {"tp": 8, "pp": 1, "sp": True, "recompute": recompute}
                run = asked(model, "dgx-h100", framework, layout)
                unit = run.batch.seq_len * run.model.hidden
                for tp in (1, *DEGREES):
                    row: dict[str, object] = {"model": model, "framework": framework, "recompute": recompute, "tp": tp}
                    for name, sp in (("without", False), ("with_sp", tp > 1)):
                        own = replace(run.layout, tp=tp, sp=sp)
                        size = float(activation_bytes_per_layer(run.model, own, run.batch, run.framework))
                        row |= {f"{name}_bytes": size, f"{name}_units": size / unit}
                    yield row


def fits() -> Iterator[dict[str, object]]:
    """The largest micro-batch that fits, with and without SP."""
    for model, cluster, tp, pp, framework, recomputes in PLACES:
        for recompute in recomputes:
            row: dict[str, object] = {"model": model, "cluster": cluster, "tp": tp, "pp": pp, "framework": framework}
            row["recompute"] = recompute
            for name, sp in (("without", False), ("with_sp", True)):
                run = asked(model, cluster, framework, {"tp": tp, "pp": pp, "sp": sp, "recompute": recompute})
                largest = 0
                while largest < MOST and memory_of(of_size(run, largest + 1)).fits:
                    largest += 1
                row[name] = largest
                row[f"{name}_one_bytes"] = memory_of(run).peak
            yield row


def of_size(run: TrainingRun, micro: int) -> TrainingRun:
    """The same run with another micro-batch and as many of them."""
    count = int(run.batch.global_batch / run.batch.micro_batch)
    return replace(run, batch=Batch(micro * count, micro, run.batch.seq_len))


if __name__ == "__main__":
    write("memory.csv", list(kept()))
    write("fits.csv", list(fits()))
