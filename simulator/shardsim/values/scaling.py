"""What a scaling study says: predicted points, measured points beside them, and what efficiency means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Grow = Literal["tp", "pp", "dp", "cp", "ep"]
Mode = Literal["weak", "strong"]


@dataclass(frozen=True, slots=True)
class MeasuredPoint:
    """One measured point of a scaling curve.

    Parameters
    ----------
    gpus : int
        (-).
    iteration_s : float or None
        [s], where the source gives it.
    flops_per_gpu : float or None
        [FLOP/s], counted as the source counts; where the source gives it.
    efficiency : float or None
        Relative to the source's own reference (-).
    source : str
    """

    gpus: int
    iteration_s: float | None
    flops_per_gpu: float | None
    efficiency: float | None
    source: str


@dataclass(frozen=True, slots=True)
class ScalingPoint:
    """One predicted point of a scaling curve, or why there is none.

    Parameters
    ----------
    gpus : int
        (-).
    model : str
    tp, pp, dp, cp, ep, vpp : int or None
        Degrees (-); None where the layout could not be formed.
    global_batch, micro_batch : int or None
        Sequences (-).
    iteration_s : float or None
        [s].
    flops_per_gpu : float or None
        Model FLOP per second and GPU [FLOP/s].
    tokens_per_s : float or None
        [1/s].
    mfu : float or None
        Share of the dense peak (-).
    efficiency : float or None
        As the table defines it (-).
    ideal_iteration_s : float or None
        Iteration time at efficiency 1 [s].
    fits : bool or None
        Whether it fits into device memory.
    reason : str
        Why there is no prediction; empty where there is one.
    """

    gpus: int
    model: str
    tp: int | None = None
    pp: int | None = None
    dp: int | None = None
    cp: int | None = None
    ep: int | None = None
    vpp: int | None = None
    global_batch: int | None = None
    micro_batch: int | None = None
    iteration_s: float | None = None
    flops_per_gpu: float | None = None
    tokens_per_s: float | None = None
    mfu: float | None = None
    efficiency: float | None = None
    ideal_iteration_s: float | None = None
    fits: bool | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ScalingTable:
    """A scaling study, in the order of the GPU counts that were asked for.

    Parameters
    ----------
    grow : {"tp", "pp", "dp", "cp", "ep"}
        Axis that takes the additional GPUs.
    mode : {"weak", "strong"}
    cluster : str
    reference_flops : float or None
        FLOP/s per GPU at which efficiency is 1 [FLOP/s]; None where no point could be predicted.
    definition : str
        What efficiency means here, in words.
    points : tuple of ScalingPoint
    measured : tuple of MeasuredPoint
        Those at the GPU counts of the study.
    warnings : tuple of str
        Of all points, each once.
    """

    grow: Grow
    mode: Mode
    cluster: str
    reference_flops: float | None
    definition: str
    points: tuple[ScalingPoint, ...]
    measured: tuple[MeasuredPoint, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """What was scaled, and where: ``Weak scaling of TP at DP 64 on dgx-2h``."""
        priced = [point for point in self.points if not point.reason]
        degrees = {axis: {getattr(point, axis) for point in priced} for axis in ("tp", "pp", "cp", "ep", "dp")}
        kept = [
            f"{axis.upper()} {max(d)}"
            for axis, d in degrees.items()
            if axis != self.grow and len(d) == 1 and max(d) > 1
        ]
        beside = f" at {', '.join(kept)}" if kept else ""
        place = f" on {self.cluster}" if self.cluster else ""
        return f"{self.mode.capitalize()} scaling of {self.grow.upper()}{beside}{place}"

    def measured_at(self, gpus: int) -> MeasuredPoint | None:
        """Return the measured point at a GPU count, if there is one."""
        return next((point for point in self.measured if point.gpus == gpus), None)
