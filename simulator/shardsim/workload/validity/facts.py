"""What validity rules speak of, of one layout: plain numbers, and what follows from them."""

from __future__ import annotations

from collections.abc import Mapping

from shardsim.values.rules import Fact
from shardsim.values.training import Batch, Framework, Layout, Model
from shardsim.workload.schedules import RULES

_OF_EXPERTS = frozenset({"moe", "moe_act"})


def facts_of_model(model: Model) -> dict[str, Fact]:
    """Collect what rules may speak of, of a model alone.

    Parameters
    ----------
    model : Model

    Returns
    -------
    dict of str to Fact
    """
    moe = model.moe
    return {
        "layers": model.layers,
        "hidden": model.hidden,
        "heads": model.heads,
        "kv_heads": model.kv_heads,
        "head_dim": model.head_dim,
        "ffn": model.ffn,
        "vocab": model.vocab,
        "max_positions": model.max_positions if model.position == "learned" else 0,
        "bias": model.bias,
        "moe": moe is not None,
        "experts": 0 if moe is None else moe.experts,
        "top_k": 0 if moe is None else moe.top_k,
        "expert_ffn": 0 if moe is None else moe.ffn,
        "shared_experts": moe is not None and moe.shared_ffn > 0,
        "expert_groups": 0 if moe is None else moe.groups,
        "group_limit": 0 if moe is None else moe.group_limit,
        "mla": model.mla is not None,
        "window": model.window,
        "sinks": model.sinks,
        "mtp": model.mtp,
    }


def facts_of(
    model: Model, layout: Layout, batch: Batch, gpus: int, framework: Framework, precision: str = ""
) -> dict[str, Fact]:
    """Collect what rules may speak of.

    Parameters
    ----------
    model : Model
    layout : Layout
        Scalars.
    batch : Batch
    gpus : int
        GPUs in all (-).
    framework : Framework
    precision : str
        Data type of the matrix products; the framework's usual one when empty.

    Returns
    -------
    dict of str to Fact
    """
    modules = set(layout.recompute_modules)
    return completed(
        {
            **facts_of_model(model),
            "gpus": gpus,
            "tp": int(layout.tp),
            "pp": int(layout.pp),
            "cp": int(layout.cp),
            "ep": int(layout.ep),
            "etp": int(layout.etp),
            "cp_comm": layout.cp_comm,
            "cp_inner": layout.cp_inner,
            "dispatcher": layout.dispatcher,
            "capacity_factor": layout.capacity_factor,
            "pads_capacity": layout.pads_capacity,
            "overlap_experts": layout.overlap_experts,
            "overlap_shared": framework.overlap_shared_experts,
            "attention": framework.attention,
            "parallel_block": framework.parallel_block,
            "dp_asked": int(layout.dp) if layout.dp == int(layout.dp) else float(layout.dp),
            "vpp": int(layout.vpp),
            "sp_asked": layout.sp,
            "sp_default": framework.sequence_parallel,
            "split": bool(layout.split),
            "chunk_layers": max(layout.split) if layout.split else None,
            "zero": layout.zero,
            "shard": layout.shard,
            "schedule": layout.schedule,
            "group": layout.group,
            "virtual_stages": None
            if layout.custom is None
            else int(layout.pp) * layout.custom.chunks // layout.custom.copies,
            "recompute": layout.recompute,
            "recompute_layers": layout.recompute_layers,
            "recomputes_experts": bool(modules & _OF_EXPERTS),
            "recomputes_moe": "moe" in modules,
            "recomputes_shared": "shared_experts" in modules,
            "recomputes_mla": "mla_up_proj" in modules,
            "cuda_graphs": framework.cuda_graphs,
            "precision": precision or framework.default_precision,
            "global_batch": int(batch.global_batch),
            "micro_batch": int(batch.micro_batch),
            "seq": batch.seq_len,
        }
    )


def completed(given: Mapping[str, Fact]) -> dict[str, Fact]:
    """Add what follows from facts that are known.

    Parameters
    ----------
    given : mapping of str to Fact
        What is missing or None is not known.

    Returns
    -------
    dict of str to Fact
        Those given, and ``replica``, ``dp``, ``microbatches``, ``virtual_stages``, ``chunk_layers`` and ``sp`` where
        they follow.
    """
    facts = dict(given)
    tp, pp, cp, vpp, gpus = (_whole(facts, name) for name in ("tp", "pp", "cp", "vpp", "gpus"))
    if tp and pp and cp:
        facts["replica"] = tp * pp * cp
        if gpus is not None:
            facts["dp"] = gpus // (tp * pp * cp) if gpus % (tp * pp * cp) == 0 else None
    if facts.get("dp") is None and (gpus is None or facts.get("replica") is None):
        facts["dp"] = facts.get("dp_asked")
    sequences, dp = _whole(facts, "global_batch"), _whole(facts, "dp")
    step = (_whole(facts, "micro_batch") or 0) * (dp or 0)
    if sequences is not None and step:
        facts["microbatches"] = sequences // step if sequences % step == 0 else None
    rule = RULES.get(str(facts.get("schedule")))
    if facts.get("virtual_stages") is None and pp and vpp:
        facts["virtual_stages"] = pp * vpp // (1 if rule is None else rule.copies)
    stages, layers = _whole(facts, "virtual_stages"), _whole(facts, "layers")
    if facts.get("chunk_layers") is None and stages and layers is not None:
        facts["chunk_layers"] = -(-layers // stages)
    asked = facts.get("sp_asked")
    facts["sp"] = None if asked is None or tp is None else bool(asked) and tp > 1
    return facts


def _whole(facts: Mapping[str, Fact], name: str) -> int | None:
    value = facts.get(name)
    return value if isinstance(value, int) else None
