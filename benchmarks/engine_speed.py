"""How fast the engines go: against a bare SimPy loop measured in the same run, and on a machine of 100,000 GPUs.

    python -m benchmarks.engine_speed

The bare rates are those of 16 and of 64 processes, each of which does nothing but wait for one timeout an operator.
The event engine must reach at least half of the faster one.

Llama-3 405B in 16 stages of 8-way tensor parallelism is simulated on 16,384 and on 131,072 GPUs, each time by a new
process: what that takes to start (Python, and everything it imports), and from the description of the run to the JSON
of its prediction. Growth is told by the time for each task of longer and wider pipelines, of the same model.

All times are of the processor. Exits with status 1 when a bound is missed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from simpy import Environment

from shardsim.engine.closed import closed_form
from shardsim.engine.des import simulate
from shardsim.engine.listing import listing
from shardsim.engine.predict import Detail, predict, simulate_run
from shardsim.program.build import build
from shardsim.program.coalesce import coalesce
from shardsim.program.resolve import resolve
from shardsim.report.records import prediction_record, record_json
from shardsim.schema.run import nested, request_from_mapping
from shardsim.values.program import Block, Pair, Program, Task
from shardsim.values.provenance import Provenance
from shardsim.values.training import TrainingRun
from shardsim.values.transfer import Transfer
from shardsim.workload.schedules import make_schedule

STAGES, MICROBATCHES, OPERATORS, LAYOUTS = 16, 64, 100, 1000
PROCESSES = (16, 64)
LEAST_RATIO = 0.5

ROOT = Path(__file__).resolve().parents[1]
GPUS = (16_384, 131_072)
MOST_SECONDS: dict[Detail, float] = {"operators": 3.0, "stages": 0.3}
"""What a prediction may take, once Python has started and imported what it needs [s]."""
MOST_BYTES = 2**30
MOST_GROWTH = 1.2
"""How many times as long the larger machine, or each task of the longer pipeline, may take (-)."""
LONGER = (16, 32, 64, 128)
ENDS = {8: 15, 16: 7, 32: 3}
"""Layers of the first and the last of so many stages; the others have one more."""


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


def bare(operators: int, processes: int) -> None:
    """One timeout an operator and nothing else."""
    env = Environment()

    def stage(seconds: list[float]):
        for delay in seconds:
            yield env.timeout(delay)

    for index in range(processes):
        env.process(stage([1e-4 + 1e-6 * index] * (operators // processes)))
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
        f"bare timeouts, {PROCESSES[0]} processes": (lambda: bare(operators, PROCESSES[0]), operators),
        f"bare timeouts, {PROCESSES[1]} processes": (lambda: bare(operators, PROCESSES[1]), operators),
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


# ---- Llama-3 405B -----------------------------------------------------------------------------------------------


def llama(gpus: int, *, stages: int = STAGES, microbatches: int = 16) -> TrainingRun:
    """Llama-3 405B as trained: 8-way TP, one layer less at either end, full recompute, a distributed optimizer."""
    keys = {
        "model": "llama-3-405b",
        "cluster": "dgx-h100",
        "gpus": gpus,
        "tp": 8,
        "pp": stages,
        "micro_batch": 1,
        "global_batch": microbatches * gpus // (8 * stages),
        "seq": 8192,
        "first_layers": ENDS[stages],
        "last_layers": ENDS[stages],
        "recompute": "full",
        "zero": 1,
        "sp": True,
    }
    return resolve(request_from_mapping(nested(keys)))


def one_prediction(gpus: int, detail: Detail) -> None:
    """What a process of its own does: one prediction, and its times on standard output."""
    start = time.process_time()
    prediction = predict(llama(gpus), detail=detail)
    record_json(prediction_record(prediction))
    print(json.dumps([start, time.process_time() - start, prediction.execution.events]))


@dataclass(frozen=True)
class Case:
    start: float
    seconds: float
    events: int
    peak: int


def fresh(gpus: int, detail: Detail) -> Case:
    """One prediction by a new process."""
    command = [sys.executable, "-m", "benchmarks.engine_speed", str(gpus), detail]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        told = "" if process.stdout is None else process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    start, seconds, events = json.loads(told)
    peak = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return Case(start, seconds, events, peak)


def at_scale(rounds: int = 3) -> bool:
    """Print what predictions of both sizes take; whether they keep the bounds."""
    sizes: list[tuple[Detail, int]] = [(detail, gpus) for detail in MOST_SECONDS for gpus in GPUS]
    found: dict[tuple[Detail, int], list[Case]] = {size: [] for size in sizes}
    for _ in range(rounds):
        for detail, gpus in sizes:
            found[detail, gpus].append(fresh(gpus, detail))
    print(f"\nLlama-3 405B, TP8 x PP{STAGES}, 16 micro-batches a replica, each by a new process")
    print(f"{'':10} {'GPUs':>8} {'events':>9} {'start s':>9} {'CPU s':>9} {'ratio':>7} {'peak MiB':>9}")
    kept = True
    for detail, most in MOST_SECONDS.items():
        first = min(case.seconds for case in found[detail, GPUS[0]])
        for gpus in GPUS:
            cases = found[detail, gpus]
            start, seconds = min(case.start for case in cases), min(case.seconds for case in cases)
            peak = max(case.peak for case in cases)
            row = f"{detail:10} {gpus:8,} {cases[0].events:9,} {start:9.3f} {seconds:9.3f} {seconds / first:7.2f}"
            print(f"{row} {peak / 2**20:9.0f}")
            kept = kept and seconds <= most and seconds <= MOST_GROWTH * first and peak < MOST_BYTES
    limits = ", ".join(f"{detail} {seconds:g} s" for detail, seconds in MOST_SECONDS.items())
    print(f"at most: {limits}, ratio {MOST_GROWTH}, {MOST_BYTES / 2**20:.0f} MiB: {'kept' if kept else 'MISSED'}")
    return kept


def tasks_of(program: Program) -> int:
    """Tasks of all passes of all stages, each pass as it usually is (-)."""
    return sum(
        len(
            program.pairs[stage, item.forward.chunk, item.backward.chunk].tasks
            if isinstance(item, Pair)
            else program.blocks[stage, item.kind, item.chunk].tasks
        )
        for stage, order in enumerate(program.schedule.orders)
        for item in order
    )


def growing() -> Iterator[tuple[str, list[tuple[int, TrainingRun]]]]:
    """Pipelines that grow in one respect."""
    yield "micro-batches", [(count, llama(GPUS[0], microbatches=count)) for count in LONGER]
    yield "stages", [(stages, llama(1024 * stages, stages=stages, microbatches=32)) for stages in ENDS]


def growth(rounds: int = 2) -> bool:
    """Print the time for each task of longer and wider pipelines; whether it stays the same."""
    print(f"\n{'':14} {'':5} {'tasks':>10} {'operators s':>12} {'us/task':>8} {'stages s':>9} {'us/pass':>8}")
    kept = True
    for name, runs in growing():
        parts = {count: (tasks_of(build(run)), sum(map(len, build(run).schedule.orders))) for count, run in runs}
        best = {(count, detail): float("inf") for count, _ in runs for detail in MOST_SECONDS}
        for _ in range(rounds):
            for count, run in runs:
                for detail in MOST_SECONDS:
                    seconds = processor_seconds(lambda run=run, detail=detail: simulate_run(run, detail=detail))
                    best[count, detail] = min(best[count, detail], seconds)
        each: dict[Detail, list[float]] = {detail: [] for detail in MOST_SECONDS}
        for count, (tasks, passes) in parts.items():
            operators, stages = best[count, "operators"], best[count, "stages"]
            each["operators"].append(operators / tasks)
            each["stages"].append(stages / passes)
            row = f"{name:14} {count:5} {tasks:10,} {operators:12.3f} {operators / tasks * 1e6:8.2f}"
            print(f"{row} {stages:9.3f} {stages / passes * 1e6:8.1f}")
        ratios = {detail: of[-1] / of[0] for detail, of in each.items()}
        told = ", ".join(f"{detail} {ratio:.2f}" for detail, ratio in ratios.items())
        print(f"{name}: the last takes so many times as long for each as the first: {told}")
        kept = kept and max(ratios.values()) <= MOST_GROWTH
    print(f"at most {MOST_GROWTH}: {'kept' if kept else 'MISSED'}")
    return kept


def main() -> int:
    results = measure()
    reference = max(found.rate for found in results[: len(PROCESSES)])
    print(f"1F1B, p = {STAGES}, m = {MICROBATCHES}, {OPERATORS} operators a pass: {results[0].operators:,} operators")
    print(f"{'':40} {'CPU s':>9} {'M operators/s':>14} {'of bare':>9}")
    for found in results:
        print(f"{found.name:40} {found.seconds:9.4f} {found.rate / 1e6:14.2f} {found.rate / reference:8.2f}x")
    ratio = results[len(PROCESSES)].rate / reference
    print(f"operator-level events reach {ratio:.2f} of the bare rate (at least {LEAST_RATIO} asked for)")
    kept = [ratio >= LEAST_RATIO, at_scale(), growth()]
    return 0 if all(kept) else 1


if __name__ == "__main__":
    if len(sys.argv) == 3:
        one_prediction(int(sys.argv[1]), "operators" if sys.argv[2] == "operators" else "stages")
        raise SystemExit(0)
    raise SystemExit(main())
