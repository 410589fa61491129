"""What tells a run from others, taken from its description."""

from __future__ import annotations

from shardsim.values.features import RunFeatures
from shardsim.values.training import TrainingRun


def features_of(run: TrainingRun) -> RunFeatures:
    """Describe a run in the words that measured runs are grouped by.

    Parameters
    ----------
    run : TrainingRun
        One layout; degrees are scalars.

    Returns
    -------
    RunFeatures
    """
    layout, batch, cluster = run.layout, run.batch, run.cluster
    gpus = int(layout.gpus)
    return RunFeatures(
        framework=run.framework.name,
        stack=run.profile.stack.name,
        device=cluster.device.name,
        generation=cluster.device.compute_profile,
        kind="dense" if run.model.moe is None else "experts",
        precision=run.precision,
        recompute=layout.recompute,
        gpus=gpus,
        tp=int(layout.tp),
        pp=int(layout.pp),
        vpp=int(layout.vpp),
        dp=int(layout.dp),
        cp=int(layout.cp),
        ep=int(layout.ep),
        zero=int(layout.zero),
        hidden=run.model.hidden,
        seq=int(batch.seq_len),
        micro_batch=int(batch.micro_batch),
        microbatches=int(batch.global_batch / (batch.micro_batch * layout.dp)),
        domains=-(-gpus // cluster.gpus_per_domain),
    )
