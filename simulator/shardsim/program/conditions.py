"""Programs of ranks that are slower than others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

import numpy as np

from shardsim.program.loading import DATA
from shardsim.values.lanes import Folded
from shardsim.values.program import Block, Program, Task
from shardsim.values.training import TrainingRun

_Key = TypeVar("_Key", tuple[int, str, int], tuple[int, int, int])


def scaled(program: Program, slow: float, slow_host: float = 1.0) -> Program:
    """Let computation, and launching it, take longer; what travels, or is loaded, takes as long as before.

    Parameters
    ----------
    program : Program
        Operator by operator.
    slow, slow_host : float
        How many times as long computation takes on the device, and launching on the host (-).

    Returns
    -------
    Program
    """
    done: dict[int, Block] = {}

    def block_of(block: Block) -> Block:
        if id(block) not in done:
            done[id(block)] = replace(block, tasks=tuple(_scaled(task, slow, slow_host) for task in block.tasks))
        return done[id(block)]

    def every(blocks: Mapping[_Key, Block]) -> dict[_Key, Block]:
        return {key: block_of(block) for key, block in blocks.items()}

    return replace(
        program,
        blocks=every(program.blocks),
        last_blocks=every(program.last_blocks),
        first_blocks=every(program.first_blocks),
        pairs=every(program.pairs),
        epilogues=tuple(block_of(block) for block in program.epilogues),
        prologues=tuple(block_of(block) for block in program.prologues),
    )


def stutters(run: TrainingRun, folded: Folded, iterations: int = 1) -> dict[int, list[float]]:
    """Draw by which share of its computation each pass of each lane takes longer.

    Parameters
    ----------
    run : TrainingRun
    folded : Folded
    iterations : int
        (-).

    Returns
    -------
    dict of int to list of float
        By lane, in order of its passes (-); empty where nothing falls by chance. What falls on a tensor- and
        context-parallel group, which meets several times a layer, is the worst of what falls on its members: of their
        speeds once, of their jitter in every pass. Draws depend on the seed and on the group's first rank, so that
        they do not depend on how ranks are folded.
    """
    conditions, layout = run.conditions, run.layout
    if not conditions.chance:
        return {}
    passes = [iterations * len(order) for order in folded.programs[0].schedule.orders]
    members = int(layout.tp * layout.cp)
    found = {}
    for index, (lane, cell) in enumerate(zip(folded.folding.lanes, folded.cells, strict=True)):
        chance = np.random.default_rng((conditions.seed, cell))
        slower = max(conditions.spread * float(chance.standard_normal(members).max()), 0.0)
        drawn = np.abs(chance.standard_normal((passes[lane.stage], members))).max(axis=1)
        found[index] = (slower + conditions.jitter * drawn).tolist()
    return found


def _scaled(task: Task, slow: float, slow_host: float) -> Task:
    lag = None if task.lag is None else task.lag * slow_host
    computes = task.transfer is None and task.category != DATA
    seconds = task.seconds * slow if computes else task.seconds
    return replace(task, seconds=seconds, host=task.host * slow_host, lag=lag)
