"""Run every benchmark: ``python -m benchmarks``; status 1 when any misses its bound."""

from __future__ import annotations

import sys

from benchmarks import engine_speed, folding

if __name__ == "__main__":
    sys.exit(max(benchmark.main() for benchmark in (folding, engine_speed)))
