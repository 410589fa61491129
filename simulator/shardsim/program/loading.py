"""The next batch is loaded while a stage computes, and waited for where its next iteration begins."""

from __future__ import annotations

from dataclasses import replace

from shardsim.cost.iterations import batch_period
from shardsim.values.iterations import Loading
from shardsim.values.num import Num
from shardsim.values.program import Block, PipelineSchedule, Task
from shardsim.values.training import TrainingRun

DATA = "data"
"""Stream on which batches are prepared, and category of the time that a stage waits for one."""


def replica_tokens(run: TrainingRun) -> Num:
    """Tokens of a replica in an iteration (-)."""
    return run.batch.tokens / run.layout.dp


def with_loading(run: TrainingRun, schedule: PipelineSchedule, stage: int, prologue: Block) -> Block:
    """Begin an iteration with the batch that was prepared during the one before, and prepare the next.

    Parameters
    ----------
    run : TrainingRun
    schedule : PipelineSchedule
    stage : int
    prologue : Block
        What the stage begins with besides.

    Returns
    -------
    Block
        The same on stages that read nothing: the first one of each chain reads tokens, its last one labels (github
        NVIDIA/Megatron-LM, pretrain_gpt.py, get_batch). The first batch of all is there already.
    """
    loading: Loading | None = run.loading
    if loading is None or all(stage not in (chain[0][0], chain[-1][0]) for chain in schedule.chains):
        return prologue
    seconds = batch_period(loading, replica_tokens(run))
    wait = Task("wait for the batch", "compute", DATA, 0.0, drains=(DATA,))
    load = Task("prepare the next batch", DATA, DATA, seconds, blocking=False, slows=False)
    # What the prologue waits for among its own tasks has moved by two places.
    moved = (replace(task, waits=tuple(index + 2 for index in task.waits)) for task in prologue.tasks)
    return Block(prologue.name, (wait, load, *moved))
