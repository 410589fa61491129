"""An iteration among others: the first, the steady state, the batches and checkpoints between them."""

from __future__ import annotations

from shardsim.cost.iterations import batch_period, batch_seconds, checkpoint_cost
from shardsim.program.loading import DATA, replica_tokens
from shardsim.values.iterations import Iterations
from shardsim.values.results import Prediction
from shardsim.workload.checkpoint import checkpoint_bytes


def iterations_of(prediction: Prediction) -> Iterations:
    """Tell the first iteration, the steady state, and what loading and saving cost apart.

    Parameters
    ----------
    prediction : Prediction

    Returns
    -------
    Iterations
        Of one iteration, which begins with its batch there, first and steady state differ by the first batch alone.
    """
    run, execution = prediction.run, prediction.execution
    shown = [float(account.seconds[DATA]) for account in execution.stages if DATA in account.seconds]
    ends = [float(end) for end in execution.ends]
    if ends:
        first, steady = ends[0], ends[-1] - ends[-2]
    else:  # a single one lasts until the next batch is there
        steady = float(execution.iteration_s)
        first = steady - min(shown, default=0.0)
    tokens = replica_tokens(run)
    first_batch = 0.0 if run.loading is None else float(batch_seconds(run.loading, tokens))
    cost = None
    if run.checkpoint is not None:
        whole, rank = checkpoint_bytes(run.model, run.layout, run.batch, run.framework)
        cost = checkpoint_cost(
            run.checkpoint,
            whole=float(whole),
            rank=float(rank),
            copy_bandwidth=run.cluster.pcie.bandwidth,
            iteration_s=steady,
        )
    return Iterations(
        count=max(1, len(ends)),
        first_s=first_batch + first,
        steady_s=steady,
        loading_s=0.0 if run.loading is None else float(batch_period(run.loading, tokens)),
        data_exposed_s=max(shown, default=0.0),
        checkpoint=cost,
    )
