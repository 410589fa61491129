"""The cost of an iteration does not grow with data parallelism: GPT-3 175B on 128 to 16,384 GPUs.

Run with ``python -m benchmarks.folding``. Wall and processor time are the least of many rounds; the ratios are of
processor time, which other work on the machine disturbs least. Exits with status 1 when the numbers of events differ,
or when the slowest size takes more than 1.2 times as long as the fastest.
"""

from __future__ import annotations

import sys
import time

from shardsim.engine.predict import predict
from shardsim.program.resolve import resolve
from shardsim.schema.run import nested, request_from_mapping
from shardsim.values.results import Prediction

SIZES = (128, 1024, 8192, 16384)
REPEATS = 15
MOST = 1.2
MICROBATCHES = 16


def once(gpus: int) -> tuple[float, float, Prediction]:
    """Price, build and simulate one size, operator by operator; wall and processor time [s] and the prediction."""
    run = {
        "model": "gpt3-175b",
        "cluster": "selene",
        "gpus": gpus,
        "tp": 8,
        "pp": 16,
        "micro_batch": 1,
        "global_batch": MICROBATCHES * gpus // (8 * 16),
        "seq": 2048,
        "framework": "megatron-2021",
    }
    begin, busy = time.perf_counter(), time.process_time()
    prediction = predict(resolve(request_from_mapping(nested(run))), engine="des", detail="operators")
    return time.perf_counter() - begin, time.process_time() - busy, prediction


def main() -> int:
    """Measure all sizes in turn, so that a busy moment of the machine touches all alike."""
    wall = dict.fromkeys(SIZES, float("inf"))
    busy = dict.fromkeys(SIZES, float("inf"))
    found: dict[int, Prediction] = {}
    for _ in range(REPEATS):
        for gpus in SIZES:
            elapsed, processor, found[gpus] = once(gpus)
            wall[gpus] = min(wall[gpus], elapsed)
            busy[gpus] = min(busy[gpus], processor)
    fastest = min(busy.values())
    print("GPT-3 175B, TP8 x PP16, 16 micro-batches a replica, event engine, operator by operator")
    print(f"{'GPUs':>7} {'events':>9} {'iteration':>11} {'wall':>9} {'processor':>10} {'ratio':>6}")
    for gpus in SIZES:
        events, iteration = found[gpus].execution.events, found[gpus].iteration_s
        times = f"{wall[gpus]:>7.3f} s {busy[gpus]:>8.3f} s {busy[gpus] / fastest:>6.2f}"
        print(f"{gpus:>7,} {events:>9,} {iteration:>9.4f} s {times}")
    same = len({found[gpus].execution.events for gpus in SIZES}) == 1
    return 0 if same and max(busy.values()) <= MOST * fastest else 1


if __name__ == "__main__":
    sys.exit(main())
