"""How batches are loaded and checkpoints saved, as a user gives it."""

from __future__ import annotations

from pydantic import Field, model_validator

from shardsim.schema.base import Bandwidth, Count, Duration, StrictModel
from shardsim.values.iterations import Checkpoint, Loading


class LoadingRequest(StrictModel):
    """How the batches of a replica are prepared: by ``seconds``, or by what is read with which bandwidth."""

    seconds: Duration | None = Field(default=None, ge=0, description="what one worker takes for a replica's batch")
    bandwidth: Bandwidth | None = Field(default=None, gt=0, description="with which one worker reads")
    bytes_per_token: float | None = Field(default=None, gt=0, description="bytes read for each token; 4 if left out")
    workers: Count = Field(default=1, description="workers that prepare batches of their own at the same time")

    @model_validator(mode="after")
    def _one_way(self) -> LoadingRequest:
        if (self.seconds is None) == (self.bandwidth is None):
            raise ValueError("loading takes either seconds or a bandwidth; give one of them")
        if self.seconds is not None and self.bytes_per_token is not None:
            raise ValueError("bytes_per_token says what is read with a bandwidth, and seconds are given; leave one out")
        return self


class CheckpointRequest(StrictModel):
    """How checkpoints are saved."""

    every: Count = Field(description="iterations from one checkpoint to the next")
    bandwidth: Bandwidth | None = Field(default=None, gt=0, description="of the whole storage")
    rank_bandwidth: Bandwidth | None = Field(default=None, gt=0, description="with which one rank writes at most")
    asynchronous: bool = Field(default=False, description="train on once hosts have a copy")
    copy_bandwidth: Bandwidth | None = Field(
        default=None, gt=0, description="from a device to the memory of its host; its PCIe link's if left out"
    )

    @model_validator(mode="after")
    def _somewhere(self) -> CheckpointRequest:
        if self.bandwidth is None and self.rank_bandwidth is None:
            raise ValueError("a checkpoint needs a bandwidth to be written with: bandwidth, rank_bandwidth, or both")
        return self


def loading_of(asked: LoadingRequest | None) -> Loading | None:
    """Turn what was asked for into a value."""
    if asked is None:
        return None
    return Loading(asked.seconds, asked.bandwidth, asked.bytes_per_token or 4.0, asked.workers)


def checkpoint_of(asked: CheckpointRequest | None) -> Checkpoint | None:
    """Turn what was asked for into a value."""
    if asked is None:
        return None
    return Checkpoint(asked.every, asked.bandwidth, asked.rank_bandwidth, asked.asynchronous, asked.copy_bandwidth)
