"""Where each command-line flag stands in a run file. Loads nothing, so that the command line may read it at once."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_TOP = ("model", "cluster", "gpus", "precision", "framework", "routing", "mtp")
_LAYOUT = (
    "tp",
    "pp",
    "dp",
    "vpp",
    "cp",
    "ep",
    "etp",
    "cp_comm",
    "cp_inner",
    "cp_zigzag",
    "dispatcher",
    "capacity_factor",
    "pads_capacity",
    "overlap_experts",
    "sp",
    "zero",
    "shard",
    "reshard",
    "overlap_grad_reduce",
    "schedule",
    "group",
    "stage_layers",
    "first_layers",
    "last_layers",
    "embedding_as_layer",
    "loss_as_layer",
    "pp_layout",
    "virtual_stage_layers",
    "recompute",
    "recompute_modules",
    "recompute_method",
    "recompute_layers",
    "order",
)

FLAGS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        **{name: (name,) for name in _TOP},
        **{name: ("layout", name) for name in _LAYOUT},
        "micro_batch": ("batch", "micro"),
        "global_batch": ("batch", "global"),
        "seq": ("batch", "seq"),
    }
)
"""For each flag, by its name in Python, its key in a run file."""
