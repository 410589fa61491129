"""Argument names of Megatron-LM, accepted beside our own, and values that it spreads over several arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from shardsim.schema.catalog import shorten

MEGATRON_NAMES: dict[str, tuple[str, ...]] = {
    "tensor_model_parallel_size": ("layout", "tp"),
    "pipeline_model_parallel_size": ("layout", "pp"),
    "context_parallel_size": ("layout", "cp"),
    "expert_model_parallel_size": ("layout", "ep"),
    "expert_tensor_parallel_size": ("layout", "etp"),
    "cp_comm_type": ("layout", "cp_comm"),
    "hierarchical_context_parallel_sizes": ("layout", "cp_inner"),
    "moe_token_dispatcher_type": ("layout", "dispatcher"),
    "moe_expert_capacity_factor": ("layout", "capacity_factor"),
    "moe_pad_expert_input_to_capacity": ("layout", "pads_capacity"),
    "overlap_moe_expert_parallel_comm": ("layout", "overlap_experts"),
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
    "mtp_num_layers": ("mtp",),
}
"""Argument names of Megatron-LM, and of FSDP2, accepted beside our own, in their section or at the top of the file."""

RecomputeModule = Literal["core_attn", "moe_act", "layernorm", "mla_up_proj", "mlp", "moe", "shared_experts"]
"""What selective recompute may repeat, by Megatron Core's names."""

_BACKEND, _DEEPEP = "moe_flex_dispatcher_backend", "moe_enable_deepep"
DISPATCHER_NAMES = ("moe_token_dispatcher_type", "dispatcher", _BACKEND, _DEEPEP)
"""Arguments that say together how tokens reach their experts."""


def flex_dispatcher(section: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Replace Megatron-LM's ``flex`` dispatcher by its backend, which other arguments name.

    Parameters
    ----------
    section : mapping
        Keys as the user wrote them.

    Returns
    -------
    keys : dict
        With ``dispatcher`` in their place where the section speaks of one.
    problems : list of str
        What the arguments say that does not go together.

    Examples
    --------
    >>> flex_dispatcher({"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "hybridep"})
    ({'moe_token_dispatcher_type': 'hybridep'}, [])
    """
    spelled = {key.replace("-", "_"): key for key in section}
    keys = dict(section)
    backend = keys.pop(spelled.get(_BACKEND, _BACKEND), None)
    deepep = keys.pop(spelled.get(_DEEPEP, _DEEPEP), None)
    name = next((spelled[name] for name in ("moe_token_dispatcher_type", "dispatcher") if name in spelled), None)
    kind = None if name is None else keys[name]
    problems = []
    if deepep not in (None, True, False):
        problems.append(f"{_DEEPEP}: {shorten(str(deepep))} is not true or false")
    if kind == "flex":
        named = backend or ("deepep" if deepep is not False else None)
        keys[name or "dispatcher"] = named or "flex"
    elif deepep is True:  # elsewhere Megatron-LM refuses it
        problems.append(f"{_DEEPEP} belongs to moe_token_dispatcher_type: flex")
    return keys, problems


def inner_ranks(sizes: Any, cp: Any) -> tuple[Any, str]:
    """Read ``hierarchical_context_parallel_sizes``: ranks of the all-to-all, then of the ring over the rest.

    Parameters
    ----------
    sizes : object
        A list or text of two numbers, or anything else, which is left as it is.
    cp : object
        The context-parallel degree, where it is known.

    Returns
    -------
    inner : object
        Ranks of the all-to-all.
    problem : str
        Empty where there is none.

    Examples
    --------
    >>> inner_ranks([4, 2], 8)
    (4, '')
    """
    words = sizes.split() if isinstance(sizes, str) else sizes
    if not isinstance(words, list) or not all(str(word).isdecimal() for word in words):
        return sizes, ""
    levels = [int(word) for word in words]
    if len(levels) == 1:
        return levels[0], ""
    if len(levels) != 2 or (isinstance(cp, int) and levels[0] * levels[1] != cp):
        known = f" of {cp} context-parallel ranks" if isinstance(cp, int) else ""
        return sizes, f"{' x '.join(map(str, levels))} are not two levels{known}"
    return levels[0], ""
