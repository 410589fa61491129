"""What goes on between iterations: the next batch is loaded, and checkpoints are saved."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Loading:
    """How the batches of a replica are prepared, one ahead of the device.

    Parameters
    ----------
    seconds : float or None
        That one worker takes for a replica's share of a batch [s]; None where the bandwidth says.
    bandwidth : float or None
        With which one worker reads [bytes/s].
    bytes_per_token : float
        Read for each token [bytes]: 4 for tokens stored as 32-bit numbers.
    workers : int
        Prepare batches of their own at the same time (-).
    """

    seconds: float | None = None
    bandwidth: float | None = None
    bytes_per_token: float = 4.0
    workers: int = 1


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """How checkpoints are saved.

    Parameters
    ----------
    every : int
        Iterations from one to the next (-).
    bandwidth : float or None
        Of the whole storage [bytes/s]; None for no bound.
    rank_bandwidth : float or None
        With which one rank writes at most [bytes/s]; None for no bound.
    asynchronous : bool
        Whether training goes on once every rank has copied its share to the memory of its host.
    copy_bandwidth : float or None
        From a device to the memory of its host [bytes/s]; None for that of its PCIe link.
    """

    every: int
    bandwidth: float | None = None
    rank_bandwidth: float | None = None
    asynchronous: bool = False
    copy_bandwidth: float | None = None


@dataclass(frozen=True, slots=True)
class CheckpointCost:
    """What saving costs.

    Parameters
    ----------
    bytes : float
        Of a checkpoint [bytes].
    rank_bytes : float
        That the rank with most saves [bytes].
    write_s, copy_s : float
        To write it, and to copy it to the memory of hosts [s].
    exposed_s : float
        That training stands still for a checkpoint [s].
    every : int
        Iterations from one to the next (-).
    """

    bytes: float
    rank_bytes: float
    write_s: float
    copy_s: float
    exposed_s: float
    every: int

    @property
    def per_iteration_s(self) -> float:
        """Mean over iterations [s]."""
        return self.exposed_s / self.every


@dataclass(frozen=True, slots=True)
class Iterations:
    """What becomes of an iteration among others.

    Parameters
    ----------
    count : int
        Simulated (-).
    first_s : float
        From the start to the end of the first, with the first batch that nothing hides [s].
    steady_s : float
        From the end of the last but one to the end of the last [s]; of one iteration, how long it takes.
    loading_s : float
        From one batch that is ready to the next, were nothing else in the way [s].
    data_exposed_s : float
        That a stage waits for data in an iteration [s], the mean after the first batch.
    checkpoint : CheckpointCost or None
    """

    count: int
    first_s: float
    steady_s: float
    loading_s: float
    data_exposed_s: float
    checkpoint: CheckpointCost | None

    @property
    def with_checkpoints_s(self) -> float:
        """Steady state, with the mean cost of checkpoints [s]."""
        return self.steady_s + (0.0 if self.checkpoint is None else self.checkpoint.per_iteration_s)
