"""One request through the whole house, reduced to what a table row needs, so that it can cross process walls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from shardsim.engine.predict import EngineName, predict
from shardsim.engine.waterfall import mean_seconds
from shardsim.errors import ShardsimError
from shardsim.program.features import features_of
from shardsim.program.resolve import resolve
from shardsim.schema.run import request_from_mapping
from shardsim.validate.facts import RunFacts


@dataclass(frozen=True, slots=True)
class Priced:
    """What a table keeps of a prediction.

    Parameters
    ----------
    model, cluster : str
    tp, pp, dp, cp, ep, vpp : int
        Degrees (-).
    global_batch, micro_batch : int
        Sequences (-).
    iteration_s : float
        [s].
    tokens_per_s : float
        [1/s].
    model_flop : float
        Model FLOP of one iteration (-).
    flops_per_gpu : float
        Model FLOP per second and GPU [FLOP/s].
    mfu : float
        (-).
    fits : bool
    warnings : tuple of str
    facts : RunFacts or None
        What measured runs are grouped by.
    """

    model: str
    cluster: str
    tp: int
    pp: int
    dp: int
    cp: int
    vpp: int
    global_batch: int
    micro_batch: int
    iteration_s: float
    tokens_per_s: float
    model_flop: float
    flops_per_gpu: float
    mfu: float
    fits: bool
    warnings: tuple[str, ...]
    ep: int = 1
    facts: RunFacts | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a request has no prediction.

    Parameters
    ----------
    reason : str
        Every problem; depends on the request only.
    """

    reason: str


class Evaluate(Protocol):
    """Anything that turns a run's mapping into a price or a refusal. Must pickle to be used by worker processes."""

    def __call__(self, run: Mapping[str, Any], engine: EngineName, data: Sequence[Path]) -> Priced | Refused:
        """Evaluate one run."""


def evaluate_run(run: Mapping[str, Any], engine: EngineName = "listing", data: Sequence[Path] = ()) -> Priced | Refused:
    """Predict one run.

    Parameters
    ----------
    run : mapping
        As a run file holds it.
    engine : {"closed", "listing", "des"}
    data : sequence of Path
        A user's own data folders.

    Returns
    -------
    Priced or Refused
        Refused where the run is not valid or this version cannot express it.
    """
    try:
        training = resolve(request_from_mapping(run, "run"), data)
        found = predict(training, engine=engine)
    except ShardsimError as error:
        return Refused("; ".join(str(error).splitlines()))
    layout, batch = training.layout, training.batch
    return Priced(
        model=training.model.name,
        cluster=training.cluster.name,
        tp=int(layout.tp),
        pp=int(layout.pp),
        dp=int(layout.dp),
        cp=int(layout.cp),
        ep=int(layout.ep),
        vpp=int(layout.vpp),
        global_batch=int(batch.global_batch),
        micro_batch=int(batch.micro_batch),
        iteration_s=found.iteration_s,
        tokens_per_s=found.tokens_per_s,
        model_flop=found.model_flop,
        flops_per_gpu=found.flops_per_gpu,
        mfu=found.mfu,
        fits=found.memory.fits,
        warnings=tuple(found.warnings),
        facts=RunFacts(
            features=features_of(training),
            flop=found.model_flop,
            peak_flops=found.peak_flops,
            seconds=tuple(mean_seconds(found.execution.stages).items()),
            terms=tuple((step.name, step.seconds) for step in found.waterfall),
        ),
    )
