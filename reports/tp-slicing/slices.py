"""Prices one layer, forward and backward, over hidden size, TP and GPU: slices.csv."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from shardsim.program.machine import Machine
from shardsim.program.resolve import resolve
from shardsim.schema.run import request_from_mapping
from shardsim.values.operators import Collective
from shardsim.values.training import Batch, TrainingRun
from shardsim.workload.layer import layer_backward, layer_forward
from shardsim.workload.validity import check

NVL72 = "gb200-nvl72"
CLUSTERS = ("dgx-a100", "dgx-h100", NVL72)
HIDDEN = (2048, 4096, 8192, 9216, 12288, 16384)
POWERS, NINES = (1, 2, 4, 8, 16, 32, 64), (9, 18, 36, 72)
HEAD = 128
RUN = {
    "model": {
        "title": "GPT with heads of 128",
        "source": "sizes are set below",
        "layers": 1,
        "hidden": HEAD,
        "heads": 1,
        "ffn": 4 * HEAD,
        "vocab": 51200,
        "activation": "gelu",
        "norm": "layernorm",
        "position": "rope",
        "tied_embeddings": True,
        "bias": True,
    },
    "gpus": 1,
    "batch": {"micro": 1, "global": 1, "seq": 2048},
    "framework": "megatron-core",
    "precision": "bf16",
}


def layer(base: TrainingRun, hidden: int, seq: int, tp: int, micro: int, *, sp: bool) -> dict[str, float] | None:
    """Times of a layer's operators on one rank [s]; None where the layout is not legal."""
    heads = hidden // HEAD
    model = replace(base.model, hidden=hidden, heads=heads, kv_heads=heads, head_dim=HEAD, ffn=4 * hidden)
    layout, batch = replace(base.layout, tp=tp, sp=sp and tp > 1), Batch(micro, micro, seq)
    if check(model, layout, batch, tp, base.framework)[0]:
        return None
    machine = Machine(replace(base, model=model, layout=layout, batch=batch))
    spent = dict.fromkeys(("gemm", "attention", "memory-bound", "tp"), 0.0)
    latency = arriving = 0.0
    kernels = 0
    shape = (model, layout, batch, base.framework)
    for operator in (*layer_forward(*shape), *layer_backward(*shape)):
        task = machine.task(operator)
        seconds = float(task.seconds)
        spent[task.category] += seconds
        kernels += round(float(getattr(operator, "kernels", 1))) if seconds else 0
        if not isinstance(operator, Collective):
            # What SP gathers again for a weight gradient arrives behind the input gradient (arXiv 2205.05198 §4.2.2).
            spent["tp"] -= min(arriving, seconds)
            arriving = 0.0
        elif operator.role == "wgrad":
            arriving = seconds
        else:
            latency += float(machine.transfer(operator).latency)
    return {
        "nvlink_domains": int(machine.shapes["tp"].domains),
        "kernels": kernels,
        "gemm_s": spent["gemm"],
        "attention_s": spent["attention"],
        "memory_bound_s": spent["memory-bound"],
        "network_s": spent["tp"],
        "latency_s": latency,
        "layer_s": sum(spent.values()),
    }


def losses(own: dict[str, float], one: dict[str, float], share: float) -> dict[str, float]:
    """What a rank needs beyond its share of one GPU's time, by where it is lost [s], and its efficiency (-)."""
    others = own["attention_s"] + own["memory_bound_s"] - share * (one["attention_s"] + one["memory_bound_s"])
    return {
        "gemm_loss_s": own["gemm_s"] - share * one["gemm_s"],
        "others_loss_s": others,
        "efficiency": share * one["layer_s"] / own["layer_s"],
    }


def asked(cluster: str) -> Iterator[tuple[bool, int, int]]:
    """SP or not, TP, sequences of a micro-batch."""
    for sp in (True, False) if cluster == NVL72 else (True,):
        for tp in sorted(POWERS + NINES) if cluster == NVL72 else POWERS:
            yield sp, tp, 1
            least = 9 if tp % 9 == 0 else 8
            if cluster == NVL72 and sp and tp > least:  # as many activations a GPU as one sequence at TP 8, or 9
                yield sp, tp, tp // least


def rows() -> Iterator[dict[str, object]]:
    """One row for every legal layout."""
    for cluster in CLUSTERS:
        base = resolve(request_from_mapping({**RUN, "cluster": cluster}))
        for hidden in HIDDEN:
            for length in (2048, 8192):
                seq = length * 9 // 8 if hidden == 9216 else length  # TP 72 divides multiples of nine only
                one = layer(base, hidden, seq, 1, 1, sp=False)
                for sp, tp, micro in asked(cluster):
                    own = layer(base, hidden, seq, tp, micro, sp=sp)
                    if own and one:
                        keys = {"cluster": cluster, "hidden": hidden, "seq": seq, "tp": tp, "micro_batch": micro}
                        yield {**keys, "sp": int(sp), **own, **losses(own, one, micro / tp)}


if __name__ == "__main__":
    found = list(rows())
    with Path("slices.csv").open("w", newline="") as stream:
        writer = csv.DictWriter(stream, found[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(found)
