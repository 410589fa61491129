"""How fast the engines go, as ratios to a bare SimPy loop measured in the same run.

    python -m benchmarks.engine_speed

The bare rate is that of as many processes as the pipeline has stages, each of which does nothing but wait for one
timeout an operator. The event engine must reach at least half of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from simpy import Environment

from shardsim.engine.closed import closed_form
from shardsim.engine.des import simulate
from shardsim.engine.listing import listing
from shardsim.program.coalesce import coalesce
from shardsim.values.program import Block, Program, Task
from shardsim.values.provenance import Provenance
from shardsim.values.transfer import Transfer
from shardsim.workload.schedules import make_schedule

STAGES, MICROBATCHES, OPERATORS, LAYOUTS = 16, 64, 100, 1000
LEAST_RATIO = 0.5


@dataclass(frozen=True)
class Measured:
    name: str
    seconds: float
    operators: int

    @property
    def rate(self) -> float:
        return self.operators / self.seconds


def pipeline(scale: float | np.ndarray = 1.0) -> Program:
    """A 1F1B pipeline with the same operators in every pass, all of different length."""
    schedule = make_schedule("1f1b", STAGES, MICROBATCHES)
    keys = [(stage, kind, 0) for stage in range(STAGES) for kind in "FB"]
    message = Transfer(1e-5 * scale, {}, {}, "direct", Provenance("assumed", "benchmark"))
    return Program(
        schedule=schedule,
        blocks={
            key: Block(
                key[1],
                tuple(
                    Task(f"operator {index}", "compute", "gemm", (1e-4 + 1e-6 * (index + key[0])) * scale)
                    for index in range(OPERATORS)
                ),
            )
            for key in keys
        },
        last_blocks={},
        epilogues=tuple(Block("epilogue", ()) for _ in range(STAGES)),
        messages=dict.fromkeys(keys, message),
        multiplicity=1,
        rendezvous_members={},
    )


def bare(operators: int) -> None:
    """One timeout an operator and nothing else."""
    env = Environment()

    def stage(seconds: list[float]):
        for delay in seconds:
            yield env.timeout(delay)

    for index in range(STAGES):
        env.process(stage([1e-4 + 1e-6 * index] * (operators // STAGES)))
    env.run()


def processor_seconds(function: Callable[[], object]) -> float:
    """Processor time of one call: other work on the machine disturbs it least [s]."""
    begin = time.process_time()
    function()
    return time.process_time() - begin


def measure(rounds: int = 5) -> list[Measured]:
    """The least of several rounds, all contestants in turn in each, so that a busy moment touches all alike."""
    program = pipeline()
    merged = coalesce(program)
    prices = coalesce(pipeline(np.linspace(0.5, 2.0, LAYOUTS)))
    operators = STAGES * MICROBATCHES * 2 * OPERATORS
    contestants: dict[str, tuple[Callable[[], object], int]] = {
        "bare timeouts": (lambda: bare(operators), operators),
        "events, operator by operator": (lambda: simulate(program), operators),
        "events, operator by operator, traced": (lambda: simulate(program, timeline=True), operators),
        "events, coalesced": (lambda: simulate(merged), operators),
        "listing": (lambda: listing(program), operators),
        "listing, traced": (lambda: listing(program, timeline=True), operators),
        f"closed form, {LAYOUTS} layouts at once": (lambda: closed_form(prices), operators * LAYOUTS),
    }
    best = dict.fromkeys(contestants, float("inf"))
    for _ in range(rounds):
        for name, (function, _) in contestants.items():
            best[name] = min(best[name], processor_seconds(function))
    return [Measured(name, best[name], count) for name, (_, count) in contestants.items()]


def main() -> int:
    results = measure()
    reference = results[0].rate
    print(f"1F1B, p = {STAGES}, m = {MICROBATCHES}, {OPERATORS} operators a pass: {results[0].operators:,} operators")
    print(f"{'':40} {'CPU s':>9} {'M operators/s':>14} {'of bare':>9}")
    for found in results:
        print(f"{found.name:40} {found.seconds:9.4f} {found.rate / 1e6:14.2f} {found.rate / reference:8.2f}x")
    ratio = results[1].rate / reference
    print(f"operator-level events reach {ratio:.2f} of the bare rate (at least {LEAST_RATIO} asked for)")
    return 0 if ratio >= LEAST_RATIO else 1


if __name__ == "__main__":
    raise SystemExit(main())
