"""A program made ready to run: checked, laid out pass by pass, and grouped into steps. All three engines read it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import inf
from typing import Any, TypeAlias

import numpy as np

from shardsim.engine.interference import Slowdown
from shardsim.engine.routes import Route, Routes
from shardsim.engine.steps import (
    BlockPlan,
    Message,
    PassPlan,
    Plan,
    Queued,
    Run,
    StagePlan,
    Step,
    Sync,
    item_name,
    leaves_nothing,
    pass_name,
    repeated,
)
from shardsim.errors import ProgramError
from shardsim.program.coalesce import (
    blocks_by_stage,
    free_runs,
    has_host,
    run_lag,
    seconds_by_category,
    side_streams,
    total,
    waiting_problems,
)
from shardsim.values.lanes import ALONE, Sharing
from shardsim.values.num import Num, any_of
from shardsim.values.program import Block, Item, Pair, Pass, PassKind, PipelineSchedule, Program, Task, passes_of

_Use: TypeAlias = tuple[str, Any, int]
"""Where in a program a block of a stage stands: among which blocks, and its key without the stage."""


def make_plan(program: Program, sharing: Sharing = ALONE, *, iterations: int = 1) -> Plan:
    """Check a program and lay it out for the engines.

    Parameters
    ----------
    program : Program
    sharing : Sharing
        Links and groups that are shared besides: what meets others there is a step for itself.
    iterations : int
        How often each stage does all of it, one after the other (-). A stage begins its next iteration as soon as it
        has ended the one before, whatever others do.

    Returns
    -------
    Plan

    Raises
    ------
    ProgramError
        Everything found wrong: a pass without a block, one that needs what its own stage runs later, a message that
        nobody sends, a meeting without the stage that attends it, a duration that is negative or not finite, a
        slowdown that is no share below 1.
    """
    plan = _Planner(program, sharing).plan()
    return plan if iterations == 1 else repeated(plan, iterations, program.schedule.microbatches)


class _Planner:
    """Walks a program once; collects every problem on the way."""

    def __init__(self, program: Program, sharing: Sharing) -> None:
        self.program = program
        self.sharing = sharing
        self.schedule: PipelineSchedule = program.schedule
        self.problems: list[str] = []
        self.shapes: set[tuple[int, ...]] = set()
        self.side = side_streams(program)
        self.routes = Routes(program)
        self.blocks: dict[tuple[int, frozenset[str], frozenset[str]], BlockPlan] = {}
        self.sources: dict[str, Mapping[tuple[int, Any, int], Block]] = {
            "block": program.blocks,
            "first block": program.first_blocks,
            "last block": program.last_blocks,
            "pair": program.pairs,
        }
        blocks = {id(block): block for _, block in blocks_by_stage(program)}.values()
        self.hosted = any(has_host(task) for block in blocks for task in block.tasks)

    def plan(self) -> Plan:
        stages: list[StagePlan] = []
        ends = {"epilogues": self.program.epilogues, "prologues": self.program.prologues or self.program.epilogues}
        wrong = {name: len(blocks) for name, blocks in ends.items() if len(blocks) != self.schedule.stages}
        if wrong:
            self.problems += [
                f"the program has {count} {name} for {self.schedule.stages} stages" for name, count in wrong.items()
            ]
        else:
            self.problems += [
                _bad_time(f"message {key}", transfer.seconds)
                for key, transfer in self.program.messages.items()
                if not self._is_time(transfer.seconds)
            ]
            stages = [self._stage(stage) for stage in range(self.schedule.stages)]
            self.problems += self.routes.problems
        slowdown = self._slowdown()
        shape: tuple[int, ...] | None = None
        try:
            shape = np.broadcast_shapes(*self.shapes) if self.shapes else None
        except ValueError:
            self.problems.append(f"arrays of different shapes in one program: {sorted(self.shapes)}")
        if self.problems:
            raise ProgramError("\n".join(dict.fromkeys(self.problems)))
        return Plan(
            tuple(stages),
            self.program.rendezvous_members,
            shape,
            slowdown,
            self.hosted,
            self.program.synchronous_messages,
            self.schedule.chains,
        )

    def _slowdown(self) -> Slowdown | None:
        share = self.program.overlap_slowdown
        self._note_shape(share)
        if not np.all((share >= 0.0) & (share < 1.0)):
            self.problems.append(f"the program's overlap_slowdown is {share}: not a share of at least 0 and below 1")
        return Slowdown(share) if any_of(share > 0.0) else None

    def _stage(self, stage: int) -> StagePlan:
        order = self.schedule.orders[stage]
        special = self._special(stage)
        routes: dict[tuple[PassKind, int], Route] = {}
        # By place in the program, not by identity: sums must not depend on which blocks happen to be one object.
        blocks: dict[_Use, BlockPlan] = {}
        counts: Counter[_Use] = Counter()
        done: set[tuple[str, int, int]] = set()
        ends: list[BlockPlan] = []
        passes: list[PassPlan] = []
        prologue = self.program.prologues[stage] if self.program.prologues else None
        if prologue is not None and prologue.tasks:
            ends.append(self._block(stage, prologue))
            passes.append(PassPlan(ends[0], None))
        for index, item in enumerate(order):
            # Of a pair the backward pass first, so that its own forward pass beside it is not taken for an earlier one.
            parts = (item.backward, item.forward) if isinstance(item, Pair) else (item,)
            needs: tuple[Message, ...] = ()
            sends: tuple[Message, ...] = ()
            for part in parts:
                kind, microbatch, chunk = part
                route = routes.get((kind, chunk))
                if route is None:
                    route = routes[kind, chunk] = self.routes.find(stage, kind, chunk)
                if (route.kind, microbatch, chunk) in done:
                    self.problems.append(f"stage {stage} runs {pass_name(*part)} twice")
                after = route.after
                if after is not None and (after[0], microbatch, after[1]) not in done:
                    self.problems.append(_out_of_order(stage, part, after))
                if route.needs is not None:
                    needs += route.needs[microbatch]
                if route.sends is not None:
                    sends += route.sends[microbatch]
                done.add(part)
                if kind == "I":
                    done.add((route.kind, microbatch, chunk))
            use = special.get(index)
            if use is None:
                use = self._pair(stage, item) if isinstance(item, Pair) else ("block", item.kind, item.chunk)
            block = blocks.get(use)
            if block is None:
                block = blocks[use] = self._block(stage, self._found(stage, use))
            counts[use] += 1
            passes.append(PassPlan(block, item, needs, sends))
        ends.append(self._block(stage, self.program.epilogues[stage]))
        passes.append(PassPlan(ends[-1], None))
        uses = [(block, counts[use]) for use, block in blocks.items()]
        return StagePlan(tuple(passes), (*uses, *((block, 1) for block in ends)))

    def _special(self, stage: int) -> dict[int, _Use]:
        """Where in the order of a stage another block takes the place of the usual one; never in a pair."""
        order = self.schedule.orders[stage]
        found: dict[int, _Use] = {}
        for what, indices in (("first block", range(len(order))), ("last block", range(len(order))[::-1])):
            for key in self.sources[what]:
                if key[0] != stage:
                    continue
                index = next((index for index in indices if _has(order[index], key[1], key[2])), None)
                if index is not None and isinstance(order[index], Pass):
                    found[index] = (what, key[1], key[2])
        return found

    def _pair(self, stage: int, pair: Pair) -> _Use:
        if (pair.forward.kind, pair.backward.kind) != ("F", "B"):
            self.problems.append(
                f"stage {stage} runs {item_name(pair)} as one, which are not a forward and a whole backward pass"
            )
        return "pair", pair.forward.chunk, pair.backward.chunk

    def _found(self, stage: int, use: _Use) -> Block:
        what, kind, chunk = use
        key = (stage, kind, chunk)
        if key not in self.sources[what]:
            runs = f"pairs of chunks {kind} and {chunk}" if what == "pair" else f"{kind} passes of chunk {chunk}"
            self.problems.append(f"stage {stage} runs {runs}, but the program has no {what} {key}")
        return self.sources[what].get(key, Block("missing", ()))

    def _block(self, stage: int, block: Block) -> BlockPlan:
        """Lay out a block, once for all stages on which it meets the same."""
        key = (id(block), self.side[stage], self.sharing.contested.get(stage, frozenset()))
        if key not in self.blocks or any(task.rendezvous for task in block.tasks):
            self.blocks[key] = self._laid_out(stage, block)
        return self.blocks[key]

    def _laid_out(self, stage: int, block: Block) -> BlockPlan:
        self.problems += waiting_problems(block)
        for task in block.tasks:
            self._check_task(stage, block, task)
        steps: list[Step] = []
        contested = self.sharing.contested.get(stage, frozenset())
        for free, indices in free_runs(block.tasks, self.side[stage], contested, self.sharing.axes):
            if free:
                steps.append(self._run([block.tasks[index] for index in indices]))
            else:
                steps.append(self._lone_step(stage, indices[0], block.tasks[indices[0]]))
        busy = seconds_by_category(task for task in block.tasks if task.blocking)
        flop = total(task.flop for task in block.tasks)
        return BlockPlan(block.tasks, tuple(steps), busy, flop, leaves_nothing(steps))

    def _run(self, tasks: Sequence[Task]) -> Run:
        seconds = tuple(task.seconds for task in tasks)
        if not self.hosted:
            return Run(seconds, total(seconds))
        issue = tuple((task.host, task.earliest) for task in tasks)
        return Run(seconds, total(seconds), issue, total(task.host for task in tasks), run_lag(tasks))

    def _lone_step(self, stage: int, index: int, task: Task) -> Step:
        # A stream runs its tasks in order, so a blocking task also waits for those queued on its own.
        drains = tuple(stream for stream in task.drains if stream != task.stream)
        if task.blocking:
            own = (task.stream,) if task.stream in self.side[stage] else ()
            issue = (task.host, task.earliest, task.synchronises)
            return Sync(task.seconds, task.waits, own + drains, task.rendezvous, *issue, task)
        return Queued(index, task.stream, task.category, task.seconds, task.waits, drains, task.host, task.slows, task)

    def _check_task(self, stage: int, block: Block, task: Task) -> None:
        good = self._is_time(task.seconds)
        if self.hosted and not (self._is_time(task.host) and self._is_time(task.earliest)):
            where = f"task {task.name!r} of block {block.name!r} on stage {stage}"
            self.problems.append(_bad_time(f"to issue {where}", task.host))
        for number in (task.flop, *task.parts.values()):
            self._note_shape(number)
        if good and not task.rendezvous:
            return
        where = f"task {task.name!r} of block {block.name!r} on stage {stage}"
        if not good:
            self.problems.append(_bad_time(where, task.seconds))
        if not task.rendezvous:
            return
        members = self.program.rendezvous_members.get(task.rendezvous)
        if not task.blocking:
            self.problems.append(f"{where} meets other stages ({task.rendezvous!r}), so it has to block")
        if members is None:
            self.problems.append(f"{where} is stuck: nobody else attends the meeting {task.rendezvous!r}")
        elif stage not in members:
            self.problems.append(f"{where} attends the meeting {task.rendezvous!r}, which is of stages {members}")

    def _is_time(self, seconds: Num) -> bool:
        if isinstance(seconds, np.ndarray):
            self.shapes.add(seconds.shape)
            return bool(np.all((seconds >= 0) & np.isfinite(seconds)))
        return 0.0 <= seconds < inf

    def _note_shape(self, number: Num) -> None:
        if isinstance(number, np.ndarray):
            self.shapes.add(number.shape)


def _out_of_order(stage: int, part: Pass, after: tuple[PassKind, int]) -> str:
    needed = pass_name(after[0], part.microbatch, after[1])
    return f"stage {stage} is stuck in {pass_name(*part)}: it needs {needed}, which the same stage runs later or never"


def _has(item: Item, kind: str, chunk: int) -> bool:
    return any(part.kind == kind and part.chunk == chunk for part in passes_of([item]))


def _bad_time(where: str, seconds: Num) -> str:
    return f"{where} takes {seconds} s: not a finite, non-negative time"
