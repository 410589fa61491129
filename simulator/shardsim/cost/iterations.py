"""Seconds of what goes on between iterations: loading a batch, saving a checkpoint."""

from __future__ import annotations

from shardsim.values.iterations import Checkpoint, CheckpointCost, Loading
from shardsim.values.num import Num


def batch_seconds(loading: Loading, tokens: Num) -> Num:
    """Time that one worker takes for a batch.

    Parameters
    ----------
    loading : Loading
    tokens : Num
        Of a replica in an iteration (-).

    Returns
    -------
    Num
        [s]

    Examples
    --------
    >>> batch_seconds(Loading(bandwidth=2e9, bytes_per_token=4.0), 5e8)
    1.0
    """
    if loading.seconds is not None:
        return loading.seconds
    return 0.0 if loading.bandwidth is None else tokens * loading.bytes_per_token / loading.bandwidth


def batch_period(loading: Loading, tokens: Num) -> Num:
    """Time from one batch to the next while all workers prepare batches of their own [s].

    Parameters
    ----------
    loading : Loading
    tokens : Num
        Of a replica in an iteration (-).

    Returns
    -------
    Num
        [s]
    """
    return batch_seconds(loading, tokens) / loading.workers


def checkpoint_cost(
    checkpoint: Checkpoint, *, whole: float, rank: float, copy_bandwidth: float, iteration_s: float
) -> CheckpointCost:
    """Time that training stands still for a checkpoint.

    Parameters
    ----------
    checkpoint : Checkpoint
    whole, rank : float
        Bytes of a checkpoint, and those that the rank with most saves [bytes].
    copy_bandwidth : float
        From a device to the memory of its host, where the checkpoint names none [bytes/s].
    iteration_s : float
        An iteration without saving [s].

    Returns
    -------
    CheckpointCost
        A synchronous one stands still while the slowest of storage, rank and copy moves it. An asynchronous one stands
        still for the copy, and for what is left of the last checkpoint when the next is due: a host holds one.

    Examples
    --------
    >>> saving = Checkpoint(every=100, bandwidth=273e9)
    >>> round(checkpoint_cost(saving, whole=13.8e12, rank=4.5e9, copy_bandwidth=25e9, iteration_s=16.0).exposed_s, 1)
    50.5
    """
    copy_s = rank / (checkpoint.copy_bandwidth or copy_bandwidth)
    storage = [(whole, checkpoint.bandwidth), (rank, checkpoint.rank_bandwidth)]
    write_s = max(size / bandwidth for size, bandwidth in storage if bandwidth is not None)
    between = checkpoint.every * iteration_s
    exposed = copy_s + max(0.0, write_s - between) if checkpoint.asynchronous else max(copy_s, write_s)
    return CheckpointCost(whole, rank, write_s, copy_s, exposed, checkpoint.every)
