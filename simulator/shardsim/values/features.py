"""What tells training runs apart as far as predicting them goes: what errors are grouped by, and bands are found by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ModelKind = Literal["dense", "experts"]


@dataclass(frozen=True, slots=True)
class RunFeatures:
    """One run in a few words and figures.

    Parameters
    ----------
    framework, stack : str
        Names of the framework and of its stack profile.
    device, generation : str
        Name of the GPU, and of the measurements that its kernels are priced by, such as ``h100-sxm``.
    kind : {"dense", "experts"}
    precision : str
        Of the linear layers: ``bf16``, ``fp8-delayed`` ...
    recompute : str
        ``none``, ``selective`` or ``full``.
    gpus, tp, pp, vpp, dp, cp, ep, zero : int
        (-).
    hidden, seq, micro_batch, microbatches : int
        Width of the model, tokens of a sequence, sequences of a micro-batch, micro-batches of a replica (-).
    domains : int
        NVLink domains that the job lies over (-).
    """

    framework: str
    stack: str
    device: str
    generation: str
    kind: ModelKind
    precision: str
    recompute: str
    gpus: int
    tp: int
    pp: int
    vpp: int
    dp: int
    cp: int
    ep: int
    zero: int
    hidden: int
    seq: int
    micro_batch: int
    microbatches: int
    domains: int

    @property
    def parallelism(self) -> str:
        """Axes of more than one rank, such as ``TP+PP``; ``DP`` or ``FSDP`` where there is no other."""
        sharded = "FSDP" if self.zero == 3 and self.dp > 1 else ""
        degrees = (("TP", self.tp), ("PP", self.pp), ("CP", self.cp), ("EP", self.ep))
        axes = [name for name, degree in degrees if degree > 1]
        if sharded:
            axes.append(sharded)
        return "+".join(axes) or ("DP" if self.dp > 1 else "one GPU")
